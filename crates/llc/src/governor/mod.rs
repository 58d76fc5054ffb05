//! The governor: what runs is announced, and it sees to it that streaming work leaves the cache to those who need it.
//!
//! ```no_run
//! use keyaki_llc::{Governor, GovernorOptions, WorkClass};
//! use keyaki_llc::software::sum;
//!
//! let governor = Governor::new(GovernorOptions::default());
//! println!("{}", governor.status()); // which path, and why
//!
//! // A worker thread:
//! let worker = governor.register();
//! let column = vec![1_u64; 100_000];
//! {
//!     let _running = worker.announce(WorkClass::Streaming);
//!     assert_eq!(sum(&column, governor.scan_method(WorkClass::Streaming)), 100_000);
//! }
//!
//! // An index that shall stay:
//! let nodes = vec![7_u8; 1 << 20];
//! let pin = governor.protect("orders_pk", &[&nodes]);
//! // … until it is dropped:
//! drop(pin);
//! ```
//!
//! Two paths. *Hardware*: each class of work has a class of service; workers' threads are moved between them, and masks follow what
//! runs ([`policy`]). *Software*: scans use the method that helps on this processor ([`crate::software`]) while there is something to
//! be kept. Which of them it is, is decided at the start, and again when hardware fails later (somebody removes our groups):
//! [`Governor::status`] tells, with the reason. A governor never fails to start, and no call of it fails: what cannot be done is left out.

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
use policy::{Input, Mix, Parts, PolicyState, Sample, decide};

/// Where hardware partitioning comes from.
#[derive(Debug, Clone)]
pub enum Hardware {
    /// Used if the machine has it.
    Detect(DetectOptions),
    /// Already opened, or not available for this reason.
    Given(Result<Control, Unavailable>),
    Off,
}

/// Where the method for scans comes from.
#[derive(Debug, Clone)]
pub enum Software {
    /// Measured at the start, if there is no hardware path (half a second).
    Measure,
    /// Measured before, on this machine.
    Given(Tuning),
    /// Plain until [`Governor::set_tuning`] says something else.
    Later,
    Off,
}

#[derive(Debug, Clone)]
pub struct GovernorOptions {
    pub hardware: Hardware,
    pub software: Software,
    pub policy: PolicyOptions,
    /// `None`: asked of the machine.
    pub caches: Option<Caches>,
}

impl Default for GovernorOptions {
    fn default() -> Self {
        GovernorOptions {
            hardware: Hardware::Detect(DetectOptions::default()),
            software: Software::Measure,
            policy: PolicyOptions::default(),
            caches: None,
        }
    }
}

/// Governs the caches for one process. Cheap to clone; what was changed is undone when the last clone, worker and pin is dropped.
#[derive(Debug, Clone)]
pub struct Governor {
    inner: Arc<Inner>,
}

/// A governor that this does not keep alive.
#[derive(Debug, Clone)]
pub struct WeakGovernor {
    inner: Weak<Inner>,
}

impl WeakGovernor {
    pub fn upgrade(&self) -> Option<Governor> {
        self.inner.upgrade().map(|inner| Governor { inner })
    }
}

#[derive(Debug)]
struct Inner {
    /// Different for each governor of the process.
    id: u64,
    caches: Caches,
    policy: PolicyOptions,
    tuning: RwLock<Arc<Tuning>>,
    /// Nothing was measured so far, and something will be.
    untuned: AtomicBool,
    start: Instant,
    state: Mutex<State>,
    /// Held while something is warmed: there is one class for that.
    pinning: Mutex<()>,
    /// For [`Governor::scan_method`], which is asked often.
    protecting: AtomicBool,
    on_hardware: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// The classes of service, or why there are none.
    classes: Result<Classes, String>,
    mix: Mix,
    policy: PolicyState,
    allocation: Allocation,
    pins: Vec<PinStatus>,
    next_pin: u64,
    /// Traffic counter of adaptive work, and when it was read.
    traffic: Option<(u64, u64)>,
    /// Threads that have announced something, or will.
    threads: BTreeMap<u32, Thread>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    /// What it runs now; none: nothing that was announced.
    runs: Option<WorkClass>,
    /// The class of service that it is in: it stays there when it has ended what it ran.
    group: Option<WorkClass>,
}

#[derive(Debug)]
struct Classes {
    groups: BTreeMap<WorkClass, Group>,
    control: Control,
    parts: Parts,
}

