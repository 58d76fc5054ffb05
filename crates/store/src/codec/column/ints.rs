//! Encodings of integer sequences with random access. Most columns of a page are based on them.
//!
//! | scheme | bytes after the scheme's own | value `i` |
//! |---|---|---|
//! | 0 constant | base | base |
//! | 1 packed | width, base, packed bits | base + bits\[i\] (frame of reference) |
//! | 2 linear | width, shift, base, slope, packed bits | base + (slope · i >> shift) + bits\[i\] |
//! | 3 dictionary | code width, table width, table length, base, packed table, packed codes | base + table\[codes\[i\]\] |
//!
//! Widths and shift are one byte each, base and slope zigzag varints, the table length a varint. All arithmetic wraps
//! at 64 bits, so that damaged input cannot overflow. Codes beyond the end of the table denote its last entry.

use std::hint::select_unpredictable;
use std::ops::Range;

use crate::codec::bits;
use crate::codec::bits::{pack, packed_len, width_of};
use crate::codec::varint::{Reader, put_varint, varint_len, zigzag};

const CONSTANT: u8 = 0;
const PACKED: u8 = 1;
const LINEAR: u8 = 2;
const DICTIONARY: u8 = 3;

/// Maximum number of entries of a dictionary.
const TABLE_MAX: usize = 1024;
/// Number of values unpacked at a time.
const BLOCK: usize = 128;
/// Up to this number, values are decoded one by one instead of in blocks.
const FEW: usize = 12;
const SLOPE_SHIFT_MAX: u32 = 20;

/// The layout of a sequence. Offsets count from the start of the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ints {
    scheme: Scheme,
    base: i64,
    data: u32,
    width: u8,
}

#[derive(Debug, Clone, Copy)]
enum Scheme {
    Constant,
    Packed,
    Linear { slope: i64, shift: u8 },
    Dictionary { table: u32, len: u32, width: u8 },
}

#[inline]
fn line(slope: i64, shift: u8, i: usize) -> i64 {
    slope.wrapping_mul(i as i64) >> shift
}

impl Ints {
    pub(crate) const ZERO: Ints = Ints { scheme: Scheme::Constant, base: 0, data: 0, width: 0 };

    /// Parses the layout of a sequence of `count` integers; `None` if it is invalid or exceeds the remaining bytes.
    pub(crate) fn parse(reader: &mut Reader<'_>, count: usize) -> Option<Ints> {
        let scheme = reader.u8()?;
        if scheme == CONSTANT {
            return Some(Ints { base: reader.signed()?, ..Ints::ZERO });
        }
        let width = read_width(reader)?;
        let (scheme, base) = match scheme {
            PACKED => (Scheme::Packed, reader.signed()?),
            LINEAR => {
                let shift = reader.u8().filter(|&shift| shift < 64)?;
                let base = reader.signed()?;
                (Scheme::Linear { slope: reader.signed()?, shift }, base)
            }
            DICTIONARY => {
                let table_width = read_width(reader)?;
                let len = reader.len().filter(|&len| 0 < len && len <= TABLE_MAX)?;
                let base = reader.signed()?;
                let table = reader.skip(packed_len(len, table_width.into()))?;
                (Scheme::Dictionary { table: table as u32, len: len as u32, width: table_width }, base)
            }
            _ => return None,
        };
        let data = reader.skip(packed_len(count, width.into()))?;
        Some(Ints { scheme, base, data: data as u32, width })
    }

    #[inline]
    fn bits(&self, bytes: &[u8], i: usize) -> u64 {
        bits::get(bytes, self.data as usize, self.width.into(), i)
    }

    #[inline]
    pub(crate) fn get(&self, bytes: &[u8], i: usize) -> i64 {
        match self.scheme {
            Scheme::Constant => self.base,
            Scheme::Packed => self.base.wrapping_add(self.bits(bytes, i) as i64),
            Scheme::Linear { slope, shift } => {
                self.base.wrapping_add(line(slope, shift, i)).wrapping_add(self.bits(bytes, i) as i64)
            }
            Scheme::Dictionary { table, len, width } => {
                let code = self.bits(bytes, i).min(u64::from(len) - 1) as usize;
                self.base.wrapping_add(bits::get(bytes, table as usize, width.into(), code) as i64)
            }
        }
    }

