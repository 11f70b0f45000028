//! What a process is doing, for a failure's sake: as the kernel says it, without disturbing the process.

use std::fs;
use std::path::Path;

/// A process's threads: name, state, time on the processor (in ticks of 10 ms), and where in the kernel each waits.
pub fn of(pid: u32) -> String {
    let tasks = format!("/proc/{pid}/task");
    let Ok(threads) = fs::read_dir(&tasks) else {
        return format!("  process {pid} is gone\n");
    };
    let mut text = format!("  process {pid}:\n");
    for thread in threads.flatten() {
        text += &format!("    {}\n", thread_line(&thread.path()));
    }
    text
}

fn thread_line(task: &Path) -> String {
    let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let stat = read("stat");
    // After the name, which may have any characters: state, then 10 other fields, then user's and system's time (proc(5)).
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let field = |at: usize| fields.split(' ').nth(at).unwrap_or("?");
    let (comm, wchan) = (read("comm"), read("wchan"));
    format!(
        "{} {} {}+{} ticks, in {wchan}",
        comm.trim(),
        field(0),
        field(11),
        field(12)
    )
}

#[cfg(test)]
mod tests {
    /// This very thread is running, and is named.
    #[test]
    fn a_process_is_described() {
        let text = super::of(std::process::id());
        assert!(text.contains(" R ") && text.contains(" ticks"), "{text}");
        assert!(super::of(u32::MAX).contains("gone"));
    }
}
