//! Figures and states over HTTP.

use std::net::SocketAddr;

use crate::support::{Served, code};
use keyaki::{Database, Options};
use keyaki_server::{Server, ServerError, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::error::SqlState;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The answer to a request.
async fn request(address: SocketAddr, line: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_and_states() -> Result {
    let served = Served::start_with(|options| options.http = Some(([127, 0, 0, 1], 0).into())).await;
    let address = served.http.ok_or("no address")?;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").await?;
    client.execute("INSERT INTO t VALUES ($1)", &[&1]).await?;
    client.query("SELECT id FROM t", &[]).await?;
    assert_eq!(code(client.batch_execute("SELECT nix").await), SqlState::UNDEFINED_COLUMN);
    let answer = request(address, "GET /metrics").await?;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("version=0.0.4"), "{answer}");
    for line in [
        "keyaki_connections 1",
        "keyaki_connections_total 1",
        "keyaki_statements_total{kind=\"definition\"} 1",
        "keyaki_statements_total{kind=\"insert\"} 1",
        "keyaki_statements_total{kind=\"select\"} 2",
        "keyaki_statement_errors_total{class=\"42\"} 1",
        "keyaki_statement_duration_seconds_count 4",
    ] {
        assert!(answer.lines().any(|found| found == line), "{line}\n{answer}");
    }
    let figure = |name: &str| {
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok())
    };
    assert!(figure("keyaki_bytes_received_total") > Some(100.0) && figure("keyaki_bytes_sent_total") > Some(100.0));
    assert!(figure("keyaki_store_commits") > Some(0.0), "{answer}");
    for (line, status) in [
        ("GET /health", "200"),
        ("GET /ready", "200"),
        ("GET /nix", "404"),
        ("POST /metrics", "405"),
        ("GET /../metrics", "404"),
        ("nonsense", "400"),
    ] {
        let answer = request(address, line).await?;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {answer}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_not_open_to_other_machines() -> Result {
    let database = Database::open_temporary(Options::default())?;
    let options = |allow_unprotected_http| ServerOptions {
        listen: vec![([127, 0, 0, 1], 0).into()],
        http: Some(([0, 0, 0, 0], 0).into()),
        allow_unprotected_http,
        ..ServerOptions::default()
    };
    let refused = Server::bind(database.clone(), options(false)).await;
    assert!(matches!(refused, Err(ServerError::UnprotectedHttp(_))));
    assert!(Server::bind(database, options(true)).await.is_ok());
    Ok(())
}
