//! Selection of a device of the operating system.

use std::ffi::OsStr;
use std::sync::Arc;

use crate::interface::{Device, Error, ErrorKind, Operation, Result};
use crate::os::OsDevice;
use crate::threads::Pool;

/// The best device of this machine: io_uring if the kernel permits it, else a pool of threads. The environment variable
/// `KEYAKI_IO` (`uring` or `threads`) overrides the choice.
///
/// # Errors
/// If `KEYAKI_IO` has another value, or requires io_uring and it is not available.
pub fn open_default() -> Result<Arc<dyn Device>> {
    select(std::env::var_os("KEYAKI_IO").as_deref())
}

fn select(variable: Option<&OsStr>) -> Result<Arc<dyn Device>> {
    match variable.map(OsStr::as_encoded_bytes) {
        None | Some(b"") => uring().or_else(|error| {
            tracing::info!(%error, "io_uring is not available, using a thread pool for I/O");
            threads()
        }),
        Some(b"uring") => uring(),
        Some(b"threads") => threads(),
        Some(_) => {
            let value = variable.unwrap_or_default().to_string_lossy().into_owned();
            Err(Error::without_path(Operation::SelectDevice, ErrorKind::UnknownDevice { value }))
        }
    }
}

/// Files of the operating system, with requests kept in flight by io_uring.
///
/// # Errors
/// If the kernel does not permit io_uring, or is older than Linux 5.13.
#[cfg(target_os = "linux")]
pub fn uring() -> Result<Arc<dyn Device>> {
    let setup = crate::uring::probe().map_err(|kind| Error::without_path(Operation::SetUpRing, kind))?;
    Ok(Arc::new(OsDevice::new(setup)))
}

/// Always an error: only Linux has io_uring.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn uring() -> Result<Arc<dyn Device>> {
    Err(Error::without_path(Operation::SetUpRing, std::io::ErrorKind::Unsupported))
}

/// Files of the operating system, with requests carried out as blocking calls by a pool of threads.
///
/// # Errors
/// None today; the signature is that of [`uring`].
pub fn threads() -> Result<Arc<dyn Device>> {
    Ok(Arc::new(OsDevice::new(Arc::new(Pool::new()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_variable_selects_the_device() {
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
