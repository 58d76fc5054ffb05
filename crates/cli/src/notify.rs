//! Notifications of the service manager (`sd_notify`): the server is ready, it stops.
//!
//! systemd passes the address of a Unix datagram socket in the environment variable `NOTIFY_SOCKET`: a path, or an abstract name
//! after "@".

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable with the address of the service manager.
const ADDRESS: &str = "NOTIFY_SOCKET";

/// True if a service manager has started the program.
pub fn is_managed() -> bool {
    std::env::var_os(ADDRESS).is_some()
}

/// Sends a state such as `READY=1`. Without a service manager it does nothing; errors are logged.
pub fn notify(state: &str) {
    if let Some(address) = std::env::var_os(ADDRESS)
        && let Err(error) = send(&address, state)
    {
        tracing::warn!(%error, state, "could not notify the service manager");
    }
}

fn send(address: &OsStr, state: &str) -> io::Result<()> {
    let address = match address.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)?
        }
        _ => SocketAddr::from_pathname(address)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_arrive() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        let mut state = [0; 16];
        let len = manager.recv(&mut state).unwrap();
        assert_eq!(&state[..len], b"READY=1");
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn abstract_names() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("keyaki-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        let mut state = [0; 16];
        let len = manager.recv(&mut state).unwrap();
        assert_eq!(&state[..len], b"STOPPING=1");
    }
}
