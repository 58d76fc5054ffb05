//! The functions of the fuzz targets `protocol_start` and `protocol_session`. The test `hostile` calls them with random inputs.
//!
//! A target serves connections over streams in memory. An input is a sequence of choices that build messages, most of them
//! well-formed, whose bytes may then be changed. After each input, the connection must have ended, with an answer that
//! consists of whole messages of the protocol. A panic in any thread, or a connection that does not end in time, is a failure.

use std::net::SocketAddr;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use keyaki::{Database, Options};
use keyaki_server::{Server, ServerHandle, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// A connection must end within this time after its client has closed its side.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Of the streams in memory. Small, so that messages are split.
const STREAM_BYTES: usize = 1 << 10;
/// Frames of debug builds are large.
const STACK_BYTES: usize = 16 << 20;
const MESSAGES_MAX: usize = 24;
/// The types of the messages that a server sends.
const ANSWERS: &[u8] = b"123ACDEGHIKNRSTVWZcdnstv";

const STATEMENTS: &[&str] = &[
    "",
    ";",
    "SELECT 1",
    "SELECT 1; SELECT 2 AS b; SELECT 'c'",
    "SELEC 1",
    "SELECT * FROM t",
    "SELECT v FROM t WHERE id = $1",
    "SELECT $1, $2::text, $3::int[]",
    "SELECT a FROM generate_series(1, 2000) g (a)",
    "SELECT 1 / (a - 5) FROM generate_series(1, 10) g (a)",
    "INSERT INTO t VALUES ($1, $2)",
    "INSERT INTO t VALUES (1, 'again')",
    "INSERT INTO t (id) SELECT max(id) + 1 FROM t RETURNING id",
    "UPDATE t SET v = v || 'x' WHERE id = 1 AND length(v) < 100",
    "DELETE FROM t WHERE id > 50",
    "BEGIN",
    "BEGIN READ ONLY",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT s",
    "ROLLBACK TO s",
    "COPY t FROM STDIN",
    "COPY t FROM STDIN (FORMAT binary)",
    "COPY t FROM STDIN (FORMAT csv, HEADER true)",
    "COPY t TO STDOUT",
    "COPY (SELECT 1, 'x', NULL) TO STDOUT (FORMAT binary)",
    "SET timezone = 'Europe/Berlin'",
    "SHOW timezone",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE ALL",
    "EXPLAIN SELECT * FROM t",
    "SET ROLE nobody",
    "SELECT '\u{1F333}' AS tree",
];
const NAMES: &[&str] = &["", "s", "p", "a rather long name of a statement or a portal"];
const COPIED: &[&[u8]] = &[
    b"",
    b"7\tseven\n",
    b"\\N\t\\N\n",
    b"x\n",
    b"\\.\n",
    b"PGCOPY\n\xFF\r\n\0\0\0\0\0\0\0\0\0",
    b"\0\x02\0\0\0\x04\0\0\0\x09",
    b"id,v\n8,\"e\n\"",
];
const OIDS: &[u32] = &[
    0, 16, 17, 20, 21, 23, 25, 26, 700, 701, 705, 1007, 1009, 1043, 1082, 1083, 1114, 1184, 1186, 1700, 2950, 3802,
    9999,
];

/// Panics of all threads.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Reads choices from the bytes of an input; zeros after their end.
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Up to `max` bytes of the input.
    fn some(&mut self, max: usize) -> &'a [u8] {
        let len = self.below(max + 1).min(self.bytes.len());
        let (some, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        some
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 4).to_be_bytes();
    kind.into_iter().chain(len).chain(body.iter().copied()).collect()
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

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

/// The messages of an answer: their types and bodies.
fn messages(mut answer: &[u8]) -> Vec<(u8, &[u8])> {
    let mut messages = Vec::new();
    while let Some((&kind, rest)) = answer.split_first() {
        assert!(ANSWERS.contains(&kind), "message type {kind}");
        let (len, rest) = rest.split_first_chunk().expect("a length");
        let len = u32::from_be_bytes(*len) as usize - 4;
        assert!(len <= rest.len(), "a message of {len} bytes, {} are left", rest.len());
        let (body, rest) = rest.split_at(len);
        messages.push((kind, body));
        answer = rest;
    }
    messages
}

/// Replaces bytes as the input says.
fn change(choices: &mut Choices<'_>, bytes: &mut Vec<u8>) {
    // Half of all inputs remain as they are.
    for _ in 0..choices.below(8).saturating_sub(4) {
        if bytes.is_empty() {
            return;
        }
        let at = (choices.below(256) * 256 + choices.below(256)) % bytes.len();
        match choices.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, choices.byte()),
            _ => bytes[at] = choices.byte(),
        }
    }
}

fn startup(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut body = choices.pick(&[196_608_u32, 196_608, 196_610, 196_707, 131_072, 80_877_104]).to_be_bytes().to_vec();
    let names = ["user", "database", "options", "application_name", "replication", "_pq_.x", "TimeZone", "nonsense"];
    let values = ["me", "", "-c timezone=UTC", "--x", "\\ \\", "true", "'; SELECT 1", "UTC"];
    for name in names.iter().take(1 + choices.below(4)) {
        body.extend(text(if choices.below(8) == 0 { choices.pick(&names) } else { name }));
        body.extend(text(if *name == "user" { "me" } else { choices.pick(&values) }));
    }
    body.push(0);
    framed(None, &body)
}

