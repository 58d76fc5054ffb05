//! A resctrl file system in memory that behaves like the kernel's: the same grammar, the same checks in the same order,
//! the same error numbers and texts. For tests of this crate and of programs that use it.
//!
//! It also simulates processes: [`FakeTree::be`] sets the process that makes the following calls, [`FakeTree::kill`]
//! ends a process with its threads, and [`FakeTree::stop_after`] makes every call fail from the n-th change on, as if
//! the process had died there.

mod kernel;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::{Owner, Processes, Tree};
use kernel::errno::{EACCES, EIO, ENOENT, EPERM};
use kernel::{FakeKernel, error};

/// The simulated machine.
#[derive(Debug, Clone)]
pub struct FakeOptions {
    /// Cache levels that can be partitioned: `L3`, `L2`.
    pub levels: Vec<&'static str>,
    /// Code and data prioritisation: `L3CODE` and `L3DATA` instead of `L3`.
    pub cdp: bool,
    /// Parts of a cache.
    pub cbm_bits: u32,
    /// Minimum number of bits of a mask.
    pub min_cbm_bits: u32,
    /// Parts shared with other hardware.
    pub shareable_bits: u32,
    /// Masks need not be contiguous.
    pub sparse_masks: bool,
    /// Numbers of the domains.
    pub domains: Vec<u32>,
    /// Classes of service, including the default class.
    pub num_closids: usize,
    /// Monitoring ids; 0: no monitoring.
    pub num_rmids: usize,
    /// The mount is read-only.
    pub read_only: bool,
    /// The user may create groups.
    pub writable: bool,
    /// Memory bandwidth (`MB`) can be allocated too.
    pub bandwidth: bool,
}

impl Default for FakeOptions {
    /// The processor of the published experiments: one socket, an L3 of 20 parts, 16 classes of service.
    fn default() -> Self {
        FakeOptions {
            levels: vec!["L3"],
            cdp: false,
            cbm_bits: 20,
            min_cbm_bits: 1,
            shareable_bits: 0xc0000,
            sparse_masks: false,
            domains: vec![0],
            num_closids: 16,
            num_rmids: 64,
            read_only: false,
            writable: true,
            bandwidth: false,
        }
    }
}

/// The simulated file system and processes.
#[derive(Debug)]
pub struct FakeTree {
    kernel: Mutex<FakeKernel>,
}

impl FakeTree {
    /// A newly mounted file system. The current process has the id 100 and the threads 100 to 107.
    pub fn new(options: FakeOptions) -> Self {
        let me = Owner { namespace: 7, process: 100, start: 1_000 };
        let mut kernel = FakeKernel {
            options,
            groups: BTreeMap::new(),
            me,
            alive: [(100, 1_000)].into(),
            threads: (100..108).map(|thread| (thread, 100)).collect(),
            status: String::new(),
            changes: 0,
            stop_after: None,
        };
        let mut default = kernel.new_group("", false);
        default.tasks = kernel.threads.keys().copied().collect();
        kernel.groups.insert(String::new(), default);
        FakeTree { kernel: Mutex::new(kernel) }
    }

    /// Sets the current process by id and start time. It has eight threads with ids from its own on.
    pub fn be(&self, process: u32, start: u64) {
        let mut kernel = self.kernel.lock();
        kernel.me = Owner { process, start, ..kernel.me };
        kernel.alive.insert(process, start);
        for thread in process..process + 8 {
            if kernel.threads.insert(thread, process).is_none()
                && let Some(default) = kernel.groups.get_mut("")
            {
                default.tasks.insert(thread);
            }
        }
    }

    /// Ends a process with its threads. Its groups remain.
    pub fn kill(&self, process: u32) {
        let kernel = &mut *self.kernel.lock();
        kernel.alive.remove(&process);
        let dead: Vec<u32> =
            kernel.threads.iter().filter(|(_, of)| **of == process).map(|(thread, _)| *thread).collect();
        for thread in dead {
            kernel.threads.remove(&thread);
            kernel.groups.values_mut().for_each(|group| _ = group.tasks.remove(&thread));
        }
    }

