//! The texts of `--help`, for a terminal of any width.
//!
//! Where a text has examples, its lines are taken as they stand in the source, and those of a paragraph would be broken twice: where the source breaks
//! them, and where the terminal ends. So a paragraph is one line, which clap breaks alone; what is indented stays as it is.

use clap::Command;

/// The command, and those below it, with paragraphs that flow.
pub fn flowing(command: Command) -> Command {
    let command = match command.get_long_about().map(ToString::to_string) {
        Some(text) => command.long_about(flowed(&text)),
        None => command,
    };
    let command = command.mut_args(|arg| match arg.get_long_help().map(ToString::to_string) {
        Some(text) => arg.long_help(flowed(&text)),
        None => arg,
    });
    command.mut_subcommands(flowing)
}

fn flowed(text: &str) -> String {
    let is_paragraph = |line: &str| !line.is_empty() && !line.starts_with(char::is_whitespace);
    let mut out = String::new();
    let mut last = "";
    for (at, line) in text.lines().enumerate() {
        match is_paragraph(last) && is_paragraph(line) {
            true => out.push(' '),
            false if at > 0 => out.push('\n'),
            false => {}
        }
        out.push_str(line);
        last = line;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::CommandFactory;

    /// Of clap's texts, on wide terminals too.
    const WIDTH: usize = 100;

    #[test]
    fn paragraphs_flow_and_examples_stay() {
        let text = "One\nand two.\n\nExamples:\n  quorate up\n  quorate up --n 7\nAnd\nmore.";
        let flows = "One and two.\n\nExamples:\n  quorate up\n  quorate up --n 7\nAnd more.";
        assert_eq!(flowed(text), flows);
        assert_eq!(flowed(flows), flows);
        assert_eq!(flowed(""), "");
    }

    /// No command shows a paragraph whose lines the source has broken, nor an example that is wider than a text.
    #[test]
    fn all_commands_flow() {
        fn look(command: &Command, seen: &mut usize) {
            let texts = command
                .get_arguments()
                .filter_map(|arg| arg.get_long_help());
            for text in texts.chain(command.get_long_about()) {
                let text = text.to_string();
                assert_eq!(text, flowed(&text), "{}", command.get_name());
                let mut examples = text.lines().filter(|line| line.starts_with(' '));
                let wide = examples.find(|line| line.chars().count() > WIDTH);
                assert_eq!(wide, None, "{}", command.get_name());
                *seen += 1;
            }
            command
                .get_subcommands()
                .for_each(|below| look(below, seen));
        }
        let mut seen = 0;
        look(&flowing(Args::command()), &mut seen);
        assert!(seen > 20, "{seen}");
    }
}
