use super::*;
use crate::dice::Dice;
use crate::history::{Mode, Slot, extend};

fn op(client: u8, op: Op, begun: u64, ended: u64, outcome: Outcome) -> Operation {
    Operation {
        client,
        mounted: false,
        op,
        begun,
        ended: Some((ended, outcome)),
    }
}

fn write(client: u8, token: u64, begun: u64, ended: u64) -> Operation {
    let write = Op::Write { register: 0, token };
    op(client, write, begun, ended, Outcome::Done)
}

fn read(client: u8, token: u64, begun: u64, ended: u64) -> Operation {
    let read = Op::Read { register: 0 };
    op(client, read, begun, ended, Outcome::Value(token))
}

fn slot(directory: u8, name: u8) -> Slot {
    Slot {
        tree: 0,
        directory,
        name,
    }
}

fn verdict(history: &[Operation]) -> Verdict {
    let verdicts = check(history, BUDGET);
    assert_eq!(verdicts.len(), 1, "one object");
    verdicts.into_values().next().expect("one object")
}

fn is_right(history: &[Operation]) -> bool {
    match verdict(history) {
        Verdict::Linearizable => true,
        Verdict::Violation(..) => false,
        Verdict::Undecided => panic!("a short history"),
    }
}

/// Reads that overlap a write may see it or not, but not go back.
#[test]
fn registers() {
    assert!(is_right(&[write(0, 1, 0, 10), read(1, 1, 5, 7)]));
    assert!(is_right(&[write(0, 1, 0, 10), read(1, 0, 5, 7)]));
    assert!(is_right(&[
        write(0, 1, 0, 10),
        read(1, 0, 1, 3),
        read(1, 1, 4, 7)
    ]));
    // A stale read.
    assert!(!is_right(&[write(0, 1, 0, 10), read(1, 0, 11, 12)]));
    // Back to the old value, though the write is still open.
    assert!(!is_right(&[
        write(0, 1, 0, 10),
        read(1, 1, 1, 3),
        read(2, 0, 4, 7)
    ]));
    // What nobody wrote.
    assert!(!is_right(&[write(0, 1, 0, 10), read(1, 9, 5, 7)]));
    let torn = Outcome::Torn("1 and 2".into());
    assert!(!is_right(&[op(0, Op::Read { register: 0 }, 0, 1, torn)]));
    // Two clients disagree about the order of two writes.
    assert!(!is_right(&[
        write(0, 1, 0, 10),
        write(1, 2, 0, 10),
        read(2, 1, 11, 12),
        read(2, 2, 13, 14),
    ]));
    // Answer and call at the same time overlap.
    assert!(is_right(&[write(0, 1, 0, 10), read(1, 0, 10, 12)]));
}

/// A write whose outcome nobody knows may take effect late or never, and once only.
#[test]
fn unknown_outcomes() {
    let mut lost = write(0, 1, 0, 0);
    lost.ended = None;
    assert!(is_right(&[
        lost.clone(),
        read(1, 0, 5, 6),
        read(1, 1, 50, 60)
    ]));
    assert!(is_right(&[lost.clone(), read(1, 0, 5, 6)]));
    assert!(!is_right(&[
        lost.clone(),
        read(1, 1, 5, 6),
        write(2, 2, 7, 8),
        read(1, 1, 9, 10)
    ]));
    // A read that was not answered says nothing.
    let mut asked = read(1, 7, 0, 0);
    asked.ended = None;
    assert!(check(&[asked], BUDGET).is_empty());
}

/// Objects are checked one by one, and the violation names the operation.
#[test]
fn objects_are_apart() {
    let mut other = read(1, 5, 3, 4);
    other.op = Op::Read { register: 1 };
    let verdicts = check(&[write(0, 5, 0, 1), other.clone()], BUDGET);
    assert_eq!(verdicts[&Object::Register(0)], Verdict::Linearizable);
    match &verdicts[&Object::Register(1)] {
        Verdict::Violation(operation, _) => assert_eq!(**operation, other),
        right => panic!("{right:?}"),
    }
}

