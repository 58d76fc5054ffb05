//! Verifiers of passwords: what the database stores instead of them.
//!
//! ```text
//! SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey        salt and keys in base64
//! ```
//!
//! `StoredKey` verifies the proof of a client. It does not suffice to make one, unless the client's own key is observed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// Length of the keys.
pub const KEY_BYTES: usize = 32;
/// The number of iterations of verifiers for names without one: PostgreSQL's default, with which Keyaki makes verifiers, too.
const MOCK_ITERATIONS: u32 = 4096;
/// The length of the salt of such verifiers.
const MOCK_SALT_BYTES: usize = 16;

/// The verifier of a password. Secret: it has no `Debug`.
pub struct Verifier {
    pub iterations: u32,
    /// In base64.
    pub salt: String,
    pub stored_key: [u8; KEY_BYTES],
    pub server_key: [u8; KEY_BYTES],
    /// No proof is right.
    pub is_mock: bool,
}

impl Verifier {
    /// Reads a stored verifier. `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Verifier> {
        let (iterations_and_salt, keys) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
        let (iterations, salt) = iterations_and_salt.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let key = |text: &str| <[u8; KEY_BYTES]>::try_from(STANDARD.decode(text).ok()?).ok();
        if STANDARD.decode(salt).ok()?.is_empty() || !iterations.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Verifier {
            iterations: iterations.parse().ok().filter(|iterations| *iterations > 0)?,
            salt: salt.into(),
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
            is_mock: false,
        })
    }

    /// A verifier for a name that has none. It depends on the name and the key of the server only: clients cannot tell names
    /// without verifiers from wrong passwords, not even by several attempts.
    pub fn mock(key: &hmac::Key, name: &str) -> Verifier {
        let derive = |what: &str| {
            let mut context = hmac::Context::with_key(key);
            context.update(what.as_bytes());
            context.update(name.as_bytes());
            let mut derived = [0; KEY_BYTES];
            derived.copy_from_slice(context.sign().as_ref());
            derived
        };
        Verifier {
            iterations: MOCK_ITERATIONS,
            salt: STANDARD.encode(&derive("salt:")[..MOCK_SALT_BYTES]),
            stored_key: derive("stored key:"),
            server_key: derive("server key:"),
            is_mock: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password `pencil` with the salt of RFC 7677.
    const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn verifiers_are_read() {
        let verifier = Verifier::parse(PENCIL).unwrap();
        assert_eq!((verifier.iterations, verifier.salt.as_str()), (4096, "W22ZaJ0SNY7soEsUEjb6gQ=="));
        assert!(verifier.stored_key.starts_with(&[0x58, 0x6e, 0x5d]) && !verifier.is_mock);
    }

    #[test]
    fn malformed_verifiers_are_refused() {
        assert!(Verifier::parse("").is_none() && Verifier::parse("md5d41d8cd98f00b204e9800998ecf8427e").is_none());
        for (from, to) in [
            ("SHA-256$", "SHA-512$"),
            ("$4096", "$0"),
            ("$4096", "$+4096"),
            ("$4096", "$"),
            ("$4096", "$4294967296"),
            ("gQ==", "gQ="),
            ("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
            ("T4qY=", "T4qY"),
            ("WG5d8oPm", ""),
            ("wfPLwcE6", ""),
            ("2dU=", "2dU=:"),
        ] {
            let wrong = PENCIL.replace(from, to);
            assert!(wrong != PENCIL && Verifier::parse(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn mocks_depend_on_the_name_and_the_key() {
        let keys = [[1; 32], [2; 32]].map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key));
        let mock = |key: usize, name: &str| Verifier::mock(&keys[key], name);
        assert_eq!(mock(0, "a").salt, mock(0, "a").salt);
        assert!(mock(0, "a").salt != mock(0, "b").salt && mock(0, "a").salt != mock(1, "a").salt);
        assert!(mock(0, "a").is_mock && mock(0, "a").stored_key != mock(0, "a").server_key);
        assert_eq!(STANDARD.decode(mock(0, "a").salt).unwrap().len(), MOCK_SALT_BYTES);
    }
}
