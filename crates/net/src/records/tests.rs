use std::net::TcpListener;

use mio::net::TcpStream;
use quorate_wire::{EpochCertificate, KeyPair};

use super::*;
use crate::frame::Length;
use crate::frame::{Frame, LinkEnd};
use crate::group::{Files, Group, Purpose};
use crate::link::{Link, LinkLimits, Opening};
use crate::outbox::OutboxLimits;
use crate::tls::Identity;

fn record(content: usize) -> Vec<u8> {
    let length = (content as u64 + SEAL_BYTES) as u16;
    let mut wire = vec![23, 3, 3];
    wire.extend(length.to_be_bytes());
    wire.resize(HEAD_BYTES + usize::from(length), 0);
    wire
}

/// Records are found however the stream is cut, and what was in them is what is counted.
#[test]
fn records_are_counted_by_their_heads() {
    let contents = [1, 0, 16_384, 5, 300];
    let wire = contents.map(record).concat();
    for step in [1, 2, 3, 5, 7, 22, 1_000, wire.len()] {
        let mut records = Records::default();
        for piece in wire.chunks(step) {
            records.pass(piece);
        }
        let all = contents.iter().sum::<usize>() as u64;
        assert_eq!((records.barren, records.missing), (all + LEAST_BARREN, 0));
        records.brought(1 + 16_384 + 300);
        // Five bytes of no message and a record without any; sixteen are forgiven.
        assert_eq!(records.barren, 0);
        assert_eq!(records.take_overhead(0), 1);
    }
}

/// Short messages are never too many, however long they come, nor is a change of keys now and then; what brings nothing is, soon.
#[test]
fn what_brings_nothing_is_soon_too_much() {
    let (message, empty, change) = (record(4), record(0), record(5));
    let mut records = Records::default();
    for round in 0..100_000 {
        records.pass(&message);
        records.brought(4);
        if round % 5_000 == 0 {
            records.pass(&change);
        }
        assert!(!records.are_barren());
    }
    for barren in [empty, change] {
        let mut records = Records::default();
        let most = MOST_BARREN / LEAST_BARREN;
        for _ in 0..most {
            records.pass(&barren);
            assert!(!records.are_barren());
        }
        records.pass(&barren);
        assert!(records.are_barren());
        // Nor do a few bytes beside help.
        let mut records = Records::default();
        let few = (0..2 * most).take_while(|_| {
            records.pass(&barren);
            records.pass(&message);
            records.brought(4);
            !records.are_barren()
        });
        assert!(few.count() < most as usize + 10);
    }
}

/// A long record that is on its way is not held against who sends it.
#[test]
fn what_is_on_its_way_is_not_barren() {
    let mut records = Records::default();
    let wire = record(16_384);
    let (last, first) = wire.split_last().unwrap();
    for piece in first.chunks(1_000) {
        records.pass(piece);
        assert!(!records.are_barren());
    }
    records.pass(&[*last]);
    records.brought(16_384);
    assert!(!records.are_barren());
}

