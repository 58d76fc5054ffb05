//! Which trees have locators; a thread that keeps them up to date as leaves are rewritten.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};

use super::build::{Build, leaves};
use super::{Locator, LocatorOptions, LocatorStats};
use crate::engine::{Shared, Store, is_memory};
use crate::message::TreeId;
use crate::pages::Extent;
use crate::{Error, Result};

/// A locator is made anew if it misses one of so many of its tree's pages.
const SHARE_MISSING: u64 = 64;

/// The trees with locators.
#[derive(Debug, Default)]
pub(crate) struct Locators {
    trees: RwLock<HashMap<TreeId, Entry>>,
    /// Whether there are any; looked at by whoever takes a view.
    any: AtomicBool,
    /// Bytes that they, their pages and trees in memory may take together; 0: any.
    limit: AtomicU64,
}

#[derive(Debug, Clone)]
struct Entry {
    options: LocatorOptions,
    locator: Option<Arc<Locator>>,
    problem: Option<String>,
    /// Pages of the tree when no locator could be made.
    failed_pages: Option<u64>,
    /// Its pages had to make room: they are not kept any more.
    released: bool,
}

impl Entry {
    fn new(options: LocatorOptions) -> Self {
        Entry { options, locator: None, problem: None, failed_pages: None, released: false }
    }
}

impl Locators {
    /// The locator of a tree, if there is one now.
    pub fn get(&self, tree: TreeId) -> Option<Arc<Locator>> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.trees.read().get(&tree)?.locator.clone()
    }

    /// Bytes of all locators, and of the pages that they keep.
    pub fn bytes(&self) -> (u64, u64) {
        self.bytes_but(None)
    }

    fn bytes_but(&self, tree: Option<TreeId>) -> (u64, u64) {
        let trees = self.trees.read();
        let others = trees.iter().filter(|(other, _)| Some(**other) != tree);
        let locators = others.filter_map(|(_, entry)| entry.locator.as_ref());
        locators.fold((0, 0), |(bytes, held), locator| (bytes + locator.bytes(), held + locator.held_bytes()))
    }

    /// Lets go of pages if these, locators, and `others` take more than they may.
    pub fn make_room(&self, others: u64) {
        let (limit, (bytes, held)) = (self.limit.load(Ordering::Relaxed), self.bytes());
        if limit == 0 || held == 0 || bytes + held + others <= limit {
            return;
        }
        let mut gone = Vec::new();
        for entry in self.trees.write().values_mut() {
            if let Some(locator) = entry.locator.take_if(|locator| locator.held.is_some()) {
                entry.locator = Some(Arc::new(Locator { index: locator.index.clone(), held: None }));
                entry.released = true;
                entry.problem = Some("its pages had to make room for trees in memory".into());
                // Freed when others may take views again.
                gone.push(locator);
            }
        }
    }

    fn is_wanted(&self, tree: TreeId, options: &LocatorOptions) -> bool {
        self.trees.read().get(&tree).is_some_and(|entry| entry.options == *options)
    }
}

/// What the thread is asked to do.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    work: Mutex<KeeperWork>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct KeeperWork {
    /// Counts requests; everything up to `done` has been looked at.
    requested: u64,
    done: u64,
    stop: bool,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn should_stop(&self) -> bool {
        self.work.lock().stop
    }

    /// Stops the thread and waits for it.
    pub fn stop(&self) {
        let thread = {
            let mut work = self.work.lock();
            work.stop = true;
            work.thread.take()
        };
        self.changed.notify_all();
        if let Some(thread) = thread {
            // A panicked thread has nothing left to do.
            drop(thread.join());
        }
    }
}

impl Store {
    /// Gives a tree on disk a locator, which is made in the background and kept up to date; or one of another kind. It is
    /// not stored: whoever wants it asks for it after every opening.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a tree in memory; if no thread can be started.
    pub fn set_locator(&self, tree: TreeId, options: LocatorOptions) -> Result<()> {
        if is_memory(tree) {
            return Err(Error::Invalid(format!("tree {tree} is held in memory: its pages need not be located")));
        }
        self.start_keeper()?;
        let locators = &self.shared.files.locators;
        locators.trees.write().insert(tree, Entry::new(options));
        locators.any.store(true, Ordering::Relaxed);
        self.shared.leaves_changed();
        Ok(())
    }

    /// Gives locators to all trees of `wanted` that have none, or others, and takes them from all other trees.
    ///
    /// # Errors
    /// As [`Store::set_locator`].
    pub fn set_locators(&self, wanted: &BTreeMap<TreeId, LocatorOptions>) -> Result<()> {
        let locators = &self.shared.files.locators;
        let is_as_wanted = |tree: &TreeId, options: &LocatorOptions| wanted.get(tree) == Some(options);
        // Freed when others may take views again.
        let gone: Vec<_> =
            locators.trees.write().extract_if(|tree, entry| !is_as_wanted(tree, &entry.options)).collect();
        drop(gone);
        for (&tree, &options) in wanted {
            if !locators.trees.read().contains_key(&tree) {
                self.set_locator(tree, options)?;
            }
        }
        self.shared.share_memory();
        Ok(())
    }

