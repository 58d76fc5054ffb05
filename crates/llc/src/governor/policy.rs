//! The policy: a pure function from the classes that run to the parts of the cache in which each may allocate.
//!
//! The usable parts of the last level, counted from the end that is shared with other hardware:
//!
//! ```text
//! part  0 1 2 3 4 5 6 7 8 9 …
//!       [streaming]                         10 %, at least two parts; everything while no other class runs
//!       [adaptive           ]               as streaming or as sensitive, once measured; until then half
//!       [sensitive                  ]       everything that is not pinned
//!                                   [pinned]  no class allocates here after it was filled
//! ```
//!
//! The parts of each class include those of the classes before it, so every mask is one run of bits. Masks narrow at
//! once. They widen only after the reason for narrowing has been gone for a while, so that they do not flap when the
//! mix of classes does.
//!
//! *Adaptive* work is put on trial if the hardware can monitor it: first with a wide mask, then, if it occupies more
//! than the few narrow parts, with a narrow one. If its memory traffic is higher with the narrow mask, it reuses data
//! and is treated as sensitive; otherwise it is treated as streaming. The trial is repeated periodically, because work
//! changes. (Work that only waits for memory has almost the same traffic per second when it misses more, so it is taken
//! for streaming. Announce it as sensitive if more is known.)
//!
//! Invariants: streaming <= adaptive <= sensitive, and sensitive + pinned = usable. Every class has at least the
//! minimum of parts.

use serde::Serialize;

/// The class of a piece of work, by its use of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum WorkClass {
    /// Reads far more data than the cache holds, once: large scans.
    Streaming,
    /// Unknown: measured at run time.
    Adaptive,
    /// Reuses the data that it loads: index lookups, small hot tables.
    Sensitive,
}

impl WorkClass {
    /// All classes, in the order of their masks.
    pub const ALL: [WorkClass; 3] = [WorkClass::Streaming, WorkClass::Adaptive, WorkClass::Sensitive];

    /// `"streaming"`, `"adaptive"` or `"sensitive"`.
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

/// The parts of the last level that the policy distributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Number of parts. At least twice `fewest`.
    pub usable: u32,
    /// Minimum number of parts of a mask; 0 counts as 1.
    pub fewest: u32,
    /// Bytes of a part.
    pub part_bytes: u64,
}

/// Number of workers that run work of each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Mix {
    /// Workers that run streaming work.
    pub streaming: u32,
    /// Workers that run adaptive work.
    pub adaptive: u32,
    /// Workers that run sensitive work.
    pub sensitive: u32,
}

impl Mix {
    /// The count of a class.
    pub(crate) fn of(&mut self, class: WorkClass) -> &mut u32 {
        match class {
            WorkClass::Streaming => &mut self.streaming,
            WorkClass::Adaptive => &mut self.adaptive,
            WorkClass::Sensitive => &mut self.sensitive,
        }
    }
}

/// A measurement of the adaptive class.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct AdaptiveSample {
    /// Bytes of the last level that the class occupies.
    pub occupancy_bytes: u64,
    /// Memory bandwidth: bytes per second from and to memory.
    pub bytes_per_second: f64,
}

/// The inputs of a decision, besides the state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PolicyInput {
    /// Time since an arbitrary start; only differences matter.
    pub now_ms: u64,
    /// The parts to distribute.
    pub parts: Parts,
    /// The workers by class.
    pub mix: Mix,
    /// Bytes of all pins.
    pub pinned_bytes: u64,
    /// The adaptive class since the last decision; `None` without monitoring.
    pub adaptive: Option<AdaptiveSample>,
}

/// Number of parts of each class, counted from the shared end, and of the pins, counted from the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Allocation {
    /// Parts of the streaming class.
    pub streaming: u32,
    /// Parts of the adaptive class.
    pub adaptive: u32,
    /// Parts of the sensitive class.
    pub sensitive: u32,
    /// Parts reserved for pins.
    pub pinned: u32,
}

impl Allocation {
    /// Parts of a class.
    pub fn of(&self, class: WorkClass) -> u32 {
        match class {
            WorkClass::Streaming => self.streaming,
            WorkClass::Adaptive => self.adaptive,
            WorkClass::Sensitive => self.sensitive,
        }
    }
}

