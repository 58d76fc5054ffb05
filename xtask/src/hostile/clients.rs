//! The clients: connections before and after authentication.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use keyaki_primitives::Random;
use socket2::{Domain, SockAddr, Socket, Type};

use super::Sent;
use super::generator::{Choices, change, ending, framed, messages, opening, request, text};
use super::server::Server;
use crate::run::Result;

/// A connection must end within this time after its client has closed its side.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of choices for a connection before authentication.
const START_BYTES_MAX: u64 = 200;
/// Bytes of choices for the messages of a session.
const SESSION_BYTES: usize = 6 << 10;
/// A session sends at most this much at once: it fits into the buffer of a socket, so that neither side waits for the other.
const SENT_BYTES_MAX: usize = 48 << 10;
/// The last answer of a session.
const LAST: &str = "end of the session";
const SETUP: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'one'), (2, NULL);
    CREATE ROLE me LOGIN PASSWORD 'secret'; GRANT ALL ON t TO me";

/// The clients of a server.
pub struct Clients {
    address: SocketAddr,
    socket: PathBuf,
}

impl Clients {
    /// Creates the table and the role of the clients.
    pub fn new(server: &Server) -> Result<Clients> {
        let clients = Clients { address: server.address, socket: server.socket() };
        let answer = clients.converse(&[startup(), framed(Some(b'Q'), &text(SETUP)), last_query()].concat(), &[])?;
        match messages(&answer)?.iter().find(|(kind, _)| *kind == b'E') {
            None => Ok(clients),
            Some((_, body)) => Err(format!("the setup has failed: {}", String::from_utf8_lossy(body))),
        }
    }

    /// Sends bytes that are no or some messages before the end of the authentication.
    pub fn start(&self, seed: u64, sent: &mut Sent) -> Result<()> {
        let mut random = Random::new(seed);
        let input: Vec<u8> = (0..random.below(START_BYTES_MAX)).map(|_| random.below(256) as u8).collect();
        let mut choices = Choices { bytes: &input };
        let mut bytes = Vec::new();
        match choices.below(4) {
            0 => bytes.extend_from_slice(choices.bytes),
            _ => {
                while !choices.is_empty() && bytes.len() < 1 << 14 {
                    bytes.extend(opening(&mut choices));
                }
                change(&mut Choices { bytes: &input }, &mut bytes);
            }
        }
        let answer = self.exchange_remote(&bytes, seed)?;
        // Answers to requests for encryption are single bytes.
        let encryption = answer.iter().take_while(|byte| **byte == b'N').count();
        match messages(&answer[encryption..])?.into_iter().find(|(kind, _)| !b"REv".contains(kind)) {
            Some((kind, _)) => Err(format!("message type {kind} without authentication")),
            None => {
                sent.starts += 1;
                Ok(())
            }
        }
    }

    /// Sends the messages of a session.
    pub fn session(&self, seed: u64, sent: &mut Sent) -> Result<()> {
        let mut random = Random::new(!seed);
        let mut input = Vec::with_capacity(SESSION_BYTES);
        while input.len() < SESSION_BYTES {
            input.extend(random.next_u64().to_le_bytes());
        }
        let mut choices = Choices { bytes: &input };
        let (mut bytes, mut count) = (startup(), 0);
        while !choices.is_empty() && bytes.len() < SENT_BYTES_MAX {
            bytes.extend(request(&mut choices, true));
            count += 1;
        }
        // Leaves COPY, and the state after an error.
        bytes.extend([framed(Some(b'f'), b"end\0"), framed(Some(b'S'), b"")].concat());
        bytes.extend(framed(Some(b'Q'), &text("ROLLBACK")));
        bytes.extend(last_query());
        let answer = self.converse(&bytes, &ending(&mut Choices { bytes: &input }))?;
        let answers = messages(&answer)?;
        if answers.first().is_none_or(|(kind, _)| *kind != b'R') {
            return Err(format!("the startup has failed: {}", String::from_utf8_lossy(&answer)));
        }
        for (kind, body) in &answers {
            let is_right = match kind {
                b'Z' => body.len() == 1 && b"ITE".contains(&body[0]),
                b'E' => body.starts_with(b"S") && body.ends_with(b"\0\0"),
                _ => true,
            };
            if !is_right {
                return Err(format!("a malformed message: {}", String::from_utf8_lossy(body)));
            }
        }
        sent.sessions += 1;
        match has_last(&answer) {
            true => sent.messages += count,
            false => sent.cut += 1,
        }
        Ok(())
    }

