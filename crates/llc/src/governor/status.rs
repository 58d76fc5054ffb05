//! The governor's status, as a text for terminals and as data for system views.

use std::fmt;

use serde::Serialize;

use super::policy::{Allocation, WorkClass};
use super::{GovernorCore, GovernorState};
use crate::Caches;
use crate::software::{ScanMethod, Tuning};

/// The way in which hot data are kept in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CachePath {
    /// Hardware partitioning by capacity bit masks.
    Hardware,
    /// Scans that bypass the cache.
    Software,
    /// Not at all: there is no hardware partitioning, and no scan method helps.
    None,
}

/// Status of a class of work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassStatus {
    /// The class.
    pub class: WorkClass,
    /// Workers that run work of the class.
    pub workers: u32,
    /// The lines of its `schemata` file, or its scan method.
    pub masks: String,
    /// Bytes of the last level that the class occupies; `None` without monitoring.
    pub occupancy_bytes: Option<u64>,
    /// Bytes from and to memory since the start; `None` without monitoring.
    pub memory_bytes: Option<u64>,
}

/// Status of a pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PinStatus {
    /// The name given to [`Governor::protect`](super::Governor::protect).
    pub name: String,
    /// Bytes of the protected memory.
    pub bytes: u64,
    #[serde(skip)]
    pub(super) id: u64,
}

/// Status of a governor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// The active path.
    pub path: CachePath,
    /// The reason for the path.
    pub reason: String,
    /// The reason for the scan method.
    pub scan_reason: String,
    /// The machine's caches.
    pub caches: Caches,
    /// Parts by class; `None` without hardware partitioning.
    pub allocation: Option<Allocation>,
    /// Status by class, in the order of [`WorkClass::ALL`].
    pub classes: Vec<ClassStatus>,
    /// All pins, oldest first.
    pub pins: Vec<PinStatus>,
}

impl GovernorCore {
    pub(super) fn status(&self) -> Status {
        let tuning = self.tuning.read().clone();
        let mut state = self.state.lock();
        let (path, reason) = match &state.classes {
            Ok(classes) => {
                let location = classes.control.location().display().to_string();
                let monitored =
                    if classes.control.capabilities().monitoring.is_some() { "" } else { ", without monitoring" };
                (CachePath::Hardware, format!("resctrl at {location}, {} parts{monitored}", classes.parts.usable))
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

    fn class_status(&self, state: &mut GovernorState, tuning: &Tuning, class: WorkClass) -> ClassStatus {
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

/// Several lines for a terminal.
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
