#!/bin/sh
# Real programs work for minutes on files that seven replicas keep, of which one lies and one is killed.
#
#   demos/programs.sh              git, SQLite and, where it is installed, PostgreSQL
#   demos/programs.sh --keep       leave everything in the scratch directory that it names
#
# It builds `quorate` if need be, uses a scratch directory and ports of 127.0.0.1 only, and ends all that it has started.
# Exit code 0: no program had an error, and each found afterwards what it had written.
set -eu

SECONDS_EACH=${SECONDS_EACH:-60}    # so long SQLite works, and so long PostgreSQL
PORT=${PORT:-7960}                  # the first of seven
REPOSITORY=${REPOSITORY:-}          # what git clones [default: the repository that this is in]

here=$(cd "$(dirname "$0")/.." && pwd)
quorate=${QUORATE:-$here/target/release/quorate}
[ -x "$quorate" ] || (cd "$here" && cargo build --release --locked -p quorate)
[ -e /dev/fuse ] || { echo "this needs /dev/fuse and fusermount3 (apt install fuse3)" >&2; exit 2; }
for program in git sqlite3; do
    command -v $program >/dev/null || { echo "this needs $program (apt install $program)" >&2; exit 2; }
done
repository=${REPOSITORY:-$here}

keep=${1:-}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/programs.XXXXXX")
chmod 755 "$scratch"
files=$scratch/files
group=
database=
stop() {
    [ -z "$database" ] || pg pg_ctl stop --silent --mode=immediate || true
    [ -z "$group" ] || { kill -INT "$group" 2>/dev/null && wait "$group" || true; }
    if [ "$keep" = --keep ]; then echo "all of it is in $scratch"; else rm -rf "$scratch"; fi
}
trap stop EXIT
trap 'exit 130' INT TERM

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { echo "   FAILED: $*"; exit 1; }
now() { date +%s; }

say "Seven replicas on this machine, which stand two faults; number 5 lies"
"$quorate" up --replicas 7 --data "$scratch/quorate" --port "$PORT" --mount "$files" --fault 5=lie --no-restart --json > "$scratch/up.log" 2>&1 &
group=$!
for _ in $(seq 120); do
    grep -q '"ready"' "$scratch/up.log" && break
    kill -0 "$group" 2>/dev/null || { cat "$scratch/up.log" >&2; exit 1; }
    sleep 1
done

export HOME="$scratch" GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
git config --file "$scratch/.gitconfig" user.name Demonstration
git config --file "$scratch/.gitconfig" user.email demonstration@localhost
git config --file "$scratch/.gitconfig" --add safe.directory '*'

say "git: clone, and then replica 0, the primary, is killed"
git clone --quiet --no-local --single-branch --sparse "$repository" "$files/clone"
git -C "$files/clone" sparse-checkout set docs crates made
# Its key holder has the same words, and lives on.
victim=$(pgrep -f -- " replica .*--id 0 --group $scratch/quorate/group.toml" | head -n 1)
[ -n "$victim" ] || fail "replica 0 is not there"
kill -9 "$victim"
is_gone() { { "$quorate" status "$scratch/quorate/group.toml" --json || true; } | tr -d ' \n' | grep -q '"answers":false'; }
for _ in $(seq 30); do is_gone && break; sleep 1; done
is_gone || fail "replica 0 still answers"
began=$(now)
(
    cd "$files/clone"
    for round in $(seq 20); do
        mkdir -p "made/$((round % 4))"
        head -c 20000 /dev/urandom | od -x > "made/$((round % 4))/$round"
        git add -A
        git commit --quiet -m "round $round"
        [ $((round % 5)) != 0 ] || git checkout --quiet -B "side-$round"
    done
    git gc --quiet --prune=now
    git fsck --full --strict 2>/dev/null
    [ -z "$(git status --porcelain)" ]
) || fail git
git clone --quiet "$files/clone" "$scratch/back"
git -C "$scratch/back" fsck --full --strict 2>/dev/null || fail "the clone of the clone is damaged"
diff -r "$files/clone/made" "$scratch/back/made" || fail "the clone of the clone differs"
echo "   20 commits, gc, fsck and a clone back after the kill, in $(($(now) - began)) s: no error, and nothing differs"

say "SQLite: transfers between 1,000 accounts for $SECONDS_EACH s, each a synchronous transaction; its process is killed again and again"
db=$files/bank.db
sqlite3 "$db" "create table account (id integer primary key, balance integer not null);
    create table done (id integer primary key autoincrement, what text);
    with recursive n(i) as (select 0 union all select i + 1 from n where i < 999) insert into account select i, 100 from n;"
