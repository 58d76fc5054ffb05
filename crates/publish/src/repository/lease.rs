//! Leases of publishers.
//!
//! A lease is an object whose name has the time at which its publisher began, and whose date is the last sign of life
//! of the publisher, which writes it again every ten minutes. A lease that was not written for an hour is dead: the
//! collector writes a [fence](super::numbers) and removes it before it acts. A publisher that could not renew its
//! lease for half an hour gives up. This saves work and is not needed for safety: clocks and timers of a publisher that
//! was suspended can be wrong.
//!
//! As long as a lease lives, the collector removes no version that was published after the lease began, and no object
//! that the publisher may have found or written. See [`collector`](crate::collector).

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use keyaki_primitives::Random;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::Repository;
use crate::error::{Error, Result};
use crate::remote::{Listed, Remote};

/// Age at which a lease is dead.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);
/// Time without a renewal after which a publisher gives up.
const RENEWAL_MAX: Duration = Duration::from_secs(1800);
const RENEWAL: Duration = Duration::from_secs(600);

/// A lease of this process. Without [`Lease::end`], it dies an hour after the last renewal.
#[derive(Debug)]
pub(crate) struct Lease {
    remote: Arc<Remote>,
    path: Path,
    /// Time of the store's clock, in microseconds since 1970, before the lease was written.
    pub started_us: i64,
    renewed: Arc<Mutex<Renewed>>,
    renewals: JoinHandle<()>,
}

/// When the last renewal began.
#[derive(Debug, Clone, Copy)]
struct Renewed(Instant, SystemTime);

impl Renewed {
    fn now() -> Renewed {
        Renewed(Instant::now(), SystemTime::now())
    }

    /// One of the clocks stands while the machine sleeps.
    fn elapsed(self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
    }
}

impl Lease {
    /// Writes a lease.
    ///
    /// # Errors
    /// Those of requests.
    pub async fn begin(repository: &Repository, random: &mut Random) -> Result<Lease> {
        let remote = repository.remote.clone();
        let started_us = repository.store_time_us().await?;
        let path = repository.names.lease(started_us, random.next_u64());
        let renewed = Arc::new(Mutex::new(Renewed::now()));
        write(&remote, &path).await?;
        let (of_task, since) = ((remote.clone(), path.clone()), renewed.clone());
        let renewals = remote.handle().spawn(async move {
            let (remote, path) = of_task;
            loop {
                tokio::time::sleep(RENEWAL).await;
                let now = Renewed::now();
                if since.lock().elapsed() > RENEWAL_MAX {
                    return;
                }
                match write(&remote, &path).await {
                    Ok(()) => *since.lock() = now,
                    Err(error) => tracing::warn!(%error, "could not renew the lease of a publisher"),
                }
            }
        });
        Ok(Lease { remote, path, started_us, renewed, renewals })
    }

    /// Checks that the lease began at most half an hour before a time of the store's clock: it cannot have been found
    /// dead before this time.
    ///
    /// # Errors
    /// [`Error::LeaseExpired`].
    pub fn check_start(&self, now_us: i64) -> Result<()> {
        let is_young = now_us - self.started_us <= RENEWAL_MAX.as_micros() as i64;
        if is_young { Ok(()) } else { Err(self.expired()) }
    }

    fn expired(&self) -> Error {
        Error::LeaseExpired { path: self.path.to_string() }
    }

    /// Checks that the lease lives. Blocks.
    ///
    /// # Errors
    /// [`Error::LeaseExpired`], those of requests.
    pub fn check(&self) -> Result<()> {
        let (remote, path) = (self.remote.clone(), self.path.clone());
        match self.remote.run(async move { remote.head(&path).await }) {
            Err(Error::Missing { .. }) => return Err(self.expired()),
            found => found?,
        };
        if self.renewed.lock().elapsed() > RENEWAL_MAX { Err(self.expired()) } else { Ok(()) }
    }

    /// Removes the lease: its publisher has ended, and none of its requests is under way.
    pub async fn end(mut self) {
        self.renewals.abort();
        // An error is the abortion.
        let _ = (&mut self.renewals).await;
        if let Err(error) = self.remote.remove(&self.path).await {
            tracing::warn!(%error, "could not remove the lease of a publisher; it dies within an hour");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

async fn write(remote: &Remote, path: &Path) -> Result<()> {
    remote.write(path, Bytes::from_static(b"lease")).await
}

/// True if the publisher of a lease may be at work.
pub(crate) fn is_alive(lease: &Listed, now_us: i64) -> bool {
    lease.modified_us >= now_us - LIFETIME.as_micros() as i64
}
