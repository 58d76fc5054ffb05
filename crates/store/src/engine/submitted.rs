//! Commits between their first part, which makes them visible to later commits, and their durability.

use std::sync::Arc;
use std::time::Instant;

use crate::base::Result;
use crate::engine::{Shared, nanoseconds_since};

/// A commit that waits for its durability; made by [`Store::submit`](crate::Store::submit). It takes place even if this is dropped.
#[derive(Debug)]
#[must_use = "the changes may be neither visible nor durable before `wait` returns"]
pub struct Submitted {
    shared: Arc<Shared>,
    sequence: u64,
    /// The newest logged sequence number at the time of the commit.
    logged: u64,
    /// When the commit began, if it is measured.
    started: Option<Instant>,
}

impl Submitted {
    /// Commit `sequence`, which began at `started`. `logged` is the newest logged sequence number at the time of the commit.
    pub(crate) fn new(shared: &Arc<Shared>, sequence: u64, logged: u64, started: Instant) -> Submitted {
        Submitted { shared: shared.clone(), sequence, logged, started: Some(started) }
    }

    /// All commits up to `sequence`, as one whose latency is not measured.
    pub(crate) fn through(shared: &Arc<Shared>, sequence: u64) -> Submitted {
        Submitted { shared: shared.clone(), sequence, logged: sequence, started: None }
    }

    /// Waits until the changes are durable as far as [`crate::Durability`] requires, and visible. Returns the sequence
    /// number of the commit. Blocks.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned), [`Error::Closed`](crate::Error::Closed), errors of the log's device. The changes may or may not survive then.
    pub fn wait(self) -> Result<u64> {
        let logged = self.shared.log.commit(self.logged);
        self.finish(logged)
    }

    /// Like [`Submitted::wait`], without blocking: a thread of the store waits for the device.
    ///
    /// # Errors
    /// As [`Submitted::wait`].
    pub async fn committed(self) -> Result<u64> {
        let logged = self.shared.log.committed(self.logged).await;
        self.finish(logged)
    }

    fn finish(self, logged: Result<()>) -> Result<u64> {
        if let Some(started) = self.started {
            self.shared.commits.complete(nanoseconds_since(started), logged.is_ok());
        }
        self.shared.checked(logged)?;
        if self.logged < self.sequence {
            // The commit has no log record of its own, and the commits before it are durable as required.
            self.shared.raise_floor(self.sequence);
        }
        Ok(self.sequence)
    }
}
