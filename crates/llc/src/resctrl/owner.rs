//! Group names, which identify the owning process.
//!
//! A name is `keyaki-<PID namespace>-<process id>-<start time>-<class>`. Process ids are reused; start times
//! distinguish the processes. A process of another PID namespace (a container) is not visible, so its groups never
//! count as groups of a dead process.

use std::fmt;
use std::fmt::Debug;
use std::fs;

const PREFIX: &str = "keyaki";

/// A process, distinct from all later processes with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Inode number of the PID namespace.
    pub namespace: u64,
    /// Process id in that namespace.
    pub process: u32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

/// The processes of the machine. A trait, so that tests can end processes.
pub trait Processes: Send + Sync + Debug {
    /// This process.
    fn me(&self) -> Owner;
    /// Ids of the threads of this process.
    fn my_threads(&self) -> Vec<u32>;
    /// The start time of a process in this PID namespace; `None` if there is no such process.
    fn start_of(&self, process: u32) -> Option<u64>;
}

/// The operating system's processes.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemProcesses;

impl Processes for SystemProcesses {
    fn me(&self) -> Owner {
        let process = std::process::id();
        let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        Owner { namespace: digits.parse().unwrap_or(0), process, start: self.start_of(process).unwrap_or(0) }
    }

    fn my_threads(&self) -> Vec<u32> {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        tasks.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    fn start_of(&self, process: u32) -> Option<u64> {
        parse_start(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }
}

/// The 22nd field of `/proc/…/stat`. The second field is a name in parentheses, which may contain any character.
fn parse_start(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(19)?.parse().ok()
}

impl Owner {
    /// The name of a group of this process. `class` is short and has no `-`, `/` or white space.
    pub(super) fn group(&self, class: &str) -> String {
        format!("{self}-{class}")
    }

    /// The owner of a group; `None` if the group is foreign.
    pub fn of_group(name: &str) -> Option<Owner> {
        let mut parts = name.splitn(5, '-');
        if parts.next()? != PREFIX {
            return None;
        }
        let mut number = || parts.next()?.parse::<u64>().ok();
        let owner = Owner { namespace: number()?, process: u32::try_from(number()?).ok()?, start: number()? };
        // Exactly the format of `group`.
        (parts.next()?.chars().all(|letter| letter.is_ascii_alphanumeric()) && name.starts_with(&owner.to_string()))
            .then_some(owner)
    }

    /// True if the process is known to be dead.
    pub fn is_dead(&self, processes: &dyn Processes) -> bool {
        self.namespace == processes.me().namespace && processes.start_of(self.process) != Some(self.start)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PREFIX}-{}-{}-{}", self.namespace, self.process, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_identify_owners() {
        let owner = Owner { namespace: 4_026_531_836, process: 812, start: 90_211 };
        assert_eq!(owner.group("streaming"), "keyaki-4026531836-812-90211-streaming");
        assert_eq!(Owner::of_group("keyaki-4026531836-812-90211-streaming"), Some(owner));
        for foreign in [
            "pod1",
            "keyaki",
            "keyaki-1-2-3",
            "keyaki-1-2-x-streaming",
            "keyaki-1-99999999999-3-streaming",
            "keyaki-1-2-3-a-b",
            "keyaki-01-2-3-streaming",
            "keyaki-1-+2-3-streaming",
            "akyaki-1-2-3-streaming",
        ] {
            assert_eq!(Owner::of_group(foreign), None, "{foreign}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_alive() {
        let me = SystemProcesses.me();
        assert_eq!(me.process, std::process::id());
        assert!(SystemProcesses.my_threads().contains(&me.process));
        assert!(me.namespace != 0 && me.start != 0 && !me.is_dead(&SystemProcesses));
        assert!(Owner { start: me.start + 1, ..me }.is_dead(&SystemProcesses), "the id now belongs to another process");
        assert!(
            !Owner { namespace: 1, start: 1, ..me }.is_dead(&SystemProcesses),
            "processes of other namespaces are not visible"
        );
    }

    #[test]
    fn program_names_may_contain_any_character() {
        let fields: String = (4..=52).map(|field| format!(" {field}")).collect();
        assert_eq!(parse_start(&format!("7 (a) b) S{fields}")), Some(22));
        assert_eq!(parse_start("7 (a"), None);
        assert_eq!(parse_start("7 (a) S 1 2"), None);
    }
}
