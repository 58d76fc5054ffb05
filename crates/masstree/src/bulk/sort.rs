//! Parallel radix sort of byte-string keys.
//!
//! Each key is encoded as a number of its varying bits (see `codec`) and packed into a record together with the key's
//! position. One parallel pass distributes the records by their highest bits into buckets that fit into a cache. Each
//! bucket is then sorted on its own: distributed once more by the next bits, with a comparison sort for records that
//! are still together. If numbers do not determine the keys, runs of equal numbers are sorted by the following bytes,
//! long runs by the same sort again. Equal keys stay in the order given, because the positions are the lowest bits of
//! the records.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::buffer::Buffer;
use super::codec::KeyCodec;
use super::parallel::{Workers, part};

/// Most bits by which records are distributed into buckets: the histograms and write positions of all buckets fit into
/// a cache.
const BUCKET_BITS_MAX: u32 = 12;
/// Intended number of records in a bucket: they fit into the second-level cache with room to spare.
const BUCKET_RECORDS: usize = 4096;
/// Runs of at least this many equal numbers are radix-sorted again, up to `DEPTH_MAX` times.
const RUN_MIN: usize = 256;
const DEPTH_MAX: usize = 32;

/// A record: a number, and in the bits below it a position and perhaps a value's word.
///
/// # Safety
/// The type is an integer of which every bit pattern is a value.
pub(crate) unsafe trait Record: Copy + Ord + Default + Send + Sync {
    const BITS: u32;
    fn pack(number: u128, low: u128, low_bits: u32) -> Self;
    fn number(self, low_bits: u32) -> u128;
    fn low(self, low_bits: u32) -> u128;
    /// `bits` bits from bit `shift` on, few enough for an index.
    fn digit(self, shift: u32, bits: u32) -> usize;
    /// Stores the record as the i-th in memory that consists of these words.
    fn store(self, words: &[AtomicU64], i: usize);
}

macro_rules! record {
    ($record:ty, |$value:ident| $words:expr) => {
        // SAFETY: an unsigned integer.
        unsafe impl Record for $record {
            const BITS: u32 = <$record>::BITS;

            #[inline]
            fn pack(number: u128, low: u128, low_bits: u32) -> Self {
                (number as $record) << low_bits | low as $record
            }

            #[inline]
            fn number(self, low_bits: u32) -> u128 {
                u128::from(self >> low_bits)
            }

            #[inline]
            fn low(self, low_bits: u32) -> u128 {
                u128::from(self & ((1 << low_bits) - 1))
            }

            #[inline]
            fn digit(self, shift: u32, bits: u32) -> usize {
                (self >> shift) as usize & ((1 << bits) - 1)
            }

            #[inline]
            fn store(self, words: &[AtomicU64], i: usize) {
                let $value = self;
                let parts = $words;
                for (to, part) in words[parts.len() * i..][..parts.len()].iter().zip(parts) {
                    to.store(part, Ordering::Relaxed);
                }
            }
        }
    };
}

record!(u64, |record| [record]);
record!(u128, |record| {
    let (low, high) = (record as u64, (record >> 64) as u64);
    if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
});

/// Sorted keys, as records of 64 or 128 bits.
pub(crate) enum Sorted {
    Short(Run<u64>),
    Long(Run<u128>),
}

/// Records in ascending order of their keys, in buckets. A record has the key's number, less the bits that are the
/// number of its bucket, the key's position, and the word of its value if there is room.
pub(crate) struct Run<R> {
    pub records: Buffer<R>,
    format: Format,
    /// Index after the last record of each bucket.
    ends: Vec<usize>,
    pub codec: KeyCodec,
}

/// The bit fields of a record, from the highest: number, position, word.
#[derive(Debug, Clone, Copy)]
struct Format {
    /// Bits of the number in the record. Higher bits of the number are the bucket.
    number_bits: u32,
    position_bits: u32,
    /// 64 if the records have the words of their values, otherwise 0.
    word_bits: u32,
}

impl Format {
    /// Number of bits below the number.
    fn low_bits(self) -> u32 {
        self.position_bits + self.word_bits
    }

    #[inline]
    fn position<R: Record>(self, record: R) -> usize {
        (record.low(self.low_bits()) >> self.word_bits) as usize
    }
}

impl<R: Record> Run<R> {
    /// The position, among the keys given, of the i-th key in ascending order.
    #[inline]
    pub fn position(&self, i: usize) -> usize {
        self.format.position(self.records[i])
    }

