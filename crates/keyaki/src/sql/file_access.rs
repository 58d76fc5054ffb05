//! The files that the statements of a session may read and write.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::engine::published::is_url;
use crate::{Error, Result};

/// Maximum length of a path, as of Linux.
const PATH_BYTES_MAX: usize = 4096;

/// The files that the statements of a session may read and write: COPY, `read_csv` and its like, BACKUP, EXPORT and IMPORT.
/// Those of the database itself are not restricted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FileAccess {
    /// All files that the program may use.
    #[default]
    All,
    /// Files in these directories, and in directories below them.
    Within(Vec<PathBuf>),
}

impl FileAccess {
    /// Checks a file or directory, which need not exist.
    ///
    /// # Errors
    /// `FileAccess`.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        let FileAccess::Within(directories) = self else { return Ok(()) };
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(Error::FileAccess { path: "(a long path)".into() });
        }
        let within = |real: &Path| {
            let real_directories = directories.iter().filter_map(|directory| directory.canonicalize().ok());
            real_directories.into_iter().any(|directory| real.starts_with(directory))
        };
        match resolved(path) {
            Some(real) if within(&real) => Ok(()),
            _ => Err(Error::FileAccess { path: path.to_path_buf() }),
        }
    }

    /// Checks the URL of an object store, which need not have objects. A restriction can permit URLs, too: all that begin with
    /// one of its own.
    ///
    /// # Errors
    /// `FileAccess`.
    pub(crate) fn check_url(&self, url: &str) -> Result<()> {
        let FileAccess::Within(directories) = self else { return Ok(()) };
        // Parts of URLs that stand for others could lead elsewhere.
        let is_plain =
            !url.contains("..") && !url.contains(['%', '\\', '?', '#']) && !url.contains(|c: char| c.is_control());
        if let Some(directory) = super::publish::directory_of(url).filter(|_| is_plain) {
            return self.check(directory).map_err(|_| Error::FileAccess { path: url.into() });
        }
        match is_plain && directories.iter().any(|permitted| is_within_url(permitted, url)) {
            true => Ok(()),
            false => Err(Error::FileAccess { path: url.into() }),
        }
    }

    /// Checks the URL of an object, whose name is what follows the bucket, without any decoding. A restriction can permit URLs:
    /// all that begin with one of its own.
    ///
    /// # Errors
    /// `FileAccess`.
    pub(crate) fn check_object(&self, url: &str) -> Result<()> {
        let FileAccess::Within(directories) = self else { return Ok(()) };
        // No object has such a name: clients could take it for another one.
        let is_plain = !url.split('/').any(|part| part == "." || part == "..") && !url.contains(char::is_control);
        match is_plain && directories.iter().any(|permitted| is_within_url(permitted, url)) {
            true => Ok(()),
            false => Err(Error::FileAccess { path: url.into() }),
        }
    }

    /// Opens a file for reading. The opened file is checked, whatever its path has become since: a symbolic link or a directory
    /// that is replaced between the check of a path and its use leads nowhere else.
    ///
    /// # Errors
    /// `FileAccess`; `Io`, also for directories and other files that are not regular ones.
    pub(crate) fn open(&self, path: &Path) -> Result<File> {
        self.check(path)?;
        let failed = |error| Error::io("open", path, error);
        let irregular = || failed(std::io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        // Opening a named pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(irregular());
        }
        let file = File::open(path).map_err(failed)?;
        if *self != FileAccess::All {
            let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            // The path of the opened file, without symbolic links.
            match std::fs::read_link(&link) {
                Ok(real) => self.check(&real).map_err(|_| Error::FileAccess { path: path.to_path_buf() })?,
                Err(_) => return Err(Error::FileAccess { path: path.to_path_buf() }),
            }
        }
        match file.metadata().map_err(failed)?.is_file() {
            true => Ok(file),
            false => Err(irregular()),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`FileAccess::open`].
    pub(crate) fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.read_to_end(&mut bytes).map_err(|error| Error::io("read", path, error))?;
        Ok(bytes)
    }

    /// Checks the part of a path before its first wildcard.
    ///
    /// # Errors
    /// `FileAccess`.
    pub(crate) fn check_pattern(&self, pattern: &str) -> Result<()> {
        if *self == FileAccess::All {
            return Ok(());
        }
        let fixed = pattern.find(['*', '?', '[', '{']).map_or(pattern, |wildcard| {
            pattern[..wildcard].rfind('/').map_or("", |slash| &pattern[..=slash]) //
        });
        self.check(Path::new(if fixed.is_empty() { "." } else { fixed }))
            .map_err(|_| Error::FileAccess { path: pattern.into() })
    }
}

