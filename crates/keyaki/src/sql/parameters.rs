//! Parameters of statements: numbering, types and values.
//!
//! `$1`, `$2` … are PostgreSQL's parameters; `?` is the next number. A statement uses one of the two forms. The type of
//! a parameter is that of its declaration (PREPARE), of the column it is assigned to, or the type that DataFusion infers
//! from the expression around it. A value is converted to this type by an assignment cast. On the long path, the values
//! replace the placeholders in the syntax tree, each inside a cast to exactly the parameter's type.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int16Array, Int32Array, Int64Array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::DataType;
use datafusion::sql::sqlparser::ast::{
    CastKind, Expr, Statement as Sql, Value as SqlValue, ValueWithSpan, VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::base::arrays::innermost;
use crate::base::value::{Value, ValueRef};
use crate::base::{intervals, type_name};
use crate::catalog::types::from_arrow;
use crate::catalog::{ColumnDef, SqlType};
use crate::sql::visit::{walk, walk_mut};
use crate::values::zone::Zone;
use crate::write::assign::assign;
use crate::{Error, Result};

use super::prepared::lone_parameter;
use super::short::parameter_index;

/// Maximum number of parameters of a statement, as in PostgreSQL's protocol.
const PARAMETERS_MAX: usize = 65_535;

/// Replaces every `?` by the next of `$1`, `$2` …, except the operator of JSON.
///
/// # Errors
/// `Syntax` if the statement uses both forms.
pub(crate) fn number(tokens: &mut [TokenWithSpan]) -> Result<()> {
    let (mut marks, mut numbered) = (0, false);
    let operators: Vec<usize> = (0..tokens.len()).filter(|&place| is_operator(tokens, place)).collect();
    for (place, token) in tokens.iter_mut().enumerate() {
        let is_mark = match &token.token {
            _ if operators.contains(&place) => {
                token.token = Token::Question;
                continue;
            }
            Token::Question => true,
            Token::Placeholder(id) => id == "?",
            _ => continue,
        };
        numbered |= !is_mark;
        if is_mark {
            marks += 1;
            token.token = Token::Placeholder(format!("${marks}"));
        }
    }
    if marks > 0 && numbered { Err(mixed()) } else { Ok(()) }
}

fn is_question_mark(token: &Token) -> bool {
    matches!(token, Token::Question) || matches!(token, Token::Placeholder(id) if id == "?")
}

/// True for a question mark between two operands, the second of which is a text, a parameter or in parentheses: `doc ? 'key'`.
fn is_operator(tokens: &[TokenWithSpan], place: usize) -> bool {
    /// Words before parameters.
    const CLAUSES: [Keyword; 25] = [
        Keyword::ALL,
        Keyword::AND,
        Keyword::AS,
        Keyword::BETWEEN,
        Keyword::BY,
        Keyword::CASE,
        Keyword::DISTINCT,
        Keyword::ELSE,
        Keyword::ESCAPE,
        Keyword::FROM,
        Keyword::HAVING,
        Keyword::ILIKE,
        Keyword::IN,
        Keyword::LIKE,
        Keyword::LIMIT,
        Keyword::NOT,
        Keyword::OFFSET,
        Keyword::ON,
        Keyword::OR,
        Keyword::RETURNING,
        Keyword::SELECT,
        Keyword::SET,
        Keyword::THEN,
        Keyword::WHEN,
        Keyword::WHERE,
    ];
    if !is_question_mark(&tokens[place].token) {
        return false;
    }
    let is_significant = |token: &&TokenWithSpan| !matches!(token.token, Token::Whitespace(_));
    let before = tokens[..place].iter().rev().find(is_significant).map(|token| &token.token);
    let after = tokens[place + 1..].iter().find(is_significant).map(|token| &token.token);
    let follows_operand = match before {
        Some(Token::RParen | Token::RBracket | Token::SingleQuotedString(_) | Token::Placeholder(_)) => true,
        Some(Token::Question) => true,
        Some(Token::Word(word)) => !CLAUSES.contains(&word.keyword),
        _ => false,
    };
    let precedes_operand = match after {
        Some(Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_) | Token::LParen) => true,
        Some(token) => matches!(token, Token::Placeholder(_)) || is_question_mark(token),
        None => false,
    };
    follows_operand && precedes_operand
}

