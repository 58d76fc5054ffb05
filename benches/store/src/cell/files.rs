//! Trees of small files: creation, cold listings and searches, deletion. One thread.

use std::time::Instant;

use super::{Cell, print};
use crate::Result;
use crate::files::tree::{Contents, Entry, Listing, NEEDLE, Tree};
use crate::files::{self, Files};
use crate::options::Workload;
use crate::process::{self, Io};

/// Bytes of a megabyte in the report.
const MB: f64 = 1e6;

impl Cell<'_> {
    fn tree(&self) -> Tree {
        Tree::new(self.options.files, self.options.file_bytes)
    }

    fn open_files(&self) -> Result<Box<dyn Files>> {
        files::open(self.name, self.directory, self.memory)
    }
}

/// Counters at the start of an operation.
struct Started {
    time: Instant,
    io: Io,
    cpu_seconds: f64,
    device: Option<u64>,
}

impl Started {
    fn now(cell: &Cell) -> Result<Started> {
        Ok(Started {
            io: Io::now()?,
            cpu_seconds: process::cpu_seconds()?,
            device: process::device_write_bytes(cell.directory)?,
            time: Instant::now(),
        })
    }

    /// Prints the rate of the operation, which ends now.
    fn print_rate(&self, metric: &str, files: u64) {
        let seconds = self.time.elapsed().as_secs_f64();
        print(metric, files as f64 / seconds);
        print("time", seconds);
    }

    fn print_cpu_time(&self) -> Result {
        print("CPU time", process::cpu_seconds()? - self.cpu_seconds);
        Ok(())
    }

    fn finish_reads(&self, metric: &str, files: u64) -> Result {
        self.print_rate(metric, files);
        self.print_cpu_time()?;
        print("bytes read", (Io::now()?.read_bytes - self.io.read_bytes) as f64 / MB);
        Ok(())
    }

    /// Makes the changes durable, prints the rate, and the bytes written until the background work has ended.
    fn finish_writes(self, cell: &Cell, files: Box<dyn Files>, metric: &str, count: u64) -> Result {
        print("until sync", self.time.elapsed().as_secs_f64());
        files.sync()?;
        self.print_rate(metric, count);
        files.settle()?;
        drop(files);
        self.print_cpu_time()?;
        print("bytes written", (Io::now()?.write_bytes - self.io.write_bytes) as f64 / MB);
        if let (Some(before), Some(after)) = (self.device, process::device_write_bytes(cell.directory)?) {
            print("written to the device", (after - before) as f64 / MB);
        }
        print("space", process::allocated_bytes(cell.directory)? as f64 / MB);
        Ok(())
    }
}

pub fn create(cell: &Cell) -> Result {
    let tree = cell.tree();
    let files = cell.open_files()?;
    let started = Started::now(cell)?;
    let mut contents = Vec::new();
    tree.visit(cell.options.order, &mut |entry| match entry {
        Entry::Directory(path) => files.create_directory(path),
        Entry::File(file) => {
            file.contents(&mut contents);
            files.create(file, &contents)
        }
    })?;
    started.finish_writes(cell, files, "create", cell.options.files)?;
    print(FILES, cell.options.files as f64);
    Ok(())
}

/// The number of created files: in the output of the cell, not in the report.
pub const FILES: &str = "files";

pub fn find(cell: &Cell, is_subtree: bool) -> Result {
    let tree = cell.tree();
    let directory = if is_subtree { tree.subtree() } else { "" };
    let expected = tree.expected(directory).0;
    let started = Started::now(cell)?;
    let files = cell.open_files()?;
    let found = list(&*files, directory)?;
    started.finish_reads("find", found.files)?;
    check("find", found, expected)
}

fn list(files: &dyn Files, directory: &str) -> Result<Listing> {
    let mut found = Listing::default();
    files.find(directory, &mut |path, is_directory| found.add(path, is_directory))?;
    Ok(found)
}

pub fn grep(cell: &Cell, is_subtree: bool) -> Result {
    let tree = cell.tree();
    let directory = if is_subtree { tree.subtree() } else { "" };
    let expected = tree.expected(directory).1;
    let needle = memchr::memmem::Finder::new(NEEDLE);
    let started = Started::now(cell)?;
    let files = cell.open_files()?;
    let mut found = Contents::default();
    files.read(directory, &mut |contents| found.add(contents, &needle))?;
    started.finish_reads("grep", found.files)?;
    check("grep", found, expected)
}

pub fn delete(cell: &Cell, is_subtree: bool) -> Result {
    let tree = cell.tree();
    let subtree = tree.expected(tree.subtree()).0.files;
    let (directory, count) = match is_subtree {
        true => (tree.subtree(), subtree),
        // The subtree has been deleted before.
        false if cell.options.wants(Workload::DeleteSubtree) => ("", cell.options.files - subtree),
        false => ("", cell.options.files),
    };
    let started = Started::now(cell)?;
    let files = cell.open_files()?;
    files.delete(directory)?;
    started.finish_writes(cell, files, "delete", count)?;

    let found = list(&*cell.open_files()?, "")?;
    check("find after the deletion", found.files, if is_subtree { cell.options.files - count } else { 0 })
}

fn check<T: std::fmt::Debug + PartialEq>(operation: &str, found: T, expected: T) -> Result {
    if found == expected { Ok(()) } else { Err(format!("{operation}: found {found:?}, expected {expected:?}").into()) }
}
