//! Text and bytes columns, with random access to each value.
//!
//! ```text
//! flags       1: values are codes into a dictionary; 2: the heap is compressed with LZ4; 4: with Zstandard; 8, beside 4:
//!             with the dictionary of the column that the node table has
//! prefix      varint length, bytes: the common prefix of all values
//! dictionary  (flag 1) varint number of entries, code width (1 byte), packed codes
//! ends        integers: the end of each entry in the heap (of each value, without a dictionary)
//! heap        varint length, (flags 2, 4) varint stored length, bytes: entries without the prefix, concatenated
//! ```
//!
//! Opening a page checks all ends. It does not check the codes, because accessors clamp them. Text is checked to be
//! valid UTF-8 before it is returned: the prefix and uncompressed heaps when the page is opened, compressed heaps on
//! first use. A compressed heap that is damaged in a page with a correct checksum counts as empty, and
//! [`BytesColumn::decompress`] returns false for it.
//!
//! The values of a column of lists are encoded lists ([`lists`]), which are checked as text is. They have neither a
//! dictionary nor a prefix.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64;

use super::ints::{Ints, IntsEncoder};
use crate::base::{ColumnType, Compression};
use crate::codec::bits;
use crate::codec::bits::{pack, packed_len, width_of};
use crate::codec::dictionary::{Dictionary, DictionaryPlace};
use crate::codec::heap::{COMPRESS_RATIO_MAX, HeapEncoder, HeapMethod};
use crate::codec::lists;
use crate::codec::varint::{Reader, put_varint, varint_len};

const DICTIONARY: u8 = 1;
const LZ4: u8 = 2;
const ZSTD: u8 = 4;
const TRAINED: u8 = 8;

/// Maximum number of entries of a dictionary.
const ENTRIES_MAX: usize = 2048;
/// Maximum length in bytes of heap and prefix together, the limit of Arrow's views.
const VALUES_BYTES_MAX: usize = i32::MAX as usize;

/// The layout of a text or bytes column. Offsets count from the start of the page.
#[derive(Debug)]
pub(crate) struct BytesColumn {
    prefix: u32,
    prefix_len: u32,
    codes: Option<Codes>,
    ends: Ints,
    heap: u32,
    heap_len: u32,
    compressed: Option<Box<Compressed>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Codes {
    data: u32,
    width: u8,
    pub entries: u32,
}

#[derive(Debug)]
struct Compressed {
    method: HeapMethod,
    len: u32,
    ty: ColumnType,
    /// The decompressed heap, set on first use.
    plain: OnceLock<Box<[u8]>>,
    /// Where the bytes of `plain` are counted.
    counter: Option<Arc<AtomicUsize>>,
}

impl Drop for Compressed {
    fn drop(&mut self) {
        if let (Some(counter), Some(plain)) = (&self.counter, self.plain.get()) {
            let counted = counter.fetch_sub(plain.len(), Ordering::Relaxed);
            assert!(counted >= plain.len(), "{} bytes of a heap were not counted", plain.len());
        }
    }
}

impl BytesColumn {
    /// Parses and checks the layout of a column of `count` values; `None` if it is invalid. Values of
    /// type `ty`, which are text, bytes or lists, must be sound. `dictionary` is the place of that which the heap may be
    /// compressed with.
    pub(crate) fn parse(
        reader: &mut Reader<'_>,
        count: usize,
        ty: ColumnType,
        dictionary: Option<DictionaryPlace<'_>>,
    ) -> Option<BytesColumn> {
        let flags = reader.u8()?;
        let method = match flags & !DICTIONARY {
            0 => None,
            LZ4 => Some(HeapMethod::Lz4),
            ZSTD => Some(HeapMethod::Zstd(None)),
            flags if flags == ZSTD | TRAINED => Some(HeapMethod::Zstd(Some(dictionary?.get()?))),
            _ => return None,
        };
        let prefix_len = reader.len()?;
        let prefix = reader.skip(prefix_len)?;
        let mut codes = None;
        if flags & DICTIONARY != 0 {
            let entries = reader.len().filter(|&entries| 0 < entries && entries <= ENTRIES_MAX)? as u32;
            let width = reader.u8().filter(|&width| width <= 64)?;
            let data = reader.skip(packed_len(count, width.into()))? as u32;
            codes = Some(Codes { data, width, entries });
        }
        let entries = codes.map_or(count, |codes| codes.entries as usize);
        let ends = Ints::parse(reader, entries)?;
        let heap_len = reader.len()?;
        let mut compressed = None;
        let heap = if let Some(method) = method {
            let len = reader.len()?;
            let heap = reader.skip(len)?;
            if heap_len > len.checked_mul(COMPRESS_RATIO_MAX)? {
                return None;
            }
            let (len, plain) = (len as u32, OnceLock::new());
            compressed = Some(Box::new(Compressed { method, len, ty, plain, counter: None }));
            heap
        } else {
            reader.skip(heap_len)?
        };
        if heap_len.checked_add(prefix_len)? > VALUES_BYTES_MAX {
            return None;
        }
        let heap_len = u32::try_from(heap_len).ok()?;
        let (prefix, prefix_len, heap) = (prefix as u32, prefix_len as u32, heap as u32);
        let column = BytesColumn { prefix, prefix_len, codes, ends, heap, heap_len, compressed };
        if !column.ends_ascend(reader.bytes, entries) {
            return None;
        }
        match ty {
            ColumnType::Text => _ = std::str::from_utf8(column.prefix(reader.bytes)).ok()?,
            ColumnType::List(_) if flags & DICTIONARY != 0 || prefix_len != 0 => return None,
            _ => (),
        }
        let raw = column.compressed.is_none();
        if raw && !column.is_sound(reader.bytes, ty, column.raw_heap(reader.bytes), entries) {
            return None;
        }
        Some(column)
    }

