//! How fast a device is: measured once, kept in a file, asked by the planner.
//!
//! [`calibrate`] reads at random from a file with every combination of request size and queue depth, and times writes
//! and syncs. The result is a table; between its entries [`Calibration`] interpolates the logarithm of the rate over the
//! logarithms of size and depth, beyond them it assumes the nearest depth and an unchanging data rate. More requests in
//! flight never count as slower: a table's entry is at least that of any smaller depth.
//!
//! Invariant: every row has an entry, and all sizes, depths and rates are positive and finite, also after [`load`].
//!
//! [`load`]: Calibration::load

mod measure;

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use measure::{CalibrateOptions, Progress, calibrate};

use crate::{Error, Result};

/// Version of the JSON form.
const VERSION: u32 = 1;

/// The performance of a device, as measured or assumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    version: u32,
    /// The device's name, or `"assumed"`.
    device: String,
    /// By request size, then depth.
    reads: Vec<ReadRate>,
    writes: Option<WriteRate>,
}

/// Random reads of one size at one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReadRate {
    pub request_bytes: u64,
    /// Requests in flight, over all workers.
    pub depth: u32,
    /// Requests per second: the better of one worker and several.
    pub iops: f64,
    /// How many workers achieved that.
    pub workers: u32,
}

/// Writes and syncs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WriteRate {
    /// Of sequential writes of 1 MiB, a few in flight, with the sync at their end.
    pub bytes_per_second: f64,
    /// A write of one block and its sync.
    pub sync_ns: f64,
}

impl Calibration {
    /// A modest flash drive, for when nothing was measured: 150 µs, 50,000 reads/s, 500 MB/s.
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
                ReadRate { request_bytes, depth: 1 << bits, iops: tidy(iops), workers: 1 }
            })
        });
        let writes = WriteRate { bytes_per_second: BYTES_PER_SECOND / 2.0, sync_ns: 1e6 };
        Calibration { version: VERSION, device: "assumed".into(), reads: reads.collect(), writes: Some(writes) }
    }

    fn new(device: &str, mut reads: Vec<ReadRate>, writes: Option<WriteRate>) -> io::Result<Self> {
        reads.sort_unstable_by_key(|rate| (rate.request_bytes, rate.depth));
        let calibration = Calibration { version: VERSION, device: device.into(), reads, writes };
        calibration.check()?;
        Ok(calibration)
    }

    fn check(&self) -> io::Result<()> {
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        let why = if self.version != VERSION {
            "calibration of another version"
        } else if self.reads.is_empty() {
            "calibration without measurements"
        } else if !self.reads.iter().all(|rate| rate.request_bytes > 0 && rate.depth > 0 && positive(rate.iops)) {
            "calibration with a rate that is not positive"
        } else if !self.reads.is_sorted_by_key(|rate| (rate.request_bytes, rate.depth)) {
            "calibration out of order"
        } else if self.writes.is_some_and(|rate| !positive(rate.bytes_per_second) || !positive(rate.sync_ns)) {
            "calibration with a write rate that is not positive"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Whether this was measured (and not [assumed](Calibration::assumed)).
    pub fn is_measured(&self) -> bool {
        self.device != "assumed"
    }

    /// The name of the device measured, or `"assumed"`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// All measurements of random reads, by request size, then depth.
    pub fn reads(&self) -> &[ReadRate] {
        &self.reads
    }

    /// Absent if the file measured was not to be written to.
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
        // Longer than anything measured: the data rate stays.
        below.map_or(1.0, |(largest, iops)| iops * largest / size)
    }

    /// Device time that one random read of `request_bytes` takes up when `depth` of them are in flight, in nanoseconds:
    /// the reciprocal of [`Calibration::iops`]. (Each read takes about `depth` times as long from its own point of view.)
    pub fn service_ns(&self, request_bytes: u64, depth: usize) -> f64 {
        1e9 / self.iops(request_bytes, depth)
    }

    /// The highest data rate of reads, in bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.reads.iter().map(|rate| rate.iops * rate.request_bytes as f64).fold(1.0, f64::max)
    }

    /// Writes the JSON form to a file of the operating system, replacing what is there.
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
        save().map_err(|error: io::Error| Error::on_path("save", path, error))
    }

    /// Reads what [`Calibration::save`] wrote.
    ///
    /// # Errors
    /// Also if the contents are not a calibration, or one of another version.
    pub fn load(path: &Path) -> Result<Self> {
        let load = || {
            let calibration: Calibration = serde_json::from_slice(&std::fs::read(path)?)?;
            calibration.check()?;
            Ok(calibration)
        };
        load().map_err(|error: io::Error| Error::on_path("load", path, error))
    }
}

/// The rate of one request size (`row`, by depth) at `depth`.
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

/// Two decimals are more than was measured, and survive JSON exactly.
fn tidy(rate: f64) -> f64 {
    ((rate * 100.0).round() / 100.0).max(0.01)
}

/// The value at `x` on the line through `(x, y)` points `a` and `b` in double-logarithmic scale; `a.0 < x <= b.0`.
fn interpolate(a: (f64, f64), b: (f64, f64), x: f64) -> f64 {
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
    fn assumptions_are_sane() {
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
    fn files_round_trip_and_damage_is_found() {
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
