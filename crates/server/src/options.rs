//! Addresses, protection and limits of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use keyaki::FileAccess;

use crate::tls::TlsOptions;

/// Addresses, protection and limits of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// TCP addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Unix socket to listen on: the path of the socket, or the directory of a socket `.s.PGSQL.5432`.
    pub socket: Option<PathBuf>,
    /// The files of TLS. With them, clients at addresses other than loopback ones must use TLS.
    pub tls: Option<TlsOptions>,
    /// TCP address of figures and states over HTTP.
    pub http: Option<SocketAddr>,
    /// Permits addresses other than loopback ones although connections are not encrypted, or not authenticated.
    pub allow_unprotected: bool,
    /// Permits an address of [`ServerOptions::http`] that other machines can reach.
    pub allow_unprotected_http: bool,
    /// The files on the server that statements may read and write.
    pub files: FileAccess,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Number of these that only superusers may use; at least one remains for others.
    pub superuser_reserved_connections: usize,
    /// Maximum length of a message in bytes.
    pub message_bytes_max: usize,
    /// Maximum time between the opening of a connection and the end of its startup.
    pub startup_timeout: Duration,
    /// Connections with an idle transaction end after this time.
    pub idle_transaction_timeout: Option<Duration>,
    /// Statements are cancelled after this time.
    pub statement_timeout: Option<Duration>,
    /// Connections whose clients receive nothing for this time, although the server has something to send, end.
    pub send_timeout: Option<Duration>,
    /// Statements that take longer are logged.
    pub log_statements_slower_than: Option<Duration>,
    /// Maximum time that a shutdown waits for running statements.
    pub shutdown_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 5432))],
            socket: None,
            tls: None,
            http: None,
            allow_unprotected: false,
            allow_unprotected_http: false,
            files: FileAccess::Within(Vec::new()),
            max_connections: 100,
            superuser_reserved_connections: 3,
            message_bytes_max: 256 << 20,
            startup_timeout: Duration::from_secs(10),
            idle_transaction_timeout: None,
            statement_timeout: None,
            send_timeout: Some(Duration::from_secs(600)),
            log_statements_slower_than: None,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}
