//! Tokens that sqlparser 0.62 reads differently from PostgreSQL.
//!
//! | text | becomes |
//! |---|---|
//! | `trim(both FROM s)`, `trim(FROM s)`, also with `leading` and `trailing` | `trim(both ' ' FROM s)` |
//! | `a>=?` | `a >= ?` |
//! | `TABLE t` as a query | `SELECT * FROM t` |
//! | `< ALL ((SELECT …) UNION …)` | `< ALL (SELECT * FROM ((SELECT …) UNION …) AS "rows")` |
//! | `'a'` and `'b'` on two lines | `'ab'` |
//! | `types => {'a': 'DATE'}`, also `columns` and others | `types => '{''a'': ''DATE''}'` |
//! | `substring(s SIMILAR p ESCAPE e)` | `substring(s FROM p FOR e)` |
//! | `a->-1`, `a*-1` | `a-> -1`, `a* -1`: an operator ends with a sign only if it has one of the characters ``~!@#%^&\|`?`` |

use std::ops::Range;

use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan, Tokenizer, Whitespace};

use super::split::DIALECT;

/// Words that queries in parentheses follow.
const BEFORE_QUERIES: [&str; 28] = [
    "all",
    "and",
    "any",
    "array",
    "as",
    "by",
    "case",
    "copy",
    "distinct",
    "else",
    "except",
    "exists",
    "from",
    "having",
    "in",
    "intersect",
    "join",
    "lateral",
    "limit",
    "materialized",
    "not",
    "offset",
    "or",
    "some",
    "then",
    "union",
    "when",
    "where",
];
/// Words that follow a table that is a query.
const AFTER_QUERIES: [&str; 10] =
    ["except", "fetch", "intersect", "limit", "offset", "on", "order", "returning", "union", "with"];
/// Tokens in the place of a range of tokens, which may be empty.
struct Edit {
    range: Range<usize>,
    tokens: Vec<Token>,
}

/// Changes the tokens of a statement.
pub(super) fn correct(tokens: &mut Vec<TokenWithSpan>) {
    join_texts(tokens);
    similar_parts(tokens);
    let edits = edits(tokens);
    if edits.is_empty() {
        return;
    }
    let mut changed = Vec::with_capacity(tokens.len() + 8 * edits.len());
    let mut rest = std::mem::take(tokens).into_iter();
    let mut at = 0;
    for Edit { range, tokens } in edits {
        changed.extend(rest.by_ref().take(range.start - at));
        let span = rest.as_slice().first().map_or_else(Span::empty, |token| token.span);
        changed.extend(tokens.into_iter().map(|token| TokenWithSpan::new(token, span)));
        rest.by_ref().take(range.len()).for_each(drop);
        at = range.end;
    }
    changed.extend(rest);
    *tokens = changed;
}

/// The changes, in the order of their ranges.
fn edits(tokens: &[TokenWithSpan]) -> Vec<Edit> {
    let has = |words: &[&str]| tokens.iter().any(|token| is_word(&token.token, words));
    let has_trim = has(&["trim"]);
    let ends = if has(&["any", "all", "some"]) { closing(tokens) } else { Vec::new() };
    let parsed = |sql: &str| Tokenizer::new(&DIALECT, sql).tokenize().unwrap_or_default();
    let mut edits = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::CustomBinaryOperator(operator) => {
                let parts = divided(operator).into_iter();
                edits.extend(parts.map(|tokens| Edit { range: at..at + 1, tokens }));
            }
            Token::LBrace if is_value(&tokens[..at]) => {
                let end = tokens[at..].iter().position(|token| token.token == Token::RBrace);
                if let Some(end) = end.map(|len| at + len + 1) {
                    let map =
                        Token::SingleQuotedString(tokens[at..end].iter().map(|token| text(&token.token)).collect());
                    edits.push(Edit { range: at..end, tokens: vec![map] });
                }
            }
            token if is_word(token, &["table"]) && is_query(tokens, at) => {
                edits.push(Edit { range: at..at + 1, tokens: parsed("SELECT * FROM") });
            }
            token if is_word(token, &["any", "all", "some"]) => {
                if let Some(rows) = set_operation(tokens, &ends, at) {
                    edits.push(Edit { range: rows.start..rows.start, tokens: parsed("SELECT * FROM (") });
                    edits.push(Edit { range: rows.end..rows.end, tokens: parsed(") AS \"rows\"") });
                }
            }
            token if has_trim && is_word(token, &["from"]) && is_trim_without_text(&tokens[..at]) => {
                edits.push(Edit { range: at..at, tokens: vec![Token::SingleQuotedString(" ".into())] });
            }
            _ => {}
        }
    }
    edits.sort_by_key(|edit| edit.range.start);
    edits
}

