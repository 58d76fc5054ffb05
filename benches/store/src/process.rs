//! Counters of the operating system for this process and for a device, and files of a data directory.

use std::fs::{DirEntry, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// CPU time of all threads of this process so far, in seconds, with that of the kernel on their behalf.
pub fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    Ok(cpu_ticks(&stat).ok_or("no times in /proc/self/stat")? as f64 / TICKS_PER_SECOND)
}

/// Unit of times in `/proc`: `USER_HZ`, the same on all architectures that Linux supports today.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time: the fields 14 and 15. The second field, a name in brackets, may contain spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// The first number of the line `name: number`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Bytes written so far to the block device of `directory`, by all processes and by the operating system; `None` if the
/// file system has no block device.
pub fn device_write_bytes(directory: &Path) -> Result<Option<u64>> {
    // Fields: requests, merged requests, sectors of 512 bytes and milliseconds of reads, then the same of writes.
    let Ok(text) = std::fs::read_to_string(format!("/sys/dev/block/{}/stat", device(directory)?)) else {
        return Ok(None);
    };
    let sectors: u64 =
        text.split_whitespace().nth(6).ok_or("no written sectors in the statistics of the device")?.parse()?;
    Ok(Some(sectors * 512))
}

/// The type of the file system of `directory`, for example `ext4`.
pub fn file_system(directory: &Path) -> Result<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_type(&mounts, &device(directory)?).ok_or("no file system in /proc/self/mountinfo")?.into())
}

/// The type of the file system on a device: the first word after ` - `.
fn mount_type<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    line.split_once(" - ")?.1.split(' ').next()
}

/// `major:minor` of the device of `directory`.
fn device(directory: &Path) -> Result<String> {
    let device = directory.metadata()?.dev();
    Ok(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// Allocated bytes of all files and directories below `directory`.
pub fn allocated_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    walk(directory, &mut |entry| {
        bytes += entry.metadata()?.blocks() * 512;
        Ok(())
    })?;
    Ok(bytes)
}

/// Writes all files below `directory` back and drops them from the page cache.
pub fn drop_page_cache(directory: &Path) -> Result {
    walk(directory, &mut |entry| {
        if entry.file_type()?.is_file() {
            let file = File::open(entry.path())?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    })
}

/// Writes all changes back, and drops all pages, directory entries and inodes from the caches of the operating system.
/// This requires the rights of the administrator.
pub fn drop_all_caches() -> Result {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("/proc/sys/vm/drop_caches: {error}").into())
}

/// Passes all entries below `directory` to `visit`.
fn walk(directory: &Path, visit: &mut dyn FnMut(&DirEntry) -> Result) -> Result {
    let mut directories = vec![directory.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            visit(&entry)?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(())
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
    fn times_follow_the_name_of_the_process() {
        let stat = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 400 30 0 0 20";
        assert_eq!(cpu_ticks(stat), Some(430));
        assert!(cpu_seconds().unwrap() >= 0.0);
    }

    #[test]
    fn the_file_system_of_a_device_is_found() {
        let mounts = "22 27 0:21 / /proc rw - proc proc rw\n27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";
        assert_eq!(mount_type(mounts, "254:0"), Some("ext4"));
        assert_eq!(mount_type(mounts, "254:1"), None);
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
