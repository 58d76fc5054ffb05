//! The permutation word of a border node: the number of its entries and their slots in key order.
//!
//! ```text
//! bit 63                                                    4 3      0
//! | position 14 | position 13 | … | position 1 | position 0 | count |
//! ```
//!
//! Each position is a slot number of four bits. The first `count` positions are the entries in key order; the others
//! are free slots. A writer fills a free slot and then stores a new word: readers see the complete entry or none.
//!
//! Invariants: the 15 positions hold the slots 0 … 14, each once. In a node of width w < 15 the first w positions hold
//! the slots 0 … w-1, because a new entry takes the first free position and a removed entry's slot becomes it.

/// Entries of the widest node.
pub(crate) const WIDTH: usize = 15;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permutation(pub u64);

const ONES: u64 = 0x0111_1111_1111_1111;

impl Permutation {
    /// No entries; slots in order.
    pub const EMPTY: Permutation = Permutation(0xEDCB_A987_6543_2100);

    /// The first `count` slots, in order.
    pub fn sorted(count: usize) -> Self {
        assert!(count <= WIDTH, "{count} entries in a border node");
        Permutation(Self::EMPTY.0 | count as u64)
    }

    #[inline]
    pub fn count(self) -> usize {
        (self.0 & 15) as usize
    }

    #[inline]
    pub fn slot(self, position: usize) -> usize {
        debug_assert!(position < WIDTH);
        (self.0 >> (4 * position + 4) & 15) as usize
    }

    /// Returns whether the slot holds an entry.
    #[inline]
    pub fn holds(self, slot: usize) -> bool {
        self.position(slot) < self.count()
    }

    /// The position of a slot.
    #[inline]
    pub fn position(self, slot: usize) -> usize {
        // The lowest zero nibble of the difference. The test for zero nibbles has false positives only above a true
        // one.
        let difference = (self.0 >> 4) ^ (ONES * slot as u64);
        let zero = difference.wrapping_sub(ONES) & !difference & (ONES << 3);
        zero.trailing_zeros() as usize / 4
    }

    /// The number of entries whose slots are in a set, given as a bit mask.
    #[inline]
    pub fn count_of(self, slots: u32) -> usize {
        let mut positions = self.0;
        let mut count = 0;
        for _ in 0..self.count() {
            positions >>= 4;
            count += slots >> (positions & 15) & 1;
        }
        count as usize
    }

    /// Inserts the first free slot as the entry at `position`; returns the new word and the slot.
    pub fn insert(self, position: usize) -> (Self, usize) {
        let count = self.count();
        debug_assert!(position <= count && count < WIDTH, "entry {position} inserted into {self:?}");
        let slot = self.slot(count);
        let shift = 4 * position + 4;
        let below = self.0 & ((1 << shift) - 1);
        // Positions from `position` to `count` move up by one; the slot's own nibble is dropped.
        let end = 4 * count + 8;
        let moved = self.0 & mask(end) & !mask(shift) & !(15 << (end - 4));
        let above = self.0 & !mask(end);
        let word = above | moved << 4 | (slot as u64) << shift | below;
        (Permutation(word + 1), slot)
    }

    /// Removes the entry at `position`: its slot becomes the first free one.
    pub fn remove(self, position: usize) -> Self {
        let count = self.count();
        debug_assert!(position < count, "entry {position} removed from {self:?}");
        let shift = 4 * position + 4;
        let end = 4 * count + 4;
        let slot = self.0 >> shift & 15;
        let below = self.0 & mask(shift);
        let moved = self.0 & mask(end) & !mask(shift + 4);
        let above = self.0 & !mask(end);
        Permutation((above | slot << (end - 4) | moved >> 4 | below) - 1)
    }

    /// Keeps the first `count` entries.
    pub fn truncate(self, count: usize) -> Self {
        debug_assert!(count <= self.count(), "{self:?} cut to {count} entries");
        Permutation(self.0 & !15 | count as u64)
    }

    /// The slots of the entries, in key order.
    pub fn slots(self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        (0..self.count()).map(move |position| self.slot(position))
    }
}

/// The lowest `bits` bits.
fn mask(bits: usize) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

impl std::fmt::Debug for Permutation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.slots()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(permutation: Permutation) -> Vec<usize> {
        (0..WIDTH).map(|position| permutation.slot(position)).collect()
    }

    #[test]
    fn behaves_like_a_vector_of_slots() {
        let mut random = keyaki_primitives::Random::new(7);
        let (mut word, mut entries, mut free) =
            (Permutation::EMPTY, Vec::<usize>::new(), (0..WIDTH).collect::<Vec<_>>());
        for _ in 0..20_000 {
            let choice = random.index(1 << 31);
            if choice.is_multiple_of(2) && entries.len() < WIDTH {
                let position = choice / 2 % (entries.len() + 1);
                let (next, slot) = word.insert(position);
                assert_eq!(slot, free.remove(0));
                entries.insert(position, slot);
                word = next;
            } else if !entries.is_empty() {
                let position = choice / 2 % entries.len();
                word = word.remove(position);
                free.insert(0, entries.remove(position));
            }
            assert_eq!(all(word), [entries.clone(), free.clone()].concat());
            for slot in 0..WIDTH {
                assert_eq!(word.holds(slot), entries.contains(&slot));
            }
        }
        assert_eq!(Permutation::sorted(5).truncate(2).slots().collect::<Vec<_>>(), [0, 1]);
    }
}
