//! What the server reads from certificates.

use ring::digest::{self, Algorithm, SHA256, SHA384, SHA512};
use x509_cert::Certificate;
use x509_cert::der::asn1::{ObjectIdentifier, PrintableStringRef, Utf8StringRef};
use x509_cert::der::{Decode, Tag, Tagged};

/// The attribute of common names.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The hash of a certificate for the channel binding `tls-server-end-point` (RFC 5929): by the hash of its signature, but
/// SHA-256 instead of MD5 and SHA-1. `None` for signatures without one hash that clients agree upon, such as Ed25519.
pub fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    let algorithm = hash_of_signature(&parsed.signature_algorithm.oid.to_string())?;
    Some(digest::digest(algorithm, certificate).as_ref().to_vec())
}

fn hash_of_signature(algorithm: &str) -> Option<&'static Algorithm> {
    match algorithm {
        // RSA with MD5, SHA-1 and SHA-256; ECDSA with SHA-1 and SHA-256.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.113549.1.1.11" => Some(&SHA256),
        "1.2.840.10045.4.1" | "1.2.840.10045.4.3.2" => Some(&SHA256),
        // RSA and ECDSA with SHA-384 and SHA-512.
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Some(&SHA384),
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Some(&SHA512),
        _ => None,
    }
}

/// The common name of the subject of a certificate. `None` if there is none, if there are several, or if it is not a text.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let subject = &certificate.tbs_certificate.subject;
    let mut names = subject.0.iter().flat_map(|part| part.0.iter()).filter(|attribute| attribute.oid == COMMON_NAME);
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    let name = match name.value.tag() {
        Tag::Utf8String => name.value.decode_as::<Utf8StringRef<'_>>().ok()?.as_str().to_string(),
        Tag::PrintableString => name.value.decode_as::<PrintableStringRef<'_>>().ok()?.as_str().to_string(),
        _ => return None,
    };
    (!name.is_empty() && !name.contains('\0')).then_some(name)
}