/// True if a URL is a permitted one, or below it.
fn is_within_url(permitted: &Path, url: &str) -> bool {
    let permitted = permitted.to_str().filter(|_| is_url(permitted)).map(|text| text.trim_end_matches('/'));
    permitted
        .and_then(|permitted| url.strip_prefix(permitted))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path without symbolic links and `..`. A path that does not exist is resolved from its last directory that does; `None` if it
/// then contains `..`.
fn resolved(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    if let Ok(real) = absolute.canonicalize() {
        return Some(real);
    }
    if absolute.is_symlink() {
        // Its target does not exist: a file would be created there.
        return None;
    }
    Some(resolved(absolute.parent()?)?.join(absolute.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_within_directories() {
        let directory = tempfile::tempdir().expect("a directory");
        let (allowed, other) = (directory.path().join("allowed"), directory.path().join("other"));
        for made in [&allowed, &other] {
            std::fs::create_dir(made).expect("a directory");
        }
        std::fs::write(other.join("secret"), "x").expect("a file");
        std::os::unix::fs::symlink(other.join("secret"), allowed.join("link")).expect("a link");
        std::os::unix::fs::symlink(other.join("absent"), allowed.join("dangling")).expect("a link");
        let access = FileAccess::Within(vec![allowed.clone()]);
        for (name, is_permitted) in [
            ("allowed/a.csv", true),
            ("allowed/new/deep/a.csv", true),
            ("allowed", true),
            ("allowed/link", false),
            ("allowed/dangling", false),
            ("allowed/../other/secret", false),
            ("allowed/absent/../../other/secret", false),
            ("allowed2", false),
            ("other/secret", false),
        ] {
            assert_eq!(access.check(&directory.path().join(name)).is_ok(), is_permitted, "{name}");
        }
        std::fs::write(allowed.join("a.csv"), "a").expect("a file");
        std::os::unix::fs::symlink(allowed.join("a.csv"), allowed.join("inner")).expect("a link");
        let read = |name: &str| access.read(&allowed.join(name)).map_err(|error| error.sqlstate().code().to_string());
        assert_eq!(read("a.csv"), Ok(b"a".to_vec()));
        assert_eq!(read("inner"), Ok(b"a".to_vec()), "a link within the directory");
        for name in ["link", "dangling", "../other/secret"] {
            assert_eq!(read(name), Err("42501".into()), "{name}");
        }
        assert_eq!(FileAccess::All.read(&allowed.join("link")).expect("a file"), b"x");
        assert!(read(".").is_err() && read("absent").is_err());
        let pattern = |name: &str| access.check_pattern(&format!("{}/{name}", directory.path().display())).is_ok();
        assert!(pattern("allowed/*.csv") && pattern("allowed/a?.csv") && !pattern("*/a.csv") && !pattern("other/*"));
        assert!(FileAccess::All.check(&other.join("secret")).is_ok());
        assert!(FileAccess::Within(Vec::new()).check(&allowed).is_err());
        assert!(access.check(&allowed.join("a/".repeat(1_000_000))).is_err());
    }

    #[test]
    fn urls_below_permitted_directories_and_urls() {
        let directory = tempfile::tempdir().unwrap();
        let allowed = directory.path().join("allowed");
        std::fs::create_dir(&allowed).unwrap();
        let access = FileAccess::Within(vec![allowed.clone(), PathBuf::from("s3://bucket/shop/")]);
        let shown = allowed.display();
        for url in [
            format!("file://{shown}"),
            format!("FILE://{shown}/a"),
            "s3://bucket/shop".into(),
            "s3://bucket/shop/x".into(),
        ] {
            assert!(access.check_url(&url).is_ok(), "{url}");
            assert!(FileAccess::Within(Vec::new()).check_url(&url).is_err() && FileAccess::All.check_url(&url).is_ok());
        }
        for rest in ["/../secret", "/%2e%2e/secret", "/..\\secret", "/.\t./secret", "?x", "#x", "/a\nb"] {
            assert!(access.check_url(&format!("file://{shown}{rest}")).is_err(), "{rest}");
            assert!(access.check_url(&format!("s3://bucket/shop{rest}")).is_err(), "{rest}");
        }
        for name in ["x%20y", "a..b", "a?b", "a#b"] {
            assert!(access.check_object(&format!("s3://bucket/shop/{name}")).is_ok(), "{name}");
            assert!(access.check_object(&format!("s3://bucket/{name}")).is_err(), "{name}");
        }
        for name in ["../secret", "a/./b", "a/..", "a\nb"] {
            assert!(access.check_object(&format!("s3://bucket/shop/{name}")).is_err(), "{name}");
        }
        for url in [
            "s3://bucket/shopping",
            "s3://other/shop",
            "gs://bucket/shop",
            "file:allowed",
            "file://localhost/allowed",
            "allowed",
            "",
        ] {
            assert!(access.check_url(url).is_err(), "{url}");
        }
    }
}
