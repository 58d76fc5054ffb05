//! Connections with TLS.

use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::raw::{Raw, request_tls, startup};
use crate::support::{Served, code};
use keyaki::{Database, Options};
use keyaki_server::{Server, ServerError, ServerOptions, TlsOptions};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::TlsConnector;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const BOTH: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12, &rustls::version::TLS13];

/// An authority.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("a certificate");
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// A revocation list of serial numbers, which is current until a year.
    fn revoke(&self, serials: &[u64], until: i32) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).expect("a list").pem().expect("a text")
    }

    /// A certificate of a name, and its key.
    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        self.sign_with_serial(name, None)
    }

    fn sign_with_serial(&self, name: &str, serial: Option<u64>) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
        params.serial_number = serial.map(SerialNumber::from);
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
    }
}

/// The files of a server, and the authorities that have signed them.
struct Files {
    directory: TempDir,
    authority: Authority,
    clients: Authority,
}

impl Files {
    fn new() -> Files {
        let directory = TempDir::new().expect("a directory");
        let files = Files { directory, authority: Authority::new(), clients: Authority::new() };
        files.renew(&files.authority);
        let clients = files.options(true).client_ca.expect("a file");
        std::fs::write(clients, files.clients.certificate.pem()).expect("a file");
        files
    }

    fn options(&self, has_client_ca: bool) -> TlsOptions {
        let path = |name: &str| self.directory.path().join(name);
        let client_ca = has_client_ca.then(|| path("clients.crt"));
        TlsOptions { certificate: path("server.crt"), key: path("server.key"), client_ca, client_crl: None }
    }

    /// Writes a new certificate and its key.
    fn renew(&self, authority: &Authority) {
        let (certificate, key) = authority.sign("server");
        let options = self.options(false);
        std::fs::write(&options.certificate, certificate.pem()).expect("a file");
        std::fs::write(&options.key, key.serialize_pem()).expect("a file");
        std::fs::set_permissions(&options.key, PermissionsExt::from_mode(0o600)).expect("permissions");
    }

    async fn serve(&self, has_client_ca: bool) -> Served {
        let options = self.options(has_client_ca);
        let served = Served::start_with(|server| server.tls = Some(options)).await;
        served.execute("CREATE ROLE app LOGIN PASSWORD 'geheim'; CREATE ROLE silent LOGIN").await;
        served
    }
}

/// The configuration of a client that trusts `authority`, with a certificate.
fn client(
    authority: &Authority,
    versions: &[&'static SupportedProtocolVersion],
    certificate: Option<&(rcgen::Certificate, KeyPair)>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.der().clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
    let builder = builder.with_root_certificates(roots);
    match certificate {
        Some((certificate, key)) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let chain = vec![CertificateDer::from(certificate.der().to_vec())];
            builder.with_client_auth_cert(chain, key).expect("a certificate")
        }
        None => builder.with_no_client_auth(),
    }
}

async fn connect(served: &Served, config: ClientConfig, settings: &str) -> std::result::Result<Client, Error> {
    let port = served.address.port();
    let text = format!("host=localhost hostaddr=127.0.0.1 port={port} sslmode=require {settings}");
    let (client, connection) = tokio_postgres::connect(&text, MakeRustlsConnect::new(config)).await?;
    tokio::spawn(async {
        // Tests see the errors of their requests.
        let _ = connection.await;
    });
    Ok(client)
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_connections() -> Result {
    let files = Files::new();
    let served = files.serve(false).await;
    for versions in [&BOTH[..1], &BOTH[1..]] {
        let config = client(&files.authority, versions, None);
        let text = "user=app password=geheim channel_binding=require";
        let connected = connect(&served, config.clone(), text).await?;
        let row = connected.query_one("SELECT repeat('x', 3000000)", &[]).await?;
        assert_eq!(row.get::<_, &str>(0).len(), 3_000_000);
        let wrong = connect(&served, config, "user=app password=falsch channel_binding=require").await;
        assert_eq!(code(wrong.map(drop)), SqlState::INVALID_PASSWORD);
    }
    let config = client(&files.authority, BOTH, None);
    connect(&served, config.clone(), "user=app password=geheim channel_binding=disable").await?;
    // A client that does not know the authority ends the handshake.
    assert!(connect(&served, client(&files.clients, BOTH, None), "user=app password=geheim").await.is_err());
    // Loopback connections need no encryption.
    assert!(served.connect_with("user=app password=geheim").await.query_one("SELECT 1", &[]).await.is_ok());
    // Requests to cancel are encrypted, too.
    let connected = connect(&served, config.clone(), "user=app password=geheim").await?;
    let token = connected.cancel_token();
    let slow = "SELECT count(*) FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b";
    let cancelled = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        token.cancel_query(MakeRustlsConnect::new(config)).await
    };
    let (result, cancelled) = tokio::join!(connected.query(slow, &[]), cancelled);
    cancelled?;
    assert_eq!(code(result), SqlState::QUERY_CANCELED);
    Ok(())
}

