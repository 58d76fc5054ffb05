//! Selection of a device of the operating system.

use std::ffi::OsStr;
use std::sync::Arc;

use crate::interface::{Device, Error, ErrorKind, Operation, Result};
use crate::os::{Caching, OsDevice};
use crate::threads::Pool;

/// The best device of this machine: io_uring if the kernel permits it, else a pool of threads. The environment variable
/// `KEYAKI_IO` (`uring` or `threads`) overrides the choice.
///
/// # Errors
/// If `KEYAKI_IO` has another value, or requires io_uring and it is not available.
pub fn open_default() -> Result<Arc<dyn Device>> {
    select(std::env::var_os("KEYAKI_IO").as_deref(), Caching::Bypass)
}

/// As [`open_default`], but with files in the operating system's page cache: reads of cached files are as fast as
/// memory. For use below a [`Paced`](crate::paced::Paced) device.
///
/// # Errors
/// As [`open_default`].
pub fn open_cached() -> Result<Arc<dyn Device>> {
    select(std::env::var_os("KEYAKI_IO").as_deref(), Caching::Keep)
}

fn select(variable: Option<&OsStr>, caching: Caching) -> Result<Arc<dyn Device>> {
    match variable.map(OsStr::as_encoded_bytes) {
        None | Some(b"") => uring_with(caching).or_else(|error| {
            tracing::info!(%error, "io_uring is not available, using a thread pool for I/O");
            Ok(threads_with(caching))
        }),
        Some(b"uring") => uring_with(caching),
        Some(b"threads") => Ok(threads_with(caching)),
        Some(_) => {
            let value = variable.unwrap_or_default().to_string_lossy().into_owned();
            Err(Error::without_path(Operation::SelectDevice, ErrorKind::UnknownDevice { value }))
        }
    }
}

/// Files of the operating system, with requests kept in flight by io_uring.
///
/// # Errors
/// If the kernel does not permit io_uring, or is older than Linux 5.13. Only Linux has io_uring.
pub fn uring() -> Result<Arc<dyn Device>> {
    uring_with(Caching::Bypass)
}

#[cfg(target_os = "linux")]
fn uring_with(caching: Caching) -> Result<Arc<dyn Device>> {
    let setup = crate::uring::probe().map_err(|kind| Error::without_path(Operation::SetUpRing, kind))?;
    Ok(Arc::new(OsDevice::new(setup, caching)))
}

#[cfg(not(target_os = "linux"))]
fn uring_with(_caching: Caching) -> Result<Arc<dyn Device>> {
    Err(Error::without_path(Operation::SetUpRing, std::io::ErrorKind::Unsupported))
}

/// Files of the operating system, with requests carried out as blocking calls by a pool of threads.
///
/// # Errors
/// None today; the signature is that of [`uring`].
pub fn threads() -> Result<Arc<dyn Device>> {
    Ok(threads_with(Caching::Bypass))
}

fn threads_with(caching: Caching) -> Arc<dyn Device> {
    Arc::new(OsDevice::new(Arc::new(Pool::new()), caching))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_variable_selects_the_device() {
        let select = |variable| select(variable, Caching::Bypass);
        assert_eq!(select(Some("threads".as_ref())).unwrap().name(), "threads");
        let default = select(None).unwrap().name();
        assert_eq!(select(Some("".as_ref())).unwrap().name(), default);
        assert_eq!(default, if uring().is_ok() { "uring" } else { "threads" });
        let error = select(Some("posix".as_ref())).unwrap_err();
        assert!(matches!(&error.kind, ErrorKind::UnknownDevice { value } if value == "posix"));
        assert_eq!(
            error.to_string(),
            "could not select an I/O device: invalid value for environment variable KEYAKI_IO: \"posix\" \
             (use \"uring\" or \"threads\")"
        );
    }
}
