//! Targets of COPY TO: files, objects in stores, and streams such as standard output.
//!
//! Files and objects are replaced as a whole. A file is written under another name beside its target, synced and renamed; an
//! object appears when its last part has arrived. What is dropped before that leaves nothing.

use std::fs::{File, Permissions};
use std::io::{Error as IoError, ErrorKind, Result as IoResult, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_publish::ObjectWriter;
use tempfile::TempPath;

use super::options::is_stream_name;
use crate::base::interrupt::{Decision, Stage};
use crate::sql::files::{Files, local};
use crate::{Error, Result};

/// Permission bits of the new file, before the umask is applied.
const PERMISSIONS: u32 = 0o666;

/// The standard output of the process.
pub(super) const STDOUT: &str = "/dev/stdout";
const STDERR: &str = "/dev/stderr";

/// The target of COPY TO, not opened.
pub(super) enum Output {
    /// A file, which is replaced.
    File(OutputFile),
    /// An object in a store, which is replaced.
    Object(PathBuf, ObjectWriter),
    /// Standard output, a pipe or a device. Rows that were written before an error stay.
    Stream(PathBuf),
}

/// Where the bytes of a format go.
pub(in crate::sql::copy) enum Target {
    File(File),
    Object(ObjectWriter),
}

/// An open output whose bytes have not taken effect.
pub(super) enum Pending {
    File(OutputFile, TempPath),
    Object(PathBuf),
    Stream,
}

impl Output {
    /// # Errors
    /// `FileAccess`; `Io` for directories and names that no file can have.
    pub fn of(path: &Path, files: &Files, decision: &Arc<Decision>) -> Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        files.check(path)?;
        let of_stop = decision.clone();
        if let Some(writer) = files.create_object(path, Arc::new(move || of_stop.check().is_err()))? {
            return Ok(Output::Object(path.to_path_buf(), writer));
        }
        let path = &local(path);
        // Redirected output is a regular file, but its name is a symbolic link that must stay.
        let is_stream = is_stream_name(path);
        let is_special = || {
            let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
            kind.is_ok_and(|kind| kind.is_char_device() || kind.is_fifo())
        };
        match is_stream || is_special() {
            true => Ok(Output::Stream(path.to_path_buf())),
            false => OutputFile::new(path).map(Output::File),
        }
    }

    /// # Errors
    /// `Io`.
    pub fn open(self) -> Result<(Target, Pending)> {
        match self {
            Output::File(file) => {
                let (opened, temporary) = file.create()?;
                Ok((Target::File(opened), Pending::File(file, temporary)))
            }
            Output::Object(path, writer) => Ok((Target::Object(writer), Pending::Object(path))),
            Output::Stream(path) => Ok((Target::File(stream(&path)?), Pending::Stream)),
        }
    }
}

impl Pending {
    /// Makes the written bytes durable, decides that the statement succeeds, if that is wanted, and lets them take effect.
    ///
    /// # Errors
    /// `Io`, `DiskFull`; `Cancelled` if the statement was cancelled before.
    pub fn finish(self, target: Target, decision: Option<&Decision>) -> Result<()> {
        let commit = || decision.map_or(Ok(()), |decision| decision.commit());
        match (self, target) {
            (Pending::File(file, temporary), Target::File(opened)) => {
                opened.sync_all().map_err(|error| Error::io("sync", &file.path, error))?;
                commit()?;
                file.replace(temporary)?;
            }
            (Pending::Object(path), Target::Object(writer)) => {
                commit()?;
                writer.finish().map_err(|error| Error::io("write", &path, error))?;
            }
            (Pending::Stream, _) => commit()?,
            _ => return Err(Error::Internal("an output was opened as another one".into())),
        }
        if let Some(decision) = decision {
            decision.reach(Stage::Committed);
        }
        Ok(())
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        match self {
            Target::File(file) => file.write(bytes),
            Target::Object(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> IoResult<()> {
        match self {
            Target::File(file) => file.flush(),
            Target::Object(writer) => writer.flush(),
        }
    }
}

/// Opens standard output, a pipe or a device. Standard output continues where the process has written last.
fn stream(path: &Path) -> Result<File> {
    let failed = |error| Error::io("open", path, error);
    if path == Path::new(STDOUT) {
        let output = std::io::stdout();
        std::io::Write::flush(&mut &output).map_err(failed)?;
        return Ok(File::from(output.as_fd().try_clone_to_owned().map_err(failed)?));
    }
    if path == Path::new(STDERR) {
        return Ok(File::from(std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?));
    }
    match std::fs::metadata(path).map_err(failed)?.is_file() {
        true => Err(failed(IoError::new(ErrorKind::InvalidInput, "is redirected (name the file itself)"))),
        false => File::options().write(true).open(path).map_err(failed),
    }
}

/// A file that COPY TO replaces.
pub(super) struct OutputFile {
    path: PathBuf,
}

impl OutputFile {
    fn new(path: &Path) -> Result<Self> {
        let failed = |kind, message: &str| Err(Error::io("write", path, std::io::Error::new(kind, message)));
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return failed(ErrorKind::IsADirectory, "is a directory"),
            Ok(metadata) if !metadata.is_file() => return failed(ErrorKind::InvalidInput, "is not a regular file"),
            _ => {}
        }
        match path.file_name() {
            Some(_) => Ok(OutputFile { path: path.to_path_buf() }),
            None => failed(ErrorKind::InvalidInput, "is not the name of a file"),
        }
    }

    /// The directory of the file.
    fn directory(&self) -> &Path {
        // The parent of a name without a directory is the empty path.
        self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Creates a temporary file beside the target, with a name of its own. Dropping the path removes the file.
    fn create(&self) -> Result<(File, TempPath)> {
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(self.path.file_name().unwrap_or_default());
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp").permissions(Permissions::from_mode(PERMISSIONS));
        let created = builder.tempfile_in(self.directory());
        Ok(created.map_err(|error| Error::io("create", &self.path, error))?.into_parts())
    }

    /// Replaces the target by the temporary file, durably.
    fn replace(&self, temporary: TempPath) -> Result<()> {
        temporary.persist(&self.path).map_err(|failed| Error::io("create", &self.path, failed.error))?;
        let synced = File::open(self.directory()).and_then(|directory| directory.sync_all());
        synced.map_err(|error| Error::io("sync", self.directory(), error))
    }
}
