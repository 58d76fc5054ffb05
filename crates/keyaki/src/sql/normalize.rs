//! Statements without their literals: the keys of the plan cache.
//!
//! A program that does not use parameters sends the same statement with other literals each time. [`normalize`] takes
//! the literals out of the text in one pass, without tokens: the rest is the key. [`parameterize`] replaces those
//! literals of the syntax tree by parameters that stand where a parameter means the same: as operand of a comparison
//! with a column in WHERE, as value of INSERT … VALUES and of SET. All other literals belong to the key.
//!
//! *Invariant.* Text that the pass does not fully understand (comments, escapes, dollar quotes, parameters) has no key.

use std::borrow::Cow;
use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, FromTable, SetExpr, Statement as Sql, UnaryOperator, Value as SqlValue, VisitorMut,
};
use datafusion::sql::sqlparser::tokenizer::Location;

use crate::base::uuids::UUID_LEN;
use crate::base::value::ValueRef;
use crate::sql::visit::walk_mut;

/// Longer statements have no key.
const BYTES_MAX: usize = 1 << 20;
/// Statements with more literals have no key.
const LITERALS_MAX: usize = 20_000;

/// Estimated bytes of a text for each literal.
const BYTES_PER_LITERAL: usize = 16;

/// Replaces a literal in a key.
const NUMBER_MARK: char = '\u{1}';
const TEXT_MARK: char = '\u{2}';

/// A statement divided into a key and literals.
#[derive(Debug)]
pub(super) struct Normalized<'a> {
    pub key: String,
    /// In the order of the text.
    pub literals: Vec<Literal<'a>>,
}

/// A literal of a statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Literal<'a> {
    /// Byte offset of the number's first digit or of the opening quote.
    offset: usize,
    pub kind: LiteralKind<'a>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum LiteralKind<'a> {
    /// Digits, possibly with a decimal point. `negative`: a minus sign before them belongs to the literal.
    Number {
        negative: bool,
        digits: &'a str,
    },
    Text(Cow<'a, str>),
}

/// Takes the literals out of a statement; `None` if its text is not simple enough.
pub(super) fn normalize(sql: &str) -> Option<Normalized<'_>> {
    let bytes = sql.as_bytes();
    if bytes.len() > BYTES_MAX || !starts_like_a_statement(bytes) {
        return None;
    }
    let mut key = String::with_capacity(sql.len());
    let mut literals = Vec::with_capacity(bytes.len() / BYTES_PER_LITERAL);
    // The start of the text that is not yet in the key.
    let mut plain = 0;
    // The last byte before the current one that is not white space.
    let mut before = 0;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\'' => {
                if is_word(bytes[..at].last().copied()) || bytes[..at].last() == Some(&b'&') || before == b'\'' {
                    return None;
                }
                let (text, end) = quoted(sql, at)?;
                key.push_str(&sql[plain..at]);
                key.push(TEXT_MARK);
                literals.push(Literal { offset: at, kind: LiteralKind::Text(text) });
                (plain, at, before) = (end, end, b'\'');
                continue;
            }
            b'"' => {
                let (_, end) = quoted(sql, at)?;
                (at, before) = (end, b'"');
                continue;
            }
            b'0'..=b'9' => {
                let end = number_end(bytes, at)?;
                // A minus sign after one of these starts a value.
                let negative = bytes[..at].last() == Some(&b'-') && starts_value(bytes, at - 1);
                let start = if negative { at - 1 } else { at };
                key.push_str(&sql[plain..start]);
                key.push(NUMBER_MARK);
                literals.push(Literal { offset: at, kind: LiteralKind::Number { negative, digits: &sql[at..end] } });
                (plain, at, before) = (end, end, b'0');
                continue;
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => {
                while at < bytes.len() && is_word(Some(bytes[at])) {
                    at += 1;
                }
                before = b'a';
                continue;
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => return None,
            b'/' if bytes.get(at + 1) == Some(&b'*') => return None,
            b'.' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => return None,
            b'$' | b'?' | b'\\' | b'@' | b'#' | b'`' | 0..=8 | 14..=31 => return None,
            b';' if sql[at + 1..].trim_ascii().is_empty() => break,
            b';' => return None,
            byte if !byte.is_ascii_whitespace() => before = byte,
            _ => {}
        }
        at += 1;
    }
    if literals.len() > LITERALS_MAX {
        return None;
    }
    key.push_str(sql[plain..at].trim_ascii_end());
    Some(Normalized { key, literals })
}

