//! The startup of a connection, its authentication, and requests to cancel a statement.
//!
//! The password leaves this program only within SCRAM-SHA-256 and MD5 exchanges, or in clear text to a server with a
//! verified certificate.

use std::collections::HashMap;
use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as Binding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::address::{Address, ChannelBinding, SslMode};
use super::error::{Error, Result, ServerError};
use super::prompt;
use super::tls::{self, Encrypted};
use super::wire::Wire;

/// The key of requests to cancel statements.
#[derive(Debug, Clone, Copy, Default)]
pub struct Key {
    process: i32,
    secret: i32,
}

/// A connection that is ready for statements.
#[derive(Debug)]
pub struct Opened {
    pub wire: Wire,
    pub key: Key,
    /// The settings that the server has reported.
    parameters: HashMap<String, String>,
    is_encrypted: bool,
}

impl Opened {
    /// True if the address permits the state of the server. PostgreSQL reports it since version 14.
    pub fn fits(&self, address: &Address) -> bool {
        let is_on = |name: &str| self.parameters.get(name).is_some_and(|value| value == "on");
        address.session_attributes.fit(is_on("in_hot_standby"), is_on("default_transaction_read_only"))
    }

    pub fn description(&self, address: &Address) -> String {
        let version = self.parameters.get("server_version").map_or("unknown version", String::as_str);
        let encryption = if self.is_encrypted { "TLS" } else { "not encrypted" };
        format!("{address}  (server {version}, {encryption})")
    }
}

/// A stream before the startup.
struct Dialled {
    wire: Wire,
    is_encrypted: bool,
    end_point: Option<Vec<u8>>,
}

