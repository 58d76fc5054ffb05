//! Opening a repository: from a URL with the credentials of the environment, or from an object store.

use std::sync::Arc;

use object_store::ObjectStore;
use url::Url;

use super::{Names, Repository, parse_prefix};
use crate::error::{Error, Result};
use crate::remote::{Remote, RequestOptions, Retries, connect, variables};

impl Repository {
    /// The repository at a URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or
    /// `file:///directory`. The environment has credentials and settings in the variables of the stores' own tools,
    /// for example `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT`. A URL has no part that could be read in another way: no query,
    /// fragment, backslash, control character, and no `.`, `..` or escape of these. Makes no request.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`], [`Error::StartThread`].
    pub fn from_url(url: &str) -> Result<Repository> {
        Repository::from_url_with(url, &[], RequestOptions::default())
    }

    /// The repository at a URL, as [`from_url`](Repository::from_url). `settings` are names and values that take
    /// precedence over the variables of the environment with these names.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`], also if no store has a setting of this name; [`Error::StartThread`].
    pub fn from_url_with(url: &str, settings: &[(String, String)], options: RequestOptions) -> Result<Repository> {
        let invalid = |detail: String| Error::InvalidUrl { url: url.into(), detail };
        check(url).map_err(invalid)?;
        let parsed = Url::parse(url).map_err(|error| invalid(error.to_string()))?;
        let (store, prefix) = connect(&parsed, variables(), settings, Retries::Caller).map_err(invalid)?;
        Repository::open(store, prefix.as_ref(), url, options)
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

/// Checks that a URL means what it says.
pub(crate) fn check(url: &str) -> Result<(), String> {
    let Some((scheme, path)) = url.split_once("://") else {
        return Err("it has no scheme, such as file:///directory or s3://bucket/prefix".into());
    };
    if let Some(character) = url.chars().find(|c| c.is_control() || ['\\', '?', '#'].contains(c)) {
        return Err(format!("it contains {character:?}"));
    }
    let lower = path.to_ascii_lowercase();
    if ["%2e", "%2f", "%5c", "%0", "%1"].iter().any(|escape| lower.contains(escape)) {
        return Err("it contains escapes of dots, slashes or control characters".into());
    }
    if path.split('/').any(|part| part == "." || part == "..") {
        return Err("it contains the parts \".\" or \"..\"".into());
    }
    if scheme.eq_ignore_ascii_case("file") && (!path.starts_with('/') || path.trim_matches('/').is_empty()) {
        return Err("it names no directory (use file:///directory)".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_meaning() {
        for url in ["file:///a/b", "s3://bucket", "s3://bucket/a%20b/c", "file:///a b", "gs://b/..a/b..", "file:///ä"]
        {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in [
            "shop",
            "file:a",
            "file:/a",
            "file://",
            "file:///",
            "file://localhost/a",
            "file:///a/../b",
            "file:///a/%2E%2e/b",
            "file:///a/..\\b",
            "file:///a/.\t./b",
            "file:///a%2fb",
            "file:///a?b",
            "s3://bucket/a#b",
            "s3://bucket/./a",
            "s3://bucket/%0aa",
        ] {
            assert!(check(url).is_err(), "{url}");
        }
    }
}