/// Nothing that was appended is lost, doubled or moved.
#[test]
fn logs() {
    let append = |client, token, at, begun, ended| {
        let op_ = Op::Append { log: 0, token };
        op(client, op_, begun, ended, Outcome::At(at))
    };
    let content = |tokens: &[u64]| Outcome::Log {
        bytes: 8 * tokens.len() as u64,
        digest: tokens
            .iter()
            .fold(0, |digest, token| extend(digest, *token)),
    };
    let read = |tokens: &[u64]| op(2, Op::ReadLog { log: 0 }, 20, 30, content(tokens));
    let both = [append(0, 1, 8, 0, 10), append(1, 2, 0, 0, 10)];
    let with = |last: Operation| [both.to_vec(), vec![last]].concat();
    assert!(is_right(&with(read(&[2, 1]))));
    for wrong in [&[1, 2][..], &[2], &[2, 1, 1], &[]] {
        assert!(!is_right(&with(read(wrong))), "{wrong:?}");
    }
    // Two at one place: one of them is lost.
    assert!(!is_right(&[append(0, 1, 0, 0, 10), append(1, 2, 0, 0, 10)]));
    // One whose outcome is not known is there once or not at all.
    let mut lost = append(0, 3, 0, 0, 0);
    lost.ended = None;
    let then = |tokens: &[u64]| [both.to_vec(), vec![lost.clone(), read(tokens)]].concat();
    assert!(is_right(&then(&[2, 3, 1])) != is_right(&then(&[2, 1, 3])));
    assert!(!is_right(&then(&[2, 1, 3, 3])));
}

fn create(client: u8, at: Slot, ino: u64, begun: u64, ended: u64) -> Operation {
    let create = Op::Create { at, token: ino };
    op(client, create, begun, ended, Outcome::Made(ino))
}

fn look(client: u8, at: Slot, begun: u64, ended: u64, outcome: Outcome) -> Operation {
    op(client, Op::Look { at }, begun, ended, outcome)
}

fn rename(from: Slot, to: Slot, mode: Mode, begun: u64, ended: u64) -> Operation {
    let rename = Op::Rename {
        from,
        to,
        mode,
        cached: false,
    };
    op(0, rename, begun, ended, Outcome::Done)
}

/// Exclusive creation succeeds once; a rename shows at both names at once.
#[test]
fn trees() {
    let (a, b) = (slot(0, 0), slot(1, 2));
    assert!(!is_right(&[create(0, a, 7, 0, 10), create(1, a, 8, 0, 10)]));
    // Numbers are not used again.
    assert!(!is_right(&[create(0, a, 7, 0, 10), create(1, b, 7, 0, 10)]));
    let moved = [create(0, a, 7, 0, 10), rename(a, b, Mode::Replace, 20, 30)];
    let with = |more: &[Operation]| is_right(&[moved.to_vec(), more.to_vec()].concat());
    let found = |at, begun, ended| look(1, at, begun, ended, Outcome::Found(7));
    let missing = |at, begun, ended| look(2, at, begun, ended, Outcome::Missing);
    assert!(with(&[found(a, 21, 22), found(b, 23, 24)]));
    assert!(with(&[missing(a, 31, 32), found(b, 33, 34)]));
    // At both names, at neither, back again.
    assert!(!with(&[found(b, 21, 22), found(a, 23, 24)]));
    assert!(!with(&[missing(a, 21, 22), missing(b, 23, 24)]));
    assert!(!with(&[missing(a, 21, 22), found(a, 31, 32)]));
    let list = |directory, listed: &[(u8, u64)]| {
        let list = Op::List { tree: 0, directory };
        op(3, list, 40, 41, Outcome::Listing(listed.to_vec()))
    };
    assert!(with(&[list(1, &[(2, 7)]), list(0, &[])]));
    assert!(!with(&[list(0, &[(0, 7)])]));
    assert!(!with(&[list(1, &[(2, 7), (9, 9)])]));
    assert!(!with(&[list(1, &[])]));
}

