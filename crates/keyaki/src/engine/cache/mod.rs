//! The CPU's caches: what a database's queries are to them, and what is kept there.
//!
//! The governor (`keyaki_llc`) is made when it is first needed, once for the process: detecting what the machine offers takes a
//! millisecond. What helps scans on this processor is measured in the background, when a scan streams while something is to be kept
//! for the first time; or before, by `keyaki calibrate --cache`, which stores it in the database directory.
//!
//! The class of a scan follows from what the optimizer thinks it reads: less than a few pages is a lookup (sensitive), more than the
//! last level of the caches holds streams, what is between is adaptive. Index pipelines are sensitive.

mod pins;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use keyaki_exec::CacheUse;
use keyaki_llc::calibrate::CacheProfile;
use keyaki_llc::governor::{CachePath, Software, Status};
use keyaki_llc::software::{Tuning, TuningOptions};
use keyaki_llc::{Governor, GovernorOptions, WeakGovernor, WorkClass};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

pub(crate) use pins::{CacheTarget, CacheTargetKind, Pins, warm};
pub use pins::{PinInfo, Warmed};

use crate::base::options::CacheGovernor;
use crate::{Error, Result};

/// What was measured of the caches, in the database directory.
const FILE: &str = "caches.json";
/// Scans of fewer bytes are lookups.
const LOOKUP_BYTES_MAX: f64 = (256 << 10) as f64;
/// Between two looks at the hardware's counters.
const TICK: Duration = Duration::from_millis(100);

/// What `keyaki calibrate --cache` measures: what the caches hold, and what helps scans.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheCalibration {
    pub profile: CacheProfile,
    pub tuning: Tuning,
}

/// What the governor does, and what is pinned.
#[derive(Debug, Clone)]
pub struct CacheStatus {
    /// None if the governor is off.
    pub governor: Option<Status>,
    /// What the last level holds in practice, as measured, or as the machine tells.
    pub cache_bytes: u64,
    pub measured: bool,
    pub pins: Vec<PinInfo>,
}

/// A database's share in the governor.
#[derive(Debug)]
pub(crate) struct CacheControl {
    on: AtomicBool,
    governor: RwLock<Option<Governor>>,
    /// None for databases that are not in the file system.
    file: Option<PathBuf>,
    /// What the last level holds; 0: not known yet.
    cache_bytes: AtomicU64,
    measured: AtomicBool,
    pub pins: Pins,
}

impl CacheControl {
    pub fn new(mode: CacheGovernor, directory: Option<&Path>) -> Self {
        CacheControl {
            on: AtomicBool::new(mode == CacheGovernor::On),
            governor: RwLock::default(),
            file: directory.map(|directory| directory.join(FILE)),
            cache_bytes: AtomicU64::new(0),
            measured: AtomicBool::new(false),
            pins: Pins::default(),
        }
    }

    pub fn mode(&self) -> CacheGovernor {
        if self.on.load(Ordering::Relaxed) { CacheGovernor::On } else { CacheGovernor::Off }
    }

    /// Work that has begun goes on as it was announced. (The caller ends pins when it switches off.)
    pub fn set_mode(&self, mode: CacheGovernor) {
        self.on.store(mode == CacheGovernor::On, Ordering::Relaxed);
        if mode == CacheGovernor::Off {
            *self.governor.write() = None;
        }
    }

    /// None if it is off.
    pub fn governor(&self) -> Option<Governor> {
        if self.mode() == CacheGovernor::Off {
            return None;
        }
        if let Some(governor) = &*self.governor.read() {
            return Some(governor.clone());
        }
        let mut place = self.governor.write();
        if place.is_none() {
            let governor = shared();
            self.adopt_stored(&governor);
            *place = Some(governor);
        }
        place.clone()
    }

    fn adopt_stored(&self, governor: &Governor) {
        let caches = governor.caches();
        let told = caches.last_level().map_or_else(|| caches.bytes(3), |cache| cache.bytes);
        self.cache_bytes.store(told.max(1), Ordering::Relaxed);
        let Some(file) = self.file.as_ref().filter(|file| file.exists()) else { return };
        match read(file) {
            Ok(stored) => self.adopt(governor, stored),
            Err(error) => tracing::warn!(error, "the measurements of the caches are not used"),
        }
    }

    fn adopt(&self, governor: &Governor, stored: CacheCalibration) {
        governor.set_tuning(stored.tuning);
        let holds = stored.profile.effective_bytes();
        if holds > 0 {
            self.cache_bytes.store(holds, Ordering::Relaxed);
            self.measured.store(true, Ordering::Relaxed);
        }
    }

    /// Stores a measurement in the database directory and uses it from now on.
    pub fn set_calibration(&self, measured: CacheCalibration) -> Result<()> {
        if let Some(file) = &self.file {
            // Numbers and names: nothing in it can fail to be written.
            let json = serde_json::to_string_pretty(&measured).unwrap_or_default();
            std::fs::write(file, json).map_err(|error| Error::Invalid(format!("{}: {error}", file.display())))?;
        }
        if let Some(governor) = self.governor() {
            self.adopt(&governor, measured);
        }
        Ok(())
    }