    /// What trees in memory, locators and the pages that these keep may take together. Pages are let go of when others need
    /// the room.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.shared.files.locators.limit.store(bytes.max(1), Ordering::Relaxed);
        self.shared.share_memory();
    }

    fn start_keeper(&self) -> Result<()> {
        let mut work = self.shared.keeper.work.lock();
        if work.thread.is_none() && !work.stop {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("keyaki-locate".into());
            let thread = thread.spawn(move || shared.keep_locators());
            work.thread = Some(thread.map_err(|error| Error::Invalid(format!("cannot start a thread: {error}")))?);
        }
        Ok(())
    }

    /// Waits until locators are as the trees were when this was called (as far as they should be).
    pub fn wait_for_locators(&self) {
        let keeper = &self.shared.keeper;
        let mut work = keeper.work.lock();
        let requested = work.requested;
        while work.done < requested && !work.stop {
            keeper.changed.wait(&mut work);
        }
    }

    /// What the locator of a tree is made of; none if it should have none.
    pub fn locator_stats(&self, tree: TreeId) -> Option<LocatorStats> {
        let entry = self.shared.files.locators.trees.read().get(&tree).cloned()?;
        let Some(locator) = entry.locator else {
            return Some(LocatorStats { problem: entry.problem, ..LocatorStats::default() });
        };
        let state = self.shared.state.read().clone();
        let now = state.trees.get(&tree).map(|version| leaves(&version.root)).unwrap_or_default();
        Some(LocatorStats { pages_missing: missing(&locator, &now), problem: entry.problem, ..locator.stats() })
    }
}

/// Pages of leaves that a locator does not know.
fn missing(locator: &Locator, leaves: &[Arc<Extent>]) -> u64 {
    leaves.iter().filter(|leaf| !locator.knows(leaf)).map(|leaf| u64::from(leaf.meta.pages)).sum()
}

impl Shared {
    /// Some trees have other leaves than before.
    pub fn leaves_changed(&self) {
        if self.files.locators.any.load(Ordering::Relaxed) {
            self.keeper.work.lock().requested += 1;
            self.keeper.changed.notify_all();
        }
    }

    fn keep_locators(&self) {
        /// Nobody waits for what will never come.
        struct Unfinished<'a>(&'a Keeper);
        impl Drop for Unfinished<'_> {
            fn drop(&mut self) {
                self.0.work.lock().stop = true;
                self.0.changed.notify_all();
            }
        }
        let _unfinished = Unfinished(&self.keeper);
        loop {
            let requested = {
                let mut work = self.keeper.work.lock();
                while work.done == work.requested && !work.stop {
                    self.keeper.changed.wait(&mut work);
                }
                if work.stop {
                    return;
                }
                work.requested
            };
            let trees: Vec<TreeId> = self.files.locators.trees.read().keys().copied().collect();
            for tree in trees {
                self.keep_locator(tree);
            }
            self.keeper.work.lock().done = requested;
            self.keeper.changed.notify_all();
        }
    }

    /// Makes a tree's locator anew, if it should be.
    fn keep_locator(&self, tree: TreeId) {
        let locators = &self.files.locators;
        let version = self.state.read().trees.get(&tree).cloned();
        let (Some(version), Some(entry)) = (version, locators.trees.read().get(&tree).cloned()) else {
            // Such a tree was dropped.
            let gone = locators.trees.write().remove(&tree);
            drop(gone);
            return;
        };
        let leaves = leaves(&version.root);
        let all: u64 = leaves.iter().map(|leaf| u64::from(leaf.meta.pages)).sum();
        let changed = match (&entry.locator, entry.failed_pages) {
            (_, Some(failed)) => failed.abs_diff(all),
            (Some(locator), None) => missing(locator, &leaves),
            (None, None) => u64::MAX,
        };
        if changed.saturating_mul(SHARE_MISSING) < all || changed == 0 {
            return;
        }
        let go_on = || match self.keeper.should_stop() || !locators.is_wanted(tree, &entry.options) {
            true => Err(Error::Closed),
            false => Ok(()),
        };
        let build = Build {
            leaves: &leaves,
            last: entry.locator.as_ref(),
            codecs: &version.codecs,
            files: &self.files,
            options: entry.options,
            go_on: &go_on,
        };
        let made = build.run().map(|locator| self.with_pages(tree, &build, locator, entry.released));
        if matches!(made, Err(Error::Closed)) {
            return;
        }
        if let Some(now) = locators.trees.write().get_mut(&tree).filter(|now| now.options == entry.options) {
            match made {
                Ok((locator, problem)) => {
                    *now = Entry { locator: Some(Arc::new(locator)), problem, failed_pages: None, ..entry };
                }
                Err(error) => {
                    tracing::warn!(%error, tree, "pages cannot be located in memory");
                    now.problem = Some(error.to_string());
                    now.failed_pages = Some(all);
                }
            }
        }
        self.share_memory();
    }

    /// The locator with its pages in memory, if they are to be there; and why they are not.
    fn with_pages(
        &self,
        tree: TreeId,
        build: &Build<'_>,
        locator: Locator,
        released: bool,
    ) -> (Locator, Option<String>) {
        if released {
            return (locator, Some("its pages had to make room for trees in memory".into()));
        }
        let locators = &self.files.locators;
        let (bytes, held) = locators.bytes_but(Some(tree));
        let taken = self.memory_tree_bytes() as u64 + bytes + held;
        let room = match locators.limit.load(Ordering::Relaxed) {
            0 => u64::MAX,
            limit => limit.saturating_sub(taken),
        };
        match build.hold(&locator, room) {
            Ok(Some(held)) => (held, None),
            // It may have as much, but others have it.
            Ok(None) if build.options.memory_bytes.is_some_and(|memory| room < memory) => {
                (locator, Some("its pages are not kept in memory: what is in memory already leaves no room".into()))
            }
            Ok(None) => (locator, None),
            Err(error) => {
                tracing::warn!(%error, tree, "pages are not kept in memory");
                (locator, Some(format!("its pages are not kept in memory: {error}")))
            }
        }
    }
}
