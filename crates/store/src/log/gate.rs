//! Where committers wait for the end of a turn.
//!
//! A gate has a mutex of its own. The committers woken at the end of a turn would otherwise queue for the mutex of the
//! log, and each would be woken by the one before it.

use std::sync::PoisonError;

use keyaki_primitives::sync::standard::{Condvar, Mutex, MutexGuard};

/// Waiting place for the turns of one parity: threads wait for at most one turn of each parity at a time.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// The newest turn that has ended.
    ended: u64,
    /// A turn without a leader. The next thread that waits for it returns, and leads it.
    vacant: u64,
}

impl Gate {
    /// Waits until `turn` has ended, or is offered to this thread. May return earlier: the caller checks its condition
    /// again.
    pub fn wait(&self, turn: u64) {
        let mut state = self.lock();
        while state.ended < turn && state.vacant != turn {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.vacant == turn {
            state.vacant = 0;
        }
    }

    /// Ends `turn` and wakes the threads that wait for it. With `u64::MAX`, no thread waits any more.
    pub fn end(&self, turn: u64) {
        let mut state = self.lock();
        state.ended = state.ended.max(turn);
        drop(state);
        self.changed.notify_all();
    }

    /// Offers `turn` to one of the threads that wait for it, or to the next one that does.
    pub fn offer(&self, turn: u64) {
        self.lock().vacant = turn;
        self.changed.notify_one();
    }

    /// The state is sound at all times, so a panic of another thread does not matter.
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn an_offer_releases_one_thread_and_an_end_all() {
        let gate = Gate::default();
        let released = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    gate.wait(3);
                    released.fetch_add(1, Ordering::SeqCst);
                });
            }
            gate.end(1);
            gate.offer(3);
            while released.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!((released.load(Ordering::SeqCst), gate.lock().vacant), (1, 0));
            gate.end(3);
        });
        assert_eq!(released.into_inner(), 8);
        // An older end does not close the gate again, and an offer without waiting threads stays.
        gate.end(1);
        gate.wait(3);
        gate.offer(5);
        gate.wait(5);
        assert_eq!(gate.lock().vacant, 0);
        gate.end(u64::MAX);
        gate.wait(u64::MAX);
    }
}