    /// # Errors
    /// Unless the server answers a query.
    pub fn check_alive(&self) -> Result<()> {
        let query = framed(Some(b'Q'), &text("SELECT count(*) >= 0 FROM t"));
        let answer = self.converse(&[startup(), query, last_query()].concat(), &[])?;
        match messages(&answer)?.iter().any(|(kind, body)| *kind == b'D' && body.ends_with(b"t")) {
            true => Ok(()),
            false => Err(format!("no answer to a query: {}", String::from_utf8_lossy(&answer))),
        }
    }

    /// Sends bytes over the Unix socket. After the last answer, sends an ending. Returns all answers.
    ///
    /// # Errors
    /// If the server does not answer, or does not end the connection.
    fn converse(&self, bytes: &[u8], ending: &[u8]) -> Result<Vec<u8>> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.socket.display());
        let mut stream = UnixStream::connect(&self.socket).map_err(failed)?;
        stream.set_read_timeout(Some(END_TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(END_TIMEOUT)).map_err(failed)?;
        // The server may have ended the connection.
        let _ = stream.write_all(bytes);
        // The end of this side would cancel the running statement.
        let (mut answer, mut chunk, mut is_cut) = (Vec::new(), [0; 1 << 14], false);
        while !has_last(&answer) {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => answer.extend(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    is_cut = true;
                    break;
                }
                Err(error) => return Err(format!("no answer: {error}")),
            }
        }
        let (rest, is_reset) = exchange(&mut stream, ending, |stream| stream.shutdown(Shutdown::Write))?;
        answer.extend(rest);
        if is_cut || is_reset {
            whole_messages(&mut answer);
        }
        Ok(answer)
    }

    /// Sends bytes over TCP, from an address of its own: failed attempts of one would be delayed.
    fn exchange_remote(&self, bytes: &[u8], number: u64) -> Result<Vec<u8>> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.address);
        let mut socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(failed)?;
        let [_, a, b, c] = (number as u32).to_be_bytes();
        let own = SocketAddr::from(([127, a, b, c.clamp(1, 254)], 0));
        socket.bind(&SockAddr::from(own)).map_err(failed)?;
        // Leaves no connection in the state TIME_WAIT.
        socket.set_linger(Some(Duration::ZERO)).map_err(failed)?;
        socket.set_read_timeout(Some(END_TIMEOUT)).map_err(failed)?;
        socket.set_write_timeout(Some(END_TIMEOUT)).map_err(failed)?;
        socket.connect(&SockAddr::from(self.address)).map_err(failed)?;
        let (mut answer, is_reset) = exchange(&mut socket, bytes, |socket| socket.shutdown(Shutdown::Write))?;
        if is_reset {
            whole_messages(&mut answer);
        }
        Ok(answer)
    }
}

/// The query that ends a session.
fn last_query() -> Vec<u8> {
    framed(Some(b'Q'), &text(&format!("SELECT '{LAST}'")))
}

/// True if the last answer has arrived.
fn has_last(answer: &[u8]) -> bool {
    let end = answer.len().saturating_sub(1 << 15);
    answer[end..].windows(LAST.len()).any(|window| window == LAST.as_bytes())
}

/// The startup of a session.
fn startup() -> Vec<u8> {
    framed(None, &[&(3_u32 << 16).to_be_bytes()[..], b"user\0me\0\0"].concat())
}

/// Sends bytes, closes this side of the connection, and reads the answer up to its end. Also returns true for a reset, which can
/// cut the last message.
///
/// # Errors
/// If the connection does not end in time.
fn exchange<S: Read + Write>(
    stream: &mut S,
    bytes: &[u8],
    close: impl FnOnce(&mut S) -> std::io::Result<()>,
) -> Result<(Vec<u8>, bool)> {
    // The server may have ended the connection.
    let _ = stream.write_all(bytes);
    let _ = close(stream);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => Ok((answer, false)),
        // With bytes of the client that were not read, the end is a reset.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok((answer, true)),
        Err(error) => Err(format!("the connection does not end: {error}")),
    }
}

/// Removes the part of a message at the end of an answer that a reset has cut.
fn whole_messages(answer: &mut Vec<u8>) {
    let mut at = answer.iter().take_while(|byte| **byte == b'N').count();
    while let Some(len) = answer.get(at + 1..at + 5) {
        let next = at + 1 + u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize;
        if next > answer.len() {
            break;
        }
        at = next;
    }
    answer.truncate(at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_answers_lose_their_last_message_only() {
        let mut answer = [b"NN".to_vec(), framed(Some(b'Z'), b"I"), framed(Some(b'E'), b"S\0\0")].concat();
        let whole = answer.clone();
        whole_messages(&mut answer);
        assert_eq!(answer, whole);
        answer.truncate(answer.len() - 1);
        whole_messages(&mut answer);
        assert_eq!(answer, [b"NN".to_vec(), framed(Some(b'Z'), b"I")].concat());
    }
}
