//! Clauses of CREATE TABLE that the parser does not read: options of LIKE and of identity columns, and names of columns before a
//! query.

use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use super::{as_token, closing, is_word, items};
use crate::{Error, Result};

/// The tokens with the options of identity columns in the order that the parser expects.
pub(super) fn with_ordered_options(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    const ORDER: [&str; 6] = ["INCREMENT", "MINVALUE", "MAXVALUE", "START", "CACHE", "CYCLE"];
    let all: Vec<&TokenWithSpan> = tokens.iter().collect();
    let mut ordered: Vec<TokenWithSpan> = Vec::with_capacity(all.len());
    let mut place = 0;
    while place < all.len() {
        ordered.push(all[place].clone());
        place += 1;
        let is_list = is_word(Some(all[place - 1]), "IDENTITY")
            && all.get(place).is_some_and(|token| token.token == Token::LParen);
        let Some(end) = closing(&all, place).filter(|_| is_list) else { continue };
        ordered.push(all[place].clone());
        let mut options: Vec<(usize, Vec<TokenWithSpan>)> = Vec::new();
        for (place, &token) in all.iter().enumerate().take(end).skip(place + 1) {
            let word = if is_word(Some(token), "NO") { place + 1 } else { place };
            let rank = ORDER.iter().position(|option| is_word(all.get(word).copied(), option));
            match (rank, options.last_mut()) {
                (Some(_), Some((_, option))) if option.len() == 1 && is_word(option.last(), "NO") => {
                    option.push(token.clone());
                }
                (Some(rank), _) => options.push((rank, vec![token.clone()])),
                (None, Some((_, option))) => option.push(token.clone()),
                // The parser reports it.
                (None, None) => options.push((0, vec![token.clone()])),
            }
        }
        options.sort_by_key(|(rank, _)| *rank);
        ordered.extend(options.into_iter().flat_map(|(_, option)| option));
        place = end;
    }
    ordered
}

/// Quotes the options of LIKE, which follow the name of the table as another part of it.
const OPTIONS_QUOTE: char = '`';

/// The tokens of a CREATE TABLE with options of LIKE; `None` for other statements.
pub(super) fn with_like(tokens: &[&TokenWithSpan]) -> Option<Vec<TokenWithSpan>> {
    let has = |place: usize, expected: &str| is_word(tokens.get(place).copied(), expected);
    let open = tokens.iter().position(|token| token.token == Token::LParen).filter(|open| has(open + 1, "LIKE"))?;
    let end = closing(tokens, open)?;
    let start = (open + 3..end).find(|&place| has(place, "INCLUDING") || has(place, "EXCLUDING"))?;
    let options: Vec<String> = tokens[start..end].iter().map(|token| token.token.to_string()).collect();
    let word = Word { value: options.join(" "), quote_style: Some(OPTIONS_QUOTE), keyword: Keyword::NoKeyword };
    let part = [Token::Period, Token::Word(word)].map(|token| TokenWithSpan::new(token, tokens[start].span));
    let parts = [&tokens[..start], &part.iter().collect::<Vec<_>>(), &tokens[end..]];
    Some(parts.concat().into_iter().cloned().collect())
}

/// The name of the table in LIKE, and the options in their order: a word, and whether it is INCLUDING.
///
/// # Errors
/// `Syntax` if they are not pairs of INCLUDING or EXCLUDING and a word.
pub(in crate::sql) fn like_options(name: &ObjectName) -> Result<(ObjectName, Vec<(String, bool)>)> {
    let mut parts = name.0.clone();
    let Some(options) =
        parts.pop_if(|part| part.as_ident().is_some_and(|ident| ident.quote_style == Some(OPTIONS_QUOTE)))
    else {
        return Ok((name.clone(), Vec::new()));
    };
    let text = options.as_ident().map(|ident| ident.value.to_ascii_uppercase()).unwrap_or_default();
    let words: Vec<&str> = text.split(' ').collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        ["INCLUDING", word] => Ok((word.to_string(), true)),
        ["EXCLUDING", word] => Ok((word.to_string(), false)),
        _ => Err(Error::syntax(format!("syntax error in the options of LIKE: {text}"))),
    });
    Ok((ObjectName(parts), pairs.collect::<Result<_>>()?))
}

/// The tokens of a CREATE TABLE AS with names of columns, or with a clause about its rows; `None` for other statements.
pub(super) fn with_query(tokens: &[&TokenWithSpan]) -> Option<Vec<TokenWithSpan>> {
    let has = |place: usize, expected: &str| is_word(tokens.get(place).copied(), expected);
    let mut depth = 0_usize;
    let start = (0..tokens.len()).find(|&place| {
        match tokens[place].token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && has(place, "AS")
    })?;
    let length = tokens.len();
    let (end, is_empty) = match length {
        3.. if has(length - 3, "WITH") && has(length - 2, "NO") && has(length - 1, "DATA") => (length - 3, true),
        2.. if has(length - 2, "WITH") && has(length - 1, "DATA") => (length - 2, false),
        _ => (length, false),
    };
    // A list of names.
    let is_name = |token: &&&TokenWithSpan| matches!(token.token, Token::Word(_));
    let list = tokens[..start].iter().position(|token| token.token == Token::LParen).filter(|&open| {
        closing(tokens, open) == Some(start - 1)
            && items(&tokens[open + 1..start - 1])
                .iter()
                .all(|item| item.len() == 1 && item.iter().all(|t| is_name(&t)))
    });
    if list.is_none() && end == length {
        return None;
    }
    let span = tokens[start].span;
    let added = |words: &[&str]| -> Vec<TokenWithSpan> {
        words.iter().map(|word| TokenWithSpan::new(as_token(word), span)).collect()
    };
    let copied = |range: std::ops::Range<usize>| tokens[range].iter().map(|&token| token.clone()).collect();
    let mut read: Vec<TokenWithSpan> = copied(0..list.unwrap_or(start));
    read.extend(added(&["AS"]));
    if list.is_some() {
        read.extend(added(&["SELECT"]));
        read.push(TokenWithSpan::new(Token::Mul, span));
        read.extend(added(&["FROM"]));
    }
    read.extend(added(&["("]));
    read.extend::<Vec<TokenWithSpan>>(copied(start + 1..end));
    read.extend(added(&[")"]));
    if let Some(open) = list {
        read.extend(added(&["AS"]));
        read.push(TokenWithSpan::new(Token::make_word("rows", Some('"')), span));
        read.extend::<Vec<TokenWithSpan>>(copied(open..start));
    }
    if is_empty {
        read.extend(added(&["LIMIT"]));
        read.push(TokenWithSpan::new(Token::Number("0".into(), false), span));
    }
    Some(read)
}
