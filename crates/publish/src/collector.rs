//! Removal of old versions and of objects that no version needs.
//!
//! *Grace period.* Readers hold no leases: many may only read, and a reader that dies would keep its lease. Instead,
//! the objects of a removed version stay for a grace period of at least a day. A reader that opens the newest version
//! at least once in this period never misses an object; one that does not gets [`Error::Missing`], never other bytes,
//! because names of objects are never used again.
//!
//! *Two steps.* A version beyond the newest ones is *retired*: the ids of the objects that no later version has are
//! written to `retired/<number>-<nonce>`, then its manifest is removed. The date of the list begins the grace period.
//! Objects are removed when no version and no list within its grace period has them.
//!
//! *Directories.* Files under construction that are older than a day are removed. If their writer lives, it gets an
//! error and writes again.
//!
//! *Beside publishers.* The collector asks for the time, lists the objects, then the leases. If a lease is dead, it
//! writes a fence under the next number, and removes the lease. Then it lists the versions. It removes an object only
//! if it is older than the grace period, and older than half of the shortest grace period before the start of each
//! living lease. It retires a version only if it is ten minutes older than each living lease, so that the number of a
//! living publisher does not become free, and never the newest one. It removes fences below the newest version.
//!
//! *No object of the newest version is removed.* A publisher refers to (a) objects of the version that was the newest
//! one when it began, (b) objects that it has found, at most half of a grace period old when its lease began, and (c)
//! objects that it has written later.
//!
//! - *Its lease is not listed.* Either it had ended before: the later listing of versions has the manifest. Or the
//!   lease began afterwards: the objects (b) and (c) are too young for the collector. The removal itself may be
//!   delayed by any time: objects that the collector has chosen are too old for later publishers.
//! - *Its lease is alive.* The objects (b) and (c) are too young.
//! - *Its lease is dead.* The publisher may be suspended, or its last request may be on its way, for any time. It has
//!   read the highest number at most half an hour after its lease began, by the store's clock, and gives up otherwise.
//!   The lease was found dead later than that, so the publisher's number is at most the one after the highest number
//!   that the collector finds. After the write of the fence, the publisher's number is taken, or below a version: a
//!   number becomes free only when there is a newer version, which is never removed before a still newer one appears.
//!   So its manifest is in the listing that follows, or is refused, or is not the newest version.
//! - *Objects (a).* The collector keeps them until that version is retired. There is a newer version then, whose number
//!   is that of the publisher, or higher.
//!
//! A version that appears below the newest one may lack objects. No publisher builds on it, `open_version` opens it
//! only by its number, and reads of a missing object fail. Its publisher retires it as soon as it can. The proof needs
//! no clock but the store's, and no limit of the time that a request takes.

use std::collections::HashSet;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Error, Result};
use crate::format::{Manifest, ObjectId};
use crate::remote::Listed;
use crate::repository::lease::is_alive;
use crate::repository::{GRACE_MIN, Names, Numbers, Repository};

/// Time in microseconds by which the date of a manifest can precede its appearance: stores may date an object by the
/// beginning of its transfer.
const WRITE_US_MAX: i64 = 600_000_000;
/// Removals in flight.
const REMOVALS: usize = 32;
/// Attempts, if other collectors remove versions meanwhile.
const ATTEMPTS: usize = 5;

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
        if !dead.is_empty() {
            self.fence().await?;
        }
        for lease in &dead {
            remote.remove(&lease.path).await?;
        }
        let started_us = alive.iter().filter_map(|lease| Names::lease_start_us(&lease.path)).min();
        let Numbers { versions, fences } = self.numbers().await?;
        let kept = versions.len().saturating_sub(options.keep.max(1));
        // Publishers whose leases are not listed yet have seen the versions before `now_us`.
        let is_old = |published_us: i64| {
            published_us < now_us && started_us.is_none_or(|start| published_us + WRITE_US_MAX < start)
        };
        let (mut retired, mut needed) = (Vec::new(), HashSet::new());
        for (i, version) in versions.iter().enumerate() {
            let manifest = self.manifest(version.number).await?;
            match i < kept && is_old(version.published_us) {
                true => retired.push(manifest),
                false => needed.extend(ids(&manifest)),
            }
        }
        let mut collected = Collected { versions: retired.len() as u64, ..Collected::default() };
        // An object of several of them belongs to the newest one.
        for manifest in retired.into_iter().rev() {
            let own: Vec<ObjectId> = ids(&manifest).filter(|id| needed.insert(*id)).collect();
            self.retire(&manifest, &own).await?;
        }
        let newest = versions.last().map_or(0, |version| version.number);
        for fence in fences.into_iter().filter(|&fence| fence < newest) {
            remote.remove(&names.version(fence)).await?;
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
}

fn ids(manifest: &Manifest) -> impl Iterator<Item = ObjectId> {
    manifest.objects.iter().map(|object| object.id)
}
