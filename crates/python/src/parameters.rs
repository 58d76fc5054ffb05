//! Named parameters: `:name` becomes `$1`, `$2` …
//!
//! The scanner skips texts, quoted names and comments. `::` is a cast. A colon directly after a word, a digit or `]` belongs to
//! an array slice (`a[1:n]`).

/// A statement with numbered parameters.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    /// The text with `$1`, `$2` …
    pub sql: String,
    /// The names, in the order of the numbers.
    pub names: Vec<String>,
}

/// Replaces the named parameters of a statement.
pub fn named(sql: &str) -> Named {
    let bytes = sql.as_bytes();
    let (mut numbered, mut names) = (String::with_capacity(sql.len()), Vec::<String>::new());
    // The text from `copied` on is not in `numbered` yet.
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        at = match bytes[at] {
            b'\'' => text_end(bytes, at, is_escape_text(bytes, at)),
            b'"' => quoted_end(bytes, at),
            b'-' if bytes[at..].starts_with(b"--") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'$' if at == 0 || !is_word(bytes[at - 1]) => dollar_end(sql, at),
            b':' if bytes[at..].starts_with(b"::") => at + 2,
            b':' if begins_parameter(bytes, at) => {
                let end = word_end(bytes, at + 1);
                let name = &sql[at + 1..end];
                let known = names.iter().position(|known| known == name);
                let number = known.unwrap_or_else(|| {
                    names.push(name.into());
                    names.len() - 1
                });
                numbered.push_str(&sql[copied..at]);
                numbered.push_str(&format!("${}", number + 1));
                copied = end;
                end
            }
            _ => at + 1,
        };
    }
    numbered.push_str(&sql[copied..]);
    Named { sql: numbered, names }
}

/// True for bytes of words. Bytes of letters outside of ASCII are some.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn begins_parameter(bytes: &[u8], at: usize) -> bool {
    let follows = at > 0 && (is_word(bytes[at - 1]) || bytes[at - 1] == b']');
    !follows && bytes.get(at + 1).is_some_and(|&byte| is_word(byte) && !byte.is_ascii_digit())
}

fn word_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|&byte| !is_word(byte)).map_or(bytes.len(), |length| from + length)
}

/// True for the quote of `E'…'`, whose backslashes are escapes.
fn is_escape_text(bytes: &[u8], quote: usize) -> bool {
    quote > 0 && bytes[quote - 1].eq_ignore_ascii_case(&b'e') && (quote == 1 || !is_word(bytes[quote - 2]))
}

/// The end of a text that begins with a quote.
pub fn text_end(bytes: &[u8], quote: usize, has_escapes: bool) -> usize {
    let mut at = quote + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if has_escapes => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a quoted name. A doubled quote begins another one, which does not matter here.
pub fn quoted_end(bytes: &[u8], quote: usize) -> usize {
    bytes[quote + 1..].iter().position(|&byte| byte == b'"').map_or(bytes.len(), |length| quote + length + 2)
}

/// The end of a line.
pub fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| from + length)
}

/// The end of a comment, which may contain others.
pub fn comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut at, mut depth) = (from + 2, 1);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else if bytes[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// The end of a text in dollar quotes; the next byte after another dollar sign.
fn dollar_end(sql: &str, from: usize) -> usize {
    let bytes = sql.as_bytes();
    let tag = word_end(bytes, from + 1);
    if bytes.get(tag) != Some(&b'$') || bytes.get(from + 1).is_some_and(u8::is_ascii_digit) {
        return from + 1;
    }
    let quote = &sql[from..=tag];
    sql[tag + 1..].find(quote).map_or(sql.len(), |length| tag + 1 + length + quote.len())
}
