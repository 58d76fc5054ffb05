//! Results that keep a database open.
//!
//! A connection drops them when it is closed. They have places of their own, of which the connection has weak references. A
//! method that uses a result takes it out of its place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Number of results from which on those of dropped cursors are removed from the list.
const RESULTS_PRUNED: usize = 64;

/// The place of a result.
pub type Shelf<T> = Mutex<Option<T>>;

/// A [`Shelf`] of any result.
trait Held: Send + Sync {
    /// Drops the result.
    fn release(&self);
}

impl<T: Send> Held for Shelf<T> {
    fn release(&self) {
        let held = self.lock().take();
        drop(held);
    }
}

/// The results of a connection.
#[derive(Default)]
pub struct Shelves {
    results: Mutex<Vec<Weak<dyn Held>>>,
    is_closed: AtomicBool,
}

impl Shelves {
    /// The place for a result: the rows of a cursor, or a stream.
    pub fn shelf<T: Send + 'static>(&self) -> Arc<Shelf<T>> {
        let shelf = Arc::new(Shelf::<T>::new(None));
        let held: Arc<dyn Held> = shelf.clone();
        let mut results = self.results.lock();
        if results.len() >= RESULTS_PRUNED {
            results.retain(|result| result.strong_count() > 0);
        }
        results.push(Arc::downgrade(&held));
        shelf
    }

    /// Puts a result back into its place, unless the connection was closed meanwhile.
    pub fn put<T>(&self, shelf: &Shelf<T>, result: Option<T>) {
        let mut place = shelf.lock();
        // `close` empties the places after it has set this.
        if self.is_closed() {
            drop(place);
            drop(result);
        } else {
            *place = result;
        }
    }

    /// Drops all results. Results that are put back later are dropped at once.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let results = std::mem::take(&mut *self.results.lock());
        results.iter().filter_map(Weak::upgrade).for_each(|shelf| shelf.release());
    }

    /// True after [`Shelves::close`].
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}
