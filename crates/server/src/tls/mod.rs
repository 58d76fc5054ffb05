//! Encryption: the configuration of TLS, which follows its files.
//!
//! TLS 1.2 and 1.3, by rustls. Sessions are not resumed: each connection verifies the certificate of its client anew.
//!
//! | module | contents |
//! |---|---|
//! | [`files`] | certificates and keys in files |
//! | [`certificate`] | the hash of a certificate for channel binding, and its common name |

pub mod certificate;
mod files;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use files::Stamp;
pub use files::TlsError;

/// The protocol of direct TLS connections, and the only one that is accepted in others.
const ALPN: &[u8] = b"postgresql";
/// Minimum time between two checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The files of TLS, in the PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// The certificate of the server, and those of the authorities between it and the clients' roots.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities that sign the certificates of clients. With them, every client must present a certificate.
    pub client_ca: Option<PathBuf>,
    /// The revocation lists of these authorities, one of each. Clients whose certificates, or those of intermediate authorities,
    /// are revoked, or have no current list, are refused.
    pub client_crl: Option<PathBuf>,
}

/// The current configuration.
pub struct Tls {
    options: TlsOptions,
    current: RwLock<Arc<Loaded>>,
    checked: Mutex<Checked>,
}

/// When the files were checked, and what they were.
struct Checked {
    at: Instant,
    stamps: Vec<Option<Stamp>>,
}

/// A configuration that was read.
pub struct Loaded {
    acceptor: TlsAcceptor,
    end_point: Option<Vec<u8>>,
}

/// An encrypted connection, as its authentication sees it.
#[derive(Debug)]
pub struct Encryption {
    /// The hash of the server's certificate; `None` if none is defined for its algorithm.
    pub end_point: Option<Vec<u8>>,
    /// The common name of the client's certificate, if it has exactly one.
    pub common_name: Option<String>,
    /// The client has negotiated the protocol by ALPN.
    pub has_alpn: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read, is malformed, or if others can read the key.
    pub fn new(options: TlsOptions) -> Result<Tls, TlsError> {
        let stamps = stamps(&options);
        let loaded = load(&options)?;
        let checked = Mutex::new(Checked { at: Instant::now(), stamps });
        Ok(Tls { options, current: RwLock::new(Arc::new(loaded)), checked })
    }

    /// True if clients must present a certificate.
    pub fn has_client_ca(&self) -> bool {
        self.options.client_ca.is_some()
    }

    /// Reads the files again. After an error, which is logged, the configuration before remains.
    pub fn reload(&self) {
        let mut checked = self.checked.lock();
        self.read(&mut checked);
    }

    /// Reads the files again if they have changed.
    fn follow_files(&self, now: Instant) {
        // While another connection checks them, the present configuration is used.
        let Some(mut checked) = self.checked.try_lock() else { return };
        if now.saturating_duration_since(checked.at) >= CHECK_INTERVAL {
            checked.at = now;
            if stamps(&self.options) != checked.stamps {
                self.read(&mut checked);
            }
        }
    }

    fn read(&self, checked: &mut Checked) {
        // Before the contents: a later change is noticed in the next check.
        checked.stamps = stamps(&self.options);
        match load(&self.options) {
            Ok(loaded) => {
                *self.current.write() = Arc::new(loaded);
                tracing::info!("read the TLS certificate and key again");
            }
            Err(error) => tracing::error!(%error, "could not read the TLS files again: the earlier ones remain in use"),
        }
    }

    /// Performs the handshake of a connection.
    ///
    /// # Errors
    /// Errors of the connection and the handshake.
    pub async fn accept(&self, socket: TcpStream) -> io::Result<(TlsStream<TcpStream>, Encryption)> {
        self.follow_files(Instant::now());
        let loaded = self.current.read().clone();
        let stream = loaded.acceptor.accept(socket).await?;
        let (_, connection) = stream.get_ref();
        let client = connection.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
        let encryption = Encryption {
            end_point: loaded.end_point.clone(),
            common_name: client.and_then(|client| certificate::common_name(client)),
            has_alpn: connection.alpn_protocol() == Some(ALPN),
        };
        Ok((stream, encryption))
    }
}

fn stamps(options: &TlsOptions) -> Vec<Option<Stamp>> {
    let others = [options.client_ca.as_ref(), options.client_crl.as_ref()];
    let paths = [Some(&options.certificate), Some(&options.key)].into_iter().chain(others);
    paths.flatten().map(|path| files::stamp(path)).collect()
}

fn load(options: &TlsOptions) -> Result<Loaded, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let certificates = files::certificates(&options.certificate)?;
    let end_point = certificates.first().and_then(|certificate| certificate::end_point(certificate));
    let key = files::key(&options.key)?;
    let invalid = |path: &PathBuf, error: &dyn std::fmt::Display| TlsError::invalid(path, error);
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| invalid(&options.certificate, &error))?;
    let builder = match (&options.client_ca, &options.client_crl) {
        (Some(path), lists) => {
            let roots = Arc::new(files::authorities(path)?);
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            if let Some(lists) = lists {
                // An outdated list could lack a certificate that was revoked since.
                verifier = verifier.with_crls(files::revocation_lists(lists)?).enforce_revocation_expiration();
            }
            let problem = |error: VerifierBuilderError| match (&error, lists) {
                (VerifierBuilderError::InvalidCrl(_), Some(lists)) => invalid(lists, &error),
                _ => invalid(path, &error),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(problem)?)
        }
        (None, Some(lists)) => {
            return Err(TlsError::invalid(lists, "revocation lists need the authorities of clients (--tls-client-ca)"));
        }
        (None, None) => builder.with_no_client_auth(),
    };
    // Also compares the key with the certificate.
    let config = builder.with_single_cert(certificates, key);
    let mut config = config.map_err(|error| invalid(&options.certificate, &error))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Loaded { acceptor: TlsAcceptor::from(Arc::new(config)), end_point })
}

#[cfg(test)]
mod tests;
