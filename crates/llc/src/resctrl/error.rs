//! Why hardware partitioning is not to be had, and why a command failed.

use std::io;
use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why caches cannot be partitioned here. Each is a line that tells the user what to do, if anything can be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("cache partitioning needs Linux")]
    NotLinux,
    #[error("this processor does not offer cache partitioning (or the virtual machine hides it)")]
    NoHardware,
    #[error("the processor offers cache partitioning, but the kernel was built or started without resctrl")]
    NoKernelSupport,
    #[error("resctrl is not mounted; an administrator can do so: mount -t resctrl resctrl /sys/fs/resctrl")]
    NotMounted,
    #[error("mounting resctrl at {path} failed: {why}")]
    MountFailed { path: PathBuf, why: String },
    #[error("resctrl at {0} is mounted read-only")]
    ReadOnly(PathBuf),
    #[error(
        "no permission to make groups in resctrl at {0}; an administrator can grant it by the directory's owner and mode"
    )]
    NoPermission(PathBuf),
    #[error("the hardware can monitor caches but not partition them")]
    NoAllocation,
    #[error(
        "only {usable} of the cache's {total} parts may be used (the default group's mask less what others own); {needed} are needed"
    )]
    TooFewWays { usable: u32, total: u32, needed: u32 },
    #[error("all {0} classes of service are taken by others")]
    NoClass(u32),
    #[error("somebody has put this process into the group `{0}`, which stays as it is")]
    ForeignGroup(String),
    #[error("resctrl says something unexpected: {0}")]
    Unexpected(String),
    #[error("cache partitioning is switched off")]
    SwitchedOff,
}

/// A failed command: what was to be done, and what the kernel said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// In words: `"make group"`, `"set masks"` …
    pub operation: &'static str,
    /// In the resctrl tree.
    pub path: String,
    pub kind: io::ErrorKind,
    /// The operating system's error, in words.
    pub message: String,
    /// From `info/last_cmd_status`; empty if it said nothing.
    pub status: String,
}

impl Error {
    pub(super) fn new(operation: &'static str, path: &str, source: &io::Error, status: String) -> Self {
        Error { operation, path: path.into(), kind: source.kind(), message: source.to_string(), status }
    }

    pub(super) fn unexpected(operation: &'static str, path: &str, text: &str) -> Self {
        let message = format!("not understood: {:?}", text.chars().take(80).collect::<String>());
        Error { operation, path: path.into(), kind: io::ErrorKind::InvalidData, message, status: String::new() }
    }

    /// Whether the group is no longer there: somebody removed it.
    pub fn is_vanished(&self) -> bool {
        // ENOENT from a path that is gone, ENODEV from a file that was open.
        self.kind == io::ErrorKind::NotFound || self.message.contains("No such device")
    }

    /// Whether no class of service (or monitoring id) is left.
    pub fn is_exhausted(&self) -> bool {
        self.kind == io::ErrorKind::StorageFull
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "resctrl: {} `{}`: {}", self.operation, self.path, self.message)?;
        if self.status.is_empty() { Ok(()) } else { write!(out, " ({})", self.status) }
    }
}

impl std::error::Error for Error {}