fn mixed() -> Error {
    Error::syntax("a statement uses either ? or $1, $2, … for its parameters")
}

/// The number of parameters of a statement: the greatest number that occurs.
///
/// # Errors
/// `Syntax` for names in place of numbers, and for numbers that are 0 or too great.
pub(crate) fn count(statement: &Sql) -> Result<usize> {
    struct Count(usize);
    impl Visitor for Count {
        type Break = String;
        fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<String> {
            if let SqlValue::Placeholder(id) = &value.value {
                match parameter_index(id).filter(|index| *index < PARAMETERS_MAX) {
                    Some(index) => self.0 = self.0.max(index + 1),
                    None => return ControlFlow::Break(id.clone()),
                }
            }
            ControlFlow::Continue(())
        }
    }
    let mut count = Count(0);
    match walk(statement, &mut count) {
        ControlFlow::Continue(()) => Ok(count.0),
        ControlFlow::Break(id) => {
            Err(Error::syntax(format!("invalid parameter \"{id}\": parameters are $1 to ${PARAMETERS_MAX}, or ?")))
        }
    }
}

/// Gives parameters without a type that of the casts that they are the operands of, if all are to one type.
pub(crate) fn add_cast_types(statement: &Sql, types: &mut [Option<DataType>]) {
    /// Types of the casts of each parameter; `None` within for different ones.
    struct Casts(Vec<Option<Option<DataType>>>);
    impl Visitor for Casts {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Cast {
                kind: CastKind::Cast | CastKind::DoubleColon,
                expr,
                data_type,
                array: false,
                format: None,
            } = expr
                && let Some(known) = lone_parameter(expr).and_then(|parameter| self.0.get_mut(parameter))
            {
                let ty = crate::catalog::types::from_sql(data_type).ok().map(|ty| ty.column.arrow());
                *known = match known.take() {
                    Some(other) if other != ty => Some(None),
                    _ => Some(ty),
                };
            }
            ControlFlow::Continue(())
        }
    }
    let mut casts = Casts(vec![None; types.len()]);
    let _ = walk(statement, &mut casts);
    for (ty, cast) in types.iter_mut().zip(casts.0) {
        if ty.is_none() {
            *ty = cast.flatten();
        }
    }
}

/// Checks that the right number of values was given.
///
/// # Errors
/// `ParameterCount`.
pub(crate) fn check_count(expected: usize, given: usize) -> Result<()> {
    if expected == given { Ok(()) } else { Err(Error::ParameterCount { expected, given }) }
}

/// Converts a value to an array of one value of the parameter's type. A parameter of unknown type takes the value as it
/// is.
///
/// # Errors
/// `Context` with the parameter: `InvalidText`, `OutOfRange`, `DatatypeMismatch`, `CannotCast`.
pub(crate) fn bind(index: usize, value: ValueRef<'_>, ty: Option<&DataType>, zone: Zone) -> Result<ArrayRef> {
    if let Some(array) = ty.and_then(|ty| integer(value, ty)) {
        return Ok(array);
    }
    if let ValueRef::Interval { months, days, micros } = value
        && intervals::of_parts(months, days, micros).is_none()
    {
        let error = Error::out_of_range("interval", &value.to_string(), None);
        return Err(error.within(format!("parameter ${}", index + 1)));
    }
    bind_array(index, &value.to_array(), ty, zone)
}

