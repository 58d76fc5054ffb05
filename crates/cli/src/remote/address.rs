//! Addresses of servers: `postgres://user:password@host:port/database?sslmode=…`.
//!
//! Missing parts come from PostgreSQL's environment variables (PGHOST, PGPORT, PGUSER, PGDATABASE, PGSSLMODE …), then from
//! defaults. The password comes from the address, PGPASSWORD or the password file (PGPASSFILE, `~/.pgpass`).

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::error::{Error, Result};

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
const PORT: u16 = 5432;
/// The value of `sslrootcert` that stands for the authorities that the system trusts.
const SYSTEM_ROOTS: &str = "system";
/// Limit of `connect_timeout`, and its value if it is not given.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longer password files are not read to their end.
const PASSWORD_FILE_BYTES_MAX: u64 = 1 << 20;

/// True for inputs that may contain a password: addresses with one, definitions of roles with the word, and parameters whose
/// names suggest it.
pub fn has_password(input: &str) -> bool {
    let lower = input.to_ascii_lowercase();
    let sets = [".para", "\\set"].iter().any(|command| lower.trim_start().starts_with(command));
    if sets && ["pass", "pw", "secret", "token"].iter().any(|word| lower.contains(word)) {
        return true;
    }
    let mut words = lower.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'));
    // Anywhere: other statements and comments may precede.
    let opens = [".o", "\\c"].iter().any(|command| lower.trim_start().starts_with(command));
    if !(opens || words.any(|word| matches!(word, "create" | "alter"))) {
        return false;
    }
    // Also before the first slash of a malformed address.
    let login = input.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map(|(login, _)| login);
    login.is_some_and(|login| login.contains(':')) || lower.contains("password")
}

/// True for texts that begin as the address of a server.
pub fn is_address(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// The demands on the encryption of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    /// No encryption.
    Disable,
    /// Encryption if the server refuses the connection without it.
    Allow,
    /// Encryption if the server has it.
    Prefer,
    /// Encryption, with any certificate unless there is a file of authorities.
    Require,
    /// A certificate of an authority.
    VerifyCa,
    /// A certificate of an authority for the name of the host.
    VerifyFull,
}

impl FromStr for SslMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<SslMode> {
        Ok(match text {
            "disable" => SslMode::Disable,
            "allow" => SslMode::Allow,
            "prefer" => SslMode::Prefer,
            "require" => SslMode::Require,
            "verify-ca" => SslMode::VerifyCa,
            "verify-full" => SslMode::VerifyFull,
            other => {
                return Err(Error::Usage(format!(
                    "invalid sslmode \"{other}\" (disable, prefer, require, verify-ca, verify-full)"
                )));
            }
        })
    }
}

/// The demands on the binding of the authentication to the encrypted connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}

impl FromStr for ChannelBinding {
    type Err = Error;

    fn from_str(text: &str) -> Result<ChannelBinding> {
        Ok(match text {
            "disable" => ChannelBinding::Disable,
            "prefer" => ChannelBinding::Prefer,
            "require" => ChannelBinding::Require,
            other => {
                return Err(Error::Usage(format!("invalid channel_binding \"{other}\" (disable, prefer, require)")));
            }
        })
    }
}

/// The demands on a server of several ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionAttributes {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
}

impl SessionAttributes {
    /// True for a server in this state.
    pub fn fit(self, is_standby: bool, is_read_only: bool) -> bool {
        match self {
            SessionAttributes::Any => true,
            SessionAttributes::ReadWrite => !is_standby && !is_read_only,
            SessionAttributes::ReadOnly => is_standby || is_read_only,
            SessionAttributes::Primary => !is_standby,
            SessionAttributes::Standby => is_standby,
        }
    }
}

impl FromStr for SessionAttributes {
    type Err = Error;

