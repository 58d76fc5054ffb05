//! Retired versions: a list of objects takes the place of a manifest.
//!
//! The list keeps the objects for readers that have opened the version. Its date begins the grace period. Its name has
//! the random number of the manifest: a number can have had several versions.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::Repository;
use crate::error::{Error, Result};
use crate::format::{Manifest, ObjectId};
use crate::remote::Listed;

const MAGIC: [u8; 8] = *b"KEYAKIRT";

impl Repository {
    /// Removes a version, and keeps `ids`, which are objects of it, for the grace period. The version must not be the
    /// newest one.
    pub(crate) async fn retire(&self, manifest: &Manifest, ids: &[ObjectId]) -> Result<()> {
        let list = self.names.retired_version(manifest.number, manifest.nonce);
        self.remote.write(&list, encode(ids)).await?;
        self.remote.remove(&self.names.version(manifest.number)).await
    }

    /// The objects of a retired version. None if another collector has removed the list, since the objects were
    /// removed before.
    pub(crate) async fn retired_ids(&self, list: &Listed) -> Result<Vec<ObjectId>> {
        match self.remote.read(&list.path, None, |body| decode(&body)).await {
            Err(Error::Missing { .. }) => Ok(Vec::new()),
            ids => ids,
        }
    }
}

/// The contents of a list: magic, ids, and the xxh3 of the bytes before.
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
