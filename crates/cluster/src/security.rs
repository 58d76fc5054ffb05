//! The authentication of coordinators and workers: a token that all have, and certificates.

use std::fmt;

use keyaki::{Error, Result};
use subtle::ConstantTimeEq;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// The metadata of requests that has the token.
const TOKEN: &str = "authorization";

/// How the machines of a cluster recognise each other.
#[derive(Clone, Default)]
pub struct Security {
    /// A secret that all have; `None` to accept every coordinator. Without [`Security::tls`], it is sent in plain text.
    pub token: Option<String>,
    /// Certificates for mutual TLS; `None` for connections in plain text.
    pub tls: Option<Tls>,
}

/// The certificates of a machine in PEM format. It accepts the certificates that its authority has signed.
#[derive(Clone)]
pub struct Tls {
    /// The certificate of this machine.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The certificate of the authority.
    pub authority: Vec<u8>,
}

/// Without secrets.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (has_token, has_tls) = (self.token.is_some(), self.tls.is_some());
        f.debug_struct("Security").field("has_token", &has_token).field("has_tls", &has_tls).finish()
    }
}

/// Without its contents.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Security {
    /// The metadata of requests; `None` without a token.
    ///
    /// # Errors
    /// `InvalidParameter` for a token with other characters than printable ASCII characters.
    pub(crate) fn metadata(&self) -> Result<Option<MetadataValue<Ascii>>> {
        let Some(token) = &self.token else { return Ok(None) };
        let value = MetadataValue::try_from(format!("Bearer {token}"));
        let value = value.map_err(|_| Error::InvalidParameter {
            name: "token".into(),
            value: "the given one".into(),
            expected: "printable ASCII characters".into(),
        });
        let mut value = value?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// True if the metadata of a request have the token. The time does not depend on where a wrong one differs.
    pub(crate) fn admits(&self, metadata: &MetadataMap) -> bool {
        let Some(token) = &self.token else { return true };
        let given = metadata.get(TOKEN).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(token.as_bytes())))
    }

    /// The name of the metadata with the token.
    pub(crate) const fn metadata_name() -> &'static str {
        TOKEN
    }

    /// The scheme of the addresses of workers.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

impl Tls {
    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }

    pub(crate) fn of_server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.identity()).client_ca_root(Certificate::from_pem(&self.authority))
    }

    pub(crate) fn of_client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().identity(self.identity()).ca_certificate(Certificate::from_pem(&self.authority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared() {
        let with = |token: &str| Security { token: Some(token.into()), tls: None };
        let mut metadata = MetadataMap::new();
        assert!(Security::default().admits(&metadata));
        assert!(!with("secret").admits(&metadata));
        metadata.insert(TOKEN, with("secret").metadata().unwrap().unwrap());
        assert!(with("secret").admits(&metadata));
        assert!(!with("secre").admits(&metadata));
        assert!(!with("").admits(&metadata));
        assert!(with("ü\n").metadata().is_err());
    }
}