    /// The positions of all keys in ascending order.
    pub fn positions(&self, workers: Workers) -> Vec<usize> {
        let mut positions = vec![0; self.records.len()];
        let part_len = positions.len().div_ceil(workers.count()).max(1);
        std::thread::scope(|scope| {
            for (part, records) in positions.chunks_mut(part_len).zip(self.records.chunks(part_len)) {
                let mut copy =
                    move || part.iter_mut().zip(records).for_each(|(to, &from)| *to = self.format.position(from));
                if workers.count() == 1 { copy() } else { drop(scope.spawn(copy)) }
            }
        });
        positions
    }

    pub fn has_words(&self) -> bool {
        self.format.word_bits > 0
    }

    /// The word of the i-th key's value, if the records have words.
    #[inline]
    pub fn word(&self, i: usize) -> Option<u64> {
        self.has_words().then(|| self.records[i].low(u64::BITS) as u64)
    }

    /// The bucket of the i-th record.
    pub fn bucket(&self, i: usize) -> usize {
        self.ends.partition_point(|&end| end <= i)
    }

    pub fn bucket_end(&self, bucket: usize) -> usize {
        self.ends.get(bucket).copied().unwrap_or(self.records.len())
    }

    /// The number of the i-th key, which is in this bucket.
    #[inline]
    pub fn number(&self, i: usize, bucket: usize) -> u128 {
        (bucket as u128) << self.format.number_bits | self.records[i].number(self.format.low_bits())
    }
}

/// Sorts keys. Records include the words if words are given and fit.
pub(crate) fn sort<'k>(
    workers: Workers,
    count: usize,
    key: impl Fn(usize) -> &'k [u8] + Sync,
    words: Option<&[u64]>,
) -> Sorted {
    sort_at_depth(workers, count, &key, words, 0)
}

fn sort_at_depth<'k>(
    workers: Workers,
    count: usize,
    key: &(impl Fn(usize) -> &'k [u8] + Sync),
    words: Option<&[u64]>,
    depth: usize,
) -> Sorted {
    let position_bits = usize::BITS - count.saturating_sub(1).leading_zeros();
    // At least a thousand records for each bucket.
    let bucket_bits_max = position_bits.saturating_sub(10).min(BUCKET_BITS_MAX);
    let long_bits = u128::BITS - position_bits.max(32);
    let codec = if count == 0 {
        KeyCodec::for_keys(Workers::new(1), 0, |_| &[], long_bits)
    } else {
        KeyCodec::for_keys(workers, count, key, long_bits)
    };
    let bucket_bits = choose_bucket_bits(count, |i| codec.encode(key(i)), codec.bits, bucket_bits_max);
    let number_bits = codec.bits - bucket_bits;
    let sorting = Sorting { workers, count, key, bucket_bits, codec: &codec, depth };
    if codec.bits > u64::BITS || number_bits + position_bits > u64::BITS {
        let format = Format { number_bits, position_bits, word_bits: 0 };
        return Sorted::Long(sorting.run(|i| codec.encode(key(i)), |i| i as u128, format));
    }
    let number = |i: usize| u128::from(codec.encode_short(key(i)));
    match words {
        None => Sorted::Short(sorting.run(number, |i| i as u128, Format { number_bits, position_bits, word_bits: 0 })),
        Some(words) => {
            let low = |i: usize| (i as u128) << u64::BITS | u128::from(words[i]);
            Sorted::Long(sorting.run(number, low, Format { number_bits, position_bits, word_bits: u64::BITS }))
        }
    }
}

/// Chooses the number of highest bits that select the bucket: the smallest that divides a sample of the keys into
/// enough buckets. Not all combinations of bits occur; decimal digits, for instance, have ten of sixteen.
fn choose_bucket_bits(count: usize, number: impl Fn(usize) -> u128, bits: u32, bits_max: u32) -> u32 {
    const SAMPLE: usize = 1 << 16;
    let bits_max = bits_max.min(bits);
    let step = (count / SAMPLE).max(1);
    let mut tops: Vec<u32> = (0..count).step_by(step).map(|i| (number(i) >> (bits - bits_max)) as u32).collect();
    tops.sort_unstable();
    let enough = |kept: u32| {
        let mut buckets: Vec<u32> = tops.iter().map(|top| top >> (bits_max - kept)).collect();
        buckets.dedup();
        buckets.len() >= count / BUCKET_RECORDS
    };
    (0..bits_max).find(|&kept| enough(kept)).unwrap_or(bits_max)
}

/// The parameters of one sort.
struct Sorting<'a, F> {
    workers: Workers,
    count: usize,
    key: &'a F,
    bucket_bits: u32,
    codec: &'a KeyCodec,
    depth: usize,
}

