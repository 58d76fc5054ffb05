//! Locking clauses in the form that the parser reads.

use datafusion::sql::sqlparser::ast::Ident;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Quotes the first words of a mode: `` FOR UPDATE OF `NO KEY`.t `` stands for `FOR NO KEY UPDATE OF t`. No name in PostgreSQL's
/// dialect has this quote.
const MODE_QUOTE: char = '`';

/// The words of a mode that an identifier stands for.
pub(super) fn mode_words(ident: &Ident) -> Option<&str> {
    (ident.quote_style == Some(MODE_QUOTE)).then_some(&*ident.value)
}

/// A clause in the tokens of a statement.
struct Clause {
    /// The place behind it.
    end: usize,
    /// FOR and UPDATE or SHARE.
    mode: [usize; 2],
    /// NO KEY or KEY.
    words: Option<&'static str>,
    /// The places of the tokens of each name.
    names: Vec<std::ops::Range<usize>>,
    /// The places of NOWAIT, or of SKIP LOCKED.
    wait: std::ops::Range<usize>,
}

/// The tokens of a statement with each of its locking clauses in the form that the parser reads; `None` if they have it:
///
/// | given | read |
/// |---|---|
/// | `FOR NO KEY UPDATE`, `FOR KEY SHARE OF t` | ``FOR UPDATE OF `NO KEY` ``, ``FOR SHARE OF `KEY`.t`` |
/// | `FOR UPDATE OF a, b NOWAIT` | `FOR UPDATE OF a NOWAIT FOR UPDATE OF b NOWAIT` |
/// | `FOR UPDATE LIMIT 1` | `LIMIT 1 FOR UPDATE` |
pub(in crate::sql) fn in_clauses(tokens: &[TokenWithSpan]) -> Option<Vec<TokenWithSpan>> {
    let is_for = |token: &TokenWithSpan| matches!(&token.token, Token::Word(word) if word.keyword == Keyword::FOR);
    if !tokens.iter().any(is_for) {
        return None;
    }
    let tokens: Vec<&TokenWithSpan> =
        tokens.iter().filter(|token| !matches!(token.token, Token::Whitespace(_))).collect();
    let (mut read, mut is_changed, mut place) = (Vec::with_capacity(tokens.len()), false, 0);
    while place < tokens.len() {
        let mut clauses = Vec::new();
        while let Some(clause) = Clause::at(&tokens, place) {
            place = clause.end;
            is_changed |= clause.words.is_some() || clause.names.len() > 1;
            clauses.push(clause);
        }
        if clauses.is_empty() {
            read.push(TokenWithSpan::clone(tokens[place]));
            place += 1;
            continue;
        }
        let end = end_of_limit(&tokens, place);
        is_changed |= end > place;
        read.extend(tokens[place..end].iter().copied().cloned());
        clauses.iter().for_each(|clause| clause.write(&tokens, &mut read));
        place = end;
    }
    is_changed.then_some(read)
}

impl Clause {
    fn at(tokens: &[&TokenWithSpan], place: usize) -> Option<Clause> {
        let has = |place: usize, words: &[&str]| (0..words.len()).all(|i| is_word(tokens, place + i, words[i]));
        let (words, mode) = if has(place, &["FOR", "UPDATE"]) || has(place, &["FOR", "SHARE"]) {
            (None, place + 1)
        } else if has(place, &["FOR", "NO", "KEY", "UPDATE"]) {
            (Some("NO KEY"), place + 3)
        } else if has(place, &["FOR", "KEY", "SHARE"]) {
            (Some("KEY"), place + 2)
        } else {
            return None;
        };
        let (mut end, mut names) = (mode + 1, Vec::new());
        if has(end, &["OF"]) {
            loop {
                let start = end + 1;
                // The parser reports that a name is missing.
                tokens.get(start)?;
                end = start + 1;
                while tokens.get(end).is_some_and(|token| token.token == Token::Period) {
                    end += 2;
                }
                names.push(start..end.min(tokens.len()));
                if tokens.get(end).is_none_or(|token| token.token != Token::Comma) {
                    break;
                }
            }
            end = end.min(tokens.len());
        }
        let wait = match (has(end, &["NOWAIT"]), has(end, &["SKIP", "LOCKED"])) {
            (true, _) => end..end + 1,
            (_, true) => end..end + 2,
            _ => end..end,
        };
        Some(Clause { end: wait.end, mode: [place, mode], words, names, wait })
    }

