//! The governor: threads announce the class of their work, and streaming work leaves the cache to the other classes.
//!
//! ```no_run
//! use keyaki_llc::{Governor, GovernorOptions, WorkClass};
//! use keyaki_llc::software::sum;
//!
//! let governor = Governor::new(GovernorOptions::default());
//! println!("{}", governor.status()); // the active path, and the reason
//!
//! // A worker thread:
//! let worker = governor.register();
//! let column = vec![1_u64; 100_000];
//! {
//!     let _running = worker.announce(WorkClass::Streaming);
//!     assert_eq!(sum(&column, governor.scan_method(WorkClass::Streaming)), 100_000);
//! }
//!
//! // Keep an index in the cache:
//! let nodes = vec![7_u8; 1 << 20];
//! let pin = governor.protect("orders_pk", &[&nodes]);
//! // … until the pin is dropped:
//! drop(pin);
//! ```
//!
//! There are two paths. *Hardware*: each class of work has a class of service, workers' threads are moved between them,
//! and the capacity bit masks follow the classes that run ([`policy`]). *Software*: while there is data to protect,
//! scans use the method that was measured to be best on this processor ([`crate::software`]). The path is chosen at the
//! start, and again if the hardware path fails later, for example because an administrator removes its groups.
//! [`Governor::status`] reports the path and the reason.
//!
//! Starting a governor never fails, and neither does any of its calls: an action that the machine does not support is
//! skipped.
//!
//! Invariant: `mix` counts, for each class, the threads whose last announcement is of that class.

mod pin;
pub mod policy;
mod status;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

pub use pin::Pin;
pub use policy::{Allocation, PolicyOptions, WorkClass};
pub use status::{CachePath, ClassStatus, PinStatus, Status};
pub use worker::{Entered, Running, Worker};

use crate::Caches;
use crate::resctrl::{self, ClassMasks, Control, DetectOptions, Group, Unavailable};
use crate::software::{ScanMethod, Tuning, TuningOptions};
use policy::{AdaptiveSample, Mix, Parts, PolicyInput, PolicyState, decide};

/// The source of hardware partitioning.
#[derive(Debug, Clone)]
pub enum Hardware {
    /// Detected on this machine.
    Detect(DetectOptions),
    /// Opened by the caller, or unavailable for this reason.
    Given(Result<Control, Unavailable>),
    /// Not used.
    Off,
}

/// The source of the scan method.
#[derive(Debug, Clone)]
pub enum Software {
    /// Measured at the start if there is no hardware path; takes half a second.
    Measure,
    /// Measured earlier on this machine.
    Given(Tuning),
    /// Plain loads until [`Governor::set_tuning`] is called.
    Later,
    /// Plain loads.
    Off,
}

/// Options of [`Governor::new`].
#[derive(Debug, Clone)]
pub struct GovernorOptions {
    /// The source of hardware partitioning.
    pub hardware: Hardware,
    /// The source of the scan method.
    pub software: Software,
    /// The policy of the hardware path.
    pub policy: PolicyOptions,
    /// The machine's caches; `None`: detected.
    pub caches: Option<Caches>,
}

impl Default for GovernorOptions {
    /// Everything is detected and measured.
    fn default() -> Self {
        GovernorOptions {
            hardware: Hardware::Detect(DetectOptions::default()),
            software: Software::Measure,
            policy: PolicyOptions::default(),
            caches: None,
        }
    }
}

/// The governor of one process's cache use. Cheap to clone. Dropping the last clone, worker and pin removes its groups.
#[derive(Debug, Clone)]
pub struct Governor {
    core: Arc<GovernorCore>,
}

/// A reference to a governor that does not keep it alive.
#[derive(Debug, Clone)]
pub struct WeakGovernor {
    core: Weak<GovernorCore>,
}

impl WeakGovernor {
    /// The governor, if it still exists.
    pub fn upgrade(&self) -> Option<Governor> {
        self.core.upgrade().map(|core| Governor { core })
    }
}

