//! Dictionaries for the compression of columns with Zstandard.
//!
//! The heap of a column in a page of 8 KiB is short if the table has several columns of texts: too short to repeat itself. A
//! dictionary has what the heaps of a column have in common. It is trained on the first batch of rows that is long enough,
//! by a writer of pages, and is kept if it saves space in heaps that it was not trained on. A column has one dictionary at
//! most, as long as its tree exists, so that pages need not be written again.
//!
//! *Invariants.* A dictionary is in [`Dictionaries`] before a page that needs it is written, and as long as an extent of its
//! tree, or the tree, exists. Checkpoints write the dictionaries of their trees. A tree that is created with the id of a
//! dropped one continues with the dictionaries of that, if they still exist and it has columns for them.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use keyaki_primitives::sync::RwLock;
use zstd::zstd_safe::{CDict, DDict};

use super::heap::{ZSTD_LEVEL, zstd_len};
use crate::base::TreeId;

/// Maximum length of a new dictionary in bytes.
const TRAINED_BYTES: usize = 8 << 10;
/// Bounds on the length of a dictionary in bytes.
const DICTIONARY_BYTES_MIN: usize = 256;
pub(crate) const DICTIONARY_BYTES_MAX: usize = 64 << 10;
/// Bytes of values that a dictionary is trained and tested on. Fewer values give worse dictionaries, more take longer.
const SAMPLE_BYTES_MIN: usize = 16 * TRAINED_BYTES;
const SAMPLE_BYTES_MAX: usize = 128 * TRAINED_BYTES;
/// Minimum number of heaps of a sample.
const HEAPS_MIN: usize = 16;
/// Length of the pieces that a dictionary is trained on, in bytes.
const PIECE_BYTES: usize = 1 << 10;
/// One of this many heaps is for the test.
const TEST_SHARE: usize = 4;
/// A dictionary is kept if it saves more than this percentage.
const SAVED_PERCENT: usize = 5;
/// Number of values whose variety is examined.
const VARIETY_VALUES: usize = 1024;
/// First bytes of a dictionary of Zstandard.
const MAGIC: [u8; 4] = 0xec30_a437_u32.to_le_bytes();

/// A dictionary, with the tables that compression and decompression derive from it on first use.
pub(crate) struct Dictionary {
    bytes: Box<[u8]>,
    compression: OnceLock<Option<CDict<'static>>>,
    decompression: OnceLock<Option<DDict<'static>>>,
    /// A checkpoint has it.
    is_stored: AtomicBool,
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.bytes.len())
    }
}

impl Dictionary {
    /// A dictionary with these bytes; `None` if they are not one, or if there are less than 256 bytes or more than 64 KiB.
    pub(crate) fn new(bytes: &[u8]) -> Option<Dictionary> {
        let is_long_enough = (DICTIONARY_BYTES_MIN..=DICTIONARY_BYTES_MAX).contains(&bytes.len());
        // Its tables take several times the bytes, and exist only while pages need them.
        if !is_long_enough || !bytes.starts_with(&MAGIC) || DDict::try_create(bytes).is_none() {
            return None;
        }
        let (compression, decompression) = (OnceLock::new(), OnceLock::new());
        Some(Dictionary { bytes: bytes.into(), compression, decompression, is_stored: AtomicBool::new(false) })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// `None` if there is no memory for it.
    pub(super) fn compression(&self) -> Option<&CDict<'static>> {
        self.compression.get_or_init(|| CDict::try_create(&self.bytes, ZSTD_LEVEL)).as_ref()
    }

    /// `None` if there is no memory for it.
    pub(super) fn decompression(&self) -> Option<&DDict<'static>> {
        self.decompression.get_or_init(|| DDict::try_create(&self.bytes)).as_ref()
    }
}

/// The result of [`train`].
#[derive(Debug)]
pub(super) enum Training {
    /// There are not enough values yet.
    TooFew,
    /// No dictionary saves space.
    Useless,
    Trained(Dictionary),
}

