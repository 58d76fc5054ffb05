//! What goes wrong, and how often.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use keyaki_primitives::Random;

/// Faults of the requests to a server. A fault in one of 0 requests never happens.
#[derive(Debug, Clone, Default, Args)]
pub struct Faults {
    /// Milliseconds before each answer
    #[arg(long, default_value_t = 0)]
    pub latency_ms: u64,
    /// One of so many requests is slow
    #[arg(long, default_value_t = 0)]
    pub slow_one_in: u64,
    /// Milliseconds before the answer to a slow request
    #[arg(long, default_value_t = 200)]
    pub slow_ms: u64,
    /// One of so many requests is refused with status 503
    #[arg(long, default_value_t = 0)]
    pub refused_one_in: u64,
    /// One of so many parts of objects ends early
    #[arg(long, default_value_t = 0)]
    pub truncated_one_in: u64,
    /// One of so many parts of objects has a wrong bit
    #[arg(long, default_value_t = 0)]
    pub wrong_one_in: u64,
    /// Seed of the random numbers that choose requests
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Requests that a server has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// All requests, by their methods.
    pub gets: u64,
    pub puts: u64,
    /// Queries of metadata, removals, and others.
    pub others: u64,
    /// Most requests at the same time.
    pub concurrent_max: u64,
    /// Bytes of the bodies of answers.
    pub bytes_sent: u64,
    pub refused: u64,
    pub truncated: u64,
    pub wrong: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { gets, puts, others, concurrent_max, bytes_sent, refused, truncated, wrong } = self;
        writeln!(f, "gets {gets}\nputs {puts}\nothers {others}\nconcurrent_max {concurrent_max}")?;
        writeln!(f, "bytes_sent {bytes_sent}\nrefused {refused}\ntruncated {truncated}\nwrong {wrong}")
    }
}

/// What happens to a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    pub delay: Duration,
    pub is_refused: bool,
    pub is_truncated: bool,
    pub is_wrong: bool,
    /// For the place of the fault in the body.
    pub random: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    faults: Mutex<(Faults, Random)>,
    pub gets: AtomicU64,
    pub puts: AtomicU64,
    pub others: AtomicU64,
    pub concurrent: AtomicU64,
    pub concurrent_max: AtomicU64,
    pub bytes_sent: AtomicU64,
    pub refused: AtomicU64,
    pub truncated: AtomicU64,
    pub wrong: AtomicU64,
}

impl State {
    pub fn new(faults: Faults) -> State {
        let random = Random::new(faults.seed);
        State {
            faults: Mutex::new((faults, random)),
            gets: AtomicU64::new(0),
            puts: AtomicU64::new(0),
            others: AtomicU64::new(0),
            concurrent: AtomicU64::new(0),
            concurrent_max: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        }
    }

    pub fn set(&self, faults: Faults) {
        let random = Random::new(faults.seed);
        *self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = (faults, random);
    }

    pub fn fate(&self) -> Fate {
        let mut guard = self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (faults, random) = &mut *guard;
        let mut happens = |one_in: u64| one_in > 0 && random.one_in(one_in);
        let is_slow = happens(faults.slow_one_in);
        let (is_refused, is_truncated) = (happens(faults.refused_one_in), happens(faults.truncated_one_in));
        let is_wrong = happens(faults.wrong_one_in);
        let delay = Duration::from_millis(if is_slow { faults.slow_ms } else { faults.latency_ms });
        Fate { delay, is_refused, is_truncated, is_wrong, random: random.below(1 << 32) }
    }

    pub fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            gets: get(&self.gets),
            puts: get(&self.puts),
            others: get(&self.others),
            concurrent_max: get(&self.concurrent_max),
            bytes_sent: get(&self.bytes_sent),
            refused: get(&self.refused),
            truncated: get(&self.truncated),
            wrong: get(&self.wrong),
        }
    }
}
