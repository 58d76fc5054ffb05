//! A server of objects with the protocol of S3, for tests and benchmarks: it delays answers, refuses requests, and sends
//! truncated or wrong bodies.
//!
//! ```text
//! request ─► counted ─► delayed ─► refused? ─► s3s, or a part of a file ─► truncated or changed? ─► answer
//! ```
//!
//! A truncated body ends before the length in its header, as when a connection breaks. A changed body has its full
//! length and one wrong bit. Both concern answers with parts of objects only: the client of object stores compares
//! checksums of whole ones.

mod faults;
mod service;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub use faults::Faults;
use faults::State;
pub use faults::Stats;
use service::Service;

/// The identity and the secret of the only user.
const KEYS: (&str, &str) = ("keyaki", "keyaki-secret");
/// The path of [`Stats`] as text.
const STATS: &str = "/-/stats";

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the directories below `root`, each of which is a bucket. `address` may have port 0.
    ///
    /// # Errors
    /// The address is in use, or `root` is not a directory.
    pub fn start(root: &Path, address: &str, faults: Faults) -> io::Result<Server> {
        let files = FileSystem::new(root).map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(KEYS.0, KEYS.1));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let (address, state) = (listener.local_addr()?, Arc::new(State::new(faults)));
        let service = Service::new(builder.build(), root, state.clone());
        let (stop, stopped) = oneshot::channel();
        let serve = async move {
            while let Ok((socket, _)) = listener.accept().await {
                // Small answers must not wait for others.
                let _ = socket.set_nodelay(true);
                let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service.clone());
                // A client that ends its connection is no error.
                tokio::spawn(async move { drop(connection.await) });
            }
        };
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("object-server".into()).spawn(run)?;
        Ok(Server { address, state, stop: Some(stop), thread: Some(thread) })
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Variables of the environment with which clients of S3 find the server.
    pub fn variables(&self) -> Vec<(String, String)> {
        let variables = [
            ("AWS_ENDPOINT", self.endpoint()),
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", KEYS.0.into()),
            ("AWS_SECRET_ACCESS_KEY", KEYS.1.into()),
        ];
        variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// Sets the faults of further requests.
    pub fn set(&self, faults: Faults) {
        self.state.set(faults);
    }

    /// The requests so far.
    pub fn stats(&self) -> Stats {
        self.state.stats()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say about a panic that standard error has not.
            let _ = thread.join();
        }
    }
}
