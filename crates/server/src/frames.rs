//! Messages of a connection.
//!
//! A message has a type, a length and a body. The buffer of the connection is split into messages by these lengths, and the
//! structure of each body is checked before `pgwire` decodes it: lengths and numbers of values within the body are as untrusted
//! as everything else that a client sends, and texts must be valid UTF-8.

use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pgwire::messages::startup::Startup;
use pgwire::messages::{DecodeContext, Message, PgWireBackendMessage, PgWireFrontendMessage, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::failure::{Failure, Result};

/// Length of a length.
const LENGTH: usize = 4;
/// Type and length of a message.
const HEADER: usize = 1 + LENGTH;
/// Maximum length of the messages before the first one with a type.
const STARTUP_BYTES_MAX: usize = 10_000;
/// Maximum length of the messages of authentication.
const AUTHENTICATION_BYTES_MAX: usize = 2_000;
/// Answers are sent when they reach this size, or when the client waits for them.
const FLUSH_BYTES: usize = 64 << 10;
/// Space for a read from the socket.
const READ_BYTES: usize = 8 << 10;
/// Buffers that are larger are given back when they are empty.
const KEPT_BYTES: usize = 64 << 10;
/// While a statement runs, the connection reads requests ahead up to this size.
const AHEAD_BYTES: usize = 256 << 10;

/// The first message of a connection.
#[derive(Debug)]
pub enum Opening {
    /// The client asks for encryption.
    Tls,
    /// The client asks for encryption with GSSAPI.
    Gss,
    /// The client asks to cancel a statement of another connection.
    Cancel {
        /// The number of that connection.
        process: i32,
        /// Its secret key.
        secret: Bytes,
    },
    /// The parameters of the session.
    Startup(Startup),
}

/// A socket and its buffers.
#[derive(Debug)]
pub struct Wire<S> {
    socket: S,
    input: BytesMut,
    output: BytesMut,
    /// Messages behind those of `output`, encoded in place: appending to a `Vec` is faster.
    rows: Vec<u8>,
    /// Number of bytes of `rows` that were sent.
    rows_sent: usize,
    /// Maximum length of a message.
    message_bytes_max: usize,
    /// Maximum time in which the socket takes no output.
    send_timeout: Option<Duration>,
    traffic: Traffic,
}

/// Bytes that were received and sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub fn new(socket: S, message_bytes_max: usize, send_timeout: Option<Duration>) -> Wire<S> {
        let (input, output, rows) = (BytesMut::new(), BytesMut::new(), Vec::new());
        let traffic = Traffic::default();
        Wire { socket, input, output, rows, rows_sent: 0, message_bytes_max, send_timeout, traffic }
    }

    /// Reads more bytes. Cancel safe.
    ///
    /// # Errors
    /// Errors of the socket; `UnexpectedEof` if the client has closed the connection.
    async fn fill(&mut self) -> io::Result<()> {
        self.input.reserve(READ_BYTES);
        match self.socket.read_buf(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                self.traffic.received += len as u64;
                Ok(())
            }
        }
    }

    /// The first message, or the next one after an answer to it.
    ///
    /// # Errors
    /// For malformed messages, and if the connection is closed.
    pub async fn opening(&mut self) -> Result<Opening> {
        let len = loop {
            if let Some(len) = self.input.get(..LENGTH) {
                break u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize;
            }
            self.fill().await?;
        };
        if !(2 * LENGTH..=STARTUP_BYTES_MAX).contains(&len) {
            return Err(Failure::fatal("08P01", "invalid length of startup packet"));
        }
        while self.input.len() < len {
            self.fill().await?;
        }
        let frame = self.input.split_to(len);
        opening(frame)
    }

    /// The body of the next message of an authentication. Other types and long messages are refused before their bodies are read.
    ///
    /// # Errors
    /// For other messages, and if the connection is closed.
    pub async fn authentication(&mut self) -> Result<Bytes> {
        loop {
            if let Some(header) = self.input.get(..HEADER) {
                let len = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
                if header[0] != b'p' {
                    let kind = header[0];
                    return Err(Failure::fatal("08P01", format!("expected SASL response, got message type {kind}")));
                }
                if !(LENGTH..=AUTHENTICATION_BYTES_MAX).contains(&len) {
                    return Err(Failure::fatal("08P01", "invalid message length"));
                }
                if self.input.len() > len {
                    let mut frame = self.input.split_to(1 + len);
                    frame.advance(HEADER);
                    return Ok(frame.freeze());
                }
            }
            self.fill().await?;
        }
    }

    /// True if the client has sent bytes that were not read.
    pub fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// The bytes since the last call.
    pub fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    /// The socket. The buffers are lost.
    pub fn into_socket(self) -> S {
        self.socket
    }

    /// The socket.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// The next message. Cancel safe.
    ///
    /// # Errors
    /// Fatal errors for messages that are too long, without a type that clients send, or with malformed bodies;
    /// [`Failure::Closed`].
    pub async fn next(&mut self) -> Result<PgWireFrontendMessage> {
        loop {
            if let Some(frame) = self.frame()? {
                return decode(frame);
            }
            self.fill().await?;
        }
    }

    /// The type of the next message, if all of it has arrived. Does not wait.
    ///
    /// # Errors
    /// As [`Wire::next`].
    pub async fn peek(&mut self) -> Result<Option<u8>> {
        if self.frame_len()?.is_none() {
            // It may have arrived. An error of the socket is that of the next read, too.
            let _ = futures::poll!(std::pin::pin!(self.fill()));
        }
        Ok(self.frame_len()?.map(|_| self.input[0]))
    }

    /// The length of the first message in the buffer; `None` if it is not complete.
    fn frame_len(&self) -> Result<Option<usize>> {
        let Some(header) = self.input.get(..HEADER) else { return Ok(None) };
        let len = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if len < LENGTH {
            return Err(Failure::fatal("08P01", "invalid message length"));
        }
        if len > self.message_bytes_max {
            let limit = self.message_bytes_max;
            return Err(Failure::fatal("54000", format!("message of {len} bytes exceeds the limit of {limit} bytes")));
        }
        Ok((self.input.len() > len).then_some(1 + len))
    }

    fn frame(&mut self) -> Result<Option<BytesMut>> {
        let len = self.frame_len()?;
        Ok(len.map(|len| self.input.split_to(len)))
    }

    /// Waits until the client closes the connection. Reads requests ahead meanwhile. Cancel safe.
    pub async fn closed(&mut self) -> io::Error {
        while self.input.len() < AHEAD_BYTES {
            if let Err(error) = self.fill().await {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Appends a message to the output.
    ///
    /// # Errors
    /// If the message is too long.
    pub fn put(&mut self, message: &PgWireBackendMessage) -> Result<()> {
        self.output.extend_from_slice(&self.rows[self.rows_sent..]);
        self.clear_rows();
        let len = self.output.len();
        message.encode(&mut self.output).map_err(|error| {
            self.output.truncate(len);
            Failure::sql("54000", error.to_string())
        })
    }

    /// The end of the output, for messages that are encoded in place.
    pub fn rows(&mut self) -> &mut Vec<u8> {
        &mut self.rows
    }

    fn clear_rows(&mut self) {
        self.rows.clear();
        self.rows_sent = 0;
    }

    /// True if the output should be sent.
    pub fn is_large(&self) -> bool {
        self.output.len() + self.rows.len() >= FLUSH_BYTES
    }

    /// Sends the output.
    ///
    /// # Errors
    /// Errors of the socket; `TimedOut` if the client receives nothing for too long.
    pub async fn flush(&mut self) -> io::Result<()> {
        let len = (self.output.len() + self.rows.len() - self.rows_sent) as u64;
        while self.output.has_remaining() {
            if within(self.send_timeout, self.socket.write_buf(&mut self.output)).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        while self.rows_sent < self.rows.len() {
            match within(self.send_timeout, self.socket.write(&self.rows[self.rows_sent..])).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => self.rows_sent += sent,
            }
        }
        self.traffic.sent += len;
        within(self.send_timeout, self.socket.flush()).await?;
        // The buffer of a long result is used again for its next rows.
        let is_result = self.rows.len() >= FLUSH_BYTES;
        self.output.clear();
        self.clear_rows();
        if self.output.capacity() > KEPT_BYTES {
            self.output = BytesMut::new();
        }
        if self.rows.capacity() > KEPT_BYTES && !is_result {
            self.rows = Vec::new();
        }
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = BytesMut::new();
        }
        Ok(())
    }

    /// Sends the output and ends the connection.
    pub async fn close(mut self) {
        // The client may have gone.
        let _ = self.flush().await;
        let _ = self.socket.shutdown().await;
    }
}

/// Waits for a step of sending, at most for the time `limit`.
///
/// # Errors
/// Errors of the step; `TimedOut`.
async fn within<T>(limit: Option<Duration>, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let mut step = pin!(step);
    // Most clients read.
    match (futures::poll!(step.as_mut()), limit) {
        (Poll::Ready(result), _) => result,
        (Poll::Pending, Some(limit)) => timeout(limit, step).await.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
        (Poll::Pending, None) => step.await,
    }
}

/// Appends a message with the type `kind`, whose body `put` appends.
///
/// # Errors
/// As [`Failure::message_len`]: the output has no part of the message then.
pub fn put_message(output: &mut Vec<u8>, kind: u8, put: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let before = output.len();
    output.put_u8(kind);
    let start = output.len();
    output.put_i32(0);
    put(output);
    let len = Failure::message_len(output.len() - start).inspect_err(|_| output.truncate(before))?;
    output[start..start + LENGTH].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

fn malformed() -> Failure {
    Failure::fatal("08P01", "invalid message format")
}

/// Decodes a message without a type.
fn opening(mut frame: BytesMut) -> Result<Opening> {
    const TLS: u32 = 80_877_103;
    const GSS: u32 = 80_877_104;
    const CANCEL: u32 = 80_877_102;
    let code = u32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]);
    match code {
        TLS => Ok(Opening::Tls),
        GSS => Ok(Opening::Gss),
        CANCEL => {
            frame.advance(2 * LENGTH);
            if frame.len() <= LENGTH {
                return Err(malformed());
            }
            let process = frame.get_i32();
            Ok(Opening::Cancel { process, secret: frame.freeze() })
        }
        _ if code >> 16 != u32::from(Startup::PG_PROTOCOL_LATEST) => {
            let (major, minor) = (code >> 16, code & 0xFFFF);
            let problem = format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2");
            Err(Failure::fatal("0A000", problem))
        }
        _ => {
            // Names and values, and an empty name.
            let mut body = Body(&frame[2 * LENGTH..]);
            while !body.text()?.is_empty() {
                body.text()?;
            }
            body.end()?;
            let startup = Startup::decode(&mut frame, &DecodeContext::default());
            startup.ok().flatten().map(Opening::Startup).ok_or_else(malformed)
        }
    }
}

