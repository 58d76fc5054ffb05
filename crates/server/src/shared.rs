//! What all connections share.

use std::sync::Arc;

use keyaki::Database;

use crate::options::ServerOptions;
use crate::registry::Registry;

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    /// The database.
    pub database: Database,
    /// The limits.
    pub options: ServerOptions,
    /// The open connections.
    pub registry: Arc<Registry>,
}