    /// Makes every call fail after `changes` more changes; `None`: no call.
    pub fn stop_after(&self, changes: Option<usize>) {
        let mut kernel = self.kernel.lock();
        kernel.stop_after = changes.map(|more| kernel.changes + more);
    }

    /// Number of changes so far.
    pub fn changes(&self) -> usize {
        self.kernel.lock().changes
    }

    /// Adds a foreign group in mode `shareable` or `exclusive`, with one mask for all domains, that contains `tasks`.
    pub fn add_foreign(&self, name: &str, mode: &'static str, mask: u32, tasks: &[u32]) {
        let mut kernel = self.kernel.lock();
        let mut group = kernel.new_group(name, false);
        group.mode = mode;
        group.masks.values_mut().for_each(|own| *own = mask);
        for task in tasks {
            kernel.groups.values_mut().for_each(|other| _ = other.tasks.remove(task));
            group.tasks.insert(*task);
        }
        kernel.groups.insert(name.into(), group);
    }

    /// Narrows the mask of the default class, as an administrator would.
    pub fn narrow_default(&self, mask: u32) {
        if let Some(default) = self.kernel.lock().groups.get_mut("") {
            default.masks.values_mut().for_each(|own| *own = mask);
        }
    }

    /// Removes a group, as an administrator would.
    pub fn vanish(&self, name: &str) {
        self.kernel.lock().remove(name);
    }

    /// Sets the monitoring counters of a group.
    pub fn set_usage(&self, name: &str, occupancy_bytes: u64, total_bytes: u64) {
        if let Some(group) = self.kernel.lock().groups.get_mut(name) {
            (group.occupancy_bytes, group.total_bytes) = (occupancy_bytes, total_bytes);
        }
    }

    /// Names of all groups except the default group.
    pub fn groups(&self) -> Vec<String> {
        self.kernel.lock().groups.keys().filter(|name| !name.is_empty()).cloned().collect()
    }

    /// The group of a thread (`""`: the default group).
    pub fn group_of(&self, thread: u32) -> Option<String> {
        let kernel = self.kernel.lock();
        let mut groups = kernel.groups.iter().filter(|(_, group)| !group.monitors_only);
        groups.find(|(_, group)| group.tasks.contains(&thread)).map(|(name, _)| name.clone())
    }
}

impl Tree for FakeTree {
    fn read(&self, path: &str) -> io::Result<String> {
        let kernel = self.kernel.lock();
        if kernel.stop_after.is_some_and(|last| kernel.changes >= last) {
            return error(EIO);
        }
        kernel.read(path).map_or_else(|| error(ENOENT), Ok)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut kernel = self.kernel.lock();
        kernel.change()?;
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        if !kernel.groups.contains_key(group) {
            return error(ENOENT);
        }
        match file {
            "tasks" => kernel.write_tasks(group, text),
            "schemata" => kernel.write_schemata(group, text),
            _ => error(EACCES),
        }
    }

    fn directories(&self, path: &str) -> io::Result<Vec<String>> {
        self.kernel.lock().directories(path).map_or_else(|| error(ENOENT), Ok)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.kernel.lock().create_dir(path)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut kernel = self.kernel.lock();
        kernel.change()?;
        if matches!(path, "" | "info" | "mon_groups" | "mon_data") {
            return error(EPERM);
        }
        if kernel.remove(path) { Ok(()) } else { error(ENOENT) }
    }

    fn location(&self) -> PathBuf {
        "/fake/resctrl".into()
    }
}

impl Processes for FakeTree {
    fn me(&self) -> Owner {
        self.kernel.lock().me
    }

    fn my_threads(&self) -> Vec<u32> {
        let kernel = self.kernel.lock();
        let mine = kernel.threads.iter().filter(|(_, process)| **process == kernel.me.process);
        mine.map(|(thread, _)| *thread).collect()
    }

    fn start_of(&self, process: u32) -> Option<u64> {
        self.kernel.lock().alive.get(&process).copied()
    }
}
