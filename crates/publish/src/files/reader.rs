//! Objects that are read.

use std::collections::VecDeque;
use std::io::{Error, Read, Result};
use std::ops::Range;

use bytes::Bytes;
use object_store::{GetOptions, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, coalesce_ranges};

use super::{Bucket, Started, io_error};

/// Bytes of the first request of a reader. Each further one has twice as many, until the maximum.
const FIRST_BYTES: u64 = 256 << 10;
const REQUEST_BYTES_MAX: u64 = 8 << 20;
/// Requests under way, from the second one on.
const REQUESTS_AHEAD: usize = 4;

/// An object for reading. It keeps the bytes that it had when it was opened: if it has been replaced since, reading fails in
/// stores whose objects have tags.
#[derive(Debug, Clone)]
pub struct ObjectFile {
    bucket: Bucket,
    meta: ObjectMeta,
}

impl ObjectFile {
    pub(super) fn new(bucket: Bucket, meta: ObjectMeta) -> ObjectFile {
        ObjectFile { bucket, meta }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.meta.size
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bucket.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// A reader from the first byte on, which reads ahead. It blocks.
    pub fn reader(&self) -> ObjectReader {
        let (ahead, current) = Default::default();
        ObjectReader { file: self.clone(), requested: 0, request_bytes: FIRST_BYTES, ahead, current }
    }

    /// Reads ranges within the object. Near ones are requested together, several at a time. Runs on any runtime of tokio.
    ///
    /// # Errors
    /// Those of requests; `Other` if the object has been replaced.
    pub async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        coalesce_ranges(ranges, |range| self.read(range), OBJECT_STORE_COALESCE_DEFAULT).await.map_err(io_error)
    }

    async fn read(&self, range: Range<u64>) -> object_store::Result<Bytes> {
        let expected = range.end - range.start;
        let options =
            GetOptions { range: Some(range.into()), if_match: self.meta.e_tag.clone(), ..GetOptions::default() };
        let bytes = self.bucket.store.get_opts(&self.meta.location, options).await?.bytes().await?;
        match bytes.len() as u64 == expected {
            true => Ok(bytes),
            false => Err(object_store::Error::Generic {
                store: "object",
                source: format!("{} bytes instead of {expected}", bytes.len()).into(),
            }),
        }
    }
}

/// Reads an object from its first byte on.
#[derive(Debug)]
pub struct ObjectReader {
    file: ObjectFile,
    /// The end of the ranges that were requested.
    requested: u64,
    /// Length of the next request.
    request_bytes: u64,
    ahead: VecDeque<Started<Bytes>>,
    current: Bytes,
}

impl ObjectReader {
    /// Starts requests until there are `count` of them, or the end is reached.
    fn request(&mut self, count: usize) {
        while self.ahead.len() < count && self.requested < self.file.len() {
            let end = (self.requested + self.request_bytes).min(self.file.len());
            let (file, range) = (self.file.clone(), self.requested..end);
            self.ahead.push_back(self.file.bucket.start(async move { file.read(range).await }));
            self.requested = end;
            self.request_bytes = (self.request_bytes * 2).min(REQUEST_BYTES_MAX);
        }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.current.is_empty() {
            // The first bytes may be all that is needed.
            let count = if self.requested == 0 { 1 } else { REQUESTS_AHEAD };
            self.request(count);
            let Some(next) = self.ahead.pop_front() else { return Ok(0) };
            self.current = next.wait().map_err(|error| Error::new(error.kind(), error))?;
        }
        let len = buffer.len().min(self.current.len());
        buffer[..len].copy_from_slice(&self.current.split_to(len));
        Ok(len)
    }
}