    fn from_str(text: &str) -> Result<SessionAttributes> {
        Ok(match text {
            "any" => SessionAttributes::Any,
            "read-write" => SessionAttributes::ReadWrite,
            "read-only" => SessionAttributes::ReadOnly,
            "primary" => SessionAttributes::Primary,
            "standby" => SessionAttributes::Standby,
            other => {
                return Err(Error::Usage(format!(
                    "invalid target_session_attrs \"{other}\" (any, read-write, read-only, primary, standby)"
                )));
            }
        })
    }
}

/// A server, a database, a user, and the settings of the connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, an IP address, or the directory of a Unix socket.
    pub host: String,
    pub port: u16,
    /// The hosts and ports of servers that are tried after this one.
    others: Vec<(String, u16)>,
    pub session_attributes: SessionAttributes,
    pub user: String,
    pub database: String,
    password: Option<String>,
    password_file: Option<PathBuf>,
    pub ssl_mode: SslMode,
    pub root_certificates: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub channel_binding: ChannelBinding,
    pub application: String,
    pub options: Option<String>,
    pub connect_timeout: Duration,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("address", &self.to_string()).finish_non_exhaustive()
    }
}

/// Without the password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        write!(f, "{}@{host}:{}/{}", self.user, self.port, self.database)
    }
}

impl Address {
    /// Reads an address, with the environment variables of this process.
    ///
    /// # Errors
    /// If it is malformed, or has unknown parameters.
    pub fn parse(text: &str) -> Result<Address> {
        Address::parse_with(text, |name| std::env::var_os(name))
    }

    fn parse_with(text: &str, variable: impl Fn(&str) -> Option<OsString>) -> Result<Address> {
        let rest = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)).ok_or_else(|| {
            Error::Usage("the address of a server has the form postgres://user@host:port/database".into())
        })?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        let places =
            place.split(',').map(|place| match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                Some((host, rest)) => (host, rest.strip_prefix(':').unwrap_or(rest)),
                None => place.split_once(':').unwrap_or((place, "")),
            });
        let (hosts, ports): (Vec<&str>, Vec<&str>) = places.unzip();
        let mut given = Given(Vec::new());
        let list =
            |items: Vec<&str>| if items.iter().all(|item| item.is_empty()) { String::new() } else { items.join(",") };
        let (hosts, ports) = (list(hosts), list(ports));
        for (name, value) in [("user", user), ("host", hosts.as_str()), ("port", ports.as_str()), ("dbname", database)]
        {
            given.add(name, value)?;
        }
        given.add("password", password.unwrap_or_default())?;
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter
                .split_once('=')
                .ok_or_else(|| Error::Usage(format!("parameter \"{parameter}\" of the address has no value")))?;
            given.add(&decoded(name)?, value)?;
        }
        given.address(variable)
    }

    /// The addresses of all servers, each alone, in the order in which they are tried.
    pub fn each(&self) -> impl Iterator<Item = Address> {
        let first = (self.host.clone(), self.port);
        let one = move |(host, port)| Address { host, port, others: Vec::new(), ..self.clone() };
        std::iter::once(first).chain(self.others.iter().cloned()).map(one)
    }

    /// The address with another demand on the encryption.
    pub fn with_ssl_mode(&self, ssl_mode: SslMode) -> Address {
        Address { ssl_mode, ..self.clone() }
    }

    /// The password in the address, the environment, or the password file.
    pub fn password(&self) -> Option<String> {
        let from_file = || {
            let path = self.password_file.as_deref()?;
            match password_file(path) {
                Ok(content) => find_password(&content, self),
                Err(problem) => {
                    eprintln!("warning: {problem}");
                    None
                }
            }
        };
        self.password.clone().or_else(from_file)
    }

    /// True if the authorities that the system trusts verify the server.
    pub fn has_system_roots(&self) -> bool {
        self.root_certificates.as_deref() == Some(Path::new(SYSTEM_ROOTS))
    }

    /// The path of the Unix socket; `None` for hosts.
    pub fn socket(&self) -> Option<PathBuf> {
        self.host.starts_with('/').then(|| Path::new(&self.host).join(format!(".s.PGSQL.{}", self.port)))
    }
}

