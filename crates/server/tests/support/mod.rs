//! A server in this process, and clients of it.

#![allow(dead_code)]

pub mod raw;

use std::net::SocketAddr;

use keyaki::{Database, Options};
use keyaki_server::{Server, ServerHandle, ServerOptions};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls};

/// A server of a temporary database.
pub struct Served {
    pub address: SocketAddr,
    pub http: Option<SocketAddr>,
    pub database: Database,
    pub handle: ServerHandle,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
}

impl Served {
    pub async fn start() -> Served {
        Served::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut ServerOptions)) -> Served {
        let options = Options { memory_bytes: Some(128 << 20), threads: Some(2), ..Options::default() };
        let database = Database::open_temporary(options).expect("a database");
        Served::start_database(database, change).await
    }

    pub async fn start_database(database: Database, change: impl FnOnce(&mut ServerOptions)) -> Served {
        let mut options = ServerOptions { listen: vec![([127, 0, 0, 1], 0).into()], ..ServerOptions::default() };
        change(&mut options);
        let server = Server::bind(database.clone(), options).await.expect("a server");
        let (address, http, handle) = (server.addresses()[0], server.http_address(), server.handle());
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(async {
            // The sender is dropped with the test.
            let _ = stopped.await;
        }));
        Served { address, http, database, handle, stop: Some(stop), running: Some(running) }
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.handle.connections()
    }

    /// Executes statements as a superuser, without a connection.
    pub async fn execute(&self, sql: &str) {
        self.database.session().execute(sql).await.expect("statements");
    }

    /// Shuts the server down.
    pub async fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(running) = self.running.take() {
            running.await.expect("the server ends");
        }
    }

    pub async fn connect(&self) -> Client {
        self.connect_task().await.0
    }

    pub async fn connect_task(&self) -> (Client, JoinHandle<()>) {
        self.open("").await.expect("a connection")
    }

    pub async fn connect_with(&self, settings: &str) -> Client {
        self.open(settings).await.expect("a connection").0
    }

    pub async fn try_connect(&self) -> Result<Client, Error> {
        Ok(self.open("").await?.0)
    }

    async fn open(&self, settings: &str) -> Result<(Client, JoinHandle<()>), Error> {
        let address = self.address;
        let text = format!("host={} port={} user=test dbname=test {settings}", address.ip(), address.port());
        let (client, connection) = tokio_postgres::connect(&text, NoTls).await?;
        let task = tokio::spawn(async {
            // Tests see the errors of their requests.
            let _ = connection.await;
        });
        Ok((client, task))
    }
}

/// The SQLSTATE of a result; that of success without an error.
pub fn code<T>(result: Result<T, Error>) -> SqlState {
    match result {
        Ok(_) => SqlState::SUCCESSFUL_COMPLETION,
        Err(error) => error.code().cloned().unwrap_or_else(|| panic!("no error of the server: {error:?}")),
    }
}
