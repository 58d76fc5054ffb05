//! Compression of the heaps of columns: their values, concatenated.

use std::cell::RefCell;
use std::sync::Arc;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::zstd_safe::{CCtx, DCtx};

use super::dictionary::Dictionary;
use crate::base::Compression;

/// The level of Zstandard: higher ones save about a twentieth, and are three times slower.
pub(super) const ZSTD_LEVEL: i32 = 3;
/// Minimum length in bytes of a heap to be compressed.
const COMPRESS_BYTES_MIN: usize = 256;
/// As [`COMPRESS_BYTES_MIN`], with a dictionary.
const COMPRESS_BYTES_MIN_WITH_DICTIONARY: usize = 64;
/// A compressed heap has at most this percentage of the bytes.
const STORED_PERCENT_MAX: usize = 85;
/// Number of attempts that are left out after one that saved too little.
const SKIPPED_ATTEMPTS: u8 = 30;
/// Upper bound on the compression ratio, that of LZ4. A heap that claims more is damaged.
pub(super) const COMPRESS_RATIO_MAX: usize = 255;

thread_local! {
    static COMPRESSION: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSION: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Compresses with Zstandard into `stored`. Returns the length; `None` if `stored` is too short.
fn compress_zstd(heap: &[u8], dictionary: Option<&Dictionary>, stored: &mut [u8]) -> Option<usize> {
    COMPRESSION.with_borrow_mut(|context| match dictionary {
        Some(dictionary) => context.compress_using_cdict(stored, heap, dictionary.compression()?).ok(),
        None => context.compress(stored, heap, ZSTD_LEVEL).ok(),
    })
}

/// The length of a heap that is compressed with Zstandard; `None` if it would become longer.
pub(super) fn zstd_len(heap: &[u8], dictionary: Option<&Dictionary>) -> Option<usize> {
    compress_zstd(heap, dictionary, &mut vec![0; heap.len()])
}

/// How a heap is compressed.
#[derive(Debug, Clone)]
pub(crate) enum HeapMethod {
    Lz4,
    Zstd(Option<Arc<Dictionary>>),
}

impl HeapMethod {
    /// Fills `plain` with the bytes of a heap. Returns false if `stored` is not a heap of this length.
    pub(super) fn decompress(&self, stored: &[u8], plain: &mut [u8]) -> bool {
        let len = match self {
            HeapMethod::Lz4 => decompress_into(stored, plain).ok(),
            HeapMethod::Zstd(dictionary) => DECOMPRESSION.with_borrow_mut(|context| match dictionary {
                Some(dictionary) => context.decompress_using_ddict(plain, stored, dictionary.decompression()?).ok(),
                None => context.decompress(plain, stored).ok(),
            }),
        };
        len == Some(plain.len())
    }
}

/// Compresses the heaps of a column, page after page.
#[derive(Default)]
pub(super) struct HeapEncoder {
    /// The last result.
    stored: Vec<u8>,
    skipped_attempts: u8,
    lz4_table: CompressTable,
}

impl HeapEncoder {
    /// The method by which a heap has been compressed into [`stored`](Self::stored); `None` unless this saves more than 15
    /// percent.
    pub(super) fn compress(
        &mut self,
        heap: &[u8],
        compression: Compression,
        dictionary: Option<&Arc<Dictionary>>,
    ) -> Option<HeapMethod> {
        let least = if dictionary.is_some() { COMPRESS_BYTES_MIN_WITH_DICTIONARY } else { COMPRESS_BYTES_MIN };
        if compression == Compression::None || heap.len() < least {
            return None;
        }
        if self.skipped_attempts > 0 {
            self.skipped_attempts -= 1;
            return None;
        }
        let most = heap.len() * STORED_PERCENT_MAX / 100;
        let zstd = if compression == Compression::Zstd { self.compress_zstd(heap, dictionary, most) } else { None };
        let method = match compression {
            // Heaps that Zstandard compresses too well, according to the bound on the ratio.
            Compression::Zstd if zstd.is_some_and(|len| heap.len() > len * COMPRESS_RATIO_MAX) => {
                self.compress_lz4(heap, most)
            }
            Compression::Zstd => zstd.map(|_| HeapMethod::Zstd(dictionary.cloned())),
            _ => self.compress_lz4(heap, most),
        };
        self.skipped_attempts = if method.is_some() { 0 } else { SKIPPED_ATTEMPTS };
        method
    }

    fn compress_zstd(&mut self, heap: &[u8], dictionary: Option<&Arc<Dictionary>>, most: usize) -> Option<usize> {
        self.stored.resize(most, 0);
        let len = compress_zstd(heap, dictionary.map(|dictionary| &**dictionary), &mut self.stored)?;
        self.stored.truncate(len);
        Some(len)
    }

    fn compress_lz4(&mut self, heap: &[u8], most: usize) -> Option<HeapMethod> {
        self.stored.resize(get_maximum_output_size(heap.len()), 0);
        let len = compress_into_with_table(heap, &mut self.stored, &mut self.lz4_table).ok()?;
        self.stored.truncate(len);
        (len < most).then_some(HeapMethod::Lz4)
    }

    /// The bytes of the last compressed heap.
    pub(super) fn stored(&self) -> &[u8] {
        &self.stored
    }
}