/// Decodes a whole message.
fn decode(mut frame: BytesMut) -> Result<PgWireFrontendMessage> {
    check(frame[0], &frame[HEADER..])?;
    let mut context = DecodeContext::default();
    context.awaiting_frontend_ssl = false;
    context.awaiting_frontend_startup = false;
    context.protocol_version = ProtocolVersion::PROTOCOL3_0;
    let decoded = PgWireFrontendMessage::decode(&mut frame, &context);
    decoded.ok().flatten().filter(|_| frame.is_empty()).ok_or_else(malformed)
}

/// Checks the structure of the body of a message with the type `kind`.
fn check(kind: u8, body: &[u8]) -> Result<()> {
    let mut body = Body(body);
    match kind {
        // Query, CopyFail.
        b'Q' | b'f' => drop(body.text()?),
        // Parse: name, statement, types of parameters.
        b'P' => {
            body.text()?;
            body.text()?;
            let types = body.count()?;
            body.skip(types * 4)?;
        }
        // Bind: portal, statement, formats of parameters, parameters, formats of results.
        b'B' => {
            body.text()?;
            body.text()?;
            let formats = body.count()?;
            body.skip(formats * 2)?;
            for _ in 0..body.count()? {
                match body.length()? {
                    -1 => {}
                    len => body.skip(usize::try_from(len).map_err(|_| malformed())?)?,
                }
            }
            let formats = body.count()?;
            body.skip(formats * 2)?;
        }
        // Describe and Close: statement or portal, name.
        b'D' | b'C' => {
            if !matches!(body.0.first(), Some(b'S' | b'P')) {
                return Err(malformed());
            }
            body.skip(1)?;
            body.text()?;
        }
        // Execute: portal, maximum number of rows.
        b'E' => {
            body.text()?;
            body.skip(4)?;
        }
        // Sync, Flush, Terminate, CopyDone.
        b'S' | b'H' | b'X' | b'c' => {}
        // Passwords and CopyData have any content.
        b'p' | b'd' => return Ok(()),
        kind => return Err(Failure::fatal("08P01", format!("invalid frontend message type {kind}"))),
    }
    body.end()
}

