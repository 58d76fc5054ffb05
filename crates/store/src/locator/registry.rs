//! The registry of locators: options, locator and status of each tree that should have a locator.
//!
//! A locator is rebuilt once it misses at least one in [`SHARE_MISSING`] of the tree's pages. After a failed build, the
//! next attempt follows when the number of pages has changed by the same share.
//!
//! *Invariants.* A tree's entry is replaced as a whole, under a lock that is held for table lookups only. Builds run
//! without the lock; the result of a build is dropped if the tree's options have changed since the start of the build.
//! Locators are freed after the lock is released.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyaki_primitives::sync::RwLock;

use super::build::Build;
use super::{Locator, LocatorOptions, LocatorStats};
use crate::base::{Error, TreeId};
use crate::codec::Codecs;
use crate::pages::{Extent, Files};

/// A locator is rebuilt if it misses at least one in this number of its tree's pages.
const SHARE_MISSING: u64 = 64;

/// Status of a locator whose pages were evicted for memory trees.
const EVICTED: &str = "pages evicted: in-memory indexes need the memory";

/// The locators of the trees in a data file.
#[derive(Debug)]
pub(crate) struct Locators {
    /// The data file whose pages are located.
    pub files: Arc<Files>,
    trees: RwLock<HashMap<TreeId, Entry>>,
    /// True once a tree has been registered. Read for each view, so that views of stores without locators take no lock.
    any: AtomicBool,
    /// Maximum bytes of locators, their pages and memory trees together; 0: unlimited.
    limit: AtomicU64,
}

/// A tree that should have a locator.
#[derive(Debug, Clone)]
struct Entry {
    options: LocatorOptions,
    /// `None` until the first build has succeeded.
    locator: Option<Arc<Locator>>,
    /// See [`LocatorStats::problem`].
    problem: Option<String>,
    /// Pages of the tree when the last build failed; `None` if the last build succeeded.
    failed_pages: Option<u64>,
    /// The pages were evicted for memory trees; later builds do not load them.
    released: bool,
}

/// The leaves of one version of a tree, in key order, with the codecs of its schema.
pub(crate) struct TreeLeaves {
    pub leaves: Vec<Arc<Extent>>,
    pub codecs: Arc<Codecs>,
}

impl Locators {
    pub fn new(files: Arc<Files>) -> Self {
        Locators { files, trees: RwLock::default(), any: AtomicBool::new(false), limit: AtomicU64::new(0) }
    }

    /// True if a locator has ever been requested.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The locator of a tree, if one has been built.
    pub fn get(&self, tree: TreeId) -> Option<Arc<Locator>> {
        if !self.any() {
            return None;
        }
        self.trees.read().get(&tree)?.locator.clone()
    }

    /// The registered trees, in no particular order.
    pub fn trees(&self) -> Vec<TreeId> {
        self.trees.read().keys().copied().collect()
    }

    pub fn contains(&self, tree: TreeId) -> bool {
        self.trees.read().contains_key(&tree)
    }

    /// Registers a tree; [`Locators::update`] builds its locator. Replaces an existing entry of the tree.
    pub fn request(&self, tree: TreeId, options: LocatorOptions) {
        let entry = Entry { options, locator: None, problem: None, failed_pages: None, released: false };
        let replaced = self.trees.write().insert(tree, entry);
        drop(replaced);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Removes the entries of trees that are missing from `wanted` or have other options there.
    pub fn retain(&self, wanted: &BTreeMap<TreeId, LocatorOptions>) {
        let is_as_wanted = |tree: &TreeId, options: &LocatorOptions| wanted.get(tree) == Some(options);
        // Freed after the lock.
        let removed: Vec<_> =
            self.trees.write().extract_if(|tree, entry| !is_as_wanted(tree, &entry.options)).collect();
        drop(removed);
    }

    /// Sets the limit of the bytes of locators, their pages and memory trees together. 0 is taken as 1.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes.max(1), Ordering::Relaxed);
    }

    /// Bytes of all locators without pages, and bytes of the pages that they keep.
    pub fn bytes(&self) -> (u64, u64) {
        self.bytes_without(None)
    }

    fn bytes_without(&self, tree: Option<TreeId>) -> (u64, u64) {
        let trees = self.trees.read();
        let others = trees.iter().filter(|(other, _)| Some(**other) != tree);
        let locators = others.filter_map(|(_, entry)| entry.locator.as_ref());
        locators.fold((0, 0), |(bytes, held), locator| (bytes + locator.bytes(), held + locator.held_bytes()))
    }

