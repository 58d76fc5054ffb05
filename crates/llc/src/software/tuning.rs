//! The choice of the scan method for this processor, by measurement.
//!
//! Each round warms a protected range, scans other memory by each method in turn, and measures dependent random loads
//! from the protected range after each scan. The harm of a plain scan is the increase of the load latency. A method is
//! eligible if it avoids at least 30 % of the harm and the scan takes at most 35 % longer. The eligible method with the
//! largest share avoided, less its cost in scan time, is chosen. Plain loads are chosen if a plain scan does little
//! harm or no method is eligible.
//!
//! Other load on the machine can only worsen the figures, so the better quartile decides, not the median.

use std::time::{Duration, Instant};

use keyaki_primitives::AlignedMemory;
use serde::{Deserialize, Serialize};

use super::{ScanMethod, sum};
use crate::calibrate::Chase;
use crate::stats::rounded;
use crate::{Caches, Quartiles};

/// Version of the JSON format.
const VERSION: u32 = 1;
/// Minimum share of the plain scan's harm that a method must avoid.
const KEPT_MIN: f64 = 0.3;
/// Maximum increase of the scan's time.
const PRICE_MAX: f64 = 0.35;
/// Minimum ratio of the latency after a plain scan to the warm latency: below it, the plain scan counts as harmless.
const HARM_MIN: f64 = 1.3;

/// Options of [`Tuning::measure`].
#[derive(Debug, Clone)]
pub struct TuningOptions {
    /// Bytes of the protected range: more than L2, less than the last level.
    pub protected_bytes: usize,
    /// Bytes of a scan: more than the last level.
    pub scan_bytes: usize,
    /// Methods to compare with plain loads. Unsupported ones are skipped.
    pub methods: Vec<ScanMethod>,
    /// Maximum number of rounds.
    pub rounds: usize,
    /// Time after which no further round starts, once three rounds are done.
    pub time: Duration,
    /// Loads per measurement.
    pub probes: usize,
}

impl TuningOptions {
    /// Options for a machine with these caches. The measurement takes less than half a second on most machines.
    pub fn for_caches(caches: &Caches) -> Self {
        let (l2, l3) = (caches.bytes(2) as usize, caches.bytes(3) as usize);
        let non_temporal = [4 << 10, 16 << 10].map(|ahead_bytes| ScanMethod::NonTemporal { ahead_bytes });
        let flushing = [8 << 10, 32 << 10].map(|behind_bytes| ScanMethod::FlushBehind { behind_bytes });
        TuningOptions {
            protected_bytes: (2 * l2).max(4 << 20).min(l3.max(4 << 20) / 2),
            scan_bytes: (2 * l3).clamp(32 << 20, 64 << 20),
            methods: non_temporal.into_iter().chain(flushing).collect(),
            rounds: 7,
            time: Duration::from_millis(350),
            probes: 6_000,
        }
    }
}

/// The measurements of one method.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The method.
    pub method: ScanMethod,
    /// Nanoseconds of a dependent load from the protected range after the scan.
    pub probe_ns: Quartiles,
    /// Data rate of the scan.
    pub gigabytes_per_second: Quartiles,
    /// Share of the plain scan's harm that was avoided: 1 is all of it, 0 none.
    pub kept: f64,
}

/// The chosen scan method, with the reason and the measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    version: u32,
    /// The processor's name, family, model and stepping: the tuning is valid only there.
    pub processor: String,
    /// The chosen method.
    pub method: ScanMethod,
    /// The reason for the choice, in one line.
    pub reason: String,
    /// Nanoseconds of a dependent load from the protected range right after warming.
    pub warm_ns: Quartiles,
    /// Bytes of the protected range; 0 if nothing was measured.
    pub protected_bytes: u64,
    /// Measurements by method, plain loads first; empty if nothing was measured.
    pub figures: Vec<Figure>,
}

/// A stored tuning that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TuningError {
    /// The text is not the JSON of a tuning.
    #[error("invalid scan tuning: {0}")]
    Damaged(#[from] serde_json::Error),
    /// Another format version, the stored one.
    #[error("scan tuning has format version {0}, expected {VERSION}")]
    Version(u32),
    /// Another processor, the stored one.
    #[error("scan tuning was measured on another processor: {0}")]
    Processor(String),
}

