//! SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677): the server's side of an exchange.
//!
//! ```text
//! client                                          server
//! n,,n=name,r=CLIENT                    ->
//!                                       <-        r=CLIENTSERVER,s=SALT,i=ITERATIONS
//! c=biws,r=CLIENTSERVER,p=PROOF         ->
//!                                       <-        v=SIGNATURE
//! ```
//!
//! The first field is the channel binding: `n` if the client does not support it, `y` if it supports it but the server has not
//! offered it, and `p=tls-server-end-point` with the mechanism PLUS. The client repeats it in `c`, with the hash of the
//! certificate that it has seen, and its proof covers both. So a server in the middle, which has another certificate, and the
//! removal of PLUS from the offer are detected.
//!
//! The name is that of the startup message. As in PostgreSQL, the one in the exchange has no meaning.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};
use subtle::{Choice, ConstantTimeEq};

use super::verifier::{KEY_BYTES, Verifier};
use crate::failure::{Failure, Result};

/// The name of the mechanism.
pub const SCRAM: &str = "SCRAM-SHA-256";
/// The name of the mechanism with channel binding.
pub const SCRAM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// The type of channel binding: the hash of the server's certificate.
const BINDING: &str = "tls-server-end-point";
/// Random bytes of a nonce.
const NONCE_BYTES: usize = 18;

/// The mechanism that a client has selected, and what was offered to it.
#[derive(Debug, Clone, Copy)]
pub enum Mechanism<'a> {
    /// Without channel binding, which was offered if `is_plus_offered`.
    Plain { is_plus_offered: bool },
    /// With channel binding to the certificate that has this hash.
    Plus { end_point: &'a [u8] },
}

/// An exchange after the first message of the client.
pub struct Exchange {
    verifier: Verifier,
    /// The content of `c`.
    binding: Vec<u8>,
    /// The nonces of both sides.
    nonce: String,
    client_first_bare: String,
    server_first: String,
}

/// A random nonce.
///
/// # Errors
/// If the system has no random numbers.
pub fn nonce() -> Result<String> {
    let mut bytes = [0; NONCE_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Failure::fatal("XX000", "could not generate random nonce"))?;
    Ok(STANDARD.encode(bytes))
}