/// Clients that begin with the handshake must negotiate the protocol.
#[tokio::test(flavor = "multi_thread")]
async fn direct_connections() -> Result {
    let files = Files::new();
    let served = files.serve(false).await;
    let direct = |protocols: &[&str]| {
        let mut config = client(&files.authority, BOTH, None);
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let connector = TlsConnector::from(Arc::new(config));
        let address = served.address;
        async move {
            let socket = tokio::net::TcpStream::connect(address).await?;
            connector.connect(ServerName::try_from("localhost").expect("a name"), socket).await
        }
    };
    let mut raw = Raw::new(direct(&["http/1.1", "postgresql"]).await?);
    // A second request for encryption is refused, and the connection goes on.
    raw.send(&[request_tls(), startup("app")].concat()).await;
    assert_eq!(raw.byte().await, Some(b'N'));
    let mechanisms = raw.authentication(10).await;
    assert_eq!(mechanisms, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
    let mut raw = Raw::new(direct(&[]).await?);
    assert_eq!(raw.failure().await, "08P01");
    assert!(direct(&["http/1.1"]).await.is_err());
    Ok(())
}

/// Bytes between the request for encryption and the handshake could be those of an attacker.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_before_the_handshake_are_refused() {
    let files = Files::new();
    let served = files.serve(false).await;
    let mut raw = Raw::connect(served.address).await;
    raw.send(&[request_tls(), startup("app")].concat()).await;
    assert_eq!(raw.failure().await, "08P01");
    // Instead of a handshake.
    let mut raw = Raw::connect(served.address).await;
    raw.send(&request_tls()).await;
    assert_eq!(raw.byte().await, Some(b'S'));
    raw.send(&startup("app")).await;
    let mut ended = Vec::new();
    // An alert of TLS, at most.
    while let Some(byte) = raw.byte().await {
        ended.push(byte);
    }
    assert!(ended.len() < 20 && !ended.contains(&b'R'), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificates() -> Result {
    let files = Files::new();
    let served = files.serve(true).await;
    let signed = |authority: &Authority, name: &str| Some(authority.sign(name));
    let config =
        |certificate: Option<(rcgen::Certificate, KeyPair)>| client(&files.authority, BOTH, certificate.as_ref());
    // Instead of a password, and in addition to one.
    connect(&served, config(signed(&files.clients, "silent")), "user=silent").await?;
    let app = config(signed(&files.clients, "app"));
    connect(&served, app.clone(), "user=app password=geheim").await?;
    let wrong = connect(&served, app.clone(), "user=app password=falsch").await;
    assert_eq!(code(wrong.map(drop)), SqlState::INVALID_PASSWORD);
    // Of another user, and of a user without a role.
    for (name, user) in
        [("app", "silent"), ("silent", "app"), ("unknown", "unknown"), ("SILENT", "silent"), ("", "silent")]
    {
        let refused =
            connect(&served, config(signed(&files.clients, name)), &format!("user={user} password=geheim")).await;
        assert_eq!(code(refused.map(drop)), SqlState::INVALID_AUTHORIZATION_SPECIFICATION, "{name} {user}");
    }
    // Of another authority, and none: the handshake fails.
    for certificate in [signed(&files.authority, "silent"), None] {
        let refused = connect(&served, config(certificate), "user=silent").await.map(drop).expect_err("an error");
        assert!(refused.code().is_none(), "{refused}");
    }
    // Without encryption.
    let mut raw = Raw::connect(served.address).await;
    raw.send(&startup("silent")).await;
    assert_eq!(raw.failure().await, "28000");
    Ok(())
}

/// Revoked certificates are refused, and all without a current list. New lists are read.
#[tokio::test(flavor = "multi_thread")]
async fn revoked_certificates() -> Result {
    let files = Files::new();
    let list = files.directory.path().join("clients.crl");
    std::fs::write(&list, files.clients.revoke(&[7], 2099))?;
    let options = TlsOptions { client_crl: Some(list.clone()), ..files.options(true) };
    let served = Served::start_with(|server| server.tls = Some(options.clone())).await;
    served.execute("CREATE ROLE silent LOGIN").await;
    let connect = async |serial: u64| {
        let certificate = files.clients.sign_with_serial("silent", Some(serial));
        connect(&served, client(&files.authority, BOTH, Some(&certificate)), "user=silent").await
    };
    assert!(connect(8).await.is_ok() && connect(7).await.is_err());
    std::fs::write(&list, files.clients.revoke(&[7, 8], 2099))?;
    served.handle.reload_tls();
    assert!(connect(9).await.is_ok() && connect(8).await.is_err());
    // A broken file changes nothing, a list that has expired refuses all.
    std::fs::write(&list, "nothing")?;
    served.handle.reload_tls();
    assert!(connect(9).await.is_ok() && connect(8).await.is_err());
    std::fs::write(&list, files.clients.revoke(&[], 2025))?;
    served.handle.reload_tls();
    assert!(connect(9).await.is_err());
    // As does a list of another authority.
    std::fs::write(&list, files.authority.revoke(&[], 2099))?;
    served.handle.reload_tls();
    assert!(connect(9).await.is_err());
    let without_ca = TlsOptions { client_ca: None, ..options };
    let options = Options { memory_bytes: Some(128 << 20), threads: Some(2), ..Options::default() };
    let server =
        ServerOptions { listen: vec![([127, 0, 0, 1], 0).into()], tls: Some(without_ca), ..ServerOptions::default() };
    assert!(matches!(Server::bind(Database::open_temporary(options)?, server).await, Err(ServerError::Tls(_))));
    Ok(())
}

/// Handshakes that fail are counted, and many of them delay later handshakes.
#[tokio::test(flavor = "multi_thread")]
async fn failed_handshakes_delay_further_ones() -> Result {
    const FREE: usize = 60;
    let files = Files::new();
    let served = files.serve(false).await;
    for _ in 0..FREE + 4 {
        let mut raw = Raw::connect(served.address).await;
        raw.send(&request_tls()).await;
        assert_eq!(raw.byte().await, Some(b'S'));
        raw.send(b"no handshake of TLS").await;
        while raw.byte().await.is_some() {}
    }
    let start = Instant::now();
    connect(&served, client(&files.authority, BOTH, None), "user=app password=geheim").await?;
    assert!(start.elapsed() > Duration::from_millis(300), "{:?}", start.elapsed());
    Ok(())
}

/// New files are used by new connections, broken ones are not.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again() -> Result {
    let files = Files::new();
    let served = files.serve(false).await;
    let login = "user=app password=geheim channel_binding=require";
    let old = connect(&served, client(&files.authority, BOTH, None), login).await?;
    let other = Authority::new();
    files.renew(&other);
    served.handle.reload_tls();
    connect(&served, client(&other, BOTH, None), login).await?;
    assert!(connect(&served, client(&files.authority, BOTH, None), login).await.is_err());
    old.query_one("SELECT 1", &[]).await?;
    std::fs::write(files.options(false).key, "broken")?;
    served.handle.reload_tls();
    connect(&served, client(&other, BOTH, None), login).await?;
    Ok(())
}

/// An address of this machine that is not a loopback one.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing: it chooses the address for a route.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_beyond_loopback() -> Result {
    let files = Files::new();
    let options = Options { memory_bytes: Some(128 << 20), threads: Some(2), ..Options::default() };
    let database = Database::open_temporary(options)?;
    let exposed = |tls: Option<TlsOptions>| ServerOptions {
        listen: vec![([0, 0, 0, 0], 0).into()],
        tls,
        ..ServerOptions::default()
    };
    let bind = async |tls: Option<TlsOptions>| Server::bind(database.clone(), exposed(tls)).await;
    assert!(matches!(bind(None).await, Err(ServerError::Unprotected(_))));
    assert!(matches!(bind(Some(files.options(false))).await, Err(ServerError::Unauthenticated(_))));
    assert!(bind(Some(files.options(true))).await.is_ok());
    database.session().execute("CREATE ROLE app LOGIN PASSWORD 'geheim'").await?;
    assert!(matches!(bind(None).await, Err(ServerError::Unprotected(_))));
    let mut served =
        Served::start_database(database.clone(), |options| *options = exposed(Some(files.options(false)))).await;
    served.address.set_ip([127, 0, 0, 1].into());
    let config = client(&files.authority, BOTH, None);
    connect(&served, config.clone(), "user=app password=geheim").await?;
    // Other machines must use TLS.
    if let Some(address) = outer_address() {
        let mut raw = Raw::connect((address, served.address.port()).into()).await;
        raw.send(&startup("app")).await;
        assert_eq!(raw.failure().await, "28000");
    }
    // Without the last role, all clients are refused.
    database.session().execute("DROP ROLE app").await?;
    let refused = connect(&served, config, "user=app password=geheim").await;
    assert_eq!(code(refused.map(drop)), SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    let mut raw = Raw::connect(served.address).await;
    raw.send(&startup("app")).await;
    assert_eq!(raw.failure().await, "28000");
    Ok(())
}