/// Trains a dictionary on the values of a column, of which a page has about `heap_bytes` bytes.
pub(super) fn train<'a>(values: impl Iterator<Item = &'a [u8]>, heap_bytes: usize) -> Training {
    let values: Vec<&[u8]> = values.filter(|value| !value.is_empty()).collect();
    let total: usize = values.iter().map(|value| value.len()).sum();
    if total < SAMPLE_BYTES_MIN {
        return Training::TooFew;
    }
    // Shorter heaps of a short batch: they need a dictionary more, and it is better than none.
    let heap_bytes = heap_bytes.min(total / HEAPS_MIN);
    let distinct: HashSet<&[u8]> = values.iter().take(VARIETY_VALUES).copied().collect();
    if distinct.len() * 2 <= values.len().min(VARIETY_VALUES) {
        // Pages have each value once.
        return Training::Useless;
    }
    // Heaps are evenly distributed, so that neighbours are as similar as in a page and the parts as different as in the
    // table. The others are not copied.
    let step = (total / SAMPLE_BYTES_MAX).max(1);
    let (mut heaps, mut heap, mut len, mut number) = (Vec::new(), Vec::new(), 0, 0_usize);
    for value in values {
        len += value.len();
        if number.is_multiple_of(step) {
            heap.extend_from_slice(value);
        }
        if len >= heap_bytes {
            heaps.extend(number.is_multiple_of(step).then(|| std::mem::take(&mut heap)));
            (len, number) = (0, number + 1);
        }
    }
    let (mut data, mut pieces, mut tests) = (Vec::new(), Vec::new(), Vec::new());
    for (i, heap) in heaps.iter().enumerate() {
        if i.is_multiple_of(TEST_SHARE) {
            tests.push(heap);
        } else {
            pieces.extend(heap.chunks(PIECE_BYTES).map(<[u8]>::len));
            data.extend_from_slice(heap);
        }
    }
    let trained = zstd::dict::from_continuous(&data, &pieces, TRAINED_BYTES);
    let Some(dictionary) = trained.ok().and_then(|bytes| Dictionary::new(&bytes)) else { return Training::Useless };
    let stored = |dictionary: Option<&Dictionary>| -> usize {
        tests.iter().map(|heap| zstd_len(heap, dictionary).unwrap_or(heap.len())).sum()
    };
    let (without, with) = (stored(None), stored(Some(&dictionary)));
    if with * 100 > without * (100 - SAVED_PERCENT) { Training::Useless } else { Training::Trained(dictionary) }
}

/// The dictionaries of the columns of a tree; `None` for columns that have none because it would be useless.
#[derive(Debug, Default)]
pub(crate) struct TreeDictionaries {
    columns: RwLock<BTreeMap<u16, Option<Arc<Dictionary>>>>,
}

impl TreeDictionaries {
    /// The decision on a column, if there is one.
    pub(super) fn decision(&self, column: usize) -> Option<Option<Arc<Dictionary>>> {
        self.columns.read().get(&(column as u16)).cloned()
    }

    /// Decides on a column, unless that was done before. Returns the decision.
    pub(super) fn decide(&self, column: usize, dictionary: Option<Dictionary>) -> Option<Arc<Dictionary>> {
        self.columns.write().entry(column as u16).or_insert_with(|| dictionary.map(Arc::new)).clone()
    }

    /// Gives a column the dictionary that pages of the newest checkpoint have used, whatever was decided before.
    /// Returns false if the bytes are no dictionary.
    pub(crate) fn set(&self, column: u16, bytes: &[u8]) -> bool {
        let mut columns = self.columns.write();
        let known = columns.entry(column).or_default();
        if known.as_ref().is_none_or(|known| *known.bytes != *bytes) {
            let Some(dictionary) = Dictionary::new(bytes) else { return false };
            dictionary.is_stored.store(true, Ordering::Relaxed);
            *known = Some(Arc::new(dictionary));
        }
        true
    }

    /// The dictionaries in checkpoints, by ascending column.
    pub(crate) fn stored(&self) -> Vec<(u16, Arc<Dictionary>)> {
        let mut all = self.all();
        all.retain(|(_, dictionary)| dictionary.is_stored.load(Ordering::Relaxed));
        all
    }

    /// The dictionaries, by ascending column.
    pub(crate) fn all(&self) -> Vec<(u16, Arc<Dictionary>)> {
        let columns = self.columns.read();
        columns.iter().filter_map(|(&column, dictionary)| Some((column, dictionary.clone()?))).collect()
    }
}

/// The dictionaries of all trees of a store.
#[derive(Debug, Default)]
pub(crate) struct Dictionaries {
    trees: RwLock<BTreeMap<TreeId, Arc<TreeDictionaries>>>,
}

impl Dictionaries {
    /// The dictionaries of a tree, with which it may be about to be created.
    pub(crate) fn of(&self, tree: TreeId) -> Arc<TreeDictionaries> {
        let known = self.trees.read().get(&tree).cloned();
        known.unwrap_or_else(|| self.trees.write().entry(tree).or_default().clone())
    }

    /// Notes that a checkpoint has all dictionaries.
    pub(crate) fn set_stored(&self) {
        let trees = self.trees.read();
        let all = trees.values().flat_map(|of_tree| of_tree.all());
        all.for_each(|(_, dictionary)| dictionary.is_stored.store(true, Ordering::Relaxed));
    }

    /// Forgets the dictionaries of trees that do not exist, and have neither extents nor writers.
    pub(crate) fn retain(&self, exists: impl Fn(TreeId) -> bool) {
        self.trees.write().retain(|&tree, dictionaries| exists(tree) || Arc::strong_count(dictionaries) > 1);
    }
}

/// The place of a column's dictionary, for a reader of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DictionaryPlace<'a> {
    pub all: &'a Dictionaries,
    pub tree: TreeId,
    pub column: usize,
}

impl DictionaryPlace<'_> {
    pub(super) fn get(self) -> Option<Arc<Dictionary>> {
        let of_tree = self.all.trees.read().get(&self.tree).cloned();
        of_tree?.decision(self.column)?
    }
}
