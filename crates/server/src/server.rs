//! Listeners and shutdown.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use keyaki::Database;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::auth::{Access, Protection, Throttle};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::registry::Registry;
use crate::shared::Shared;
use crate::socket::{Peer, Socket};
use crate::tls::{Tls, TlsError};
use crate::{connection, http};

/// Wait after an error of `accept`, for example because the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time that a shutdown waits for connections that were told to end at once.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that does not answer for this time is probed.
const KEEPALIVE: Duration = Duration::from_secs(120);
/// Maximum number of connections of the Unix socket in their startup.
const LOCAL_STARTUPS: usize = 16;
/// At least this many connections may be in their startup.
const STARTUPS_MIN: usize = 64;
/// The name of PostgreSQL's socket in a directory.
const SOCKET_NAME: &str = ".s.PGSQL.5432";

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be bound.
    #[error("could not listen on {address}: {source}")]
    Listen {
        /// The address or path.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// An address is open to other machines, and connections are not encrypted.
    #[error(
        "refusing to listen on {0}: connections are not encrypted (configure --tls-certificate and --tls-key, listen on a \
         loopback address, or permit it with --allow-unprotected)"
    )]
    Unprotected(SocketAddr),
    /// An address is open to other machines, and connections are not authenticated.
    #[error(
        "refusing to listen on {0}: connections are not authenticated (create a role with CREATE ROLE ... LOGIN PASSWORD, \
         configure --tls-client-ca, listen on a loopback address, or permit it with --allow-unprotected)"
    )]
    Unauthenticated(SocketAddr),
    /// The figures would be open to other machines.
    #[error(
        "refusing to serve figures over HTTP on {0}: requests are not authenticated (use a loopback address, or permit it with \
         --allow-unprotected)"
    )]
    UnprotectedHttp(SocketAddr),
    /// The files of TLS cannot be used.
    #[error("could not configure TLS: {0}")]
    Tls(#[from] TlsError),
    /// The roles cannot be read.
    #[error("could not read the roles of the database: {0}")]
    Roles(String),
    /// The options contain neither an address nor a socket.
    #[error("no address to listen on")]
    NoAddress,
}

/// A server that listens, and serves connections while [`Server::run`] is polled.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let database = keyaki::Database::open("shop.keyaki", keyaki::Options::default())?;
/// let server = keyaki_server::Server::bind(database, keyaki_server::ServerOptions::default()).await?;
/// println!("listening on {:?}", server.addresses());
/// server.run(async { tokio::signal::ctrl_c().await.unwrap_or(()) }).await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    tcp: Vec<TcpListener>,
    unix: Option<(UnixListener, SocketFile)>,
    http: Option<TcpListener>,
}

/// Tells about a running [`Server`].
#[derive(Debug, Clone)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.registry.len()
    }

    /// Serves a connection over a stream of the caller, with the rules for clients of TCP at the address `peer`, until its end.
    /// It is never encrypted.
    pub async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static,
        peer: SocketAddr,
    ) {
        connection::serve(self.shared.clone(), Socket::Other(Box::new(stream)), Peer::Tcp(peer)).await;
    }

    /// Reads the files of TLS again. If they cannot be used, an error is logged, and the earlier ones remain in use.
    pub fn reload_tls(&self) {
        if let Some(tls) = &self.shared.tls {
            tls.reload();
        }
    }
}

/// A Unix socket in the file system. Dropping it removes the file.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(%error, path = %self.0.display(), "could not remove the socket");
        }
    }
}

impl Server {
    /// Binds all addresses of the options.
    ///
    /// # Errors
    /// If an address cannot be bound, is open to other machines although connections are not protected, or if there is none;
    /// if the files of TLS cannot be used.
    pub async fn bind(database: Database, options: ServerOptions) -> Result<Server, ServerError> {
        let tls = options.tls.clone().map(Tls::new).transpose()?;
        let access = access(&database, &options, tls.as_ref())?;
        let mut tcp = Vec::new();
        for address in &options.listen {
            tcp.push(listen(*address).await?);
        }
        let http = match options.http {
            Some(address) if !address.ip().to_canonical().is_loopback() && !options.allow_unprotected_http => {
                return Err(ServerError::UnprotectedHttp(address));
            }
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let unix = options.socket.as_deref().map(listen_on_path).transpose()?;
        if tcp.is_empty() && unix.is_none() {
            return Err(ServerError::NoAddress);
        }
        let registry = Arc::new(Registry::new(options.max_connections, options.superuser_reserved_connections));
        Ok(Server {
            shared: Arc::new(Shared {
                startups: Semaphore::new(options.max_connections.max(STARTUPS_MIN)),
                local_startups: Semaphore::new(LOCAL_STARTUPS),
                database,
                options,
                tls,
                access,
                handshakes: Throttle::of_handshakes(),
                metrics: Metrics::default(),
                registry,
            }),
            tcp,
            unix,
            http,
        })
    }

    /// The bound TCP addresses, with the ports that the system has chosen for port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// The bound address of figures over HTTP.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> Option<&Path> {
        self.unix.as_ref().map(|(_, file)| file.0.as_path())
    }

