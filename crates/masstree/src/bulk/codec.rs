//! Order-preserving encoding of keys as short numbers, made of the bits in which the keys of a sort differ.
//!
//! Ten decimal digits have eighty bits, of which forty vary. Bits that are equal in all keys do not affect their order.
//! The codec extracts the others, from a window that begins with the first eight bytes in which any keys differ. Whole
//! keys then often fit into a word beside their position: the sort does not read the keys again, and the build decodes
//! them from the numbers.

use super::parallel::{Workers, part};

/// Length of the window in slices of eight bytes, and in bytes.
const SLICES: usize = 4;
const WINDOW: usize = 8 * SLICES;

/// Extracts the bits of a mask to the low end of a word, and deposits them back. Both keep the order of the bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BitExtractor {
    mask: u64,
    bits: u32,
    /// The bits that move in each of six steps, which shift by 1, 2, 4 … 32 bits (Hacker's Delight, 7-4).
    moves: [u64; 6],
    /// True if the processor has fast instructions for both.
    instructions: bool,
}

/// The instructions `pext` and `pdep`, where they are fast.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod instructions {
    use std::arch::x86_64::{__cpuid, _pdep_u64, _pext_u64};

    /// AMD's processors before family 19h (Zen 3) execute the instructions slowly.
    pub fn are_fast() -> bool {
        let vendor = __cpuid(0);
        let is_amd = vendor.ebx == u32::from_le_bytes(*b"Auth");
        let version = __cpuid(1).eax;
        let family = (version >> 8 & 15) + (version >> 20 & 255);
        is_x86_feature_detected!("bmi2") && (!is_amd || family >= 0x19)
    }

    #[target_feature(enable = "bmi2")]
    pub fn extract(word: u64, mask: u64) -> u64 {
        _pext_u64(word, mask)
    }

    #[target_feature(enable = "bmi2")]
    pub fn deposit(word: u64, mask: u64) -> u64 {
        _pdep_u64(word, mask)
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod instructions {
    pub fn are_fast() -> bool {
        false
    }

    /// # Safety
    /// It is not called, because `are_fast` returns false.
    pub unsafe fn extract(word: u64, _: u64) -> u64 {
        word
    }

    /// # Safety
    /// It is not called, because `are_fast` returns false.
    pub unsafe fn deposit(word: u64, _: u64) -> u64 {
        word
    }
}

impl BitExtractor {
    pub fn new(mask: u64) -> Self {
        let mut moves = [0; 6];
        let mut rest = mask;
        // Bits with an odd number of mask zeros below them move in the first step, and so on.
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
        BitExtractor { mask, bits: mask.count_ones(), moves, instructions: instructions::are_fast() }
    }

    #[inline]
    pub fn extract(&self, word: u64) -> u64 {
        if self.instructions {
            // SAFETY: the processor has the instruction, as `new` found out.
            return unsafe { instructions::extract(word, self.mask) };
        }
        self.extract_in_steps(word)
    }

    #[inline]
    fn extract_in_steps(&self, word: u64) -> u64 {
        let mut word = word & self.mask;
        for (step, moved) in self.moves.iter().enumerate() {
            let bits = word & moved;
            word = word ^ bits | bits >> (1 << step);
        }
        word
    }

    #[inline]
    pub fn deposit(&self, word: u64) -> u64 {
        if self.instructions {
            // SAFETY: the processor has the instruction, as `new` found out.
            return unsafe { instructions::deposit(word, self.mask) };
        }
        self.deposit_in_steps(word)
    }

    #[inline]
    fn deposit_in_steps(&self, mut word: u64) -> u64 {
        for (step, moved) in self.moves.iter().enumerate().rev() {
            let bits = word << (1 << step);
            word = word & !moved | bits & moved;
        }
        word & self.mask
    }
}

/// The encoding of the keys of one sort.
#[derive(Debug, Clone)]
pub(crate) struct KeyCodec {
    /// Offset of the first encoded slice in the keys.
    offset: usize,
    /// Length of a common prefix of all keys.
    pub common: usize,
    /// The extractors of the encoded slices.
    slices: Vec<BitExtractor>,
    /// The bits of each slice that do not vary.
    fixed: Vec<u64>,
    /// Number of bits of the numbers.
    pub bits: u32,
    /// Length of the keys if all have the same length and differ in encoded bits only: numbers can be decoded.
    pub exact_length: Option<usize>,
    /// The first key, which supplies the bytes outside the encoded slices.
    template: Vec<u8>,
}

/// The differences between some keys within a window.
#[derive(Clone, Copy)]
struct Differences {
    /// The bits that vary, by slice.
    varying: [u64; SLICES],
    /// Lengths of the shortest and the longest key.
    shortest: usize,
    longest: usize,
}

impl Differences {
    /// The differences between keys and a key whose window is `first`. The window begins at `offset`.
    fn between<'k>(keys: impl Iterator<Item = &'k [u8]>, first: &[u64; SLICES], offset: usize) -> Self {
        let mut differences = Differences { varying: [0; SLICES], shortest: usize::MAX, longest: 0 };
        for key in keys {
            let words = words(key, offset);
            for i in 0..SLICES {
                differences.varying[i] |= words[i] ^ first[i];
            }
            differences.shortest = differences.shortest.min(key.len());
            differences.longest = differences.longest.max(key.len());
        }
        differences
    }

    fn union(self, other: Self) -> Self {
        Differences {
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

impl KeyCodec {
    /// Chooses the encoding for keys. Of the bits that vary, numbers have the first `bits_max`. Key 0 exists even if
    /// `count` is 0.
    pub fn for_keys<'k>(workers: Workers, count: usize, key: impl Fn(usize) -> &'k [u8] + Sync, bits_max: u32) -> Self {
        let mut offset = 0;
        let differences = loop {
            let first = words(key(0), offset);
            let differences = workers
                .run(|worker| Differences::between(part(count, worker, workers.count()).map(&key), &first, offset))
                .into_iter()
                .reduce(Differences::union)
                .unwrap_or(Differences { varying: [0; SLICES], shortest: 0, longest: 0 });
            // All keys are equal up to the end of the window: move it on.
            if differences.varying == [0; SLICES] && differences.longest > offset + WINDOW {
                offset += WINDOW;
                continue;
            }
            break differences;
        };
        let leading = differences.varying.iter().take_while(|&&mask| mask == 0).count();
        let (mut slices, mut bits, mut cut) = (Vec::new(), 0, false);
        for &mask in &differences.varying[leading..] {
            let mut kept = mask;
            while bits + kept.count_ones() > bits_max {
                kept &= kept - 1;
                cut = true;
            }
            bits += kept.count_ones();
            slices.push(BitExtractor::new(kept));
            if cut {
                break;
            }
        }
        while slices.last().is_some_and(|slice| slice.bits == 0) {
            slices.pop();
        }
        assert!(bits <= bits_max, "{bits} bits of at most {bits_max}");
        // Here `offset` is that of the window.
        let exact = !cut && differences.shortest == differences.longest && differences.longest <= offset + WINDOW;
        let exact_length = exact.then_some(differences.longest);
        let offset = offset + 8 * leading;
        let common = offset.min(differences.shortest);
        let fixed = slices.iter().enumerate().map(|(i, slice)| word_at(key(0), offset + 8 * i) & !slice.mask).collect();
        KeyCodec { offset, common, fixed, slices, bits, exact_length, template: key(0).to_vec() }
    }

    /// The number of a key.
    #[inline]
    pub fn encode(&self, key: &[u8]) -> u128 {
        if let [slice] = self.slices.as_slice() {
            return u128::from(slice.extract(word_at(key, self.offset)));
        }
        let mut number = 0;
        for (i, slice) in self.slices.iter().enumerate() {
            number = number << slice.bits | u128::from(slice.extract(word_at(key, self.offset + 8 * i)));
        }
        number
    }

    /// The number of a key, for codecs of at most 64 bits.
    #[inline]
    pub fn encode_short(&self, key: &[u8]) -> u64 {
        let mut number = 0;
        for (i, slice) in self.slices.iter().enumerate() {
            let word = slice.extract(word_at(key, self.offset + 8 * i));
            number = if slice.bits == 64 { word } else { number << slice.bits | word };
        }
        number
    }

    /// Writes the key of a number into `key`, which holds another key of the same sort or is empty. Requires
    /// [`exact_length`](Self::exact_length).
    #[inline]
    pub fn decode(&self, mut number: u128, key: &mut Vec<u8>) {
        if key.len() != self.template.len() {
            key.clone_from(&self.template);
        }
        for (i, (slice, fixed)) in self.slices.iter().zip(&self.fixed).enumerate().rev() {
            let at = self.offset + 8 * i;
            // Bits above those of the slice are ignored.
            let word = slice.deposit(number as u64) | fixed;
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
    fn extracting_and_depositing() {
        let mut random = keyaki_primitives::Random::new(1);
        let mut next = || random.next_u64();
        for round in 0..2000 {
            let mask = match round % 4 {
                0 => next(),
                1 => next() & next() & next(),
                2 => next() | next(),
                _ => [0, u64::MAX, 1, 1 << 63][round / 4 % 4],
            };
            let extractor = BitExtractor::new(mask);
            let word = next();
            // Bit by bit.
            let mut expected = 0;
            for (to, from) in (0..64).filter(|bit| mask >> bit & 1 == 1).enumerate() {
                expected |= (word >> from & 1) << to;
            }
            assert_eq!(extractor.extract(word), expected, "{mask:x}");
            assert_eq!(extractor.extract_in_steps(word), expected);
            assert_eq!(extractor.deposit(expected), word & mask);
            assert_eq!(extractor.deposit_in_steps(expected), word & mask);
            // Higher bits do not matter.
            let above = if mask.count_ones() == 64 { 0 } else { next() << mask.count_ones() };
            assert_eq!(extractor.deposit(expected | above), word & mask);
            assert_eq!(extractor.deposit_in_steps(expected | above), word & mask);
        }
    }

    #[test]
    fn numbers_sort_as_keys_and_give_them_back() {
        let keys: Vec<Vec<u8>> =
            (0..500u32).map(|i| format!("{}{:012}x", "shared".repeat(7), i * 7_919 % 500).into_bytes()).collect();
        let codec = KeyCodec::for_keys(Workers::new(2), keys.len(), |i| &keys[i], 96);
        assert_eq!(codec.exact_length, Some(keys[0].len()));
        let mut sorted = keys.clone();
        sorted.sort();
        let mut numbers: Vec<u128> = keys.iter().map(|key| codec.encode(key)).collect();
        assert!(keys.iter().all(|key| codec.bits <= 64 && codec.encode(key) == u128::from(codec.encode_short(key))));
        numbers.sort_unstable();
        let mut key = Vec::new();
        for (number, expected) in numbers.into_iter().zip(sorted) {
            codec.decode(number, &mut key);
            assert_eq!(key, expected);
        }
    }
}
