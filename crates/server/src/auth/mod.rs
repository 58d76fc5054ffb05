//! Authentication: the clients that may connect, and their roles.
//!
//! | connection | no roles | roles |
//! |---|---|---|
//! | Unix socket, of the server's own user | superuser without a role | the role, without a password |
//! | TCP | superuser without a role, if the server listens on loopback addresses only | the role, by SCRAM or a certificate |
//!
//! With `--tls-client-ca`, the second column holds for TCP always. On the Unix socket, the name of the user who runs the server is
//! that of a superuser without a role, unless a role has this name, can log in, and it or another superuser that can log in
//! exists: that user owns the files of the database anyway, and cannot be locked out.
//!
//! | module | contents |
//! |---|---|
//! | [`verifier`] | stored verifiers of passwords |
//! | [`scram`] | the exchange |
//! | [`throttle`] | delays after failures |

mod scram;
mod throttle;
mod verifier;

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use keyaki::{Database, RoleLogin};
use nix::unistd::{User, geteuid};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::startup::Authentication;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::failure::{Failure, Result};
use crate::frames::Wire;
use crate::socket::Peer;
use crate::tls::Encryption;
use scram::{Exchange, Mechanism, SCRAM, SCRAM_PLUS};
pub use throttle::Throttle;
use verifier::{KEY_BYTES, Verifier};

/// The protection of a server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Protection {
    /// TLS is configured.
    pub has_tls: bool,
    /// Clients must present certificates.
    pub has_client_ca: bool,
    /// The server listens on addresses that other machines can reach.
    pub is_exposed: bool,
    /// Permits this without authentication.
    pub allow_unprotected: bool,
}

/// The rules of authentication.
pub struct Access {
    database: Database,
    protection: Protection,
    /// The database has had a role.
    has_had_roles: AtomicBool,
    throttle: Throttle,
    /// The key of verifiers for names that have none.
    mock_key: hmac::Key,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("protection", &self.protection).finish_non_exhaustive()
    }
}

/// How a client is authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Not at all: it is a superuser.
    Trust,
    /// It is a process of the server's own user, and has named a role.
    Peer,
    /// By a password, a certificate, or both.
    Verify,
}

impl Access {
    /// Blocks.
    ///
    /// # Errors
    /// If the system has no random numbers; errors of the database.
    pub fn new(database: Database, protection: Protection) -> Result<Access> {
        let mut key = [0; KEY_BYTES];
        let filled = SystemRandom::new().fill(&mut key);
        filled.map_err(|_| Failure::fatal("XX000", "could not generate a random key"))?;
        // Salts that changed with a restart would tell the names of roles from others.
        let mock_key = hmac::Key::new(hmac::HMAC_SHA256, &database.kept_key(key)?);
        let access = Access {
            database,
            protection,
            has_had_roles: AtomicBool::new(false),
            throttle: Throttle::default(),
            mock_key,
        };
        access.has_roles()?;
        Ok(access)
    }

    /// True if clients of TCP are authenticated, and can be.
    ///
    /// # Errors
    /// Errors of the database.
    pub fn is_required(&self) -> Result<bool> {
        Ok(self.protection.has_client_ca || self.database.has_login_roles()?)
    }

    /// True if there is a role. Roles that lose LOGIN do not open the server.
    fn has_roles(&self) -> Result<bool> {
        let has_roles = self.database.has_roles()?;
        if has_roles {
            self.has_had_roles.store(true, Ordering::Relaxed);
        }
        Ok(has_roles)
    }

