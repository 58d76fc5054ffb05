//! The simulated kernel: the state of the fake tree, and the commands that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::FakeOptions;
use crate::resctrl::Owner;

pub(super) mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const ESRCH: i32 = 3;
    pub const EIO: i32 = 5;
    pub const EACCES: i32 = 13;
    pub const EEXIST: i32 = 17;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
}
use errno::{EACCES, EEXIST, EINVAL, EIO, ENOSPC, EPERM, EROFS, ESRCH};

/// The state of the simulated kernel.
#[derive(Debug)]
pub(super) struct FakeKernel {
    pub(super) options: FakeOptions,
    /// Groups by path; `""` is the default class.
    pub(super) groups: BTreeMap<String, FakeGroup>,
    /// The current process.
    pub(super) me: Owner,
    /// Ids and start times of the living processes.
    pub(super) alive: BTreeMap<u32, u64>,
    /// Threads, and the ids of their processes.
    pub(super) threads: BTreeMap<u32, u32>,
    /// Contents of `info/last_cmd_status`.
    pub(super) status: String,
    /// Number of changes so far.
    pub(super) changes: usize,
    /// Number of changes after which every call fails.
    pub(super) stop_after: Option<usize>,
}

/// A group of the simulated kernel.
#[derive(Debug, Clone)]
pub(super) struct FakeGroup {
    pub(super) mode: &'static str,
    /// The group is in `mon_groups`.
    pub(super) monitors_only: bool,
    /// Masks by resource and domain.
    pub(super) masks: BTreeMap<(String, u32), u32>,
    pub(super) tasks: BTreeSet<u32>,
    pub(super) occupancy_bytes: u64,
    pub(super) total_bytes: u64,
}

pub(super) fn error<T>(code: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(code))
}

impl FakeKernel {
    fn resources(&self) -> Vec<String> {
        let kinds: &[&str] = if self.options.cdp { &["CODE", "DATA"] } else { &[""] };
        let levels = self.options.levels.iter();
        levels.flat_map(|level| kinds.iter().map(move |kind| format!("{level}{kind}"))).collect()
    }

    fn full(&self) -> u32 {
        crate::CapacityMask::low(self.options.cbm_bits).0
    }

    /// A new group as the kernel creates it, with all parts that no exclusive group owns.
    pub(super) fn new_group(&self, _name: &str, monitors_only: bool) -> FakeGroup {
        let mut masks = BTreeMap::new();
        for resource in self.resources() {
            for domain in &self.options.domains {
                let owned = self.groups.values().filter(|group| group.mode == "exclusive");
                let owned = owned.filter_map(|group| group.masks.get(&(resource.clone(), *domain)));
                masks.insert((resource.clone(), *domain), owned.fold(self.full(), |rest, mask| rest & !mask));
            }
        }
        let tasks = BTreeSet::new();
        FakeGroup { mode: "shareable", monitors_only, masks, tasks, occupancy_bytes: 0, total_bytes: 0 }
    }

    /// Counts a change. Fails if the process has stopped, or the tree is not writable.
    pub(super) fn change(&mut self) -> io::Result<()> {
        if self.stop_after.is_some_and(|last| self.changes >= last) {
            return error(EIO);
        }
        self.changes += 1;
        if self.options.read_only {
            return error(EROFS);
        }
        if !self.options.writable {
            return error(EACCES);
        }
        self.status.clear();
        Ok(())
    }

    fn fail<T>(&mut self, code: i32, status: impl Into<String>) -> io::Result<T> {
        self.status = status.into();
        error(code)
    }

    pub(super) fn create_dir(&mut self, path: &str) -> io::Result<()> {
        self.change()?;
        if self.groups.contains_key(path) {
            return error(EEXIST);
        }
        let monitors_only = match path.rsplit_once('/') {
            None => false,
            Some(("mon_groups", _)) if self.options.num_rmids > 0 => true,
            _ => return error(EPERM),
        };
        let classes = self.groups.values().filter(|group| !group.monitors_only).count();
        if !monitors_only && classes >= self.options.num_closids {
            return self.fail(ENOSPC, "Out of CLOSIDs");
        }
        if self.options.num_rmids > 0 && self.groups.len() >= self.options.num_rmids {
            return self.fail(ENOSPC, "Out of RMIDs");
        }
        let group = self.new_group(path, monitors_only);
        if let Some(((resource, domain), _)) = group.masks.iter().find(|(_, mask)| **mask == 0) {
            let status = format!("No space on {resource}:{domain}");
            return self.fail(ENOSPC, status);
        }
        self.groups.insert(path.into(), group);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        let Some(group) = self.groups.remove(path) else { return false };
        if !group.monitors_only
            && let Some(default) = self.groups.get_mut("")
        {
            default.tasks.extend(group.tasks);
        }
        true
    }