    /// The part of `rows` whose values are neither below nor above the target; see [`equal_range`].
    #[inline]
    pub(crate) fn equal_range(
        &self,
        bytes: &[u8],
        rows: Range<usize>,
        below: impl Fn(i64) -> bool,
        above: impl Fn(i64) -> bool,
    ) -> Range<usize> {
        match self.scheme {
            Scheme::Packed => {
                let get = |i| self.base.wrapping_add(self.bits(bytes, i) as i64);
                equal_range(rows, get, below, above)
            }
            Scheme::Linear { slope, shift } => {
                let get = |i| line(slope, shift, i).wrapping_add(self.bits(bytes, i) as i64).wrapping_add(self.base);
                equal_range(rows, get, below, above)
            }
            _ => equal_range(rows, |i| self.get(bytes, i), below, above),
        }
    }

    /// The offset of the packed values if they form a bitmap: width 1, base 0.
    pub(crate) fn as_bitmap(&self) -> Option<usize> {
        (matches!(self.scheme, Scheme::Packed) && self.base == 0 && self.width == 1).then_some(self.data as usize)
    }

    /// Calls `take` with the values of `rows`, a block at a time.
    #[inline]
    pub(crate) fn blocks(&self, bytes: &[u8], rows: Range<usize>, mut take: impl FnMut(&[i64])) {
        if rows.len() <= FEW {
            let mut values = [0; FEW];
            for (value, row) in values.iter_mut().zip(rows.clone()) {
                *value = self.get(bytes, row);
            }
            return take(&values[..rows.len()]);
        }
        let mut raw = [0u64; BLOCK];
        let mut values = [self.base; BLOCK];
        let mut first = rows.start;
        while first < rows.end {
            let count = (rows.end - first).min(BLOCK);
            let (raw, values) = (&mut raw[..count], &mut values[..count]);
            if !matches!(self.scheme, Scheme::Constant) {
                bits::unpack(bytes, self.data as usize, self.width.into(), first, raw);
            }
            match self.scheme {
                Scheme::Constant => (),
                Scheme::Packed => {
                    for (value, &raw) in values.iter_mut().zip(raw.iter()) {
                        *value = self.base.wrapping_add(raw as i64);
                    }
                }
                Scheme::Linear { slope, shift } => {
                    let mut product = slope.wrapping_mul(first as i64);
                    for (value, &raw) in values.iter_mut().zip(raw.iter()) {
                        *value = self.base.wrapping_add(product >> shift).wrapping_add(raw as i64);
                        product = product.wrapping_add(slope);
                    }
                }
                Scheme::Dictionary { table, len, width } => {
                    for (value, &raw) in values.iter_mut().zip(raw.iter()) {
                        let code = raw.min(u64::from(len) - 1) as usize;
                        *value = self.base.wrapping_add(bits::get(bytes, table as usize, width.into(), code) as i64);
                    }
                }
            }
            take(values);
            first += count;
        }
    }
}

fn read_width(reader: &mut Reader<'_>) -> Option<u8> {
    reader.u8().filter(|&width| width <= 64)
}

/// The first of `rows` that is not `below`, by binary search. The search does not branch on the values, because such
/// branches would be mispredicted half the time.
#[inline]
pub(crate) fn partition_point(rows: Range<usize>, below: impl Fn(usize) -> bool) -> usize {
    let (mut first, mut len) = (rows.start, rows.end.saturating_sub(rows.start));
    if len == 0 {
        return first;
    }
    while len > 1 {
        let half = len / 2;
        first = select_unpredictable(below(first + half - 1), first + half, first);
        len -= half;
    }
    first + usize::from(below(first))
}

/// The part of `rows` whose values, returned by `get`, are neither below nor above the target. If there are none, the
/// result is empty and starts at the insertion point. The values must be sorted; otherwise the result is an arbitrary
/// part of `rows`. The end is found by galloping, which is fast for short results.
#[inline]
pub(crate) fn equal_range<T>(
    rows: Range<usize>,
    get: impl Fn(usize) -> T,
    below: impl Fn(T) -> bool,
    above: impl Fn(T) -> bool,
) -> Range<usize> {
    let first = partition_point(rows.clone(), |i| below(get(i)));
    // Invariant: rows before `end` are not above.
    let (mut end, mut step) = (first, 1);
    while end + step <= rows.end && !above(get(end + step - 1)) {
        end += step;
        step *= 2;
    }
    first..partition_point(end..(end + step - 1).min(rows.end), |i| !above(get(i)))
}