    /// Evicts all pages that locators keep if locators, their pages and `others` (bytes of memory trees) exceed the
    /// limit.
    pub fn evict_pages(&self, others: u64) {
        let (limit, (bytes, held)) = (self.limit.load(Ordering::Relaxed), self.bytes());
        if limit == 0 || held == 0 || bytes + held + others <= limit {
            return;
        }
        let mut evicted = Vec::new();
        for entry in self.trees.write().values_mut() {
            if let Some(locator) = entry.locator.take_if(|locator| locator.held.is_some()) {
                entry.locator = Some(Arc::new(Locator { index: locator.index.clone(), held: None }));
                entry.released = true;
                entry.problem = Some(EVICTED.into());
                // Freed after the lock.
                evicted.push(locator);
            }
        }
    }

    /// The statistics of a tree's locator; `None` if the tree is not registered. `leaves` returns the tree's current
    /// leaves.
    pub fn stats(&self, tree: TreeId, leaves: impl FnOnce() -> Vec<Arc<Extent>>) -> Option<LocatorStats> {
        let entry = self.trees.read().get(&tree).cloned()?;
        let Some(locator) = entry.locator else {
            return Some(LocatorStats { problem: entry.problem, ..LocatorStats::default() });
        };
        let pages_missing = missing_pages(&locator, &leaves());
        Some(LocatorStats { pages_missing, problem: entry.problem, ..locator.stats() })
    }

    /// Rebuilds the locator of a tree if it misses too many pages (see the module); removes the entry if the tree was
    /// dropped (`version` is `None`). `others` returns the bytes of memory trees. Returns true if a build has succeeded
    /// or failed, so that the caller must divide the memory again.
    pub fn update(
        &self,
        tree: TreeId,
        version: Option<TreeLeaves>,
        others: impl Fn() -> u64,
        should_stop: impl Fn() -> bool + Sync,
    ) -> bool {
        let (Some(TreeLeaves { leaves, codecs }), Some(entry)) = (version, self.trees.read().get(&tree).cloned())
        else {
            let removed = self.trees.write().remove(&tree);
            drop(removed);
            return false;
        };
        let all: u64 = leaves.iter().map(|leaf| u64::from(leaf.meta.pages)).sum();
        let changed = match (&entry.locator, entry.failed_pages) {
            (_, Some(failed)) => failed.abs_diff(all),
            (Some(locator), None) => missing_pages(locator, &leaves),
            (None, None) => u64::MAX,
        };
        if changed.saturating_mul(SHARE_MISSING) < all || changed == 0 {
            return false;
        }
        let check_cancelled = || match should_stop() || !self.is_wanted(tree, &entry.options) {
            true => Err(Error::Closed),
            false => Ok(()),
        };
        let build = Build {
            leaves: &leaves,
            last: entry.locator.as_ref(),
            codecs: &codecs,
            files: &self.files,
            options: entry.options,
            check_cancelled: &check_cancelled,
        };
        let built = build.run().map(|locator| self.with_pages(tree, &build, locator, entry.released, others()));
        if matches!(built, Err(Error::Closed)) {
            return false;
        }
        if let Some(now) = self.trees.write().get_mut(&tree).filter(|now| now.options == entry.options) {
            match built {
                Ok((locator, problem)) => {
                    *now = Entry { locator: Some(Arc::new(locator)), problem, failed_pages: None, ..entry };
                }
                Err(error) => {
                    tracing::warn!(%error, %tree, "could not build the locator");
                    now.problem = Some(error.to_string());
                    now.failed_pages = Some(all);
                }
            }
        }
        true
    }

    fn is_wanted(&self, tree: TreeId, options: &LocatorOptions) -> bool {
        self.trees.read().get(&tree).is_some_and(|entry| entry.options == *options)
    }

    /// The locator, with its pages in memory if the limits allow them; otherwise the reason, if it is not the locator's
    /// own `memory_bytes`.
    fn with_pages(
        &self,
        tree: TreeId,
        build: &Build<'_>,
        locator: Locator,
        released: bool,
        others: u64,
    ) -> (Locator, Option<String>) {
        if released {
            return (locator, Some(EVICTED.into()));
        }
        let (bytes, held) = self.bytes_without(Some(tree));
        let taken = others + bytes + held;
        let room = match self.limit.load(Ordering::Relaxed) {
            0 => u64::MAX,
            limit => limit.saturating_sub(taken),
        };
        match build.hold(&locator, room) {
            Ok(Some(held)) => (held, None),
            // The store's limit, not the locator's own, excludes the pages.
            Ok(None) if build.options.memory_bytes.is_some_and(|memory| room < memory) => {
                (locator, Some("pages are not kept in memory: the memory limit is reached (raise the limit)".into()))
            }
            Ok(None) => (locator, None),
            Err(error) => {
                tracing::warn!(%error, %tree, "could not load the pages of the locator");
                (locator, Some(format!("pages are not kept in memory: {error}")))
            }
        }
    }
}

/// Number of pages of the leaves that the locator does not describe.
fn missing_pages(locator: &Locator, leaves: &[Arc<Extent>]) -> u64 {
    leaves.iter().filter(|leaf| !locator.describes(leaf)).map(|leaf| u64::from(leaf.meta.pages)).sum()
}
