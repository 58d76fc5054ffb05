//! Removal of old versions and of objects that no version needs.
//!
//! *Grace period.* Readers hold no leases: many may only read, and a reader that dies would keep its lease. Instead,
//! the objects of a removed version stay for a grace period of at least a day. A reader that opens the newest version
//! at least once in this period never misses an object; one that does not gets [`Error::Missing`], never other bytes,
//! because names of objects are never used again.
//!
//! *Two steps.* A version beyond the newest ones is *retired*: the ids of the objects that no later version has are
//! written to `retired/<number>`, then its manifest is removed. The date of `retired/<number>` begins the grace
//! period. Objects are removed when no version and no retired version within its grace period has them.
//!
//! *Directories.* Files under construction that are older than a day are removed. If their writer lives, it gets an
//! error and writes again.
//!
//! *Beside publishers.* The collector asks for the time, lists the objects, then the leases, then the versions. It
//! removes an object only if it is older than the grace period, and older than half of the shortest grace period
//! before the start of each living lease. It retires a version only if it is ten minutes older than each living lease.
//!
//! - *An object of a new version stays.* A publisher refers to (a) objects of the version that was the newest one
//!   when it began. That version is still the newest one when the manifest is written, or the number is taken: the
//!   collector never removes the newest version, nor one that appeared after the lease began, so the number cannot
//!   become free. (b) Objects that it has found, at most half of a grace period old when its lease began, and objects
//!   that it has written later. Either the collector sees the lease; or the lease had ended before, and the later
//!   listing of versions has the manifest; or the lease began afterwards, and the object is too young for the
//!   collector. The removal itself may be delayed by any time: objects that the collector has chosen are too old for
//!   later publishers, so no later version gets them.
//! - *A dead lease has no publisher.* The collector removes the lease first, and a publisher that does not find its
//!   lease, or could not renew it for half an hour, writes no manifest. The only assumption about clocks is that a
//!   request takes effect within half an hour.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::format::{Manifest, ObjectId};
use crate::remote::Listed;
use crate::repository::lease::is_alive;
use crate::repository::{GRACE_MIN, Names, Repository};

/// Time in microseconds by which the date of a manifest can precede its appearance: stores may date an object by the
/// beginning of its transfer.
const WRITE_US_MAX: i64 = 600_000_000;
/// Removals in flight.
const REMOVALS: usize = 32;
/// Attempts, if other collectors remove versions meanwhile.
const ATTEMPTS: usize = 5;
const MAGIC: [u8; 8] = *b"KEYAKIRT";

/// What [`Repository::collect`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectOptions {
    /// Newest versions that stay; 0 counts as 1.
    pub keep: usize,
    /// Time for which the objects of a removed version stay. Less than a day counts as a day.
    pub grace: Duration,
}

impl Default for CollectOptions {
    /// Seven versions and a day.
    fn default() -> Self {
        CollectOptions { keep: 7, grace: GRACE_MIN }
    }
}

/// The result of [`Repository::collect`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Versions removed.
    pub versions: u64,
    /// Objects removed.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

impl Repository {
    /// Removes versions beyond the newest ones, and objects that no version has needed for the grace period. Any
    /// number of processes may publish, read and collect meanwhile. Blocks.
    ///
    /// # Errors
    /// Those of requests, [`Error::Malformed`], [`Error::FormatVersion`]. Whatever was removed by then was not needed.
    pub fn collect(&self, options: &CollectOptions) -> Result<Collected> {
        let (repository, options) = (self.clone(), *options);
        self.remote.run(async move {
            for _ in 1..ATTEMPTS {
                match repository.try_collect(&options).await {
                    // Another collector has removed it.
                    Err(Error::VersionNotFound { .. }) => {}
                    collected => return collected,
                }
            }
            repository.try_collect(&options).await
        })
    }