/// Opens a connection to the first server of an address that can be reached and is in the state that the address demands.
/// Returns also the address of this server. A missing password is read from the terminal.
///
/// # Errors
/// If no server can be reached; if one does not prove its identity, or refuses the user.
pub async fn open(address: &Address) -> Result<(Opened, Address)> {
    let mut problem = None;
    for address in address.each() {
        match open_allowed(&address).await {
            Ok(opened) if opened.fits(&address) => return Ok((opened, address)),
            Ok(_) => problem = Some(Error::Refused(format!("{address} is not in the state of target_session_attrs"))),
            Err(error @ (Error::Connect { .. } | Error::Lost(_))) => problem = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(problem.unwrap_or_else(|| Error::Usage("the address has no host".into())))
}

/// The SQLSTATE of a wrong password.
const INVALID_PASSWORD: &str = "28P01";

/// Opens a connection to a server. With `sslmode=allow`, it is encrypted if the server refuses one that is not.
async fn open_allowed(address: &Address) -> Result<Opened> {
    if address.ssl_mode != SslMode::Allow {
        return open_one(address).await;
    }
    match open_one(&address.with_ssl_mode(SslMode::Disable)).await {
        // Not with the same password again.
        Err(Error::Server(refused)) if refused.sqlstate != INVALID_PASSWORD => {
            open_one(&address.with_ssl_mode(SslMode::Prefer)).await
        }
        opened => opened,
    }
}

async fn open_one(address: &Address) -> Result<Opened> {
    let dialled = dial(address).await?;
    let opened = start(address, dialled, address.password().as_deref()).await;
    if !matches!(opened, Err(Error::PasswordRequired)) {
        return opened;
    }
    // On another connection: servers limit the time of a startup.
    let password = prompt::password(&address.user)?;
    start(address, dial(address).await?, Some(&password)).await
}

/// Asks a server to cancel the running statement of a connection.
///
/// # Errors
/// If the server cannot be reached.
pub async fn cancel(address: &Address, key: Key) -> Result<()> {
    let mut dialled = dial(address).await?;
    frontend::cancel_request(key.process, key.secret, &mut dialled.wire.output);
    timeout(address.connect_timeout, dialled.wire.close()).await.map_err(|_| late())??;
    Ok(())
}

fn late() -> Error {
    Error::Lost(io::ErrorKind::TimedOut.into())
}

/// Connects, and encrypts the connection as the address demands.
async fn dial(address: &Address) -> Result<Dialled> {
    let dialled = timeout(address.connect_timeout, dial_now(address)).await;
    dialled.map_err(|_| unreachable(address, io::ErrorKind::TimedOut.into()))?
}

async fn dial_now(address: &Address) -> Result<Dialled> {
    if let Some(path) = address.socket() {
        let stream = UnixStream::connect(path).await.map_err(|error| unreachable(address, error))?;
        return Ok(Dialled { wire: Wire::new(Box::new(stream)), is_encrypted: false, end_point: None });
    }
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
    let mut stream = stream.map_err(|error| unreachable(address, error))?;
    stream.set_nodelay(true)?;
    if address.ssl_mode != SslMode::Disable && is_tls_offered(&mut stream).await? {
        let Encrypted { stream, end_point } = tls::encrypt(address, stream).await?;
        return Ok(Dialled { wire: Wire::new(Box::new(stream)), is_encrypted: true, end_point });
    }
    match address.ssl_mode {
        SslMode::Disable | SslMode::Allow | SslMode::Prefer => {
            Ok(Dialled { wire: Wire::new(Box::new(stream)), is_encrypted: false, end_point: None })
        }
        _ => Err(Error::Refused("the server does not support TLS, but sslmode requires it".into())),
    }
}

fn unreachable(address: &Address, source: io::Error) -> Error {
    Error::Connect { address: address.to_string(), source }
}

/// Asks the server for encryption. Reads a single byte: everything after it must be encrypted.
async fn is_tls_offered(stream: &mut TcpStream) -> Result<bool> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    match stream.read_u8().await? {
        b'S' => Ok(true),
        b'N' => Ok(false),
        _ => Err(Error::Refused("the server does not speak PostgreSQL's protocol".into())),
    }
}

async fn start(address: &Address, dialled: Dialled, password: Option<&str>) -> Result<Opened> {
    timeout(address.connect_timeout, start_now(address, dialled, password)).await.map_err(|_| late())?
}

async fn start_now(address: &Address, dialled: Dialled, password: Option<&str>) -> Result<Opened> {
    let Dialled { mut wire, is_encrypted, end_point } = dialled;
    let parameters = [
        ("user", address.user.as_str()),
        ("database", address.database.as_str()),
        ("application_name", address.application.as_str()),
        ("client_encoding", "UTF8"),
    ];
    let options = address.options.as_deref().map(|options| ("options", options));
    frontend::startup_message(parameters.into_iter().chain(options), &mut wire.output)?;
    wire.flush().await?;
    let login = Login { address, password, is_encrypted, end_point };
    login.authenticate(&mut wire).await?;
    let mut opened = Opened { wire, key: Key::default(), parameters: HashMap::new(), is_encrypted };
    loop {
        match opened.wire.next().await? {
            Message::ParameterStatus(status) => {
                opened.parameters.insert(status.name()?.into(), status.value()?.into());
            }
            Message::BackendKeyData(key) => {
                opened.key = Key { process: key.process_id(), secret: key.secret_key() };
            }
            Message::NoticeResponse(_) => {}
            Message::ReadyForQuery(_) => return Ok(opened),
            Message::ErrorResponse(error) => return Err(server(ServerError::new(error.fields()))),
            _ => return Err(unexpected()),
        }
    }
}

fn server(error: ServerError) -> Error {
    Error::Server(Box::new(error))
}

fn unexpected() -> Error {
    Error::Lost(io::Error::new(io::ErrorKind::InvalidData, "unexpected message of the server"))
}

/// The authentication of a user.
struct Login<'a> {
    address: &'a Address,
    password: Option<&'a str>,
    is_encrypted: bool,
    end_point: Option<Vec<u8>>,
}