/// The parts and parameters of an address; later ones replace earlier ones.
struct Given(Vec<(String, String)>);

impl Given {
    fn add(&mut self, name: &str, value: &str) -> Result<()> {
        const NAMES: [&str; 15] = [
            "application_name",
            "channel_binding",
            "connect_timeout",
            "dbname",
            "host",
            "options",
            "passfile",
            "password",
            "port",
            "sslcert",
            "sslkey",
            "sslmode",
            "sslrootcert",
            "target_session_attrs",
            "user",
        ];
        if !NAMES.contains(&name) {
            return Err(Error::Usage(format!("unknown parameter \"{name}\" in the address")));
        }
        if !value.is_empty() {
            self.0.push((name.into(), decoded(value)?));
        }
        Ok(())
    }

    fn address(self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Address> {
        let from_environment = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            let text = value.map(|value| value.into_string());
            text.transpose().map_err(|_| Error::Usage(format!("the environment variable {name} is not UTF-8")))
        };
        let find = |name: &str, environment: &str| match self.0.iter().rev().find(|(known, _)| known == name) {
            Some((_, value)) => Ok(Some(value.clone())),
            None => from_environment(environment),
        };
        let home = variable("HOME").map(PathBuf::from);
        let in_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let user = match find("user", "PGUSER")? {
            Some(user) => user,
            None => from_environment("USER")?
                .ok_or_else(|| Error::Usage("the address has no user (postgres://user@host/database)".into()))?,
        };
        let hosts = find("host", "PGHOST")?.unwrap_or_else(|| "localhost".into());
        let ports = find("port", "PGPORT")?.unwrap_or_default();
        let mut places = places(&hosts, &ports)?.into_iter();
        let (host, port) = places.next().ok_or_else(|| Error::Usage("the address has no host".into()))?;
        let seconds = match find("connect_timeout", "PGCONNECT_TIMEOUT")? {
            Some(seconds) => {
                seconds.parse().map_err(|_| Error::Usage(format!("invalid connect_timeout \"{seconds}\"")))?
            }
            None => 0,
        };
        let roots = find("sslrootcert", "PGSSLROOTCERT")?.map(PathBuf::from);
        // As in libpq: anyone can get a certificate of such an authority, but not one for the name of the server.
        let default_mode = match roots.as_deref() == Some(Path::new(SYSTEM_ROOTS)) {
            true => SslMode::VerifyFull,
            false => SslMode::Prefer,
        };
        let ssl_mode = find("sslmode", "PGSSLMODE")?.map_or(Ok(default_mode), |mode| mode.parse())?;
        if default_mode == SslMode::VerifyFull && ssl_mode != SslMode::VerifyFull {
            return Err(Error::Usage("sslrootcert=system needs sslmode=verify-full".into()));
        }
        let certificate = find("sslcert", "PGSSLCERT")?.map(PathBuf::from);
        let key = find("sslkey", "PGSSLKEY")?.map(PathBuf::from);
        if certificate.is_some() != key.is_some() {
            return Err(Error::Usage("sslcert and sslkey must be given together".into()));
        }
        Ok(Address {
            host,
            port,
            others: places.collect(),
            session_attributes: find("target_session_attrs", "PGTARGETSESSIONATTRS")?
                .map_or(Ok(SessionAttributes::Any), |attributes| attributes.parse())?,
            database: find("dbname", "PGDATABASE")?.unwrap_or_else(|| user.clone()),
            user,
            password: find("password", "PGPASSWORD")?,
            password_file: find("passfile", "PGPASSFILE")?.map(PathBuf::from).or_else(|| in_home(".pgpass")),
            ssl_mode,
            root_certificates: roots.or_else(|| in_home(".postgresql/root.crt").filter(|path| path.exists())),
            certificate,
            key,
            channel_binding: find("channel_binding", "PGCHANNELBINDING")?
                .map_or(Ok(ChannelBinding::Prefer), |binding| binding.parse())?,
            application: find("application_name", "PGAPPNAME")?.unwrap_or_else(|| "keyaki".into()),
            options: find("options", "PGOPTIONS")?,
            connect_timeout: if seconds == 0 { TIMEOUT } else { Duration::from_secs(seconds).min(TIMEOUT) },
        })
    }
}