fn starts_like_a_statement(bytes: &[u8]) -> bool {
    bytes.get(..6).is_some_and(|word| {
        [b"select", b"insert", b"update", b"delete"].iter().any(|known| word.eq_ignore_ascii_case(*known))
    })
}

fn is_word(byte: Option<u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80)
}

/// True if the minus sign at `sign` follows an opening parenthesis, a comma or a comparison.
fn starts_value(bytes: &[u8], sign: usize) -> bool {
    bytes[..sign].trim_ascii_end().last().is_some_and(|byte| matches!(byte, b'(' | b',' | b'=' | b'<' | b'>'))
}

/// The end of a number; `None` if it has an exponent or letters.
fn number_end(bytes: &[u8], start: usize) -> Option<usize> {
    let digits = |from: usize| from + bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut end = digits(start);
    if bytes.get(end) == Some(&b'.') {
        end = digits(end + 1);
    }
    (!is_word(bytes.get(end).copied()) && bytes.get(end) != Some(&b'.')).then_some(end)
}

/// The content of a quoted text, and the offset behind it; `None` if it does not end.
fn quoted(sql: &str, start: usize) -> Option<(Cow<'_, str>, usize)> {
    let quote = sql.as_bytes()[start];
    let mut content = Cow::Borrowed("");
    let mut from = start + 1;
    loop {
        let end = from + memchr::memchr(quote, &sql.as_bytes()[from..])?;
        let part = &sql[from..end];
        let doubled = sql.as_bytes().get(end + 1) == Some(&quote);
        // A doubled quote stands for one.
        let part = if doubled { &sql[from..end + 1] } else { part };
        if content.is_empty() && !doubled {
            content = Cow::Borrowed(part);
        } else {
            content.to_mut().push_str(part);
        }
        if !doubled {
            return Some((content, end + 1));
        }
        from = end + 2;
    }
}

/// Replaces literals by parameters. Returns the position in `literals` of each parameter.
pub(super) fn parameterize(statement: &mut Sql, sql: &str, literals: &[Literal<'_>]) -> Vec<usize> {
    let used = vec![false; literals.len()];
    let mut replace = Replace { places: places(sql, literals), literals, used, parameters: Vec::new() };
    match statement {
        Sql::Query(query) => {
            if let SetExpr::Select(select) = query.body.as_mut()
                && let Some(selection) = &mut select.selection
            {
                let _ = walk_mut(selection, &mut Conditions { replace: &mut replace });
            }
        }
        Sql::Update(update) => {
            for assignment in &mut update.assignments {
                replace.value(&mut assignment.value);
            }
            if let Some(selection) = &mut update.selection {
                let _ = walk_mut(selection, &mut Conditions { replace: &mut replace });
            }
        }
        Sql::Delete(delete) => {
            let (FromTable::WithFromKeyword(_) | FromTable::WithoutKeyword(_)) = &delete.from;
            if let Some(selection) = &mut delete.selection {
                let _ = walk_mut(selection, &mut Conditions { replace: &mut replace });
            }
        }
        Sql::Insert(insert) => {
            if let Some(query) = &mut insert.source
                && let SetExpr::Values(values) = query.body.as_mut()
            {
                for row in &mut values.rows {
                    row.content.iter_mut().for_each(|value| replace.value(value));
                }
            }
        }
        _ => {}
    }
    replace.parameters
}

/// The positions of literals in lines and columns, in ascending order.
fn places(sql: &str, literals: &[Literal<'_>]) -> Vec<(u64, u64)> {
    let (mut line, mut column, mut offset) = (1, 1, 0);
    let mut places = Vec::with_capacity(literals.len());
    for literal in literals {
        for c in sql[offset..literal.offset].chars() {
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        offset = literal.offset;
        places.push((line, column));
    }
    places
}

struct Replace<'a> {
    places: Vec<(u64, u64)>,
    literals: &'a [Literal<'a>],
    /// The literals that are parameters.
    used: Vec<bool>,
    parameters: Vec<usize>,
}

impl Replace<'_> {
    /// Replaces an expression that is a literal.
    fn value(&mut self, expr: &mut Expr) {
        let (operand, negative) = match &*expr {
            Expr::UnaryOp { op: UnaryOperator::Minus, expr } => (expr.as_ref(), true),
            other => (other, false),
        };
        let Expr::Value(value) = operand else { return };
        if !matches!(value.value, SqlValue::Number(..) | SqlValue::SingleQuotedString(_)) {
            return;
        }
        let Location { line, column } = value.span.start;
        let Ok(literal) = self.places.binary_search(&(line, column)) else { return };
        let signed = matches!(self.literals[literal].kind, LiteralKind::Number { negative: true, .. });
        if signed != negative || std::mem::replace(&mut self.used[literal], true) {
            return;
        }
        self.parameters.push(literal);
        *expr = Expr::Value(SqlValue::Placeholder(format!("${}", self.parameters.len())).into());
    }
}

