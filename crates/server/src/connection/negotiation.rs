//! The beginning of a connection: encryption, and messages up to the startup.
//!
//! Clients request encryption in the first message, or begin with it (direct TLS). Bytes that a client sends after its request and
//! before the handshake are refused: somebody on the way could have inserted them, and they would count as encrypted.

use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::response::{GssEncResponse, SslResponse};
use pgwire::messages::startup::Startup;
use tokio::net::TcpStream;

use crate::failure::{Failure, Result};
use crate::frames::{Opening, Wire};
use crate::shared::Shared;
use crate::socket::{Peer, Socket};
use crate::tls::{Encryption, Tls};

/// Maximum number of requests for encryption before the startup.
const NEGOTIATIONS_MAX: usize = 2;
/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// A connection after its startup message.
pub struct Negotiated {
    pub wire: Wire<Socket>,
    pub startup: Startup,
    /// `None` for connections without TLS.
    pub encryption: Option<Encryption>,
}

/// A step of the negotiation.
enum Step {
    /// The client is to send its next message.
    Continue,
    /// The client begins the handshake of TLS.
    Encrypt,
    Startup(Startup),
    /// The connection has done its work.
    End,
}

/// Negotiates the encryption and reads the startup message. `None` if the connection has ended: also after requests to cancel a
/// statement.
pub async fn negotiate(shared: &Shared, socket: Socket, peer: Peer) -> Option<Negotiated> {
    let (socket, mut encryption) = match (socket, &shared.tls) {
        (Socket::Tcp(socket), Some(tls)) if is_handshake(&socket).await => {
            let (socket, encryption) = encrypt(shared, tls, socket, peer).await?;
            (socket, Some(encryption))
        }
        (socket, _) => (socket, None),
    };
    let is_direct = encryption.is_some();
    let mut wire = Wire::new(socket, shared.options.message_bytes_max, shared.options.send_timeout);
    if is_direct && !encryption.as_ref().is_some_and(|encryption| encryption.has_alpn) {
        let problem = "received direct TLS connection request without ALPN protocol negotiation extension";
        refuse(wire, &Failure::fatal("08P01", problem), peer).await;
        return None;
    }
    for _ in 0..=NEGOTIATIONS_MAX {
        match step(shared, &mut wire).await {
            Ok(Step::Continue) => {}
            Ok(Step::Encrypt) => {
                let (Socket::Tcp(socket), Some(tls)) = (wire.into_socket(), &shared.tls) else { return None };
                let encrypted = encrypt(shared, tls, socket, peer).await?;
                wire = Wire::new(encrypted.0, shared.options.message_bytes_max, shared.options.send_timeout);
                encryption = Some(encrypted.1);
            }
            Ok(Step::Startup(startup)) => return Some(Negotiated { wire, startup, encryption }),
            Ok(Step::End) => {
                wire.close().await;
                return None;
            }
            Err(failure) => {
                shared.metrics.refused(failure.code());
                refuse(wire, &failure, peer).await;
                return None;
            }
        }
    }
    refuse(wire, &Failure::fatal("08P01", "too many requests for encryption"), peer).await;
    None
}

/// Reads a message and answers it.
async fn step(shared: &Shared, wire: &mut Wire<Socket>) -> Result<Step> {
    let step = match wire.opening().await? {
        // Unix sockets and connections with TLS are not encrypted (again).
        Opening::Tls if shared.tls.is_some() && matches!(wire.socket(), Socket::Tcp(_)) => {
            if wire.has_input() {
                return Err(Failure::fatal("08P01", "received unencrypted data after SSL request"));
            }
            wire.put(&Message::SslResponse(SslResponse::Accept))?;
            Step::Encrypt
        }
        Opening::Tls => {
            wire.put(&Message::SslResponse(SslResponse::Refuse))?;
            Step::Continue
        }
        Opening::Gss => {
            wire.put(&Message::GssEncResponse(GssEncResponse::Refuse))?;
            Step::Continue
        }
        Opening::Cancel { process, secret } => {
            shared.registry.cancel(process, &secret);
            return Ok(Step::End);
        }
        Opening::Startup(startup) => return Ok(Step::Startup(startup)),
    };
    wire.flush().await?;
    Ok(step)
}

/// True if the client begins with the handshake of TLS. Reads nothing.
async fn is_handshake(socket: &TcpStream) -> bool {
    let mut first = [0];
    matches!(socket.peek(&mut first).await, Ok(1)) && first[0] == HANDSHAKE
}

/// A handshake, which counts as failed when it is dropped before it is done: also after the time of the startup.
struct Handshake<'a> {
    shared: &'a Shared,
    peer: Peer,
    is_done: bool,
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.shared.metrics.handshake_failed();
        if let Some(address) = self.peer.ip() {
            self.shared.handshakes.fail(address, "");
        }
    }
}

/// Performs the handshake; `None` if it fails: the client gets an alert of TLS. After many failures from an address, its
/// handshakes wait, or are refused.
async fn encrypt(shared: &Shared, tls: &Tls, socket: TcpStream, peer: Peer) -> Option<(Socket, Encryption)> {
    if let Some(address) = peer.ip()
        && !shared.handshakes.admit(address, "").await
    {
        shared.metrics.handshake_refused();
        tracing::debug!(%peer, "too many TLS handshakes have failed: refused one");
        return None;
    }
    let mut handshake = Handshake { shared, peer, is_done: false };
    match tls.accept(socket).await {
        Ok((socket, encryption)) => {
            handshake.is_done = true;
            Some((Socket::Tls(Box::new(socket)), encryption))
        }
        Err(error) => {
            tracing::debug!(%error, %peer, "the TLS handshake failed");
            None
        }
    }
}

/// Ends a connection with a message to the client.
pub async fn refuse(mut wire: Wire<Socket>, failure: &Failure, peer: Peer) {
    tracing::debug!(problem = ?failure.to_string(), %peer, "refused a connection");
    // The connection ends in any case.
    let _ = wire.put(&failure.message("", 0));
    wire.close().await;
}
