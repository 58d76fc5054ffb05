//! Encryption of a connection, with the verification that `sslmode` demands.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use keyaki_server::tls_server_end_point;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::{Address, SslMode};
use super::error::{Error, Result};

/// The protocol that direct TLS connections must negotiate, and others may.
const ALPN: &[u8] = b"postgresql";

/// An encrypted stream, and the hash of the server's certificate for the binding of the authentication to it.
pub struct Encrypted {
    pub stream: TlsStream<TcpStream>,
    pub end_point: Option<Vec<u8>>,
}

/// Performs the handshake, and verifies the server as the address demands.
///
/// # Errors
/// If a file cannot be used, the handshake fails, or the certificate is not accepted.
pub async fn encrypt(address: &Address, stream: TcpStream) -> Result<Encrypted> {
    let failed = |error: &dyn std::fmt::Display| Error::Tls(error.to_string());
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Verifier::new(address, provider.clone())?);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&address.certificate, &address.key) {
        (Some(certificate), Some(key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| failed(&error))?,
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    let name = ServerName::try_from(address.host.clone()).map_err(|error| failed(&error))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| failed(&error))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|certificates| certificates.first());
    let end_point = certificate.and_then(|certificate| tls_server_end_point(certificate));
    Ok(Encrypted { stream, end_point })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::File { path: path.into(), problem: error.to_string() })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let invalid = |problem: &dyn std::fmt::Display| Error::File { path: path.into(), problem: problem.to_string() };
    let content = read(path)?;
    let certificates: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    match certificates.map_err(|error| invalid(&error))? {
        certificates if certificates.is_empty() => Err(invalid(&"no certificate in the PEM format found")),
        certificates => Ok(certificates),
    }
}

/// A private key that only the user can read; one of root may also be readable by a group.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let invalid = |problem: &dyn std::fmt::Display| Error::File { path: path.into(), problem: problem.to_string() };
    let mut file = File::open(path).map_err(|error| invalid(&error))?;
    let metadata = file.metadata().map_err(|error| invalid(&error))?;
    if !metadata.is_file() {
        return Err(invalid(&"it is not a regular file"));
    }
    let forbidden = if metadata.uid() == 0 { 0o027 } else { 0o077 };
    if metadata.mode() & forbidden != 0 {
        return Err(invalid(
            &"private key file has group or world access; permissions should be u=rw (0600) or less if it belongs to the \
              current user, or u=rw,g=r (0640) or less if it belongs to root",
        ));
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(|error| invalid(&error))?;
    PrivateKeyDer::from_pem_slice(&content).map_err(|error| invalid(&error))
}

/// The file of the authorities that the system trusts: the first one of the usual places.
fn system_roots() -> Result<&'static Path> {
    const PLACES: [&str; 5] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
        "/usr/local/share/certs/ca-root-nss.crt",
    ];
    PLACES.iter().map(Path::new).find(|path| path.exists()).ok_or_else(|| {
        Error::Usage(
            "sslrootcert=system: the system has no file of trusted authorities (set sslrootcert to a file)".into(),
        )
    })
}

/// Accepts the certificates that the address permits.
#[derive(Debug)]
struct Verifier {
    /// `None` accepts every certificate.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    verifies_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(address: &Address, provider: Arc<CryptoProvider>) -> Result<Verifier> {
        let is_required = matches!(address.ssl_mode, SslMode::VerifyCa | SslMode::VerifyFull);
        let system = match address.has_system_roots() {
            true => Some(system_roots()?),
            false => None,
        };
        let path = system.or(address.root_certificates.as_deref());
        let authorities = match path.filter(|_| is_required || address.ssl_mode == SslMode::Require) {
            Some(path) => {
                let invalid =
                    |problem: &dyn std::fmt::Display| Error::File { path: path.into(), problem: problem.to_string() };
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| invalid(&error))?;
                }
                let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
                Some(verifier.build().map_err(|error| invalid(&error))?)
            }
            None if is_required => {
                return Err(Error::Usage(
                    "sslmode=verify-ca and verify-full need the certificates of authorities (set sslrootcert, or create \
                     ~/.postgresql/root.crt)"
                        .into(),
                ));
            }
            None => None,
        };
        Ok(Verifier { authorities, verifies_name: address.ssl_mode == SslMode::VerifyFull, provider })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        match authorities.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The chain is verified before the name.
            Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.verifies_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_that_others_can_read_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "no key").unwrap();
        for (mode, is_refused) in [(0o600, false), (0o400, false), (0o644, true), (0o604, true), (0o660, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let problem = private_key(&path).unwrap_err().to_string();
            assert_eq!(problem.contains("has group or world access"), is_refused, "{mode:o}: {problem}");
        }
        assert!(private_key(directory.path()).unwrap_err().to_string().contains("not a regular file"));
    }
}
