//! `keyaki serve`: a database for clients of PostgreSQL.

use std::sync::Arc;

use keyaki_server::Server;
use tokio::signal::unix::{SignalKind, signal};

use crate::allocator;
use crate::arguments::ServeArguments;
use crate::cluster;
use crate::database;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::notify::{is_managed, notify};

pub async fn run(arguments: &ServeArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let options = arguments.open.options()?;
    allocator::fit(options.memory_bytes());
    let database = cluster::attached(database::open(&arguments.database, options)?, &arguments.cluster)?;
    let failed = |error: &dyn std::fmt::Display| Failure::message(error.to_string());
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| failed(&error))?;
    let server = Server::bind(database, arguments.options()).await.map_err(|error| failed(&error))?;
    for address in server.addresses() {
        eprintln!("listening on {address}");
    }
    if let Some(address) = server.http_address() {
        eprintln!("figures on http://{address}/metrics");
    }
    if let Some(path) = server.socket() {
        eprintln!("listening on {}", path.display());
    }
    // Without a service manager, the end of the terminal sends this signal, too.
    if arguments.tls_certificate.is_some() || is_managed() {
        let mut hangups = signal(SignalKind::hangup()).map_err(|error| failed(&error))?;
        let handle = server.handle();
        // Ends with the program.
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                handle.reload_tls();
            }
        });
    }
    // Until the shutdown is complete: two more Ctrl-C end the program.
    let mut active = interrupts.activate();
    notify("READY=1");
    server
        .run(async {
            tokio::select! {
                _ = terminated.recv() => {}
                () = active.pressed() => {}
            }
            notify("STOPPING=1");
            eprintln!("shutting down");
        })
        .await;
    Ok(())
}
