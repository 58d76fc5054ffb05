//! Passwords, and their verifiers: `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`.
//!
//! A verifier does not contain the password. A server can check with it that a client knows the password, and a client
//! that the server knows the verifier (RFC 5802).

use std::fmt;

use postgres_protocol::password::scram_sha_256;

use crate::catalog::Verifier;
use crate::{Error, Result};

const SCRAM: &str = "SCRAM-SHA-256$";
/// Length of a SHA-256 hash in Base64.
const HASH_CHARS: usize = 44;

/// The text of PASSWORD: a password or a verifier.
pub(super) struct Password(String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl Password {
    /// `None` for the empty text, which is no password.
    pub fn new(text: String) -> Option<Password> {
        (!text.is_empty()).then_some(Password(text))
    }

    /// The verifier. It takes milliseconds to compute.
    ///
    /// # Errors
    /// `Unsupported` for MD5 hashes.
    pub fn verifier(&self) -> Result<Verifier> {
        let Password(text) = self;
        if is_verifier(text) {
            return Ok(Verifier(text.clone()));
        }
        let is_md5 = |hash: &str| hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.strip_prefix("md5").is_some_and(is_md5) {
            return Err(Error::Unsupported("passwords hashed with MD5 (use SCRAM-SHA-256)".into()));
        }
        Ok(Verifier(scram_sha_256(text.as_bytes())))
    }
}

/// True for a text with the form of a verifier.
fn is_verifier(text: &str) -> bool {
    let is_base64 = |text: &str| {
        let digits = text.trim_end_matches('=');
        text.len().is_multiple_of(4)
            && text.len() - digits.len() <= 2
            && !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
    };
    let is_hash =
        |text: &str| text.len() == HASH_CHARS && text.ends_with('=') && !text.ends_with("==") && is_base64(text);
    let parts = || {
        let (parameters, keys) = text.strip_prefix(SCRAM)?.split_once('$')?;
        let (iterations, salt) = parameters.split_once(':')?;
        let (stored, server) = keys.split_once(':')?;
        let iterations = iterations.bytes().all(|digit| digit.is_ascii_digit()).then(|| iterations.parse::<i32>());
        Some(iterations?.is_ok_and(|count| count > 0) && is_base64(salt) && is_hash(stored) && is_hash(server))
    };
    parts().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verifier(text: &str) -> String {
        Password::new(text.into()).unwrap().verifier().unwrap().0
    }

    #[test]
    fn passwords_become_verifiers_with_a_random_salt() {
        let (one, other) = (verifier("secret"), verifier("secret"));
        assert!(one.starts_with("SCRAM-SHA-256$4096:") && is_verifier(&one), "{one}");
        assert_ne!(one, other);
        assert_eq!(verifier(&one), one, "a verifier is stored as it is");
        assert!(!format!("{:?}", Password::new("secret".into())).contains("secret"));
        assert!(Password::new("".into()).is_none());
    }

    #[test]
    fn other_texts_are_passwords() {
        let good = verifier("x");
        for text in [
            "SCRAM-SHA-256$",
            "SCRAM-SHA-256$4096:c2FsdA==$a:b",
            &good.replace("4096", "0"),
            &good.replace("4096", "+1"),
            &good.replace(":", ""),
            &good[..good.len() - 1],
        ] {
            assert!(!is_verifier(text), "{text}");
            assert_ne!(verifier(text), text);
        }
        let md5 = Password::new(format!("md5{}", "0".repeat(32))).unwrap();
        assert!(matches!(md5.verifier(), Err(Error::Unsupported(_))));
    }
}