#[derive(Debug)]
struct GovernorCore {
    /// Unique among the governors of the process.
    id: u64,
    caches: Caches,
    policy: PolicyOptions,
    tuning: RwLock<Arc<Tuning>>,
    /// The tuning was postponed and has not been set yet.
    untuned: AtomicBool,
    /// Zero of the policy's clock.
    start: Instant,
    state: Mutex<GovernorState>,
    /// Held while memory is warmed, because there is one class of service for warming.
    pinning: Mutex<()>,
    /// There is data to protect. Atomic, because every scan reads it.
    protecting: AtomicBool,
    /// `state.classes` is `Ok`. Atomic, because every scan reads it.
    on_hardware: AtomicBool,
}

#[derive(Debug)]
struct GovernorState {
    /// The classes of service, or the reason why there are none.
    classes: Result<Classes, String>,
    mix: Mix,
    policy: PolicyState,
    allocation: Allocation,
    pins: Vec<PinStatus>,
    next_pin: u64,
    /// Memory traffic of adaptive work in bytes, and the time in milliseconds when it was read.
    traffic: Option<(u64, u64)>,
    /// Registered threads and threads that have announced work, by kernel thread id.
    threads: BTreeMap<u32, ThreadState>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ThreadState {
    /// The class of its current work; `None`: idle.
    runs: Option<WorkClass>,
    /// Its class of service. An idle thread stays in the class of its last work.
    group: Option<WorkClass>,
}

/// The classes of service of the hardware path.
#[derive(Debug)]
struct Classes {
    groups: BTreeMap<WorkClass, Group>,
    control: Control,
    parts: Parts,
}

impl Governor {
    /// Starts a governor with the best path that the options and the machine allow.
    pub fn new(options: GovernorOptions) -> Self {
        let caches = options.caches.unwrap_or_else(Caches::detect);
        let control = match options.hardware {
            Hardware::Detect(options) => resctrl::detect(&options),
            Hardware::Given(control) => control,
            Hardware::Off => Err(Unavailable::SwitchedOff),
        };
        let classes = control
            .map_err(|reason| reason.to_string())
            .and_then(|control| Classes::new(control, &caches).map_err(|error| error.to_string()));
        let untuned = matches!(options.software, Software::Later) && classes.is_err();
        let tuning = match options.software {
            Software::Given(tuning) => tuning,
            Software::Off => Tuning::plain("scan methods are disabled"),
            Software::Later if untuned => Tuning::plain("not measured yet"),
            Software::Measure | Software::Later if classes.is_ok() => {
                Tuning::plain("not measured, because the hardware partitions the cache")
            }
            Software::Measure | Software::Later => Tuning::measure(&TuningOptions::for_caches(&caches))
                .unwrap_or_else(|error| Tuning::plain(&format!("measurement failed: {error}"))),
        };
        match &classes {
            Ok(_) => tracing::info!("using hardware partitioning of the last-level cache"),
            Err(reason) => {
                tracing::info!(reason, scans = tuning.reason, "hardware partitioning of caches is not available")
            }
        }
        let on_hardware = AtomicBool::new(classes.is_ok());
        let state = GovernorState {
            classes,
            mix: Mix::default(),
            policy: PolicyState::default(),
            allocation: Allocation::default(),
            pins: Vec::new(),
            next_pin: 0,
            traffic: None,
            threads: BTreeMap::new(),
        };
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let core = GovernorCore {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            caches,
            policy: options.policy,
            tuning: RwLock::new(Arc::new(tuning)),
            untuned: AtomicBool::new(untuned),
            start: Instant::now(),
            state: Mutex::new(state),
            pinning: Mutex::new(()),
            protecting: AtomicBool::new(false),
            on_hardware,
        };
        let governor = Governor { core: Arc::new(core) };
        governor.tick();
        governor
    }

    /// The class of work that touches `bytes` bytes. `reuses`: the work is likely to touch each of them again soon;
    /// `None` if unknown.
    pub fn classify(&self, bytes: u64, reuses: Option<bool>) -> WorkClass {
        let last_level = self.core.caches.last_level().map_or_else(|| self.core.caches.bytes(3), |cache| cache.bytes);
        match reuses {
            _ if bytes <= last_level / 4 => WorkClass::Sensitive,
            Some(false) => WorkClass::Streaming,
            Some(true) if bytes <= last_level => WorkClass::Sensitive,
            _ if bytes > 8 * last_level => WorkClass::Streaming,
            _ => WorkClass::Adaptive,
        }
    }

