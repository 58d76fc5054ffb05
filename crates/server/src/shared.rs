//! What all connections share.

use std::sync::Arc;

use keyaki::Database;
use tokio::sync::Semaphore;

use crate::auth::{Access, Throttle};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::registry::Registry;
use crate::tls::Tls;

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    /// The database.
    pub database: Database,
    /// The limits.
    pub options: ServerOptions,
    /// Encryption.
    pub tls: Option<Tls>,
    /// Authentication.
    pub access: Access,
    /// Delays of handshakes of TLS.
    pub handshakes: Throttle,
    /// Figures.
    pub metrics: Metrics,
    /// Limits the connections in their startup, which are not registered.
    pub startups: Semaphore,
    /// As `startups`, for the Unix socket: others cannot keep the owner out.
    pub local_startups: Semaphore,
    /// The open connections.
    pub registry: Arc<Registry>,
}