impl Exchange {
    /// Reads the first message of a client.
    ///
    /// # Errors
    /// Fatal errors for malformed messages (08P01), extensions (0A000), and for signs of an attack on the negotiation (28000).
    pub fn begin(mechanism: Mechanism<'_>, message: &[u8], verifier: Verifier, nonce: &str) -> Result<Exchange> {
        let message = text(message)?;
        let mut fields = message.splitn(3, ',');
        let (Some(flag), Some(identity), Some(bare)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(malformed("a field is missing"));
        };
        check_flag(flag, mechanism)?;
        if identity.starts_with("a=") {
            return Err(Failure::fatal("0A000", "client uses authorization identity, but it is not supported"));
        }
        if !identity.is_empty() {
            return Err(malformed("unexpected attribute in the header"));
        }
        if bare.starts_with("m=") {
            return Err(Failure::fatal("0A000", "client requires an unsupported SCRAM extension"));
        }
        let mut attributes = bare.split(',');
        let name = attribute(attributes.next(), "n=")?;
        if !is_name(name) {
            return Err(malformed("invalid user name"));
        }
        let client_nonce = attribute(attributes.next(), "r=")?;
        if client_nonce.is_empty() || !client_nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(malformed("invalid nonce"));
        }
        check_extensions(attributes)?;
        let mut binding = format!("{flag},{identity},").into_bytes();
        if let Mechanism::Plus { end_point } = mechanism {
            binding.extend(end_point);
        }
        let nonce = format!("{client_nonce}{nonce}");
        let server_first = format!("r={nonce},s={},i={}", verifier.salt, verifier.iterations);
        Ok(Exchange { verifier, binding, nonce, client_first_bare: bare.into(), server_first })
    }

    /// The answer to the first message.
    pub fn server_first(&self) -> &str {
        &self.server_first
    }

    /// Reads the last message of the client. Returns the answer; `None` if the proof is wrong.
    ///
    /// # Errors
    /// Fatal errors for malformed messages (08P01), and for another certificate than the server's (28000).
    pub fn finish(self, message: &[u8]) -> Result<Option<String>> {
        let message = text(message)?;
        let Some((without_proof, proof)) = message.split_once(",p=") else {
            return Err(malformed("the proof is missing"));
        };
        let mut attributes = without_proof.split(',');
        let binding = attribute(attributes.next(), "c=")?;
        if STANDARD.decode(binding).ok().as_ref() != Some(&self.binding) {
            return Err(Failure::fatal("28000", "SCRAM channel binding check failed"));
        }
        if attribute(attributes.next(), "r=")? != self.nonce {
            return Err(malformed("the nonce does not match"));
        }
        check_extensions(attributes)?;
        let proof = STANDARD.decode(proof).ok().and_then(|proof| <[u8; KEY_BYTES]>::try_from(proof).ok());
        let proof = proof.ok_or_else(|| malformed("invalid proof"))?;
        let Exchange { verifier, client_first_bare, server_first, .. } = self;
        let exchanged = format!("{client_first_bare},{server_first},{without_proof}");
        let mut client_key = proof;
        let signature = sign(&verifier.stored_key, &exchanged);
        client_key.iter_mut().zip(signature.as_ref()).for_each(|(byte, other)| *byte ^= other);
        let stored_key = digest::digest(&digest::SHA256, &client_key);
        let is_right = stored_key.as_ref().ct_eq(&verifier.stored_key) & !Choice::from(u8::from(verifier.is_mock));
        let signature = sign(&verifier.server_key, &exchanged);
        Ok(bool::from(is_right).then(|| format!("v={}", STANDARD.encode(signature))))
    }
}

fn sign(key: &[u8; KEY_BYTES], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn malformed(problem: &str) -> Failure {
    Failure::fatal("08P01", format!("malformed SCRAM message: {problem}"))
}

/// A message as text.
fn text(message: &[u8]) -> Result<&str> {
    let message = str::from_utf8(message).map_err(|_| malformed("invalid byte sequence for encoding \"UTF8\""))?;
    if message.contains('\0') { Err(malformed("the message contains a zero byte")) } else { Ok(message) }
}

/// The value of an attribute.
fn attribute<'a>(field: Option<&'a str>, name: &str) -> Result<&'a str> {
    field.and_then(|field| field.strip_prefix(name)).ok_or_else(|| malformed(&format!("expected attribute \"{name}\"")))
}

/// In names, `=2C` stands for a comma and `=3D` for an equals sign.
fn is_name(name: &str) -> bool {
    name.split('=').skip(1).all(|rest| rest.starts_with("2C") || rest.starts_with("3D"))
}

/// Optional extensions have no meaning. Each is a letter with a value.
fn check_extensions<'a>(mut fields: impl Iterator<Item = &'a str>) -> Result<()> {
    let is_extension = |field: &str| matches!(field.as_bytes(), [letter, b'=', _, ..] if letter.is_ascii_alphabetic());
    if fields.all(is_extension) { Ok(()) } else { Err(malformed("invalid extension")) }
}