impl Login<'_> {
    async fn authenticate(self, wire: &mut Wire) -> Result<()> {
        let binds = self.address.channel_binding == ChannelBinding::Require;
        let unbound = "channel binding is required, but the server has not used it";
        match wire.next().await? {
            Message::AuthenticationSasl(body) => return self.scram(wire, &body).await,
            Message::ErrorResponse(error) => return Err(server(ServerError::new(error.fields()))),
            _ if binds => return Err(Error::Refused(unbound.into())),
            Message::AuthenticationOk => return Ok(()),
            Message::AuthenticationCleartextPassword => {
                let is_verified = matches!(self.address.ssl_mode, SslMode::VerifyCa | SslMode::VerifyFull);
                if !self.is_encrypted || !is_verified {
                    return Err(Error::Refused(
                        "the server requests the password in clear text, but its certificate is not verified \
                         (use sslmode=verify-full)"
                            .into(),
                    ));
                }
                frontend::password_message(self.password()?.as_bytes(), &mut wire.output)?;
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(self.address.user.as_bytes(), self.password()?.as_bytes(), body.salt());
                frontend::password_message(hash.as_bytes(), &mut wire.output)?;
            }
            _ => return Err(Error::Refused("the server requests an unsupported method of authentication".into())),
        }
        wire.flush().await?;
        expect_ok(wire).await
    }

    fn password(&self) -> Result<&str> {
        self.password.ok_or(Error::PasswordRequired)
    }

    async fn scram(&self, wire: &mut Wire, offered: &AuthenticationSaslBody) -> Result<()> {
        let (mut has_plain, mut has_plus) = (false, false);
        let mut mechanisms = offered.mechanisms();
        while let Some(mechanism) = mechanisms.next()? {
            has_plain |= mechanism == SCRAM_SHA_256;
            has_plus |= mechanism == SCRAM_SHA_256_PLUS;
        }
        let wanted = self.address.channel_binding;
        let end_point = self.end_point.clone().filter(|_| wanted != ChannelBinding::Disable);
        let (mechanism, binding) = match end_point {
            Some(end_point) if has_plus => (SCRAM_SHA_256_PLUS, Binding::tls_server_end_point(end_point)),
            _ if wanted == ChannelBinding::Require => {
                return Err(Error::Refused("channel binding is required, but not available".into()));
            }
            _ if !has_plain => {
                return Err(Error::Refused("the server requests an unsupported method of authentication".into()));
            }
            // The server can detect that the other mechanism was removed from its offer on the way.
            Some(_) => (SCRAM_SHA_256, Binding::unrequested()),
            None => (SCRAM_SHA_256, Binding::unsupported()),
        };
        let mut scram = ScramSha256::new(self.password()?.as_bytes(), binding);
        frontend::sasl_initial_response(mechanism, scram.message(), &mut wire.output)?;
        wire.flush().await?;
        match wire.next().await? {
            Message::AuthenticationSaslContinue(body) => scram.update(body.data())?,
            Message::ErrorResponse(error) => return Err(server(ServerError::new(error.fields()))),
            _ => return Err(unexpected()),
        }
        frontend::sasl_response(scram.message(), &mut wire.output)?;
        wire.flush().await?;
        match wire.next().await? {
            // The server proves that it knows the password, too.
            Message::AuthenticationSaslFinal(body) => scram
                .finish(body.data())
                .map_err(|error| Error::Refused(format!("the server does not prove its identity: {error}")))?,
            Message::ErrorResponse(error) => return Err(server(ServerError::new(error.fields()))),
            _ => return Err(unexpected()),
        }
        expect_ok(wire).await
    }
}

async fn expect_ok(wire: &mut Wire) -> Result<()> {
    match wire.next().await? {
        Message::AuthenticationOk => Ok(()),
        Message::ErrorResponse(error) => Err(server(ServerError::new(error.fields()))),
        _ => Err(unexpected()),
    }
}