    /// Tells about the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { shared: self.shared.clone() }
    }

    /// Serves connections until `shutdown` ends. Then accepts no more, ends idle connections and waits for running
    /// statements. After [`ServerOptions::shutdown_timeout`], it cancels them.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Server { shared, tcp, unix, http } = self;
        // Ends with the shutdown, whose state it shows.
        let mut figures = JoinSet::new();
        if let Some(listener) = http {
            figures.spawn(http::serve(shared.clone(), listener));
        }
        let mut listeners = JoinSet::new();
        for listener in tcp {
            listeners.spawn(accept_tcp(shared.clone(), listener));
        }
        let file = unix.map(|(listener, file)| {
            listeners.spawn(accept_unix(shared.clone(), listener));
            file
        });
        shutdown.await;
        listeners.shutdown().await;
        drop(file);
        let deadline = Instant::now() + shared.options.shutdown_timeout;
        shared.registry.terminate_all();
        // Connections that neither read nor end in time are left to the end of the program.
        while shared.registry.len() > 0 && Instant::now() < deadline + ABORT_TIMEOUT {
            if Instant::now() >= deadline {
                shared.registry.abort_all();
            }
            // Also for connections that are accepted, but not yet registered when the others are asked to end.
            tokio::time::sleep(Duration::from_millis(20)).await;
            shared.registry.terminate_all();
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let failed = |source| ServerError::Listen { address: address.to_string(), source };
    TcpListener::bind(address).await.map_err(failed)
}

/// The rules of authentication.
///
/// # Errors
/// If the server would listen on addresses that other machines can reach, although connections are not protected.
fn access(database: &Database, options: &ServerOptions, tls: Option<&Tls>) -> Result<Access, ServerError> {
    let exposed = options.listen.iter().find(|address| !address.ip().to_canonical().is_loopback());
    let protection = Protection {
        has_tls: tls.is_some(),
        has_client_ca: tls.is_some_and(Tls::has_client_ca),
        is_exposed: exposed.is_some(),
        allow_unprotected: options.allow_unprotected,
    };
    let failed = |error: &dyn fmt::Display| ServerError::Roles(error.to_string());
    let access = Access::new(database.clone(), protection).map_err(|error| failed(&error))?;
    match exposed {
        Some(address) if !options.allow_unprotected && tls.is_none() => Err(ServerError::Unprotected(*address)),
        Some(address) if !options.allow_unprotected && !access.is_required().map_err(|error| failed(&error))? => {
            Err(ServerError::Unauthenticated(*address))
        }
        _ => Ok(access),
    }
}

/// Listens on a Unix socket. Replaces the socket of a server that has ended without removing it.
fn listen_on_path(path: &Path) -> Result<(UnixListener, SocketFile), ServerError> {
    let path = if path.is_dir() { path.join(SOCKET_NAME) } else { path.to_path_buf() };
    let failed = |source| ServerError::Listen { address: path.display().to_string(), source };
    let is_socket = std::fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(&path).is_err() {
        std::fs::remove_file(&path).map_err(failed)?;
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let file = SocketFile(path.clone());
    // Clients are not authenticated by passwords: only those of the same user can connect.
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok((listener, file))
}

async fn accept_tcp(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Clients that vanish without closing their connections do not occupy them for ever.
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
                let set = stream.set_nodelay(true).and_then(|()| SockRef::from(&stream).set_tcp_keepalive(&keepalive));
                if let Err(error) = set {
                    tracing::debug!(%error, %peer, "could not set options of the socket");
                }
                tokio::spawn(connection::serve(shared.clone(), Socket::Tcp(stream), Peer::Tcp(peer)));
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_unix(shared: Arc<Shared>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let peer = Peer::Unix(stream.peer_cred().ok().map(|credentials| credentials.uid()));
                tokio::spawn(connection::serve(shared.clone(), Socket::Unix(stream), peer));
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "could not accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
