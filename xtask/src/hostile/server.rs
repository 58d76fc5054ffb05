//! The server under test: its process, log, and what it holds.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::run::Result;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections end shortly after their clients.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a server holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub connections: u64,
    pub descriptors: u64,
    pub threads: u64,
    pub resident_bytes: u64,
}

/// A running server with a database of its own, which is removed when it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    directory: PathBuf,
    pub address: SocketAddr,
    http: SocketAddr,
}

impl Server {
    /// Starts a server, and waits until it listens.
    pub fn start(program: &Path) -> Result<Server> {
        let directory = std::env::temp_dir().join(format!("keyaki-hostile-{}", std::process::id()));
        std::fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let log = File::create(directory.join("log")).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("serve").arg(directory.join("db")).arg("--socket").arg(directory.join("socket"));
        command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memory", "256MiB", "--threads", "1"]);
        // Failed attempts are logged: only panics and errors are of interest.
        command.env("KEYAKI_LOG", "error").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server { process, directory, address: unknown, http: unknown };
        let started = Instant::now();
        loop {
            let log = server.log()?;
            let after = |words: &str| -> Option<SocketAddr> {
                let mut lines = log.lines().filter_map(|line| line.strip_prefix(words));
                lines.find_map(|address| address.trim_end_matches("/metrics").parse().ok())
            };
            if let (Some(address), Some(http)) = (after("listening on "), after("figures on http://")) {
                (server.address, server.http) = (address, http);
                return Ok(server);
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(format!("the server does not listen:\n{log}"));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn log(&self) -> Result<String> {
        let log = std::fs::read(self.directory.join("log")).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// # Errors
    /// If the server has ended, or has logged a panic.
    pub fn check(&mut self) -> Result<()> {
        let log = self.log()?;
        if log.contains("panicked") {
            return Err(format!("the server has panicked:\n{log}"));
        }
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(format!("the server has ended: {ended:?}\n{log}")),
        }
    }

    pub fn held(&self) -> Result<Held> {
        let process = PathBuf::from(format!("/proc/{}", self.process.id()));
        let status = std::fs::read_to_string(process.join("status")).map_err(|error| error.to_string())?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        let descriptors = std::fs::read_dir(process.join("fd")).map_or(0, |entries| entries.count() as u64);
        Ok(Held {
            connections: self.connections()?,
            descriptors,
            threads: field("Threads:"),
            resident_bytes: field("VmRSS:") << 10,
        })
    }

    /// The figure of open connections.
    fn connections(&self) -> Result<u64> {
        let failed = |error: std::io::Error| format!("no figures: {error}");
        let mut socket = TcpStream::connect(self.http).map_err(failed)?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").map_err(failed)?;
        let mut text = String::new();
        socket.read_to_string(&mut text).map_err(failed)?;
        let figure = text.lines().find_map(|line| line.strip_prefix("keyaki_connections "));
        figure.and_then(|figure| figure.trim().parse().ok()).ok_or_else(|| "no figure of connections".into())
    }

    /// What the server holds when its connections have ended.
    ///
    /// # Errors
    /// If they do not end.
    pub fn held_when_idle(&self) -> Result<Held> {
        let started = Instant::now();
        loop {
            sleep(Duration::from_millis(500));
            let held = self.held()?;
            if held.connections == 0 {
                return Ok(held);
            }
            if started.elapsed() > IDLE_TIMEOUT {
                return Err(format!("{} connections do not end", held.connections));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
