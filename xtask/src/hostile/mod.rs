//! `cargo xtask hostile`: random messages for a running server, before and after authentication.
//!
//! The messages are those of the fuzz targets of the protocol (`crates/server/tests/hostile`), in far greater numbers: the
//! server is a release build in a process of its own. Every answer must consist of whole messages of the protocol and arrive
//! in time. At the end, the server must have logged no panic, answer a query, and hold as many connections, file descriptors
//! and threads as after the first inputs.
//!
//! An input before authentication is a connection. After it, an input is a message: a connection sends hundreds. Each session
//! ends with a query whose answer proves that the server has read all of them, and then with a message that may be damaged.

mod clients;
#[path = "../../../crates/server/tests/hostile/generator.rs"]
mod generator;
mod server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::run::{Result, target};
use clients::Clients;
use server::{Held, Server};

/// Connections before authentication for each session.
const STARTS_PER_SESSION: u64 = 20;
/// The state after this part of the inputs is compared with that at the end.
const WARM_UP_PART: u64 = 20;
/// The server may grow by this much: allocators keep memory that was freed.
const GROWTH_BYTES_MAX: u64 = 128 << 20;
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct Arguments {
    /// The program to test [default: target/release/keyaki]
    #[arg(long)]
    server: Option<PathBuf>,
    /// Number of inputs of both kinds
    #[arg(long, default_value_t = 1_000_000)]
    inputs: u64,
    /// Seed of the first connection
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The inputs that were sent.
#[derive(Debug, Default, Clone, Copy)]
pub struct Sent {
    /// Connections before authentication.
    starts: u64,
    sessions: u64,
    /// Messages of sessions that the server has read.
    messages: u64,
    /// Sessions that ended before their last message: their messages are not counted.
    cut: u64,
}

impl Sent {
    fn inputs(&self) -> u64 {
        self.starts + self.messages
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let program = arguments.server.clone().unwrap_or_else(|| target().join("release/keyaki"));
    let mut server = Server::start(&program)?;
    let sent = send(arguments, &mut server);
    // The end of the server explains other problems.
    server.check()?;
    let (first, last) = sent?;
    compare(&first, &last)
}

/// Sends the inputs. Returns what the server holds after the first ones, and after all.
fn send(arguments: &Arguments, server: &mut Server) -> Result<(Held, Held)> {
    let clients = Clients::new(server)?;
    let (mut sent, mut first) = (Sent::default(), None);
    let (started, mut reported) = (Instant::now(), Instant::now());
    for seed in arguments.seed.. {
        if sent.inputs() >= arguments.inputs {
            break;
        }
        let failed = |problem: String| format!("{problem} (seed {seed})");
        if seed % STARTS_PER_SESSION == 0 {
            clients.session(seed, &mut sent).map_err(failed)?;
        }
        clients.start(seed, &mut sent).map_err(failed)?;
        if first.is_none() && sent.inputs() >= arguments.inputs / WARM_UP_PART {
            first = Some(server.held_when_idle()?);
        }
        if reported.elapsed() >= REPORT_INTERVAL {
            server.check().map_err(failed)?;
            reported = Instant::now();
            println!("{:.0} s: {sent:?}, {:?}", started.elapsed().as_secs_f64(), server.held()?);
        }
    }
    clients.check_alive()?;
    let last = server.held_when_idle()?;
    println!("{} inputs in {:.0} s: {sent:?}", sent.inputs(), started.elapsed().as_secs_f64());
    Ok((first.unwrap_or(last), last))
}

/// Compares the states of an idle server.
fn compare(first: &Held, last: &Held) -> Result<()> {
    println!("after the first inputs: {first:?}\nafter all inputs: {last:?}");
    let grown = last.resident_bytes.saturating_sub(first.resident_bytes);
    let is_same = (first.connections, first.descriptors) == (last.connections, last.descriptors);
    match is_same && last.threads <= first.threads + 2 && grown <= GROWTH_BYTES_MAX {
        true => Ok(()),
        false => Err("the server holds more than after the first inputs".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_and_descriptors_are_compared() {
        let held = |connections, descriptors, threads, resident_bytes| Held {
            connections,
            descriptors,
            threads,
            resident_bytes,
        };
        let first = held(0, 20, 8, 100 << 20);
        assert!(compare(&first, &held(0, 20, 9, 150 << 20)).is_ok());
        for last in [held(1, 20, 8, 0), held(0, 21, 8, 0), held(0, 20, 11, 0), held(0, 20, 8, 300 << 20)] {
            assert!(compare(&first, &last).is_err(), "{last:?}");
        }
    }
}
