//! What the governor does, for people and for tables.

use std::fmt;

use serde::Serialize;

use super::policy::{Allocation, WorkClass};
use super::{Inner, State};
use crate::Caches;
use crate::software::{ScanMethod, Tuning};

/// How the cache is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CachePath {
    /// Masks of the hardware.
    Hardware,
    /// Scans that spare the cache.
    Software,
    /// Not at all: there is no hardware for it, and no method of scanning helps.
    None,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassStatus {
    pub class: WorkClass,
    pub workers: u32,
    /// Its line in `schemata`, or how it scans.
    pub masks: String,
    pub occupancy_bytes: Option<u64>,
    /// From and to memory since the start.
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PinStatus {
    pub name: String,
    pub bytes: u64,
    #[serde(skip)]
    pub(super) id: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    pub path: CachePath,
    /// Why this path.
    pub reason: String,
    /// Why scans are made as they are.
    pub scan_reason: String,
    pub caches: Caches,
    pub allocation: Option<Allocation>,
    pub classes: Vec<ClassStatus>,
    pub pins: Vec<PinStatus>,
}

impl Inner {
    pub(super) fn status(&self) -> Status {
        let tuning = self.tuning.read().clone();
        let mut state = self.state.lock();
        let (path, reason) = match &state.classes {
            Ok(classes) => {
                let where_ = classes.control.location().display().to_string();
                let monitored =
                    if classes.control.capabilities().monitoring.is_some() { "" } else { ", not monitored" };
                (CachePath::Hardware, format!("{} parts by resctrl at {where_}{monitored}", classes.parts.usable))
            }
            Err(reason) if tuning.method == ScanMethod::Plain => (CachePath::None, reason.clone()),
            Err(reason) => (CachePath::Software, reason.clone()),
        };
        Status {
            path,
            reason,
            scan_reason: tuning.reason.clone(),
            caches: self.caches.clone(),
            allocation: state.classes.is_ok().then_some(state.allocation),
            classes: WorkClass::ALL.map(|class| self.class_status(&mut state, &tuning, class)).into(),
            pins: state.pins.clone(),
        }
    }

    fn class_status(&self, state: &mut State, tuning: &Tuning, class: WorkClass) -> ClassStatus {
        let workers = *state.mix.of(class);
        let Ok(classes) = &state.classes else {
            let method = if class == WorkClass::Streaming { tuning.method } else { ScanMethod::Plain };
            return ClassStatus {
                class,
                workers,
                masks: method.to_string(),
                occupancy_bytes: None,
                memory_bytes: None,
            };
        };
        let group = classes.group(class);
        let schemata = group.and_then(|group| group.schemata().ok()).unwrap_or_default();
        let masks =
            if group.is_some() { schemata.to_string().trim().replace('\n', " ") } else { "default class".into() };
        let usage = group.map_or_else(|| classes.control.usage(), |group| group.usage()).unwrap_or_default();
        ClassStatus { class, workers, masks, occupancy_bytes: usage.occupancy_bytes, memory_bytes: usage.total_bytes }
    }
}

impl fmt::Display for CachePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            CachePath::Hardware => "hardware",
            CachePath::Software => "software",
            CachePath::None => "none",
        })
    }
}

/// A few lines for a terminal.
impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cache in self.caches.all.iter().filter(|cache| cache.id == 0) {
            let (kib, shared) = (cache.bytes >> 10, cache.processors.len());
            writeln!(out, "L{} {:?}: {kib} KiB, {} ways, {shared} processors", cache.level, cache.kind, cache.ways)?;
        }
        writeln!(out, "path: {} ({})", self.path, self.reason)?;
        writeln!(out, "scans: {}", self.scan_reason)?;
        for class in &self.classes {
            write!(out, "{}: {} workers, {}", class.class, class.workers, class.masks)?;
            match class.occupancy_bytes {
                Some(bytes) => writeln!(out, ", {} KiB in the cache", bytes >> 10)?,
                None => writeln!(out)?,
            }
        }
        for pin in &self.pins {
            writeln!(out, "pinned: {} ({} KiB)", pin.name, pin.bytes >> 10)?;
        }
        Ok(())
    }
}
