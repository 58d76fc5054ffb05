//! The open connections: their limit, and requests to cancel or end them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyaki::{InterruptHandle, Session, SessionControl};
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

/// Requests to a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Signal {
    /// Number of requests to cancel the running statement.
    pub cancels: u64,
    /// The connection is to end when no statement runs.
    pub terminate: bool,
    /// The connection is to end at once.
    pub abort: bool,
    /// Number of notifications that have arrived.
    pub notifications: u64,
    /// `pg_terminate_backend` ends the connection: the running statement is cancelled.
    pub is_terminated: bool,
}

/// Requests of `pg_cancel_backend` and `pg_terminate_backend`. The session interrupts the running statement.
#[derive(Debug)]
struct Control(Arc<watch::Sender<Signal>>);

impl SessionControl for Control {
    fn cancel(&self) {
        self.0.send_modify(|signal| signal.cancels += 1);
    }

    fn notify(&self) {
        self.0.send_modify(|signal| signal.notifications += 1);
    }

    fn terminate(&self) {
        self.0.send_modify(|signal| {
            signal.cancels += 1;
            (signal.terminate, signal.abort, signal.is_terminated) = (true, true, true);
        });
    }
}

/// All open connections.
#[derive(Debug)]
pub struct Registry {
    connections: Mutex<HashMap<i32, Known>>,
    limit: usize,
    /// The limit for roles that are not superusers.
    ordinary_limit: usize,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Known {
    secret: Vec<u8>,
    signal: Arc<watch::Sender<Signal>>,
    interrupt: InterruptHandle,
    /// The role that has logged in.
    role: Option<String>,
}

/// Why a connection is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The server has too many connections, or shuts down.
    Server,
    /// The remaining connections are reserved for superusers.
    Reserved,
    /// The role has too many connections.
    Role,
}

/// The role of a connection, and the maximum number of its connections.
#[derive(Debug, Clone)]
pub struct Limited {
    pub role: String,
    pub limit: Option<u32>,
    /// The role may use the reserved connections.
    pub is_superuser: bool,
}

impl Registry {
    /// A registry of at most `limit` connections, of which `reserved` are for superusers. At least one is for others.
    pub fn new(limit: usize, reserved: usize) -> Registry {
        let ordinary_limit = limit.saturating_sub(reserved).max(1);
        Registry { connections: Mutex::default(), limit, ordinary_limit, is_closed: AtomicBool::new(false) }
    }

    /// Registers the connection of a session. `address`: that of its client.
    ///
    /// # Errors
    /// If there are too many, and in a shutdown.
    pub fn register(
        self: &Arc<Self>,
        session: &Session,
        address: Option<SocketAddr>,
        has_long_secret: bool,
        role: Option<Limited>,
    ) -> Result<Registration, Full> {
        let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
        // A random UUID has six fixed bits, in its bytes 6 and 8.
        let secret = match has_long_secret {
            true => [one.into_bytes(), two.into_bytes()].concat(),
            false => one.into_bytes()[..4].to_vec(),
        };
        let (signal, receiver) = watch::channel(Signal::default());
        let mut connections = self.connections.lock();
        if connections.len() >= self.limit || self.is_closed.load(Ordering::Relaxed) {
            return Err(Full::Server);
        }
        // A session without a role is that of a superuser.
        if role.as_ref().is_some_and(|role| !role.is_superuser) && connections.len() >= self.ordinary_limit {
            return Err(Full::Reserved);
        }
        if let Some(Limited { role, limit: Some(limit), .. }) = &role {
            let count = connections.values().filter(|known| known.role.as_ref() == Some(role)).count();
            if count >= *limit as usize {
                return Err(Full::Role);
            }
        }
        let process = session.process();
        if connections.contains_key(&process) {
            // A session that is older than two billion others has the number.
            return Err(Full::Server);
        }
        let (signal, role) = (Arc::new(signal), role.map(|limited| limited.role));
        session.attach(address, Arc::new(Control(signal.clone())));
        let interrupt = session.interrupt_handle();
        connections.insert(process, Known { secret: secret.clone(), signal, interrupt, role });
        Ok(Registration { registry: self.clone(), process, secret, signal: receiver })
    }

    /// Cancels the running statement of a connection, if the key is right.
    pub fn cancel(&self, process: i32, secret: &[u8]) {
        let connections = self.connections.lock();
        let Some(known) = connections.get(&process) else { return };
        // In constant time, so that the time does not tell how many bytes are right.
        let differences = known.secret.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b));
        if differences == 0 && known.secret.len() == secret.len() {
            known.signal.send_modify(|signal| signal.cancels += 1);
            known.interrupt.interrupt();
        }
    }

    /// Asks all connections to end, and refuses others. Running statements go on.
    pub fn terminate_all(&self) {
        let connections = self.connections.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        connections.values().for_each(|known| known.signal.send_modify(|signal| signal.terminate = true));
    }

    /// Cancels the running statements of all connections, and ends those whose clients do not read.
    pub fn abort_all(&self) {
        for known in self.connections.lock().values() {
            known.signal.send_modify(|signal| {
                signal.cancels += 1;
                signal.abort = true;
            });
            known.interrupt.interrupt();
        }
    }

    /// True in a shutdown.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Number of open connections.
    pub fn len(&self) -> usize {
        self.connections.lock().len()
    }
}

/// A registered connection. Dropping it removes the connection.
#[derive(Debug)]
pub struct Registration {
    registry: Arc<Registry>,
    /// The number of the connection.
    pub process: i32,
    /// The key of requests to cancel its statements.
    pub secret: Vec<u8>,
    /// Requests to the connection.
    pub signal: watch::Receiver<Signal>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.connections.lock().remove(&self.process);
    }
}