/// The hosts of a list, each with its port. One port is that of all hosts.
fn places(hosts: &str, ports: &str) -> Result<Vec<(String, u16)>> {
    let port = |port: &str| match port {
        "" => Ok(PORT),
        port => port.parse().map_err(|_| Error::Usage(format!("invalid port \"{port}\" in the address"))),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    let ports = ports.split(',').map(port).collect::<Result<Vec<u16>>>()?;
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(Error::Usage(format!("the address has {} hosts, but {} ports", hosts.len(), ports.len())));
    }
    let host = |host: &str| if host.is_empty() { "localhost".to_string() } else { host.to_string() };
    Ok(hosts.into_iter().map(host).zip(ports.iter().copied().cycle()).collect())
}

/// A text without its `%` escapes.
fn decoded(text: &str) -> Result<String> {
    let malformed = || Error::Usage(format!("malformed escape in \"{text}\" (write % as %25)"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|byte| *byte != 0);
        bytes.push(byte.ok_or_else(malformed)?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

/// The content of a password file that only its owner can read; empty if there is none.
fn password_file(path: &Path) -> std::result::Result<String, String> {
    let Ok(file) = File::open(path) else { return Ok(String::new()) };
    let metadata = file.metadata().map_err(|error| format!("{}: {error}", path.display()))?;
    if !metadata.is_file() {
        return Err(format!("password file \"{}\" is not a regular file", path.display()));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(format!(
            "password file \"{}\" has group or world access; permissions should be u=rw (0600) or less",
            path.display()
        ));
    }
    let mut content = String::new();
    file.take(PASSWORD_FILE_BYTES_MAX)
        .read_to_string(&mut content)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(content)
}

/// The password of the first line whose fields fit: `host:port:database:user:password`, `*` fits everything.
fn find_password(content: &str, address: &Address) -> Option<String> {
    let host = if address.socket().is_some() { "localhost" } else { address.host.as_str() };
    let port = address.port.to_string();
    let wanted = [host, &port, &address.database, &address.user];
    content.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let (password, known) = fields.split_last().filter(|(_, known)| known.len() == wanted.len())?;
        let fits = known.iter().zip(wanted).all(|(known, wanted)| known == "*" || known == wanted);
        fits.then(|| password.clone())
    })
}

/// The fields of a line. A backslash keeps a colon or a backslash. The fifth field ends with the line.
fn fields(line: &str) -> Vec<String> {
    const FIELDS: usize = 5;
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        let count = fields.len();
        let Some(field) = fields.last_mut() else { break };
        match c {
            '\\' => field.extend(chars.next()),
            ':' if count < FIELDS => fields.push(String::new()),
            c => field.push(c),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Address> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Address::parse_with(text, find)
    }

    #[test]
    fn parts_of_addresses() {
        let address =
            parse("postgres://me:p%40ss@[::1]:6432/my%20db?sslmode=verify-full&sslrootcert=/ca.crt", &[]).unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 6432));
        assert_eq!((address.user.as_str(), address.database.as_str()), ("me", "my db"));
        assert_eq!(address.password(), Some("p@ss".into()));
        assert_eq!(address.ssl_mode, SslMode::VerifyFull);
        assert_eq!(address.root_certificates, Some("/ca.crt".into()));
        assert_eq!(address.to_string(), "me@[::1]:6432/my db");
        assert!(!format!("{address:?}").contains("p@ss"));
        let socket = parse("postgresql://me@/db?host=/run/keyaki&port=7", &[]).unwrap();
        assert_eq!(socket.socket(), Some("/run/keyaki/.s.PGSQL.7".into()));
    }

    #[test]
    fn variables_replace_missing_parts() {
        let variables =
            [("PGHOST", "db"), ("PGPORT", "7"), ("PGUSER", "app"), ("PGPASSWORD", "s"), ("PGSSLMODE", "require")];
        let address = parse("postgres://", &variables).unwrap();
        assert_eq!(address.to_string(), "app@db:7/app");
        assert_eq!((address.password(), address.ssl_mode), (Some("s".into()), SslMode::Require));
        let address = parse("postgres://other@host/x?sslmode=disable", &variables).unwrap();
        assert_eq!((address.to_string().as_str(), address.ssl_mode), ("other@host:7/x", SslMode::Disable));
        assert_eq!(parse("postgres://", &[("USER", "me")]).unwrap().to_string(), "me@localhost:5432/me");
    }

    #[test]
    fn several_servers() {
        let each = |text: &str| -> Vec<String> {
            parse(text, &[]).unwrap().each().map(|address| format!("{}:{}", address.host, address.port)).collect()
        };
        assert_eq!(each("postgres://me@a:1,b,[::1]:3/db"), ["a:1", "b:5432", "::1:3"]);
        assert_eq!(each("postgres://me@/db?host=a,b&port=7"), ["a:7", "b:7"]);
        assert_eq!(each("postgres://me@a,b/db"), ["a:5432", "b:5432"]);
        let address = parse("postgres://me@a,b/db?target_session_attrs=read-write", &[]).unwrap();
        assert!(address.session_attributes.fit(false, false) && !address.session_attributes.fit(false, true));
        assert!(parse("postgres://me@a,b,c/db?port=1,2", &[]).is_err());
        assert!(parse("postgres://me@a/db?target_session_attrs=fast", &[]).is_err());
    }

    #[test]
    fn passwords_are_found() {
        for text in [
            ".open postgres://me:secret@host/db",
            ".open 'postgres://me:se/cr@et@host:5432/db'",
            ".open postgres://me@host/db?password=secret",
            "CREATE ROLE a PassWord 'secret';",
        ] {
            assert!(has_password(text), "{text}");
        }
        for text in
            [".open postgres://me@host:5432/db", "SELECT password FROM users;", ".open shop", "CREATE TABLE t (a INT);"]
        {
            assert!(!has_password(text), "{text}");
        }
    }

    #[test]
    fn authorities_of_the_system() {
        let address = parse("postgres://me@host/db?sslrootcert=system", &[]).unwrap();
        assert!(address.has_system_roots() && address.ssl_mode == SslMode::VerifyFull);
        assert!(!parse("postgres://me@host/db?sslrootcert=/system", &[]).unwrap().has_system_roots());
    }

    #[test]
    fn malformed_addresses() {
        for text in [
            "shop",
            "postgres://me@host:port/db",
            "postgres://me@host:70000/db",
            "postgres://me@host/db?sslmode=never",
            "postgres://me@host/db?nonsense=1",
            "postgres://me@host/db?sslmode",
            "postgres://me@host/%zz",
            "postgres://me@host/%00",
            "postgres://me@host/%+f",
            "postgres://me@host/db?sslcert=a",
            "postgres://me@host/db?sslrootcert=system&sslmode=require",
            "postgres://host/db",
        ] {
            assert!(matches!(parse(text, &[]), Err(Error::Usage(_))), "{text}");
        }
        assert!(is_address("postgresql://x") && !is_address("shop"));
    }

    #[test]
    fn password_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pass");
        let content = "# a comment\nother:*:*:*:no\n*:5432:db:me:a\\:b:c\\\\\n*:*:*:*:last\n";
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!("postgres://me@host/db?passfile={}", path.display());
        assert_eq!(parse(&text, &[]).unwrap().password(), Some("a:b:c\\".into()));
        assert_eq!(parse(&text.replace("/db", "/x"), &[]).unwrap().password(), Some("last".into()));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(parse(&text, &[]).unwrap().password(), None);
        assert_eq!(parse("postgres://me@host/db?passfile=/nowhere", &[]).unwrap().password(), None);
    }
}