/// An integer as an array of an integer type; `None` for values that it does not have, and for other types.
fn integer(value: ValueRef<'_>, ty: &DataType) -> Option<ArrayRef> {
    let ValueRef::Integer(value) = value else { return None };
    Some(match ty {
        DataType::Int16 => Arc::new(Int16Array::from_value(value.try_into().ok()?, 1)),
        DataType::Int32 => Arc::new(Int32Array::from_value(value.try_into().ok()?, 1)),
        DataType::Int64 => Arc::new(Int64Array::from_value(value, 1)),
        _ => return None,
    })
}

/// As [`bind`], with a value in an array.
///
/// # Errors
/// As [`bind`].
pub(crate) fn bind_array(index: usize, array: &ArrayRef, ty: Option<&DataType>, zone: Zone) -> Result<ArrayRef> {
    let Some(ty) = ty.filter(|ty| *ty != array.data_type()) else { return Ok(array.clone()) };
    let converted = match from_arrow(ty).ok().filter(|column| column.arrow() == *ty) {
        Some(column) => {
            let ty = SqlType::from(column);
            let column = ColumnDef::new("", ty);
            assign(array, "", &column, zone).map_err(Error::without_column)
        }
        None => cast_with_options(array, ty, &CastOptions { safe: false, ..CastOptions::default() })
            .map_err(|_| Error::CannotCast { from: type_name(array.data_type()), to: type_name(ty) }),
    };
    converted.map_err(|error| error.within(format!("parameter ${}", index + 1)))
}

/// True if the conversion of a value to a type keeps the value. Also true for values that cannot be converted: the
/// conversion reports them.
pub(crate) fn is_exact(value: ValueRef<'_>, ty: Option<&DataType>, zone: Zone) -> bool {
    let Some(ty) = ty else { return true };
    match (value, ty) {
        (ValueRef::Null | ValueRef::Boolean(_) | ValueRef::Text(_) | ValueRef::Bytes(_) | ValueRef::Uuid(_), _) => {
            return true;
        }
        (ValueRef::Integer(_), DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64) => return true,
        _ => {}
    }
    let array = value.to_array();
    let Ok(converted) = bind_array(0, &array, Some(ty), zone) else { return true };
    cast_with_options(&converted, array.data_type(), &CastOptions::default()).is_ok_and(|back| *back == *array)
}

/// Converts a value for each parameter.
///
/// # Errors
/// As [`bind`].
pub(crate) fn bind_all(values: &[ValueRef<'_>], types: &[Option<DataType>], zone: Zone) -> Result<Vec<ArrayRef>> {
    let both = values.iter().zip(types).enumerate();
    both.map(|(i, (value, ty))| bind(i, *value, ty.as_ref(), zone)).collect()
}

/// Replaces the placeholders of a statement by values. `values` has an array of one value for each parameter, of its
/// type.
///
/// # Errors
/// `Internal` if a value cannot be written as a literal.
pub(crate) fn substitute(statement: &mut Sql, values: &[ArrayRef]) -> Result<()> {
    let literals = values.iter().map(literal).collect::<Result<Vec<_>>>()?;
    let mut substitution = Substitution { literals: &literals };
    match walk_mut(statement, &mut substitution) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Substitution<'a> {
    literals: &'a [Expr],
}

impl VisitorMut for Substitution<'_> {
    type Break = Error;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if let Expr::Value(value) = expr
            && let SqlValue::Placeholder(id) = &value.value
        {
            match parameter_index(id).and_then(|index| self.literals.get(index)) {
                Some(literal) => *expr = literal.clone(),
                None => return ControlFlow::Break(Error::UndefinedParameter { name: id.clone() }),
            }
        }
        ControlFlow::Continue(())
    }
}