/// The rest of a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn skip(&mut self, len: usize) -> Result<()> {
        self.0 = self.0.get(len..).ok_or_else(malformed)?;
        Ok(())
    }

    /// A text and its terminator.
    fn text(&mut self) -> Result<&'a str> {
        let len = self.0.iter().position(|byte| *byte == 0).ok_or_else(malformed)?;
        let text = str::from_utf8(&self.0[..len]);
        self.skip(len + 1)?;
        text.map_err(|_| Failure::fatal("22021", "invalid byte sequence for encoding \"UTF8\""))
    }

    fn count(&mut self) -> Result<usize> {
        let count = self.0.get(..2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        self.skip(2)?;
        count.map(usize::from).ok_or_else(malformed)
    }

    fn length(&mut self) -> Result<i32> {
        let len = self.0.get(..4).map(|bytes| i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        self.skip(4)?;
        len.ok_or_else(malformed)
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed()) }
    }
}

#[cfg(test)]
mod tests {
    use keyaki_primitives::Random;
    use pgwire::messages::extendedquery::{Bind, Describe, Parse};
    use pgwire::messages::simplequery::Query;

    use super::*;

    #[test]
    fn lengths_of_messages() {
        let mut output = vec![1];
        put_message(&mut output, b'D', |output| output.extend_from_slice(&[7, 8])).unwrap();
        assert_eq!(output, [1, b'D', 0, 0, 0, 6, 7, 8]);
        assert_eq!(Failure::message_len(i32::MAX as usize).unwrap(), i32::MAX);
        assert_eq!(Failure::message_len(1 << 31).unwrap_err().code(), "54000");
    }

