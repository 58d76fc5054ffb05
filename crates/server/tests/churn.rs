//! Clients that vanish while writers go on: the server returns to its earlier state. `KEYAKI_CONNECTIONS` sets their number.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::SinkExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::SockRef;
use support::Served;
use support::raw::{Raw, message, startup};
use tokio::runtime::Handle;
use tokio_postgres::{Client, NoTls};

const CONNECTIONS: usize = 60;
const WRITERS: usize = 4;
/// Connections at a time, beside the writers.
const AT_A_TIME: usize = 250;
/// The process may grow by this much between two equal rounds: allocators keep memory that was freed.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
const ENDLESS: &str = "SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)";
const KINDS: usize = 9;

/// The state that must return.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    connections: usize,
    tasks: usize,
    descriptors: usize,
}

fn held(served: &Served) -> Held {
    Held {
        connections: served.connections(),
        tasks: Handle::current().metrics().num_alive_tasks(),
        descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
    }
}

fn resident() -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES
}

/// Both ends of each connection are in this process.
fn raise_limit(connections: usize) {
    let wanted = 4 * connections as u64 + 1024;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).expect("enough file descriptors");
    }
}

/// Waits for a state, and fails if it does not come.
async fn wait_for(served: &Served, expected: &Held) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let found = held(served);
        if found == *expected {
            return;
        }
        assert!(Instant::now() < deadline, "{found:?}, expected {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A connection whose socket is closed when the client is dropped and its task aborted.
async fn connect(address: SocketAddr) -> (Client, tokio::task::JoinHandle<()>) {
    let text = format!("host={} port={} user=test dbname=test", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&text, NoTls).await.expect("a connection");
    let task = tokio::spawn(async {
        // The client vanishes.
        let _ = connection.await;
    });
    (client, task)
}

/// Opens a connection, and ends it in one of [`KINDS`] ways.
async fn vanish(address: SocketAddr, number: usize) {
    let pause = Duration::from_millis(20 + 7 * (number as u64 % 10));
    let key = 1_000_000 + number as i32;
    match number % KINDS {
        // In its startup.
        0 => {
            let mut raw = Raw::connect(address).await;
            raw.send(&startup("test")[..9]).await;
            tokio::time::sleep(pause).await;
        }
        // Without reading the answer of the startup, by a reset.
        1 => {
            let mut raw = Raw::connect(address).await;
            raw.send(&startup("test")).await;
            SockRef::from(&raw.socket).set_linger(Some(Duration::ZERO)).expect("a socket");
        }
        // With a large result that is not read, by a reset.
        2 => {
            let mut raw = Raw::connect(address).await;
            raw.send(&startup("test")).await;
            raw.send(&message(b'Q', b"SELECT a, repeat('x', 100) FROM generate_series(1, 1000000) g (a)\0")).await;
            tokio::time::sleep(pause).await;
            SockRef::from(&raw.socket).set_linger(Some(Duration::ZERO)).expect("a socket");
        }
        // In the middle of a message.
        3 => {
            let mut raw = Raw::connect(address).await;
            raw.send(&startup("test")).await;
            raw.send(&message(b'Q', b"SELECT 1\0")[..8]).await;
            tokio::time::sleep(pause).await;
        }
        kind => {
            let (client, task) = connect(address).await;
            match kind {
                // In a statement.
                4 => drop(tokio::time::timeout(pause, client.query(ENDLESS, &[])).await),
                // In a transaction that has written.
                5 => {
                    client.batch_execute("BEGIN").await.expect("a transaction");
                    client.execute("INSERT INTO t VALUES ($1, 'lost')", &[&key]).await.expect("a row");
                }
                // In a COPY.
                6 => {
                    let sink = client.copy_in("COPY copied FROM STDIN").await.expect("a copy");
                    futures::pin_mut!(sink);
                    sink.send(Bytes::from_static(b"1\tone\n")).await.expect("a row");
                }
                // After a statement that was cancelled.
                7 => {
                    let token = client.cancel_token();
                    // Requests before the statement has begun have no effect.
                    let cancelling = tokio::spawn(async move {
                        tokio::time::sleep(pause).await;
                        while token.cancel_query(NoTls).await.is_ok() {
                            tokio::time::sleep(pause).await;
                        }
                    });
                    let found = client.query(ENDLESS, &[]).await;
                    cancelling.abort();
                    assert!(found.is_err());
                }
                // In the usual way.
                _ => {
                    client.query("SELECT v FROM t WHERE id = $1", &[&1]).await.expect("rows");
                    drop(client);
                    return task.await.expect("the end of the connection");
                }
            }
            task.abort();
        }
    }
}

/// Opens and ends `count` connections.
async fn churn(served: &Served, count: usize) {
    let mut numbers = 0..count;
    while !numbers.is_empty() {
        let tasks: Vec<_> =
            numbers.by_ref().take(AT_A_TIME).map(|number| tokio::spawn(vanish(served.address, number))).collect();
        for task in tasks {
            task.await.expect("a client");
        }
    }
}

/// Inserts rows until it is stopped, and counts those that are committed.
async fn write(served: &Served, writer: i32, is_stopped: Arc<AtomicBool>, committed: Arc<AtomicI64>) {
    let client = served.connect().await;
    let insert = client.prepare("INSERT INTO t VALUES ($1, 'kept')").await.expect("a statement");
    let mut id = 10 + 100_000_000 * writer;
    while !is_stopped.load(Ordering::Relaxed) {
        client.execute(&insert, &[&id]).await.expect("a row");
        committed.fetch_add(1, Ordering::Relaxed);
        id += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_vanish_leave_nothing() {
    let count = std::env::var("KEYAKI_CONNECTIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(CONNECTIONS);
    raise_limit(count.min(AT_A_TIME) + WRITERS);
    let served = Arc::new(Served::start_with(|options| options.max_connections = AT_A_TIME + WRITERS + 10).await);
    served.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'one')").await;
    served.execute("CREATE TABLE copied (id INTEGER PRIMARY KEY, v TEXT)").await;
    // Threads, caches and the like are created once.
    churn(&served, KINDS).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while served.connections() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Sockets are closed shortly after their connections have ended.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = held(&served);
    assert_eq!(idle.connections, 0);
    let (is_stopped, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let writers: Vec<_> = (0..WRITERS as i32)
        .map(|writer| {
            let (served, is_stopped, committed) = (served.clone(), is_stopped.clone(), committed.clone());
            tokio::spawn(async move { write(&served, writer, is_stopped, committed).await })
        })
        .collect();
    let started = Instant::now();
    churn(&served, count).await;
    let first = resident();
    churn(&served, count).await;
    let (elapsed, grown) = (started.elapsed().as_secs_f64(), resident().saturating_sub(first));
    is_stopped.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("a writer");
    }
    wait_for(&served, &idle).await;
    let committed = committed.load(Ordering::Relaxed);
    eprintln!(
        "{} connections in {elapsed:.1} s beside {committed} commits, {} KiB more memory",
        2 * count,
        grown >> 10
    );
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes are not freed");
    assert!(committed > 0);
    let client = served.connect().await;
    let counts = "SELECT count(*) FILTER (WHERE v = 'kept'), count(*) FILTER (WHERE v = 'lost'), (SELECT count(*) FROM copied) FROM t";
    let row = client.query_one(counts, &[]).await.expect("counts");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2)), (committed, 0, 0));
    let running = "SELECT count(*) FROM keyaki_queries WHERE status = 'running'";
    assert_eq!(client.query_one(running, &[]).await.expect("a count").get::<_, i64>(0), 1);
}