impl Tuning {
    /// Measures all methods and chooses one.
    ///
    /// # Errors
    /// If the system has not enough memory.
    pub fn measure(options: &TuningOptions) -> std::io::Result<Self> {
        let mut chase = Chase::new(options.protected_bytes, 1)?;
        let mut scanned = AlignedMemory::huge(options.scan_bytes)?;
        scanned.words_mut().iter_mut().step_by(512).for_each(|word| *word = 1);
        let supported = options.methods.iter().copied().filter(|method| method.is_supported());
        let methods: Vec<ScanMethod> = std::iter::once(ScanMethod::Plain).chain(supported).collect();
        let (mut warm, mut samples) = (Vec::new(), vec![(Vec::new(), Vec::new()); methods.len()]);
        let begin = Instant::now();
        for round in 0..options.rounds.max(1) {
            if round >= 3 && begin.elapsed() > options.time {
                break;
            }
            chase.warm();
            warm.push(chase.run(options.probes));
            for (method, (probe_ns, rate)) in methods.iter().zip(&mut samples) {
                chase.warm();
                let start = Instant::now();
                std::hint::black_box(sum(scanned.words(), *method));
                rate.push(options.scan_bytes as f64 / start.elapsed().as_nanos().max(1) as f64);
                probe_ns.push(chase.run(options.probes));
            }
        }
        let warm_ns = Quartiles::of(&warm);
        let figures = methods.iter().zip(&samples).map(|(method, (probe_ns, rate))| Figure {
            method: *method,
            probe_ns: Quartiles::of(probe_ns),
            gigabytes_per_second: Quartiles::of(rate),
            kept: 0.0,
        });
        let mut tuning = Tuning {
            version: VERSION,
            processor: processor(),
            method: ScanMethod::Plain,
            reason: String::new(),
            warm_ns,
            protected_bytes: options.protected_bytes as u64,
            figures: figures.collect(),
        };
        tuning.choose();
        Ok(tuning)
    }

    /// Plain loads, without a measurement, for the given reason.
    pub fn plain(reason: &str) -> Self {
        Tuning {
            version: VERSION,
            processor: processor(),
            method: ScanMethod::Plain,
            reason: reason.into(),
            warm_ns: Quartiles::default(),
            protected_bytes: 0,
            figures: Vec::new(),
        }
    }

    /// Computes `kept` of each figure, and sets method and reason.
    fn choose(&mut self) {
        let Some(plain) = self.figures.first().copied() else { return };
        let (warm, harmed) = (self.warm_ns.low, plain.probe_ns.low);
        for figure in &mut self.figures {
            let kept = if harmed > warm { (harmed - figure.probe_ns.low) / (harmed - warm) } else { 0.0 };
            figure.kept = rounded(kept);
        }
        if harmed < HARM_MIN * warm {
            self.reason = format!("plain scans do no harm: {harmed:.0} ns per load after a scan, {warm:.0} ns before");
            return;
        }
        let price = |figure: &Figure| plain.gigabytes_per_second.high / figure.gigabytes_per_second.high - 1.0;
        let worth = |figure: &Figure| figure.kept - price(figure).max(0.0);
        let eligible = self.figures[1..].iter().filter(|figure| figure.kept >= KEPT_MIN && price(figure) <= PRICE_MAX);
        match eligible.max_by(|one, other| worth(one).total_cmp(&worth(other))) {
            Some(best) => {
                self.method = best.method;
                self.reason = format!(
                    "{} avoids {:.0} % of the harm of a plain scan ({:.0} ns per load instead of {harmed:.0}, warm {warm:.0}) for {:+.0} % scan time",
                    best.method,
                    100.0 * best.kept.min(1.0),
                    best.probe_ns.low,
                    100.0 * price(best),
                );
            }
            None => {
                self.reason = format!("no method helps: {harmed:.0} ns per load after a plain scan, warm {warm:.0}")
            }
        }
    }

