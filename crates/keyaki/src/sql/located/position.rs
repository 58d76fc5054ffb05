//! The token that an error is about.
//!
//! An error has a name in the form of the catalog. The search compares it with the words of the statement. A word in
//! front of a parenthesis is a function, one behind FROM a relation, one behind AS an alias. The first word whose
//! surroundings fit best is the position.

use std::ops::Range;

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::{Error, ObjectKind, Position};

/// Words in front of the names of relations.
const BEFORE_RELATIONS: [Keyword; 22] = [
    Keyword::ANALYZE,
    Keyword::COPY,
    Keyword::DELETE,
    Keyword::DESCRIBE,
    Keyword::EXISTS,
    Keyword::FROM,
    Keyword::INDEX,
    Keyword::INTO,
    Keyword::JOIN,
    Keyword::LATERAL,
    Keyword::OF,
    Keyword::ON,
    Keyword::ONLY,
    Keyword::REFERENCES,
    Keyword::SCHEMA,
    Keyword::SEQUENCE,
    Keyword::TABLE,
    Keyword::TRUNCATE,
    Keyword::UPDATE,
    Keyword::USING,
    Keyword::VACUUM,
    Keyword::VIEW,
];
/// Words in front of the names of relations, but never of columns.
const NEVER_BEFORE_COLUMNS: [Keyword; 5] =
    [Keyword::FROM, Keyword::INTO, Keyword::JOIN, Keyword::TABLE, Keyword::UPDATE];
/// Functions with other names in their errors.
const RENAMED: [(&str, &str); 4] =
    [("btrim", "trim"), ("substr", "substring"), ("date_part", "extract"), ("strpos", "position")];
/// Aggregate functions that beginners use in WHERE.
const AGGREGATES: [&str; 5] = ["avg", "count", "max", "min", "sum"];

/// The position of the part of a statement that an error is about; `None` if it cannot be found.
pub(super) fn find(tokens: &[TokenWithSpan], error: &Error) -> Option<Position> {
    let words = Words(significant(tokens).collect());
    let location = match error {
        Error::Syntax { message, .. } if message.contains("at end of input") => words.0.last()?.span.end,
        error => words.0.get(words.of_error(error)?)?.span.start,
    };
    (location.line > 0 && location.column > 0).then_some(Position { line: location.line, column: location.column })
}

/// The position of an unexpected token. The parser reports that of the next one for some tokens that it has read.
pub(super) fn of_unexpected(tokens: &[TokenWithSpan], message: &str, position: Position) -> Position {
    let found = message.split_once("at or near \"").and_then(|(_, rest)| rest.split_once('"'));
    let Some((found, _)) = found else { return position };
    let start = |token: &TokenWithSpan| Position { line: token.span.start.line, column: token.span.start.column };
    let is_before = |token: &&TokenWithSpan| start(token) < position;
    let is_there = significant(tokens).any(|token| start(token) == position && token.token.to_string() == found);
    let before = significant(tokens).take_while(is_before).last().filter(|token| token.token.to_string() == found);
    before.filter(|_| !is_there).map_or(position, start)
}

/// The tokens without white space and comments.
pub(super) fn significant(tokens: &[TokenWithSpan]) -> impl Iterator<Item = &TokenWithSpan> {
    tokens.iter().filter(|token| !matches!(token.token, Token::Whitespace(_)))
}

/// The tokens of a statement without white space.
struct Words<'a>(Vec<&'a TokenWithSpan>);