    /// Authenticates the user of a connection. `None` for a superuser without a role.
    ///
    /// # Errors
    /// Fatal errors: 28P01 for wrong passwords, 28000 for other users who may not connect; errors of the connection and the
    /// database.
    pub async fn authenticate<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        wire: &mut Wire<S>,
        user: &str,
        peer: Peer,
        encryption: Option<&Encryption>,
    ) -> Result<Option<RoleLogin>> {
        // Also without roles: the socket is open to others until its permissions are set.
        if let Peer::Unix(uid) = peer
            && !uid.is_some_and(|uid| uid == geteuid().as_raw() || uid == 0)
        {
            return Err(Failure::fatal("28000", format!("peer authentication failed for user \"{user}\"")));
        }
        let has_roles = self.has_roles()?;
        let has_had_roles = self.has_had_roles.load(Ordering::Relaxed);
        match method(self.protection, has_roles, has_had_roles, peer, encryption.is_some())? {
            Method::Trust => Ok(None),
            Method::Peer => self.owner(user),
            Method::Verify => self.throttled(wire, user, peer, encryption).await.map(Some),
        }
    }

    /// The role of a process of the server's own user.
    fn owner(&self, user: &str) -> Result<Option<RoleLogin>> {
        let is_own_name = User::from_uid(geteuid()).ok().flatten().is_some_and(|owner| owner.name == user);
        match self.database.role(user)? {
            Some(role) if role.can_login && (!is_own_name || self.database.has_login_superusers()?) => Ok(Some(role)),
            _ if is_own_name => Ok(None),
            Some(_) => Err(no_login(user)),
            None => Err(no_role(user)),
        }
    }

    async fn throttled<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        wire: &mut Wire<S>,
        user: &str,
        peer: Peer,
        encryption: Option<&Encryption>,
    ) -> Result<RoleLogin> {
        let address = peer.ip();
        if let Some(address) = address
            && !self.throttle.admit(address, user).await
        {
            let problem = "too many failed authentication attempts, try again later";
            return Err(Failure::fatal("28000", problem));
        }
        let verified = self.verify(wire, user, encryption).await;
        if let (Err(failure @ Failure::Fatal { .. }), Some(address)) = (&verified, address) {
            self.throttle.fail(address, user);
            // Names can contain line breaks: they are escaped.
            tracing::warn!(?user, %peer, problem = ?failure.to_string(), "authentication failed");
        }
        verified
    }

    /// Verifies the certificate and the password of a user.
    async fn verify<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        wire: &mut Wire<S>,
        user: &str,
        encryption: Option<&Encryption>,
    ) -> Result<RoleLogin> {
        let has_certificate = self.protection.has_client_ca;
        let wrong_certificate =
            || Failure::fatal("28000", format!("certificate authentication failed for user \"{user}\""));
        if has_certificate && encryption.and_then(|encryption| encryption.common_name.as_deref()) != Some(user) {
            return Err(wrong_certificate());
        }
        let role = self.database.role(user)?;
        let role = match role {
            None if has_certificate => return Err(no_role(user)),
            Some(role) if has_certificate && role.verifier.is_none() => match role.is_expired {
                true => return Err(wrong_certificate()),
                false => role,
            },
            role => {
                // Names without a password that is valid now cannot be told from wrong passwords.
                let usable = role.filter(|role| !role.is_expired);
                let verifier = usable.as_ref().and_then(|role| Verifier::parse(role.verifier.as_deref()?));
                let verifier = verifier.unwrap_or_else(|| Verifier::mock(&self.mock_key, user));
                let is_proved = exchange(wire, verifier, encryption).await?;
                // The role can have changed while the client answered.
                let newest = self.database.role(user)?.filter(|newest| !newest.is_expired);
                let is_same = |role: &RoleLogin| newest.as_ref().is_some_and(|newest| newest.verifier == role.verifier);
                let role = if is_proved && usable.as_ref().is_some_and(is_same) { newest } else { None };
                role.ok_or_else(|| {
                    Failure::fatal("28P01", format!("password authentication failed for user \"{user}\""))
                })?
            }
        };
        if role.can_login { Ok(role) } else { Err(no_login(user)) }
    }
}

fn no_role(user: &str) -> Failure {
    Failure::fatal("28000", format!("role \"{user}\" does not exist"))
}

fn no_login(user: &str) -> Failure {
    Failure::fatal("28000", format!("role \"{user}\" is not permitted to log in"))
}

