use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SignatureAlgorithm};
use tempfile::TempDir;

use super::*;

fn certificate(algorithm: &'static SignatureAlgorithm, names: &[(DnType, &str)]) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for (kind, name) in names {
        params.distinguished_name.push(kind.clone(), *name);
    }
    (params.self_signed(&key).unwrap(), key)
}

#[test]
fn hashes_of_certificates() {
    for (algorithm, hash) in [
        (&rcgen::PKCS_ECDSA_P256_SHA256, &::ring::digest::SHA256),
        (&rcgen::PKCS_ECDSA_P384_SHA384, &::ring::digest::SHA384),
    ] {
        let (certificate, _) = certificate(algorithm, &[]);
        let expected = ::ring::digest::digest(hash, certificate.der());
        assert_eq!(certificate::end_point(certificate.der()).as_deref(), Some(expected.as_ref()));
    }
    let (certificate, _) = certificate(&rcgen::PKCS_ED25519, &[]);
    assert_eq!(certificate::end_point(certificate.der()), None);
    assert_eq!(certificate::end_point(b"no certificate"), None);
}

#[test]
fn common_names() {
    let name =
        |names: &[(DnType, &str)]| certificate::common_name(certificate(&rcgen::PKCS_ECDSA_P256_SHA256, names).0.der());
    let organization = (DnType::OrganizationName, "shop");
    assert_eq!(name(&[(DnType::CommonName, "app"), organization.clone()]).as_deref(), Some("app"));
    assert_eq!(name(&[organization]), None);
    assert_eq!(name(&[(DnType::CommonName, "app\0root")]), None);
    assert_eq!(name(&[(DnType::CommonName, "")]), None);
    assert_eq!(certificate::common_name(b"\x30\x03\x02\x01\x01"), None);
}

struct Files {
    directory: TempDir,
    options: TlsOptions,
}

impl Files {
    fn new() -> Files {
        let directory = TempDir::new().unwrap();
        let path = |name: &str| directory.path().join(name);
        let options =
            TlsOptions { certificate: path("server.crt"), key: path("server.key"), client_ca: None, client_crl: None };
        let files = Files { directory, options };
        files.renew();
        files
    }

    /// Writes a new certificate and its key. Returns the hash of the certificate.
    fn renew(&self) -> Option<Vec<u8>> {
        let (certificate, key) = certificate(&rcgen::PKCS_ECDSA_P256_SHA256, &[]);
        std::fs::write(&self.options.certificate, certificate.pem()).unwrap();
        std::fs::write(&self.options.key, key.serialize_pem()).unwrap();
        self.protect(0o600);
        certificate::end_point(certificate.der())
    }

    fn protect(&self, mode: u32) {
        std::fs::set_permissions(&self.options.key, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn problem(options: &TlsOptions) -> String {
    Tls::new(options.clone()).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn files_that_cannot_be_used() {
    let files = Files::new();
    assert_eq!(problem(&files.options), "");
    files.protect(0o644);
    assert!(problem(&files.options).contains("0600"), "{}", problem(&files.options));
    files.protect(0o600);
    let (other, _) = certificate(&rcgen::PKCS_ECDSA_P256_SHA256, &[]);
    std::fs::write(&files.options.certificate, other.pem()).unwrap();
    assert!(problem(&files.options).contains("server.crt"), "{}", problem(&files.options));
    std::fs::write(&files.options.certificate, "nothing").unwrap();
    assert!(problem(&files.options).contains("no certificate in the PEM format found"));
    files.renew();
    std::fs::write(&files.options.key, "nothing").unwrap();
    assert!(problem(&files.options).contains("server.key"));
    let with = |change: &dyn Fn(&mut TlsOptions)| {
        let mut options = files.options.clone();
        change(&mut options);
        problem(&options)
    };
    files.renew();
    assert!(with(&|options| options.key = "/nowhere".into()).contains("could not read \"/nowhere\""));
    assert!(with(&|options| options.certificate = files.directory.path().into()).contains("not a regular file"));
    assert!(with(&|options| options.client_ca = Some(files.options.key.clone())).contains("no certificate"));
    assert_eq!(with(&|options| options.client_ca = Some(files.options.certificate.clone())), "");
    let crl = Some(files.options.certificate.clone());
    assert!(with(&|options| options.client_crl = crl.clone()).contains("--tls-client-ca"));
    let both = with(&|options| (options.client_ca, options.client_crl) = (crl.clone(), crl.clone()));
    assert!(both.contains("no revocation list"), "{both}");
}

#[test]
fn files_are_read_again() {
    let files = Files::new();
    let tls = Tls::new(files.options.clone()).unwrap();
    let current = || tls.current.read().end_point.clone();
    let first = current();
    let later = |intervals: u32| Instant::now() + CHECK_INTERVAL * intervals;
    let second = files.renew();
    // Not before the interval has passed.
    tls.follow_files(Instant::now());
    assert_eq!(current(), first);
    tls.follow_files(later(1));
    assert!(second.is_some() && second != first);
    assert_eq!(current(), second);
    // A broken file changes nothing until it is repaired.
    std::fs::write(&files.options.key, "nothing").unwrap();
    tls.reload();
    assert_eq!(current(), second);
    let third = files.renew();
    tls.follow_files(later(3));
    assert_eq!(current(), third);
    let fourth = files.renew();
    tls.reload();
    assert_eq!(current(), fourth);
}