/// Exchanges, refusals and links.
#[test]
fn names_of_files() {
    let (a, b) = (slot(0, 0), slot(0, 1));
    let two = [create(0, a, 7, 0, 1), create(0, b, 8, 2, 3)];
    let with = |more: &[Operation]| is_right(&[two.to_vec(), more.to_vec()].concat());
    let exchange = rename(a, b, Mode::Exchange, 10, 11);
    let found = |at, ino| look(1, at, 20, 21, Outcome::Found(ino));
    assert!(with(&[exchange.clone(), found(a, 8), found(b, 7)]));
    assert!(!with(&[exchange, found(a, 7)]));
    let mut refused = rename(a, b, Mode::NoReplace, 10, 11);
    assert!(!with(std::slice::from_ref(&refused)));
    refused.ended = Some((11, Outcome::Exists));
    assert!(with(&[refused, found(a, 7)]));
    let link = |ino, at, outcome| op(2, Op::Link { ino, at }, 12, 13, outcome);
    let c = slot(1, 0);
    assert!(with(&[link(7, c, Outcome::Done), found(c, 7), found(a, 7)]));
    assert!(!with(&[link(7, c, Outcome::Stale)]));
    assert!(with(&[link(9, c, Outcome::Stale)]));
    assert!(with(&[link(7, a, Outcome::Exists)]));
    // Two names of one file: a rename between them does nothing.
    let linked = [
        link(7, c, Outcome::Done),
        rename(a, c, Mode::Replace, 14, 15),
    ];
    let still = [linked.to_vec(), vec![found(a, 7), found(c, 7)]].concat();
    assert!(with(&still));
}

/// A file whose creation nobody answered may be there, under a number that is found out later.
#[test]
fn unknown_creations() {
    let (a, b) = (slot(0, 0), slot(0, 1));
    let mut lost = create(0, a, 7, 0, 0);
    lost.ended = None;
    let found = |at, begun, ino| look(1, at, begun, begun + 1, Outcome::Found(ino));
    let moved = rename(a, b, Mode::Replace, 20, 21);
    assert!(is_right(&[lost.clone(), found(a, 5, 99)]));
    assert!(is_right(&[lost.clone(), moved.clone(), found(b, 30, 99)]));
    assert!(!is_right(&[lost.clone(), found(a, 5, 99), found(a, 7, 98)]));
    assert!(!is_right(&[lost, found(a, 5, 99), moved, found(b, 30, 98)]));
}

/// Through a mount, a name may be told from the kernel's cache; changes may not, and no name for longer than that.
#[test]
fn mounts_may_know_old_names() {
    let a = slot(0, 0);
    let second = 1_000_000;
    let remove = |begun| op(0, Op::Remove { at: a }, begun, begun + 10, Outcome::Done);
    let seen = |begun, outcome| Operation {
        mounted: true,
        ..look(1, a, begun, begun + 10, outcome)
    };
    let start = [create(0, a, 7, 0, 10), seen(100, Outcome::Found(7))];
    let with = |more: &[Operation]| is_right(&[start.to_vec(), more.to_vec()].concat());
    assert!(with(&[remove(200), seen(second, Outcome::Found(7))]));
    assert!(!with(&[remove(200), seen(3 * second, Outcome::Found(7))]));
    assert!(!with(&[seen(300, Outcome::Missing)]));
    let refused = Operation {
        mounted: true,
        ..op(1, Op::Remove { at: a }, 500, 510, Outcome::Missing)
    };
    assert!(!with(&[refused]));
}

