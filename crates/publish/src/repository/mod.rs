//! A repository: the versions of one database under a prefix of an object store.
//!
//! ```text
//! PREFIX/versions/<number, 16 hexadecimal digits>      manifests: the versions; fences
//! PREFIX/objects/<2 digits>/<hash>-<nonce>             extents and node tables
//! PREFIX/leases/<start>-<random>                       publishers at work
//! PREFIX/retired/<number>-<nonce>                      objects of removed versions, until they are removed too
//! PREFIX/new/<random>                                  a directory's files under construction
//! PREFIX/clock                                         written for its date: the time of the store's clock
//! ```
//!
//! *Commit.* A manifest is written after everything that it refers to, under the number after the highest one, unless
//! there is an object of this name. The version exists from then on, and never changes.
//!
//! *Time.* All decisions compare times of the store's clock, as it dates objects.

pub(crate) mod lease;
mod names;
mod numbers;
mod open;
mod retired;

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;

use crate::error::{Error, Result};
use crate::format::{Manifest, Problem};
use crate::remote::{Remote, RequestStats};
pub(crate) use names::Names;
use numbers::FENCE;
pub(crate) use numbers::Numbers;
pub(crate) use open::check as check_url;

/// Shortest time for which the objects of a removed version stay. Objects that no version has are found by publishers
/// in half of it.
pub(crate) const GRACE_MIN: Duration = Duration::from_secs(24 * 3600);

/// Listings, if the newest version is replaced and removed meanwhile.
const NEWEST_ATTEMPTS: usize = 5;

/// The versions of one database in an object store. `Clone` returns another handle. All calls block.
#[derive(Debug, Clone)]
pub struct Repository {
    pub(crate) remote: Arc<Remote>,
    pub(crate) names: Names,
    /// The URL, for messages.
    pub(crate) name: Arc<str>,
}

/// A published version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Versions are numbered from 1 on, in the order of their publication.
    pub number: u64,
    /// Time of the publication by the store's clock, in microseconds since 1970.
    pub published_us: i64,
}

impl Repository {
    /// The versions, oldest first. One request for each 1000.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::TimedOut`].
    pub fn versions(&self) -> Result<Vec<Version>> {
        let repository = self.clone();
        self.remote.run(async move { Ok(repository.numbers().await?.versions) })
    }

    /// The requests of this handle and its clones so far, also those of [devices](crate::VersionDevice).
    pub fn request_stats(&self) -> RequestStats {
        self.remote.counters.snapshot()
    }

    /// The numbers that are taken, and the newest version, if there is one.
    pub(crate) async fn newest(&self) -> Result<(Numbers, Option<(Version, Manifest)>)> {
        let mut attempts = 1..NEWEST_ATTEMPTS;
        loop {
            let numbers = self.numbers().await?;
            let Some(newest) = numbers.newest() else { return Ok((numbers, None)) };
            match self.manifest(newest.number).await {
                // There is a newer one since, and the collector has removed this one.
                Err(Error::VersionNotFound { .. }) if attempts.next().is_some() => {}
                manifest => return Ok((numbers, Some((newest, manifest?)))),
            }
        }
    }

    /// A version.
    ///
    /// # Errors
    /// [`Error::VersionNotFound`], [`Error::Malformed`], [`Error::FormatVersion`]; those of a request.
    pub(crate) async fn manifest(&self, number: u64) -> Result<Manifest> {
        let path = self.names.version(number);
        let not_found = || Error::VersionNotFound { number, repository: self.name.to_string() };
        let decode = |body: bytes::Bytes| match Manifest::decode(&body) {
            _ if body[..] == FENCE => Ok(None),
            Err(Problem::Damaged(detail)) => Err(detail),
            decoded => Ok(Some(decoded)),
        };
        let decoded = self.remote.read(&path, None, decode).await.map_err(|error| match error {
            Error::Missing { .. } => not_found(),
            error => error,
        })?;
        let path = path.to_string();
        match decoded.ok_or_else(not_found)? {
            Ok(manifest) if manifest.number == number => Ok(manifest),
            Ok(Manifest { number: found, .. }) => {
                let detail = format!("it is the manifest of version {found}");
                Err(Error::Malformed { path, offset: 16, detail })
            }
            Err(Problem::Version(found)) => Err(Error::FormatVersion { path, found, supported: Problem::SUPPORTED }),
            Err(Problem::Malformed(offset, detail)) => Err(Error::Malformed { path, offset, detail }),
            Err(Problem::Damaged(detail)) => Err(Error::Damaged { path, offset: 0, detail, attempts: 1 }),
        }
    }

    /// The time of the store's clock now, in microseconds since 1970.
    pub(crate) async fn store_time_us(&self) -> Result<i64> {
        let path = self.names.clock();
        self.remote.write(&path, bytes::Bytes::from_static(b"clock")).await?;
        Ok(self.remote.head(&path).await?.modified_us)
    }
}

/// The path of a prefix in an object store.
///
/// # Errors
/// [`Error::InvalidUrl`].
pub(crate) fn parse_prefix(prefix: &str) -> Result<Path> {
    let invalid =
        |error: object_store::path::Error| Error::InvalidUrl { url: prefix.into(), detail: error.to_string() };
    Path::parse(prefix).map_err(invalid)
}
