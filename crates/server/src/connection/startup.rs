//! The startup of a connection: authentication and parameters of the session.

use std::sync::Arc;

use keyaki::{Isolation, RoleLogin, Session};
use pgwire::messages::startup::{
    Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey, Startup,
};
use pgwire::messages::{PgWireBackendMessage as Message, ProtocolVersion};

use super::client::{Client, Work};
use super::negotiation::{Negotiated, negotiate, refuse};
use crate::failure::{Failure, Result};
use crate::frames::Wire;
use crate::registry::{Full, Limited, Registration};
use crate::shared::Shared;
use crate::socket::{Peer, Socket};
use crate::tls::Encryption;

/// Minor versions of the protocol up to this one are spoken.
const MINOR_MAX: u16 = 2;

/// Opens a connection; `None` if it has ended.
pub async fn open(shared: Arc<Shared>, socket: Socket, peer: Peer) -> Option<Client> {
    let Negotiated { mut wire, startup, encryption } = negotiate(&shared, socket, peer).await?;
    let login = match log_in(&shared, &mut wire, &startup, peer, encryption.as_ref()).await {
        Ok(login) => login,
        Err(failure) => {
            let failure = as_fatal(failure);
            shared.metrics.refused(failure.code());
            refuse(wire, &failure, peer).await;
            return None;
        }
    };
    let Login { session, registration, role } = login;
    let interrupt = session.interrupt_handle();
    let mut client = Client::new(shared, wire, session, interrupt, registration);
    match begin(&mut client, &startup, role.as_ref()).await {
        Ok(()) => {
            client.shared.metrics.connected();
            Some(client)
        }
        Err(failure) => {
            // The connection ends in any case.
            let _ = client.wire.put(&as_fatal(failure).message("", 0));
            client.end().await;
            None
        }
    }
}

/// Errors of statements end the connection, too.
fn as_fatal(failure: Failure) -> Failure {
    match failure {
        Failure::Sql(error) => Failure::fatal(error.sqlstate().code(), error.to_string()),
        other => other,
    }
}

/// A session of an authenticated user.
struct Login {
    session: Session,
    registration: Registration,
    /// `None` for a superuser without a role.
    role: Option<RoleLogin>,
}

/// The user of a startup.
///
/// # Errors
/// If it is missing.
fn user(startup: &Startup) -> Result<&str> {
    let user = startup.parameters.get("user").filter(|user| !user.is_empty());
    let user = user.ok_or_else(|| Failure::fatal("28000", "no PostgreSQL user name specified in startup packet"))?;
    Ok(user)
}

/// Authenticates the user and makes a session.
///
/// # Errors
/// Fatal errors: 28P01 and 28000 if the user may not connect, 53300 if there are too many connections; errors of the connection.
async fn log_in(
    shared: &Arc<Shared>,
    wire: &mut Wire<Socket>,
    startup: &Startup,
    peer: Peer,
    encryption: Option<&Encryption>,
) -> Result<Login> {
    let unknown: Vec<String> = startup.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect();
    if startup.protocol_number_minor > MINOR_MAX || !unknown.is_empty() {
        let version = NegotiateProtocolVersion::new(ProtocolVersion::PROTOCOL3_2.into(), unknown);
        wire.put(&Message::NegotiateProtocolVersion(version))?;
    }
    let user = user(startup)?;
    let role = shared.access.authenticate(wire, user, peer, encryption).await?;
    let session = shared.database.session();
    session.restrict_files(shared.options.files.clone());
    // As in PostgreSQL, whose clients do not expect to repeat transactions.
    session.set_default_isolation(Isolation::ReadCommitted);
    session.permit_statement_timeout();
    if let Some(role) = &role {
        session.log_in(&role.name)?;
    }
    let limited = role.as_ref().map(|role| Limited {
        role: role.name.clone(),
        // As in PostgreSQL, superusers are not limited.
        limit: role.connection_limit.filter(|_| !role.is_superuser),
        is_superuser: role.is_superuser,
    });
    let has_long_secret = startup.protocol_number_minor >= MINOR_MAX;
    let registered = {
        let address = match peer {
            Peer::Tcp(address) => Some(address),
            Peer::Unix(_) => None,
        };
        shared.registry.register(&session, address, has_long_secret, limited)
    };
    let registration = registered.map_err(|full| match full {
        Full::Server => Failure::fatal("53300", "sorry, too many clients already"),
        Full::Reserved => Failure::fatal("53300", "remaining connection slots are reserved for superusers"),
        Full::Role => Failure::fatal("53300", format!("too many connections for role \"{user}\"")),
    })?;
    Ok(Login { session, registration, role })
}

