//! One set-associative cache in which masks restrict allocation to ways.
//!
//! A set has an array of tags, by way, and an array of words. Both are as long as a whole number of vector registers,
//! so that searching a set and choosing a victim take few instructions without branches. The meaning of a word depends
//! on the replacement policy:
//!
//! - LRU: the set's clock at the last use of the way, then the way's number. The victim is the smallest word that the
//!   mask allows.
//! - Tree-PLRU: the first word is the tree. Bit n belongs to node n and is set if the victim is to its right.
//! - SRRIP: the re-reference prediction value (RRPV) of the way.
//!
//! Invariants: a tag is in at most one way. Words of lanes beyond the ways are never chosen, because no mask allows
//! them.

use super::{CacheOptions, Placement, Replacement, WAYS_MAX};

/// Tag of an empty way. No line has it: physical line numbers are below 2^38, which with 128 sets leaves 31 bits for
/// tags; with 64 sets (contiguous memory only) they are below 2^38 - 2^24.
const NO_LINE: u32 = u32::MAX;
/// Lanes of a vector.
const LANES: usize = 8;
/// Bits of an LRU word for the way.
const WAY_BITS: u32 = 5;
/// Maximum of a set's clock.
const CLOCK_MAX: u32 = (1 << (32 - WAY_BITS)) - 2;
/// Prediction of the victim.
const RRPV_MAX: u32 = 3;
/// Prediction of a line that was just inserted.
const RRPV_INSERT: u32 = 2;

/// A cache.
#[derive(Debug)]
pub(super) struct Cache {
    ways: usize,
    /// Length of the arrays of a set: the ways, rounded up to whole vectors.
    lanes: usize,
    set_mask: u32,
    set_bits: u32,
    placement: Placement,
    replacement: Replacement,
    /// Tags of all sets, by slot.
    tags: Vec<u32>,
    /// Words of all sets, by slot.
    words: Vec<u32>,
    /// Clock of each set; empty unless the policy is LRU.
    clocks: Vec<u32>,
}

/// The outcome of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inserted {
    /// The line's slot: set times lanes plus way.
    pub slot: usize,
    /// The evicted line, if the way was not empty.
    pub evicted: Option<u64>,
}

/// Evaluates an expression with the number of lanes as a constant.
macro_rules! with_lanes {
    ($cache:ident, $lanes:ident => $body:expr) => {
        match $cache.lanes {
            8 => {
                const $lanes: usize = 8;
                $body
            }
            16 => {
                const $lanes: usize = 16;
                $body
            }
            24 => {
                const $lanes: usize = 24;
                $body
            }
            _ => {
                const $lanes: usize = 32;
                $body
            }
        }
    };
}

impl Cache {
    /// An empty cache. The options are valid (see `CacheOptions::check`).
    pub(super) fn new(options: &CacheOptions) -> Self {
        let (sets, ways) = (options.sets() as usize, options.ways as usize);
        assert!(sets.is_power_of_two() && (1..=WAYS_MAX as usize).contains(&ways));
        let lanes = ways.next_multiple_of(LANES);
        let word = |lane: usize| match options.replacement {
            Replacement::Lru => lane as u32,
            Replacement::TreePlru => 0,
            Replacement::Srrip => RRPV_MAX,
        };
        Cache {
            ways,
            lanes,
            set_mask: sets as u32 - 1,
            set_bits: sets.trailing_zeros(),
            placement: options.placement,
            replacement: options.replacement,
            tags: vec![NO_LINE; sets * lanes],
            words: (0..lanes).map(word).cycle().take(sets * lanes).collect(),
            clocks: vec![0; if options.replacement == Replacement::Lru { sets } else { 0 }],
        }
    }

    /// The set of a line, and its tag.
    #[inline(always)]
    fn locate(&self, line: u64) -> (usize, u32) {
        let physical = self.placement.physical(line);
        ((physical as u32 & self.set_mask) as usize, (physical >> self.set_bits) as u32)
    }

    /// The line with a tag in a set.
    #[inline(always)]
    fn line(&self, set: usize, tag: u32) -> u64 {
        self.placement.line(u64::from(tag) << self.set_bits | set as u64)
    }

