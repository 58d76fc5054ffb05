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
    if keyaki::is_url(path) {
        return Ok(Database::open(path, options)?);
    }
    check_directory(path)?;
    // The shell can change its working directory.
    let path = std::path::absolute(path).map_err(Failure::file(path))?;
    Database::open(path, options).map_err(|error| match error.root() {
        keyaki::Error::NotADatabase { .. } => {
            Failure::message(format!("{error}. Name a new directory, or that of a database"))
        }
        _ => error.into(),
    })
}

/// True if the directory has the files of a database. Opening it checks their contents.
pub fn is_database(path: &Path) -> bool {
    path.join("LOCK").exists() && path.join("data").is_file()
}

/// Checks that a path is a directory that may have a database, or does not exist.
fn check_directory(path: &Path) -> Result<()> {
    let name = path.display();
    if path.join("data").is_dir() && path.join("manifest.json").is_file() {
        return Err(Failure::message(format!(
            "\"{name}\" has no database, but the files of a dump: load it with keyaki restore '{name}' DATABASE"
        )));
    }
    if path.join("PG_VERSION").is_file() {
        return Err(Failure::message(format!(
            "\"{name}\" is a PostgreSQL database cluster, no Keyaki database. Export its tables (psql -c \"\\copy t TO 't.csv' CSV \
             HEADER\"), then .import t.csv t"
        )));
    }
    if !path.is_file() {
        return Ok(());
    }
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
        let dump = directory.path().join("dump");
        std::fs::create_dir_all(dump.join("data")).unwrap();
        std::fs::write(dump.join("LOCK"), "").unwrap();
        std::fs::write(dump.join("manifest.json"), "{}").unwrap();
        assert!(!is_database(&dump));
        let error = open(&dump, Options::default()).unwrap_err().to_string();
        assert!(error.contains("the files of a dump: load it with keyaki restore"), "{error}");
        std::fs::write(directory.path().join("PG_VERSION"), "15").unwrap();
        let error = open(directory.path(), Options::default()).unwrap_err().to_string();
        assert!(error.contains("a PostgreSQL database cluster"), "{error}");
        std::fs::remove_file(directory.path().join("PG_VERSION")).unwrap();
        let error = open(directory.path(), Options::default()).unwrap_err().to_string();
        assert!(error.ends_with("Name a new directory, or that of a database"), "{error}");
    }
}