/// Applies the parameters of the startup and answers it.
async fn begin(client: &mut Client, startup: &Startup, role: Option<&RoleLogin>) -> Result<()> {
    client.wire.put(&Message::Authentication(Authentication::Ok))?;
    for (name, value) in &startup.parameters {
        match name.as_str() {
            "user" | "database" | "replication" => {}
            "options" => {
                for (name, value) in options(value)? {
                    set(client, &name, &value).await?;
                }
            }
            name if name.starts_with("_pq_.") => {}
            name => set(client, name, value).await?,
        }
    }
    if startup
        .parameters
        .get("replication")
        .is_some_and(|value| !matches!(value.as_str(), "false" | "off" | "0" | "no"))
    {
        return Err(Failure::fatal("0A000", "replication is not supported"));
    }
    client.session.keep_settings();
    client.time_zone = client.session.time_zone();
    client.role = role.map(|role| role.name.clone());
    client.application = startup.parameters.get("application_name").cloned().unwrap_or_default();
    let is_superuser = role.is_none_or(|role| role.is_superuser);
    let settings = [
        ("server_version", format!("{} (Keyaki)", keyaki::POSTGRESQL_VERSION)),
        ("server_encoding", "UTF8".into()),
        ("client_encoding", "UTF8".into()),
        ("application_name", client.application.clone()),
        ("is_superuser", if is_superuser { "on" } else { "off" }.into()),
        ("session_authorization", user(startup)?.into()),
        ("DateStyle", "ISO, YMD".into()),
        ("IntervalStyle", "postgres".into()),
        ("TimeZone", client.time_zone.clone()),
        ("integer_datetimes", "on".into()),
        ("standard_conforming_strings", "on".into()),
        ("default_transaction_read_only", "off".into()),
        ("in_hot_standby", "off".into()),
    ];
    for (name, value) in settings {
        client.wire.put(&Message::ParameterStatus(ParameterStatus::new(name.into(), value)))?;
    }
    let secret = SecretKey::Bytes(client.secret().into());
    client.wire.put(&Message::BackendKeyData(BackendKeyData::new(client.process(), secret)))?;
    client.ready().await
}

/// Applies a setting.
async fn set(client: &mut Client, name: &str, value: &str) -> Result<()> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
    };
    if !is_name(name) {
        return Err(Failure::fatal("42704", format!("unrecognized configuration parameter \"{name}\"")));
    }
    client.start();
    client.run(Work::Text(&format!("SET {name} = '{}'", value.replace('\'', "''")))).await.map(drop)
}

/// The settings in the parameter `options`: `-c name=value`, `--name=value`. Backslashes escape spaces.
fn options(text: &str) -> Result<Vec<(String, String)>> {
    let mut words = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let word = words.last_mut();
        match (c, word) {
            ('\\', Some(word)) => word.extend(chars.next()),
            (c, _) if c.is_whitespace() => words.push(String::new()),
            (c, Some(word)) => word.push(c),
            (_, None) => {}
        }
    }
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        let setting = match word.as_str() {
            "-c" => words.next(),
            word => word.strip_prefix("--").or_else(|| word.strip_prefix("-c")).map(Into::into),
        };
        match setting.as_deref().and_then(|setting| setting.split_once('=')) {
            Some((name, value)) => settings.push((name.replace('-', "_"), value.into())),
            None => return Err(Failure::fatal("42601", format!("invalid command-line argument: {word}"))),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_options() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let read = options(r"-c search_path=a\ b --timezone=UTC -cx.y=1").unwrap();
        assert_eq!(read, [pair("search_path", "a b"), pair("timezone", "UTC"), pair("x.y", "1")]);
        assert!(options("").unwrap().is_empty());
        assert!(options("-x").is_err() && options("-c").is_err() && options("-c a").is_err());
    }
}