    /// The way of a tag in the set whose first slot is `first`.
    #[inline(always)]
    fn find<const N: usize>(&self, first: usize, tag: u32) -> Option<usize> {
        let tags: &[u32; N] = self.tags[first..].first_chunk()?;
        let found = equal_lanes(tags, tag);
        if found == 0 { None } else { Some(found.trailing_zeros() as usize) }
    }

    /// Looks a line up, and records its use. Returns its slot, if the cache contains it.
    #[inline(always)]
    pub(super) fn hit(&mut self, line: u64) -> Option<usize> {
        let (set, tag) = self.locate(line);
        let first = set * self.lanes;
        let way = with_lanes!(self, N => self.find::<N>(first, tag))?;
        self.used(set, way, 0);
        Some(first + way)
    }

    /// Records the use of a way. `rrpv`: 0 for a hit, [`RRPV_INSERT`] for an insertion.
    #[inline(always)]
    fn used(&mut self, set: usize, way: usize, rrpv: u32) {
        let first = set * self.lanes;
        match self.replacement {
            Replacement::Lru => {
                let clock = &mut self.clocks[set];
                *clock += 1;
                self.words[first + way] = *clock << WAY_BITS | way as u32;
                if *clock >= CLOCK_MAX {
                    self.restart_clock(set);
                }
            }
            Replacement::TreePlru => self.words[first] = point_away(self.words[first], way, self.ways),
            Replacement::Srrip => self.words[first + way] = rrpv,
        }
    }

    /// Renumbers the LRU words of a set from 1, in the same order.
    #[cold]
    fn restart_clock(&mut self, set: usize) {
        let words = &mut self.words[set * self.lanes..][..self.lanes];
        let mut order: Vec<usize> = (0..words.len()).collect();
        order.sort_by_key(|way| words[*way]);
        for (rank, way) in order.into_iter().enumerate() {
            words[way] = (rank as u32 + 1) << WAY_BITS | way as u32;
        }
        self.clocks[set] = self.lanes as u32;
    }

    /// Inserts a line, which the cache does not contain, into one of the ways of `mask`. `None` if the mask has no way
    /// of this cache.
    #[inline(always)]
    pub(super) fn insert(&mut self, line: u64, mask: u32) -> Option<Inserted> {
        let (set, tag) = self.locate(line);
        let first = set * self.lanes;
        let mask = (u64::from(mask) & ((1 << self.ways) - 1)) as u32;
        if mask == 0 {
            return None;
        }
        let way = match self.replacement {
            Replacement::Lru => with_lanes!(self, N => self.oldest::<N>(first, mask)),
            Replacement::TreePlru => match self.free(first, mask) {
                Some(way) => way,
                None => follow(self.words[first], mask, self.ways),
            },
            Replacement::Srrip => most_distant(&mut self.words[first..][..self.ways], mask),
        };
        let old = std::mem::replace(&mut self.tags[first + way], tag);
        self.used(set, way, RRPV_INSERT);
        Some(Inserted { slot: first + way, evicted: (old != NO_LINE).then(|| self.line(set, old)) })
    }

    /// The way with the smallest word among those of `mask`, which is not empty.
    #[inline(always)]
    fn oldest<const N: usize>(&self, first: usize, mask: u32) -> usize {
        let words: &[u32; N] = self.words[first..].first_chunk().unwrap_or(&[0; N]);
        let mut least = u32::MAX;
        for (lane, word) in words.iter().enumerate() {
            least = least.min(*word | (mask >> lane & 1).wrapping_sub(1));
        }
        (least & ((1 << WAY_BITS) - 1)) as usize
    }

    /// The first empty way of `mask`.
    fn free(&self, first: usize, mask: u32) -> Option<usize> {
        (0..self.ways).find(|way| mask >> way & 1 == 1 && self.tags[first + way] == NO_LINE)
    }

