//! Expansion of file names with wildcards. Within one component of a path, `*` matches any sequence of characters and
//! `?` matches one character.
//!
//! Files are returned in natural order (`part-2` before `part-10`): the parts of a table that was written in key order
//! are then read in key order.

use std::cmp::Ordering;
use std::io::{Error as IoError, ErrorKind};
use std::path::{Component, Path, PathBuf};

use crate::sql::files::{Files, local, object_url};
use crate::{Error, Result};

/// The files that a path of COPY FROM names: the file itself, or the files that match its wildcards.
///
/// # Errors
/// `FileAccess`; `Io` if the file does not exist, is a directory, or no file matches. The objects of stores are found only
/// when they are opened, unless the name has wildcards.
pub(in crate::sql) async fn expand(path: &str, files: &Files) -> Result<Vec<PathBuf>> {
    if let Some(url) = object_url(Path::new(path)) {
        return matching_objects(url, files).await;
    }
    let path = local(Path::new(path)).to_string_lossy().into_owned();
    files.access().check_pattern(&path)?;
    let found = matching(&path)?;
    found.iter().try_for_each(|file| files.check(file))?;
    Ok(found)
}

/// The objects that a URL names.
async fn matching_objects(url: &str, files: &Files) -> Result<Vec<PathBuf>> {
    let Some(wildcard) = url.find(['*', '?']) else {
        files.bucket(url)?;
        return Ok(vec![url.into()]);
    };
    let invalid = |detail: &str| Error::io("open", Path::new(url), IoError::new(ErrorKind::InvalidInput, detail));
    // A restriction of the session permits all URLs with a beginning or none of them.
    let folder = url[..wildcard].rsplit_once('/').map_or("", |(folder, _)| folder);
    if folder.ends_with(['/', ':']) {
        return Err(invalid("the name of the bucket has a wildcard"));
    }
    let (bucket, name) = files.bucket(folder)?;
    let failed = |error| Error::io("list", Path::new(folder), error);
    let listed = bucket.list(name).await.map_err(failed)?;
    // The root of the bucket has a scheme in lower case.
    let behind_root = url.splitn(4, '/').nth(3).unwrap_or("");
    let pattern: Vec<&str> = behind_root.split('/').collect();
    let is_match = |found: &str| {
        let found = found.strip_prefix(bucket.root()).map_or("", |name| name.trim_start_matches('/'));
        let parts: Vec<&str> = found.split('/').collect();
        parts.len() == pattern.len() && parts.iter().zip(&pattern).all(|(part, pattern)| self::wildcard(pattern, part))
    };
    let mut found: Vec<PathBuf> =
        listed.into_iter().filter(|file| is_match(&file.url)).map(|file| file.url.into()).collect();
    found.sort_by(|a, b| natural(&a.to_string_lossy(), &b.to_string_lossy()));
    match found.is_empty() {
        true => Err(Error::io(
            "open",
            Path::new(url),
            std::io::Error::new(std::io::ErrorKind::NotFound, "no object matches"),
        )),
        false => Ok(found),
    }
}

/// The files that match a path, without any check.
fn matching(path: &str) -> Result<Vec<PathBuf>> {
    let whole = Path::new(path);
    // The name of an existing file may contain wildcard characters.
    if !path.contains(['*', '?']) || whole.exists() {
        return check(whole).map(|()| vec![whole.to_path_buf()]);
    }
    let mut found = vec![PathBuf::new()];
    for component in whole.components() {
        let name = component.as_os_str().to_string_lossy();
        match component {
            Component::Normal(_) if name.contains(['*', '?']) => {
                found = found.iter().map(|dir| matches(dir, &name)).collect::<Result<Vec<_>>>()?.concat();
            }
            _ => found.iter_mut().for_each(|dir| dir.push(component)),
        }
    }
    found.retain(|path| path.is_file());
    found.sort_by(|a, b| natural(&a.to_string_lossy(), &b.to_string_lossy()));
    if found.is_empty() {
        return Err(Error::io("open", whole, std::io::Error::new(std::io::ErrorKind::NotFound, "no file matches")));
    }
    Ok(found)
}

fn check(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let hint = "is a directory (name its files, as in 'dir/*.parquet')";
            Err(Error::io("open", path, std::io::Error::new(std::io::ErrorKind::IsADirectory, hint)))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(Error::io("open", path, error)),
    }
}

fn matches(dir: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    let listed = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    if !listed.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |error: std::io::Error| Error::io("read", listed, error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(listed).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let text = name.to_string_lossy();
        // As in a shell, only a pattern that starts with a dot matches hidden files.
        if text.starts_with('.') == pattern.starts_with('.') && wildcard(pattern, &text) {
            found.push(dir.join(&name));
        }
    }
    Ok(found)
}

/// True if `name` matches `pattern`. Backtracks only to the last `*`: at most quadratic time.
fn wildcard(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((star_p, star_n)) => {
                    star = Some((star_p, star_n + 1));
                    p = star_p + 1;
                    n = star_n + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Compares names by their text and, where both have digits, by the numbers that these form.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (x, y) = (take_number(&mut left), take_number(&mut right));
            // Without leading zeros, a number with more digits is larger.
            let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y));
            if order != Ordering::Equal {
                return order;
            }
        } else if x == y {
            (left, right) = (&left[1..], &right[1..]);
        } else {
            return x.cmp(y);
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits the leading digits off `text` and returns them without leading zeros.
fn take_number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(len);
    *text = rest;
    &number[number.iter().take_while(|digit| **digit == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        for (pattern, name, expected) in [
            ("*.parquet", "a.parquet", true),
            ("*.parquet", "a.parquet.gz", false),
            ("part-??.csv", "part-12.csv", true),
            ("part-??.csv", "part-1.csv", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "ab ba", false),
            ("", "", true),
            ("*", "", true),
            ("é?", "éü", true),
        ] {
            assert_eq!(wildcard(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn numbers_sort_as_numbers() {
        let mut names = ["p10", "p9", "p09", "p1", "p", "q", "p1a", "p100000000000000000000000"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["p", "p1", "p1a", "p09", "p9", "p10", "p100000000000000000000000", "q"]);
    }

    #[test]
    fn wildcards_in_directories_and_names_are_expanded() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["x1/a2.csv", "x1/a10.csv", "x2/a1.csv", "x2/.hidden.csv", "x2/b.json"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("create");
            std::fs::write(path, "").expect("write");
        }
        let pattern = |pattern: &str| dir.path().join(pattern).to_string_lossy().into_owned();
        let names: Vec<String> = matching(&pattern("x?/*.csv"))
            .expect("files")
            .iter()
            .map(|path| path.strip_prefix(dir.path()).expect("inside").to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["x1/a2.csv", "x1/a10.csv", "x2/a1.csv"]);
        assert!(matching(&pattern("*.parquet")).is_err());
        assert!(matching(&pattern("x1")).expect_err("a directory").to_string().contains("directory"));
        assert!(matching(&pattern("missing.csv")).expect_err("missing").to_string().contains("No such file"));
    }
}
