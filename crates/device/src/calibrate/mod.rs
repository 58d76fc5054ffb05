//! The speed of a device: measured once, saved in a file, used by the planner's cost model.
//!
//! [`calibrate`] reads at random from a file with every combination of request size and queue depth, and times writes
//! and syncs. The result is a table. Between its entries, [`Calibration`] interpolates the logarithm of the rate
//! linearly over the logarithms of size and depth. Beyond them it uses the nearest depth and assumes a constant data
//! rate. A greater depth never counts as slower: an entry is raised to the maximum of all smaller depths.
//!
//! Invariants: the table is not empty and is sorted by size, then depth. All sizes, depths and rates are positive and
//! finite. [`Calibration::load`] checks this.

mod measure;
mod modelled;

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use crate::interface::CalibrationError;
pub use measure::{CalibrateOptions, Progress, calibrate};

use crate::interface::{Error, ErrorKind, Operation, Result};

/// Version of the JSON format.
const VERSION: u32 = 1;

/// The performance of a device: measured, computed from a model, or assumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    version: u32,
    /// The device's name, `"modelled"` or `"assumed"`.
    device: String,
    /// Sorted by request size, then depth.
    reads: Vec<ReadRate>,
    writes: Option<WriteRate>,
}

/// Random reads of one size at one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReadRate {
    /// Bytes of each read.
    pub request_bytes: u64,
    /// Requests in flight, over all workers.
    pub depth: u32,
    /// Reads per second: the better of one worker and several.
    pub iops: f64,
    /// Number of workers that achieved this rate.
    pub workers: u32,
}

/// Performance of writes and syncs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WriteRate {
    /// Data rate of sequential writes of 1 MiB, four in flight, including the sync at the end.
    pub bytes_per_second: f64,
    /// Nanoseconds for a write of one block and its sync.
    pub sync_ns: f64,
}

impl Calibration {
    /// A modest flash drive, for use without measurements: 150 µs, 50,000 reads/s, 500 MB/s.
    pub fn assumed() -> Self {
        const LATENCY_S: f64 = 150e-6;
        const IOPS_MAX: f64 = 50_000.0;
        const BYTES_PER_SECOND: f64 = 500e6;
        let sizes = (12..=20).map(|bits| 1_u64 << bits);
        let reads = sizes.flat_map(|request_bytes| {
            (0..=8).map(move |bits| {
                let transfer_s = request_bytes as f64 / BYTES_PER_SECOND;
                let alone = f64::from(1 << bits) / (LATENCY_S + transfer_s);
                let iops = alone.min(IOPS_MAX).min(1.0 / transfer_s);
                ReadRate { request_bytes, depth: 1 << bits, iops: rounded(iops), workers: 1 }
            })
        });
        let writes = WriteRate { bytes_per_second: BYTES_PER_SECOND / 2.0, sync_ns: 1e6 };
        Calibration { version: VERSION, device: "assumed".into(), reads: reads.collect(), writes: Some(writes) }
    }

    fn new(device: &str, mut reads: Vec<ReadRate>, writes: Option<WriteRate>) -> Result<Self, CalibrationError> {
        reads.sort_unstable_by_key(|rate| (rate.request_bytes, rate.depth));
        let calibration = Calibration { version: VERSION, device: device.into(), reads, writes };
        calibration.check()?;
        Ok(calibration)
    }

    fn check(&self) -> Result<(), CalibrationError> {
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        let reads_positive =
            self.reads.iter().all(|rate| rate.request_bytes > 0 && rate.depth > 0 && positive(rate.iops));
        let writes_positive = self.writes.is_none_or(|rate| positive(rate.bytes_per_second) && positive(rate.sync_ns));
        if self.version != VERSION {
            Err(CalibrationError::Version { found: self.version, expected: VERSION })
        } else if self.reads.is_empty() {
            Err(CalibrationError::Empty)
        } else if !reads_positive || !writes_positive {
            Err(CalibrationError::NotPositive)
        } else if !self.reads.is_sorted_by_key(|rate| (rate.request_bytes, rate.depth)) {
            Err(CalibrationError::Unsorted)
        } else {
            Ok(())
        }
    }

    /// True if this was measured, not [assumed](Calibration::assumed).
    pub fn is_measured(&self) -> bool {
        self.device != "assumed"
    }

    /// The name of the measured device, `"modelled"` or `"assumed"`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// All measurements of random reads, sorted by request size, then depth.
    pub fn reads(&self) -> &[ReadRate] {
        &self.reads
    }

    /// Performance of writes; `None` if an existing file was measured, which is only read.
    pub fn writes(&self) -> Option<WriteRate> {
        self.writes
    }

    /// Random reads of `request_bytes` per second with `depth` of them in flight.
    pub fn iops(&self, request_bytes: u64, depth: usize) -> f64 {
        let size = request_bytes.max(1) as f64;
        let mut below: Option<(f64, f64)> = None;
        for row in self.reads.chunk_by(|a, b| a.request_bytes == b.request_bytes) {
            let here = (row[0].request_bytes as f64, row_iops(row, depth));
            match below {
                _ if here.0 < size => below = Some(here),
                None => return here.1,
                Some(below) => return interpolate(below, here, size),
            }
        }
        // Longer than the largest measured request: the data rate is constant.
        below.map_or(1.0, |(largest, iops)| iops * largest / size)
    }