    /// Removes a line. Returns its former slot, if the cache contained it.
    #[inline(always)]
    pub(super) fn remove(&mut self, line: u64) -> Option<usize> {
        let (set, tag) = self.locate(line);
        let first = set * self.lanes;
        let way = with_lanes!(self, N => self.find::<N>(first, tag))?;
        self.tags[first + way] = NO_LINE;
        match self.replacement {
            Replacement::Lru => self.words[first + way] = way as u32,
            Replacement::TreePlru => {}
            Replacement::Srrip => self.words[first + way] = RRPV_MAX,
        }
        Some(first + way)
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.tags.len()
    }
}

/// One bit for each lane, set if the lane equals `tag`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn equal_lanes<const N: usize>(tags: &[u32; N], tag: u32) -> u32 {
    use std::arch::x86_64::{_mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_ps, _mm_set1_epi32};
    let mut found = 0;
    for (quarter, lanes) in tags.as_chunks::<4>().0.iter().enumerate() {
        // SAFETY: every x86-64 processor has SSE2. `lanes` are 16 readable bytes, and the load requires no alignment.
        let equal = unsafe {
            let lanes = _mm_loadu_si128(lanes.as_ptr().cast());
            _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(lanes, _mm_set1_epi32(tag as i32))))
        };
        found |= (equal as u32) << (4 * quarter);
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn equal_lanes<const N: usize>(tags: &[u32; N], tag: u32) -> u32 {
    tags.iter().enumerate().fold(0, |found, (lane, other)| found | u32::from(*other == tag) << lane)
}

/// The tree after a use of `way`: all nodes on the path to it point to the other side.
fn point_away(mut word: u32, way: usize, ways: usize) -> u32 {
    let (mut node, mut low, mut high) = (0, 0, ways.next_power_of_two());
    while high - low > 1 {
        let middle = low.midpoint(high);
        if way < middle {
            word |= 1 << node;
            (node, high) = (2 * node + 1, middle);
        } else {
            word &= !(1 << node);
            (node, low) = (2 * node + 2, middle);
        }
    }
    word
}

/// The way that the tree points to. Where `mask`, which is not empty, has no way on that side, the other side is taken.
fn follow(word: u32, mask: u32, ways: usize) -> usize {
    let mask = u64::from(mask);
    let within = |low: usize, high: usize| mask & ((1_u64 << high) - (1_u64 << low)) != 0;
    let (mut node, mut low, mut high) = (0, 0, ways.next_power_of_two());
    while high - low > 1 {
        let middle = low.midpoint(high);
        let right = (word >> node & 1 == 1 && within(middle, high)) || !within(low, middle);
        (node, low, high) = if right { (2 * node + 2, middle, high) } else { (2 * node + 1, low, middle) };
    }
    low
}