    pub(super) fn write_tasks(&mut self, path: &str, text: &str) -> io::Result<()> {
        for part in text.trim().split(',') {
            let Ok(thread) = part.trim().parse::<u32>() else {
                return self.fail(EINVAL, format!("Task list parsing error pid {part}"));
            };
            let Some(process) = self.threads.get(&thread).copied() else {
                return self.fail(ESRCH, format!("No task {thread}"));
            };
            if process != self.me.process {
                return self.fail(EPERM, format!("No permission to move task {thread}"));
            }
            let monitors_only = self.groups.get(path).is_some_and(|group| group.monitors_only);
            for (_, group) in self.groups.iter_mut().filter(|(_, group)| !monitors_only || group.monitors_only) {
                group.tasks.remove(&thread);
            }
            if let Some(group) = self.groups.get_mut(path) {
                group.tasks.insert(thread);
            }
        }
        Ok(())
    }

    pub(super) fn write_schemata(&mut self, path: &str, text: &str) -> io::Result<()> {
        let Some(text) = text.strip_suffix('\n') else { return error(EINVAL) };
        let mut staged: BTreeMap<(String, u32), u32> = BTreeMap::new();
        for line in text.split('\n') {
            let Some((resource, values)) = line.split_once(':') else { return self.fail(EINVAL, "Missing ':'") };
            let resource = resource.trim().to_string();
            if values.is_empty() {
                return self.fail(EINVAL, format!("Missing '{resource}' value"));
            }
            if !self.resources().contains(&resource) {
                return self.fail(EINVAL, format!("Unknown or unsupported resource name '{resource}'"));
            }
            for part in values.split(';') {
                let parsed = part.split_once('=').and_then(|(id, mask)| Some((id.parse::<u32>().ok()?, mask.trim())));
                let Some((domain, mask)) = parsed else {
                    return self.fail(EINVAL, "Missing '=' or non-numeric domain");
                };
                if !self.options.domains.contains(&domain) {
                    return error(EINVAL);
                }
                let key = (resource.clone(), domain);
                if staged.contains_key(&key) {
                    return self.fail(EINVAL, format!("Duplicate domain {domain}"));
                }
                let mask = self.check_mask(mask, path, &key)?;
                staged.insert(key, mask);
            }
        }
        if let Some(group) = self.groups.get_mut(path) {
            group.masks.extend(staged);
        }
        Ok(())
    }

