//! Messages over a stream.

use std::fmt;
use std::io;

use bytes::BytesMut;
use postgres_protocol::message::backend::{Header, Message};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longer messages of a server are refused.
const MESSAGE_BYTES_MAX: i32 = 1 << 30;
/// Space for a read.
const READ_BYTES: usize = 64 << 10;

/// A stream to the server: TCP, TLS, or a Unix socket.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A stream and its buffers.
pub struct Wire {
    stream: Box<dyn Stream>,
    input: BytesMut,
    pub output: BytesMut,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    pub fn new(stream: Box<dyn Stream>) -> Wire {
        Wire { stream, input: BytesMut::new(), output: BytesMut::new() }
    }

    /// The next message that has arrived already.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn buffered(&mut self) -> io::Result<Option<Message>> {
        // Before the parser reserves memory for the whole message.
        if Header::parse(&self.input)?.is_some_and(|header| header.len() > MESSAGE_BYTES_MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the server has sent a message that is too long"));
        }
        Message::parse(&mut self.input)
    }

    /// The next message. Cancel safe.
    ///
    /// # Errors
    /// If it is malformed, and if the server has closed the connection.
    pub async fn next(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(message);
            }
            self.input.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection"));
            }
        }
    }

    /// Sends all output.
    ///
    /// # Errors
    /// Errors of the stream.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        self.stream.flush().await
    }

    /// Sends all output, and waits until the server closes the connection.
    ///
    /// # Errors
    /// Errors of the stream.
    pub async fn close(mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await?;
        while self.stream.read_buf(&mut self.input).await? > 0 {
            self.input.clear();
        }
        Ok(())
    }
}
