//! Counters of the operating system for this process, and files of a data directory.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

use crate::Result;

/// Bytes that this process has moved to and from storage, without hits in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    pub read_bytes: u64,
    /// Pages of buffered writes count when they become dirty, direct writes when they are issued.
    pub write_bytes: u64,
}

impl Io {
    pub fn now() -> Result<Io> {
        parse_io(&std::fs::read_to_string("/proc/self/io")?).ok_or_else(|| "no counters in /proc/self/io".into())
    }
}

fn parse_io(text: &str) -> Option<Io> {
    Some(Io { read_bytes: field(text, "read_bytes")?, write_bytes: field(text, "write_bytes")? })
}

/// Largest resident memory of this process so far, in bytes.
pub fn resident_bytes_max() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(field(&status, "VmHWM").ok_or("no VmHWM in /proc/self/status")? * 1024)
}

/// The first number of the line `name: number`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Allocated bytes of all files below `directory`.
pub fn allocated_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for path in files(directory)? {
        bytes += path.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

/// Writes all files below `directory` back and drops them from the page cache.
pub fn drop_page_cache(directory: &Path) -> Result {
    for path in files(directory)? {
        let file = File::open(&path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "rchar: 1\nread_bytes: 20\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n";
        assert_eq!(parse_io(text), Some(Io { read_bytes: 20, write_bytes: 4096 }));
        assert_eq!(parse_io("read_bytes: 20\n"), None);
        assert_eq!(field("VmHWM:\t  12 kB\n", "VmHWM"), Some(12));
    }

    #[test]
    fn files_are_found_recursively() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("inner")).unwrap();
        std::fs::write(directory.path().join("inner/file"), vec![1; 100_000]).unwrap();
        drop_page_cache(directory.path()).unwrap();
        assert!(allocated_bytes(directory.path()).unwrap() >= 100_000);
    }
}
