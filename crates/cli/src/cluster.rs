//! `keyaki worker`, and the workers of `keyaki URL --workers`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki::{Database, QuerySplit};
use keyaki_cluster::{Coordinator, Security, Tls, WorkerOptions, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::allocator;
use crate::arguments::{ClusterArguments, SecurityArguments, WorkerArguments};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::notify::notify;

/// The variable of the environment that has the token of the cluster.
const TOKEN: &str = "KEYAKI_CLUSTER_TOKEN";

/// A row of a pipeline's driver takes as long as this many bytes of a scan.
const BYTES_PER_DRIVER_ROW: f64 = 2_000.0;

/// A database with the workers of the command line, if there are any.
///
/// # Errors
/// For a database that is not published, invalid addresses, and files that cannot be read.
pub fn attached(database: Database, arguments: &ClusterArguments) -> Result<Database> {
    if arguments.workers.is_empty() {
        return Ok(database);
    }
    let share = arguments.workers_share.0.max(1) as f64;
    let split = QuerySplit { scan_bytes: share, driver_rows: share / BYTES_PER_DRIVER_ROW };
    let coordinator = Coordinator::new(&arguments.workers, security(&arguments.security)?)?;
    Ok(database.with_cluster(Arc::new(coordinator.with_split(split)))?)
}

/// Runs a worker until Ctrl-C or SIGTERM.
///
/// # Errors
/// If the address can be reached by others without authentication or is in use; for invalid files.
pub async fn worker(arguments: &WorkerArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let security = security(&arguments.security)?;
    let is_open = security.token.is_none() && security.tls.is_none();
    if is_open && !arguments.listen.ip().is_loopback() && !arguments.allow_unprotected {
        return Err(Failure::message(format!(
            "others can reach {}, and need no token: set {TOKEN}, use --cluster-certificate, or --allow-unprotected",
            arguments.listen
        )));
    }
    let database = arguments.options();
    allocator::fit(database.memory_bytes());
    let listener = TcpListener::bind(arguments.listen).await;
    let listener =
        listener.map_err(|error| Failure::message(format!("cannot listen on {}: {error}", arguments.listen)))?;
    let address = listener.local_addr().unwrap_or(arguments.listen);
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| Failure::message(error.to_string()))?;
    let mut active = interrupts.activate();
    eprintln!("listening on {address}");
    notify("READY=1");
    let options = WorkerOptions { security, database, allowed: arguments.allow_url.clone() };
    let shutdown = async {
        tokio::select! {
            _ = terminated.recv() => {}
            () = active.pressed() => {}
        }
        notify("STOPPING=1");
        eprintln!("shutting down");
    };
    Ok(serve(listener, options, shutdown).await?)
}

/// The token and the certificates of the command line and the environment.
fn security(arguments: &SecurityArguments) -> Result<Security> {
    let token = match &arguments.cluster_token {
        Some(file) => Some(String::from_utf8_lossy(&read(file)?).trim().to_string()),
        None => std::env::var(TOKEN).ok(),
    };
    let token = token.filter(|token| !token.is_empty());
    let SecurityArguments { cluster_certificate: certificate, cluster_key: key, cluster_ca: authority, .. } = arguments;
    let read = |file: &Option<PathBuf>| file.as_deref().map(read).transpose();
    let tls = match (read(certificate)?, read(key)?, read(authority)?) {
        (Some(certificate), Some(key), Some(authority)) => Some(Tls { certificate, key, authority }),
        _ => None,
    };
    Ok(Security { token, tls })
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(Failure::file(file))
}