/// A message before or during the authentication.
fn opening(choices: &mut Choices<'_>) -> Vec<u8> {
    match choices.below(8) {
        0 => framed(None, &80_877_103_u32.to_be_bytes()),
        1 => framed(None, &80_877_104_u32.to_be_bytes()),
        2 => framed(None, &[&80_877_102_u32.to_be_bytes()[..], choices.some(40)].concat()),
        3 | 4 => startup(choices),
        5 => {
            let mut body = text(choices.pick(&["SCRAM-SHA-256", "SCRAM-SHA-256-PLUS", "PLAIN", ""]));
            let data = choices.pick(&[
                &b"n,,n=,r=abc"[..],
                b"y,,n=me,r=abc",
                b"p=tls-server-end-point,,n=,r=abc",
                b"n,a=x,n=,r=,",
                b"",
            ]);
            body.extend(choices.pick(&[data.len() as u32, u32::MAX, 1]).to_be_bytes());
            body.extend(data);
            framed(Some(b'p'), &body)
        }
        6 => framed(Some(b'p'), choices.pick(&[&b"c=biws,r=abc,p=AAAA"[..], b"c=,r=,p=", b"secret\0", b"\xFF"])),
        _ => message(choices),
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
    for (kind, _) in messages(&answer[encryption..]) {
        assert!(b"REv".contains(&kind), "message type {kind} without authentication");
    }
}

/// Values in the text or the binary format.
fn values(choices: &mut Choices<'_>) -> Vec<u8> {
    let count = choices.below(4) as u16;
    let mut body = count.to_be_bytes().to_vec();
    for _ in 0..count {
        let value = choices.pick(&[
            &b"1"[..],
            b"x",
            b"\0\0\0\x01",
            b"\0\0\0\0\0\0\0\x07",
            b"{1,2}",
            b"\0\x01\0\0\0\0\0\0\0\x05",
            b"\0\0\0\x01\0\0\0\0\0\0\0\x17\0\0\0\x01\0\0\0\x01\0\0\0\x04\0\0\0\x09",
            b"2024-02-29",
            b"\xFF\xFE",
            b"",
        ]);
        match choices.below(8) {
            0 => body.extend([255; 4]),
            1 => body.extend((value.len() as u32 + 1).to_be_bytes()),
            _ => {
                body.extend((value.len() as u32).to_be_bytes());
                body.extend(value);
            }
        }
    }
    body
}

fn formats(choices: &mut Choices<'_>) -> Vec<u8> {
    choices
        .pick(&[&b"\0\0"[..], b"\0\x01\0\0", b"\0\x01\0\x01", b"\0\x02\0\0\0\x01", b"\0\x01\0\x07", b"\xFF\xFF"])
        .to_vec()
}

/// A message of a session.
fn message(choices: &mut Choices<'_>) -> Vec<u8> {
    match choices.below(20) {
        0..4 => framed(Some(b'Q'), &text(choices.pick(STATEMENTS))),
        4 => framed(Some(b'Q'), &[choices.some(48), b"\0"].concat()),
        5..8 => {
            let mut body = [text(choices.pick(NAMES)), text(choices.pick(STATEMENTS))].concat();
            let count = choices.below(4) as u16;
            body.extend(count.to_be_bytes());
            (0..count).for_each(|_| body.extend(choices.pick(OIDS).to_be_bytes()));
            framed(Some(b'P'), &body)
        }
        8..11 => {
            let names = [text(choices.pick(NAMES)), text(choices.pick(NAMES))].concat();
            framed(Some(b'B'), &[names, formats(choices), values(choices), formats(choices)].concat())
        }
        11 => framed(Some(b'D'), &[vec![choices.pick(b"SPx")], text(choices.pick(NAMES))].concat()),
        12 | 13 => {
            let limit = choices.pick(&[0_u32, 1, 3, u32::MAX]).to_be_bytes();
            framed(Some(b'E'), &[text(choices.pick(NAMES)), limit.to_vec()].concat())
        }
        14 => framed(Some(b'C'), &[vec![choices.pick(b"SPx")], text(choices.pick(NAMES))].concat()),
        15 => framed(Some(choices.pick(b"HSSS")), b""),
        16 | 17 => framed(Some(b'd'), choices.pick(COPIED)),
        18 => match choices.below(3) {
            0 => framed(Some(b'f'), b"no\0"),
            _ => framed(Some(b'c'), b""),
        },
        _ => match choices.below(8) {
            0 => framed(Some(b'X'), b""),
            1 => framed(Some(b'F'), choices.some(16)),
            2 => framed(Some(choices.byte()), choices.some(32)),
            3 => vec![b'Q', 127, 255, 255, 255],
            _ => framed(Some(b'S'), b""),
        },
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
    let messages = messages(&answer);
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
