//! What `perf script` prints.

/// The stacks of all samples, each from the leaf up: names of functions, those of the kernel behind `k:`.
pub fn parse(text: &str) -> Vec<Vec<String>> {
    let samples = text.split("\n\n");
    let stacks = samples.map(|sample| sample.lines().filter_map(frame).collect::<Vec<_>>());
    stacks.filter(|stack| !stack.is_empty()).collect()
}

/// One line: an address, a name that may have blanks, and where it is from in brackets.
fn frame(line: &str) -> Option<String> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (name, from) = rest.rsplit_once(" (")?;
    let is_kernel = from.starts_with("[kernel") || from.starts_with("[guest.kernel");
    Some(match is_kernel {
        true => format!("k:{name}"),
        false => name.into(),
    })
}

#[cfg(test)]
mod tests {
    /// Names with blanks and brackets are whole, and the kernel's are told from others.
    #[test]
    fn stacks_are_told_apart() {
        let text = "\
        ffffffff81a1 tcp_sendmsg ([kernel.kallsyms])
            7f0000001 <quorate_net::Link as core::fmt::Debug>::fmt (inlined) (/usr/bin/quorate)

            7f0000002 [unknown] (/usr/lib/libc.so.6)

";
        let found = super::parse(text);
        assert_eq!(
            found,
            [
                vec![
                    "k:tcp_sendmsg",
                    "<quorate_net::Link as core::fmt::Debug>::fmt (inlined)"
                ],
                vec!["[unknown]"],
            ]
        );
    }
}
