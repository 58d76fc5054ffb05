//! Bulk construction: sorting, then building from the bottom up.

mod bits;
mod buffer;
mod build;
mod extend;
mod layer;
mod parallel;
mod sort;

use std::fmt;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::build::{ByRun, InOrder, Plan, Source, check_order};
use self::layer::Fill;
use self::parallel::Workers;
use self::sort::{Sorted, sort};
use crate::key::KEY_BYTES_MAX;
use crate::map::Masstree;
use crate::node::WIDTH;
use crate::value::Value;

type Merge<V> = Arc<dyn for<'r> Fn(<V as Value>::Ref<'r>, V) -> V + Send + Sync>;

/// What a bulk construction makes of values given for the same key.
enum Policy<V: Value> {
    Refuse,
    First,
    Last,
    Merge(Merge<V>),
}

/// Options of bulk construction.
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
    fill: Fill,
    policy: Policy<V>,
    charge: Option<crate::arena::Charge>,
}

/// Reasons for which a bulk operation fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    #[error("{keys} keys but {values} values")]
    /// The numbers of keys and values differ.
    Lengths {
        /// Keys given.
        keys: usize,
        /// Values given.
        values: usize,
    },
    #[error("the key at position {position} has {bytes} bytes, more than {KEY_BYTES_MAX}")]
    /// A key is longer than [`KEY_BYTES_MAX`].
    TooLong {
        /// Index of the key among those given.
        position: usize,
        /// Length of the key.
        bytes: usize,
    },
    #[error("the key at position {position} is lower than the one before it")]
    /// The keys given to [`Bulk::from_sorted`] are not in ascending order.
    Unsorted {
        /// Index of the first key that is lower than its predecessor.
        position: usize,
    },
    #[error("the key at position {position} occurs more than once")]
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
    /// All processors, full nodes, duplicates refused.
    pub fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let fill = Fill { entries: WIDTH, children: WIDTH + 1 };
        Bulk { threads, fill, policy: Policy::Refuse, charge: None }
    }

    /// Threads that work on it, the caller's included.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// How full nodes are made, from 0.5 to 1: below 1, the first insertions afterwards find room.
    #[must_use]
    pub fn fill(mut self, fill: f64) -> Self {
        let fill = fill.clamp(0.5, 1.0);
        let of = |width: usize| (width as f64 * fill).round() as usize;
        self.fill = Fill { entries: of(WIDTH), children: of(WIDTH + 1) };
        self
    }

    /// Of values for the same key, the one given first stays.
    #[must_use]
    pub fn keep_first(mut self) -> Self {
        self.policy = Policy::First;
        self
    }

    /// Of values for the same key, the one given last stays.
    #[must_use]
    pub fn keep_last(mut self) -> Self {
        self.policy = Policy::Last;
        self
    }

    /// Values for the same key are merged, two at a time: an earlier one, or what was merged so far, and a later one. (In
    /// [`extend`](Self::extend) part of the map is locked meanwhile: `merge` must not use the map.)
    #[must_use]
    pub fn merge(mut self, merge: impl for<'r> Fn(V::Ref<'r>, V) -> V + Send + Sync + 'static) -> Self {
        self.policy = Policy::Merge(Arc::new(merge));
        self
    }

    /// As for [`Masstree::with_charge`].
    #[must_use]
    pub fn charge(mut self, charge: impl Fn(isize) + Send + Sync + 'static) -> Self {
        self.charge = Some(Arc::new(charge));
        self
    }

    /// A map of these keys, in any order, and their values.
    ///
    /// # Errors
    /// If there are not as many values as keys, if a key is too long, or if a key occurs twice and that was not allowed.
    pub fn from_unsorted<K: AsRef<[u8]> + Sync>(&self, keys: &[K], values: Vec<V>) -> Result<Masstree<V>, BulkError> {
        let words = self.words(keys, values)?;
        let workers = Workers::new(self.threads);
        match sort(workers, keys.len(), |i| keys[i].as_ref(), Some(&words)) {
            Sorted::Short(run) => self.build(&ByRun { keys, run: &run, words: &words }),
            Sorted::Long(run) => self.build(&ByRun { keys, run: &run, words: &words }),
        }
    }

    /// A map of these keys, which are in order, and their values.
    ///
    /// # Errors
    /// If there are not as many values as keys, if a key is too long, if the keys are not in order, or if a key occurs twice and that was not allowed.
    pub fn from_sorted<K: AsRef<[u8]> + Sync>(&self, keys: &[K], values: Vec<V>) -> Result<Masstree<V>, BulkError> {
        if let Some(position) = check_order(Workers::new(self.threads), keys) {
            return Err(BulkError::Unsorted { position });
        }
        let words = self.words(keys, values)?;
        self.build(&InOrder { keys, words: &words })
    }

    /// The values' words, if all is well with the keys' lengths.
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
        let map = Masstree::build(self.charge.clone());
        if source.len() == 0 {
            return Ok(map);
        }
        let plan = Plan {
            tree: &map.tree,
            source,
            fill: self.fill,
            workers: Workers::new(self.threads),
            duplicates: &self.duplicates(),
            duplicate: AtomicUsize::new(usize::MAX),
        };
        let root = plan.build();
        let duplicate = plan.duplicate.load(Ordering::Relaxed);
        map.tree.exchange_root(root);
        // A map with a key too many is dropped, with the values that are in it.
        if duplicate == usize::MAX { Ok(map) } else { Err(BulkError::Duplicate { position: duplicate }) }
    }

    /// The policy, in terms of words.
    fn duplicates(&self) -> Duplicates {
        fn discard<V: Value>(word: u64) {
            // SAFETY: the word is of a value that is put nowhere.
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
                    // SAFETY: the words are of values that are put nowhere, or of what was merged of such.
                    let merged = unsafe { merge(V::borrow(earlier), V::from_word(later)) };
                    discard::<V>(earlier);
                    Resolve::Word(merged.into_word())
                })
            }
        };
        Duplicates { resolve, discard: discard::<V> }
    }
}

/// What becomes of two values of the same key.
enum Resolve {
    Word(u64),
    Refuse,
}

/// A policy, in terms of words.
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

/// The positions of keys in the order of the keys (equal ones in the order given): a parallel radix sort.
pub fn sort_order<K: AsRef<[u8]> + Sync>(keys: &[K], threads: usize) -> Vec<usize> {
    let workers = Workers::new(threads);
    match sort(workers, keys.len(), |i| keys[i].as_ref(), None) {
        Sorted::Short(run) => run.positions(workers),
        Sorted::Long(run) => run.positions(workers),
    }
}