/// Replaces the operands of comparisons with columns.
struct Conditions<'a, 'b> {
    replace: &'a mut Replace<'b>,
}

fn is_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
}

impl VisitorMut for Conditions<'_, '_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut datafusion::sql::sqlparser::ast::Query) -> ControlFlow<()> {
        // Literals of subqueries stay.
        ControlFlow::Break(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        use BinaryOperator as B;
        match expr {
            Expr::BinaryOp { left, op: B::Eq | B::Lt | B::LtEq | B::Gt | B::GtEq, right } => {
                if is_column(left) {
                    self.replace.value(right);
                } else if is_column(right) {
                    self.replace.value(left);
                }
            }
            Expr::InList { expr, list, .. } if is_column(expr) => {
                list.iter_mut().for_each(|item| self.replace.value(item));
            }
            Expr::Between { expr, low, high, .. } if is_column(expr) => {
                self.replace.value(low);
                self.replace.value(high);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// True if the text, as a timestamp, has whole microseconds and is in the range of nanoseconds, to which DataFusion
/// converts it in comparisons.
fn is_exact_timestamp(text: &str) -> bool {
    let year = text.get(..4).and_then(|year| year.parse::<u16>().ok());
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
    year.is_some_and(|year| (1678..=2261).contains(&year)) && text.as_bytes().get(4) == Some(&b'-') && digits <= 6
}

impl LiteralKind<'_> {
    /// The literal as a value for a parameter of type `ty`; `None` if the literal may mean something else there than
    /// this value. `assigned`: the parameter stands for a value of a row, not for an operand.
    pub fn value(&self, ty: &DataType, assigned: bool) -> Option<ValueRef<'_>> {
        match (self, ty) {
            (
                LiteralKind::Text(text),
                DataType::Utf8
                | DataType::Utf8View
                | DataType::Date32
                | DataType::Time64(_)
                | DataType::FixedSizeBinary(UUID_LEN),
            ) => Some(ValueRef::Text(text)),
            (LiteralKind::Text(text), DataType::Timestamp(..)) => {
                is_exact_timestamp(text).then_some(ValueRef::Text(text))
            }
            (LiteralKind::Number { .. }, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64) => {
                self.integer().map(ValueRef::Integer)
            }
            (LiteralKind::Number { .. }, DataType::Decimal128(..)) => match self.integer() {
                Some(integer) => Some(ValueRef::Integer(integer)),
                // In comparisons, a literal with a decimal point is a float.
                None if assigned => self.decimal(),
                None => None,
            },
            (LiteralKind::Number { negative, digits }, DataType::Float64) => {
                if !digits.contains('.') {
                    // As an integer: there is no negative zero. Integers are exact up to this limit.
                    let value = self.integer().filter(|value| value.abs() < 1 << 53)?;
                    return Some(ValueRef::Float(value as f64));
                }
                let value = crate::values::cast::parse::<f64>(digits)?;
                Some(ValueRef::Float(if *negative { -value } else { value }))
            }
            _ => None,
        }
    }

    fn integer(&self) -> Option<i64> {
        let LiteralKind::Number { negative, digits } = self else { return None };
        // Up to 18 digits fit into 64 bits.
        if digits.len() <= 18 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let value = digits.bytes().fold(0, |value, byte| value * 10 + i64::from(byte - b'0'));
            return Some(if *negative { -value } else { value });
        }
        let value: i128 = digits.parse().ok()?;
        i64::try_from(if *negative { -value } else { value }).ok()
    }

    fn decimal(&self) -> Option<ValueRef<'static>> {
        let LiteralKind::Number { negative, digits } = self else { return None };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.len() + fraction.len() > 37 {
            return None;
        }
        let unscaled: i128 = format!("{whole}{fraction}").parse().ok()?;
        let unscaled = if *negative { -unscaled } else { unscaled };
        Some(ValueRef::Decimal { unscaled, scale: fraction.len() as u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literals(sql: &str) -> Option<Vec<String>> {
        let text = |literal: Literal<'_>| match literal.kind {
            LiteralKind::Number { negative, digits } => format!("{}{digits}", if negative { "-" } else { "" }),
            LiteralKind::Text(text) => format!("'{text}'"),
        };
        Some(normalize(sql)?.literals.into_iter().map(text).collect())
    }

    #[test]
    fn literals_leave_the_key() {
        assert_eq!(literals("SELECT a1 FROM t WHERE b = 5 AND c='x''y' ;").unwrap(), ["5", "'x'y'"]);
        assert_eq!(literals("INSERT INTO t VALUES (-1, 2.50,'', -3)").unwrap(), ["-1", "2.50", "''", "-3"]);
        assert_eq!(literals("select \"a'1\" - 1, t.a-2 from t").unwrap(), ["1", "2"]);
        let key = |sql: &str| normalize(sql).unwrap().key;
        assert_eq!(key("DELETE FROM t WHERE a = 1"), key("DELETE FROM t WHERE a = -27;"));
        assert_ne!(key("DELETE FROM t WHERE a = 1"), key("DELETE FROM t WHERE a = '1'"));
        assert_eq!(literals("UPDATE größe SET ä = 'ß' WHERE ü=7").unwrap(), ["'ß'", "7"]);
    }

    #[test]
    fn unusual_text_has_no_key() {
        for sql in [
            "SELECT 1 -- x",
            "SELECT /* */ 1",
            "SELECT 1e5",
            "SELECT 0x10",
            "SELECT E'\\n'",
            "SELECT $$a$$",
            "SELECT $1",
            "SELECT ?",
            "SELECT 'open",
            "SELECT X'00'",
            "SELECT 1; SELECT 2",
            "EXPLAIN SELECT 1",
            "SELECT .5",
            "SELECT U&'a'",
            "SELECT 'a' 'b'",
            "SELECT 1_000",
            "SELECT 1.2.3",
        ] {
            assert!(normalize(sql).is_none(), "{sql}");
        }
    }

    #[test]
    fn operands_and_values_become_parameters() {
        let parameterized = |sql: &str| {
            let normalized = normalize(sql).unwrap();
            let mut statement = crate::sql::split::single(sql).unwrap().parser().parse_statement().unwrap();
            let parameters = parameterize(&mut statement, sql, &normalized.literals);
            (statement.to_string(), parameters)
        };
        let (text, parameters) =
            parameterized("SELECT a + 1 FROM t\n WHERE b = -5 AND c IN (2, 'ö') AND d LIKE 'x%' LIMIT 3");
        assert_eq!(text, "SELECT a + 1 FROM t WHERE b = $1 AND c IN ($2, $3) AND d LIKE 'x%' LIMIT 3");
        assert_eq!(parameters, [1, 2, 3]);
        let (text, _) = parameterized("UPDATE t SET a = 'x', b = b + 1 WHERE 5 < c AND d = e + 1");
        assert_eq!(text, "UPDATE t SET a = $1, b = b + 1 WHERE $2 < c AND d = e + 1");
        let (text, _) = parameterized("INSERT INTO t VALUES (1, -2, 'x', NULL, 1 + 1)");
        assert_eq!(text, "INSERT INTO t VALUES ($1, $2, $3, NULL, 1 + 1)");
    }

    #[test]
    fn literals_are_values_of_a_type_only_if_they_mean_the_same() {
        let number = |digits: &'static str| LiteralKind::Number { negative: true, digits };
        assert_eq!(number("5").value(&DataType::Int16, false), Some(ValueRef::Integer(-5)));
        assert!(number("5.0").value(&DataType::Int16, false).is_none());
        let decimal = DataType::Decimal128(10, 2);
        assert_eq!(number("1.25").value(&decimal, true), Some(ValueRef::Decimal { unscaled: -125, scale: 2 }));
        assert!(number("1.25").value(&decimal, false).is_none());
        assert!(number("1.5").value(&DataType::Float32, true).is_none());
        assert_eq!(number("1.5").value(&DataType::Float64, false), Some(ValueRef::Float(-1.5)));
        assert!(number("1").value(&DataType::Utf8View, false).is_none());
        let text = |text: &'static str| LiteralKind::Text(Cow::Borrowed(text));
        assert!(text("5").value(&DataType::Int16, false).is_none());
        assert_eq!(text("2024-02-29").value(&DataType::Date32, false), Some(ValueRef::Text("2024-02-29")));
    }
}