/// An expression with exactly the type and value of an array of one value.
pub(super) fn literal(array: &ArrayRef) -> Result<Expr> {
    let text = |text: String| Expr::Value(SqlValue::SingleQuotedString(text).into());
    let number = |number: String| Expr::Value(SqlValue::Number(number, false).into());
    let value = crate::base::value::value_at(array, 0).map(ValueRef::to_owned);
    let plain = match value {
        Some(Value::Null) if *array.data_type() == DataType::Null => return Ok(Expr::Value(SqlValue::Null.into())),
        Some(Value::Null) => Expr::Value(SqlValue::Null.into()),
        Some(Value::Boolean(value)) => return Ok(Expr::Value(SqlValue::Boolean(value).into())),
        Some(Value::Text(value)) => text(value),
        Some(Value::Bytes(bytes)) => {
            let hex = bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
                hex.push_str(&format!("{byte:02X}"));
                hex
            });
            Expr::Value(SqlValue::HexStringLiteral(hex).into())
        }
        // Integers, as PostgreSQL's literals: the smallest type is BIGINT here. Negative numbers go through text.
        Some(Value::Integer(value)) if value >= 0 => number(value.to_string()),
        Some(Value::Date(days)) => return cast(text(days.to_string()), &["Int32", "Date32"]),
        Some(Value::Timestamp(micros)) => {
            return cast(text(micros.to_string()), &["Int64", &array.data_type().to_string()]);
        }
        Some(Value::Time(micros)) => {
            return cast(text(micros.to_string()), &["Int64", &array.data_type().to_string()]);
        }
        Some(value @ Value::Interval { .. }) => return call("CAST(NULL AS INTERVAL)", [text(value.to_string())]),
        // The elements of an array without values have no type: operators convert the text.
        Some(value @ Value::Array(_)) if *innermost(array.data_type()) == DataType::Null => {
            return Ok(text(value.to_string()));
        }
        Some(value @ Value::Array(_)) => {
            let ty = SqlType::from(from_arrow(array.data_type())?);
            return call(&format!("CAST(NULL AS {ty})"), [text(value.to_string())]);
        }
        Some(Value::Uuid(uuid)) => return call("CAST(NULL AS UUID)", [text(uuid.to_string())]),
        Some(Value::TimestampTz(micros)) => {
            return cast(text(micros.to_string()), &["Int64", &array.data_type().to_string()]);
        }
        Some(other) => text(other.to_string()),
        None => {
            let shown = arrow::util::display::array_value_to_string(array, 0)?;
            text(shown)
        }
    };
    cast(plain, &[&array.data_type().to_string()])
}

/// `arrow_cast(… arrow_cast(expr, types[0]) …)`.
fn cast(expr: Expr, types: &[&str]) -> Result<Expr> {
    let mut result = expr;
    for ty in types {
        let ty = Expr::Value(SqlValue::SingleQuotedString((*ty).to_string()).into());
        result = call("arrow_cast(NULL, NULL)", [result, ty])?;
    }
    Ok(result)
}

/// An expression from a template, with expressions in place of its NULLs.
///
/// # Errors
/// `Syntax` if the template cannot be parsed.
pub(super) fn call<const N: usize>(template: &str, arguments: [Expr; N]) -> Result<Expr> {
    let mut call = crate::sql::parse_expr(template)?;
    fill(&mut call, &mut arguments.into_iter());
    Ok(call)
}

/// Replaces the NULLs of a parsed template by expressions, in their order.
pub(super) fn fill(template: &mut impl VisitMut, arguments: &mut dyn Iterator<Item = Expr>) {
    let _ = walk_mut(template, &mut Fill { arguments });
}

/// Replaces the NULLs of a template by expressions, in their order.
struct Fill<'a> {
    arguments: &'a mut dyn Iterator<Item = Expr>,
}

