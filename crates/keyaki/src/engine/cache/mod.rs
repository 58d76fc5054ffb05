//! Control of the CPU caches: classes of queries, the process's cache governor, and pins.
//!
//! All databases of a process share one governor (`keyaki_llc`). It is created at first use, because the detection of
//! the hardware takes about a millisecond. The best scan method for the processor is measured in the background, when a
//! scan streams for the first time while there is data to protect; or in advance by `keyaki calibrate --cache`. Both store the
//! measurement in the database directory, because it takes a core for a third of a second.
//!
//! The class of a scan depends on the bytes that the optimizer expects it to read. Up to [`LOOKUP_BYTES_MAX`] it is
//! *sensitive* (a lookup), up to the size of the last-level cache *adaptive*, and above that *streaming*. Index
//! pipelines are sensitive.
//!
//! Invariant: cache control affects speed, never results. No query fails because of it.

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

/// The stored cache calibration, in the database directory.
const FILE: &str = "caches.json";
/// The stored scan method, in the database directory. A calibration takes precedence.
const METHOD_FILE: &str = "scan-method.json";
/// Scans of at most this many bytes count as lookups.
const LOOKUP_BYTES_MAX: f64 = (256 << 10) as f64;
/// Interval between two samples of the hardware counters.
const TICK: Duration = Duration::from_millis(100);

/// The result of `keyaki calibrate --cache`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheCalibration {
    /// Latencies and effective sizes of the caches.
    pub profile: CacheProfile,
    /// The best scan method for this processor.
    pub tuning: Tuning,
}

/// State of the cache governor, and all pins of the database.
#[derive(Debug, Clone)]
pub struct CacheStatus {
    /// `None` if the governor is off.
    pub governor: Option<Status>,
    /// Size of the last-level cache in bytes: the measured effective size, or the size that the operating system
    /// reports. 0 if the governor was never on.
    pub cache_bytes: u64,
    /// `cache_bytes` is measured.
    pub measured: bool,
    /// Pinned tables and indexes.
    pub pins: Vec<PinInfo>,
}

/// Cache control of one database.
#[derive(Debug)]
pub(crate) struct CacheControl {
    on: AtomicBool,
    /// The process's governor; `None` before the first use and while off.
    governor: RwLock<Option<Governor>>,
    /// File of the stored calibration; `None` for databases outside the file system.
    file: Option<PathBuf>,
    /// Size of the last-level cache in bytes; 0 before the first use of the governor.
    cache_bytes: AtomicU64,
    measured: AtomicBool,
    pub pins: Pins,
}

impl CacheControl {
    /// `directory` is the database directory; `None` for databases outside the file system.
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

    /// Switches the governor on or off. Running work keeps its class. The caller must end all pins before it switches
    /// off.
    pub fn set_mode(&self, mode: CacheGovernor) {
        self.on.store(mode == CacheGovernor::On, Ordering::Relaxed);
        if mode == CacheGovernor::Off {
            *self.governor.write() = None;
        }
    }

    /// Returns the governor, created at first use, or `None` if it is off.
    pub fn governor(&self) -> Option<Governor> {
        if self.mode() == CacheGovernor::Off {
            return None;
        }
        if let Some(governor) = &*self.governor.read() {
            return Some(governor.clone());
        }
        let mut slot = self.governor.write();
        if slot.is_none() {
            let governor = shared();
            self.adopt_stored(&governor);
            *slot = Some(governor);
        }
        slot.clone()
    }

    /// Sets the cache size that the operating system reports, then applies the stored calibration if there is one.
    fn adopt_stored(&self, governor: &Governor) {
        let caches = governor.caches();
        let reported = caches.last_level().map_or_else(|| caches.bytes(3), |cache| cache.bytes);
        self.cache_bytes.store(reported.max(1), Ordering::Relaxed);
        let Some(file) = &self.file else { return };
        if file.exists() {
            match read(file) {
                Ok(stored) => return self.adopt(governor, stored),
                Err(error) => tracing::warn!(error, "cannot use the stored cache calibration"),
            }
        }
        // Of another processor or damaged, it is measured again.
        if let Ok(text) = std::fs::read_to_string(file.with_file_name(METHOD_FILE))
            && let Ok(tuning) = Tuning::from_json(&text)
        {
            governor.set_missing_tuning(tuning);
        }
    }

    /// Applies a calibration.
    fn adopt(&self, governor: &Governor, stored: CacheCalibration) {
        governor.set_tuning(stored.tuning);
        let effective = stored.profile.effective_bytes();
        if effective > 0 {
            self.cache_bytes.store(effective, Ordering::Relaxed);
            self.measured.store(true, Ordering::Relaxed);
        }
    }