    /// Returns true if the ends ascend and the last one lies within the heap. Otherwise random access and sequential
    /// decoding could return different values.
    fn ends_ascend(&self, bytes: &[u8], entries: usize) -> bool {
        let (mut ascend, mut last) = (true, 0);
        self.ends.blocks(bytes, 0..entries, |ends| {
            for &end in ends {
                ascend &= last <= end;
                last = end;
            }
        });
        ascend && last <= i64::from(self.heap_len)
    }

    /// Bytes of memory that the column takes beside the page, without a decompressed heap.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.compressed.as_ref().map_or(0, |compressed| size_of_val(&**compressed))
    }

    /// Length of the heap in bytes once it is decompressed; 0 if it is stored uncompressed.
    pub(crate) fn decompressed_len(&self) -> usize {
        if self.compressed.is_some() { self.heap_len as usize } else { 0 }
    }

    /// Counts the bytes of the decompressed heap in `counter`, as long as it exists.
    pub(crate) fn count_heap(&mut self, counter: &Arc<AtomicUsize>) {
        let Some(compressed) = &mut self.compressed else { return };
        assert!(compressed.plain.get().is_none() && compressed.counter.is_none(), "the heap is in use or counted");
        compressed.counter = Some(counter.clone());
    }

    pub(crate) fn prefix<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.prefix as usize;
        bytes.get(start..start + self.prefix_len as usize).unwrap_or_default()
    }

    fn raw_heap<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.heap as usize;
        bytes.get(start..start + self.heap_len as usize).unwrap_or_default()
    }

    /// The entries without their prefix, concatenated. Decompresses the heap on first use. `entries` is the number of
    /// entries.
    pub(crate) fn heap<'a>(&'a self, bytes: &'a [u8], entries: usize) -> &'a [u8] {
        let Some(compressed) = &self.compressed else { return self.raw_heap(bytes) };
        compressed.plain.get_or_init(|| {
            let start = self.heap as usize;
            let stored = bytes.get(start..start + compressed.len as usize).unwrap_or_default();
            let mut plain = vec![0; self.heap_len as usize];
            let sound = compressed.method.decompress(stored, &mut plain);
            if !sound || !self.is_sound(bytes, compressed.ty, &plain, entries) {
                plain.clear();
            }
            if let Some(counter) = &compressed.counter {
                counter.fetch_add(plain.len(), Ordering::Relaxed);
            }
            plain.into()
        })
    }

    /// The decompressed heap, empty if it is stored uncompressed or was not used yet.
    pub(crate) fn plain(&self) -> &[u8] {
        self.compressed.as_ref().and_then(|compressed| compressed.plain.get()).map_or(&[], |plain| plain)
    }

    /// Decompresses the heap unless it is stored uncompressed or was decompressed before. Returns false if it is
    /// damaged. `rows` is the number of rows of the page.
    pub(crate) fn decompress(&self, bytes: &[u8], rows: usize) -> bool {
        let entries = self.entries(rows);
        self.compressed.is_none() || self.heap(bytes, entries).len() == self.heap_len as usize
    }

    /// Number of entries in the heap of a column with `rows` rows.
    fn entries(&self, rows: usize) -> usize {
        self.codes.map_or(rows, |codes| codes.entries as usize)
    }

    /// Returns true if every entry of `heap` is a value of type `ty`.
    fn is_sound(&self, bytes: &[u8], ty: ColumnType, heap: &[u8], entries: usize) -> bool {
        match ty {
            ColumnType::Text => self.is_text(bytes, heap, entries),
            ColumnType::List(_) => {
                let mut sound = true;
                self.for_ends(bytes, heap, 0..entries, |start, end| {
                    sound = sound && lists::is_sound(&heap[start..end], ty);
                });
                sound
            }
            _ => true,
        }
    }

    /// Returns true if every entry of `heap` is valid UTF-8.
    fn is_text(&self, bytes: &[u8], heap: &[u8], entries: usize) -> bool {
        if heap.is_ascii() {
            return true;
        }
        let Ok(text) = std::str::from_utf8(heap) else { return false };
        let boundary = |end: i64| usize::try_from(end).is_ok_and(|end| text.is_char_boundary(end.min(text.len())));
        (0..entries).all(|i| boundary(self.ends.get(bytes, i)))
    }

    #[inline]
    fn end(&self, bytes: &[u8], heap: &[u8], entry: usize) -> usize {
        (self.ends.get(bytes, entry).max(0) as usize).min(heap.len())
    }

    /// Start and end of entry `entry` in `heap`.
    #[inline]
    pub(crate) fn entry_range(&self, bytes: &[u8], heap: &[u8], entry: usize) -> (usize, usize) {
        let start = if entry == 0 { 0 } else { self.end(bytes, heap, entry - 1) };
        (start, self.end(bytes, heap, entry).max(start))
    }

    /// Calls `take` with start and end of each of `entries` in `heap`. The positions ascend and lie within `heap`.
    pub(crate) fn for_ends(
        &self,
        bytes: &[u8],
        heap: &[u8],
        entries: std::ops::Range<usize>,
        mut take: impl FnMut(usize, usize),
    ) {
        let mut start = if entries.start == 0 { 0 } else { self.end(bytes, heap, entries.start - 1) };
        self.ends.blocks(bytes, entries, |ends| {
            for &end in ends {
                let end = (end.max(0) as usize).min(heap.len()).max(start);
                take(start, end);
                start = end;
            }
        });
    }

    pub(crate) fn codes(&self) -> Option<Codes> {
        self.codes
    }

    /// The value of `row` without the prefix. `rows` is the number of rows of the page.
    #[inline]
    pub(crate) fn suffix<'a>(&'a self, bytes: &'a [u8], row: usize, rows: usize) -> &'a [u8] {
        let (entry, entries) = match self.codes {
            Some(codes) => (codes.get(bytes, row), codes.entries as usize),
            None => (row, rows),
        };
        let heap = self.heap(bytes, entries);
        let (start, end) = self.entry_range(bytes, heap, entry);
        &heap[start..end]
    }
}

