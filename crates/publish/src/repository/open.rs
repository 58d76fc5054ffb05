//! Opening a repository: from a URL with the credentials of the environment, or from an object store.

use std::ffi::OsString;
use std::sync::Arc;

use object_store::ObjectStore;
use url::Url;

use super::{Names, Repository, parse_prefix};
use crate::error::{Error, Result};
use crate::remote::{Remote, RequestOptions, connect};

impl Repository {
    /// The repository at a URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or
    /// `file:///directory`. The environment has credentials and settings in the variables of the stores' own tools,
    /// for example `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT`. Makes no request.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`], [`Error::StartThread`].
    pub fn from_url(url: &str) -> Result<Repository> {
        let invalid = |detail: String| Error::InvalidUrl { url: url.into(), detail };
        let parsed = Url::parse(url).map_err(|error| invalid(error.to_string()))?;
        let variable = |(name, value): (OsString, OsString)| name.into_string().ok().zip(value.into_string().ok());
        let (store, prefix) = connect(&parsed, std::env::vars_os().filter_map(variable)).map_err(invalid)?;
        Repository::open(store, prefix.as_ref(), url, RequestOptions::default())
    }

    /// The repository under a prefix of an object store; the prefix may be empty. `name` stands for it in messages
    /// and as the directory of [devices](crate::VersionDevice). Makes no request. Versions survive power failures only
    /// in stores whose writes are durable: those of [`from_url`](Repository::from_url) are, those of
    /// [`LocalFileSystem`](object_store::local::LocalFileSystem) are not.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`], [`Error::StartThread`].
    pub fn open(store: Arc<dyn ObjectStore>, prefix: &str, name: &str, options: RequestOptions) -> Result<Repository> {
        let names = Names::new(parse_prefix(prefix)?);
        Ok(Repository { remote: Arc::new(Remote::new(store, options)?), names, name: name.into() })
    }
}
