//! Publishing a checkpoint.
//!
//! ```text
//! lease ─► numbers, newest version ─► lease young? ─► image of the database ─► plan: extents that it has, groups of
//! the others ─► objects (several threads: read, verify, upload) ─► lease alive? ─► manifest, if absent
//!   ─► newest version? ─► end of the lease
//! ```
//!
//! *Conflicts.* The number of a version follows the highest one when the publisher began. So a manifest refers only to
//! objects of the version that was the newest one and to objects that the publisher has written or found, and exactly
//! one of several publishers gets the number. The others upload nothing again: the next attempt finds their objects.
//!
//! *Suspended publishers.* A publisher can be suspended at any time for any time, and its request can arrive late. If
//! the collector has found its lease dead meanwhile, there is a fence under its number or a newer version, so its
//! version is not the newest one: see [`collector`](crate::collector). After the manifest was written, the publisher
//! therefore lists the versions. If there is a newer one, its own may lack objects: it retires it and reports a
//! conflict.
//!
//! *Crashes.* Before the manifest is written, no version refers to the new objects. The next publisher finds them by
//! the hash in their names, if they are younger than half of the shortest grace period; otherwise the
//! [collector](crate::collector) removes them.

mod plan;
mod upload;

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use keyaki_store::{CheckpointImage, Store, TreeId};

use crate::error::{Error, Result};
use crate::format::{Manifest, ObjectEntry, ObjectId};
use crate::random::unique_random;
use crate::repository::lease::Lease;
use crate::repository::{Repository, Version};
use plan::Plan;
use upload::{Found, Upload, found_objects};

/// How a version is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishOptions {
    /// Threads that read, verify and upload extents, at least 1. Each has up to 32 MiB in memory, or one longer extent.
    pub threads: usize,
    /// The tree that programs read as a whole when they open a version, as their catalog. If it is short, one request
    /// brings it with the node table, and each version has it anew.
    pub first_tree: Option<TreeId>,
}

impl Default for PublishOptions {
    fn default() -> Self {
        PublishOptions { threads: 8, first_tree: None }
    }
}

/// The result of [`Repository::publish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The version.
    pub version: Version,
    /// False if the newest version already has this state of the database: nothing was uploaded.
    pub is_new: bool,
    /// Sequence number of the newest commit of the version.
    pub sequence: u64,
    /// Bytes of extents and of the node table that were uploaded.
    pub uploaded_bytes: u64,
    /// Bytes of extents that an interrupted publisher had uploaded.
    pub resumed_bytes: u64,
    /// Bytes of extents that the version before has.
    pub kept_bytes: u64,
}

/// Receives the numbers of bytes uploaded so far and in total, from several threads, and ends the upload by returning
/// false.
type Progress<'p> = &'p (dyn Fn(u64, u64) -> bool + Sync);

impl Repository {
    /// Publishes the newest checkpoint of a database. A store that is open for writing first writes a checkpoint with
    /// all commits so far; commits continue meanwhile. Uploads only the extents that the newest version does not
    /// have. `progress` receives the numbers of bytes uploaded so far and in total, from several threads, and ends
    /// the upload by returning false: the result is `None` then. Blocks.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::OtherDatabase`], [`Error::OlderState`], [`Error::LeaseExpired`]; [`Error::Database`] for a damaged
    /// page; those of requests. There is no new version then, except that one may appear if no attempt to write its
    /// manifest was answered, or if the listing afterwards failed.
    pub fn publish(
        &self,
        store: &Store,
        options: &PublishOptions,
        progress: Progress<'_>,
    ) -> Result<Option<Published>> {
        let repository = self.clone();
        let lease = self.remote.run(async move { Lease::begin(&repository, &mut unique_random()).await })?;
        let (published, is_certain) = match self.upload(store, &lease, options, progress) {
            Ok(Some(Prepared::New(prepared))) => self.commit(prepared, &lease),
            Ok(Some(Prepared::Unchanged(published))) => (Ok(Some(published)), true),
            Ok(None) => (Ok(None), true),
            Err(error) => (Err(error), true),
        };
        if is_certain {
            let _ = self.remote.run(async move {
                lease.end().await;
                Ok(())
            });
        }
        published
    }