impl Codes {
    /// The number of the entry of `row`.
    #[inline]
    pub(crate) fn get(&self, bytes: &[u8], row: usize) -> usize {
        self.clamp(bits::get(bytes, self.data as usize, self.width.into(), row))
    }

    #[inline]
    pub(crate) fn clamp(&self, code: u64) -> usize {
        code.min(u64::from(self.entries) - 1) as usize
    }

    /// Fills `out` with the codes of the rows from `first` on, not clamped.
    pub(crate) fn unpack(&self, bytes: &[u8], first: usize, out: &mut [u64]) {
        bits::unpack(bytes, self.data as usize, self.width.into(), first, out);
    }
}

/// Properties of a column and the encodings it may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BytesOptions {
    /// Values are valid UTF-8. The prefix and the heap are then valid UTF-8 as well.
    pub text: bool,
    pub compression: Compression,
    /// Allows a common prefix and a dictionary.
    pub share: bool,
}

/// Encodes columns of text or bytes. [`plan`](Self::plan) chooses an encoding and returns its length,
/// [`write`](Self::write) writes it. The buffers are reused from column to column.
#[derive(Default)]
pub(crate) struct BytesEncoder {
    dictionary: bool,
    prefix: Vec<u8>,
    /// First row of each entry of the dictionary; `codes` has the code of each row.
    entries: Vec<u32>,
    codes: Vec<u16>,
    slots: Vec<u16>,
    ends: IntsEncoder,
    heap: Vec<u8>,
    heaps: HeapEncoder,
    /// How the heap is compressed.
    method: Option<HeapMethod>,
}

impl std::fmt::Debug for BytesEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BytesEncoder").finish_non_exhaustive()
    }
}

