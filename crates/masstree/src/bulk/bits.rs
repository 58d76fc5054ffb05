//! What distinguishes keys from each other: the bits that vary, gathered into a short number that sorts as the keys do.
//!
//! Ten decimal digits are eighty bits, of which forty vary. Bits that are the same in all keys do not matter for their
//! order; gathering the others (from the first eight-byte slices that vary at all) often makes whole keys fit into a word
//! beside their position, so that sorting does not touch the keys again, and the keys can be made from the number.

use super::parallel::{Workers, part};

/// Slices that are looked at.
const SLICES: usize = 4;
const WINDOW: usize = 8 * SLICES;

/// Gathers the bits of a mask to the bottom of a word, and scatters them back; both keep the order of the bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gather {
    mask: u64,
    bits: u32,
    /// The moves of each of six steps, which shift by 1, 2, 4 … 32 bits (Hacker's Delight, 7-4).
    moves: [u64; 6],
    /// The processor has quick instructions for it.
    instructions: bool,
}

/// `pext` and `pdep`, where they are quick.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod instructions {
    use std::arch::x86_64::{__cpuid, _pdep_u64, _pext_u64};

    /// AMD's processors before family 19h (Zen 3) have the instructions, but slow ones.
    pub fn are_quick() -> bool {
        let vendor = __cpuid(0);
        let is_amd = vendor.ebx == u32::from_le_bytes(*b"Auth");
        let version = __cpuid(1).eax;
        let family = (version >> 8 & 15) + (version >> 20 & 255);
        is_x86_feature_detected!("bmi2") && (!is_amd || family >= 0x19)
    }

    #[target_feature(enable = "bmi2")]
    pub fn gather(word: u64, mask: u64) -> u64 {
        _pext_u64(word, mask)
    }

    #[target_feature(enable = "bmi2")]
    pub fn scatter(word: u64, mask: u64) -> u64 {
        _pdep_u64(word, mask)
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod instructions {
    pub fn are_quick() -> bool {
        false
    }

    /// # Safety
    /// Never called.
    pub unsafe fn gather(word: u64, _: u64) -> u64 {
        word
    }

    /// # Safety
    /// Never called.
    pub unsafe fn scatter(word: u64, _: u64) -> u64 {
        word
    }
}

impl Gather {
    pub fn new(mask: u64) -> Self {
        let mut moves = [0; 6];
        let mut rest = mask;
        // Bits with an odd number of zeros of the mask below them move in the first step, and so on.
        let mut zeros = !mask << 1;
        for (step, moved) in moves.iter_mut().enumerate() {
            let mut parity = zeros;
            for shift in [1, 2, 4, 8, 16, 32] {
                parity ^= parity << shift;
            }
            *moved = parity & rest;
            rest = rest ^ *moved | *moved >> (1 << step);
            zeros &= !parity;
        }
        Gather { mask, bits: mask.count_ones(), moves, instructions: instructions::are_quick() }
    }

    #[inline]
    pub fn gather(&self, word: u64) -> u64 {
        if self.instructions {
            // SAFETY: the processor has the instruction, as was asked.
            return unsafe { instructions::gather(word, self.mask) };
        }
        self.gather_in_steps(word)
    }

    #[inline]
    fn gather_in_steps(&self, word: u64) -> u64 {
        let mut word = word & self.mask;
        for (step, moved) in self.moves.iter().enumerate() {
            let bits = word & moved;
            word = word ^ bits | bits >> (1 << step);
        }
        word
    }

    #[inline]
    pub fn scatter(&self, word: u64) -> u64 {
        if self.instructions {
            // SAFETY: the processor has the instruction, as was asked.
            return unsafe { instructions::scatter(word, self.mask) };
        }
        self.scatter_in_steps(word)
    }

    #[inline]
    fn scatter_in_steps(&self, mut word: u64) -> u64 {
        for (step, moved) in self.moves.iter().enumerate().rev() {
            let bits = word << (1 << step);
            word = word & !moved | bits & moved;
        }
        word & self.mask
    }
}

/// How the keys of one sort become numbers.
#[derive(Debug, Clone)]
pub(crate) struct Digest {
    /// Offset of the first slice in the keys.
    offset: usize,
    /// Up to here all keys are the same, and none is shorter.
    pub common: usize,
    slices: Vec<Gather>,
    /// What the bits that do not vary are in each slice, if the numbers are exact.
    fixed: Vec<u64>,
    pub bits: u32,
    /// Length of all keys if they have the same length and the number tells everything about a key.
    pub exact_length: Option<usize>,
    /// The first key: what the numbers do not tell, if they are exact.
    template: Vec<u8>,
}

/// What is known of some keys.
#[derive(Clone, Copy)]
struct Survey {
    varying: [u64; SLICES],
    shortest: usize,
    longest: usize,
}

impl Survey {
    fn of<'k>(keys: impl Iterator<Item = &'k [u8]>, first: &[u64; SLICES], offset: usize) -> Self {
        let mut survey = Survey { varying: [0; SLICES], shortest: usize::MAX, longest: 0 };
        for key in keys {
            let words = words(key, offset);
            for i in 0..SLICES {
                survey.varying[i] |= words[i] ^ first[i];
            }
            survey.shortest = survey.shortest.min(key.len());
            survey.longest = survey.longest.max(key.len());
        }
        survey
    }

    fn with(self, other: Self) -> Self {
        Survey {
            varying: std::array::from_fn(|i| self.varying[i] | other.varying[i]),
            shortest: self.shortest.min(other.shortest),
            longest: self.longest.max(other.longest),
        }
    }
}

#[inline]
fn word_at(key: &[u8], offset: usize) -> u64 {
    if offset < key.len() { crate::key::slice_at(key, offset) } else { 0 }
}