/// Options of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PolicyOptions {
    /// Share of the parts for streaming work beside other classes: enough that lines survive until their only use.
    pub streaming_share: f64,
    /// Minimum number of parts for streaming work.
    pub streaming_parts_min: u32,
    /// Factor from pinned bytes to reserved bytes, because cache sets do not fill evenly.
    pub pinned_margin: f64,
    /// Time without other classes after which streaming work gets all parts.
    pub widen_after_ms: u64,
    /// Time from a change of masks to the sample that a trial uses.
    pub settle_ms: u64,
    /// Time for which the outcome of a trial is valid.
    pub trial_after_ms: u64,
    /// Ratio of memory traffic with the narrow mask to that with the wide mask above which the work counts as reusing
    /// data.
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

/// State of the trial of adaptive work.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub enum Verdict {
    /// No trial has started.
    #[default]
    Unknown,
    /// The work is on trial with a wide mask.
    TriedWide {
        /// Start of this step.
        since_ms: u64,
    },
    /// The work is on trial with a narrow mask.
    TriedNarrow {
        /// Start of this step.
        since_ms: u64,
        /// Memory traffic with the wide mask, in bytes per second.
        wide: f64,
    },
    /// The work streams.
    Streams {
        /// End of the trial.
        since_ms: u64,
        /// Memory traffic with the wide mask, in bytes per second.
        wide: f64,
    },
    /// The work reuses data.
    Reuses {
        /// End of the trial.
        since_ms: u64,
    },
}

/// State between decisions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct PolicyState {
    /// Time at which work other than streaming last ran.
    last_other_ms: Option<u64>,
    /// The trial of adaptive work.
    pub verdict: Verdict,
}

impl PolicyState {
    /// True if there is data to protect: a pin, or work other than streaming now or less than `widen_after_ms` ago.
    pub fn protects(&self, options: &PolicyOptions, input: &PolicyInput) -> bool {
        input.pinned_bytes > 0
            || input.mix.sensitive + input.mix.adaptive > 0
            || self.last_other_ms.is_some_and(|last| input.now_ms.saturating_sub(last) < options.widen_after_ms)
    }
}

/// The next allocation, and the state for the following decision.
///
/// # Panics
/// If there are fewer than twice the minimum of parts.
pub fn decide(options: &PolicyOptions, state: PolicyState, input: &PolicyInput) -> (PolicyState, Allocation) {
    let Parts { usable, fewest, part_bytes } = input.parts;
    let fewest = fewest.max(1);
    assert!(usable >= 2 * fewest, "{usable} parts for a minimum of {fewest}");
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
    next.verdict = next_verdict(options, state.verdict, input, u64::from(narrow) * part_bytes);
    let adaptive = match next.verdict {
        Verdict::Unknown => (sensitive / 2).max(streaming),
        Verdict::TriedWide { .. } | Verdict::Reuses { .. } => sensitive,
        Verdict::TriedNarrow { .. } | Verdict::Streams { .. } => streaming,
    };
    assert!(fewest <= streaming && streaming <= adaptive && adaptive <= sensitive && sensitive + pinned == usable);
    (next, Allocation { streaming, adaptive, sensitive, pinned })
}

