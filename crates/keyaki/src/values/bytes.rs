//! BYTEA from text.

/// Parses a text in one of PostgreSQL's formats: `\x` and hexadecimal digits; or text that stands for its bytes, in which
/// `\\` is a backslash, `\ooo` an octal byte and, as in DuckDB, `\xhh` a hexadecimal one. `None` for other backslashes.
pub(crate) fn parse(text: &str) -> Option<Vec<u8>> {
    if let Some(bytes) = text.strip_prefix("\\x").and_then(|digits| hexadecimal(digits.as_bytes())) {
        return Some(bytes);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest {
            [b'\\', after @ ..] => {
                out.push(b'\\');
                rest = after;
            }
            [b'x', high, low, after @ ..] => {
                out.extend(hexadecimal(&[*high, *low])?);
                rest = after;
            }
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => return None,
        }
    }
    Some(out)
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)).collect()
}