    /// What the last level holds.
    pub fn cache_bytes(&self) -> u64 {
        // Known as soon as there is a governor.
        let _ = self.governor();
        self.cache_bytes.load(Ordering::Relaxed)
    }

    /// The class of a scan of so many bytes; none if nobody cares.
    pub fn class_of_scan(&self, bytes: f64) -> Option<WorkClass> {
        self.governor()?;
        Some(if bytes <= LOOKUP_BYTES_MAX {
            WorkClass::Sensitive
        } else if bytes <= self.cache_bytes() as f64 {
            WorkClass::Adaptive
        } else {
            WorkClass::Streaming
        })
    }

    pub fn class_of_pipeline(&self) -> Option<WorkClass> {
        self.governor().map(|_| WorkClass::Sensitive)
    }

    /// For the executor.
    pub fn announced(&self, class: Option<WorkClass>) -> Option<CacheUse> {
        Some(CacheUse { governor: self.governor()?, class: class? })
    }

    /// For the executor: a lookup by index.
    pub fn lookups(&self) -> Option<CacheUse> {
        self.announced(self.class_of_pipeline())
    }

    /// To be called now and then while something streams: has it measured what helps, once that would be of use.
    pub fn streams(&self, class: Option<WorkClass>) {
        let governor = self.governor.read();
        if let (Some(governor), Some(class)) = (&*governor, class)
            && governor.wants_tuning(class)
        {
            measure_in_background(governor);
        }
    }

    pub fn status(&self, store: &keyaki_store::Store) -> CacheStatus {
        let governor = self.governor().map(|governor| governor.status());
        CacheStatus {
            governor,
            cache_bytes: self.cache_bytes.load(Ordering::Relaxed),
            measured: self.measured.load(Ordering::Relaxed),
            pins: self.pins.list(store),
        }
    }
}

fn read(file: &Path) -> std::result::Result<CacheCalibration, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let stored: CacheCalibration = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    // Looks whether it is of this version and processor.
    let tuning = Tuning::from_json(&stored.tuning.to_json()).map_err(|error| error.to_string())?;
    Ok(CacheCalibration { tuning, ..stored })
}

/// The governor of this process: kept for good where it has nothing to undo, else as long as a database uses it.
fn shared() -> Governor {
    static SHARED: Mutex<(Option<Governor>, Option<WeakGovernor>)> = Mutex::new((None, None));
    let mut shared = SHARED.lock();
    if let Some(governor) = shared.0.clone().or_else(|| shared.1.as_ref()?.upgrade()) {
        return governor;
    }
    let governor = Governor::new(GovernorOptions { software: Software::Later, ..GovernorOptions::default() });
    if governor.is_on_hardware() {
        shared.1 = Some(governor.downgrade());
        tick(governor.downgrade());
    } else {
        shared.0 = Some(governor.clone());
    }
    governor
}

/// Has masks follow what the counters say, as long as there is a governor on hardware.
fn tick(governor: WeakGovernor) {
    let run = move || {
        while let Some(governor) = governor.upgrade().filter(Governor::is_on_hardware) {
            governor.tick();
            drop(governor);
            std::thread::sleep(TICK);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("keyaki-cache".into()).spawn(run) {
        tracing::warn!(%error, "no thread to watch the caches: masks change with what runs only");
    }
}

/// Measures what helps scans, once for the process.
fn measure_in_background(governor: &Governor) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let governor = governor.clone();
    let run = move || {
        let options = TuningOptions::for_caches(governor.caches());
        let tuning = Tuning::measure(&options)
            .unwrap_or_else(|error| Tuning::plain(&format!("what helps could not be measured: {error}")));
        tracing::info!(reason = tuning.reason, "scans and the CPU's caches");
        governor.set_tuning(tuning);
    };
    if let Err(error) = std::thread::Builder::new().name("keyaki-cache".into()).spawn(run) {
        tracing::warn!(%error, "what helps scans cannot be measured");
    }
}

impl CacheStatus {
    /// For messages: what cannot be promised of a pin on this machine.
    pub fn path(&self) -> Option<CachePath> {
        self.governor.as_ref().map(|status| status.path)
    }
}

/// Measures what the caches hold and what helps scans: a few seconds.
///
/// # Errors
/// If there is no memory for that.
pub fn calibrate_caches() -> Result<CacheCalibration> {
    let failed = |error: std::io::Error| Error::Invalid(format!("the caches cannot be measured: {error}"));
    let profile = CacheProfile::measure(&Default::default()).map_err(failed)?;
    let tuning = Tuning::measure(&TuningOptions::for_caches(&profile.caches)).map_err(failed)?;
    Ok(CacheCalibration { profile, tuning })
}

/// A governor's handle is shared among sessions and operators.
pub(crate) type SharedCache = Arc<CacheControl>;