    fn write(&self, tokens: &[&TokenWithSpan], read: &mut Vec<TokenWithSpan>) {
        let first = tokens[self.mode[0]];
        let mut names: Vec<&[&TokenWithSpan]> = self.names.iter().map(|name| &tokens[name.clone()]).collect();
        if names.is_empty() {
            names.push(&[]);
        }
        for name in names {
            read.extend(self.mode.iter().map(|place| TokenWithSpan::clone(tokens[*place])));
            let mut of = Vec::new();
            if let Some(words) = self.words {
                of.push(Token::make_word(words, Some(MODE_QUOTE)));
                if !name.is_empty() {
                    of.push(Token::Period);
                }
            }
            of.extend(name.iter().map(|token| token.token.clone()));
            if !of.is_empty() {
                of.insert(0, Token::make_word("OF", None));
            }
            read.extend(of.into_iter().map(|token| TokenWithSpan::new(token, first.span)));
            read.extend(tokens[self.wait.clone()].iter().copied().cloned());
        }
    }
}

/// The end of LIMIT, OFFSET and FETCH at a place.
fn end_of_limit(tokens: &[&TokenWithSpan], start: usize) -> usize {
    const FIRST: [&str; 3] = ["LIMIT", "OFFSET", "FETCH"];
    const BEHIND: [&str; 6] = ["FOR", "UNION", "INTERSECT", "EXCEPT", "RETURNING", "ON"];
    if !FIRST.iter().any(|word| is_word(tokens, start, word)) {
        return start;
    }
    let (mut end, mut depth) = (start, 0_usize);
    while let Some(token) = tokens.get(end) {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 0 => break,
            Token::RParen => depth -= 1,
            Token::SemiColon => break,
            _ if depth == 0 && BEHIND.iter().any(|word| is_word(tokens, end, word)) => break,
            _ => {}
        }
        end += 1;
    }
    end
}

fn is_word(tokens: &[&TokenWithSpan], place: usize, expected: &str) -> bool {
    match tokens.get(place).map(|token| &token.token) {
        Some(Token::Word(word)) => word.quote_style.is_none() && word.value.eq_ignore_ascii_case(expected),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::split;

    fn read(sql: &str) -> Option<String> {
        let tokens = in_clauses(&split::single(sql).unwrap().tokens)?;
        Some(split::parser(tokens).parse_statement().unwrap().to_string())
    }

    #[test]
    fn clauses_have_the_form_that_the_parser_reads() {
        for (given, expected) in [
            ("SELECT * FROM t FOR NO KEY UPDATE", "SELECT * FROM t FOR UPDATE OF `NO KEY`"),
            ("SELECT * FROM t FOR KEY SHARE OF t NOWAIT", "SELECT * FROM t FOR SHARE OF `KEY`.t NOWAIT"),
            (
                "SELECT * FROM a, b FOR UPDATE OF a, \"B\" SKIP LOCKED FOR SHARE",
                "SELECT * FROM a, b FOR UPDATE OF a SKIP LOCKED FOR UPDATE OF \"B\" SKIP LOCKED FOR SHARE",
            ),
            (
                "SELECT * FROM (SELECT * FROM t FOR UPDATE LIMIT (1 + 2) OFFSET 3) u WHERE x = 1",
                "SELECT * FROM (SELECT * FROM t LIMIT (1 + 2) OFFSET 3 FOR UPDATE) u WHERE x = 1",
            ),
        ] {
            assert_eq!(read(given).as_deref(), Some(expected));
        }
        for plain in
            ["SELECT 1", "SELECT * FROM t FOR UPDATE", "SELECT * FROM t LIMIT 1 FOR SHARE OF t NOWAIT FOR UPDATE"]
        {
            assert_eq!(read(plain), None, "{plain}");
        }
        for invalid in ["SELECT * FROM t FOR UPDATE OF", "SELECT * FROM t FOR KEY SHARE OF a,"] {
            let tokens = split::single(invalid).unwrap().tokens;
            let parsed = split::parser(in_clauses(&tokens).unwrap_or(tokens)).parse_statement();
            assert!(parsed.is_err(), "{invalid}");
        }
    }
}
