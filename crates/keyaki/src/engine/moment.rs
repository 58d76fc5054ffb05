//! Moments for statements on the short path: a catalog, a snapshot and views of trees, kept from one statement to the
//! next.
//!
//! Taking a snapshot changes reference counts that all threads share. For statements of a few microseconds, these
//! changes would cost more than the work itself, and they do not scale. A session therefore keeps its snapshot in a slot
//! of the database and renews it ([`keyaki_store::Store::renew`]), which only reads shared memory.
//!
//! *Invariant.* A slot keeps trees and buffers of an old generation only until [`Moments::release`], which the store
//! calls after it has replaced trees or buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyaki_store::{Snapshot, TreeId, TreeView};
use parking_lot::Mutex;

use super::Engine;
use crate::Result;
use crate::catalog::Catalog;

/// Number of slots. Sessions beyond it share slots.
const SLOTS: usize = 64;

/// The kept moments of a database.
#[derive(Debug)]
pub(crate) struct Moments {
    slots: Box<[Slot]>,
    next: AtomicUsize,
}

/// A slot on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Option<Moment>>);

/// The newest committed state that readers see, as of the start of a statement.
#[derive(Debug)]
pub(crate) struct Moment {
    pub catalog: Arc<Catalog>,
    catalog_version: u64,
    snapshot: Snapshot,
    /// Views of the trees used so far; some may be of earlier snapshots of the same generation.
    views: Vec<TreeView>,
}

impl Default for Moments {
    fn default() -> Self {
        Moments { slots: std::iter::repeat_with(Slot::default).take(SLOTS).collect(), next: AtomicUsize::new(0) }
    }
}

impl Moments {
    /// The slot of a new session.
    pub fn assign(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % SLOTS
    }

    /// Drops all moments of other generations than `generation`.
    pub fn release(&self, generation: u64) {
        for slot in &self.slots {
            let is_old = |moment: &mut Moment| moment.snapshot.generation() != generation;
            // The moment is dropped after the lock is released.
            let _old = slot.0.lock().take_if(is_old);
        }
    }

    /// Drops all moments.
    pub fn clear(&self) {
        for slot in &self.slots {
            let _moment = slot.0.lock().take();
        }
    }
}

impl Moment {
    /// The moment of a writing statement.
    pub fn of(catalog: Arc<Catalog>, snapshot: Snapshot) -> Moment {
        Moment { catalog, catalog_version: 0, snapshot, views: Vec::new() }
    }

    /// Makes `tree` available to [`Moment::view`].
    ///
    /// # Errors
    /// `TreeNotFound`.
    pub fn prepare(&mut self, tree: TreeId) -> Result<()> {
        match self.views.iter_mut().find(|view| view.tree() == tree) {
            Some(view) if self.snapshot.is_renewable() => view.renew(&self.snapshot),
            // The moment of one statement, such as one of a transaction, has views of this snapshot only.
            Some(_) => {}
            None => self.views.push(self.snapshot.tree(tree)?),
        }
        Ok(())
    }

    /// The view of a tree after [`Moment::prepare`].
    pub fn view(&self, tree: TreeId) -> Option<&TreeView> {
        self.views.iter().find(|view| view.tree() == tree)
    }
}

impl Engine {
    /// Calls `run` with the newest moment. `slot` is that of the session ([`Moments::assign`]).
    pub fn with_moment<T>(&self, slot: usize, run: impl FnOnce(&mut Moment) -> T) -> T {
        let mut kept = self.moments.slots[slot].0.lock();
        let is_newest = |moment: &mut Moment| {
            let version = || self.catalog_version.load(Ordering::Acquire);
            // The catalog must not change in between: the snapshot must have the trees of the catalog.
            moment.catalog_version == version()
                && self.store.renew(&mut moment.snapshot)
                && self.unpublished.load(Ordering::SeqCst) == 0
                && moment.catalog_version == version()
        };
        if let Some(moment) = kept.as_mut()
            && is_newest(moment)
        {
            return run(moment);
        }
        // Old trees and buffers are freed before new ones are kept. A commit of definitions empties the slots before it is
        // published, so the slot is not locked while this thread waits for that.
        drop(kept.take());
        drop(kept);
        let catalog_version = self.catalog_version.load(Ordering::Acquire);
        let (catalog, snapshot) = self.moment();
        let mut moment = Moment { catalog_version, ..Moment::of(catalog, snapshot) };
        let mut kept = self.moments.slots[slot].0.lock();
        // Trees that were replaced in the meantime are not kept.
        if !self.store.renew(&mut moment.snapshot) {
            drop(kept);
            return run(&mut moment);
        }
        run(kept.insert(moment))
    }
}
