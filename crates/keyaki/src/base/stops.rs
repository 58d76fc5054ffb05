//! Stops of statements at their stages, for tests.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;

use parking_lot::Mutex;

use super::interrupt::Stage;

/// The stop of a session; none by default.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    next: Mutex<Option<Next>>,
}

/// The next stop: its stage, where to report the stopped thread, and what releases it.
type Next = (Stage, Sender<ThreadId>, Receiver<()>);

/// Stops the next statement of a session that reaches a stage. Dropping it lets the statement go on.
#[derive(Debug)]
pub(crate) struct Stop {
    /// Receives the thread that was stopped; closed without a message if no thread was.
    pub reached: Receiver<ThreadId>,
    _release: Sender<()>,
}

impl Stops {
    /// Stops the next statement at `stage`, once.
    pub fn stop_at(&self, stage: Stage) -> Stop {
        let (sender, reached) = channel();
        let (_release, released) = channel();
        *self.next.lock() = Some((stage, sender, released));
        Stop { reached, _release }
    }

    /// Removes a stop that was not reached.
    pub fn clear(&self) {
        self.next.lock().take();
    }

    pub fn reach(&self, stage: Stage) {
        let stop = self.next.lock().take_if(|(at, ..)| *at == stage);
        if let Some((_, sender, released)) = stop {
            // The test may have ended.
            let _ = sender.send(std::thread::current().id());
            let _ = released.recv();
        }
    }
}
