//! Messages, byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A message with a type.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend((body.len() as u32 + 4).to_be_bytes());
    message.extend(body);
    message
}

/// A message without a type.
pub fn opening(code: u32, body: &[u8]) -> Vec<u8> {
    let mut message = (body.len() as u32 + 8).to_be_bytes().to_vec();
    message.extend(code.to_be_bytes());
    message.extend(body);
    message
}

/// The startup message of a user.
pub fn startup(user: &str) -> Vec<u8> {
    opening(3 << 16, format!("user\0{user}\0\0").as_bytes())
}

/// The request to encrypt a connection.
pub fn request_tls() -> Vec<u8> {
    opening(80_877_103, b"")
}

/// A response that begins an exchange of SASL.
pub fn initial(mechanism: &str, data: &[u8]) -> Vec<u8> {
    let mut body = [mechanism.as_bytes(), b"\0"].concat();
    body.extend((data.len() as u32).to_be_bytes());
    body.extend(data);
    message(b'p', &body)
}

/// A connection.
pub struct Raw<S = TcpStream> {
    pub socket: S,
    input: BytesMut,
}

impl Raw {
    pub async fn connect(address: SocketAddr) -> Raw {
        Raw::new(TcpStream::connect(address).await.expect("a connection"))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Raw<S> {
    pub fn new(socket: S) -> Raw<S> {
        Raw { socket, input: BytesMut::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // The server may have closed the connection.
        let _ = self.socket.write_all(bytes).await;
        let _ = self.socket.flush().await;
    }

    async fn fill(&mut self) -> bool {
        let read = timeout(Duration::from_secs(60), self.socket.read_buf(&mut self.input)).await;
        // A reset is an end, too.
        matches!(read.expect("an answer or an end"), Ok(1..))
    }

    /// A byte; `None` at the end.
    pub async fn byte(&mut self) -> Option<u8> {
        if self.input.is_empty() && !self.fill().await {
            return None;
        }
        Some(self.input.get_u8())
    }

    /// The type and the body of the next message; `None` at the end.
    pub async fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some(header) = self.input.get(..5) {
                let len = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
                if self.input.len() > len {
                    let frame = self.input.split_to(1 + len);
                    return Some((frame[0], frame[5..].to_vec()));
                }
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// The data of a message of authentication of a kind.
    pub async fn authentication(&mut self, kind: u32) -> Vec<u8> {
        let (message, body) = self.receive().await.expect("a message");
        assert_eq!(message, b'R', "{}", String::from_utf8_lossy(&body));
        assert_eq!(body[..4], kind.to_be_bytes());
        body[4..].to_vec()
    }

    /// The SQLSTATE of the error that ends the connection; empty if it ends without one.
    pub async fn failure(&mut self) -> String {
        let mut code = String::new();
        while let Some((kind, body)) = self.receive().await {
            assert!(code.is_empty(), "a message after the error");
            if kind == b'E' {
                let mut fields = body.split(|byte| *byte == 0);
                let field = fields.find(|field| field.first() == Some(&b'C')).expect("a code");
                code = String::from_utf8_lossy(&field[1..]).into_owned();
            }
        }
        code
    }
}
