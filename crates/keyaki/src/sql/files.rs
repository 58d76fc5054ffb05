//! The files that statements read and write: those of the file system, and the objects of stores.
//!
//! A path that begins with a scheme, such as `s3://`, is the URL of an object. Those with the scheme `file` name files of the
//! file system. Requests to stores block: they belong on threads of the blocking pool.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_publish::{Bucket, Buckets, ObjectFile, ObjectWriter, Stop};

use super::file_access::FileAccess;
use super::publish::directory_of;
use crate::engine::published::is_url;
use crate::{Error, Result};

/// The files that a session may use.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    access: Arc<FileAccess>,
    buckets: Arc<Buckets>,
}

/// A file that was opened for reading.
#[derive(Debug)]
pub(crate) enum OpenFile {
    Local(File),
    Object(ObjectFile),
}

impl Files {
    pub fn new(access: Arc<FileAccess>, buckets: Arc<Buckets>) -> Self {
        Files { access, buckets }
    }

    /// The files of the file system among them.
    pub fn access(&self) -> &Arc<FileAccess> {
        &self.access
    }

    /// Checks a file, a directory or a URL, which need not exist.
    ///
    /// # Errors
    /// `FileAccess`.
    pub fn check(&self, path: &Path) -> Result<()> {
        match path.to_str().filter(|_| is_url(path)) {
            Some(url) if directory_of(url).is_none() => self.access.check_object(url),
            _ => self.access.check(&local(path)),
        }
    }

    /// Checks a directory of the file system.
    ///
    /// # Errors
    /// `FileAccess`; `Unsupported` for URLs.
    pub fn check_directory(&self, path: &Path, statement: &str) -> Result<()> {
        match is_url(path) {
            true => Err(Error::Unsupported(format!("URLs in {statement} (use PUBLISH DATABASE, or COPY)"))),
            false => self.access.check(path),
        }
    }

    /// Opens a file or object for reading. Blocks.
    ///
    /// # Errors
    /// `FileAccess`; `Io`, also for directories and other files that are not regular ones.
    pub fn open(&self, path: &Path) -> Result<OpenFile> {
        let Some(url) = object_url(path) else {
            return self.access.open(&local(path)).map(OpenFile::Local);
        };
        let (bucket, name) = self.bucket(url)?;
        bucket.open(name).map(OpenFile::Object).map_err(|error| Error::io("open", path, error))
    }

    /// A writer of an object, and nothing for files of the file system. `stop` ends its calls early. Makes no request.
    ///
    /// # Errors
    /// `FileAccess`; `Io` if no object can have this name.
    pub fn create_object(&self, path: &Path, stop: Stop) -> Result<Option<ObjectWriter>> {
        let Some(url) = object_url(path) else { return Ok(None) };
        let (bucket, name) = self.bucket(url)?;
        bucket.create(name, stop).map(Some).map_err(|error| Error::io("create", path, error))
    }

    /// The bucket of a URL, and the name of an object in it.
    ///
    /// # Errors
    /// `FileAccess`; `Io` for other URLs and unknown settings.
    pub fn bucket<'u>(&self, url: &'u str) -> Result<(Bucket, &'u str)> {
        self.access.check_object(url)?;
        self.buckets.find(url).map_err(|error| Error::io("open", Path::new(url), error))
    }
}

impl Default for Files {
    /// All files, and objects with the credentials of the environment.
    fn default() -> Self {
        Files::new(Arc::default(), Arc::new(Buckets::new(Vec::new())))
    }
}

/// The URL of an object; `None` for files of the file system.
pub(in crate::sql) fn object_url(path: &Path) -> Option<&str> {
    path.to_str().filter(|url| is_url(path) && directory_of(url).is_none())
}

/// A file of the file system, which may have the scheme `file`.
pub(in crate::sql) fn local(path: &Path) -> PathBuf {
    path.to_str().and_then(directory_of).unwrap_or(path).to_path_buf()
}

impl OpenFile {
    /// The bytes from the first one on.
    pub fn into_reader(self) -> Box<dyn Read + Send> {
        match self {
            OpenFile::Local(file) => Box::new(file),
            OpenFile::Object(object) => Box::new(object.reader()),
        }
    }
}