impl<'k, F: Fn(usize) -> &'k [u8] + Sync> Sorting<'_, F> {
    fn run<R: Record>(
        &self,
        number: impl Fn(usize) -> u128 + Sync,
        low: impl Fn(usize) -> u128 + Sync,
        format: Format,
    ) -> Run<R> {
        assert!(format.number_bits + format.low_bits() <= R::BITS, "{format:?} in {} bits", R::BITS);
        let (mut records, ends) = distribute::<R>(self.workers, self.count, number, low, format, self.bucket_bits);
        // If no bits vary, the keys differ in their lengths at most, and sorting again would find nothing.
        let depth = if self.codec.bits == 0 { DEPTH_MAX } else { self.depth };
        let buckets = split_into_buckets(&mut records, &ends);
        self.workers.run_tasks(buckets.len(), |scratch, bucket| {
            let mut bucket = buckets[bucket].lock();
            sort_bucket(&mut bucket, format, scratch);
            if self.codec.exact_length.is_none() {
                resolve(&mut bucket, format, self.key, self.codec.common, depth);
            }
        });
        drop(buckets);
        Run { records, format, ends, codec: self.codec.clone() }
    }
}

/// The records of each bucket, for one task each.
fn split_into_buckets<'a, R>(records: &'a mut [R], ends: &[usize]) -> Vec<Mutex<&'a mut [R]>> {
    let (mut rest, mut start) = (records, 0);
    let split = |&end: &usize| {
        let (bucket, others) = std::mem::take(&mut rest).split_at_mut(end - start);
        (rest, start) = (others, end);
        Mutex::new(bucket)
    };
    ends.iter().map(split).collect()
}

/// Makes the records and distributes them into buckets. Returns them with the index after the last record of each
/// bucket.
fn distribute<R: Record>(
    workers: Workers,
    count: usize,
    number: impl Fn(usize) -> u128 + Sync,
    low: impl Fn(usize) -> u128 + Sync,
    format: Format,
    bucket_bits: u32,
) -> (Buffer<R>, Vec<usize>) {
    let number_bits = format.number_bits;
    let buckets = 1 << bucket_bits;
    let histograms = workers.run(|worker| {
        let mut histogram = vec![0usize; buckets];
        for i in part(count, worker, workers.count()) {
            histogram[(number(i) >> number_bits) as usize] += 1;
        }
        histogram
    });
    // Index of each worker's first record in each bucket.
    let mut starts: Vec<Vec<usize>> = histograms;
    let (mut ends, mut sum) = (Vec::with_capacity(buckets), 0);
    for bucket in 0..buckets {
        for starts in &mut starts {
            let records = starts[bucket];
            starts[bucket] = sum;
            sum += records;
        }
        ends.push(sum);
    }
    assert_eq!(sum, count, "the histograms count every record once");
    let mut records: Buffer<R> = Buffer::new(count);
    let words = records.words();
    let kept = (1u128 << number_bits) - 1;
    workers.run(|worker| {
        let mut next = starts[worker].clone();
        for i in part(count, worker, workers.count()) {
            let number = number(i);
            let at = &mut next[(number >> number_bits) as usize];
            // Workers write different records, as long as the keys are the same in both passes.
            R::pack(number & kept, low(i), format.low_bits()).store(words, *at);
            *at += 1;
        }
    });
    (records, ends)
}

/// Memory that a worker reuses for each bucket.
struct Scratch<R> {
    next: Vec<u32>,
    ordered: Vec<R>,
}

impl<R> Default for Scratch<R> {
    fn default() -> Self {
        Scratch { next: Vec::new(), ordered: Vec::new() }
    }
}

/// Sorts the records of a bucket, which fit into a cache.
fn sort_bucket<R: Record>(records: &mut [R], format: Format, scratch: &mut Scratch<R>) {
    const SMALL: usize = 64;
    let digit_bits = (usize::BITS - records.len().leading_zeros()).min(13).min(format.number_bits);
    if records.len() <= SMALL || digit_bits < 2 || records.len() > 1 << 17 {
        records.sort_unstable();
        return;
    }
    let shift = format.low_bits() + format.number_bits - digit_bits;
    let Scratch { next, ordered } = scratch;
    next.clear();
    next.resize((1 << digit_bits) + 1, 0);
    for record in records.iter() {
        next[record.digit(shift, digit_bits) + 1] += 1;
    }
    for i in 1..next.len() {
        next[i] += next[i - 1];
    }
    ordered.resize(ordered.len().max(records.len()), R::default());
    for &record in records.iter() {
        let at = &mut next[record.digit(shift, digit_bits)];
        ordered[*at as usize] = record;
        *at += 1;
    }
    // Now `next[d]` is the index after the last record of digit d.
    let mut start = 0;
    for &end in &next[..1 << digit_bits] {
        let end = end as usize;
        if end - start > 1 {
            if end - start <= 16 {
                insertion_sort(&mut ordered[start..end])
            } else {
                ordered[start..end].sort_unstable()
            }
        }
        start = end;
    }
    records.copy_from_slice(&ordered[..records.len()]);
}