/// True if the tokens end with the name of an option that is a map, and `=>` or `=`.
fn is_value(before: &[TokenWithSpan]) -> bool {
    let mut before =
        before.iter().rev().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_)));
    let is_assignment = matches!(before.next(), Some(Token::Eq | Token::RArrow | Token::Assignment));
    is_assignment && before.next().is_some_and(|token| is_word(token, &["types", "dtypes", "column_types", "columns"]))
}

/// The text of a token.
fn text(token: &Token) -> String {
    match token {
        Token::SingleQuotedString(text) => format!("'{}'", text.replace('\'', "''")),
        other => other.to_string(),
    }
}

/// True for TABLE before the name of a table where a query begins.
fn is_query(tokens: &[TokenWithSpan], at: usize) -> bool {
    let is_significant = |token: &&Token| !matches!(token, Token::Whitespace(_));
    let significant =
        |tokens| <[TokenWithSpan]>::iter(tokens).map(|token: &TokenWithSpan| &token.token).filter(is_significant);
    // `table ISNULL` is a condition. Behind other words that may follow a column, the statement continues.
    let is_name = |token: &Token| matches!(token, Token::Word(_)) && !is_word(token, &["isnull", "notnull"]);
    let mut after = significant(&tokens[at + 1..]);
    if !after.next().is_some_and(is_name) {
        return false;
    }
    let mut next = after.next();
    while next == Some(&Token::Period) && matches!(after.next(), Some(Token::Word(_))) {
        next = after.next();
    }
    if !next.is_none_or(|next| matches!(next, Token::RParen | Token::SemiColon) || is_word(next, &AFTER_QUERIES)) {
        return false;
    }
    let mut before = significant(&tokens[..at]);
    match before.next_back() {
        None | Some(Token::RParen) => true,
        Some(Token::LParen) => match before.next_back() {
            Some(word @ Token::Word(_)) => is_word(word, &BEFORE_QUERIES),
            _ => true,
        },
        Some(word) if is_word(word, &["as"]) => {
            significant(tokens).next().is_some_and(|first| is_word(first, &["create", "prepare"]))
        }
        Some(word) if is_word(word, &["union", "intersect", "except"]) => true,
        Some(word) if is_word(word, &["all", "distinct"]) => {
            before.next_back().is_some_and(|operator| is_word(operator, &["union", "intersect", "except"]))
        }
        // `INSERT INTO t TABLE s`
        Some(word @ Token::Word(_)) if !is_word(word, &["into"]) => {
            before.rev().take(3).any(|token| is_word(token, &["into"]))
        }
        Some(_) => false,
    }
}

/// The tokens in the parentheses of a quantified comparison (`< ALL (…)`) if they are a set operation that begins with
/// a parenthesis. `ends`: see [`closing`].
fn set_operation(tokens: &[TokenWithSpan], ends: &[Option<usize>], at: usize) -> Option<Range<usize>> {
    let is_blank = |at: &usize| matches!(tokens[*at].token, Token::Whitespace(_));
    let next = |at: usize| (at + 1..tokens.len()).find(|at| !is_blank(at));
    let before = (0..at).rev().find(|at| !is_blank(at))?;
    let (outer, inner) = (next(at)?, next(next(at)?)?);
    let compares = matches!(
        tokens[before].token,
        Token::Eq | Token::DoubleEq | Token::Neq | Token::Lt | Token::LtEq | Token::Gt | Token::GtEq
    );
    if !compares || tokens[outer].token != Token::LParen || tokens[inner].token != Token::LParen {
        return None;
    }
    let (end, operator) = (ends[outer]?, next(ends[inner]?)?);
    is_word(&tokens[operator].token, &["union", "intersect", "except"]).then_some(inner..end)
}

