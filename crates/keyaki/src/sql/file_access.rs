//! The files that the statements of a session may read and write.

use std::path::{Path, PathBuf};

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
        let pattern = |name: &str| access.check_pattern(&format!("{}/{name}", directory.path().display())).is_ok();
        assert!(pattern("allowed/*.csv") && pattern("allowed/a?.csv") && !pattern("*/a.csv") && !pattern("other/*"));
        assert!(FileAccess::All.check(&other.join("secret")).is_ok());
        assert!(FileAccess::Within(Vec::new()).check(&allowed).is_err());
        assert!(access.check(&allowed.join("a/".repeat(1_000_000))).is_err());
    }
}
