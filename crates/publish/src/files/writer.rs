//! Objects that are written.

use std::collections::VecDeque;
use std::fmt;
use std::io::{Result, Write};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};

use super::{Bucket, Started, Stop};

/// Bytes of a part: stores permit 10,000 parts of an object, so it can have 160 GB.
const PART_BYTES: usize = 16 << 20;
/// Parts that are uploaded at a time. The memory of a writer is that of one part more.
const PARTS_MAX: usize = 3;

/// Time to remove the parts of an object that is not finished.
const ABORT_TIME: Duration = Duration::from_secs(10);

/// Writes an object, in parts if it is long. The object appears when the writer is [finished](ObjectWriter::finish);
/// dropping the writer before that leaves nothing, if the store answers within ten seconds. Blocks.
pub struct ObjectWriter {
    bucket: Bucket,
    path: Path,
    part: Vec<u8>,
    /// From the first whole part on.
    upload: Option<Box<dyn MultipartUpload>>,
    under_way: VecDeque<Started<()>>,
    stop: Stop,
}

impl ObjectWriter {
    pub(super) fn new(bucket: Bucket, path: Path, stop: Stop) -> ObjectWriter {
        ObjectWriter { bucket, path, part: Vec::new(), upload: None, under_way: VecDeque::new(), stop }
    }

    /// Uploads the bytes since the last part as one.
    fn upload_part(&mut self) -> Result<()> {
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => {
                let (store, path) = (self.bucket.store.clone(), self.path.clone());
                self.bucket.start(async move { store.put_multipart(&path).await }).wait_unless(&*self.stop)?
            }
        };
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART_BYTES));
        let request = upload.put_part(PutPayload::from(Bytes::from(part)));
        self.upload = Some(upload);
        self.under_way.push_back(self.bucket.start(request));
        self.wait_for_parts(PARTS_MAX)
    }

    /// Waits until at most `count` parts are under way.
    fn wait_for_parts(&mut self, count: usize) -> Result<()> {
        while self.under_way.len() > count
            && let Some(first) = self.under_way.pop_front()
        {
            first.wait_unless(&*self.stop)?;
        }
        Ok(())
    }

    /// Writes the rest, and makes the object visible, durably.
    ///
    /// # Errors
    /// Those of requests: there is no new object then, unless the store has lost its last answer.
    pub fn finish(mut self) -> Result<()> {
        if self.upload.is_none() {
            let (store, path, part) = (self.bucket.store.clone(), self.path.clone(), std::mem::take(&mut self.part));
            let request = async move { store.put(&path, PutPayload::from(Bytes::from(part))).await.map(drop) };
            return self.bucket.start(request).wait_unless(&*self.stop);
        }
        if !self.part.is_empty() {
            self.upload_part()?;
        }
        self.wait_for_parts(0)?;
        let Some(mut upload) = self.upload.take() else { return Ok(()) };
        let (result, upload) = {
            let request = async move {
                let result = upload.complete().await.map(drop);
                Ok((result, upload))
            };
            self.bucket.run(request)?
        };
        result.map_err(|error| {
            self.upload = Some(upload);
            super::io_error(error)
        })
    }
}

impl Write for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let len = bytes.len().min(PART_BYTES - self.part.len());
        self.part.extend_from_slice(&bytes[..len]);
        if self.part.len() == PART_BYTES {
            self.upload_part()?;
        }
        Ok(len)
    }

    /// Does nothing: no object appears before the end.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        let deadline = Instant::now() + ABORT_TIME;
        // A part that arrives after the end of the upload would stay. Rules of the store remove what stays, if it has such.
        for part in self.under_way.drain(..) {
            let _ = part.wait_until(deadline);
        }
        let _ = self.bucket.start(async move { upload.abort().await }).wait_until(deadline);
    }
}

impl fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWriter").field("path", &self.path).finish_non_exhaustive()
    }
}
