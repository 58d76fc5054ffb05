//! The upload of new extents: threads read, verify and upload one object at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use keyaki_primitives::Random;
use keyaki_store::CheckpointImage;
use parking_lot::Mutex;

use super::Progress;
use super::plan::Plan;
use crate::error::{Error, Result};
use crate::format::{ObjectEntry, ObjectId, encode_object, stored_bytes};
use crate::parallel::for_each;
use crate::random::unique_random;
use crate::repository::{GRACE_MIN, Names, Repository};

/// Objects that a publisher may refer to although no version does: by the hash of the payload and the length in the
/// store.
pub(super) type Found = HashMap<(u128, u64), ObjectId>;

/// The objects that are younger than half of the shortest grace period. The collector never removes them while the
/// lease of a publisher that began at `started_us` lives.
pub(super) async fn found_objects(repository: &Repository, started_us: i64) -> Result<Found> {
    let listed = repository.remote.list(&repository.names.objects()).await?;
    let oldest_us = started_us - GRACE_MIN.as_micros() as i64 / 2;
    let young = listed.iter().filter(|object| object.modified_us > oldest_us);
    Ok(young.filter_map(|object| Names::id(&object.path).map(|id| ((id.hash, object.bytes), id))).collect())
}

#[derive(Debug)]
pub(super) struct Upload<'a> {
    repository: &'a Repository,
    image: &'a CheckpointImage,
    plan: &'a Plan,
    found: &'a Found,
    nonces: Mutex<Random>,
    uploaded: AtomicU64,
    resumed: AtomicU64,
}

impl<'a> Upload<'a> {
    pub fn new(repository: &'a Repository, image: &'a CheckpointImage, plan: &'a Plan, found: &'a Found) -> Self {
        let (uploaded, resumed) = Default::default();
        Upload { repository, image, plan, found, nonces: Mutex::new(unique_random()), uploaded, resumed }
    }

    /// Bytes uploaded, and bytes of objects that were found.
    pub fn bytes(&self) -> (u64, u64) {
        (self.uploaded.load(Ordering::Relaxed), self.resumed.load(Ordering::Relaxed))
    }

    /// Makes the objects of all groups. `None` if `progress` has ended the upload.
    pub fn run(&self, threads: usize, progress: Progress<'_>) -> Result<Option<Vec<ObjectEntry>>> {
        let groups = &self.plan.groups;
        let made: Mutex<Vec<Option<ObjectEntry>>> = Mutex::new(vec![None; groups.len()]);
        let work = |number: usize| {
            let object = self.object(&groups[number])?;
            made.lock()[number] = Some(object);
            let (uploaded, resumed) = self.bytes();
            Ok(progress(uploaded + resumed, self.plan.new_bytes))
        };
        let is_complete = for_each("keyaki-publish", threads, groups.len(), work)?;
        Ok(if is_complete { made.into_inner().into_iter().collect() } else { None })
    }

    /// Uploads the object of a group, unless there is one with its payload.
    fn object(&self, group: &[usize]) -> Result<ObjectEntry> {
        let payload = self.payload(group)?;
        let (payload_bytes, nonce) = (payload.len() as u64, self.nonces.lock().next_u64());
        let id = ObjectId::of(&payload, nonce);
        if let Some(&id) = self.found.get(&(id.hash, stored_bytes(payload_bytes))) {
            self.resumed.fetch_add(payload_bytes, Ordering::Relaxed);
            return Ok(ObjectEntry { id, payload_bytes });
        }
        let object = Bytes::from(encode_object(id, &payload));
        drop(payload);
        let (remote, path) = (self.repository.remote.clone(), self.repository.names.object(id));
        self.repository.remote.run(async move { remote.write(&path, object).await })?;
        self.uploaded.fetch_add(payload_bytes, Ordering::Relaxed);
        Ok(ObjectEntry { id, payload_bytes })
    }

    fn payload(&self, group: &[usize]) -> Result<Vec<u8>> {
        let bytes: u64 = group.iter().map(|&index| self.plan.entry(index).len).sum();
        let mut payload = Vec::with_capacity(bytes as usize);
        for &index in group {
            let read = match index == self.plan.table() {
                true => self.image.node_table().1,
                false => self.image.read_extent(index).map_err(Error::Database)?,
            };
            payload.extend_from_slice(&read);
        }
        Ok(payload)
    }
}