    /// Stores a calibration in the database directory and applies it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_calibration(&self, measured: CacheCalibration) -> Result<()> {
        if let Some(file) = &self.file {
            // The calibration consists of numbers and strings, whose serialisation cannot fail.
            let json = serde_json::to_string_pretty(&measured).unwrap_or_default();
            std::fs::write(file, json).map_err(|error| Error::io("write", file, error))?;
        }
        if let Some(governor) = self.governor() {
            self.adopt(&governor, measured);
        }
        Ok(())
    }

    /// Size of the last-level cache in bytes; 0 if the governor was never on.
    pub fn cache_bytes(&self) -> u64 {
        // The first use of the governor sets the size.
        let _ = self.governor();
        self.cache_bytes.load(Ordering::Relaxed)
    }

    /// Class of a scan of `bytes` bytes; `None` if the governor is off.
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

    /// Class of an index pipeline; `None` if the governor is off.
    pub fn class_of_pipeline(&self) -> Option<WorkClass> {
        self.governor().map(|_| WorkClass::Sensitive)
    }

    /// The cache use that workers announce while they run a query of `class`; `None` if the governor is off.
    pub fn cache_use(&self, class: Option<WorkClass>) -> Option<CacheUse> {
        Some(CacheUse { governor: self.governor()?, class: class? })
    }

    /// The cache use of index lookups; `None` if the governor is off.
    pub fn lookups(&self) -> Option<CacheUse> {
        self.cache_use(self.class_of_pipeline())
    }

    /// Starts the measurement of the best scan method if `class` streams and the governor needs it. Scans call this
    /// after every batch.
    pub fn tune_if_streaming(&self, class: Option<WorkClass>) {
        let governor = self.governor.read();
        if let (Some(governor), Some(class)) = (&*governor, class)
            && governor.wants_tuning(class)
        {
            measure_in_background(governor, self.file.as_ref().map(|file| file.with_file_name(METHOD_FILE)));
        }
    }

    /// State of the governor and all pins.
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

/// Reads a stored calibration. Fails if it is of another version or another processor.
fn read(file: &Path) -> std::result::Result<CacheCalibration, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let stored: CacheCalibration = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    // Checks version and processor.
    let tuning = Tuning::from_json(&stored.tuning.to_json()).map_err(|error| error.to_string())?;
    Ok(CacheCalibration { tuning, ..stored })
}

/// Replaces a file. Readers see the old or the new text, unless power fails.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let temporary = file.with_extension("new");
    std::fs::write(&temporary, text)?;
    std::fs::rename(temporary, file)
}

/// Returns the governor of this process. A governor on hardware lives as long as a database uses it, because its last
/// handle removes the cache partitions; any other governor lives as long as the process.
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

/// Starts a thread that adapts the cache masks to the hardware counters until the last handle of the governor is
/// dropped.
fn tick(governor: WeakGovernor) {
    let run = move || {
        while let Some(governor) = governor.upgrade().filter(Governor::is_on_hardware) {
            governor.tick();
            drop(governor);
            std::thread::sleep(TICK);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("keyaki-cache".into()).spawn(run) {
        tracing::warn!(%error, "failed to start the cache thread, cache masks will ignore hardware counters");
    }
}

/// Measures the best scan method in a background thread, once per process, and stores it in `file`.
fn measure_in_background(governor: &Governor, file: Option<PathBuf>) {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let governor = governor.clone();
    let run = move || {
        let options = TuningOptions::for_caches(governor.caches());
        let tuning = match Tuning::measure(&options) {
            Ok(tuning) => {
                // A read-only directory, or one that was removed, costs another measurement at the next opening.
                if let Some(Err(error)) = file.map(|file| replace(&file, &tuning.to_json())) {
                    tracing::debug!(%error, "failed to store the scan method");
                }
                tuning
            }
            Err(error) => Tuning::plain(&format!("the measurement failed: {error}")),
        };
        tracing::info!(method = %tuning.method, reason = tuning.reason, "selected the scan method for the CPU cache");
        governor.set_tuning(tuning);
    };
    if let Err(error) = std::thread::Builder::new().name("keyaki-cache".into()).spawn(run) {
        tracing::warn!(%error, "failed to start the measurement of scan methods");
    }
}

impl CacheStatus {
    /// The path that protects pins: hardware or software. `None` if the governor is off.
    pub fn path(&self) -> Option<CachePath> {
        self.governor.as_ref().map(|status| status.path)
    }
}

/// Measures the effective sizes of the caches and the best scan method. Takes a few seconds.
///
/// # Errors
/// If the memory for the measurement cannot be allocated.
pub fn calibrate_caches() -> Result<CacheCalibration> {
    let failed =
        |error: std::io::Error| Error::io("measure the CPU caches in", Path::new("/sys/devices/system/cpu"), error);
    let profile = CacheProfile::measure(&Default::default()).map_err(failed)?;
    let tuning = Tuning::measure(&TuningOptions::for_caches(&profile.caches)).map_err(failed)?;
    Ok(CacheCalibration { profile, tuning })
}

/// Cache control, shared by sessions and operators.
pub(crate) type SharedCache = Arc<CacheControl>;