#[inline]
fn insertion_sort<R: Record>(records: &mut [R]) {
    for i in 1..records.len() {
        let record = records[i];
        let mut at = i;
        while at > 0 && record < records[at - 1] {
            records[at] = records[at - 1];
            at -= 1;
        }
        records[at] = record;
    }
}

/// Sorts runs of equal numbers by their keys, the first `common` bytes of which are equal.
fn resolve<'k, R: Record>(
    records: &mut [R],
    format: Format,
    key: &impl Fn(usize) -> &'k [u8],
    common: usize,
    depth: usize,
) {
    let number = |record: &R| record.number(format.low_bits());
    let mut start = 0;
    while start < records.len() {
        let first = number(&records[start]);
        let end = start + records[start..].iter().take_while(|record| number(record) == first).count();
        let run = &mut records[start..end];
        if run.len() >= RUN_MIN && depth < DEPTH_MAX {
            resolve_long(run, format, key, depth + 1);
        } else if run.len() > 1 {
            let rest = |record: &R| {
                let position = format.position(*record);
                (&key(position)[common..], position)
            };
            run.sort_unstable_by(|a, b| rest(a).cmp(&rest(b)));
        }
        start = end;
    }
}

/// Sorts a run of equal numbers by a radix sort of the following bytes.
fn resolve_long<'k, R: Record>(run: &mut [R], format: Format, key: &impl Fn(usize) -> &'k [u8], depth: usize) {
    let keys: Vec<&[u8]> = run.iter().map(|record| key(format.position(*record))).collect();
    // A trait object, because the compiler would otherwise instantiate the sort for each level.
    let key: &(dyn Fn(usize) -> &'k [u8] + Sync) = &|i| keys[i];
    let order: Vec<usize> = match sort_at_depth(Workers::new(1), keys.len(), &key, None, depth) {
        Sorted::Short(sorted) => (0..keys.len()).map(|i| sorted.position(i)).collect(),
        Sorted::Long(sorted) => (0..keys.len()).map(|i| sorted.position(i)).collect(),
    };
    let sorted: Vec<R> = order.into_iter().map(|i| run[i]).collect();
    run.copy_from_slice(&sorted);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[Vec<u8>]) {
        for threads in [1, 3] {
            let mut expected: Vec<usize> = (0..keys.len()).collect();
            expected.sort_by(|&a, &b| keys[a].cmp(&keys[b]));
            let positions: Vec<usize> = match sort(Workers::new(threads), keys.len(), |i| &keys[i], None) {
                Sorted::Short(run) => (0..keys.len()).map(|i| run.position(i)).collect(),
                Sorted::Long(run) => (0..keys.len()).map(|i| run.position(i)).collect(),
            };
            assert_eq!(positions, expected);
        }
    }

    #[test]
    fn keys_of_all_kinds() {
        let numbers = |count: u64| (0..count).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        check(&[]);
        check(&[vec![]]);
        check(&[vec![], vec![0], vec![], vec![0, 0]]);
        check(&numbers(50_000).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>());
        check(&numbers(30_000).map(|n| (n % 100).to_be_bytes().to_vec()).collect::<Vec<_>>());
        check(&numbers(20_000).map(|n| n.to_be_bytes()[..n as usize % 9].to_vec()).collect::<Vec<_>>());
        check(&numbers(20_000).map(|n| format!("constant{n:020}{n}").into_bytes()).collect::<Vec<_>>());
        // Long common prefixes, late differences and different lengths.
        let far = |n: u64| format!("{}{}{:05}", n % 3, "x".repeat(100 + (n % 2) as usize), n % 7000).into_bytes();
        check(&numbers(20_000).map(far).collect::<Vec<_>>());
        check(&numbers(3000).map(|n| vec![0; (n % 300) as usize]).collect::<Vec<_>>());
        check(&(0..5000).map(|_| b"the same".to_vec()).collect::<Vec<_>>());
    }
}
