//! Epoch reclamation: blocks and values that were unlinked from a map are freed when no reader can see them any more.
//!
//! Each stripe collects retired blocks and values into a batch. A batch of [`BATCH_ITEMS`] items or [`BATCH_BYTES`]
//! bytes goes to the epoch collector as one deferred closure, so that the memory in batches that are not full is
//! bounded. The collector runs the closure when all guards that existed at that moment are gone. It then frees the
//! blocks into the arena, unless the map has been dropped, and the arena with it.
//!
//! Invariant: an item is retired once, after the last link to it in the map has been removed.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::Weak;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::arena::Arena;
use crate::guard::Guard;
use crate::sync::{STRIPES, stripe};

const BATCH_ITEMS: usize = 64;
const BATCH_BYTES: usize = 64 << 10;

/// Drops a value word.
pub(crate) type DropWord = unsafe fn(u64);

#[derive(Default)]
struct Batch {
    blocks: Vec<(NonNull<u8>, usize)>,
    bytes: usize,
    words: Vec<u64>,
}

// SAFETY: only the batch still refers to its blocks, and its words are those of values that are Send.
unsafe impl Send for Batch {}

pub(crate) struct Retired {
    stripes: [CachePadded<Mutex<Batch>>; STRIPES],
    arena: Weak<Arena>,
    drop_word: Option<DropWord>,
}

impl Retired {
    pub fn new(arena: &Arc<Arena>, drop_word: Option<DropWord>) -> Self {
        let stripes = std::array::from_fn(|_| CachePadded::default());
        Retired { stripes, arena: Arc::downgrade(arena), drop_word }
    }

    /// Retires a block of the arena.
    ///
    /// # Safety
    /// Nothing in the map refers to the block any more, it is retired once, and it has so many bytes of the arena. The
    /// caller uses the block only while it holds the guard.
    pub unsafe fn block(&self, block: NonNull<u8>, bytes: usize, guard: &Guard) {
        self.add(guard, |batch| {
            batch.blocks.push((block, bytes));
            batch.bytes += bytes;
        });
    }

    /// Retires a value.
    ///
    /// # Safety
    /// Nothing in the map refers to the value any more, and it is retired once.
    pub unsafe fn word(&self, word: u64, guard: &Guard) {
        if self.drop_word.is_some() {
            self.add(guard, |batch| batch.words.push(word));
        }
    }

    fn add(&self, guard: &Guard, push: impl FnOnce(&mut Batch)) {
        let mut batch = self.stripes[stripe()].lock();
        push(&mut batch);
        let items = batch.blocks.len() + batch.words.len();
        assert!(items <= BATCH_ITEMS, "{items} items in a batch");
        if items >= BATCH_ITEMS || batch.bytes >= BATCH_BYTES {
            let full = std::mem::take(&mut *batch);
            drop(batch);
            self.defer(full, guard);
        }
    }

    fn defer(&self, batch: Batch, guard: &Guard) {
        let (arena, drop_word) = (self.arena.clone(), self.drop_word);
        // SAFETY: everything in the batch has been unlinked. Threads that may still see it are pinned, and the closure
        // runs only after they have dropped their guards. The closure owns everything it uses.
        unsafe { guard.defer(move || batch.release(&arena, drop_word)) };
    }

    /// Hands all batches to the collector, full or not.
    pub fn flush(&self, guard: &Guard) {
        for stripe in &self.stripes {
            let batch = std::mem::take(&mut *stripe.lock());
            if !batch.blocks.is_empty() || !batch.words.is_empty() {
                self.defer(batch, guard);
            }
        }
    }
}

impl Batch {
    fn release(self, arena: &Weak<Arena>, drop_word: Option<DropWord>) {
        if let Some(drop_word) = drop_word {
            for word in self.words {
                // SAFETY: the value was retired once and no thread can see it any more.
                unsafe { drop_word(word) };
            }
        }
        if let Some(arena) = arena.upgrade() {
            for (block, bytes) in self.blocks {
                // SAFETY: the block was retired once and no thread can see it any more.
                unsafe { arena.free(block, bytes) };
            }
        }
    }
}

impl Drop for Retired {
    /// The map is dropped and has no readers, so that values in batches are dropped at once. Blocks are freed with the
    /// arena.
    fn drop(&mut self) {
        for stripe in &mut self.stripes {
            std::mem::take(stripe.get_mut()).release(&Weak::new(), self.drop_word);
        }
    }
}