    fn frames() -> Vec<BytesMut> {
        let value = |bytes: &'static [u8]| Some(Bytes::from_static(bytes));
        let messages = [
            PgWireFrontendMessage::Query(Query::new("SELECT 'ß'".into())),
            PgWireFrontendMessage::Parse(Parse::new(Some("s".into()), "SELECT $1".into(), vec![23, 0])),
            PgWireFrontendMessage::Bind(Bind::new(
                None,
                Some("s".into()),
                vec![1, 0],
                vec![value(b"\0\0\0\x07"), None, value(b"")],
                vec![1],
            )),
            PgWireFrontendMessage::Describe(Describe::new(b'S', None)),
        ];
        let encoded = messages.map(|message| {
            let mut frame = BytesMut::new();
            message.encode(&mut frame).unwrap();
            frame
        });
        encoded.into()
    }

    #[test]
    fn messages_survive_the_round_trip() {
        for frame in frames() {
            let message = decode(frame.clone()).unwrap();
            let mut again = BytesMut::new();
            message.encode(&mut again).unwrap();
            assert_eq!(again, frame, "{message:?}");
        }
    }

    #[test]
    fn changed_messages_are_refused_or_decoded() {
        let (mut random, frames) = (Random::new(7), frames());
        for _ in 0..200_000 {
            let mut frame = frames[random.below(frames.len() as u64) as usize].clone();
            for _ in 0..=random.below(3) {
                let at = random.below(frame.len() as u64) as usize;
                frame[at] = random.below(256) as u8;
            }
            let len = if random.below(4) == 0 { random.below(frame.len() as u64) as usize } else { frame.len() };
            frame.truncate(len.max(HEADER));
            let len = (frame.len() - 1) as i32;
            frame[1..HEADER].copy_from_slice(&len.to_be_bytes());
            // Neither panics nor takes bytes of later messages.
            drop(decode(frame));
        }
    }

    #[test]
    fn malformed_openings_are_refused() {
        let frame = |code: u32, rest: &[u8]| {
            let mut frame = BytesMut::new();
            frame.put_u32(8 + rest.len() as u32);
            frame.put_u32(code);
            frame.put_slice(rest);
            frame
        };
        assert!(matches!(opening(frame(80_877_103, b"")), Ok(Opening::Tls)));
        assert!(matches!(opening(frame(3 << 16, b"user\0a\0\0")), Ok(Opening::Startup(_))));
        assert!(matches!(
            opening(frame(80_877_102, &[0, 0, 0, 1, 9, 9, 9, 9])),
            Ok(Opening::Cancel { process: 1, .. })
        ));
        for (code, rest) in [
            (2 << 16, b"user\0a\0\0".as_slice()),
            (3 << 16, b"user\0a\0"),
            (3 << 16, b"user\0a"),
            (3 << 16, b""),
            (3 << 16, b"user\0\xFF\0\0"),
            (3 << 16, b"\0more\0"),
            (80_877_102, &[0, 0, 0, 1]),
        ] {
            assert!(matches!(opening(frame(code, rest)), Err(Failure::Fatal { .. })), "{code} {rest:?}");
        }
    }
}
