//! A lexer of SQL text for colours and completion. It never fails, and its tokens cover the whole text.

use super::words;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Keyword,
    Identifier,
    /// `'text'`, `E'text'`, `$$text$$`, `$tag$text$tag$`, also unterminated.
    String,
    /// `"name"`, also unterminated.
    Quoted,
    Number,
    Comment,
    Space,
    Symbol,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    /// Offset of the first byte in the whole text.
    pub offset: usize,
}

pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    while offset < text.len() {
        let rest = &text[offset..];
        let (kind, len) = token(rest);
        tokens.push(Token { kind, text: &rest[..len], offset });
        offset += len;
    }
    tokens
}

/// Kind and length in bytes of the token at the beginning of `rest`, which is not empty.
fn token(rest: &str) -> (Kind, usize) {
    let mut chars = rest.chars();
    let first = chars.next().unwrap_or(' ');
    match first {
        c if c.is_whitespace() => (Kind::Space, run(rest, char::is_whitespace)),
        '-' if rest.starts_with("--") => (Kind::Comment, rest.find('\n').unwrap_or(rest.len())),
        '/' if rest.starts_with("/*") => (Kind::Comment, block_comment(rest)),
        '\'' => (Kind::String, quoted(rest, '\'', false)),
        'e' | 'E' if chars.as_str().starts_with('\'') => (Kind::String, 1 + quoted(&rest[1..], '\'', true)),
        '"' => (Kind::Quoted, quoted(rest, '"', false)),
        '$' if dollar_tag(rest).is_some() => {
            let tag = dollar_tag(rest).unwrap_or_default();
            (Kind::String, rest[tag.len()..].find(tag).map_or(rest.len(), |end| end + 2 * tag.len()))
        }
        c if c.is_ascii_digit() => (Kind::Number, number(rest)),
        '.' if chars.as_str().starts_with(|c: char| c.is_ascii_digit()) => (Kind::Number, number(rest)),
        c if is_word(c) => {
            let len = run(rest, is_word);
            (if words::is_keyword(&rest[..len]) { Kind::Keyword } else { Kind::Identifier }, len)
        }
        c => (Kind::Symbol, c.len_utf8()),
    }
}

/// The tag at the beginning of a string in dollars: `$$`, `$name$`.
fn dollar_tag(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let len = run(name, is_word);
    let is_tag = name[len..].starts_with('$') && !name.starts_with(|c: char| c.is_ascii_digit());
    is_tag.then(|| &text[..len + 2])
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn run(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

/// Length in bytes of a quoted token, which may contain doubled quotes and, with `backslash`, escapes.
fn quoted(text: &str, quote: char, backslash: bool) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if backslash && c == '\\' {
            chars.next();
        } else if c == quote && chars.next_if(|&(_, next)| next == quote).is_none() {
            return at + 1;
        }
    }
    text.len()
}

/// Length in bytes of a block comment. Block comments nest, as in PostgreSQL.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn number(text: &str) -> usize {
    let mut len = run(text, |c| c.is_ascii_digit() || c == '.' || c == '_');
    if text[len..].starts_with(['e', 'E']) {
        let sign = usize::from(text[len + 1..].starts_with(['+', '-']));
        let digits = run(&text[len + 1 + sign..], |c| c.is_ascii_digit());
        if digits > 0 {
            len += 1 + sign + digits;
        }
    }
    len
}

/// `text` with terminal colours, as the continuation of the text before it.
pub fn coloured_after(before: &str, text: &str) -> String {
    let whole = format!("{before}{text}");
    let mut coloured = String::with_capacity(text.len() * 2);
    for mut token in tokens(&whole) {
        let Some(end) = (token.offset + token.text.len()).checked_sub(before.len()).filter(|&end| end > 0) else {
            continue;
        };
        token.text = &text[token.offset.saturating_sub(before.len())..end];
        let colour = match token.kind {
            Kind::Keyword => "\x1b[1;34m",
            Kind::String => "\x1b[32m",
            Kind::Quoted => "\x1b[36m",
            Kind::Number => "\x1b[35m",
            Kind::Comment => "\x1b[2m",
            Kind::Identifier | Kind::Space | Kind::Symbol => "",
        };
        coloured.push_str(colour);
        coloured.push_str(token.text);
        if !colour.is_empty() {
            coloured.push_str("\x1b[0m");
        }
    }
    coloured
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        tokens(text).into_iter().filter(|t| t.kind != Kind::Space).map(|t| (t.kind, t.text)).collect()
    }

    #[test]
    fn statement() {
        assert_eq!(
            kinds("select \"a b\", 'it''s', 1.5e-3, t.x -- end"),
            [
                (Kind::Keyword, "select"),
                (Kind::Quoted, "\"a b\""),
                (Kind::Symbol, ","),
                (Kind::String, "'it''s'"),
                (Kind::Symbol, ","),
                (Kind::Number, "1.5e-3"),
                (Kind::Symbol, ","),
                (Kind::Identifier, "t"),
                (Kind::Symbol, "."),
                (Kind::Identifier, "x"),
                (Kind::Comment, "-- end"),
            ]
        );
    }

    #[test]
    fn quotes_and_comments() {
        assert_eq!(kinds(r"E'a\'b' 'c'"), [(Kind::String, r"E'a\'b'"), (Kind::String, "'c'")]);
        assert_eq!(kinds("$$a'b$$x"), [(Kind::String, "$$a'b$$"), (Kind::Identifier, "x")]);
        assert_eq!(kinds("$q$a$$b$q$x"), [(Kind::String, "$q$a$$b$q$"), (Kind::Identifier, "x")]);
        assert_eq!(kinds("$1$"), [(Kind::Symbol, "$"), (Kind::Number, "1"), (Kind::Symbol, "$")]);
        assert_eq!(kinds("/* a /* b */ c */ d"), [(Kind::Comment, "/* a /* b */ c */"), (Kind::Identifier, "d")]);
        assert_eq!(kinds("'open"), [(Kind::String, "'open")]);
        assert_eq!(kinds("/* open é"), [(Kind::Comment, "/* open é")]);
    }

    #[test]
    fn tokens_cover_any_text() {
        for text in ["", "é'", "1e", "1e+", "$", "\"", "E'\\", "--", "a\u{301}b", "*/ /*", "🦀.5"] {
            assert_eq!(tokens(text).iter().map(|token| token.text).collect::<String>(), text);
            for before in ["", "'", "SELECT $q$", "/* "] {
                let coloured = coloured_after(before, text);
                assert!(coloured.replace("\x1b[0m", "").len() >= text.len());
            }
        }
        assert_eq!(coloured_after("SELECT 'a\n", "b' 1"), "\x1b[32mb'\x1b[0m \x1b[35m1\x1b[0m");
    }
}