/// Encodes integer sequences. [`plan`](Self::plan) chooses an encoding and returns its length, [`write`](Self::write)
/// writes it. The buffers are reused from sequence to sequence.
#[derive(Debug, Default)]
pub(crate) struct IntsEncoder {
    /// The sequence, filled by the caller before [`plan`](Self::plan).
    pub values: Vec<i64>,
    plan: Plan,
    table: Vec<i64>,
    codes: Vec<u16>,
    slots: Vec<u16>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Plan {
    #[default]
    Constant,
    Packed {
        base: i64,
        width: u32,
    },
    Linear {
        base: i64,
        width: u32,
        slope: i64,
        shift: u8,
    },
    Dictionary {
        base: i64,
        width: u32,
        table_width: u32,
    },
}

impl IntsEncoder {
    /// Chooses the encoding and returns its length in bytes.
    pub(crate) fn plan(&mut self) -> usize {
        let values = &self.values[..];
        let (Some(&first), Some(&last)) = (values.first(), values.last()) else {
            self.plan = Plan::Constant;
            return self.encoded_len();
        };
        let (mut min, mut max) = (first, first);
        for &value in values {
            min = min.min(value);
            max = max.max(value);
        }
        let width = width_of(max.wrapping_sub(min) as u64);
        self.plan = Plan::Packed { base: min, width };
        if width == 0 {
            self.plan = Plan::Constant;
        } else if let Some(linear) = (first == min && last == max).then(|| fit_line(values)).flatten() {
            self.plan_if_shorter(linear);
        }
        if matches!(self.plan, Plan::Packed { .. }) && width > 4 && self.build_table() {
            let min = self.table.iter().copied().min().unwrap_or(0);
            let width = width_of(self.table.len() as u64 - 1);
            let max = self.table.iter().copied().max().unwrap_or(0);
            self.plan_if_shorter(Plan::Dictionary {
                base: min,
                width,
                table_width: width_of(max.wrapping_sub(min) as u64),
            });
        }
        self.encoded_len()
    }

    fn plan_if_shorter(&mut self, plan: Plan) {
        let (old, old_len) = (self.plan, self.encoded_len());
        self.plan = plan;
        if self.encoded_len() >= old_len {
            self.plan = old;
        }
    }

    fn encoded_len(&self) -> usize {
        let count = self.values.len();
        let signed_len = |value: i64| varint_len(zigzag(value));
        match self.plan {
            Plan::Constant => 1 + signed_len(self.values.first().copied().unwrap_or(0)),
            Plan::Packed { base, width } => 2 + signed_len(base) + packed_len(count, width),
            Plan::Linear { base, width, slope, .. } => {
                3 + signed_len(base) + signed_len(slope) + packed_len(count, width)
            }
            Plan::Dictionary { base, width, table_width } => {
                let table_len = varint_len(self.table.len() as u64) + packed_len(self.table.len(), table_width);
                3 + signed_len(base) + table_len + packed_len(count, width)
            }
        }
    }