impl BytesEncoder {
    /// Chooses the encoding of `count` values (`None` for nulls) and returns its length in bytes. `trained` is the
    /// dictionary for the compression of the column.
    pub(crate) fn plan<'a>(
        &mut self,
        count: usize,
        options: BytesOptions,
        trained: Option<&Arc<Dictionary>>,
        value: impl Fn(usize) -> Option<&'a [u8]>,
    ) -> usize {
        self.dictionary = options.share && self.build_dictionary(count, &value);
        let entries = std::mem::take(&mut self.entries);
        if self.dictionary {
            self.fill_heap(entries.len(), options, |i| value(entries[i] as usize));
        } else {
            self.fill_heap(count, options, &value);
        }
        self.entries = entries;
        self.method = self.heaps.compress(&self.heap, options.compression, trained);
        self.encoded_len()
    }

    /// Fills `entries` and `codes`. Returns false unless the dictionary saves more than a fifth of the bytes.
    fn build_dictionary<'a>(&mut self, count: usize, value: impl Fn(usize) -> Option<&'a [u8]>) -> bool {
        let limit = (count / 2).min(ENTRIES_MAX);
        let slots = (limit * 2).next_power_of_two().max(4);
        self.slots.clear();
        self.slots.resize(slots, u16::MAX);
        self.entries.clear();
        self.codes.clear();
        let (mut plain_bytes, mut entry_bytes) = (0, 0);
        for row in 0..count {
            let Some(bytes) = value(row) else {
                self.codes.push(0);
                continue;
            };
            plain_bytes += bytes.len();
            let mut slot = xxh3_64(bytes) as usize & (slots - 1);
            let code = loop {
                match self.slots[slot] {
                    u16::MAX => {
                        // The dictionary is full, or more than three quarters of the first values (at least 32) are
                        // distinct.
                        let many = self.entries.len() * 4 > row * 3 && row >= 32;
                        if self.entries.len() == limit || many {
                            return false;
                        }
                        self.slots[slot] = self.entries.len() as u16;
                        self.entries.push(row as u32);
                        entry_bytes += bytes.len();
                        break self.slots[slot];
                    }
                    code if value(self.entries[code as usize] as usize) == Some(bytes) => break code,
                    _ => slot = (slot + 1) & (slots - 1),
                }
            };
            self.codes.push(code);
        }
        let code_bytes = packed_len(count, self.code_width());
        !self.entries.is_empty() && (entry_bytes + self.entries.len() + code_bytes) * 5 < (plain_bytes + count) * 4
    }

    fn code_width(&self) -> u32 {
        width_of((self.entries.len() as u64).saturating_sub(1))
    }

    /// Fills `prefix`, `heap` and `ends` from `count` entries.
    fn fill_heap<'a>(&mut self, count: usize, options: BytesOptions, entry: impl Fn(usize) -> Option<&'a [u8]>) {
        self.prefix.clear();
        if options.share {
            let mut present = (0..count).filter_map(&entry);
            let first = present.next().unwrap_or_default();
            let shared = present.try_fold(first, |shared, value| {
                let shared = common_prefix(shared, value);
                if shared.is_empty() { Err(shared) } else { Ok(shared) }
            });
            let mut shared = shared.unwrap_or_else(|empty| empty);
            if options.text && std::str::from_utf8(shared).is_err() {
                // The values differ within a character, so the prefix ends before it.
                let end = shared.iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
                shared = &shared[..end];
            }
            self.prefix.extend_from_slice(shared);
        }
        self.heap.clear();
        self.ends.values.clear();
        for i in 0..count {
            let suffix = entry(i).and_then(|value| value.get(self.prefix.len()..)).unwrap_or_default();
            self.heap.extend_from_slice(suffix);
            self.ends.values.push(self.heap.len() as i64);
        }
    }

    fn encoded_len(&mut self) -> usize {
        let mut len = 1 + varint_len(self.prefix.len() as u64) + self.prefix.len();
        if self.dictionary {
            len += varint_len(self.entries.len() as u64) + 1 + packed_len(self.codes.len(), self.code_width());
        }
        len += self.ends.plan() + varint_len(self.heap.len() as u64);
        let stored = self.heaps.stored().len();
        len + if self.method.is_some() { varint_len(stored as u64) + stored } else { self.heap.len() }
    }

    /// Appends the planned encoding.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let dictionary = if self.dictionary { DICTIONARY } else { 0 };
        let method = match &self.method {
            None => 0,
            Some(HeapMethod::Lz4) => LZ4,
            Some(HeapMethod::Zstd(None)) => ZSTD,
            Some(HeapMethod::Zstd(Some(_))) => ZSTD | TRAINED,
        };
        out.push(dictionary | method);
        put_varint(self.prefix.len() as u64, out);
        out.extend_from_slice(&self.prefix);
        if self.dictionary {
            let width = self.code_width();
            put_varint(self.entries.len() as u64, out);
            out.push(width as u8);
            pack(self.codes.iter().map(|&code| u64::from(code)), width, out);
        }
        self.ends.write(out);
        put_varint(self.heap.len() as u64, out);
        if self.method.is_some() {
            put_varint(self.heaps.stored().len() as u64, out);
            out.extend_from_slice(self.heaps.stored());
        } else {
            out.extend_from_slice(&self.heap);
        }
    }
}

fn common_prefix<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    let len = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    &a[..len]
}