/// The next step of the trial. `narrow_bytes`: bytes of the narrow mask.
fn next_verdict(options: &PolicyOptions, verdict: Verdict, input: &PolicyInput, narrow_bytes: u64) -> Verdict {
    let now = input.now_ms;
    if input.mix.adaptive == 0 {
        // An outcome expires after its time; a trial without work is aborted.
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
                // The work does not fill the narrow mask, so it loses nothing there.
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
        // A narrower mask evicts nothing at once: lines in the other parts leave when other classes need the space.
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

    fn input(now_ms: u64, mix: Mix) -> PolicyInput {
        let parts = Parts { usable: 20, fewest: 1, part_bytes: 512 << 10 };
        PolicyInput { now_ms, parts, mix, pinned_bytes: 0, adaptive: None }
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
        assert_eq!(streaming(0, mix(2, 0, 0)), 20, "no other class runs");
        assert_eq!(streaming(1, mix(2, 0, 1)), 2, "at once");
        assert_eq!(streaming(2, mix(2, 0, 0)), 2, "not before widen_after_ms");
        assert_eq!(streaming(400, mix(2, 0, 1)), 2);
        assert_eq!(streaming(800, mix(2, 0, 0)), 2);
        assert_eq!(streaming(901, mix(2, 0, 0)), 20);
    }

    #[test]
    fn pins_get_reserved_parts() {
        let pinned = |bytes| {
            let input = PolicyInput { pinned_bytes: bytes, ..input(0, mix(1, 1, 1)) };
            decide(&OPTIONS(), PolicyState::default(), &input).1
        };
        assert_eq!(pinned(4 << 20), Allocation { streaming: 2, adaptive: 5, sensitive: 10, pinned: 10 });
        assert_eq!(pinned(1), Allocation { streaming: 2, adaptive: 9, sensitive: 19, pinned: 1 });
        let all = pinned(u64::MAX);
        assert_eq!((all.pinned, all.sensitive, all.streaming), (19, 1, 1), "the classes keep the minimum");
    }

    proptest! {
        #[test]
        fn allocations_are_always_valid(
            usable in 2_u32..=32, fewest in 0_u32..4, part_bytes in 0_u64..1 << 24, pinned_bytes in prop_oneof![Just(0), any::<u64>()],
            steps in prop::collection::vec((0_u32..3, 0_u32..3, 0_u32..3, 0_u64..2_000, any::<Option<u32>>()), 1..40),
        ) {
            prop_assume!(usable >= 2 * fewest.max(1));
            let (mut state, mut now_ms) = (PolicyState::default(), 0);
            for (streaming, adaptive, sensitive, wait, sample) in steps {
                now_ms += wait;
                let sample = sample.map(|rate| AdaptiveSample { occupancy_bytes: 0, bytes_per_second: f64::from(rate) });
                let input = PolicyInput {
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

    /// The verdict on adaptive work in the simulator, with 20 parts of half a MiB and a sample after each turn.
    fn verdict_on(work: impl Fn(u64) -> Box<dyn Iterator<Item = u64>>) -> Verdict {
        let mut simulator = Simulator::new(&Machine::paper()).unwrap();
        let mut state = PolicyState::default();
        let mut adaptive = None;
        for turn in 0..8 {
            let input = PolicyInput { adaptive, ..input(turn * 100, mix(0, 1, 1)) };
            let (next, allocation) = decide(&OPTIONS(), state, &input);
            state = next;
            simulator.set_last_level_mask(1, CapacityMask::low(allocation.adaptive));
            simulator.forget();
            simulator.run(work(turn).map(|address| Access::load(address).of(1, 0)));
            // Other work uses the cache too.
            simulator
                .run(Table::new(1 << 50, 6 << 20).random(200_000, turn).map(|address| Access::load(address).of(2, 1)));
            let counts = simulator.report().class(1);
            // Every access takes 20 ns of work, plus 80 ns if it goes to memory.
            let seconds = (20 * counts.accesses() + 80 * counts.memory) as f64 * 1e-9;
            let bytes_per_second = counts.memory as f64 * 64.0 / seconds;
            adaptive = Some(AdaptiveSample { occupancy_bytes: simulator.occupancy_bytes(1), bytes_per_second });
        }
        state.verdict
    }

    #[test]
    fn trials_tell_scans_from_reuse() {
        let scan = verdict_on(|turn| Box::new(Table::new(turn << 32, 30 << 20).scan()));
        assert!(matches!(scan, Verdict::Streams { .. }), "{scan:?}");
        let hot = verdict_on(|turn| Box::new(Table::new(0, 5 << 20).random(300_000, turn)));
        assert!(matches!(hot, Verdict::Reuses { .. }), "{hot:?}");
        let small = verdict_on(|turn| Box::new(Table::new(0, 256 << 10).random(100_000, turn)));
        assert!(matches!(small, Verdict::Streams { .. }), "the narrow mask is enough: {small:?}");
    }

    /// The decided masks keep an index in the cache beside a scan, without slowing the scan down.
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
