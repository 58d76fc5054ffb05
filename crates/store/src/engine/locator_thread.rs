//! The thread that rebuilds locators as leaves change, and the public calls that configure locators.
//!
//! `requested` counts changes of leaves; `done` is the request that the last pass over all registered trees has
//! covered.
//!
//! *Invariant.* `done <= requested`; both are equal when the thread is idle. The thread starts with the first locator.

use std::collections::BTreeMap;
use std::sync::Arc;

use keyaki_primitives::sync::thread::{Builder, JoinHandle};
use keyaki_primitives::sync::{Condvar, Mutex};

use crate::base::{Error, Result, TreeId};
use crate::engine::{Shared, Store};
use crate::locator::{LocatorOptions, LocatorStats, TreeLeaves};

/// The thread that rebuilds locators, and its requests.
#[derive(Debug, Default)]
pub(crate) struct LocatorThread {
    work: Mutex<LocatorWork>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LocatorWork {
    /// Number of requests.
    requested: u64,
    /// Number of requests covered by the last pass over all trees.
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
            // An error is the panic of the thread, which has ended in any case.
            drop(thread.join());
        }
    }
}

impl Store {
    /// Requests a locator for a tree on disk, replacing an existing one. A background thread builds it and keeps it up
    /// to date. Locators are not stored, so the call is needed after each opening of the database.
    ///
    /// # Errors
    /// [`Error::WrongTreeKind`] for a memory tree, [`Error::StartThread`].
    pub fn set_locator(&self, tree: TreeId, options: LocatorOptions) -> Result<()> {
        if tree.is_memory() {
            return Err(Error::WrongTreeKind { tree, kind: tree.kind() });
        }
        self.start_locator_thread()?;
        self.shared.locators.request(tree, options);
        self.shared.leaves_changed();
        Ok(())
    }

    /// Makes `wanted` the set of trees with locators: requests missing locators, replaces those with other options, and
    /// removes the locators of all other trees.
    ///
    /// # Errors
    /// Those of [`Store::set_locator`].
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

    /// Limits the bytes of memory trees, locators and the pages that locators keep, together. The pages are evicted if
    /// the sum exceeds the limit. Memory trees and locators are not limited by it.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.shared.locators.set_limit(bytes);
        self.shared.share_memory();
    }

    fn start_locator_thread(&self) -> Result<()> {
        let mut work = self.shared.locator_thread.work.lock();
        if work.thread.is_none() && !work.stop {
            let shared = self.shared.clone();
            let thread = Builder::new().name("keyaki-locate".into());
            let thread = thread.spawn(move || shared.update_locators());
            let failed = |source| Error::StartThread { thread: "keyaki-locate", source: Arc::new(source) };
            work.thread = Some(thread.map_err(failed)?);
        }
        Ok(())
    }

    /// Waits until the background thread has processed all changes of leaves that precede the call.
    pub fn wait_for_locators(&self) {
        let thread = &self.shared.locator_thread;
        let mut work = thread.work.lock();
        let requested = work.requested;
        while work.done < requested && !work.stop {
            thread.changed.wait(&mut work);
        }
    }

    /// Statistics of the locator of a tree; `None` if no locator was requested.
    pub fn locator_stats(&self, tree: TreeId) -> Option<LocatorStats> {
        self.shared.locators.stats(tree, || {
            let state = self.shared.state.read().clone();
            state.trees.get(&tree).map(|version| version.root.leaves()).unwrap_or_default()
        })
    }
}

impl Shared {
    /// Wakes the locator thread after a change of leaves. No effect if no locator was ever requested.
    pub fn leaves_changed(&self) {
        if self.locators.any() {
            self.locator_thread.work.lock().requested += 1;
            self.locator_thread.changed.notify_all();
        }
    }

    fn update_locators(&self) {
        /// Marks the thread as stopped when it ends or panics, so that no caller waits for it.
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

    /// Rebuilds the locator of a tree if it misses too many pages.
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
