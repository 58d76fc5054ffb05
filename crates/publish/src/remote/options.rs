//! How requests are made.

use std::time::Duration;

/// Limits of requests to an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOptions {
    /// Requests in flight at a time, at least 1.
    pub requests_max: usize,
    /// Attempts of each request, at least 1. An error that will not go away, as a refused permission, ends them early.
    pub attempts_max: u32,
    /// Wait before the second attempt. Doubles with each further one; a random half of it is left out.
    pub backoff: Duration,
    /// Limit of the wait between attempts.
    pub backoff_max: Duration,
    /// Time of an attempt, and one second for each MiB of it in addition.
    pub timeout: Duration,
    /// Shortest time after which a slow read gets a second request; `None` for no second requests.
    pub hedge_after: Option<Duration>,
    /// Seed of the random numbers of waits.
    pub seed: u64,
}

impl Default for RequestOptions {
    /// 512 requests in flight, 8 attempts within about 25 seconds, 30 seconds for each, second requests after 10 ms
    /// at least.
    fn default() -> Self {
        RequestOptions {
            requests_max: 512,
            attempts_max: 8,
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            hedge_after: Some(Duration::from_millis(10)),
            seed: 0,
        }
    }
}