    fn check_mask(&mut self, text: &str, path: &str, key: &(String, u32)) -> io::Result<u32> {
        let Ok(mask) = u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16) else {
            return self.fail(EINVAL, format!("Non-hex character in the mask {text}"));
        };
        let minimum = self.options.min_cbm_bits;
        if (minimum > 0 && mask == 0) || mask > u64::from(self.full()) {
            return self.fail(EINVAL, "Mask out of range");
        }
        let mask = mask as u32;
        if !self.options.sparse_masks && !crate::CapacityMask(mask).is_contiguous() {
            return self.fail(EINVAL, format!("The mask {mask:x} has non-consecutive 1-bits"));
        }
        let first_run = if mask == 0 { 0 } else { (mask >> mask.trailing_zeros()).trailing_ones() };
        if first_run < minimum {
            return self.fail(EINVAL, format!("Need at least {minimum} bits in the mask"));
        }
        let overlaps = |(name, group): (&String, &FakeGroup)| {
            name != path && group.mode == "exclusive" && group.masks.get(key).is_some_and(|other| other & mask != 0)
        };
        if self.groups.iter().any(overlaps) {
            return self.fail(EINVAL, "Overlaps with exclusive group");
        }
        Ok(mask)
    }

    fn show_schemata(&self, group: &FakeGroup) -> String {
        let mut text = String::new();
        let resources = self.resources();
        let width = resources.iter().map(String::len).max().unwrap_or(2);
        for resource in &resources {
            let masks = group.masks.iter().filter(|((name, _), _)| name == resource);
            let digits = self.options.cbm_bits.div_ceil(4) as usize;
            let masks: Vec<String> = masks.map(|((_, domain), mask)| format!("{domain}={mask:0digits$x}")).collect();
            text += &format!("{resource:>width$}:{}\n", masks.join(";"));
        }
        if self.options.bandwidth {
            let domains = self.options.domains.iter().map(|domain| format!("{domain}=100"));
            text = format!("{:>width$}:{}\n", "MB", domains.collect::<Vec<_>>().join(";")) + &text;
        }
        text
    }

    fn read_info(&self, path: &str) -> Option<String> {
        let options = &self.options;
        let (directory, file) = path.split_once('/')?;
        if directory == "MB" {
            return (options.bandwidth && file == "num_closids").then(|| format!("{}\n", options.num_closids));
        }
        if directory == "L3_MON" && options.num_rmids > 0 {
            return match file {
                "num_rmids" => Some(format!("{}\n", options.num_rmids)),
                "mon_features" => Some("llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n".into()),
                _ => None,
            };
        }
        if !self.resources().iter().any(|resource| resource == directory) {
            return None;
        }
        let text = match file {
            "cbm_mask" => format!("{:x}", self.full()),
            "min_cbm_bits" => options.min_cbm_bits.to_string(),
            "shareable_bits" => format!("{:x}", options.shareable_bits),
            "num_closids" => options.num_closids.to_string(),
            "sparse_masks" => u32::from(options.sparse_masks).to_string(),
            _ => return None,
        };
        Some(text + "\n")
    }

    pub(super) fn read(&self, path: &str) -> Option<String> {
        if path == "info/last_cmd_status" {
            return Some(if self.status.is_empty() { "ok\n".into() } else { format!("{}\n", self.status) });
        }
        if let Some(rest) = path.strip_prefix("info/") {
            return self.read_info(rest);
        }
        if let Some((group, rest)) = path.split_once("mon_data/") {
            let group = self.groups.get(group.trim_end_matches('/'))?;
            let (domain, counter) = rest.split_once('/')?;
            // All usage is in the first domain.
            let first = format!("mon_L3_{:02}", self.options.domains.first()?) == domain;
            return match counter {
                "llc_occupancy" => Some(format!("{}\n", if first { group.occupancy_bytes } else { 0 })),
                "mbm_total_bytes" => Some(format!("{}\n", if first { group.total_bytes } else { 0 })),
                // The text of a counter that is not ready.
                "mbm_local_bytes" => Some("Unavailable\n".into()),
                _ => None,
            };
        }
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        let group = self.groups.get(group)?;
        match file {
            "tasks" => Some(group.tasks.iter().map(|task| format!("{task}\n")).collect()),
            "schemata" if !group.monitors_only => Some(self.show_schemata(group)),
            "mode" if !group.monitors_only => Some(format!("{}\n", group.mode)),
            _ => None,
        }
    }

    pub(super) fn directories(&self, path: &str) -> Option<Vec<String>> {
        let monitored = self.options.num_rmids > 0;
        if path == "info" {
            let mut names = self.resources();
            names.extend(monitored.then(|| "L3_MON".into()));
            names.extend(self.options.bandwidth.then(|| "MB".into()));
            return Some(names);
        }
        if path.is_empty() {
            let mut names: Vec<String> = vec!["info".into()];
            names.extend(monitored.then(|| ["mon_data", "mon_groups"].map(String::from)).into_iter().flatten());
            names.extend(self.groups.keys().filter(|name| !name.is_empty() && !name.contains('/')).cloned());
            names.sort();
            return Some(names);
        }
        if path == "mon_groups" && monitored {
            return Some(
                self.groups.keys().filter_map(|name| name.strip_prefix("mon_groups/")).map(Into::into).collect(),
            );
        }
        let group = path.strip_suffix("mon_data")?.trim_end_matches('/');
        (monitored && self.groups.contains_key(group))
            .then(|| self.options.domains.iter().map(|domain| format!("mon_L3_{domain:02}")).collect())
    }
}
