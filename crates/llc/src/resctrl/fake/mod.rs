//! A resctrl file system in memory that behaves as the kernel's does: its grammar, its checks in their order, its error numbers
//! and texts. For tests, also of programs that use this crate.
//!
//! Also a population of processes: groups are made by the process that [`FakeTree::be`] names, processes and threads die with
//! [`FakeTree::kill`], and [`FakeTree::stop_after`] lets everything fail from the n-th change on, as if the process had died there.

mod state;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::{Owner, Processes, Tree};
use state::errno::{EACCES, EIO, ENOENT, EPERM};
use state::{State, error};

/// The machine that is imitated.
#[derive(Debug, Clone)]
pub struct FakeOptions {
    /// `L3` and `L2`, or those of them that can be partitioned.
    pub levels: Vec<&'static str>,
    /// With code and data prioritisation: `L3CODE` and `L3DATA` instead of `L3`.
    pub cdp: bool,
    pub cbm_bits: u32,
    pub min_cbm_bits: u32,
    pub shareable_bits: u32,
    pub sparse_masks: bool,
    pub domains: Vec<u32>,
    pub num_closids: usize,
    /// Monitoring ids; 0: no monitoring.
    pub num_rmids: usize,
    pub read_only: bool,
    /// Whether this user may make groups.
    pub writable: bool,
    /// Whether `MB` (memory bandwidth) can be allocated as well.
    pub bandwidth: bool,
}

impl Default for FakeOptions {
    /// The paper's processor: one socket, an L3 of 20 parts, 16 classes.
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

#[derive(Debug)]
pub struct FakeTree {
    state: Mutex<State>,
}

impl FakeTree {
    /// A freshly mounted file system; this process is number 100, with threads 100 to 107.
    pub fn new(options: FakeOptions) -> Self {
        let me = Owner { namespace: 7, process: 100, start: 1_000 };
        let mut state = State {
            options,
            groups: BTreeMap::new(),
            me,
            alive: [(100, 1_000)].into(),
            threads: (100..108).map(|thread| (thread, 100)).collect(),
            status: String::new(),
            changes: 0,
            stop_after: None,
        };
        let mut default = state.new_group("", false);
        default.tasks = state.threads.keys().copied().collect();
        state.groups.insert(String::new(), default);
        FakeTree { state: Mutex::new(state) }
    }

    /// Who runs from now on: process id and start time, with eight threads from its id on.
    pub fn be(&self, process: u32, start: u64) {
        let mut state = self.state.lock();
        state.me = Owner { process, start, ..state.me };
        state.alive.insert(process, start);
        for thread in process..process + 8 {
            if state.threads.insert(thread, process).is_none()
                && let Some(default) = state.groups.get_mut("")
            {
                default.tasks.insert(thread);
            }
        }
    }

    /// A process ends, with its threads. (Its groups stay.)
    pub fn kill(&self, process: u32) {
        let state = &mut *self.state.lock();
        state.alive.remove(&process);
        let dead: Vec<u32> =
            state.threads.iter().filter(|(_, of)| **of == process).map(|(thread, _)| *thread).collect();
        for thread in dead {
            state.threads.remove(&thread);
            state.groups.values_mut().for_each(|group| _ = group.tasks.remove(&thread));
        }
    }

    /// After this many more changes every call fails; `None`: never again.
    pub fn stop_after(&self, changes: Option<usize>) {
        let mut state = self.state.lock();
        state.stop_after = changes.map(|more| state.changes + more);
    }

    /// Changes so far.
    pub fn changes(&self) -> usize {
        self.state.lock().changes
    }

    /// A group of somebody else, in mode `shareable` or `exclusive`, with one mask for all, holding `tasks`.
    pub fn add_foreign(&self, name: &str, mode: &'static str, mask: u32, tasks: &[u32]) {
        let mut state = self.state.lock();
        let mut group = state.new_group(name, false);
        group.mode = mode;
        group.masks.values_mut().for_each(|own| *own = mask);
        for task in tasks {
            state.groups.values_mut().for_each(|other| _ = other.tasks.remove(task));
            group.tasks.insert(*task);
        }
        state.groups.insert(name.into(), group);
    }

    /// The administrator narrows the default class.
    pub fn narrow_default(&self, mask: u32) {
        if let Some(default) = self.state.lock().groups.get_mut("") {
            default.masks.values_mut().for_each(|own| *own = mask);
        }
    }

    /// The administrator removes a group.
    pub fn vanish(&self, name: &str) {
        self.state.lock().remove(name);
    }

    /// What the counters of a group show.
    pub fn set_usage(&self, name: &str, occupancy_bytes: u64, total_bytes: u64) {
        if let Some(group) = self.state.lock().groups.get_mut(name) {
            (group.occupancy_bytes, group.total_bytes) = (occupancy_bytes, total_bytes);
        }
    }

    /// All groups but the default one.
    pub fn groups(&self) -> Vec<String> {
        self.state.lock().groups.keys().filter(|name| !name.is_empty()).cloned().collect()
    }

    /// The group that a thread is in (`""`: the default one).
    pub fn group_of(&self, thread: u32) -> Option<String> {
        let state = self.state.lock();
        let mut groups = state.groups.iter().filter(|(_, group)| !group.monitors_only);
        groups.find(|(_, group)| group.tasks.contains(&thread)).map(|(name, _)| name.clone())
    }
}

impl Tree for FakeTree {
    fn read(&self, path: &str) -> io::Result<String> {
        let state = self.state.lock();
        if state.stop_after.is_some_and(|last| state.changes >= last) {
            return error(EIO);
        }
        state.read(path).map_or_else(|| error(ENOENT), Ok)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.change()?;
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        if !state.groups.contains_key(group) {
            return error(ENOENT);
        }
        match file {
            "tasks" => state.write_tasks(group, text),
            "schemata" => state.write_schemata(group, text),
            _ => error(EACCES),
        }
    }

    fn directories(&self, path: &str) -> io::Result<Vec<String>> {
        self.state.lock().directories(path).map_or_else(|| error(ENOENT), Ok)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.state.lock().create_dir(path)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.change()?;
        if matches!(path, "" | "info" | "mon_groups" | "mon_data") {
            return error(EPERM);
        }
        if state.remove(path) { Ok(()) } else { error(ENOENT) }
    }

    fn location(&self) -> PathBuf {
        "/fake/resctrl".into()
    }
}

impl Processes for FakeTree {
    fn me(&self) -> Owner {
        self.state.lock().me
    }

    fn my_threads(&self) -> Vec<u32> {
        let state = self.state.lock();
        let mine = state.threads.iter().filter(|(_, process)| **process == state.me.process);
        mine.map(|(thread, _)| *thread).collect()
    }

    fn start_of(&self, process: u32) -> Option<u64> {
        self.state.lock().alive.get(&process).copied()
    }
}
