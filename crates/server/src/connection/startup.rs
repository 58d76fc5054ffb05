//! The startup of a connection: negotiation and parameters of the session.

use std::sync::Arc;

use pgwire::messages::response::{GssEncResponse, SslResponse};
use pgwire::messages::startup::{
    Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey, Startup,
};
use pgwire::messages::{PgWireBackendMessage as Message, ProtocolVersion};

use super::client::{Client, Work};
use crate::failure::{Failure, Result};
use crate::frames::{Opening, Wire};
use crate::shared::Shared;
use crate::socket::Socket;

/// Maximum number of requests for encryption before the startup.
const NEGOTIATIONS_MAX: usize = 2;
/// Minor versions of the protocol up to this one are spoken.
const MINOR_MAX: u16 = 2;

/// Opens a connection; `None` if it has ended.
pub async fn open(shared: Arc<Shared>, mut wire: Wire<Socket>) -> Option<Client> {
    let startup = match negotiate(&shared, &mut wire).await {
        Ok(Some(startup)) => startup,
        Ok(None) => {
            wire.close().await;
            return None;
        }
        Err(failure) => {
            refuse(wire, &failure).await;
            return None;
        }
    };
    let session = shared.database.session();
    session.restrict_files(shared.options.files.clone());
    let interrupt = session.interrupt_handle();
    let has_long_secret = startup.protocol_number_minor >= MINOR_MAX;
    let Some(registration) = shared.registry.register(session.interrupt_handle(), has_long_secret) else {
        refuse(wire, &Failure::fatal("53300", "sorry, too many clients already")).await;
        return None;
    };
    let mut client = Client::new(shared, wire, session, interrupt, registration);
    match begin(&mut client, &startup).await {
        Ok(()) => Some(client),
        Err(failure) => {
            let failure = match failure {
                Failure::Sql(error) => Failure::fatal(error.sqlstate().code(), error.to_string()),
                other => other,
            };
            // The connection ends in any case.
            let _ = client.wire.put(&failure.message("", 0));
            client.end().await;
            None
        }
    }
}

async fn refuse(mut wire: Wire<Socket>, failure: &Failure) {
    tracing::debug!(%failure, "refused a connection");
    // The connection ends in any case.
    let _ = wire.put(&failure.message("", 0));
    wire.close().await;
}

/// Reads messages up to the startup. `None` after a request to cancel a statement.
async fn negotiate(shared: &Shared, wire: &mut Wire<Socket>) -> Result<Option<Startup>> {
    for _ in 0..=NEGOTIATIONS_MAX {
        match wire.opening().await? {
            Opening::Tls => wire.put(&Message::SslResponse(SslResponse::Refuse))?,
            Opening::Gss => wire.put(&Message::GssEncResponse(GssEncResponse::Refuse))?,
            Opening::Cancel { process, secret } => {
                shared.registry.cancel(process, &secret);
                return Ok(None);
            }
            Opening::Startup(startup) => return Ok(Some(startup)),
        }
        wire.flush().await?;
    }
    Err(Failure::fatal("08P01", "too many requests for encryption"))
}

/// Applies the parameters of the startup and answers it.
async fn begin(client: &mut Client, startup: &Startup) -> Result<()> {
    let unknown: Vec<String> = startup.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect();
    if startup.protocol_number_minor > MINOR_MAX || !unknown.is_empty() {
        let version = NegotiateProtocolVersion::new(ProtocolVersion::PROTOCOL3_2.into(), unknown);
        client.wire.put(&Message::NegotiateProtocolVersion(version))?;
    }
    let Some(user) = startup.parameters.get("user").filter(|user| !user.is_empty()) else {
        return Err(Failure::fatal("28000", "no PostgreSQL user name specified in startup packet"));
    };
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
    client.wire.put(&Message::Authentication(Authentication::Ok))?;
    client.time_zone = client.session.time_zone();
    let application = startup.parameters.get("application_name").cloned().unwrap_or_default();
    let settings = [
        ("server_version", format!("{} (Keyaki)", keyaki::POSTGRESQL_VERSION)),
        ("server_encoding", "UTF8".into()),
        ("client_encoding", "UTF8".into()),
        ("application_name", application),
        ("is_superuser", "on".into()),
        ("session_authorization", user.clone()),
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
