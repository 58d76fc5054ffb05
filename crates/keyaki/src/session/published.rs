//! The versions of a database in an object store, without opening them.

use std::path::Path;

use keyaki_publish::{Repository, Version};

use crate::engine::{default_device, published};
use crate::{Error, ObjectKind, Result};

/// A published version of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedVersion {
    /// Versions are numbered from 1 on, in the order of their publication.
    pub number: u64,
    /// Time of the publication by the store's clock, in microseconds since 1970.
    pub published_us: i64,
}

/// Receives the numbers of bytes copied so far and in total, from several threads, and ends the copy by returning
/// false.
type Progress<'p> = &'p (dyn Fn(u64, u64) -> bool + Sync);

/// True if [`Database::open`](crate::Database::open) takes a path for the URL of a published database.
pub fn is_url(path: impl AsRef<Path>) -> bool {
    published::is_url(path.as_ref())
}

/// The versions at the URL of a published database, oldest first.
///
/// # Errors
/// `ObjectStore`.
pub fn published_versions(url: &str) -> Result<Vec<PublishedVersion>> {
    // The number of a version selects none of them.
    let versions = Repository::from_url(published::split_version(url).0)?.versions()?;
    let version = |Version { number, published_us }| PublishedVersion { number, published_us };
    Ok(versions.into_iter().map(version).collect())
}

/// Copies a published version to a directory, which must not exist or be empty: a database that can be changed. The URL
/// may end with `@` and the number of a version; otherwise, it is the newest one. Returns the number of the version and
/// the bytes of its extents. `progress` receives the numbers of bytes copied so far and in total, from several threads,
/// and ends the copy by returning false.
///
/// # Errors
/// `ObjectStore`, `Io`, `DiskFull`, `AlreadyExists` if the directory has files, `Cancelled`.
pub fn clone_published(url: &str, directory: impl AsRef<Path>, progress: Progress<'_>) -> Result<(u64, u64)> {
    let (repository, number) = published::split_version(url);
    let directory = directory.as_ref();
    let device = default_device()?;
    let cloned = Repository::from_url(repository)?.clone_version(number, &device, directory, progress);
    match cloned {
        Ok(Some(cloned)) => Ok((cloned.number, cloned.bytes)),
        Ok(None) => Err(Error::Cancelled),
        Err(keyaki_publish::Error::DirectoryNotEmpty { path }) => {
            Err(Error::AlreadyExists { kind: ObjectKind::Database, name: path.display().to_string() })
        }
        Err(error) => Err(error.into()),
    }
}