    /// The method with which work of this class should scan memory now: plain loads, unless the work streams, there is
    /// data to protect, and the hardware does not partition the cache.
    pub fn scan_method(&self, class: WorkClass) -> ScanMethod {
        let core = &self.core;
        let wanted = class == WorkClass::Streaming
            && core.protecting.load(Ordering::Relaxed)
            && !core.on_hardware.load(Ordering::Relaxed);
        if wanted { core.tuning.read().method } else { ScanMethod::Plain }
    }

    /// The current tuning of scans.
    pub fn tuning(&self) -> Arc<Tuning> {
        self.core.tuning.read().clone()
    }

    /// Replaces the tuning of scans. It has no effect while the hardware path is active.
    pub fn set_tuning(&self, tuning: Tuning) {
        *self.core.tuning.write() = Arc::new(tuning);
        self.core.untuned.store(false, Ordering::Relaxed);
    }

    /// Sets the tuning of scans if it was postponed ([`Software::Later`]) and is not set yet.
    pub fn set_missing_tuning(&self, tuning: Tuning) {
        if self.core.untuned.load(Ordering::Relaxed) {
            self.set_tuning(tuning);
        }
    }

    /// True if the tuning was postponed ([`Software::Later`]), is not set yet, and would be used now: work of this
    /// class streams, and there is data to protect. Stays true for all callers until [`Governor::set_tuning`].
    pub fn wants_tuning(&self, class: WorkClass) -> bool {
        class == WorkClass::Streaming
            && self.core.untuned.load(Ordering::Relaxed)
            && self.core.protecting.load(Ordering::Relaxed)
    }

    /// True if the hardware path is active. [`Governor::tick`] then adjusts the capacity bit masks.
    pub fn is_on_hardware(&self) -> bool {
        self.core.on_hardware.load(Ordering::Relaxed)
    }

    /// True if both handles refer to the same governor.
    pub fn is(&self, other: &Governor) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// A reference that does not keep the governor alive.
    pub fn downgrade(&self) -> WeakGovernor {
        WeakGovernor { core: Arc::downgrade(&self.core) }
    }

    /// The machine's caches.
    pub fn caches(&self) -> &Caches {
        &self.core.caches
    }

    /// Reads the monitoring counters, if there are any, and adjusts the capacity bit masks. Call it about every 100 ms.
    pub fn tick(&self) {
        self.core.tick_at(self.core.start.elapsed().as_millis() as u64);
    }

    /// The active path with the reason, the classes of work, and the pins.
    pub fn status(&self) -> Status {
        self.core.status()
    }
}

impl Classes {
    fn new(control: Control, caches: &Caches) -> resctrl::Result<Self> {
        let Some(resource) = control.capabilities().last_level() else {
            unreachable!("`Capabilities::read` fails without a data cache");
        };
        let cache_bytes = caches.bytes(resource.kind.level());
        let parts = Parts {
            usable: resource.bits_usable(),
            fewest: resource.bits_min(),
            part_bytes: resource.part_bytes(cache_bytes),
        };
        let mut groups = BTreeMap::from([(WorkClass::Streaming, control.create(WorkClass::Streaming.name())?)]);
        // If there are too few classes of service, the other classes of work share one or use the default class.
        for class in [WorkClass::Sensitive, WorkClass::Adaptive] {
            match control.create(class.name()) {
                Ok(group) => _ = groups.insert(class, group),
                Err(error) => tracing::info!(%error, class = class.name(), "no separate class of service"),
            }
        }
        Ok(Classes { groups, control, parts })
    }

    /// The group of a class of work; `None`: the default class of service.
    fn group(&self, class: WorkClass) -> Option<&Group> {
        let instead = if class == WorkClass::Adaptive { WorkClass::Sensitive } else { class };
        self.groups.get(&class).or_else(|| self.groups.get(&instead))
    }

