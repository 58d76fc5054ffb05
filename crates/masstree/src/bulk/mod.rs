//! Bulk construction: a parallel sort of the keys, then a build of the tree from the bottom up.

mod buffer;
mod build;
mod codec;
mod extend;
mod layer;
mod parallel;
mod sort;

use std::fmt;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::build::{BulkBuild, ByRun, InOrder, Source, check_order};
use self::layer::FillFactor;
use self::parallel::Workers;
use self::sort::{Sorted, sort};
use crate::key::KEY_BYTES_MAX;
use crate::map::Masstree;
use crate::node::WIDTH;
use crate::value::Value;

type MergeValues<V> = Arc<dyn for<'r> Fn(<V as Value>::Ref<'r>, V) -> V + Send + Sync>;

/// The policy for several values of one key.
enum Policy<V: Value> {
    Refuse,
    First,
    Last,
    Merge(MergeValues<V>),
}

/// Bulk construction of maps: options and operations.
///
/// ```
/// use keyaki_masstree::{Bulk, pin};
///
/// let keys = ["cherry", "apple", "banana", "apple"];
/// let map = Bulk::new().merge(|a: u64, b| a + b).from_unsorted(&keys, vec![1, 2, 3, 4]).unwrap();
/// assert_eq!(map.get("apple", &pin()), Some(6));
/// assert_eq!(map.first(&pin()).unwrap().0, b"apple");
/// ```
pub struct Bulk<V: Value> {
    threads: usize,
    fill: FillFactor,
    policy: Policy<V>,
    charge: Option<crate::arena::Charge>,
}

/// Reasons for which a bulk operation fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    #[error("{keys} keys with {values} values")]
    /// The numbers of keys and values differ.
    Lengths {
        /// Keys given.
        keys: usize,
        /// Values given.
        values: usize,
    },
    #[error("key at position {position} has {bytes} bytes, the maximum is {KEY_BYTES_MAX}")]
    /// A key is longer than [`KEY_BYTES_MAX`].
    TooLong {
        /// Index of the key among those given.
        position: usize,
        /// Length of the key.
        bytes: usize,
    },
    #[error("keys are not in ascending order at position {position}")]
    /// The keys given to [`Bulk::from_sorted`] are not in ascending order.
    Unsorted {
        /// Index of the first key that is lower than its predecessor.
        position: usize,
    },
    #[error("duplicate key at position {position}")]
    /// A key occurs twice and the policy is to refuse duplicates (the default).
    Duplicate {
        /// Index of a duplicate among the keys given.
        position: usize,
    },
}

impl<V: Value> Default for Bulk<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Value> fmt::Debug for Bulk<V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Bulk").field("threads", &self.threads).field("fill", &self.fill).finish_non_exhaustive()
    }
}

