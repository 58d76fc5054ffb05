//! Which trees have locators; a thread that keeps them up to date as leaves are rewritten.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};

use super::build::{build, leaves};
use super::{Locator, LocatorOptions, LocatorStats};
use crate::extent::Extent;
use crate::files::Files;
use crate::memory::is_memory;
use crate::store::{Shared, Store};
use crate::tree::Codecs;
use crate::write::TreeId;
use crate::{Error, Result};

/// A locator is made anew if it misses one of so many of its tree's pages …
const SHARE_MISSING: u64 = 64;
/// … or so many pages.
const PAGES_MISSING: u64 = 1 << 14;

/// The trees with locators.
#[derive(Debug, Default)]
pub(crate) struct Locators {
    trees: RwLock<HashMap<TreeId, Entry>>,
    /// Whether there are any; looked at by whoever takes a view.
    any: AtomicBool,
}

#[derive(Debug, Clone)]
struct Entry {
    options: LocatorOptions,
    locator: Option<Arc<Locator>>,
    problem: Option<String>,
}

impl Entry {
    fn new(options: LocatorOptions) -> Self {
        Entry { options, locator: None, problem: None }
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

    /// Bytes of all locators, with the pages that they keep.
    pub fn bytes(&self) -> u64 {
        let trees = self.trees.read();
        trees.values().filter_map(|entry| entry.locator.as_ref()).map(|l| l.bytes() as u64 + l.held().1).sum()
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
        locators.trees.write().retain(|tree, entry| is_as_wanted(tree, &entry.options));
        for (&tree, &options) in wanted {
            if !locators.trees.read().contains_key(&tree) {
                self.set_locator(tree, options)?;
            }
        }
        self.shared.share_memory();
        Ok(())
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
        Some(LocatorStats { pages_missing: missing(&locator, &now).0, problem: entry.problem, ..locator.stats() })
    }
}

/// Pages of leaves that a locator does not know, and all pages.
fn missing(locator: &Locator, leaves: &[Arc<Extent>]) -> (u64, u64) {
    let pages = |leaf: &&Arc<Extent>| u64::from(leaf.meta.pages);
    let unknown = leaves.iter().filter(|leaf| !locator.knows(leaf));
    (unknown.map(|leaf| pages(&leaf)).sum(), leaves.iter().map(|leaf| pages(&leaf)).sum())
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
            locators.trees.write().remove(&tree);
            return;
        };
        let leaves = leaves(&version.root);
        if let Some(locator) = &entry.locator {
            let (missing, all) = missing(locator, &leaves);
            if missing * SHARE_MISSING < all && missing < PAGES_MISSING {
                return;
            }
        }
        let made = self.make_locator(&leaves, &entry, &version.codecs);
        if let Err(error) = &made
            && !self.keeper.should_stop()
        {
            tracing::warn!(%error, tree, "pages cannot be located in memory");
        }
        if let Some(now) = locators.trees.write().get_mut(&tree).filter(|now| now.options == entry.options) {
            match made {
                Ok(locator) => (now.locator, now.problem) = (Some(locator), None),
                Err(error) => now.problem = Some(error.to_string()),
            }
        }
        self.share_memory();
    }

    fn make_locator(&self, leaves: &[Arc<Extent>], entry: &Entry, codecs: &Codecs) -> Result<Arc<Locator>> {
        let go_on = || match self.keeper.should_stop() {
            true => Err(Error::Closed),
            false => Ok(()),
        };
        let last = entry.locator.as_ref();
        let locator = Arc::new(build(leaves, last, codecs, &self.files, &entry.options, &go_on)?);
        if locator.held.is_some() {
            for leaf in leaves {
                go_on()?;
                hold(&locator, leaf, codecs, &self.files)?;
            }
        }
        Ok(locator)
    }
}

/// Reads the pages of a leaf that are not held yet.
fn hold(locator: &Arc<Locator>, leaf: &Arc<Extent>, codecs: &Codecs, files: &Files) -> Result<()> {
    let Some(located) = locator.locate(leaf) else { return Ok(()) };
    if (0..located.pages()).all(|page| located.held(page).is_some()) {
        return Ok(());
    }
    let places: Vec<_> = (0..located.pages()).map(|page| located.entry(page).0).collect();
    for (number, page) in files.read_pages_once(leaf, &places, &codecs.schema)?.iter().enumerate() {
        page.check_rows(located.entry(number).1, true)?;
        located.hold(number, page);
    }
    Ok(())
}