#[inline]
fn words(key: &[u8], offset: usize) -> [u64; SLICES] {
    std::array::from_fn(|i| word_at(key, offset + 8 * i))
}

impl Digest {
    /// Looks at all keys (there is one). At most `bits_max` bits go into the numbers, the highest ones.
    pub fn of<'k>(workers: Workers, count: usize, key: impl Fn(usize) -> &'k [u8] + Sync, bits_max: u32) -> Self {
        let mut offset = 0;
        let survey = loop {
            let first = words(key(0), offset);
            let survey = workers
                .run(|worker| Survey::of(part(count, worker, workers.count()).map(&key), &first, offset))
                .into_iter()
                .reduce(Survey::with)
                .unwrap_or(Survey { varying: [0; SLICES], shortest: 0, longest: 0 });
            // Everything the same so far: further on.
            if survey.varying == [0; SLICES] && survey.longest > offset + WINDOW {
                offset += WINDOW;
                continue;
            }
            break survey;
        };
        let leading = survey.varying.iter().take_while(|&&mask| mask == 0).count();
        let (mut slices, mut bits, mut cut) = (Vec::new(), 0, false);
        for &mask in &survey.varying[leading..] {
            let mut kept = mask;
            while bits + kept.count_ones() > bits_max {
                kept &= kept - 1;
                cut = true;
            }
            bits += kept.count_ones();
            slices.push(Gather::new(kept));
            if cut {
                break;
            }
        }
        while slices.last().is_some_and(|slice| slice.bits == 0) {
            slices.pop();
        }
        // The window begins at `offset` still.
        let exact = !cut && survey.shortest == survey.longest && survey.longest <= offset + WINDOW;
        let exact_length = exact.then_some(survey.longest);
        let offset = offset + 8 * leading;
        let common = offset.min(survey.shortest);
        let fixed = slices.iter().enumerate().map(|(i, slice)| word_at(key(0), offset + 8 * i) & !slice.mask).collect();
        Digest { offset, common, fixed, slices, bits, exact_length, template: key(0).to_vec() }
    }

    /// The number of a key.
    #[inline]
    pub fn number(&self, key: &[u8]) -> u128 {
        if let [slice] = self.slices.as_slice() {
            return u128::from(slice.gather(word_at(key, self.offset)));
        }
        let mut number = 0;
        for (i, slice) in self.slices.iter().enumerate() {
            number = number << slice.bits | u128::from(slice.gather(word_at(key, self.offset + 8 * i)));
        }
        number
    }

    /// The number of a key, if it has at most 64 bits.
    #[inline]
    pub fn short_number(&self, key: &[u8]) -> u64 {
        let mut number = 0;
        for (i, slice) in self.slices.iter().enumerate() {
            let word = slice.gather(word_at(key, self.offset + 8 * i));
            number = if slice.bits == 64 { word } else { number << slice.bits | word };
        }
        number
    }

    /// Writes the key of an exact number into `key`, which holds another key of the same sort (or is empty).
    #[inline]
    pub fn key_of(&self, mut number: u128, key: &mut Vec<u8>) {
        if key.len() != self.template.len() {
            key.clone_from(&self.template);
        }
        for (i, (slice, fixed)) in self.slices.iter().zip(&self.fixed).enumerate().rev() {
            let at = self.offset + 8 * i;
            // Bits above those of the slice are not scattered.
            let word = slice.scatter(number as u64) | fixed;
            number = number.checked_shr(slice.bits).unwrap_or(0);
            if let Some(eight) = key[at..].first_chunk_mut::<8>() {
                *eight = word.to_be_bytes();
            } else {
                let end = key.len() - at;
                key[at..].copy_from_slice(&word.to_be_bytes()[..end]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathering_and_scattering() {
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random ^ random >> 31
        };
        for round in 0..2000 {
            let mask = match round % 4 {
                0 => next(),
                1 => next() & next() & next(),
                2 => next() | next(),
                _ => [0, u64::MAX, 1, 1 << 63][round / 4 % 4],
            };
            let gather = Gather::new(mask);
            let word = next();
            // Bit by bit.
            let mut expected = 0;
            for (to, from) in (0..64).filter(|bit| mask >> bit & 1 == 1).enumerate() {
                expected |= (word >> from & 1) << to;
            }
            assert_eq!(gather.gather(word), expected, "{mask:x}");
            assert_eq!(gather.gather_in_steps(word), expected);
            assert_eq!(gather.scatter(expected), word & mask);
            assert_eq!(gather.scatter_in_steps(expected), word & mask);
            // What is above does not matter.
            let above = if mask.count_ones() == 64 { 0 } else { next() << mask.count_ones() };
            assert_eq!(gather.scatter(expected | above), word & mask);
            assert_eq!(gather.scatter_in_steps(expected | above), word & mask);
        }
    }

    #[test]
    fn numbers_sort_as_keys_and_give_them_back() {
        let keys: Vec<Vec<u8>> =
            (0..500u32).map(|i| format!("{}{:012}x", "shared".repeat(7), i * 7_919 % 500).into_bytes()).collect();
        let digest = Digest::of(Workers::new(2), keys.len(), |i| &keys[i], 96);
        assert_eq!(digest.exact_length, Some(keys[0].len()));
        let mut sorted = keys.clone();
        sorted.sort();
        let mut numbers: Vec<u128> = keys.iter().map(|key| digest.number(key)).collect();
        assert!(keys.iter().all(|key| digest.bits <= 64 && digest.number(key) == u128::from(digest.short_number(key))));
        numbers.sort_unstable();
        let mut key = Vec::new();
        for (number, expected) in numbers.into_iter().zip(sorted) {
            digest.key_of(number, &mut key);
            assert_eq!(key, expected);
        }
    }
}