/// How a client is authenticated. `has_roles` is true if there is a role, `has_had_roles` if there has been one since the start
/// of the server.
///
/// # Errors
/// If the client may not connect in this way.
fn method(
    protection: Protection,
    has_roles: bool,
    has_had_roles: bool,
    peer: Peer,
    is_encrypted: bool,
) -> Result<Method> {
    let Protection { has_tls, has_client_ca, is_exposed, allow_unprotected } = protection;
    let refused = |problem: String| Err(Failure::fatal("28000", problem));
    let Some(address) = peer.ip() else {
        return Ok(if has_roles { Method::Peer } else { Method::Trust });
    };
    if has_client_ca && !is_encrypted {
        return refused("connection requires a valid client certificate".into());
    }
    if has_tls && !is_encrypted && !address.is_loopback() {
        return refused(format!("the server requires TLS for connections from host \"{address}\", no encryption"));
    }
    if has_roles || has_client_ca {
        return Ok(Method::Verify);
    }
    // Roles that have been dropped do not open the server to others.
    if is_exposed && (!allow_unprotected || has_had_roles) {
        return refused(
            "the database has no role that can log in (create one with CREATE ROLE ... LOGIN PASSWORD)".into(),
        );
    }
    Ok(Method::Trust)
}

/// Authenticates a client by SCRAM. False if its proof is wrong.
///
/// # Errors
/// Fatal errors for malformed messages and other channel bindings; errors of the connection.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    wire: &mut Wire<S>,
    verifier: Verifier,
    encryption: Option<&Encryption>,
) -> Result<bool> {
    let end_point = encryption.and_then(|encryption| encryption.end_point.as_deref());
    let offered = end_point.map(|_| SCRAM_PLUS).into_iter().chain([SCRAM]).map(String::from);
    send(wire, Authentication::SASL(offered.collect())).await?;
    let (selected, first) = initial(wire.authentication().await?)?;
    let mechanism = match (selected.as_str(), end_point) {
        (SCRAM, end_point) => Mechanism::Plain { is_plus_offered: end_point.is_some() },
        (SCRAM_PLUS, Some(end_point)) => Mechanism::Plus { end_point },
        _ => return Err(Failure::fatal("08P01", "client selected an invalid SASL authentication mechanism")),
    };
    let first = match first {
        Some(first) => first,
        None => {
            // The client waits for the server to begin.
            send(wire, Authentication::SASLContinue(Bytes::new())).await?;
            wire.authentication().await?
        }
    };
    let exchange = Exchange::begin(mechanism, &first, verifier, &scram::nonce()?)?;
    send(wire, Authentication::SASLContinue(exchange.server_first().to_string().into())).await?;
    let last = wire.authentication().await?;
    let Some(answer) = exchange.finish(&last)? else { return Ok(false) };
    wire.put(&Message::Authentication(Authentication::SASLFinal(answer.into())))?;
    Ok(true)
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>, message: Authentication) -> Result<()> {
    wire.put(&Message::Authentication(message))?;
    Ok(wire.flush().await?)
}

