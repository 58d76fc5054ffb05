//! Calls closures at given times, on one thread, which ends when none is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Work that is due at a time. It returns the time until it is due again, if it is.
type Work = Box<dyn FnMut() -> Option<Duration> + Send>;

struct Entry {
    at: Instant,
    work: Work,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[derive(Default)]
struct Queue {
    entries: BinaryHeap<Reverse<Entry>>,
    /// The thread exists.
    has_thread: bool,
    /// The timers have been dropped: no work is due any more.
    has_ended: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A queue of closures, ordered by time. Dropping the queue drops the remaining closures.
#[derive(Default)]
pub(crate) struct Timers {
    shared: Arc<Shared>,
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timers({})", self.shared.queue.lock().entries.len())
    }
}

impl Timers {
    /// Runs `work`, which must be short, at `at` or soon after it, and again when it says so.
    pub fn schedule(&self, at: Instant, work: impl FnMut() -> Option<Duration> + Send + 'static) {
        let mut queue = self.shared.queue.lock();
        let is_next = queue.entries.peek().is_none_or(|Reverse(next)| at < next.at);
        queue.entries.push(Reverse(Entry { at, work: Box::new(work) }));
        if queue.has_thread {
            if is_next {
                self.shared.changed.notify_one();
            }
            return;
        }
        let shared = self.shared.clone();
        match std::thread::Builder::new().name("keyaki-timers".into()).spawn(move || shared.run()) {
            Ok(_) => queue.has_thread = true,
            // The next call tries again.
            Err(error) => tracing::warn!(%error, "could not start the thread of timeouts"),
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        let entries = {
            let mut queue = self.shared.queue.lock();
            queue.has_ended = true;
            std::mem::take(&mut queue.entries)
        };
        self.shared.changed.notify_one();
        drop(entries);
    }
}

impl Shared {
    fn run(&self) {
        /// After a panic of work, the next call of [`Timers::schedule`] starts another thread.
        struct Ended<'a>(&'a Shared);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.queue.lock().has_thread = false;
                }
            }
        }
        let _ended = Ended(self);
        let mut queue = self.queue.lock();
        loop {
            let Some(Reverse(next)) = queue.entries.peek() else {
                queue.has_thread = false;
                return;
            };
            let at = next.at;
            if at > Instant::now() {
                self.changed.wait_until(&mut queue, at);
                continue;
            }
            let Some(Reverse(Entry { mut work, .. })) = queue.entries.pop() else { continue };
            drop(queue);
            let again = work();
            queue = self.queue.lock();
            match again {
                Some(delay) if !queue.has_ended => {
                    queue.entries.push(Reverse(Entry { at: Instant::now() + delay, work }));
                }
                _ => {
                    drop(queue);
                    drop(work);
                    queue = self.queue.lock();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_the_order_of_its_times() {
        let (timers, (sender, receiver)) = (Timers::default(), std::sync::mpsc::channel());
        let now = Instant::now();
        for (number, delay) in [(2, 40), (1, 20), (0, 0)] {
            let (sender, mut again) = (sender.clone(), number == 0);
            timers.schedule(now + Duration::from_millis(delay), move || {
                sender.send((number, Instant::now())).unwrap();
                std::mem::take(&mut again).then_some(Duration::from_millis(60))
            });
        }
        for expected in [0, 1, 2, 0] {
            let (number, at) = receiver.recv().unwrap();
            assert_eq!(number, expected);
            assert!(at >= now + Duration::from_millis(20) * number);
        }
        // The thread has ended, or will; later work gets another one.
        timers.schedule(Instant::now(), move || sender.send((7, Instant::now())).map(|()| None).unwrap());
        assert_eq!(receiver.recv().unwrap().0, 7);
    }

    #[test]
    fn work_is_dropped_with_the_timers() {
        let (timers, kept) = (Timers::default(), Arc::new(()));
        let held = kept.clone();
        timers.schedule(Instant::now() + Duration::from_secs(3600), move || {
            assert_eq!(Arc::strong_count(&held), 1, "never called");
            None
        });
        drop(timers);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
