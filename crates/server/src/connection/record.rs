//! Records of executed requests: figures, and the log of slow statements.
//!
//! The log has an event of the target `keyaki_server::statements` for each request that took longer than the limit.

use std::time::Instant;

use super::client::Client;
use super::statements::first_word;
use crate::failure::Result;

/// Longer statements are cut.
const STATEMENT_BYTES_MAX: usize = 8 << 10;

/// Records an executed request. `text` is the text of its statements.
pub fn executed(client: &mut Client, text: &str, started: Instant, result: &Result<()>) {
    let elapsed = started.elapsed();
    let sqlstate = result.as_ref().err().map(|failure| failure.code());
    let metrics = &client.shared.metrics;
    metrics.executed(first_word(text).as_str(), elapsed, sqlstate);
    let traffic = client.wire.take_traffic();
    metrics.transferred(traffic.received, traffic.sent);
    if client.shared.options.log_statements_slower_than.is_none_or(|limit| elapsed < limit) {
        return;
    }
    tracing::info!(
        target: "keyaki_server::statements",
        duration_ms = elapsed.as_micros() as f64 / 1e3,
        process = client.process(),
        role = client.role.as_deref().unwrap_or_default(),
        application = client.application,
        sqlstate = sqlstate.unwrap_or("00000"),
        statement = shown(text),
        "slow statement",
    );
}

/// The text in the log: passwords are not shown.
fn shown(text: &str) -> &str {
    const WORD: &[u8] = b"password";
    if text.as_bytes().windows(WORD.len()).any(|word| word.eq_ignore_ascii_case(WORD)) {
        return "(not shown: it may contain a password)";
    }
    &text[..text.floor_char_boundary(STATEMENT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(shown("SELECT 1"), "SELECT 1");
        for text in
            ["ALTER ROLE app PASSWORD 'geheim'", "create role a login passWord 'geheim'", "SELECT 'geheim' AS password"]
        {
            assert!(!shown(text).contains("geheim"), "{text}");
        }
        assert_eq!(shown(&"ß".repeat(STATEMENT_BYTES_MAX)).len(), STATEMENT_BYTES_MAX);
    }
}