/// The mechanism that a client selects, and its first message, which may be missing.
fn initial(body: Bytes) -> Result<(String, Option<Bytes>)> {
    let malformed = || Failure::fatal("08P01", "invalid SASLInitialResponse message");
    let end = body.iter().position(|byte| *byte == 0).ok_or_else(malformed)?;
    let name = str::from_utf8(&body[..end]).map_err(|_| malformed())?;
    let len = body.get(end + 1..end + 5).ok_or_else(malformed)?;
    let len = i32::from_be_bytes([len[0], len[1], len[2], len[3]]);
    let data = body.slice(end + 5..);
    match usize::try_from(len) {
        Ok(len) if len == data.len() => Ok((name.into(), Some(data))),
        Err(_) if len == -1 && data.is_empty() => Ok((name.into(), None)),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str) -> Peer {
        Peer::Tcp((address.parse::<std::net::IpAddr>().unwrap(), 5432).into())
    }

    /// The method for a client, or the SQLSTATE of its refusal.
    fn of(
        protection: Protection,
        roles: [bool; 2],
        peer: Peer,
        is_encrypted: bool,
    ) -> std::result::Result<Method, String> {
        method(protection, roles[0], roles[1], peer, is_encrypted).map_err(|failure| failure.code().to_string())
    }

    const NONE: [bool; 2] = [false, false];
    const DROPPED: [bool; 2] = [false, true];
    const SOME: [bool; 2] = [true, true];

    #[test]
    fn loopback_and_the_unix_socket() {
        let local = Protection::default();
        for peer in [tcp("127.0.0.1"), tcp("::1"), tcp("::ffff:127.0.0.1"), Peer::Unix(Some(0))] {
            assert_eq!(of(local, NONE, peer, false), Ok(Method::Trust));
            assert_eq!(of(local, DROPPED, peer, false), Ok(Method::Trust));
            let expected = if peer.ip().is_some() { Method::Verify } else { Method::Peer };
            assert_eq!(of(local, SOME, peer, false), Ok(expected));
        }
    }

    #[test]
    fn exposed_servers_trust_nobody() {
        let exposed = Protection { has_tls: true, is_exposed: true, ..Protection::default() };
        for peer in [tcp("192.0.2.1"), tcp("2001:db8::1"), tcp("127.0.0.1")] {
            assert_eq!(of(exposed, SOME, peer, true), Ok(Method::Verify));
            assert_eq!(of(exposed, NONE, peer, true), Err("28000".into()));
            assert_eq!(of(exposed, DROPPED, peer, true), Err("28000".into()));
        }
        // Only explicitly, and not after there have been roles.
        let unprotected = Protection { allow_unprotected: true, has_tls: false, ..exposed };
        assert_eq!(of(unprotected, NONE, tcp("192.0.2.1"), false), Ok(Method::Trust));
        assert_eq!(of(unprotected, DROPPED, tcp("192.0.2.1"), false), Err("28000".into()));
        assert_eq!(of(unprotected, SOME, tcp("192.0.2.1"), false), Ok(Method::Verify));
    }

    #[test]
    fn tls_is_required_beyond_loopback() {
        for allow_unprotected in [false, true] {
            let protection = Protection { has_tls: true, is_exposed: true, allow_unprotected, has_client_ca: false };
            assert_eq!(of(protection, SOME, tcp("192.0.2.1"), false), Err("28000".into()));
            assert_eq!(of(protection, NONE, tcp("192.0.2.1"), false), Err("28000".into()));
            assert_eq!(of(protection, SOME, tcp("127.0.0.1"), false), Ok(Method::Verify));
        }
    }

    #[test]
    fn certificates_are_required_with_a_client_ca() {
        let protection = Protection { has_tls: true, has_client_ca: true, ..Protection::default() };
        for roles in [NONE, DROPPED, SOME] {
            assert_eq!(of(protection, roles, tcp("127.0.0.1"), false), Err("28000".into()));
            assert_eq!(of(protection, roles, tcp("127.0.0.1"), true), Ok(Method::Verify));
        }
        assert_eq!(of(protection, NONE, Peer::Unix(None), false), Ok(Method::Trust));
    }

    #[test]
    fn initial_responses() {
        let read =
            |body: &'static [u8]| initial(Bytes::from_static(body)).map_err(|failure| failure.code().to_string());
        assert_eq!(read(b"S\0\0\0\0\x02ab"), Ok(("S".into(), Some(Bytes::from_static(b"ab")))));
        assert_eq!(read(b"S\0\xFF\xFF\xFF\xFF"), Ok(("S".into(), None)));
        assert_eq!(read(b"\0\0\0\0\0"), Ok((String::new(), Some(Bytes::new()))));
        for wrong in [
            b"".as_slice(),
            b"S",
            b"S\0",
            b"S\0\0\0\0",
            b"S\0\0\0\0\x03ab",
            b"S\0\0\0\0\x01ab",
            b"S\0\xFF\xFF\xFF\xFFab",
            b"S\0\xFF\xFF\xFF\xFE",
            b"S\0\x7F\xFF\xFF\xFF",
            b"\xFF\0\0\0\0\0",
        ] {
            assert_eq!(read(wrong), Err("08P01".into()), "{wrong:?}");
        }
    }
}
