//! Messages that no driver sends.

use std::time::Duration;

use crate::support::Served;
use keyaki_primitives::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A message with a type.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend((body.len() as u32 + 4).to_be_bytes());
    message.extend(body);
    message
}

fn startup(body: &[u8]) -> Vec<u8> {
    let mut message = (body.len() as u32 + 4).to_be_bytes().to_vec();
    message.extend(body);
    message
}

const USER: &[u8] = b"\0\x03\0\0user\0test\0\0";

/// Sends bytes and reads everything up to the end of the connection.
async fn exchange(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(served.address).await.expect("a connection");
    // The server may have closed the connection.
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), socket.read_to_end(&mut answer)).await;
    // A reset is an end, too.
    let _ = read.expect("an end");
    answer
}

fn contains(answer: &[u8], text: &str) -> bool {
    answer.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_end_the_connection() {
    let served = Served::start().await;
    let opened = startup(USER);
    let after = |rest: Vec<u8>| [opened.clone(), rest].concat();
    for (bytes, expected) in [
        (startup(b"\0\x02\0\0"), "C0A000"),
        (startup(b"\0\x03\0\0user\0test"), "C08P01"),
        (startup(b"\0\x03\0\0\0"), "C28000"),
        (vec![0, 0, 0, 3, 0], "C08P01"),
        (vec![255; 100], "C08P01"),
        (after(message(b'?', b"")), "C08P01"),
        (after(vec![b'Q', 0, 0, 0, 3]), "C08P01"),
        (after(vec![b'Q', 127, 255, 255, 255]), "C54000"),
        (after(message(b'Q', b"SELECT 1")), "C08P01"),
        (after(message(b'Q', b"SELECT '\xFF'\0")), "C22021"),
        (after(message(b'B', b"\0\0\0\x01")), "C08P01"),
        (after(message(b'D', b"X\0")), "C08P01"),
    ] {
        let answer = exchange(&served, &bytes).await;
        assert!(contains(&answer, "SFATAL") && contains(&answer, expected), "{bytes:?}: {answer:?}");
    }
    assert!(exchange(&served, b"GET / HTTP/1.1\r\n\r\n").await.len() < 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn encryption_is_refused_and_plain_text_follows() {
    let served = Served::start().await;
    let bytes = [
        startup(&80_877_103_u32.to_be_bytes()),
        startup(&80_877_104_u32.to_be_bytes()),
        startup(USER),
        message(b'Q', b"SELECT 'found'\0"),
        message(b'X', b""),
    ];
    let answer = exchange(&served, &bytes.concat()).await;
    assert!(answer.starts_with(b"NNR") && contains(&answer, "found"), "{answer:?}");
}

/// A client that asks for a later version of the protocol, and for options that do not exist.
#[tokio::test(flavor = "multi_thread")]
async fn versions_are_negotiated() {
    let served = Served::start().await;
    let bytes = [startup(b"\0\x03\0\x09user\0test\0_pq_.nix\x001\0\0"), message(b'X', b"")].concat();
    let answer = exchange(&served, &bytes).await;
    assert_eq!(answer[0], b'v', "{answer:?}");
    assert!(contains(&answer, "_pq_.nix") && contains(&answer, "server_version"), "{answer:?}");
}

/// After an error, everything up to the next Sync is skipped.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_skipped_up_to_sync() {
    let served = Served::start().await;
    let bytes = [
        startup(USER),
        message(b'P', b"\0SELECT nix\0\0\0"),
        message(b'P', b"\0SELECT 'skipped'\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
        message(b'P', b"\0SELECT 'executed'\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
        message(b'X', b""),
    ];
    let answer = exchange(&served, &bytes.concat()).await;
    assert!(contains(&answer, "C42703") && !contains(&answer, "skipped") && contains(&answer, "executed"));
    // No row is returned twice.
    assert!(contains(&answer, "SELECT 1") && contains(&answer, "SELECT 0"), "{answer:?}");
}

/// An error is sent at once: the client may wait for it before it sends a Sync.
#[tokio::test(flavor = "multi_thread")]
async fn errors_do_not_wait_for_sync() {
    let served = Served::start().await;
    let mut socket = TcpStream::connect(served.address).await.expect("a connection");
    let bytes = [startup(USER), message(b'P', b"\0SELEC\0\0\0"), message(b'H', b"")].concat();
    socket.write_all(&bytes).await.expect("a request");
    let mut answer = Vec::new();
    while !contains(&answer, "C42601") {
        assert!(socket.read_buf(&mut answer).await.expect("an answer") > 0);
    }
}

/// A change is not made if its rows cannot be returned.
#[tokio::test(flavor = "multi_thread")]
async fn changes_with_wrong_formats() {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").await.expect("a table");
    let bytes = [
        startup(USER),
        message(b'P', b"\0INSERT INTO t VALUES (1) RETURNING id\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\x03\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
        message(b'X', b""),
    ];
    assert!(contains(&exchange(&served, &bytes.concat()).await, "C08P01"));
    let row = client.query_one("SELECT count(*) FROM t", &[]).await.expect("a row");
    assert_eq!(row.get::<_, i64>(0), 0);
}

/// A prepared EXECUTE that names itself would execute itself until the stack ends.
#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_that_execute_themselves() {
    let served = Served::start().await;
    let bytes = [
        startup(USER),
        message(b'P', b"p\0EXECUTE p\0\0\0"),
        message(b'P', b"q\0EXECUTE p\0\0\0"),
        message(b'S', b""),
        message(b'Q', b"EXECUTE p\0"),
        message(b'Q', b"EXECUTE q\0"),
        message(b'B', b"\0p\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
        message(b'Q', b"SELECT 'alive'\0"),
        message(b'X', b""),
    ];
    let answer = exchange(&served, &bytes.concat()).await;
    assert!(contains(&answer, "C0A000") && contains(&answer, "alive"), "{}", String::from_utf8_lossy(&answer));
}

/// Values that are not of their types are errors of the request, not of the connection.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_values() {
    let served = Served::start().await;
    let bytes = [
        startup(USER),
        // An INTEGER of three bytes.
        message(b'P', b"\0SELECT $1\0\0\x01\0\0\0\x17"),
        message(b'B', b"\0\0\0\x01\0\x01\0\x01\0\0\0\x03abc\0\0"),
        message(b'S', b""),
        // Too few values.
        message(b'P', b"\0SELECT $1\0\0\x01\0\0\0\x17"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'S', b""),
        // A format that does not exist.
        message(b'P', b"\0SELECT 1\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\x01\0\x07"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
        message(b'Q', b"SELECT 'goes on'\0"),
        message(b'X', b""),
    ];
    let answer = exchange(&served, &bytes.concat()).await;
    assert!(contains(&answer, "C22P03") && contains(&answer, "supplies 0 parameters"), "{answer:?}");
    assert!(contains(&answer, "unsupported format code: 7") && contains(&answer, "goes on"), "{answer:?}");
}

/// Random bytes, and valid messages with random changes. `KEYAKI_FUZZ_ROUNDS` sets their number.
#[tokio::test(flavor = "multi_thread")]
async fn random_messages() {
    let rounds = std::env::var("KEYAKI_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
    let served = Served::start().await;
    let mut random = Random::new(11);
    let messages = [
        message(b'Q', b"SELECT 1; SELECT 'a' AS b\0"),
        message(b'P', b"s\0SELECT $1::INTEGER\0\0\x01\0\0\0\x17"),
        message(b'B', b"p\0s\0\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\x07\0\x01\0\x01"),
        message(b'D', b"Pp\0"),
        message(b'D', b"Ss\0"),
        message(b'E', b"p\0\0\0\0\x01"),
        message(b'C', b"Pp\0"),
        message(b'H', b""),
        message(b'S', b""),
        message(b'd', b"row\n"),
        message(b'c', b""),
        message(b'f', b"no\0"),
        message(b'p', b"secret\0"),
        message(b'Q', b"COPY (SELECT 1) TO STDOUT\0"),
    ];
    for _ in 0..rounds {
        let mut bytes = if random.below(8) > 0 { startup(USER) } else { Vec::new() };
        for _ in 0..random.below(12) {
            bytes.extend(&messages[random.below(messages.len() as u64) as usize]);
        }
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
        }
        exchange(&served, &bytes).await;
    }
    while served.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let client = served.connect().await;
    assert_eq!(client.query_one("SELECT 1", &[]).await.expect("a row").get::<_, i64>(0), 1);
}