    /// Device time of one random read of `request_bytes` with `depth` of them in flight, in nanoseconds: the reciprocal
    /// of [`Calibration::iops`]. (The latency of each read is about `depth` times as long.)
    pub fn service_ns(&self, request_bytes: u64, depth: usize) -> f64 {
        1e9 / self.iops(request_bytes, depth)
    }

    /// The highest data rate of reads, in bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.reads.iter().map(|rate| rate.iops * rate.request_bytes as f64).fold(1.0, f64::max)
    }

    /// Writes the calibration as JSON to a file of the operating system, atomically replacing an existing file.
    ///
    /// # Errors
    /// If the file cannot be written or `path` has no file name.
    pub fn save(&self, path: &Path) -> Result<()> {
        let save = || {
            let mut json = serde_json::to_vec_pretty(self)?;
            json.push(b'\n');
            let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_os_string();
            name.push(".new");
            let new = path.with_file_name(name);
            std::fs::write(&new, json)?;
            std::fs::rename(&new, path)
        };
        save().map_err(|error: io::Error| Error::new(Operation::SaveCalibration, path, error))
    }

    /// Reads a file that [`Calibration::save`] wrote.
    ///
    /// # Errors
    /// If the file cannot be read, is not a calibration, or has another format version.
    pub fn load(path: &Path) -> Result<Self> {
        let load = || {
            let calibration: Calibration = serde_json::from_slice(&std::fs::read(path)?).map_err(io::Error::from)?;
            calibration.check()?;
            Ok(calibration)
        };
        load().map_err(|kind: ErrorKind| Error::new(Operation::LoadCalibration, path, kind))
    }
}

/// The rate at `depth` of one request size; `row` has its measurements, sorted by depth.
fn row_iops(row: &[ReadRate], depth: usize) -> f64 {
    let depth = depth.max(1) as f64;
    let mut below: Option<(f64, f64)> = None;
    for rate in row {
        let so_far = below.map_or(0.0, |(_, iops)| iops);
        let here = (f64::from(rate.depth), rate.iops.max(so_far));
        match below {
            _ if here.0 < depth => below = Some(here),
            None => return here.1,
            Some(below) => return interpolate(below, here, depth),
        }
    }
    below.map_or(1.0, |(_, iops)| iops)
}

/// Rounds to two decimals, which exceeds the precision of the measurement and survives JSON exactly.
fn rounded(rate: f64) -> f64 {
    ((rate * 100.0).round() / 100.0).max(0.01)
}

/// The value at `x` on the line through the `(x, y)` points `a` and `b` in a double-logarithmic plot; `a.0 < x <= b.0`.
fn interpolate(a: (f64, f64), b: (f64, f64), x: f64) -> f64 {
    assert!(a.0 < x && x <= b.0);
    let part = (x / a.0).ln() / (b.0 / a.0).ln();
    a.1 * (b.1 / a.1).powf(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Calibration {
        let rate = |request_bytes, depth, iops| ReadRate { request_bytes, depth, iops, workers: 1 };
        let reads = vec![
            rate(16384, 4, 8_000.0),
            rate(4096, 1, 10_000.0),
            rate(4096, 4, 40_000.0),
            rate(4096, 8, 30_000.0),
            rate(16384, 1, 5_000.0),
        ];
        Calibration::new("test", reads, None).unwrap()
    }

    fn assert_near(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    }

    #[test]
    fn lookups_interpolate_and_extrapolate() {
        let table = table();
        assert_near(table.iops(4096, 1), 10_000.0);
        assert_near(table.iops(4096, 2), 20_000.0);
        assert_near(table.iops(4096, 8), 40_000.0);
        assert_near(table.iops(4096, 1000), 40_000.0);
        assert_near(table.iops(512, 0), 10_000.0);
        assert_near(table.iops(8192, 1), (10_000.0_f64 * 5_000.0).sqrt());
        assert_near(table.iops(65536, 4), 2_000.0);
        assert_near(table.service_ns(4096, 4), 25_000.0);
        assert_near(table.bandwidth(), 40_000.0 * 4096.0);
    }

    #[test]
    fn the_assumed_drive_is_plausible() {
        let assumed = Calibration::assumed();
        assumed.check().unwrap();
        assert!(!assumed.is_measured());
        for bits in 12..20 {
            let iops = |bits, depth| assumed.iops(1_u64 << bits, depth);
            assert!((1..300).all(|depth| iops(bits, depth) <= iops(bits, depth + 1) * (1.0 + 1e-9)));
            assert!(iops(bits, 64) >= iops(bits + 1, 64));
        }
        assert!((assumed.bandwidth() / 500e6 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn files_round_trip_and_damage_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calibration.json");
        table().save(&path).unwrap();
        Calibration::assumed().save(&path).unwrap();
        assert_eq!(Calibration::load(&path).unwrap(), Calibration::assumed());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let json = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("\"depth\": 4,", "\"depth\": 0,"),
            ("50000.0", "-50000.0"),
            ("4096", "8192"),
            ("\"device\"", "\"gadget\""),
            ("\"reads\": [", "\"reads\": [], \"rest\": ["),
        ] {
            assert!(json.contains(from));
            std::fs::write(&path, json.replacen(from, to, 1)).unwrap();
            assert!(Calibration::load(&path).is_err(), "{to}");
        }
        assert!(Calibration::load(&dir.path().join("none")).unwrap_err().is_not_found());
    }
}