    /// Moves a thread to the class of service of a class of work.
    fn assign(&self, class: WorkClass, thread: u32) -> resctrl::Result<()> {
        match self.group(class) {
            Some(group) => group.assign(thread),
            None => self.control.release(thread),
        }
    }

    /// The masks of `parts` parts from `first` on, counted from the shared end.
    fn masks(&self, first: u32, parts: u32) -> ClassMasks {
        let span = Some((first, parts));
        let level = self.control.capabilities().last_level().map_or(3, |resource| resource.kind.level());
        if level == 3 { ClassMasks { l3: span, l2: None } } else { ClassMasks { l3: None, l2: span } }
    }

    /// Sets the masks of all groups.
    fn apply(&self, allocation: &Allocation) -> resctrl::Result<()> {
        for (class, group) in &self.groups {
            group.set(&self.masks(0, allocation.of(*class)))?;
        }
        Ok(())
    }
}

impl GovernorCore {
    fn tick_at(&self, now_ms: u64) {
        let mut state = self.state.lock();
        let sample = state.sample(now_ms);
        self.decide(&mut state, now_ms, sample);
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Runs the policy and applies a changed allocation.
    fn decide(&self, state: &mut GovernorState, now_ms: u64, adaptive: Option<AdaptiveSample>) {
        let parts =
            state.classes.as_ref().map_or(Parts { usable: 2, fewest: 1, part_bytes: 1 }, |classes| classes.parts);
        let pinned_bytes = state.pins.iter().map(|pin| pin.bytes).sum();
        let input = PolicyInput { now_ms, parts, mix: state.mix, pinned_bytes, adaptive };
        let (next, allocation) = decide(&self.policy, state.policy, &input);
        self.protecting.store(next.protects(&self.policy, &input), Ordering::Relaxed);
        state.policy = next;
        let changed = state.allocation != allocation;
        state.allocation = allocation;
        if let Ok(classes) = &state.classes
            && changed
            && let Err(error) = classes.apply(&allocation)
        {
            self.recover(state, &error);
        }
    }

    /// Handles a failed command: recreates groups that have vanished, else leaves the hardware path.
    fn recover(&self, state: &mut GovernorState, error: &resctrl::Error) {
        let reason = match &state.classes {
            Ok(classes) if error.is_vanished() => {
                let control = classes.control.clone();
                // Drop the old groups first, because the new ones have the same names.
                state.classes = Err(String::new());
                let again = Classes::new(control, &self.caches).and_then(|classes| {
                    classes.apply(&state.allocation)?;
                    for (id, thread) in &mut state.threads {
                        // Fails if the thread has ended.
                        thread.group = thread.runs.filter(|class| classes.assign(*class, *id).is_ok());
                    }
                    Ok(classes)
                });
                match again {
                    Ok(classes) => {
                        tracing::warn!(%error, "recreated resctrl groups that had been removed");
                        state.classes = Ok(classes);
                        return;
                    }
                    Err(error) => error.to_string(),
                }
            }
            _ => error.to_string(),
        };
        tracing::warn!(reason, "hardware partitioning of caches has failed");
        self.on_hardware.store(false, Ordering::Relaxed);
        state.classes = Err(reason);
    }
}

impl GovernorState {
    /// The occupancy of the adaptive class, and its memory traffic since the last call; `None` without monitoring.
    fn sample(&mut self, now_ms: u64) -> Option<AdaptiveSample> {
        let classes = self.classes.as_ref().ok()?;
        let usage = classes.groups.get(&WorkClass::Adaptive)?.usage().ok()?;
        let total = usage.total_bytes?;
        let (before, then) = self.traffic.replace((total, now_ms))?;
        let seconds = now_ms.checked_sub(then).filter(|elapsed| *elapsed > 0)? as f64 / 1e3;
        let bytes_per_second = total.saturating_sub(before) as f64 / seconds;
        Some(AdaptiveSample { occupancy_bytes: usage.occupancy_bytes.unwrap_or(0), bytes_per_second })
    }
}