/// The first way of `mask`, which is not empty, with the largest prediction. All predictions of the mask grow until
/// that is the maximum.
fn most_distant(predictions: &mut [u32], mask: u32) -> usize {
    let (mut best, mut most) = (mask.trailing_zeros() as usize, 0);
    for (way, &prediction) in predictions.iter().enumerate() {
        if mask >> way & 1 == 1 && prediction > most {
            (best, most) = (way, prediction);
        }
    }
    if most < RRPV_MAX {
        for (way, prediction) in predictions.iter_mut().enumerate() {
            *prediction += (RRPV_MAX - most) * (mask >> way & 1);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cache(ways: u32, sets: u64, replacement: Replacement) -> Cache {
        let bytes = 64 * sets * u64::from(ways);
        Cache::new(&CacheOptions { bytes, ways, replacement, placement: Placement::Identity })
    }

    /// Looks a line up, and inserts it if it is missing. True: it was found, or the mask allows no insertion.
    fn touch(cache: &mut Cache, line: u64, mask: u32) -> bool {
        cache.hit(line).is_some() || cache.insert(line, mask).is_none()
    }

    /// A simple model of an LRU cache: a list of (line, way), sorted by last use.
    struct Model(Vec<(u64, u32)>);
    impl Model {
        fn touch(&mut self, line: u64, mask: u32, ways: u32) -> bool {
            if let Some(at) = self.0.iter().position(|(other, _)| *other == line) {
                let entry = self.0.remove(at);
                self.0.insert(0, entry);
                return true;
            }
            let free = (0..ways).find(|way| mask >> way & 1 == 1 && self.0.iter().all(|(_, other)| other != way));
            let way = free.or_else(|| {
                let at = self.0.iter().rposition(|(_, way)| mask >> way & 1 == 1)?;
                Some(self.0.remove(at).1)
            });
            let Some(way) = way else { return true };
            self.0.insert(0, (line, way));
            false
        }
    }

    proptest! {
        #[test]
        fn lru_agrees_with_a_list_by_last_use(ways in 1_u32..=20, accesses in prop::collection::vec((0_u64..40, any::<u32>()), 1..300)) {
            let (mut cache, mut model) = (cache(ways, 1, Replacement::Lru), Model(Vec::new()));
            for (line, mask) in accesses {
                prop_assert_eq!(touch(&mut cache, line, mask), model.touch(line, mask & ((1 << ways) - 1), ways));
            }
        }

        /// Under every policy, lines in ways outside the mask stay.
        #[test]
        fn masks_protect(
            which in 0_usize..3,
            ways in 2_u32..=20,
            split in 1_u32..19,
            accesses in prop::collection::vec(0_u64..400, 1..300),
        ) {
            let split = split.min(ways - 1);
            let policy = [Replacement::Lru, Replacement::TreePlru, Replacement::Srrip][which];
            let (mut cache, protected) = (cache(ways, 4, policy), !0 << split);
            let kept: Vec<u64> = (0..4 * u64::from(ways - split)).map(|line| 1_000 + line).collect();
            kept.iter().for_each(|line| _ = touch(&mut cache, *line, protected));
            for line in accesses {
                touch(&mut cache, line, !protected);
            }
            prop_assert!(kept.iter().all(|line| cache.hit(*line).is_some()));
        }

        #[test]
        fn lines_are_unique_and_removable(which in 0_usize..3, lines in prop::collection::vec(0_u64..64, 1..200)) {
            let policy = [Replacement::Lru, Replacement::TreePlru, Replacement::Srrip][which];
            let mut cache = cache(5, 2, policy);
            for line in lines {
                touch(&mut cache, line, u32::MAX);
                prop_assert!(cache.hit(line).is_some());
                if line % 3 == 0 {
                    prop_assert!(cache.remove(line).is_some() && cache.hit(line).is_none() && cache.remove(line).is_none());
                }
                for set in cache.tags.chunks(cache.lanes) {
                    let mut there: Vec<_> = set.iter().filter(|tag| **tag != NO_LINE).collect();
                    there.sort();
                    prop_assert!(there.windows(2).all(|pair| pair[0] != pair[1]));
                }
            }
        }
    }

    #[test]
    fn tree_plru_points_away_from_used_ways() {
        let mut cache = cache(4, 1, Replacement::TreePlru);
        (0..4).for_each(|line| _ = touch(&mut cache, line, 15));
        touch(&mut cache, 0, 15);
        // Lines 0 and 3 were used last: the root points right (2, 3), and the node there to 2.
        assert_eq!(cache.insert(9, 15).unwrap().evicted, Some(2));
    }

    #[test]
    fn srrip_keeps_reused_lines() {
        let mut cache = cache(4, 1, Replacement::Srrip);
        (0..4).for_each(|line| _ = touch(&mut cache, line, 15));
        touch(&mut cache, 1, 15);
        for line in 10..13 {
            touch(&mut cache, line, 15);
        }
        assert!(cache.hit(1).is_some(), "a short scan does not evict it");
    }

    #[test]
    fn restarted_clocks_keep_the_order() {
        let mut cache = cache(4, 1, Replacement::Lru);
        (0..4).for_each(|line| _ = touch(&mut cache, line, 15));
        touch(&mut cache, 0, 15);
        cache.restart_clock(0);
        let victims: Vec<_> = (10..14).map(|line| cache.insert(line, 15).unwrap().evicted).collect();
        assert_eq!(victims, [Some(1), Some(2), Some(3), Some(0)]);
    }
}