/// A mount's kernel that moves a name moves the file that it knew by it, which may be another one by now. So for a while
/// it may show a file where it never was, and a client of the library may not.
#[test]
fn mounts_may_move_old_names() {
    let (a, b) = (slot(0, 0), slot(0, 1));
    let mounted = |operation| Operation {
        mounted: true,
        client: 1,
        ..operation
    };
    let seen = |at, ino, begun| mounted(look(1, at, begun, begun + 10, Outcome::Found(ino)));
    let remove = op(0, Op::Remove { at: a }, 200, 210, Outcome::Done);
    let start = [
        create(0, a, 7, 0, 10),
        seen(a, 7, 100),
        remove,
        create(0, a, 8, 300, 310),
        mounted(rename(a, b, Mode::Replace, 400, 410)),
    ];
    let with = |last: Operation| is_right(&[start.to_vec(), vec![last]].concat());
    assert!(with(seen(b, 7, 500)));
    assert!(with(seen(b, 8, 3_000_000)));
    assert!(!with(seen(b, 7, 3_000_000)));
    assert!(!with(look(2, b, 500, 510, Outcome::Found(7))));
}

/// A mount's kernel may refuse to move a name that is gone to one that is there; not to one that is not.
#[test]
fn mounts_may_refuse_for_old_names() {
    let (a, b) = (slot(0, 0), slot(0, 1));
    let refused = Operation {
        mounted: true,
        ended: Some((410, Outcome::Exists)),
        ..rename(a, b, Mode::NoReplace, 400, 410)
    };
    assert!(is_right(&[create(1, b, 7, 0, 10), refused.clone()]));
    assert!(!is_right(&[create(1, a, 7, 0, 10), refused.clone()]));
    let exact = Operation {
        mounted: false,
        ..refused
    };
    assert!(!is_right(&[create(1, b, 7, 0, 10), exact]));
}

/// A search that would take too long is given up, and says so.
#[test]
fn the_search_is_bounded() {
    let mut history: Vec<Operation> = (1..=40)
        .map(|token| write(token as u8, token, 0, 0))
        .collect();
    for lost in &mut history {
        lost.ended = None;
    }
    history.push(read(50, 999, 10, 11));
    assert_eq!(
        check(&history, 10_000)[&Object::Register(0)],
        Verdict::Undecided
    );
}

/// What a real register does is right whatever the schedule; and with one read changed to another value it is wrong,
/// unless that value was possible, which the long way of trying all orders says.
#[test]
fn random_histories() {
    let mut wrong = 0;
    for seed in 0..300 {
        let mut dice = Dice::new(seed, 0);
        let mut history = Vec::new();
        let (mut value, mut now) = (0, 0);
        for token in 1..=6 {
            // The moment of effect lies within; calls overlap by chance.
            now += dice.range(1, 10);
            let (begun, ended) = (now - dice.below(now.min(15)), now + dice.below(15));
            history.push(match dice.percent(50) {
                true => {
                    value = token;
                    write(token as u8, token, begun, ended)
                }
                false => read(token as u8, value, begun, ended),
            });
        }
        assert!(is_right(&history), "seed {seed}: {history:#?}");
        let Some(changed) = history.iter_mut().find(|o| o.op.is_read()) else {
            continue;
        };
        if let Some((_, outcome)) = &mut changed.ended {
            *outcome = Outcome::Value(dice.range(0, 6));
        }
        assert_eq!(
            is_right(&history),
            some_order(&history, &mut Vec::new()),
            "seed {seed}"
        );
        wrong += usize::from(!is_right(&history));
    }
    assert!(wrong > 30, "{wrong} of 300 were wrong");
}

/// Tries all orders.
fn some_order(history: &[Operation], chosen: &mut Vec<usize>) -> bool {
    let ended = |o: &Operation| o.ended.as_ref().map_or(u64::MAX, |(end, _)| *end);
    let mut value = 0;
    for (place, at) in chosen.iter().enumerate() {
        match (&history[*at].op, &history[*at].ended) {
            (Op::Write { token, .. }, _) => value = *token,
            (_, Some((_, Outcome::Value(token)))) if *token == value => {}
            _ => return false,
        }
        let late = |later: &usize| ended(&history[*later]) < history[*at].begun;
        if chosen[place..].iter().any(late) {
            return false;
        }
    }
    if chosen.len() == history.len() {
        return true;
    }
    for next in 0..history.len() {
        if !chosen.contains(&next) {
            chosen.push(next);
            let found = some_order(history, chosen);
            chosen.pop();
            if found {
                return true;
            }
        }
    }
    false
}
