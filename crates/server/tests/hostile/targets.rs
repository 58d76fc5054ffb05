//! The functions of the fuzz targets `protocol_start` and `protocol_session`. The test `hostile` calls them with random inputs.
//!
//! A target serves connections over streams in memory. An input is a sequence of choices that build messages, most of them
//! well-formed, whose bytes may then be changed. After each input, the connection must have ended, with an answer that
//! consists of whole messages of the protocol. A panic in any thread, or a connection that does not end in time, is a failure.

#[path = "generator.rs"]
mod generator;

use std::net::SocketAddr;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use keyaki::{Database, Options};
use keyaki_server::{Server, ServerHandle, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use generator::{Choices, change, framed, message, messages, opening};

/// A connection must end within this time after its client has closed its side.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Of the streams in memory. Small, so that messages are split.
const STREAM_BYTES: usize = 1 << 10;
/// Frames of debug builds are large.
const STACK_BYTES: usize = 16 << 20;
const MESSAGES_MAX: usize = 24;

/// Panics of all threads.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// A server, its database, and a runtime for both.
pub struct Target {
    runtime: Runtime,
    handle: ServerHandle,
    /// The address of the next client.
    address: AtomicU32,
    /// Not run: it only listens.
    _server: Server,
}

impl Target {
    /// With roles, clients must authenticate.
    pub fn new(has_roles: bool) -> Target {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let earlier = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.fetch_add(1, Ordering::SeqCst);
                earlier(panic);
            }));
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime.block_on(async {
            let options = Options { memory_bytes: Some(64 << 20), threads: Some(1), ..Options::default() };
            let database = Database::open_temporary(options).expect("a database");
            let session = database.session();
            let setup = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'one'), (2, NULL)";
            session.execute(setup).await.expect("statements");
            if has_roles {
                session.execute("CREATE ROLE me LOGIN PASSWORD 'secret'").await.expect("a role");
            }
            let options = ServerOptions { listen: vec![([127, 0, 0, 1], 0).into()], ..ServerOptions::default() };
            Server::bind(database, options).await.expect("a server")
        });
        Target { runtime, handle: server.handle(), address: AtomicU32::new(1), _server: server }
    }

    /// Sends bytes over a connection, and returns the answer up to the end of the connection.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let panics = PANICS.load(Ordering::SeqCst);
        let (client, stream) = duplex(STREAM_BYTES);
        let (mut input, mut output) = tokio::io::split(client);
        // Each connection has an address of its own: failed attempts of one would be delayed.
        let [_, a, b, c] = self.address.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let peer = SocketAddr::from(([127, a, b, c], 1));
        let mut answer = Vec::new();
        let exchange = async {
            let served = tokio::spawn({
                let handle = self.handle.clone();
                async move { handle.serve(stream, peer).await }
            });
            let send = async {
                // The server may have ended the connection.
                let _ = output.write_all(bytes).await;
                let _ = output.shutdown().await;
            };
            let (read, ()) = tokio::join!(input.read_to_end(&mut answer), send);
            read.expect("an end of the stream");
            served.await.expect("an end without a panic");
        };
        let ended = self.runtime.block_on(async { timeout(END_TIMEOUT, exchange).await });
        assert!(ended.is_ok(), "the connection does not end");
        assert_eq!(PANICS.load(Ordering::SeqCst), panics, "a thread has panicked");
        assert_eq!(self.handle.connections(), 0);
        answer
    }
}

/// Bytes that are no or some messages before the end of the authentication.
pub fn start(target: &Target, input: &[u8]) {
    let mut choices = Choices { bytes: input };
    let mut bytes = Vec::new();
    match choices.below(4) {
        0 => bytes.extend_from_slice(choices.bytes),
        _ => {
            while !choices.is_empty() && bytes.len() < 1 << 16 {
                bytes.extend(opening(&mut choices));
            }
            change(&mut Choices { bytes: input }, &mut bytes);
        }
    }
    let answer = target.exchange(&bytes);
    // Answers to requests for encryption are single bytes.
    let encryption = answer.iter().take_while(|byte| **byte == b'N').count();
    // The message NegotiateProtocolVersion has the type `v`.
    for (kind, _) in messages(&answer[encryption..]).expect("whole messages") {
        assert!(b"REv".contains(&kind), "message type {kind} without authentication");
    }
}

/// Messages of a session whose startup has succeeded.
pub fn session(target: &Target, input: &[u8]) {
    let mut choices = Choices { bytes: input };
    let opened = framed(None, &[&(3_u32 << 16).to_be_bytes()[..], b"user\0me\0\0"].concat());
    let (mut bytes, mut count) = (Vec::new(), 0);
    while !choices.is_empty() && count < MESSAGES_MAX {
        bytes.extend(message(&mut choices));
        count += 1;
    }
    change(&mut Choices { bytes: input }, &mut bytes);
    let answer = target.exchange(&[opened, bytes].concat());
    let messages = messages(&answer).expect("whole messages");
    assert_eq!(messages.first().map(|(kind, _)| *kind), Some(b'R'), "the startup has succeeded");
    // The transaction of each message is known to the client.
    let ready = messages.iter().filter(|(kind, _)| *kind == b'Z');
    assert!(ready.clone().all(|(_, body)| body.len() == 1 && b"ITE".contains(&body[0])));
    assert!(ready.count() >= 1);
    for (kind, body) in messages {
        if kind == b'E' {
            assert!(body.starts_with(b"S") && body.ends_with(b"\0\0"), "{}", String::from_utf8_lossy(body));
        }
    }
}
