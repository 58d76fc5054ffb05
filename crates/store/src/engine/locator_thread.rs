//! The thread that keeps locators up to date as leaves are rewritten, and the calls that give locators to trees.
//!
//! Requests are counted: `requested` grows with every change of leaves, and `done` follows when all trees have been looked at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::base::{Error, Result, TreeId};
use crate::engine::{Shared, Store};
use crate::locator::{LocatorOptions, LocatorStats, TreeLeaves};

/// What the thread is asked to do.
#[derive(Debug, Default)]
pub(crate) struct LocatorThread {
    work: Mutex<LocatorWork>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LocatorWork {
    /// Counts requests; everything up to `done` has been looked at.
    requested: u64,
    done: u64,
    stop: bool,
    thread: Option<JoinHandle<()>>,
}

impl LocatorThread {
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
    /// [`Error::WrongTreeKind`] for a tree in memory, [`Error::StartThread`].
    pub fn set_locator(&self, tree: TreeId, options: LocatorOptions) -> Result<()> {
        if tree.is_memory() {
            return Err(Error::WrongTreeKind { tree, in_memory: true });
        }
        self.start_locator_thread()?;
        self.shared.locators.request(tree, options);
        self.shared.leaves_changed();
        Ok(())
    }

    /// Gives locators to all trees of `wanted` that have none, or others, and takes them from all other trees.
    ///
    /// # Errors
    /// As [`Store::set_locator`].
    pub fn set_locators(&self, wanted: &BTreeMap<TreeId, LocatorOptions>) -> Result<()> {
        self.shared.locators.retain(wanted);
        for (&tree, &options) in wanted {
            if !self.shared.locators.contains(tree) {
                self.set_locator(tree, options)?;
            }
        }
        self.shared.share_memory();
        Ok(())
    }

    /// What trees in memory, locators and the pages that these keep may take together. Pages are let go of when others need
    /// the room.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.shared.locators.set_limit(bytes);
        self.shared.share_memory();
    }

    fn start_locator_thread(&self) -> Result<()> {
        let mut work = self.shared.locator_thread.work.lock();
        if work.thread.is_none() && !work.stop {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("keyaki-locate".into());
            let thread = thread.spawn(move || shared.update_locators());
            let failed = |source| Error::StartThread { thread: "keyaki-locate", source: Arc::new(source) };
            work.thread = Some(thread.map_err(failed)?);
        }
        Ok(())
    }

    /// Waits until locators are as the trees were when this was called (as far as they should be).
    pub fn wait_for_locators(&self) {
        let thread = &self.shared.locator_thread;
        let mut work = thread.work.lock();
        let requested = work.requested;
        while work.done < requested && !work.stop {
            thread.changed.wait(&mut work);
        }
    }

    /// What the locator of a tree is made of; none if it should have none.
    pub fn locator_stats(&self, tree: TreeId) -> Option<LocatorStats> {
        self.shared.locators.stats(tree, || {
            let state = self.shared.state.read().clone();
            state.trees.get(&tree).map(|version| version.root.leaves()).unwrap_or_default()
        })
    }
}

impl Shared {
    /// Some trees have other leaves than before.
    pub fn leaves_changed(&self) {
        if self.locators.any() {
            self.locator_thread.work.lock().requested += 1;
            self.locator_thread.changed.notify_all();
        }
    }

    fn update_locators(&self) {
        /// Nobody waits for what will never come.
        struct Unfinished<'a>(&'a LocatorThread);
        impl Drop for Unfinished<'_> {
            fn drop(&mut self) {
                self.0.work.lock().stop = true;
                self.0.changed.notify_all();
            }
        }
        let _unfinished = Unfinished(&self.locator_thread);
        loop {
            let requested = {
                let mut work = self.locator_thread.work.lock();
                while work.done == work.requested && !work.stop {
                    self.locator_thread.changed.wait(&mut work);
                }
                if work.stop {
                    return;
                }
                work.requested
            };
            for tree in self.locators.trees() {
                self.update_locator(tree);
            }
            self.locator_thread.work.lock().done = requested;
            self.locator_thread.changed.notify_all();
        }
    }

    /// Builds a tree's locator again if too many leaves have changed.
    fn update_locator(&self, tree: TreeId) {
        let version = self.state.read().trees.get(&tree).cloned();
        let leaves =
            version.map(|version| TreeLeaves { leaves: version.root.leaves(), codecs: version.codecs.clone() });
        let others = || self.memory_tree_bytes() as u64;
        if self.locators.update(tree, leaves, others, || self.locator_thread.should_stop()) {
            self.share_memory();
        }
    }
}
