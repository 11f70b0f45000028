//! The text form comes through mail, and its summary can't deceive.

use crate::support::{Raw, assemble};
use quorate_credential::armour::{self, BadText, Summary};
use quorate_credential::{Chain, Malformed};

fn chain(n: u8) -> Chain {
    let mut links: Vec<Raw> = (0..n).map(Raw::link).collect();
    links[0].caveats = vec![(1, b"a > b\n".to_vec()), (4, b"project 7".to_vec())];
    Chain::from_bytes(assemble(&links).into()).unwrap()
}

fn read(text: &str) -> (Chain, Summary) {
    let read = armour::read(text).unwrap();
    (read.chain, read.summary)
}

/// Text is short lines of ASCII and is read again, of chains of each length.
#[test]
fn text_is_read_again() {
    for n in 1..=16 {
        let chain = chain(n);
        let text = armour::write(&chain);
        assert!(
            text.is_ascii() && text.lines().all(|line| line.len() <= 72),
            "{text}"
        );
        assert_eq!(read(&text), (chain, Summary::True));
    }
}

/// Quoted, indented, with other ends of lines, with words around it, with broken lines.
#[test]
fn what_mail_does_to_it_is_undone() {
    let chain = chain(2);
    let text = armour::write(&chain);
    let each = |f: fn(&str) -> String| text.lines().map(f).collect::<Vec<_>>().join("\n");
    let changed = [
        text.replace('\n', "\r\n"),
        text.replace('\n', "\n\n"),
        format!("Hello,\nhere it is.\n\n{text}\n-- \nAlice\n"),
        each(|line| format!("> {line}")),
        each(|line| format!("    {line}  ")),
        each(|line| line.replace(": ", ":\n")),
    ];
    for text in changed {
        assert_eq!(read(&text), (chain.clone(), Summary::True), "{text}");
    }
}

/// A summary that says something else than what is signed is noticed, and one that is missing.
#[test]
fn an_untrue_summary_is_noticed() {
    let chain = chain(1);
    let text = armour::write(&chain);
    let at = text.find("-----BEGIN").unwrap();
    assert_eq!(read(&text[at..]), (chain.clone(), Summary::Missing));
    for (from, to) in [
        ("lookup, ", ""),
        ("1970", "2070"),
        ("object:  1", "object:  2"),
        ("link 1", "link 1\n\nyes!\n"),
    ] {
        assert!(text[..at].contains(from), "{text}");
        let lie = format!("{}{}", text[..at].replace(from, to), &text[at..]);
        assert_eq!(read(&lie), (chain.clone(), Summary::Untrue), "{lie}");
    }
}

/// Words in front that do not begin as a summary are none: it is told that they were compared with nothing, whatever they say.
#[test]
fn words_that_are_no_summary_are_told() {
    let chain = chain(1);
    let text = armour::write(&chain);
    let at = text.find("-----BEGIN").unwrap();
    let title = text.lines().next().unwrap();
    for words in [
        "Hello,\nhere it is.\n\n".into(),
        text[..at].replace(title, "Quorate credential. What counts is this:"),
        text[..at]
            .replace("below.", "below!")
            .replace("1970", "2070"),
        text[..at].replace(title, ""),
    ] {
        let said = format!("{words}{}", &text[at..]);
        assert_eq!(read(&said), (chain.clone(), Summary::NotFound), "{said}");
    }
    for nothing in ["", "\n> \n", " \r\n"] {
        let said = format!("{nothing}{}", &text[at..]);
        assert_eq!(read(&said), (chain.clone(), Summary::Missing), "{said}");
    }
}

/// Any single character of the block that is changed, taken away or doubled is noticed; none makes another credential.
#[test]
fn damage_is_noticed() {
    let chain = chain(2);
    let text = armour::write(&chain);
    let at = text.find("-----BEGIN").unwrap();
    for i in at..text.len() {
        for to in ["", "A", "\u{fc}", &text[i..=i].repeat(2)] {
            let mut damaged = text.clone();
            damaged.replace_range(i..=i, to);
            if let Ok(read) = armour::read(&damaged) {
                assert_eq!(read.chain, chain, "{damaged}");
            }
        }
    }
}

/// Each way in which a text holds no credential has its name.
#[test]
fn no_credential() {
    let chain = chain(1);
    let text = armour::write(&chain);
    let error = |text: &str| armour::read(text).unwrap_err();
    assert_eq!(error(""), BadText::NoBlock);
    assert_eq!(error(&text[..text.len() - 10]), BadText::NoBlock);
    assert_eq!(error(&text.repeat(2)), BadText::SeveralBlocks);
    assert_eq!(error(&"x".repeat(armour::MAX_TEXT + 1)), BadText::TooLong);
    let begin = "-----BEGIN QUORATE CREDENTIAL-----\n";
    let end = "\n-----END QUORATE CREDENTIAL-----\n";
    assert_eq!(
        error(&format!("{begin}{}{end}", "QUFB\n".repeat(3000))),
        BadText::TooLong
    );
    assert_eq!(error(&format!("{begin}{end}")), BadText::Damaged);
    // A block of one byte, a version that is not known: its sum is right.
    assert_eq!(
        error(&format!("{begin}Ag==\n=3c0c8ea1{end}")),
        BadText::Malformed(Malformed::Version(2))
    );
}