impl Words<'_> {
    fn of_error(&self, error: &Error) -> Option<usize> {
        match error {
            Error::NotFound { kind, name } => self.object(*kind, name).or_else(|| self.text(name)),
            Error::WrongObjectType { name, .. } => self.relation(name),
            Error::AlreadyExists { name, .. } | Error::ReservedName { name, .. } => self.relation(name),
            Error::UndefinedColumn { column, .. } | Error::ColumnExists { column, .. } => self.column(column),
            Error::AmbiguousColumn(column) => self.column(column),
            Error::MissingFromEntry(table) | Error::AmbiguousTable(table) => self.qualifier(table),
            Error::UndefinedConstraint { constraint, .. } => self.any(constraint),
            Error::DuplicateColumn(name) | Error::DuplicateAlias(name) => self.again(name),
            Error::UndefinedFunction { signature } => match signature.strip_prefix("operator ") {
                Some(operator) => self.operator(operator),
                None => self.function(signature.strip_prefix("function ").unwrap_or(signature)),
            },
            Error::InvalidText { value, .. } | Error::OutOfRange { value: Some(value), .. } => self.text(value),
            Error::StringTooLong { value, .. } => self.text(value),
            Error::Unsupported(what) => self.any(what.strip_prefix("type ")?.split(['(', ' ', '[']).next()?),
            Error::Grouping(message) => match message.strip_prefix("column \"") {
                Some(rest) => self.column(rest.split('"').next()?),
                None => self.aggregate_in_where().filter(|_| message.contains("WHERE")),
            },
            Error::InvalidColumnReference(message) => self.number(message.split(" position ").nth(1)?),
            Error::DatatypeMismatch(message) => {
                self.after_unique(message.strip_prefix("argument of ")?.split(' ').next()?)
            }
            _ => None,
        }
    }

    fn token(&self, at: usize) -> Option<&Token> {
        self.0.get(at).map(|token| &token.token)
    }

    /// The token before another one.
    fn before(&self, at: usize) -> Option<&Token> {
        self.token(at.checked_sub(1)?)
    }

    /// The name that a word is as an identifier.
    fn name(&self, at: usize) -> Option<String> {
        match self.token(at)? {
            Token::Word(word) if word.quote_style.is_some() => Some(word.value.clone()),
            Token::Word(word) => Some(word.value.to_ascii_lowercase()),
            _ => None,
        }
    }

    fn is_keyword_before(&self, at: usize, keywords: &[Keyword]) -> bool {
        matches!(self.before(at), Some(Token::Word(word)) if keywords.contains(&word.keyword))
    }

    /// The places of a name of one part or several ones, as words with points between them.
    fn places(&self, parts: &[&str]) -> Vec<Range<usize>> {
        let len = 2 * parts.len() - 1;
        let is_part = |at: usize, part: &str| self.name(at).is_some_and(|name| name == part);
        let starts = (0..self.0.len()).filter(|start| {
            let points = (1..parts.len()).all(|i| self.token(start + 2 * i - 1) == Some(&Token::Period));
            points && parts.iter().enumerate().all(|(i, part)| is_part(start + 2 * i, part))
        });
        starts.map(|start| start..start + len).collect()
    }

    /// The place of a name that fits best, with the smallest number. The name may have points, or stand in the
    /// statement without its qualifiers.
    fn best(&self, name: &str, fit: impl Fn(&Range<usize>) -> Option<u8>) -> Option<usize> {
        let parts: Vec<&str> = name.split('.').collect();
        let forms = [&[name][..], &parts, &parts[parts.len() - 1..]];
        forms.into_iter().find_map(|parts| {
            let fitting = self.places(parts).into_iter().filter_map(|place| Some((fit(&place)?, place.start)));
            fitting.min().map(|(_, start)| start)
        })
    }

    /// The start of a name with its qualifiers.
    fn qualified(&self, mut at: usize) -> usize {
        while at >= 2 && self.before(at) == Some(&Token::Period) && self.name(at - 2).is_some() {
            at -= 2;
        }
        at
    }

    fn object(&self, kind: ObjectKind, name: &str) -> Option<usize> {
        match kind {
            ObjectKind::Relation | ObjectKind::Table | ObjectKind::View | ObjectKind::Sequence => self.relation(name),
            ObjectKind::Index | ObjectKind::Schema => self.relation(name).or_else(|| self.qualifier(name)),
            _ => self.any(name),
        }
    }

    fn relation(&self, name: &str) -> Option<usize> {
        let fit = |place: &Range<usize>| {
            if self.token(place.end) == Some(&Token::Period) {
                return None;
            }
            let start = self.qualified(place.start);
            let is_comma = self.before(start) == Some(&Token::Comma);
            Some(if self.is_keyword_before(start, &BEFORE_RELATIONS) { 0 } else { 2 - u8::from(is_comma) })
        };
        self.best(name, fit).map(|start| self.qualified(start))
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.best(name, |place| {
            let is_other = matches!(self.token(place.end), Some(Token::Period | Token::LParen))
                || self.before(place.start) == Some(&Token::Period)
                || self.is_keyword_before(place.start, &NEVER_BEFORE_COLUMNS);
            (!is_other).then(|| u8::from(self.is_keyword_before(place.start, &[Keyword::AS])))
        })
    }

    /// A table or schema in front of a name.
    fn qualifier(&self, name: &str) -> Option<usize> {
        self.best(name, |place| Some(u8::from(self.token(place.end) != Some(&Token::Period))))
    }

    fn function(&self, signature: &str) -> Option<usize> {
        let name = signature.split('(').next().unwrap_or(signature);
        let call = |name: &str| self.best(name, |place| (self.token(place.end) == Some(&Token::LParen)).then_some(0));
        let other = RENAMED.iter().find(|(renamed, _)| *renamed == name).map(|(_, other)| *other);
        let start = call(name).or_else(|| call(other?)).or_else(|| self.any(name));
        start.map(|start| self.qualified(start))
    }

    fn any(&self, name: &str) -> Option<usize> {
        let lower = name.to_lowercase();
        self.best(name, |_| Some(0)).or_else(|| self.best(&lower, |_| Some(0)))
    }

    /// The second use of a name, other than as a qualifier.
    fn again(&self, name: &str) -> Option<usize> {
        let places = self.places(&[name]).into_iter();
        places
            .filter(|place| self.token(place.end) != Some(&Token::Period))
            .nth(1)
            .map(|place| self.qualified(place.start))
    }

    /// The only literal with a text.
    fn text(&self, text: &str) -> Option<usize> {
        self.unique(|token| match token {
            Token::SingleQuotedString(value) => value == text,
            Token::Number(value, _) => value == text,
            _ => false,
        })
    }

    /// The only token for which the condition is true.
    fn unique(&self, condition: impl Fn(&Token) -> bool) -> Option<usize> {
        let mut found = (0..self.0.len()).filter(|at| condition(&self.0[*at].token));
        found.next().filter(|_| found.next().is_none())
    }

    /// The only use of the operator in a text such as `text + bigint`.
    fn operator(&self, operation: &str) -> Option<usize> {
        let is_operator = |word: &&str| {
            word.chars().all(|c| c.is_ascii_uppercase())
                || !word.contains(|c: char| c.is_alphanumeric() || "()[],".contains(c))
        };
        let operator = operation.split(' ').find(is_operator)?;
        self.unique(|token| token.to_string().eq_ignore_ascii_case(operator))
    }

    /// A position of ORDER BY or GROUP BY.
    fn number(&self, message: &str) -> Option<usize> {
        let number = message.split(' ').next()?;
        let by = (0..self.0.len()).rev().filter(|at| self.is_keyword_before(*at, &[Keyword::BY]));
        by.flat_map(|start| start..self.0.len())
            .find(|at| matches!(self.token(*at), Some(Token::Number(value, _)) if value == number))
    }

    /// The token behind the only use of a keyword.
    fn after_unique(&self, keyword: &str) -> Option<usize> {
        let is_keyword = |token: &Token| match token {
            Token::Word(word) => word.quote_style.is_none() && word.value.eq_ignore_ascii_case(keyword),
            _ => false,
        };
        self.unique(is_keyword).map(|at| at + 1)
    }

    /// The first call of an aggregate function behind WHERE.
    fn aggregate_in_where(&self) -> Option<usize> {
        let start = (0..self.0.len()).find(|at| self.is_keyword_before(*at, &[Keyword::WHERE]))?;
        (start..self.0.len()).find(|at| {
            let name = self.name(*at);
            self.token(at + 1) == Some(&Token::LParen) && name.is_some_and(|name| AGGREGATES.contains(&name.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::split::single;

    fn column(sql: &str, error: &Error) -> Option<u64> {
        let position = find(&single(sql).unwrap().tokens, error)?;
        assert_eq!(position.line, 1);
        Some(position.column)
    }

    fn not_found(kind: ObjectKind, name: &str) -> Error {
        Error::NotFound { kind, name: name.into() }
    }

    fn undefined(column: &str) -> Error {
        Error::UndefinedColumn { column: column.into(), relation: None, similar: Vec::new() }
    }

    #[test]
    fn unexpected_tokens_are_the_reported_ones() {
        let tokens = single("SELECT a,\n FROM t").unwrap().tokens;
        let near = |text: &str, line, column| {
            of_unexpected(
                &tokens,
                &format!("syntax error at or near \"{text}\", expected x"),
                Position { line, column },
            )
        };
        assert_eq!(near("FROM", 2, 7), Position { line: 2, column: 2 });
        assert_eq!(near("t", 2, 7), Position { line: 2, column: 7 });
        assert_eq!(near("other", 2, 7), Position { line: 2, column: 7 });
        let end = Error::syntax("syntax error at end of input, expected x");
        assert_eq!(find(&tokens, &end), Some(Position { line: 2, column: 8 }));
    }

    #[test]
    fn relations_stand_behind_from() {
        let relation = not_found(ObjectKind::Relation, "t");
        for (sql, at) in [
            ("SELECT t FROM a, t", Some(18)),
            ("SELECT t.x, t FROM public.t", Some(20)),
            ("SELECT 't' AS t FROM b JOIN \"t\" USING (t)", Some(29)),
            ("INSERT INTO T (t) VALUES (1)", Some(13)),
            ("SELECT t.x FROM u", None),
        ] {
            assert_eq!(column(sql, &relation), at, "{sql}");
        }
        assert_eq!(column("SELECT * FROM other.t", &not_found(ObjectKind::Relation, "other.t")), Some(15));
        assert_eq!(column("SELECT nextval('s')", &not_found(ObjectKind::Sequence, "s")), Some(16));
        assert_eq!(column("SELECT x\nFROM t", &undefined("x")), Some(8));
    }

    #[test]
    fn columns_are_neither_functions_nor_aliases() {
        for (sql, name, at) in [
            ("SELECT max(x), x AS max FROM max WHERE max > 1", "max", 40),
            ("SELECT a AS x FROM t ORDER BY y, x", "x", 34),
            ("SELECT a.x, b.x FROM a, b", "b.x", 13),
            ("SELECT \"X\", x FROM t", "x", 13),
            ("UPDATE x SET x = 1", "x", 14),
        ] {
            assert_eq!(column(sql, &undefined(name)), Some(at), "{sql}");
        }
        assert_eq!(column("SELECT u.id, u FROM u x", &Error::MissingFromEntry("u".into())), Some(8));
        assert_eq!(column("SELECT * FROM t, t", &Error::DuplicateAlias("t".into())), Some(18));
        let clash = Error::AmbiguousColumn("id".into());
        assert_eq!(column("SELECT t.id, id FROM t, u", &clash), Some(14));
    }

    #[test]
    fn calls_operators_and_literals() {
        let function = |signature: &str| Error::UndefinedFunction { signature: signature.into() };
        assert_eq!(column("SELECT f, f (1) FROM t", &function("function f(bigint)")), Some(11));
        assert_eq!(column("SELECT a + b FROM t", &function("operator date + numeric(4,2)")), Some(10));
        assert_eq!(column("SELECT a + b + c FROM t", &function("operator date + text")), None);
        assert_eq!(column("SELECT a LIKE b FROM t", &function("operator integer LIKE text")), Some(10));
        let invalid = |value| Error::invalid_text("integer", value, None);
        assert_eq!(column("SELECT 'x'::INT", &invalid("x")), Some(8));
        assert_eq!(column("SELECT 'x'::INT, 'x'", &invalid("x")), None);
        let ordinal = Error::InvalidColumnReference("ORDER BY position 5 is not in select list".into());
        assert_eq!(column("SELECT 5 ORDER BY 1, 5", &ordinal), Some(22));
        let grouping = Error::Grouping("aggregate functions are not allowed in WHERE (use HAVING)".into());
        assert_eq!(column("SELECT sum(a) FROM t WHERE SUM(a) > 1", &grouping), Some(28));
        assert_eq!(column("CREATE TABLE t (a STRNG)", &Error::Unsupported("type STRNG".into())), Some(19));
    }
}