/// The closing parenthesis of each opening one; `None` for other tokens.
fn closing(tokens: &[TokenWithSpan]) -> Vec<Option<usize>> {
    let (mut ends, mut open) = (vec![None; tokens.len()], Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen => open.push(at),
            Token::RParen => open.pop().into_iter().for_each(|start: usize| ends[start] = Some(at)),
            _ => {}
        }
    }
    ends
}

/// Joins texts with only white space between them that has the end of a line.
fn join_texts(tokens: &mut Vec<TokenWithSpan>) {
    let mut at = 0;
    while at < tokens.len() {
        let Token::SingleQuotedString(text) = &tokens[at].token else {
            at += 1;
            continue;
        };
        let is_blank = |token: &&TokenWithSpan| matches!(&token.token, Token::Whitespace(space) if !matches!(space, Whitespace::MultiLineComment(_)));
        let ends_line = |token: &TokenWithSpan| {
            matches!(token.token, Token::Whitespace(Whitespace::Newline | Whitespace::SingleLineComment { .. }))
        };
        let blanks = tokens[at + 1..].iter().take_while(is_blank).count();
        let next = at + 1 + blanks;
        match tokens.get(next).map(|token| &token.token) {
            Some(Token::SingleQuotedString(more)) if tokens[at + 1..next].iter().any(ends_line) => {
                let joined = Token::SingleQuotedString(format!("{text}{more}"));
                tokens.splice(at..=next, [TokenWithSpan::new(joined, tokens[at].span)]);
            }
            _ => at = next,
        }
    }
}

/// Gives `substring(s SIMILAR p ESCAPE e)` the words that the parser knows.
fn similar_parts(tokens: &mut [TokenWithSpan]) {
    if !tokens.iter().any(|token| is_word(&token.token, &["similar"])) {
        return;
    }
    // For each open parenthesis, the state of the call of `substring` that it opens.
    #[derive(Clone, Copy, PartialEq)]
    enum Call {
        Other,
        Text,
        Pattern,
    }
    let mut open = vec![Call::Other];
    let significant: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    for (i, at) in significant.iter().copied().enumerate() {
        let is_next = |word: &str| significant.get(i + 1).is_some_and(|next| is_word(&tokens[*next].token, &[word]));
        let keyword = match (&tokens[at].token, open.last().copied()) {
            (Token::LParen, _) => {
                let is_call = i > 0 && is_word(&tokens[significant[i - 1]].token, &["substring"]);
                open.push(if is_call { Call::Text } else { Call::Other });
                continue;
            }
            (Token::RParen, _) if open.len() > 1 => {
                open.pop();
                continue;
            }
            (token, Some(Call::Text)) if is_word(token, &["similar"]) && !is_next("to") => "FROM",
            (token, Some(Call::Pattern)) if is_word(token, &["escape"]) => "FOR",
            _ => continue,
        };
        tokens[at].token = Token::make_keyword(keyword);
        if let Some(call) = open.last_mut() {
            *call = if keyword == "FROM" { Call::Pattern } else { Call::Other };
        }
    }
}

/// The operator, and the parameter and the signs behind it; `None` if it has no signs at its end, or if they belong to it.
fn divided(operator: &str) -> Option<Vec<Token>> {
    /// The operators of PostgreSQL that end with a question mark.
    const QUESTIONS: [&str; 2] = ["?", "@?"];
    if !QUESTIONS.contains(&operator)
        && let Some(before) = operator.trim_end_matches(['+', '-']).strip_suffix('?')
        && !before.is_empty()
    {
        let mut tokens = Tokenizer::new(&DIALECT, before).tokenize().ok()?;
        tokens.push(Token::Placeholder("?".into()));
        let signs = operator[before.len() + 1..].chars();
        tokens.extend(signs.map(|sign| if sign == '-' { Token::Minus } else { Token::Plus }));
        return Some(tokens);
    }
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
            ("'a'  \n 'b' -- c\n'd'", "'abd'"),
            ("substring(s similar p || (q) escape '#')", "SUBSTRING(s FROM p || (q) FOR '#')"),
            ("substring(s FROM f(a SIMILAR TO 'b' ESCAPE 'c'))", "SUBSTRING(s FROM f(a SIMILAR TO 'b' ESCAPE 'c'))"),
        ] {
            assert_eq!(parse_expr(given).unwrap().to_string(), expected);
        }
    }
}
