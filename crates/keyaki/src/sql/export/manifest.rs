//! The list of the files of an export, a JSON document.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::DATA;
use crate::catalog::RelationName;
use crate::sql::file_access::FileAccess;
use crate::{Error, Result};

/// The name of the file.
pub(super) const FILE: &str = "manifest.json";
/// The version of the format of exports that this program writes and reads.
const FORMAT: u32 = 1;
/// Maximum length in bytes of the part of a file's name that comes from the table.
const NAME_BYTES_MAX: usize = 60;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    /// The version of the program that has written the export.
    keyaki: String,
    pub tables: Vec<ExportedTable>,
}

/// A table and its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExportedTable {
    pub schema: String,
    pub name: String,
    /// Path of the file, relative to the directory of the export.
    pub file: String,
    pub rows: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// The version without the rest of the document.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Manifest {
    pub fn new() -> Manifest {
        Manifest { format: FORMAT, keyaki: env!("CARGO_PKG_VERSION").into(), tables: Vec::new() }
    }

    /// The path of the next table's file. Its number makes it unique.
    pub fn next_file(&self, name: &RelationName) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let name: String = name.qualified().chars().map(safe).take(NAME_BYTES_MAX).collect();
        format!("{DATA}/{}-{name}.parquet", self.tables.len() + 1)
    }

    pub fn encode(&self) -> Result<Vec<u8>> {
        let encoded = serde_json::to_vec_pretty(self);
        encoded.map_err(|error| Error::Internal(format!("the manifest is not valid JSON: {error}")))
    }

    /// Reads the manifest of an export and checks that all files have their lengths.
    ///
    /// # Errors
    /// `Io` if a file does not exist, `FileAccess` if one lies elsewhere, `FormatVersion`, `Import` for a damaged manifest and a
    /// file with another length.
    pub fn read(directory: &Path, files: &FileAccess) -> Result<Manifest> {
        let path = directory.join(FILE);
        let bytes = match files.read(&path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound && directory.is_dir() => {
                let hint = "the directory is not a complete export";
                return Err(Error::io("open", &path, std::io::Error::new(ErrorKind::NotFound, hint)));
            }
            read => read?,
        };
        let damaged = |error: serde_json::Error| wrong(&path, format!("the manifest is damaged: {error}"));
        match serde_json::from_slice::<Version>(&bytes).map_err(damaged)?.format {
            FORMAT => {}
            found => return Err(Error::FormatVersion { path, found, supported: FORMAT }),
        }
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(damaged)?;
        for table in &manifest.tables {
            table.check(directory, files)?;
        }
        Ok(manifest)
    }
}

impl ExportedTable {
    pub fn path(&self, directory: &Path) -> PathBuf {
        directory.join(&self.file)
    }

    fn check(&self, directory: &Path, files: &FileAccess) -> Result<()> {
        if !Path::new(&self.file).components().all(|component| matches!(component, Component::Normal(_))) {
            return Err(wrong(&directory.join(FILE), format!("file \"{}\" lies outside of the export", self.file)));
        }
        let path = self.path(directory);
        let found = files.open(&path)?.metadata().map_err(|error| Error::io("open", &path, error))?.len();
        match found == self.bytes {
            true => Ok(()),
            false => Err(wrong(&path, format!("the file has {found} bytes, the manifest says {}", self.bytes))),
        }
    }

    /// Checks the number of rows that were loaded.
    ///
    /// # Errors
    /// `Import`.
    pub fn check_rows(&self, directory: &Path, loaded: u64) -> Result<()> {
        match loaded == self.rows {
            true => Ok(()),
            false => {
                let problem = format!("the file has {loaded} rows, the manifest says {}", self.rows);
                Err(wrong(&self.path(directory), problem))
            }
        }
    }
}

fn wrong(path: &Path, problem: String) -> Error {
    let source = Box::new(Error::InvalidFile(problem));
    Error::Import { path: Some(path.to_path_buf()), row: None, column: None, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_safe_names() {
        let mut manifest = Manifest::new();
        let mut file = |name: RelationName| {
            let file = manifest.next_file(&name);
            let (schema, name) = (name.schema.to_string(), name.name);
            manifest.tables.push(ExportedTable { schema, name, file: file.clone(), rows: 0, bytes: 0 });
            file
        };
        assert_eq!(file(RelationName::public("orders")), "data/1-orders.parquet");
        assert_eq!(file(RelationName::new("s", "../\"Ä b\"")), "data/2-s-------b-.parquet");
        assert_eq!(file(RelationName::public("ü".repeat(255))).len(), "data/3-.parquet".len() + NAME_BYTES_MAX);
    }

    #[test]
    fn damaged_manifests_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(directory.path().join(FILE), text).unwrap();
            Manifest::read(directory.path(), &FileAccess::All)
        };
        let missing = Manifest::read(directory.path(), &FileAccess::All).unwrap_err().to_string();
        assert!(missing.contains("not a complete export"), "{missing}");
        let mut manifest = Manifest::new();
        let text = |manifest: &Manifest| String::from_utf8(manifest.encode().unwrap()).unwrap();
        assert_eq!(read(&text(&manifest)).unwrap(), manifest);
        for (damaged, expected) in [
            (r#"{"format":1,"tab"#, "the manifest is damaged"),
            (r#"{"format":1}"#, "the manifest is damaged"),
            (r#"{"format":2,"other":1}"#, "version 2"),
        ] {
            let error = read(damaged).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let table =
            |file: &str| ExportedTable { schema: "s".into(), name: "t".into(), file: file.into(), rows: 1, bytes: 1 };
        manifest.tables = vec![table("../t.parquet")];
        let error = read(&text(&manifest)).unwrap_err().to_string();
        assert!(error.contains("outside of the export"), "{error}");
        manifest.tables = vec![table("/etc/passwd")];
        assert!(read(&text(&manifest)).unwrap_err().to_string().contains("outside of the export"));
        manifest.tables = vec![table("manifest.json")];
        assert!(read(&text(&manifest)).unwrap_err().to_string().contains("bytes, the manifest says 1"));
    }
}
