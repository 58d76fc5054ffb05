//! Opens databases that the user has named. Errors for other files name their format.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use keyaki::{Database, Options};

use crate::failure::{Failure, Result};

/// Bytes at the beginning of a file that identify its format.
const HEAD_BYTES: usize = 16;

/// Opens a database.
///
/// # Errors
/// If the path is a file, with the format of the file and a way to load it; errors of the database.
pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Database> {
    let path = path.as_ref();
    check_directory(path)?;
    // The shell can change its working directory.
    let path = std::path::absolute(path).map_err(Failure::file(path))?;
    Ok(Database::open(path, options)?)
}

/// True if the directory has the files of a database. Opening it checks their contents.
pub fn is_database(path: &Path) -> bool {
    path.join("LOCK").exists() && path.join("data").exists()
}

/// Checks that a path is a directory, or does not exist.
fn check_directory(path: &Path) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let name = path.display();
    let (found, remedy) = match format(path)? {
        Format::Sqlite => (
            "an SQLite database",
            format!(
                "export its tables (sqlite3 -csv -header '{name}' 'SELECT * FROM t' > t.csv), then .import t.csv t"
            ),
        ),
        Format::DuckDb => (
            "a DuckDB database",
            format!("export its tables (duckdb '{name}' -c \"COPY t TO 't.parquet'\"), then .import t.parquet t"),
        ),
        Format::Parquet => ("a Parquet file", format!("open a database, then query '{name}' or load it with .import")),
        Format::Gzip => ("a compressed file", "decompress it".into()),
        Format::Archive => ("a ZIP archive", "extract its files, then load them with .import".into()),
        Format::Other => ("a file", "open a database, then load the file with .import, or run it with .read".into()),
    };
    Err(Failure::message(format!("\"{name}\" is {found}; a Keyaki database is a directory. {}", capitalised(&remedy))))
}

/// The format of a file that is no database.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    Sqlite,
    DuckDb,
    Parquet,
    Gzip,
    Archive,
    Other,
}

fn format(path: &Path) -> Result<Format> {
    let mut head = [0; HEAD_BYTES];
    let read = File::open(path).and_then(|mut file| match file.read_exact(&mut head) {
        // A short file.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
        result => result,
    });
    read.map_err(Failure::file(path))?;
    Ok(match &head {
        b"SQLite format 3\0" => Format::Sqlite,
        head if head[8..12] == *b"DUCK" => Format::DuckDb,
        head if head.starts_with(b"PAR1") => Format::Parquet,
        [0x1f, 0x8b, ..] => Format::Gzip,
        head if head.starts_with(b"PK\x03\x04") => Format::Archive,
        _ => Format::Other,
    })
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        for (bytes, expected) in [
            (&b"SQLite format 3\0rest"[..], "an SQLite database"),
            (b"checksumDUCK\0\0\0\0\0\0", "a DuckDB database"),
            (b"PAR1", "a Parquet file"),
            (b"\x1f\x8b\x08", "a compressed file"),
            (b"PK\x03\x04", "a ZIP archive"),
            (b"id,name\n1,a\n", "a file"),
            (b"", "a file"),
        ] {
            let path = directory.path().join("x");
            std::fs::write(&path, bytes).unwrap();
            let error = check_directory(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("x\" is {expected}; a Keyaki database is a directory. ")), "{error}");
        }
        assert!(check_directory(directory.path()).is_ok());
        assert!(check_directory(&directory.path().join("missing")).is_ok());
        assert!(!is_database(directory.path()));
    }
}