impl Governor {
    /// Looks what the machine offers and takes the best of it.
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
            Software::Off => Tuning::plain("methods for scans are switched off"),
            Software::Later if untuned => Tuning::plain("what helps has not been measured yet"),
            Software::Measure | Software::Later if classes.is_ok() => {
                Tuning::plain("not measured: the hardware partitions the cache")
            }
            Software::Measure | Software::Later => Tuning::measure(&TuningOptions::for_caches(&caches))
                .unwrap_or_else(|error| Tuning::plain(&format!("measuring failed: {error}"))),
        };
        match &classes {
            Ok(_) => tracing::info!("the last-level cache is partitioned by the hardware"),
            Err(reason) => tracing::info!(reason, scans = tuning.reason, "no hardware partitioning of caches"),
        }
        let on_hardware = AtomicBool::new(classes.is_ok());
        let state = State {
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
        let inner = Inner {
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
        let governor = Governor { inner: Arc::new(inner) };
        governor.tick();
        governor
    }

    /// The class of work that touches so many bytes: `reuses` if each of them is likely to be touched again soon, `None` if unknown.
    pub fn classify(&self, bytes: u64, reuses: Option<bool>) -> WorkClass {
        let last_level = self.inner.caches.last_level().map_or_else(|| self.inner.caches.bytes(3), |cache| cache.bytes);
        match reuses {
            _ if bytes <= last_level / 4 => WorkClass::Sensitive,
            Some(false) => WorkClass::Streaming,
            Some(true) if bytes <= last_level => WorkClass::Sensitive,
            _ if bytes > 8 * last_level => WorkClass::Streaming,
            _ => WorkClass::Adaptive,
        }
    }

    /// How work of this class should scan memory now: plainly, unless it streams, there is something to be kept, and the hardware does
    /// not see to that.
    pub fn scan_method(&self, class: WorkClass) -> ScanMethod {
        let inner = &self.inner;
        let wanted = class == WorkClass::Streaming
            && inner.protecting.load(Ordering::Relaxed)
            && !inner.on_hardware.load(Ordering::Relaxed);
        if wanted { inner.tuning.read().method } else { ScanMethod::Plain }
    }

    /// How scans are made on this machine, as measured.
    pub fn tuning(&self) -> Arc<Tuning> {
        self.inner.tuning.read().clone()
    }

    /// From now on scans are made in this way, where the hardware does not keep them apart.
    pub fn set_tuning(&self, tuning: Tuning) {
        *self.inner.tuning.write() = Arc::new(tuning);
        self.inner.untuned.store(false, Ordering::Relaxed);
    }

    /// True for one caller after the other until a tuning is there, if it was put off ([`Software::Later`]) and would be of use
    /// now: something streams while something is to be kept.
    pub fn wants_tuning(&self, class: WorkClass) -> bool {
        class == WorkClass::Streaming
            && self.inner.untuned.load(Ordering::Relaxed)
            && self.inner.protecting.load(Ordering::Relaxed)
    }

    /// Whether masks of the hardware are at work, which [`Governor::tick`] adjusts.
    pub fn is_on_hardware(&self) -> bool {
        self.inner.on_hardware.load(Ordering::Relaxed)
    }

    /// Whether two handles are of one governor.
    pub fn is(&self, other: &Governor) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub fn downgrade(&self) -> WeakGovernor {
        WeakGovernor { inner: Arc::downgrade(&self.inner) }
    }

    pub fn caches(&self) -> &Caches {
        &self.inner.caches
    }

    /// Reads the counters where there are any, and adjusts the masks. To be called now and then (every 100 ms or so).
    pub fn tick(&self) {
        self.inner.tick_at(self.inner.start.elapsed().as_millis() as u64);
    }

    /// What there is, what is done, and why.
    pub fn status(&self) -> Status {
        self.inner.status()
    }
}