/// Checks the channel binding that a client uses against the one that was negotiated.
fn check_flag(flag: &str, mechanism: Mechanism<'_>) -> Result<()> {
    match (mechanism, flag) {
        (Mechanism::Plain { .. }, "n") | (Mechanism::Plain { is_plus_offered: false }, "y") => Ok(()),
        (Mechanism::Plain { is_plus_offered: true }, "y") => Err(Failure::fatal(
            "28000",
            "SCRAM channel binding negotiation error: the client supports channel binding but did not see that the server does",
        )),
        (Mechanism::Plus { .. }, "n" | "y") => {
            Err(malformed("the client selected SCRAM-SHA-256-PLUS without channel binding"))
        }
        (mechanism, flag) => match (mechanism, flag.strip_prefix("p=")) {
            (Mechanism::Plus { .. }, Some(BINDING)) => Ok(()),
            (Mechanism::Plus { .. }, Some(_)) => Err(Failure::fatal("08P01", "unsupported SCRAM channel-binding type")),
            (Mechanism::Plain { .. }, Some(_)) => {
                Err(malformed("the client selected SCRAM-SHA-256 with channel binding"))
            }
            (_, None) => Err(malformed("unexpected channel-binding flag")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password `pencil` with the salt of RFC 7677.
    const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const FINAL: &str =
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const PLAIN: Mechanism<'_> = Mechanism::Plain { is_plus_offered: false };
    const OFFERED: Mechanism<'_> = Mechanism::Plain { is_plus_offered: true };
    const PLUS: Mechanism<'_> = Mechanism::Plus { end_point: b"hash of a certificate" };

    fn begin(mechanism: Mechanism<'_>, first: &str) -> Result<Exchange> {
        Exchange::begin(mechanism, first.as_bytes(), Verifier::parse(PENCIL).unwrap(), NONCE)
    }

    /// The last message of a client that has the password.
    fn client_final(exchange: &Exchange, binding: &[u8]) -> String {
        let mut salted = [0; KEY_BYTES];
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let iterations = std::num::NonZeroU32::new(4096).unwrap();
        ring::pbkdf2::derive(ring::pbkdf2::PBKDF2_HMAC_SHA256, iterations, &salt, b"pencil", &mut salted);
        let client_key = sign(&salted, "Client Key");
        let stored_key = digest::digest(&digest::SHA256, client_key.as_ref());
        let without_proof = format!("c={},r={}", STANDARD.encode(binding), exchange.nonce);
        let exchanged = format!("{},{},{without_proof}", exchange.client_first_bare, exchange.server_first);
        let signature = sign(stored_key.as_ref().try_into().unwrap(), &exchanged);
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        format!("{without_proof},p={}", STANDARD.encode(proof))
    }

    fn code(result: Result<impl Sized>) -> String {
        result.err().map(|failure| failure.code().to_string()).unwrap_or_default()
    }

    #[test]
    fn exchange_of_rfc_7677() {
        let exchange = begin(PLAIN, FIRST).unwrap();
        let expected = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        assert_eq!(exchange.server_first(), expected);
        assert_eq!(client_final(&exchange, b"n,,"), FINAL);
        let signature = exchange.finish(FINAL.as_bytes()).unwrap();
        assert_eq!(signature.as_deref(), Some("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
    }

    #[test]
    fn wrong_proofs_and_mocks() {
        let wrong = FINAL.replace("p=dHzb", "p=dHzc");
        assert!(begin(PLAIN, FIRST).unwrap().finish(wrong.as_bytes()).unwrap().is_none());
        let mut verifier = Verifier::parse(PENCIL).unwrap();
        verifier.is_mock = true;
        let exchange = Exchange::begin(PLAIN, FIRST.as_bytes(), verifier, NONCE).unwrap();
        assert!(exchange.finish(FINAL.as_bytes()).unwrap().is_none());
    }

    #[test]
    fn channel_binding() {
        let first = FIRST.replace("n,,", "p=tls-server-end-point,,");
        let (header, hash) = (b"p=tls-server-end-point,,".as_slice(), b"hash of a certificate".as_slice());
        let last = |binding: &[u8]| {
            let exchange = begin(PLUS, &first).unwrap();
            let message = client_final(&exchange, binding);
            exchange.finish(message.as_bytes())
        };
        assert!(last(&[header, hash].concat()).unwrap().is_some());
        // Another certificate, none, and another header.
        assert_eq!(code(last(&[header, b"hash of another one"].concat())), "28000");
        assert_eq!(code(last(header)), "28000");
        assert_eq!(code(last(&[b"y,,", hash].concat())), "28000");
        assert_eq!(code(begin(PLUS, FIRST)), "08P01");
        assert_eq!(code(begin(PLUS, &first.replace("end-point", "unique"))), "08P01");
        assert_eq!(code(begin(PLAIN, &first)), "08P01");
    }

    #[test]
    fn downgrades_are_detected() {
        let first = FIRST.replace("n,,", "y,,");
        assert_eq!(code(begin(OFFERED, &first)), "28000");
        assert!(begin(OFFERED, FIRST).is_ok());
        let exchange = begin(PLAIN, &first).unwrap();
        let message = client_final(&exchange, b"y,,");
        assert!(exchange.finish(message.as_bytes()).unwrap().is_some());
        // The proof covers the flag: a change of `y` to `n` on the way is detected.
        let exchange = begin(PLAIN, FIRST).unwrap();
        let message = client_final(&exchange, b"y,,");
        assert_eq!(code(exchange.finish(message.as_bytes())), "28000");
    }

    #[test]
    fn first_messages() {
        for accepted in ["n,,n=,r=a", "n,,n=*,r=a,x=1", "n,,n=a=2Cb=3D,r=!~", "n,,n=ß,r=a"] {
            assert!(begin(PLAIN, accepted).is_ok(), "{accepted}");
        }
        for (first, expected) in [
            ("", "08P01"),
            ("n", "08P01"),
            ("n,", "08P01"),
            ("n,,", "08P01"),
            ("n,,n=user", "08P01"),
            ("n,,n=user,r=", "08P01"),
            ("n,,n=user,r=a b", "08P01"),
            ("n,,n=user,r=ß", "08P01"),
            ("n,,n=us\0er,r=a", "08P01"),
            ("n,,n=a=b,r=a", "08P01"),
            ("n,,n=a=,r=a", "08P01"),
            ("n,,r=a,n=user", "08P01"),
            ("n,,n=user,r=a,,", "08P01"),
            ("n,,n=user,r=a,1=b", "08P01"),
            ("n,x,n=user,r=a", "08P01"),
            ("x,,n=user,r=a", "08P01"),
            ("p,,n=user,r=a", "08P01"),
            ("n,a=admin,n=user,r=a", "0A000"),
            ("n,,m=x,n=user,r=a", "0A000"),
        ] {
            assert_eq!(code(begin(PLAIN, first)), expected, "{first}");
        }
        let binary = Exchange::begin(PLAIN, b"n,,n=\xFF,r=a", Verifier::parse(PENCIL).unwrap(), NONCE);
        assert_eq!(code(binary), "08P01");
    }

    #[test]
    fn last_messages() {
        let own = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        for (from, to, expected) in [
            (FINAL, "", "08P01"),
            ("c=biws,", "", "08P01"),
            ("c=biws", "c=eSws", "28000"),
            ("c=biws", "c=biw", "28000"),
            ("c=biws", "c=", "28000"),
            (own, "rOprNGfwEbeRWgbNEkqO", "08P01"),
            (own, "", "08P01"),
            (",p=", ",q=", "08P01"),
            (",p=", ",p=,p=", "08P01"),
            (",p=", ",p=a,p=", "08P01"),
            ("dVQ=", "dVQ", "08P01"),
            ("dVQ=", "dVQ=,x=1", "08P01"),
            ("dVQ=", "dVQ=\0", "08P01"),
            ("dHzbZapW", "", "08P01"),
        ] {
            let message = FINAL.replace(from, to);
            assert!(message != FINAL);
            let exchange = begin(PLAIN, FIRST).unwrap();
            let finished = exchange.finish(message.as_bytes());
            assert_eq!(code(finished), expected, "{message}");
        }
        // A recorded message does not help: the nonce of the server is another one.
        let exchange =
            Exchange::begin(PLAIN, FIRST.as_bytes(), Verifier::parse(PENCIL).unwrap(), &nonce().unwrap()).unwrap();
        assert_eq!(code(exchange.finish(FINAL.as_bytes())), "08P01");
    }

    #[test]
    fn nonces_differ() {
        let (one, two) = (nonce().unwrap(), nonce().unwrap());
        assert!(one != two && one.len() == 24 && one.bytes().all(|byte| byte.is_ascii_graphic() && byte != b','));
    }
}