    /// The JSON form, for [`Tuning::from_json`].
    pub fn to_json(&self) -> String {
        // Numbers, strings and enums: serialization cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Parses the text of [`Tuning::to_json`].
    ///
    /// # Errors
    /// If the text is invalid, of another format version, or of another processor.
    pub fn from_json(text: &str) -> Result<Self, TuningError> {
        let tuning: Tuning = serde_json::from_str(text)?;
        if tuning.version != VERSION {
            return Err(TuningError::Version(tuning.version));
        }
        if tuning.processor != processor() {
            return Err(TuningError::Processor(tuning.processor));
        }
        Ok(tuning)
    }
}

/// The processor's name, and its signature (family, model and stepping) in hexadecimal.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        let mut name = Vec::new();
        if __cpuid(0x8000_0000).eax >= 0x8000_0004 {
            for leaf in 0x8000_0002..=0x8000_0004_u32 {
                let leaf = __cpuid(leaf);
                name.extend([leaf.eax, leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes));
            }
        }
        let name = String::from_utf8_lossy(&name);
        format!("{} ({:x})", name.trim_matches(['\0', ' ']), __cpuid(1).eax)
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning(warm: f64, figures: &[(ScanMethod, f64, f64)]) -> Tuning {
        let same = |value: f64| Quartiles::of(&[value]);
        let figure = |&(method, probe_ns, rate): &(ScanMethod, f64, f64)| Figure {
            method,
            probe_ns: same(probe_ns),
            gigabytes_per_second: same(rate),
            kept: 0.0,
        };
        let mut tuning = Tuning::plain("");
        (tuning.warm_ns, tuning.figures) = (same(warm), figures.iter().map(figure).collect());
        tuning.choose();
        tuning
    }

    #[test]
    fn the_best_eligible_method_is_chosen() {
        use ScanMethod::{FlushBehind, NonTemporal, Plain};
        let (near, far) = (NonTemporal { ahead_bytes: 64 }, NonTemporal { ahead_bytes: 4096 });
        let flush = FlushBehind { behind_bytes: 8192 };
        // The figures of a Zen 5.
        let zen = tuning(13.0, &[(Plain, 138.0, 38.0), (near, 137.0, 38.0), (far, 45.0, 37.0), (flush, 18.0, 32.0)]);
        assert_eq!(zen.method, flush);
        assert!(zen.reason.contains("96 %"), "{}", zen.reason);
        assert!((zen.figures[2].kept - 0.744).abs() < 0.001);
        // Flushing costs half of the scan's speed.
        let slow = tuning(13.0, &[(Plain, 138.0, 38.0), (far, 45.0, 37.0), (flush, 18.0, 19.0)]);
        assert_eq!(slow.method, far);
        let helpless = tuning(13.0, &[(Plain, 138.0, 38.0), (near, 130.0, 38.0)]);
        assert_eq!(helpless.method, Plain);
        assert!(helpless.reason.contains("no method helps"));
        let harmless = tuning(100.0, &[(Plain, 105.0, 38.0), (far, 50.0, 38.0)]);
        assert_eq!(harmless.method, Plain);
        assert!(harmless.reason.contains("do no harm"));
    }

    #[test]
    fn tunings_round_trip_through_json() {
        let options = TuningOptions {
            protected_bytes: 1 << 20,
            scan_bytes: 4 << 20,
            rounds: 2,
            probes: 500,
            ..TuningOptions::for_caches(&Caches::detect())
        };
        let tuning = Tuning::measure(&options).unwrap();
        assert!(!tuning.figures.is_empty() && !tuning.reason.is_empty());
        assert_eq!(Tuning::from_json(&tuning.to_json()).unwrap(), tuning);
        let other = tuning.to_json().replace(&tuning.processor, "Z80");
        assert!(matches!(Tuning::from_json(&other), Err(TuningError::Processor(name)) if name == "Z80"));
        let newer = tuning.to_json().replace("\"version\": 1", "\"version\": 2");
        assert!(matches!(Tuning::from_json(&newer), Err(TuningError::Version(2))));
        assert!(matches!(Tuning::from_json("{"), Err(TuningError::Damaged(_))));
    }
}