impl<V: Value> Bulk<V> {
    /// The defaults: one thread for each processor, full nodes, duplicates refused.
    pub fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let fill = FillFactor { entries: WIDTH, children: WIDTH + 1 };
        Bulk { threads, fill, policy: Policy::Refuse, charge: None }
    }

    /// Sets the number of threads, including the caller's; at least 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets how full nodes are made, from 0.5 to 1. Below 1, the first insertions afterwards find room without splits.
    #[must_use]
    pub fn fill(mut self, fill: f64) -> Self {
        let fill = fill.clamp(0.5, 1.0);
        let of = |width: usize| (width as f64 * fill).round() as usize;
        self.fill = FillFactor { entries: of(WIDTH), children: of(WIDTH + 1) };
        assert!((2..=WIDTH).contains(&self.fill.entries) && (2..=WIDTH + 1).contains(&self.fill.children));
        self
    }

    /// Keeps the first of several values of one key.
    #[must_use]
    pub fn keep_first(mut self) -> Self {
        self.policy = Policy::First;
        self
    }

    /// Keeps the last of several values of one key.
    #[must_use]
    pub fn keep_last(mut self) -> Self {
        self.policy = Policy::Last;
        self
    }

    /// Merges several values of one key, two at a time: the earlier value, or the result so far, and the next one. In
    /// [`extend`](Self::extend) a node of the map is locked meanwhile: `merge` must not use the map.
    #[must_use]
    pub fn merge(mut self, merge: impl for<'r> Fn(V::Ref<'r>, V) -> V + Send + Sync + 'static) -> Self {
        self.policy = Policy::Merge(Arc::new(merge));
        self
    }

    /// Sets the function that is called with changes of the map's memory, see [`Masstree::with_charge`].
    #[must_use]
    pub fn charge(mut self, charge: impl Fn(isize) + Send + Sync + 'static) -> Self {
        self.charge = Some(Arc::new(charge));
        self
    }

    /// Builds a map of keys, in any order, and their values.
    ///
    /// `as_ref` of a key must return the same bytes in every call.
    ///
    /// # Errors
    /// If the numbers of keys and values differ, if a key is too long, or if a key occurs twice and duplicates are
    /// refused.
    pub fn from_unsorted<K: AsRef<[u8]> + Sync>(&self, keys: &[K], values: Vec<V>) -> Result<Masstree<V>, BulkError> {
        let words = self.words(keys, values)?;
        let workers = Workers::new(self.threads);
        match sort(workers, keys.len(), |i| keys[i].as_ref(), Some(&words)) {
            Sorted::Short(run) => self.build(&ByRun { keys, run: &run, words: &words }),
            Sorted::Long(run) => self.build(&ByRun { keys, run: &run, words: &words }),
        }
    }

    /// Builds a map of keys in ascending order and their values.
    ///
    /// # Errors
    /// If the numbers of keys and values differ, if a key is too long, if the keys are not in order, or if a key occurs
    /// twice and duplicates are refused.
    pub fn from_sorted<K: AsRef<[u8]> + Sync>(&self, keys: &[K], values: Vec<V>) -> Result<Masstree<V>, BulkError> {
        if let Some(position) = check_order(Workers::new(self.threads), keys) {
            return Err(BulkError::Unsorted { position });
        }
        let words = self.words(keys, values)?;
        self.build(&InOrder { keys, words: &words })
    }

    /// Converts the values into words after checking the numbers and lengths of keys.
    fn words<K: AsRef<[u8]>>(&self, keys: &[K], values: Vec<V>) -> Result<Vec<u64>, BulkError> {
        if keys.len() != values.len() {
            return Err(BulkError::Lengths { keys: keys.len(), values: values.len() });
        }
        if let Some(position) = keys.iter().position(|key| key.as_ref().len() > KEY_BYTES_MAX) {
            return Err(BulkError::TooLong { position, bytes: keys[position].as_ref().len() });
        }
        Ok(values.into_iter().map(V::into_word).collect())
    }

    fn build(&self, source: &impl Source) -> Result<Masstree<V>, BulkError> {
        let mut map = Masstree::build(self.charge.clone());
        if source.len() == 0 {
            return Ok(map);
        }
        let build = BulkBuild {
            tree: &map.tree,
            source,
            fill: self.fill,
            workers: Workers::new(self.threads),
            duplicates: &self.duplicates(),
            duplicate: AtomicUsize::new(usize::MAX),
        };
        let root = build.build();
        let duplicate = build.duplicate.load(Ordering::Relaxed);
        // SAFETY: the root has been built for this tree, which is empty.
        unsafe { map.tree.set_built_root(root) };
        // After a refused duplicate the map is dropped, with the values that are in it.
        if duplicate == usize::MAX { Ok(map) } else { Err(BulkError::Duplicate { position: duplicate }) }
    }

    /// The policy as functions of words.
    fn duplicates(&self) -> Duplicates {
        fn discard<V: Value>(word: u64) {
            // SAFETY: the word is that of a value that is not put into a map.
            drop(unsafe { V::from_word(word) });
        }
        let resolve: Box<dyn Fn(u64, u64) -> Resolve + Send + Sync> = match &self.policy {
            Policy::Refuse => Box::new(|_, _| Resolve::Refuse),
            Policy::First => Box::new(|earlier, later| {
                discard::<V>(later);
                Resolve::Word(earlier)
            }),
            Policy::Last => Box::new(|earlier, later| {
                discard::<V>(earlier);
                Resolve::Word(later)
            }),
            Policy::Merge(merge) => {
                let merge = merge.clone();
                Box::new(move |earlier, later| {
                    // SAFETY: the words are those of values, or results of merges, that are not in a map.
                    let merged = unsafe { merge(V::borrow(earlier), V::from_word(later)) };
                    discard::<V>(earlier);
                    Resolve::Word(merged.into_word())
                })
            }
        };
        Duplicates { resolve, discard: discard::<V> }
    }
}

/// Result of applying the policy to two values of one key.
enum Resolve {
    /// The word that stays. The other value has been dropped.
    Word(u64),
    Refuse,
}

/// A policy for duplicates as functions of words.
struct Duplicates {
    resolve: Box<dyn Fn(u64, u64) -> Resolve + Send + Sync>,
    discard: fn(u64),
}

impl Duplicates {
    fn resolve(&self, earlier: u64, later: u64) -> Resolve {
        (self.resolve)(earlier, later)
    }

    fn discard(&self, word: u64) {
        (self.discard)(word);
    }
}

/// Sorts keys by a parallel radix sort. Returns their positions in ascending order of the keys; equal keys stay in the
/// order given.
pub fn sort_order<K: AsRef<[u8]> + Sync>(keys: &[K], threads: usize) -> Vec<usize> {
    let workers = Workers::new(threads);
    match sort(workers, keys.len(), |i| keys[i].as_ref(), None) {
        Sorted::Short(run) => run.positions(workers),
        Sorted::Long(run) => run.positions(workers),
    }
}
