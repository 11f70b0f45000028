# Read by kernel-nfs.sh: what serves. Each says where the virtual machine mounts the volume (export_path) and, for the suite `tree`, one server alone.

serve_quorate() {
    "$quorate" up --no-mount --data "$work/group" --port "$port" --json > up.log 2>&1 &
    group=$!
    for _ in $(seq 120); do
        grep -q '"ready"' up.log && break
        kill -0 "$group" 2> /dev/null || { cat up.log >&2; exit 1; }
        sleep 1
    done
    cat > exports.toml << EXPORTS
[[export]]
path = "/"
clients = ["127.0.0.1"]
secure = false
squash = "no_root_squash"
EXPORTS
    "$quorate" nfs "$work/group/group.toml" --listen "127.0.0.1:$nfs" --exports exports.toml > front.log 2>&1 &
    front=$!
}
# One of nfs-ganesha: its name, its two ports, and how many exports it has, each a directory of `served`. It starts only where a port mapper takes its
# ports; so it gets one that nobody else sees.
ganesha() {
    {
        cat << CONFIGURATION
NFS_CORE_PARAM {
    Protocols = 3; NFS_Port = $2; MNT_Port = $3; Bind_addr = 127.0.0.1;
    Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
}
CONFIGURATION
        for number in $(seq "$4"); do
            mkdir -p "served/$1-$number"
            cat << CONFIGURATION
EXPORT {
    Export_Id = $number; Path = $work/served/$1-$number; Pseudo = /$1-$number; Access_Type = RW; Squash = No_Root_Squash;
    Protocols = 3; Transports = TCP; SecType = sys; PrivilegedPort = false;
    FSAL { Name = VFS; }
}
CONFIGURATION
        done
    } > "$1.conf"
    unshare --mount --pid --fork --kill-child=KILL sh -euc '
        mount -t proc proc /proc
        mount -t tmpfs none /run; mount -t tmpfs none /var/lib/nfs; mkdir -p /run/rpcbind
        unshare --net rpcbind -f -w &
        until [ -S /run/rpcbind.sock ]; do sleep 0.1; done
        exec ganesha.nfsd -F -f "$1.conf" -L "$1.log" -p /run/ganesha.pid' sh "$1" > "$1.out" 2>&1 &
    ganeshas="$ganeshas $!"
    is_there "$2" "$3" "$!" || { cat "$1.out" >&2; exit 1; }
}
# Whether two ports come to be listened at, while a process runs.
is_there() {
    for _ in $(seq 60); do
        (: < "/dev/tcp/127.0.0.1/$1" && : < "/dev/tcp/127.0.0.1/$2") 2> /dev/null && return
        kill -0 "$3" 2> /dev/null || return
        sleep 1
    done
    return 1
}
serve_ganesha() {
    ganesha server "$nfs" "$mount" 1
    export_path=$work/served/server-1
}
# Four servers of eight exports each as one volume; the first has a ninth, to compare with.
serve_route() {
    volumes=
    for n in 0 1 2 3; do
        exports=8
        [ $n != 0 ] || exports=9
        own=$((port + 2 * n))
        ganesha "server$n" "$own" "$((own + 1))" "$exports"
        for number in 1 2 3 4 5 6 7 8; do
            volumes="$volumes    \"nfs://127.0.0.1:$own$work/served/server$n-$number?mountport=$((own + 1))\",
"
        done
    done
    one_port=$port one_mount=$((port + 1)) one_path=$work/served/server0-9
    cat > route.toml << CONFIGURATION
listen = "127.0.0.1:$nfs"
log = "route.log"
volumes = [
$volumes]
[[export]]
path = "/"
clients = ["127.0.0.1"]
secure = false
squash = "no_root_squash"
CONFIGURATION
    rm -f route.log
    "$quorate" route --config route.toml --new-log > front.log 2>&1 &
    front=$!
}