impl Classes {
    fn new(control: Control, caches: &Caches) -> resctrl::Result<Self> {
        let Some(resource) = control.capabilities().last_level() else {
            // Not reached: control without a resource is refused when it is opened.
            let status = "no cache can be partitioned".into();
            let (path, kind) = (String::new(), std::io::ErrorKind::Unsupported);
            return Err(resctrl::Error { operation: "find a cache", path, kind, message: String::new(), status });
        };
        let cache_bytes = caches.bytes(resource.kind.level());
        let parts = Parts {
            usable: resource.bits_usable(),
            fewest: resource.bits_min(),
            part_bytes: resource.part_bytes(cache_bytes),
        };
        let mut groups = BTreeMap::from([(WorkClass::Streaming, control.create(WorkClass::Streaming.name())?)]);
        // The others share a class of service, or use the default one, if there are too few.
        for class in [WorkClass::Sensitive, WorkClass::Adaptive] {
            match control.create(class.name()) {
                Ok(group) => _ = groups.insert(class, group),
                Err(error) => tracing::info!(%error, class = class.name(), "no class of service of its own"),
            }
        }
        Ok(Classes { groups, control, parts })
    }

    /// The group for a class; `None`: the default class of service.
    fn group(&self, class: WorkClass) -> Option<&Group> {
        let instead = if class == WorkClass::Adaptive { WorkClass::Sensitive } else { class };
        self.groups.get(&class).or_else(|| self.groups.get(&instead))
    }

    fn assign(&self, class: WorkClass, thread: u32) -> resctrl::Result<()> {
        match self.group(class) {
            Some(group) => group.assign(thread),
            None => self.control.release(thread),
        }
    }

    /// Masks for the classes; `first` and `parts` from the shared end.
    fn masks(&self, first: u32, parts: u32) -> ClassMasks {
        let span = Some((first, parts));
        let level = self.control.capabilities().last_level().map_or(3, |resource| resource.kind.level());
        if level == 3 { ClassMasks { l3: span, l2: None } } else { ClassMasks { l3: None, l2: span } }
    }

    fn apply(&self, allocation: &Allocation) -> resctrl::Result<()> {
        for (class, group) in &self.groups {
            group.set(&self.masks(0, allocation.of(*class)))?;
        }
        Ok(())
    }
}

impl Inner {
    fn tick_at(&self, now_ms: u64) {
        let mut state = self.state.lock();
        let sample = state.sample(now_ms);
        self.decide(&mut state, now_ms, sample);
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Decides anew and applies what has changed.
    fn decide(&self, state: &mut State, now_ms: u64, adaptive: Option<Sample>) {
        let parts =
            state.classes.as_ref().map_or(Parts { usable: 2, fewest: 1, part_bytes: 1 }, |classes| classes.parts);
        let pinned_bytes = state.pins.iter().map(|pin| pin.bytes).sum();
        let input = Input { now_ms, parts, mix: state.mix, pinned_bytes, adaptive };
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

    /// After a command failed: new groups if ours have vanished, else the software path.
    fn recover(&self, state: &mut State, error: &resctrl::Error) {
        let reason = match &state.classes {
            Ok(classes) if error.is_vanished() => {
                let control = classes.control.clone();
                // The old groups have to go first: the new ones have their names.
                state.classes = Err(String::new());
                let again = Classes::new(control, &self.caches).and_then(|classes| {
                    classes.apply(&state.allocation)?;
                    for (id, thread) in &mut state.threads {
                        // It may have ended meanwhile.
                        thread.group = thread.runs.filter(|class| classes.assign(*class, *id).is_ok());
                    }
                    Ok(classes)
                });
                match again {
                    Ok(classes) => {
                        tracing::warn!(%error, "our resctrl groups had vanished; they were made again");
                        state.classes = Ok(classes);
                        return;
                    }
                    Err(error) => error.to_string(),
                }
            }
            _ => error.to_string(),
        };
        tracing::warn!(reason, "hardware partitioning of caches ends");
        self.on_hardware.store(false, Ordering::Relaxed);
        state.classes = Err(reason);
    }
}

impl State {
    /// The adaptive class's occupancy, and its traffic since the last time.
    fn sample(&mut self, now_ms: u64) -> Option<Sample> {
        let classes = self.classes.as_ref().ok()?;
        let usage = classes.groups.get(&WorkClass::Adaptive)?.usage().ok()?;
        let total = usage.total_bytes?;
        let (before, then) = self.traffic.replace((total, now_ms))?;
        let seconds = now_ms.checked_sub(then).filter(|elapsed| *elapsed > 0)? as f64 / 1e3;
        let bytes_per_second = total.saturating_sub(before) as f64 / seconds;
        Some(Sample { occupancy_bytes: usage.occupancy_bytes.unwrap_or(0), bytes_per_second })
    }
}
