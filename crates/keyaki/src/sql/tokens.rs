//! Tokens that sqlparser 0.62 reads differently from PostgreSQL.
//!
//! | text | becomes |
//! |---|---|
//! | `trim(both FROM s)`, `trim(FROM s)`, also with `leading` and `trailing` | `trim(both ' ' FROM s)` |
//! | `TABLE t` as a query: at the beginning, or after AS | `SELECT * FROM t` |
//! | `a->-1`, `a*-1` | `a-> -1`, `a* -1`: an operator ends with a sign only if it has one of the characters ``~!@#%^&\|`?`` |

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Whitespace};

use super::split::DIALECT;

/// Changes the tokens of a statement.
pub(super) fn correct(tokens: &mut Vec<TokenWithSpan>) {
    let has_trim = tokens.iter().any(|token| is_word(&token.token, &["trim"]));
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at].token {
            Token::CustomBinaryOperator(operator) => {
                if let Some(parts) = divided(operator) {
                    let span = tokens[at].span;
                    let count = parts.len();
                    tokens.splice(at..=at, parts.into_iter().map(|token| TokenWithSpan::new(token, span)));
                    at += count - 1;
                }
            }
            token if is_word(token, &["table"]) && is_query_begun(&tokens[..at]) => {
                let span = tokens[at].span;
                let words = ["SELECT", "FROM"].map(|word| Token::make_keyword(word));
                let [select, from] = words;
                let blank = || Token::Whitespace(Whitespace::Space);
                let query = [select, blank(), Token::Mul, blank(), from].map(|token| TokenWithSpan::new(token, span));
                tokens.splice(at..=at, query);
                at += 4;
            }
            token if has_trim && is_word(token, &["from"]) && is_trim_without_text(&tokens[..at]) => {
                let blank = Token::SingleQuotedString(" ".into());
                tokens.insert(at, TokenWithSpan::new(blank, tokens[at].span));
                at += 1;
            }
            _ => {}
        }
        at += 1;
    }
}

/// True at the beginning of a statement or behind AS.
fn is_query_begun(before: &[TokenWithSpan]) -> bool {
    let last = before.iter().rev().map(|token| &token.token).find(|token| !matches!(token, Token::Whitespace(_)));
    last.is_none_or(|last| is_word(last, &["as"]))
}

/// The operator and the signs behind it; `None` if it has no signs at its end, or if they belong to it.
fn divided(operator: &str) -> Option<Vec<Token>> {
    let trimmed = operator.trim_end_matches(['+', '-']);
    let start = trimmed.len().max(1);
    if start == operator.len() || operator.contains(['~', '!', '@', '#', '%', '^', '&', '|', '`', '?']) {
        return None;
    }
    let mut tokens = Tokenizer::new(&DIALECT, &operator[..start]).tokenize().ok()?;
    tokens.extend(operator[start..].chars().map(|sign| if sign == '-' { Token::Minus } else { Token::Plus }));
    Some(tokens)
}

/// True if the tokens end with `trim(`, and perhaps the ends that are trimmed.
fn is_trim_without_text(before: &[TokenWithSpan]) -> bool {
    let mut before = before.iter().rev().map(|token| &token.token);
    let mut next = || before.find(|token| !matches!(token, Token::Whitespace(_)));
    let mut last = next();
    if last.is_some_and(|token| is_word(token, &["both", "leading", "trailing"])) {
        last = next();
    }
    last == Some(&Token::LParen) && next().is_some_and(|token| is_word(token, &["trim"]))
}

fn is_word(token: &Token, words: &[&str]) -> bool {
    match token {
        Token::Word(word) if word.quote_style.is_none() => {
            words.iter().any(|known| word.value.eq_ignore_ascii_case(known))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::sql::parse_expr;

    #[test]
    fn tokens_are_corrected() {
        for (given, expected) in [
            ("trim(both from s)", "TRIM(BOTH ' ' FROM s)"),
            ("trim( LEADING FROM s || trim(from t))", "TRIM(LEADING ' ' FROM s || TRIM(' ' FROM t))"),
            ("trim(trailing 'x' from s)", "TRIM(TRAILING 'x' FROM s)"),
            ("d->-1", "d -> -1"),
            ("d->>-1", "d ->> -1"),
            ("a*-1 = -b", "a * -1 = -b"),
            ("a+-b", "a + -b"),
        ] {
            assert_eq!(parse_expr(given).unwrap().to_string(), expected);
        }
    }
}