    async fn try_collect(&self, options: &CollectOptions) -> Result<Collected> {
        let (remote, names) = (&self.remote, &self.names);
        let now_us = self.store_time_us().await?;
        let grace_us = options.grace.max(GRACE_MIN).as_micros() as i64;
        let objects = remote.list(&names.objects()).await?;
        let (alive, dead): (Vec<Listed>, Vec<Listed>) =
            remote.list(&names.leases()).await?.into_iter().partition(|lease| is_alive(lease, now_us));
        for lease in &dead {
            remote.remove(&lease.path).await?;
        }
        let started_us = alive.iter().filter_map(|lease| Names::lease_start_us(&lease.path)).min();
        let versions = self.list_versions().await?;
        let kept = versions.len().saturating_sub(options.keep.max(1));
        // Publishers whose leases are not listed yet have seen the versions before `now_us`.
        let is_old = |published_us: i64| {
            published_us < now_us && started_us.is_none_or(|start| published_us + WRITE_US_MAX < start)
        };
        let (mut retired, mut needed) = (Vec::new(), HashSet::new());
        for (i, version) in versions.iter().enumerate() {
            let ids = ids(&self.manifest(version.number).await?);
            match i < kept && is_old(version.published_us) {
                true => retired.push((version.number, ids)),
                false => needed.extend(ids),
            }
        }
        let mut collected = Collected { versions: retired.len() as u64, ..Collected::default() };
        // An object of several of them belongs to the newest one.
        for (number, ids) in retired.into_iter().rev() {
            let own: Vec<ObjectId> = ids.into_iter().filter(|id| needed.insert(*id)).collect();
            remote.write(&names.retired_version(number), encode(&own)).await?;
            remote.remove(&names.version(number)).await?;
        }
        let mut ended = Vec::new();
        for marker in remote.list(&names.retired()).await? {
            match marker.modified_us < now_us - grace_us {
                true => ended.push(marker.path),
                false => needed.extend(self.retired_ids(&marker).await?),
            }
        }
        let oldest_us = started_us.map_or(i64::MAX, |start| start - GRACE_MIN.as_micros() as i64 / 2);
        let before_us = oldest_us.min(now_us - grace_us);
        let is_needed = |object: &Listed| Names::id(&object.path).is_none_or(|id| needed.contains(&id));
        let unneeded = objects.into_iter().filter(|object| object.modified_us < before_us && !is_needed(object));
        let removals = stream::iter(unneeded).map(|object| async move {
            remote.remove(&object.path).await?;
            Ok::<u64, Error>(object.bytes)
        });
        let bytes: Vec<u64> = removals.buffer_unordered(REMOVALS).try_collect().await?;
        for marker in ended {
            remote.remove(&marker).await?;
        }
        for staged in remote.list(&names.staging()).await? {
            if staged.modified_us < now_us - GRACE_MIN.as_micros() as i64 {
                remote.remove(&staged.path).await?;
            }
        }
        (collected.objects, collected.bytes) = (bytes.len() as u64, bytes.iter().sum());
        Ok(collected)
    }

    /// The objects of a retired version. None if another collector has removed the list, since the objects were
    /// removed before.
    async fn retired_ids(&self, marker: &Listed) -> Result<Vec<ObjectId>> {
        match self.remote.read(&marker.path, None, |body| decode(&body)).await {
            Err(Error::Missing { .. }) => Ok(Vec::new()),
            ids => ids,
        }
    }
}

fn ids(manifest: &Manifest) -> Vec<ObjectId> {
    manifest.objects.iter().map(|object| object.id).collect()
}

/// The contents of `retired/<number>`: magic, ids, and the xxh3 of the bytes before.
fn encode(ids: &[ObjectId]) -> Bytes {
    let mut out = MAGIC.to_vec();
    for id in ids {
        out.extend_from_slice(&id.hash.to_le_bytes());
        out.extend_from_slice(&id.nonce.to_le_bytes());
    }
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.into()
}

fn decode(bytes: &[u8]) -> Result<Vec<ObjectId>, String> {
    let sound = bytes.split_last_chunk::<8>().filter(|(contents, sum)| xxh3_64(contents) == u64::from_le_bytes(**sum));
    let ids = sound.and_then(|(contents, _)| contents.strip_prefix(&MAGIC));
    let ids = ids.filter(|ids| ids.len().is_multiple_of(24)).ok_or("checksum mismatch")?;
    let id = |bytes: &[u8]| {
        let (hash, nonce) = bytes.split_first_chunk::<16>()?;
        Some(ObjectId { hash: u128::from_le_bytes(*hash), nonce: u64::from_le_bytes(nonce.try_into().ok()?) })
    };
    Ok(ids.chunks_exact(24).filter_map(id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_retired_objects_are_read_back() {
        let ids: Vec<ObjectId> = (0..5).map(|i| ObjectId { hash: 1 << (i * 20), nonce: i }).collect();
        let bytes = encode(&ids);
        assert_eq!(decode(&bytes), Ok(ids));
        assert_eq!(decode(&encode(&[])), Ok(Vec::new()));
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 4;
            assert!(decode(&changed).is_err() && decode(&bytes[..at]).is_err());
        }
    }
}