    /// Fills `table` and `codes`. Returns false if there are too many distinct values.
    fn build_table(&mut self) -> bool {
        let values = &self.values[..];
        let limit = (values.len() / 4).min(TABLE_MAX);
        // A sample of 32 values, more than three quarters of them distinct, rejects most columns that do not repeat
        // values.
        let step = (values.len() / 32).max(1);
        let mut sample = [0; 32];
        let mut sampled = 0;
        for (slot, &value) in sample.iter_mut().zip(values.iter().step_by(step)) {
            *slot = value;
            sampled += 1;
        }
        let sample = &mut sample[..sampled];
        sample.sort_unstable();
        let distinct = sample.chunk_by(|a, b| a == b).count();
        if limit < 2 || distinct * 4 > sampled * 3 {
            return false;
        }
        let slots = (limit * 4).next_power_of_two();
        self.slots.clear();
        self.slots.resize(slots, u16::MAX);
        self.table.clear();
        self.codes.clear();
        for &value in values {
            let hash = (value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let mut slot = hash as usize & (slots - 1);
            let code = loop {
                match self.slots[slot] {
                    u16::MAX if self.table.len() == limit => return false,
                    u16::MAX => {
                        self.slots[slot] = self.table.len() as u16;
                        self.table.push(value);
                        break self.slots[slot];
                    }
                    code if self.table[code as usize] == value => break code,
                    _ => slot = (slot + 1) & (slots - 1),
                }
            };
            self.codes.push(code);
        }
        true
    }

    /// Appends the planned encoding.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let values = self.values.iter();
        match self.plan {
            Plan::Constant => {
                out.push(CONSTANT);
                put_varint(zigzag(self.values.first().copied().unwrap_or(0)), out);
            }
            Plan::Packed { base, width } => {
                out.extend_from_slice(&[PACKED, width as u8]);
                put_varint(zigzag(base), out);
                pack(values.map(|value| value.wrapping_sub(base) as u64), width, out);
            }
            Plan::Linear { base, width, slope, shift } => {
                out.extend_from_slice(&[LINEAR, width as u8, shift]);
                put_varint(zigzag(base), out);
                put_varint(zigzag(slope), out);
                let above = |(i, value): (usize, &i64)| value.wrapping_sub(line(slope, shift, i)).wrapping_sub(base);
                pack(values.enumerate().map(|v| above(v) as u64), width, out);
            }
            Plan::Dictionary { base, width, table_width } => {
                out.extend_from_slice(&[DICTIONARY, width as u8, table_width as u8]);
                put_varint(self.table.len() as u64, out);
                put_varint(zigzag(base), out);
                pack(self.table.iter().map(|value| value.wrapping_sub(base) as u64), table_width, out);
                pack(self.codes.iter().map(|&code| u64::from(code)), width, out);
            }
        }
    }
}

/// The line from the first value to the last, lowered by the smallest residual. `None` for fewer than four values, and
/// if the line descends or its rise exceeds 63 bits.
fn fit_line(values: &[i64]) -> Option<Plan> {
    let (&first, &last) = (values.first()?, values.last()?);
    let rise = last.checked_sub(first)?;
    if values.len() < 4 || rise < 0 {
        return None;
    }
    let shift = (62u32.saturating_sub(width_of(rise as u64))).min(SLOPE_SHIFT_MAX);
    let slope = (rise << shift) / (values.len() as i64 - 1);
    let shift = shift as u8;
    let (mut min, mut max) = (i64::MAX, i64::MIN);
    let mut product = 0i64;
    for value in values {
        let residual = value.wrapping_sub(product >> shift);
        product = product.wrapping_add(slope);
        min = min.min(residual);
        max = max.max(residual);
    }
    Some(Plan::Linear { base: min, width: width_of(max.wrapping_sub(min) as u64), slope, shift })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sequences() -> impl Strategy<Value = Vec<i64>> {
        let wide = prop::collection::vec(any::<i64>(), 0..300);
        let narrow = (any::<i64>(), 0u32..63).prop_flat_map(|(base, bits)| {
            prop::collection::vec(0..1i64 << bits, 0..300)
                .prop_map(move |values| values.iter().map(|value| base.wrapping_add(*value)).collect())
        });
        let linear = (any::<i64>(), 0u32..60, 1i64..50).prop_flat_map(|(base, bits, jitter)| {
            prop::collection::vec(0..jitter, 0..300).prop_map(move |jitters| {
                let step = 1i64 << bits;
                let value =
                    |(i, jitter): (usize, &i64)| base.wrapping_add(step.wrapping_mul(i as i64)).wrapping_add(*jitter);
                jitters.iter().enumerate().map(value).collect()
            })
        });
        let repetitive = prop::collection::vec(any::<i64>(), 1..20)
            .prop_flat_map(|table| prop::collection::vec(prop::sample::select(table), 0..300));
        let sorted = prop::collection::vec(any::<i64>(), 0..300).prop_map(|mut values: Vec<i64>| {
            values.sort_unstable();
            values
        });
        prop_oneof![wide, narrow, linear, repetitive, sorted]
    }

    proptest! {
        #[test]
        fn sequences_round_trip(values in sequences(), first in 0usize..300) {
            let mut encoder = IntsEncoder { values: values.clone(), ..IntsEncoder::default() };
            let planned = encoder.plan();
            let mut bytes = Vec::new();
            encoder.write(&mut bytes);
            prop_assert_eq!(planned, bytes.len());
            let end = bytes.len();
            bytes.extend([0xee; bits::SLACK]);
            let mut reader = Reader { bytes: &bytes, at: 0, end };
            let ints = Ints::parse(&mut reader, values.len()).unwrap();
            prop_assert_eq!(reader.at, end);
            for (i, &value) in values.iter().enumerate() {
                prop_assert_eq!(ints.get(&bytes, i), value);
            }
            let first = first.min(values.len());
            let mut decoded = Vec::new();
            ints.blocks(&bytes, first..values.len(), |block| decoded.extend_from_slice(block));
            prop_assert_eq!(&decoded[..], &values[first..]);
            if let (true, Some(&wanted)) = (values.is_sorted(), values.get(first)) {
                let found = ints.equal_range(&bytes, 0..values.len(), |v| v < wanted, |v| v > wanted);
                let expected = values.partition_point(|&v| v < wanted)..values.partition_point(|&v| v <= wanted);
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn regular_sequences_are_short() {
        let len = |values: Vec<i64>| IntsEncoder { values, ..IntsEncoder::default() }.plan();
        assert!(len(vec![7; 1000]) < 4);
        assert!(len((0..1000).map(|i| 5_000_000 + i * 37).collect()) < 20);
        assert!(len((0..1000).map(|i| [i64::MIN, 0, i64::MAX][i % 3]).collect()) < 300);
        assert!(len((0..1000).map(|i| i * 7919 % 1024).collect()) < 1270);
    }
}