    /// Uploads the extents and the node table that the newest version lacks. `None` if `progress` has ended it.
    fn upload(
        &self,
        store: &Store,
        lease: &Lease,
        options: &PublishOptions,
        progress: Progress<'_>,
    ) -> Result<Option<Prepared>> {
        let repository = self.clone();
        let (numbers, newest, now_us) = self.remote.run(async move {
            let (numbers, newest) = repository.newest().await?;
            Ok((numbers, newest, repository.store_time_us().await?))
        })?;
        lease.check_start(now_us)?;
        let image = store.checkpoint_image()?;
        let base = newest.as_ref().map(|(_, manifest)| manifest);
        if base.is_some_and(|base| base.database_id != image.database_id()) {
            return Err(Error::OtherDatabase { repository: self.name.to_string() });
        }
        if let Some((version, base)) = &newest
            && base.sequence > image.sequence()
        {
            return Err(Error::OlderState { number: version.number, repository: self.name.to_string() });
        }
        let plan = Plan::new(&image, options.first_tree, base);
        if let Some((version, base)) = &newest
            && base.superblock[..] == image.superblock()[..]
            && plan.groups.is_empty()
        {
            let (version, sequence, kept_bytes) = (*version, image.sequence(), plan.kept_bytes);
            let (is_new, uploaded_bytes, resumed_bytes) = (false, 0, 0);
            let unchanged = Published { version, is_new, sequence, uploaded_bytes, resumed_bytes, kept_bytes };
            return Ok(Some(Prepared::Unchanged(unchanged)));
        }
        let (repository, started_us) = (self.clone(), lease.started_us);
        let found: Found = self.remote.run(async move { found_objects(&repository, started_us).await })?;
        let upload = Upload::new(self, &image, &plan, &found);
        let Some(objects) = upload.run(options.threads, progress)? else { return Ok(None) };
        let (uploaded_bytes, resumed_bytes) = upload.bytes();
        let number = numbers.next();
        let manifest = manifest(&image, &plan, base, &objects, number);
        let (version, is_new, sequence) = (Version { number, published_us: 0 }, true, image.sequence());
        let kept_bytes = plan.kept_bytes;
        let published = Published { version, is_new, sequence, uploaded_bytes, resumed_bytes, kept_bytes };
        Ok(Some(Prepared::New((manifest, published))))
    }

    /// Writes the manifest. False if it may appear later.
    fn commit(&self, (manifest, published): (Manifest, Published), lease: &Lease) -> (Result<Option<Published>>, bool) {
        let (repository, number) = (self.clone(), manifest.number);
        let checked = lease.check();
        if let Err(error) = checked {
            return (Err(error), true);
        }
        let (remote, bytes, path) = (self.remote.clone(), Bytes::from(manifest.encode()), self.names.version(number));
        match self.remote.run(async move { remote.create(&path, bytes).await }) {
            Ok(true) => {
                let confirmed = self.remote.run(async move { repository.confirm(manifest).await });
                (confirmed.map(|version| Some(Published { version, ..published })), true)
            }
            Ok(false) => (Err(Error::Conflict { number }), true),
            Err(error) => (Err(error), false),
        }
    }
}

impl Repository {
    /// Checks that a version that was written is the newest one. Otherwise retires it: it may lack objects.
    async fn confirm(&self, manifest: Manifest) -> Result<Version> {
        let versions = self.numbers().await?.versions;
        match versions.last() {
            Some(newest) if newest.number > manifest.number => {
                let ids: Vec<ObjectId> = manifest.objects.iter().map(|object| object.id).collect();
                if let Err(error) = self.retire(&manifest, &ids).await {
                    tracing::warn!(%error, number = manifest.number, "could not remove an old version");
                }
                Err(Error::Conflict { number: newest.number })
            }
            Some(newest) if newest.number == manifest.number => Ok(*newest),
            // A version is removed only if there is a newer one: another program has removed it.
            _ => Err(Error::VersionNotFound { number: manifest.number, repository: self.name.to_string() }),
        }
    }
}

/// What an upload has prepared.
enum Prepared {
    New((Manifest, Published)),
    Unchanged(Published),
}

/// The manifest of an image: kept ranges, and groups with the objects that they were uploaded to.
fn manifest(
    image: &CheckpointImage,
    plan: &Plan,
    base: Option<&Manifest>,
    objects: &[ObjectEntry],
    number: u64,
) -> Manifest {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (ranges, objects) = plan.ranges(base, objects);
    Manifest {
        number,
        published_us: i64::try_from(time.as_micros()).unwrap_or(i64::MAX),
        nonce: unique_random().next_u64(),
        database_id: image.database_id(),
        sequence: image.sequence(),
        data_bytes: image.data_bytes(),
        superblock: image.superblock().to_vec(),
        objects,
        ranges,
    }
}
