//! The life of a connection: startup, requests, end.
//!
//! Requests are executed one after another, by one task. While a statement runs, the connection waits for its result, for a
//! request to cancel it, for its timeout and for the end of the connection at the same time. Requests that arrive meanwhile are
//! kept in a buffer of limited size (a pipeline).
//!
//! | module | contents |
//! |---|---|
//! | [`statements`] | prepared statements, portals, and what their commands are called |
//! | [`client`] | state of a connection, the execution of statements, and their transactions |
//! | [`copying`] | COPY FROM STDIN and COPY TO STDOUT |
//! | [`negotiation`] | encryption, up to the startup message |
//! | [`startup`] | authentication, parameters of the session |
//! | [`record`] | figures of executed requests, the log of slow statements |
//! | [`simple`], [`extended`] | the two ways of sending statements |

mod client;
mod copying;
mod extended;
mod negotiation;
mod record;
mod simple;
mod startup;
mod statements;

use std::sync::Arc;

use pgwire::messages::PgWireFrontendMessage as Request;
use tokio::time::timeout;

use crate::failure::{Failure, Result};
use crate::shared::Shared;
use crate::socket::{Peer, Socket};
use client::Client;

/// Serves a connection until its end.
pub async fn serve(shared: Arc<Shared>, socket: Socket, peer: Peer) {
    let limit = shared.options.startup_timeout;
    let startups = if matches!(peer, Peer::Unix(_)) { &shared.local_startups } else { &shared.startups };
    let Ok(permit) = startups.try_acquire() else {
        return tracing::warn!(%peer, "too many connections in their startup");
    };
    // Boxed, as the rest: the task of an idle connection stays small.
    let opened = timeout(limit, Box::pin(startup::open(shared.clone(), socket, peer))).await;
    drop(permit);
    let client = match opened {
        Ok(Some(client)) => client,
        Ok(None) => return,
        Err(_) => return tracing::debug!(%peer, "the startup took too long"),
    };
    Box::pin(run(client, peer)).await;
}

async fn run(mut client: Client, peer: Peer) {
    tracing::debug!(%peer, process = client.process(), "connected");
    let failure = loop {
        match request(&mut client).await {
            Ok(true) => {}
            Ok(false) => break None,
            Err(failure) => break Some(failure),
        }
    };
    match failure {
        None => tracing::debug!(%peer, "disconnected"),
        Some(Failure::Closed(error)) => tracing::debug!(%peer, %error, "disconnected"),
        Some(failure) => {
            tracing::debug!(%peer, %failure, "ended the connection");
            // The message is a part of the end: it cannot fail in another way.
            let _ = client.wire.put(&failure.message("", 0));
        }
    }
    client.end().await;
}

/// Executes a request. False after the last one.
///
/// # Errors
/// Errors that end the connection.
async fn request(client: &mut Client) -> Result<bool> {
    let request = client.next().await?;
    let done = match request {
        Request::Terminate(_) => return Ok(false),
        Request::Sync(_) => return extended::sync(client).await.map(|()| true),
        // After an error, everything up to the next Sync is skipped.
        _ if client.is_skipping => return Ok(true),
        Request::Query(query) => return simple::query(client, &query.query).await.map(|()| true),
        Request::Parse(parse) => extended::parse(client, parse).await,
        Request::Bind(bind) => extended::bind(client, bind).await,
        Request::Describe(describe) => extended::describe(client, describe).await,
        Request::Execute(execute) => extended::execute(client, execute).await,
        Request::Close(close) => extended::close(client, &close),
        Request::Flush(_) => client.flush().await,
        // Of a COPY that has failed.
        Request::CopyData(_) | Request::CopyDone(_) | Request::CopyFail(_) => return Ok(true),
        _ => Err(Failure::fatal("08P01", "unexpected message")),
    };
    match done {
        Ok(()) => {
            client.flush_if_large().await?;
            Ok(true)
        }
        Err(failure) if failure.is_fatal() => Err(failure),
        Err(failure) => extended::failed(client, &failure).await.map(|()| true),
    }
}
