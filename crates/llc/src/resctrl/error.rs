//! Reasons for missing hardware partitioning, and errors of resctrl commands.

use std::io;
use std::path::PathBuf;

/// The result of a resctrl command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why caches cannot be partitioned. Each message is one line with a remedy, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Another operating system.
    #[error("cache partitioning requires Linux")]
    NotLinux,
    /// CPUID reports no cache allocation.
    #[error("the processor does not support cache partitioning (or the virtual machine hides it)")]
    NoHardware,
    /// The kernel does not list resctrl among its file systems.
    #[error("the processor supports cache partitioning, but the kernel was built or started without resctrl")]
    NoKernelSupport,
    /// There is no mount, and none was requested.
    #[error("resctrl is not mounted (mount it with: mount -t resctrl resctrl /sys/fs/resctrl)")]
    NotMounted,
    /// A requested mount failed.
    #[error("could not mount resctrl at \"{path}\": {why}")]
    MountFailed {
        /// The mount point.
        path: PathBuf,
        /// The output of `mount`.
        why: String,
    },
    /// The mount at this path is read-only.
    #[error("resctrl at \"{0}\" is mounted read-only")]
    ReadOnly(PathBuf),
    /// The user may not create groups in the tree at this path.
    #[error("no permission to create groups in resctrl at \"{0}\" (change the directory's owner or mode to grant it)")]
    NoPermission(PathBuf),
    /// No data cache can be partitioned.
    #[error("the hardware can monitor caches but not partition them")]
    NoAllocation,
    /// Too much of the cache is reserved by others.
    #[error(
        "only {usable} of {total} parts of the cache are usable, {needed} are required (others own them, or the default group's mask excludes them)"
    )]
    TooFewWays {
        /// Parts that Keyaki may use.
        usable: u32,
        /// Parts of the cache.
        total: u32,
        /// Minimum number of parts.
        needed: u32,
    },
    /// All of this number of classes of service are in use.
    #[error("all {0} classes of service are in use")]
    NoClass(u32),
    /// Another program has put this process into the named group.
    #[error("this process belongs to resctrl group \"{0}\", which another program manages")]
    ForeignGroup(String),
    /// The tree is not as the kernel documents it.
    #[error("unexpected contents of resctrl: {0}")]
    Unexpected(String),
    /// The caller disabled partitioning.
    #[error("cache partitioning is disabled")]
    SwitchedOff,
}

/// A resctrl command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Creating a group.
    CreateGroup,
    /// Writing the masks of a group.
    SetMasks,
    /// Reading the masks of a group.
    ReadMasks,
    /// Moving a thread to a group.
    AssignThread,
    /// Moving a thread to the default group.
    ReleaseThread,
    /// Listing the threads of a group.
    ReadThreads,
    /// Reading monitoring counters.
    ReadCounters,
}

impl Operation {
    /// The verb phrase of "could not …", before the path.
    fn verb(self) -> &'static str {
        match self {
            Operation::CreateGroup => "create group",
            Operation::SetMasks => "write masks to",
            Operation::ReadMasks => "read masks from",
            Operation::AssignThread => "assign a thread to",
            Operation::ReleaseThread => "release a thread to",
            Operation::ReadThreads => "read threads from",
            Operation::ReadCounters => "read counters from",
        }
    }
}

/// A failed command, with the kernel's explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The command.
    pub operation: Operation,
    /// The file or directory, relative to the root of the resctrl tree.
    pub path: String,
    /// The kind of the operating system's error.
    pub kind: io::ErrorKind,
    /// The number of the operating system's error; `None` if a file has unexpected contents.
    pub code: Option<i32>,
    /// The text of the operating system's error.
    pub message: String,
    /// The text of `info/last_cmd_status`; empty if it has none.
    pub status: String,
}

impl Error {
    pub(super) fn new(operation: Operation, path: &str, source: &io::Error, status: String) -> Self {
        let (kind, code, message) = (source.kind(), source.raw_os_error(), source.to_string());
        Error { operation, path: path.into(), kind, code, message, status }
    }

    pub(super) fn unexpected(operation: Operation, path: &str, text: &str) -> Self {
        let message = format!("unexpected contents {:?}", text.chars().take(80).collect::<String>());
        let (kind, status) = (io::ErrorKind::InvalidData, String::new());
        Error { operation, path: path.into(), kind, code: None, message, status }
    }

    /// True if the group no longer exists, because another program removed it.
    pub fn is_vanished(&self) -> bool {
        const ENODEV: i32 = 19;
        // ENOENT: the path is gone. ENODEV: the file was open when its group was removed.
        self.kind == io::ErrorKind::NotFound || self.code == Some(ENODEV)
    }

    /// True if no class of service, or no monitoring id, is free.
    pub fn is_exhausted(&self) -> bool {
        self.kind == io::ErrorKind::StorageFull
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "resctrl: could not {} \"{}\": {}", self.operation.verb(), self.path, self.message)?;
        if self.status.is_empty() { Ok(()) } else { write!(out, " ({})", self.status) }
    }
}

impl std::error::Error for Error {}
