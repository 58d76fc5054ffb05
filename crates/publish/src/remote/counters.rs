//! Counters of requests.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests to an object store since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestStats {
    /// Reads of objects that were sent, with retries and second requests.
    pub reads: u64,
    /// Bytes of their bodies.
    pub bytes_read: u64,
    /// Writes of objects that were sent, with retries.
    pub writes: u64,
    /// Bytes of their bodies.
    pub bytes_written: u64,
    /// Listings, removals and queries of metadata that were sent, with retries.
    pub others: u64,
    /// Attempts after the first one of a request.
    pub retries: u64,
    /// Second requests for slow reads.
    pub hedges: u64,
    /// Responses with another length than requested, or with wrong checksums.
    pub damaged: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub reads: Counter,
    pub bytes_read: Counter,
    pub writes: Counter,
    pub bytes_written: Counter,
    pub others: Counter,
    pub retries: Counter,
    pub hedges: Counter,
    pub damaged: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub fn snapshot(&self) -> RequestStats {
        RequestStats {
            reads: self.reads.get(),
            bytes_read: self.bytes_read.get(),
            writes: self.writes.get(),
            bytes_written: self.bytes_written.get(),
            others: self.others.get(),
            retries: self.retries.get(),
            hedges: self.hedges.get(),
            damaged: self.damaged.get(),
        }
    }
}
