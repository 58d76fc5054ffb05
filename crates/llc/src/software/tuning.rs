//! What helps on this processor.
//!
//! A protected range is walked by dependent loads, in random order, right after a scan of memory: plainly, and in each of the ways to
//! be tried, in turn, several times. A method is chosen if it keeps a good part of what the plain scan destroys, at a bearable price
//! in the scan's own speed. Where the plain scan destroys nothing, or no method helps, plain it is. Others who use the machine
//! meanwhile make all figures worse, never better: the better quartile decides, not the median.

use std::time::{Duration, Instant};

use keyaki_primitives::AlignedMemory;
use serde::{Deserialize, Serialize};

use super::{ScanMethod, sum};
use crate::calibrate::Chase;
use crate::stats::tidy;
use crate::{Caches, Quartiles};

/// Version of the JSON form.
const VERSION: u32 = 1;
/// What a method must keep of what the plain scan destroys, and how much longer the scan may take for it.
const KEPT_MIN: f64 = 0.3;
const PRICE_MAX: f64 = 0.35;
/// How much longer probes must take after a plain scan for there to be anything to keep.
const HARM_MIN: f64 = 1.3;

#[derive(Debug, Clone)]
pub struct TuningOptions {
    /// What is to be kept: larger than L2, well within the last level.
    pub protected_bytes: usize,
    /// What is scanned: more than the last level holds.
    pub scan_bytes: usize,
    pub methods: Vec<ScanMethod>,
    /// Rounds, each with every method.
    pub rounds: usize,
    /// No further round after this time, except the first three.
    pub time: Duration,
    pub probes: usize,
}

impl TuningOptions {
    /// For a machine with these caches, in less than half a second on most.
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

/// What a method did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub method: ScanMethod,
    /// Nanoseconds of a dependent load from the protected range after the scan.
    pub probe_ns: Quartiles,
    /// Of the scan itself.
    pub gigabytes_per_second: Quartiles,
    /// Share of what the plain scan destroys that was kept.
    pub kept: f64,
}

/// The outcome: which method to scan with, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    version: u32,
    /// The processor's name: figures of another one are of no use.
    pub processor: String,
    pub method: ScanMethod,
    /// A line for people.
    pub reason: String,
    /// Nanoseconds of a load from the protected range when nothing has gone over it.
    pub warm_ns: Quartiles,
    pub protected_bytes: u64,
    /// The plain scan first.
    pub figures: Vec<Figure>,
}

/// A stored tuning that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TuningError {
    #[error("a stored tuning that is not understood: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error("a stored tuning of version {0}; this program has version {VERSION}")]
    Version(u32),
    #[error("a stored tuning of another processor: {0}")]
    Processor(String),
}

impl Tuning {
    /// Measures.
    ///
    /// # Errors
    /// If there is no memory for that.
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

    /// Plain, without measuring, for this reason.
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

    /// Fills in what follows from the measurements.
    fn choose(&mut self) {
        let Some(plain) = self.figures.first().copied() else { return };
        let (warm, harmed) = (self.warm_ns.low, plain.probe_ns.low);
        for figure in &mut self.figures {
            let kept = if harmed > warm { (harmed - figure.probe_ns.low) / (harmed - warm) } else { 0.0 };
            figure.kept = tidy(kept);
        }
        if harmed < HARM_MIN * warm {
            self.reason = format!("a plain scan does no harm here: {harmed:.0} ns a probe after it, {warm:.0} before");
            return;
        }
        let price = |figure: &Figure| plain.gigabytes_per_second.high / figure.gigabytes_per_second.high - 1.0;
        let worth = |figure: &Figure| figure.kept - price(figure).max(0.0);
        let eligible = self.figures[1..].iter().filter(|figure| figure.kept >= KEPT_MIN && price(figure) <= PRICE_MAX);
        match eligible.max_by(|one, other| worth(one).total_cmp(&worth(other))) {
            Some(best) => {
                self.method = best.method;
                self.reason = format!(
                    "{} keeps {:.0} % of what a plain scan destroys ({:.0} ns a probe, not {harmed:.0}; warm {warm:.0}) and takes {:+.0} % time",
                    best.method,
                    100.0 * best.kept.min(1.0),
                    best.probe_ns.low,
                    100.0 * price(best),
                );
            }
            None => self.reason = format!("nothing that was tried helps here: {harmed:.0} ns a probe, warm {warm:.0}"),
        }
    }

    pub fn to_json(&self) -> String {
        // Numbers, strings and enums: nothing in it can fail to be written.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// What [`Tuning::to_json`] wrote on this processor.
    ///
    /// # Errors
    /// If it is of another version or processor, or not understood.
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

/// The processor's name, family, model and stepping, as far as it tells.
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
    fn the_choice() {
        use ScanMethod::{FlushBehind, NonTemporal, Plain};
        let (near, far) = (NonTemporal { ahead_bytes: 64 }, NonTemporal { ahead_bytes: 4096 });
        let flush = FlushBehind { behind_bytes: 8192 };
        // Figures as on a Zen 5.
        let zen = tuning(13.0, &[(Plain, 138.0, 38.0), (near, 137.0, 38.0), (far, 45.0, 37.0), (flush, 18.0, 32.0)]);
        assert_eq!(zen.method, flush);
        assert!(zen.reason.contains("96 %"), "{}", zen.reason);
        assert!((zen.figures[2].kept - 0.744).abs() < 0.001);
        // Flushing costs half of the scan's speed.
        let slow = tuning(13.0, &[(Plain, 138.0, 38.0), (far, 45.0, 37.0), (flush, 18.0, 19.0)]);
        assert_eq!(slow.method, far);
        let helpless = tuning(13.0, &[(Plain, 138.0, 38.0), (near, 130.0, 38.0)]);
        assert_eq!(helpless.method, Plain);
        assert!(helpless.reason.contains("nothing that was tried"));
        let harmless = tuning(100.0, &[(Plain, 105.0, 38.0), (far, 50.0, 38.0)]);
        assert_eq!(harmless.method, Plain);
        assert!(harmless.reason.contains("does no harm"));
    }

    #[test]
    fn measured_stored_and_read() {
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