impl VisitorMut for Fill<'_> {
    type Break = ();
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if matches!(expr, Expr::Value(value) if value.value == SqlValue::Null)
            && let Some(argument) = self.arguments.next()
        {
            *expr = argument;
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::split::single;

    fn parsed(sql: &str) -> Result<Sql> {
        single(sql)?.parser().parse_statement().map_err(crate::base::syntax)
    }

    #[test]
    fn question_marks_are_numbered() {
        let statement = parsed("SELECT ? + a FROM t WHERE b IN (?, ?)").unwrap();
        assert_eq!(statement.to_string(), "SELECT $1 + a FROM t WHERE b IN ($2, $3)");
        assert_eq!(count(&statement).unwrap(), 3);
        assert_eq!(count(&parsed("SELECT $3, '?', \"?\"").unwrap()).unwrap(), 3);
        assert_eq!(count(&parsed("INSERT INTO t VALUES (?, 'a?', ?)").unwrap()).unwrap(), 2);
        assert_eq!(count(&parsed("SELECT 1 LIMIT $1").unwrap()).unwrap(), 1);
        let keys = parsed("SELECT d ? 'a' FROM t WHERE (e -> ?) ? (k) AND d ? ? AND b = ?").unwrap();
        assert_eq!(keys.to_string(), "SELECT d ? 'a' FROM t WHERE (e -> $1) ? (k) AND d ? $2 AND b = $3");
        for wrong in ["SELECT ?, $1", "SELECT $1, ?", "SELECT $0", "SELECT $65536", "SELECT $name"] {
            let error = parsed(wrong).and_then(|statement| count(&statement)).unwrap_err();
            assert!(matches!(error, Error::Syntax { .. }), "{wrong}: {error}");
        }
    }

    #[test]
    fn values_replace_placeholders_and_keep_column_names() {
        let mut statement = parsed("SELECT $1, a + $2 AS b, c FROM t WHERE d = $1").unwrap();
        crate::sql::columns::name(&mut statement);
        let values = [Value::Boolean(true), Value::Integer(-5)];
        let arrays: Vec<ArrayRef> =
            values.iter().map(|value| bind(0, value.as_ref(), None, Zone::UTC).unwrap()).collect();
        substitute(&mut statement, &arrays).unwrap();
        let expected = "SELECT true AS \"$1\", a + arrow_cast('-5', 'Int64') AS b, c FROM t WHERE d = true";
        assert_eq!(statement.to_string(), expected);
        let error = substitute(&mut parsed("SELECT $3").unwrap(), &arrays).unwrap_err();
        assert_eq!(error.to_string(), "there is no parameter $3");
    }

    #[test]
    fn conversions_that_round_are_not_exact() {
        let decimal = DataType::Decimal128(8, 2);
        let exact = |value: Value, ty: &DataType| is_exact(value.as_ref(), Some(ty), Zone::UTC);
        assert!(exact(Value::Decimal { unscaled: 1040, scale: 3 }, &decimal));
        assert!(!exact(Value::Decimal { unscaled: 1037, scale: 3 }, &decimal));
        assert!(exact(Value::Float(2.0), &DataType::Int64) && !exact(Value::Float(1.5), &DataType::Int64));
        assert!(exact(Value::Integer(5), &decimal) && exact(Value::Null, &decimal));
        assert!(!exact(Value::Timestamp(1), &DataType::Date32));
    }

    #[test]
    fn values_are_converted_to_the_type_of_the_parameter() {
        let bound = |value: Value, ty: DataType| {
            bind(1, value.as_ref(), Some(&ty), Zone::UTC).map(|array| array.data_type().clone())
        };
        assert_eq!(bound(Value::Integer(5), DataType::Int16).unwrap(), DataType::Int16);
        assert_eq!(bound(Value::Text("12".into()), DataType::Int32).unwrap(), DataType::Int32);
        assert_eq!(bound(Value::Null, DataType::Date32).unwrap(), DataType::Date32);
        assert_eq!(bound(Value::Text("x".into()), DataType::Utf8).unwrap(), DataType::Utf8);
        let error = bound(Value::Integer(70_000), DataType::Int16).unwrap_err().to_string();
        assert_eq!(error, "parameter $2: value \"70000\" is out of range for type smallint");
        assert!(bound(Value::Boolean(true), DataType::Int32).is_err());
        assert!(bound(Value::Text("soon".into()), DataType::Date32).is_err());
    }
}
