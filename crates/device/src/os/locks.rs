//! Locks and marks of files.
//!
//! The lock is an exclusive `flock`. A mark with number n is a shared lock of the byte at offset n, whether or not the file
//! is that long. Both belong to the open file description, so that openers in one process are as distinct as those in
//! different processes, and end when the descriptor is closed, at the latest when the process ends. On local file systems
//! of Linux, `flock` and locks of bytes are independent of each other.

use std::fs;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::interface::{ErrorKind, Lock};

/// An exclusive `flock`, or a mark.
#[derive(Debug)]
pub(super) struct OsLock {
    _file: fs::File,
}

impl Lock for OsLock {}

impl OsLock {
    /// Takes the lock; [`ErrorKind::Locked`] if another opener holds it. Without `creates`, the file must exist, and is
    /// opened for reading only.
    pub(super) fn take(path: &Path, creates: bool) -> Result<Self, ErrorKind> {
        let file = fs::OpenOptions::new().read(true).write(creates).create(creates).truncate(false).open(path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(OsLock { _file: file }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Err(ErrorKind::Locked { holder: holder(&file) }),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Marks an existing file.
pub(super) fn mark(path: &Path, number: u64) -> Result<OsLock, ErrorKind> {
    assert!(number < 1 << 62, "mark {number} is too large");
    let file = fs::File::open(path)?;
    bytes::lock(&file, number)?;
    Ok(OsLock { _file: file })
}

/// The different marks of a file, in ascending order.
pub(super) fn marks(path: &Path) -> Result<Vec<u64>, ErrorKind> {
    let file = fs::File::open(path)?;
    let all = 0..u64::MAX;
    let (mut found, mut ranges) = (Vec::new(), vec![all]);
    // A query finds any lock of a range, so that the ranges before and behind it remain.
    while let Some(range) = ranges.pop() {
        let Some(lock) = bytes::find(&file, &range)? else { continue };
        ranges.extend(
            [range.start..lock.bytes.start, lock.bytes.end..range.end].into_iter().filter(|rest| !rest.is_empty()),
        );
        if lock.len == 1 && lock.is_shared {
            found.push(lock.bytes.start);
        } else if lock.is_shared {
            let problem = "another program has a lock that may hide marks";
            return Err(std::io::Error::other(problem).into());
        }
        // Network file systems implement `flock` as an exclusive lock of all bytes, beside which there are no marks.
    }
    found.sort_unstable();
    Ok(found)
}

/// A lock of bytes.
#[derive(Debug)]
struct Found {
    /// The part within the range of the query.
    bytes: std::ops::Range<u64>,
    /// Length of the whole lock, 0 for one without an end.
    len: u64,
    is_shared: bool,
}

/// The process that holds the `flock` of a file, according to `/proc/locks`.
#[cfg(target_os = "linux")]
fn holder(file: &fs::File) -> Option<String> {
    use std::os::unix::fs::MetadataExt;

    let metadata = file.metadata().ok()?;
    let device = metadata.dev();
    let place = format!("{:02x}:{:02x}:{}", rustix::fs::major(device), rustix::fs::minor(device), metadata.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 1234 fe:00:131 0 EOF
    let process = locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_holder = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place.as_str());
        fields.get(4).filter(|_| is_holder)?.parse::<u32>().ok()
    })?;
    let name = fs::read_to_string(format!("/proc/{process}/comm"));
    Some(match name {
        Ok(name) => format!("process {process} ({})", name.trim_end()),
        Err(_) => format!("process {process}"),
    })
}

#[cfg(not(target_os = "linux"))]
fn holder(_file: &fs::File) -> Option<String> {
    None
}

/// Locks of bytes that belong to the open file description.
#[cfg(target_os = "linux")]
mod bytes {
    use std::fs;
    use std::io;
    use std::ops::Range;
    use std::os::fd::AsRawFd;

    use super::Found;

    /// A request for `len` bytes from `start` on; 0 stands for all.
    fn request(kind: libc::c_int, start: u64, len: u64) -> libc::flock {
        // SAFETY: the structure consists of integers, for which zeros are valid.
        let mut request: libc::flock = unsafe { std::mem::zeroed() };
        request.l_type = kind as libc::c_short;
        request.l_whence = libc::SEEK_SET as libc::c_short;
        request.l_start = start as libc::off_t;
        request.l_len = len as libc::off_t;
        request
    }

    fn call(file: &fs::File, command: libc::c_int, request: &mut libc::flock) -> io::Result<()> {
        loop {
            // SAFETY: the descriptor is open, and the commands that are used read and write one `flock`.
            if unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(request)) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Takes the shared lock of a byte.
    pub(super) fn lock(file: &fs::File, at: u64) -> io::Result<()> {
        lock_range(file, libc::F_RDLCK, at, 1)
    }

    pub(super) fn lock_range(file: &fs::File, kind: libc::c_int, start: u64, len: u64) -> io::Result<()> {
        call(file, libc::F_OFD_SETLK, &mut request(kind, start, len))
    }

    /// A lock in a range that another opener has. None where the system or the file system has no such locks.
    pub(super) fn find(file: &fs::File, range: &Range<u64>) -> io::Result<Option<Found>> {
        let len = if range.end == u64::MAX { 0 } else { range.end - range.start };
        let mut found = request(libc::F_WRLCK, range.start, len);
        if let Err(error) = call(file, libc::F_OFD_GETLK, &mut found) {
            let is_unknown =
                matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP));
            return if is_unknown { Ok(None) } else { Err(error) };
        }
        if found.l_type == libc::F_UNLCK as libc::c_short {
            return Ok(None);
        }
        // The lock may begin before the range, and end behind it.
        let start = found.l_start as u64;
        let end = if found.l_len == 0 { u64::MAX } else { start + found.l_len as u64 };
        let bytes = start.max(range.start)..end.min(range.end);
        Ok(Some(Found { bytes, len: found.l_len as u64, is_shared: found.l_type == libc::F_RDLCK as libc::c_short }))
    }
}

#[cfg(not(target_os = "linux"))]
mod bytes {
    use std::fs;
    use std::io;
    use std::ops::Range;

    use super::Found;

    pub(super) fn lock(_file: &fs::File, _at: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There are no locks of bytes.
    pub(super) fn find(_file: &fs::File, _range: &Range<u64>) -> io::Result<Option<Found>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn locks_of_several_bytes_are_no_marks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let wide = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let _mark = mark(&path, 3).unwrap();
        // As a network file system implements the lock of the writer, but for the marked byte.
        bytes::lock_range(&wide, libc::F_WRLCK, 4, 0).unwrap();
        assert_eq!(marks(&path).unwrap(), [3]);
        assert!(mark(&path, 5).is_err());
        bytes::lock_range(&wide, libc::F_RDLCK, 4, 0).unwrap();
        assert!(marks(&path).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn errors_name_the_process_with_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let _lock = OsLock::take(&path, true).unwrap();
        let Err(ErrorKind::Locked { holder }) = OsLock::take(&path, false) else { panic!("the lock is taken") };
        // Some file systems number their devices differently in /proc/locks.
        if let Some(holder) = holder {
            assert!(holder.starts_with(&format!("process {} (", std::process::id())), "{holder}");
        }
    }
}
