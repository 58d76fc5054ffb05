//! Who may allocate where: a pure function of what runs.
//!
//! The usable parts of the last level, from the end that is shared with other hardware:
//!
//! ```text
//! part  0 1 2 3 4 5 6 7 8 9 …
//!       [streaming]                         a tenth, two parts at least; everything while nobody else needs it
//!       [adaptive           ]               as streaming or as sensitive, once measured; until then half
//!       [sensitive                  ]       everything that is not pinned
//!                                   [pinned]  nobody allocates here after it was filled
//! ```
//!
//! Each class's parts hold those of the classes before it, so that every mask is one run of bits. Narrowing is immediate; widening
//! waits until the reason for narrowness has been gone for a while, so that masks do not flap with a mix that does.
//!
//! *Adaptive* work is tried out where the hardware can monitor: first wide, then, if it fills more than the few parts, narrow. If it moves more bytes from memory when it
//! is narrow, it uses again what it brought in, and is treated as sensitive; if not, it streams. After some time the trial is
//! repeated, because work changes. (Work that does nothing but wait for memory moves hardly more when it misses more: it is taken
//! for streaming. Where more is known, announce it as sensitive.)

use serde::Serialize;

/// What a piece of work does to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum WorkClass {
    /// Brings in far more than the cache holds and uses it once: big scans.
    Streaming,
    /// Not known beforehand.
    Adaptive,
    /// Uses again what it brought in: lookups through an index, small hot tables.
    Sensitive,
}

impl WorkClass {
    pub const ALL: [WorkClass; 3] = [WorkClass::Streaming, WorkClass::Adaptive, WorkClass::Sensitive];

    pub fn name(self) -> &'static str {
        match self {
            WorkClass::Streaming => "streaming",
            WorkClass::Adaptive => "adaptive",
            WorkClass::Sensitive => "sensitive",
        }
    }
}

impl std::fmt::Display for WorkClass {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())
    }
}

/// The part of the last level that is to be given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parts {
    pub usable: u32,
    /// The fewest that a mask may have.
    pub fewest: u32,
    pub part_bytes: u64,
}

/// Workers by what they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Mix {
    pub streaming: u32,
    pub adaptive: u32,
    pub sensitive: u32,
}

impl Mix {
    pub(crate) fn of(&mut self, class: WorkClass) -> &mut u32 {
        match class {
            WorkClass::Streaming => &mut self.streaming,
            WorkClass::Adaptive => &mut self.adaptive,
            WorkClass::Sensitive => &mut self.sensitive,
        }
    }
}

/// What was measured of the adaptive work.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Sample {
    pub occupancy_bytes: u64,
    /// From and to memory.
    pub bytes_per_second: f64,
}

/// All that a decision depends on, besides the state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Input {
    /// Since anything: only differences count.
    pub now_ms: u64,
    pub parts: Parts,
    pub mix: Mix,
    pub pinned_bytes: u64,
    /// Absent where nothing is monitored.
    pub adaptive: Option<Sample>,
}

/// Parts of the classes: each counted from the shared end, `pinned` from the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Allocation {
    pub streaming: u32,
    pub adaptive: u32,
    pub sensitive: u32,
    pub pinned: u32,
}

