//! The numbers of versions, and fences.
//!
//! A publisher writes its manifest under the number after the highest one that it has seen. A *fence* is an object in
//! the place of a manifest that takes a number away: the collector writes one after it has found a dead lease, so that
//! the publisher of this lease cannot write the newest version any more, however late its request arrives. The
//! [collector](crate::collector) has the proof. Readers ignore fences.

use bytes::Bytes;

use super::{Names, Repository, Version};
use crate::error::Result;

/// The contents of a fence. No manifest is that short.
pub(super) const FENCE: [u8; 8] = *b"KEYAKIFN";

/// The numbers that are taken, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub versions: Vec<Version>,
    pub fences: Vec<u64>,
}

impl Numbers {
    /// The number of the next version.
    pub fn next(&self) -> u64 {
        let (version, fence) = (self.newest().map(|version| version.number), self.fences.last().copied());
        version.max(fence).unwrap_or(0) + 1
    }

    pub fn newest(&self) -> Option<Version> {
        self.versions.last().copied()
    }
}

impl Repository {
    pub(crate) async fn numbers(&self) -> Result<Numbers> {
        let mut numbers = Numbers::default();
        for object in self.remote.list(&self.names.versions()).await? {
            match Names::number(&object.path) {
                Some(number) if object.bytes == FENCE.len() as u64 => numbers.fences.push(number),
                Some(number) => numbers.versions.push(Version { number, published_us: object.modified_us }),
                None => {}
            }
        }
        numbers.versions.sort_by_key(|version| version.number);
        numbers.fences.sort_unstable();
        Ok(numbers)
    }

    /// Takes the next number away from publishers. Another object under this number does so too.
    pub(crate) async fn fence(&self) -> Result<()> {
        let path = self.names.version(self.numbers().await?.next());
        self.remote.create(&path, Bytes::from_static(&FENCE)).await.map(drop)
    }
}