end=$(($(now) + SECONDS_EACH))
part=$((SECONDS_EACH / 5))
kills=0
while [ "$(now)" -lt "$end" ]; do
    # Transactions without an end; when its reader goes, it ends. The shell need not say that one was killed.
    { awk 'BEGIN { print "pragma synchronous = full; pragma busy_timeout = 60000;";
        for (;;) { a = int(rand() * 1000); b = int(rand() * 1000);
            print "begin immediate; update account set balance = balance - 1 where id = " a ";" \
                " update account set balance = balance + 1 where id = " b ";" \
                " insert into done (what) values (\x27" a " to " b "\x27); commit;" } }' 2>/dev/null \
        | timeout --signal=KILL "$part" sqlite3 -bail "$db" > "$scratch/sqlite.out" 2> "$scratch/sqlite.err"; } 2>/dev/null || true
    grep -v '^60000$' "$scratch/sqlite.err" "$scratch/sqlite.out" -h | grep . && fail SQLite
    kills=$((kills + 1))
    [ "$(sqlite3 "$db" 'pragma integrity_check')" = ok ] || fail "SQLite's integrity check"
    [ "$(sqlite3 "$db" 'select sum(balance) from account')" = 100000 ] || fail "money was lost"
done
echo "   $(sqlite3 "$db" 'select count(*) from done') transactions, $kills kills: after each the integrity check says ok and no money is lost"

postgres=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
# PostgreSQL does not run as root.
pg() {
    program=$1
    shift
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --clear-groups env PGDATA="$files/pg" PGHOST="$scratch/pg" "$postgres/$program" "$@"
    else
        env PGDATA="$files/pg" PGHOST="$scratch/pg" "$postgres/$program" "$@"
    fi
}
ask() { pg psql --no-psqlrc --quiet --tuples-only --no-align --dbname=postgres --command="$1"; }
start_database() {
    pg pg_ctl start --silent --wait --timeout=300 --log="$scratch/pg/log" \
        --options="-c listen_addresses='' -c unix_socket_directories=$scratch/pg"
}
if [ -z "$postgres" ]; then
    say "PostgreSQL is left out: it is not installed (apt install postgresql)"
else
    say "PostgreSQL: pgbench with 4 clients for $SECONDS_EACH s, and then the database is killed"
    mkdir "$scratch/pg" "$files/pg"
    chmod 700 "$files/pg"
    [ "$(id -u)" != 0 ] || chown postgres:postgres "$scratch/pg" "$files/pg"
    pg initdb --auth=trust --username=postgres --data-checksums > "$scratch/initdb.out"
    database=started
    start_database || { tail "$scratch/pg/log"; fail "PostgreSQL did not start"; }
    export PGUSER=postgres
    pg pgbench --quiet --initialize --scale=2 postgres 2> "$scratch/pgbench.err" || { cat "$scratch/pgbench.err"; fail pgbench; }
    pg pgbench --client=4 --time="$SECONDS_EACH" --no-vacuum postgres > "$scratch/pgbench.out" 2> "$scratch/pgbench.err" \
        || { cat "$scratch/pgbench.err"; fail pgbench; }
    grep -q '^number of failed transactions: 0 ' "$scratch/pgbench.out" || { cat "$scratch/pgbench.out"; fail pgbench; }
    kill -9 "$(head -n 1 "$files/pg/postmaster.pid")"
    back=
    # The others of its processes go when they find that it is gone.
    for _ in $(seq 60); do start_database 2>/dev/null && back=yes && break; sleep 1; done
    [ -n "$back" ] || { tail "$scratch/pg/log"; fail "PostgreSQL did not come back"; }
    made=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$scratch/pgbench.out")
    [ "$(ask 'select count(*) from pgbench_history')" = "$made" ] || fail "a transaction was lost"
    sums=$(ask 'select count(distinct total) from (select sum(abalance) as total from pgbench_accounts
        union all select sum(tbalance) from pgbench_tellers union all select sum(bbalance) from pgbench_branches
        union all select sum(delta) from pgbench_history) as sums')
    [ "$sums" = 1 ] || fail "PostgreSQL's balances differ"
    pg pg_ctl stop --silent --mode=fast
    database=
    pg pg_checksums --check > "$scratch/checksums.out" || { cat "$scratch/checksums.out"; fail "PostgreSQL's checksums"; }
    echo "   $made transactions, none failed; after the kill each is there, all balances agree and no page has a bad checksum"
fi

say "The group"
"$quorate" status "$scratch/quorate/group.toml" || true
echo
echo "no program had an error"