impl Allocation {
    pub fn of(&self, class: WorkClass) -> u32 {
        match class {
            WorkClass::Streaming => self.streaming,
            WorkClass::Adaptive => self.adaptive,
            WorkClass::Sensitive => self.sensitive,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PolicyOptions {
    /// Streaming work's share beside others: enough that lines survive until they are used once.
    pub streaming_share: f64,
    pub streaming_parts_min: u32,
    /// Room around what is pinned, because sets do not fill evenly.
    pub pinned_margin: f64,
    /// How long sensitive work must be gone before streaming work gets its parts.
    pub widen_after_ms: u64,
    /// From a change of masks to the sample that counts.
    pub settle_ms: u64,
    /// How long an outcome holds.
    pub trial_after_ms: u64,
    /// How much more memory traffic, when narrow, means that the work uses things again.
    pub reuse_factor: f64,
}

impl Default for PolicyOptions {
    fn default() -> Self {
        PolicyOptions {
            streaming_share: 0.1,
            streaming_parts_min: 2,
            pinned_margin: 1.25,
            widen_after_ms: 500,
            settle_ms: 100,
            trial_after_ms: 5_000,
            reuse_factor: 1.15,
        }
    }
}

/// What is known about adaptive work.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub enum Verdict {
    #[default]
    Unknown,
    /// Being tried with all parts, since then.
    TriedWide {
        since_ms: u64,
    },
    /// Being tried with few, since then; the traffic it had with all.
    TriedNarrow {
        since_ms: u64,
        wide: f64,
    },
    /// Since then; the traffic it had with all parts.
    Streams {
        since_ms: u64,
        wide: f64,
    },
    Reuses {
        since_ms: u64,
    },
}

/// What a decision leaves for the next.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct PolicyState {
    /// When work other than streaming was last there.
    last_other_ms: Option<u64>,
    pub verdict: Verdict,
}

impl PolicyState {
    /// Whether there is, or was until a moment ago, anything to be kept in the cache.
    pub fn protects(&self, options: &PolicyOptions, input: &Input) -> bool {
        input.pinned_bytes > 0
            || input.mix.sensitive + input.mix.adaptive > 0
            || self.last_other_ms.is_some_and(|last| input.now_ms.saturating_sub(last) < options.widen_after_ms)
    }
}

/// The next allocation, and the state for the one after that.
pub fn decide(options: &PolicyOptions, state: PolicyState, input: &Input) -> (PolicyState, Allocation) {
    let Parts { usable, fewest, part_bytes } = input.parts;
    let fewest = fewest.clamp(1, usable.max(1));
    let mut next = state;
    if input.mix.sensitive + input.mix.adaptive > 0 {
        next.last_other_ms = Some(input.now_ms);
    }
    let pinned = if input.pinned_bytes == 0 {
        0
    } else {
        let wanted = input.pinned_bytes as f64 * options.pinned_margin / part_bytes.max(1) as f64;
        (wanted.ceil().min(f64::from(usable)) as u32).max(fewest).min(usable - fewest)
    };
    let sensitive = usable - pinned;
    let narrow = (f64::from(sensitive) * options.streaming_share).ceil() as u32;
    let narrow = narrow.max(options.streaming_parts_min).max(fewest).min(sensitive);
    let streaming = if next.protects(options, input) { narrow } else { sensitive };
    next.verdict = judge(options, state.verdict, input, u64::from(narrow) * part_bytes);
    let adaptive = match next.verdict {
        Verdict::Unknown => (sensitive / 2).max(streaming),
        Verdict::TriedWide { .. } | Verdict::Reuses { .. } => sensitive,
        Verdict::TriedNarrow { .. } | Verdict::Streams { .. } => streaming,
    };
    (next, Allocation { streaming, adaptive, sensitive, pinned })
}

/// The next step of the trial.
fn judge(options: &PolicyOptions, verdict: Verdict, input: &Input, narrow_bytes: u64) -> Verdict {
    let now = input.now_ms;
    if input.mix.adaptive == 0 {
        // What was found holds no longer than its time, and a trial ends.
        return match verdict {
            Verdict::Streams { since_ms, .. } | Verdict::Reuses { since_ms }
                if now.saturating_sub(since_ms) < options.trial_after_ms =>
            {
                verdict
            }
            _ => Verdict::Unknown,
        };
    }
    let Some(sample) = input.adaptive else { return verdict };
    match verdict {
        Verdict::Unknown => Verdict::TriedWide { since_ms: now },
        Verdict::TriedWide { since_ms } if now.saturating_sub(since_ms) >= options.settle_ms => {
            let wide = sample.bytes_per_second;
            if (1..=narrow_bytes).contains(&sample.occupancy_bytes) {
                // It does not even fill the few parts: it loses nothing there.
                Verdict::Streams { since_ms: now, wide }
            } else {
                Verdict::TriedNarrow { since_ms: now, wide }
            }
        }
        Verdict::TriedNarrow { since_ms, wide } if now.saturating_sub(since_ms) >= options.settle_ms => {
            if sample.bytes_per_second > wide * options.reuse_factor {
                Verdict::Reuses { since_ms: now }
            } else {
                Verdict::Streams { since_ms: now, wide }
            }
        }
        Verdict::Streams { since_ms, .. } | Verdict::Reuses { since_ms }
            if now.saturating_sub(since_ms) >= options.trial_after_ms =>
        {
            Verdict::TriedWide { since_ms: now }
        }
        // A narrower mask throws nothing out: what was in the other parts goes when others need them.
        Verdict::Streams { wide, .. } if sample.bytes_per_second > wide * options.reuse_factor => {
            Verdict::Reuses { since_ms: now }
        }
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CapacityMask;
    use crate::sim::generate::{BTree, Table, interleave};
    use crate::sim::{Access, Machine, Simulator};
    use proptest::prelude::*;

    const OPTIONS: fn() -> PolicyOptions = PolicyOptions::default;

    fn input(now_ms: u64, mix: Mix) -> Input {
        let parts = Parts { usable: 20, fewest: 1, part_bytes: 512 << 10 };
        Input { now_ms, parts, mix, pinned_bytes: 0, adaptive: None }
    }

    fn mix(streaming: u32, adaptive: u32, sensitive: u32) -> Mix {
        Mix { streaming, adaptive, sensitive }
    }

    #[test]
    fn masks_follow_the_mix_and_widen_slowly() {
        let mut state = PolicyState::default();
        let mut streaming = |now, mix| {
            let (next, allocation) = decide(&OPTIONS(), state, &input(now, mix));
            state = next;
            allocation.streaming
        };
        assert_eq!(streaming(0, mix(2, 0, 0)), 20, "nobody else is there");
        assert_eq!(streaming(1, mix(2, 0, 1)), 2, "at once");
        assert_eq!(streaming(2, mix(2, 0, 0)), 2, "it may be back");
        assert_eq!(streaming(400, mix(2, 0, 1)), 2);
        assert_eq!(streaming(800, mix(2, 0, 0)), 2);
        assert_eq!(streaming(901, mix(2, 0, 0)), 20);
    }

    #[test]
    fn what_is_pinned_has_parts_of_its_own() {
        let pinned = |bytes| {
            let input = Input { pinned_bytes: bytes, ..input(0, mix(1, 1, 1)) };
            decide(&OPTIONS(), PolicyState::default(), &input).1
        };
        assert_eq!(pinned(4 << 20), Allocation { streaming: 2, adaptive: 5, sensitive: 10, pinned: 10 });
        assert_eq!(pinned(1), Allocation { streaming: 2, adaptive: 9, sensitive: 19, pinned: 1 });
        let all = pinned(u64::MAX);
        assert_eq!((all.pinned, all.sensitive, all.streaming), (19, 1, 1), "the rest of the engine has the fewest");
    }

    proptest! {
        #[test]
        fn allocations_are_always_possible(
            usable in 2_u32..=32, fewest in 0_u32..4, part_bytes in 0_u64..1 << 24, pinned_bytes in prop_oneof![Just(0), any::<u64>()],
            steps in prop::collection::vec((0_u32..3, 0_u32..3, 0_u32..3, 0_u64..2_000, any::<Option<u32>>()), 1..40),
        ) {
            prop_assume!(usable >= 2 * fewest.max(1));
            let (mut state, mut now_ms) = (PolicyState::default(), 0);
            for (streaming, adaptive, sensitive, wait, sample) in steps {
                now_ms += wait;
                let sample = sample.map(|rate| Sample { occupancy_bytes: 0, bytes_per_second: f64::from(rate) });
                let input = Input {
                    now_ms,
                    parts: Parts { usable, fewest, part_bytes },
                    mix: mix(streaming, adaptive, sensitive),
                    pinned_bytes,
                    adaptive: sample,
                };
                let (next, allocation) = decide(&OPTIONS(), state, &input);
                prop_assert_eq!(decide(&OPTIONS(), state, &input), (next, allocation));
                state = next;
                let Allocation { streaming, adaptive, sensitive, pinned } = allocation;
                prop_assert!(fewest.max(1) <= streaming && streaming <= adaptive && adaptive <= sensitive);
                prop_assert_eq!(sensitive + pinned, usable);
                prop_assert_eq!(pinned == 0, pinned_bytes == 0);
            }
        }
    }

    /// Adaptive work in the simulator: 20 parts of half a MiB, a sample after each turn.
    fn verdict_on(work: impl Fn(u64) -> Box<dyn Iterator<Item = u64>>) -> Verdict {
        let mut simulator = Simulator::new(&Machine::paper()).unwrap();
        let mut state = PolicyState::default();
        let mut adaptive = None;
        for turn in 0..8 {
            let input = Input { adaptive, ..input(turn * 100, mix(0, 1, 1)) };
            let (next, allocation) = decide(&OPTIONS(), state, &input);
            state = next;
            simulator.set_last_level_mask(1, CapacityMask::low(allocation.adaptive));
            simulator.forget();
            simulator.run(work(turn).map(|address| Access::load(address).of(1, 0)));
            // Others use the cache, too.
            simulator
                .run(Table::new(1 << 50, 6 << 20).random(200_000, turn).map(|address| Access::load(address).of(2, 1)));
            let counts = simulator.report().class(1);
            // Every access takes 20 ns of work, and 80 more if it goes to memory.
            let seconds = (20 * counts.accesses() + 80 * counts.memory) as f64 * 1e-9;
            let bytes_per_second = counts.memory as f64 * 64.0 / seconds;
            adaptive = Some(Sample { occupancy_bytes: simulator.occupancy_bytes(1), bytes_per_second });
        }
        state.verdict
    }

    #[test]
    fn adaptive_work_is_found_out() {
        let scan = verdict_on(|turn| Box::new(Table::new(turn << 32, 30 << 20).scan()));
        assert!(matches!(scan, Verdict::Streams { .. }), "{scan:?}");
        let hot = verdict_on(|turn| Box::new(Table::new(0, 5 << 20).random(300_000, turn)));
        assert!(matches!(hot, Verdict::Reuses { .. }), "{hot:?}");
        let small = verdict_on(|turn| Box::new(Table::new(0, 256 << 10).random(100_000, turn)));
        assert!(matches!(small, Verdict::Streams { .. }), "few parts are enough for it: {small:?}");
    }

    /// The masks that are decided keep an index in the cache beside a scan, and the scan is no slower for it.
    #[test]
    fn decisions_protect_and_cost_nothing() {
        let index = BTree::new(0, 400_000, 11, 4096);
        let table = Table::new(1 << 40, 40 << 20);
        let (_, allocation) = decide(&OPTIONS(), PolicyState::default(), &input(0, mix(1, 0, 1)));
        let run = |streaming: u32| {
            let mut simulator = Simulator::new(&Machine { cores: 2, ..Machine::paper() }).unwrap();
            simulator.set_last_level_mask(1, CapacityMask::low(streaming));
            simulator.run(index.walk().map(Access::load));
            simulator.forget();
            let probes = index.probes(15_000, 5).map(Access::load);
            let scan = table.scan().map(|address| Access::load(address).of(1, 1).on(1));
            simulator.run(interleave(probes, scan, (1, 1)));
            (simulator.report().object(0), simulator.report().object(1))
        };
        let ((open_index, open_scan), (index, scan)) = (run(20), run(allocation.streaming));
        assert!(open_index.last_level_miss_ratio() > 0.3, "{open_index:?}");
        assert!(index.last_level_miss_ratio() < 0.1, "{index:?}");
        assert!(scan.memory as f64 <= 1.03 * open_scan.memory as f64, "{scan:?} {open_scan:?}");
    }
}