/// A link that was dialed and its other end, which took it: on it a replica's certificate has come, so that there may be notices.
fn linked() -> [Link; 2] {
    let keys = [1, 2].map(|seed| KeyPair::from_seed(&[seed; 32]));
    let [dialing, accepting] = keys.each_ref().map(Identity::new);
    let members = vec![("127.0.0.1:1".into(), accepting.public())];
    let clients = vec![("client".into(), dialing.public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("home", members, clients, files, purpose).unwrap();
    let limits = LinkLimits {
        max_frame_bytes: 1 << 20,
        outbox: OutboxLimits {
            bytes: 4 << 20,
            frames: 64,
        },
    };
    let certificate = Frame::of_bytes(&[1; EpochCertificate::BYTES]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialed = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (taken, _) = listener.accept().unwrap();
    let [dialed, taken] = [dialed, taken].map(|stream| {
        stream.set_nonblocking(true).unwrap();
        TcpStream::from_std(stream)
    });
    let opening = |awaits| Opening { says: None, awaits };
    let certified = Some(Length::Exactly(EpochCertificate::BYTES));
    let config = dialing.client_config(accepting.public());
    let mut dialed = Link::dialed(dialed, config, limits, opening(certified)).unwrap();
    let config = accepting.server_config(&group.into());
    let mut taken = Link::accepted(taken, config, limits, opening(None)).unwrap();
    let mut scratch = vec![0; 4096];
    assert!(taken.push(&certificate));
    loop {
        let stand = [&mut dialed, &mut taken].map(|link| {
            link.readable = true;
            link.shake(&mut scratch).unwrap()
        });
        if stand == [true; 2] {
            break;
        }
        std::thread::yield_now();
    }
    assert!(dialed.next_frame().is_some());
    [dialed, taken]
}

/// Reads all that has been sent, as far as it is there by now.
fn read(link: &mut Link) -> Result<(), LinkEnd> {
    link.readable = true;
    while link.readable {
        link.read(&mut [0; 4096])?;
    }
    Ok(())
}

/// However short the messages are that a correct peer sends, each by itself, and however often it changes its keys when there were many, its link
/// stays: with the shortest message in both directions, and with notices.
#[test]
fn a_correct_link_stays() {
    let [mut dialed, mut taken] = linked();
    let shortest = Frame::of_bytes(&[7]);
    let mut came = [0; 2];
    for round in 0_u32..50_000 {
        assert!(dialed.push(&shortest));
        // Else several notices would be one.
        let notice = round % 2 == 0;
        assert!(taken.push(&if notice {
            Frame::notice()
        } else {
            shortest.clone()
        }));
        if round.is_power_of_two() {
            dialed.change_keys();
            taken.change_keys();
        }
        for (link, came) in [&mut dialed, &mut taken].into_iter().zip(&mut came) {
            link.flush().unwrap();
            read(link).unwrap();
            while link.next_frame().is_some() {
                *came += 1;
            }
            // A change of keys, and the answer to the other side's.
            assert!(link.take_overhead(1) <= 3);
        }
    }
    while came != [50_000; 2] {
        for (link, came) in [&mut dialed, &mut taken].into_iter().zip(&mut came) {
            read(link).unwrap();
            while link.next_frame().is_some() {
                *came += 1;
            }
        }
    }
}

/// Changes of keys without end end a link, at either side, whatever is said between them.
#[test]
fn changes_of_keys_without_end_end_a_link() {
    for side in [0, 1] {
        let mut links = linked();
        if side == 1 {
            links.reverse();
        }
        let [mut here, mut there] = links;
        let byte = Frame::of_bytes(&[7]);
        let ended = (0..1_000).any(|_| {
            (0..31).for_each(|_| there.change_keys());
            there.push(&byte);
            // It may be told why its link has ended, or find it closed.
            let _ = there.flush();
            let end = read(&mut here);
            assert!(matches!(end, Ok(()) | Err(LinkEnd::Barren)), "{end:?}");
            here.flush().unwrap();
            let _ = read(&mut there);
            end.is_err()
        });
        assert!(ended);
    }
}

/// A link that gives more to read than others have time for is left for a while, and gone on with where it was.
#[test]
fn who_sends_much_at_once_is_read_in_turns() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stranger = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (taken, _) = listener.accept().unwrap();
    taken.set_nonblocking(true).unwrap();
    let identity = Identity::new(&KeyPair::from_seed(&[1; 32]));
    let members = vec![("127.0.0.1:1".into(), identity.public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("home", members, Vec::new(), files, purpose).unwrap();
    let opening = Opening {
        says: None,
        awaits: None,
    };
    let config = identity.server_config(&group.into());
    let limits = LinkLimits::of_strangers();
    let mut link = Link::accepted(TcpStream::from_std(taken), config, limits, opening).unwrap();
    // A greeting of sixty thousand bytes, of which each is a record.
    let greeting = [[1, 0, 0xea, 0x60].to_vec(), vec![0; 1_000]].concat();
    let wire: Vec<u8> = greeting
        .iter()
        .flat_map(|byte| [22, 3, 1, 0, 1, *byte])
        .collect();
    std::io::Write::write_all(&mut stranger, &wire).unwrap();
    while waiting(&mut link) < wire.len() as u64 {
        std::thread::yield_now();
    }
    let mut scratch = [0; 256];
    let mut turns = 0;
    while waiting(&mut link) > 0 {
        assert!(!link.shake(&mut scratch).unwrap());
        turns += 1;
        assert!(link.is_readable() || waiting(&mut link) == 0);
    }
    assert!(turns > 3, "{turns} turns");
}

fn waiting(link: &mut Link) -> u64 {
    rustix::io::ioctl_fionread(link.stream()).unwrap()
}
