//! Certificates and keys in files, in the PEM format.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Larger files are refused.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why the files of TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("could not read \"{}\": {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Users other than the server's can read the private key.
    #[error(
        "private key file \"{}\" must be owned by the user of the server with permissions u=rw (0600) or less, or by root \
         with permissions u=rw,g=r (0640) or less",
        .0.display()
    )]
    KeyPermissions(PathBuf),
    /// A file has a content that cannot be used.
    #[error("\"{}\": {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

impl TlsError {
    pub(super) fn invalid(path: &Path, problem: impl ToString) -> TlsError {
        TlsError::Invalid { path: path.to_path_buf(), problem: problem.to_string() }
    }
}

/// A version of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The version of a file; `None` if it cannot be found.
pub fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        len: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

/// Reads a file that `check` permits.
fn read(path: &Path, check: impl FnOnce(&Metadata) -> Result<(), TlsError>) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_path_buf(), source };
    // Opening a named pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(TlsError::invalid(path, "not a regular file"));
    }
    let file = File::open(path).map_err(failed)?;
    // Of the opened file: another one may have its name by now.
    check(&file.metadata().map_err(failed)?)?;
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(TlsError::invalid(path, format!("the file has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(content)
}

/// The certificates in a file: at least one.
///
/// # Errors
/// If the file cannot be read, or has no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = read(path, |_| Ok(()))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    let certificates = certificates.map_err(|error| TlsError::invalid(path, error))?;
    if certificates.is_empty() {
        return Err(TlsError::invalid(path, "no certificate in the PEM format found"));
    }
    Ok(certificates)
}

/// The authorities in a file.
///
/// # Errors
/// If the file cannot be read, has no certificate, or one that cannot be used.
pub fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| TlsError::invalid(path, error))?;
    }
    Ok(roots)
}

/// The revocation lists in a file: at least one.
///
/// # Errors
/// If the file cannot be read, or has no list.
pub fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let content = read(path, |_| Ok(()))?;
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&content).collect();
    let lists = lists.map_err(|error| TlsError::invalid(path, error))?;
    match lists.is_empty() {
        true => Err(TlsError::invalid(path, "no revocation list in the PEM format found")),
        false => Ok(lists),
    }
}

/// The private key in a file that others cannot read.
///
/// # Errors
/// If the file cannot be read, has no key, or if others can read it.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let content = read(path, |metadata| match is_private(metadata.uid(), metadata.mode(), geteuid().as_raw()) {
        true => Ok(()),
        false => Err(TlsError::KeyPermissions(path.to_path_buf())),
    })?;
    PrivateKeyDer::from_pem_slice(&content).map_err(|error| TlsError::invalid(path, error))
}

/// True if a file of `owner` is readable by the user `server` and by root only. Files of root may be readable by their group,
/// to which the server belongs.
fn is_private(owner: u32, mode: u32, server: u32) -> bool {
    match owner {
        owner if owner == server => mode & 0o077 == 0,
        0 => mode & 0o037 == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_of_keys() {
        for (owner, mode, expected) in [
            (1000, 0o600, true),
            (1000, 0o400, true),
            (1000, 0o640, false),
            (1000, 0o604, false),
            (0, 0o640, true),
            (0, 0o600, true),
            (0, 0o644, false),
            (0, 0o660, false),
            (1001, 0o600, false),
        ] {
            assert_eq!(is_private(owner, mode, 1000), expected, "{owner} {mode:o}");
        }
        assert!(!is_private(0, 0o640, 0));
    }
}
