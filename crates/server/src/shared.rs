//! What all connections share.

use std::sync::Arc;

use keyaki::Database;
use tokio::sync::Semaphore;

use crate::options::ServerOptions;
use crate::registry::Registry;

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    /// The database.
    pub database: Database,
    /// The limits.
    pub options: ServerOptions,
    /// Limits the connections in their startup, which are not registered.
    pub startups: Semaphore,
    /// The open connections.
    pub registry: Arc<Registry>,
}
