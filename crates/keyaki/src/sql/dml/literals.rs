//! `INSERT … VALUES` of plain literals, without a query plan.
//!
//! Planning takes many times longer than inserting a single row. The literals of each column become one Arrow array: of
//! the type that DataFusion would infer, or of a type from which assignment yields the same value. [`assign`] then
//! converts it as for any other source. `now()` and CURRENT_TIMESTAMP are literals, too.
//! Other rows (expressions, literals of different kinds in one column, integers
//! beyond 64 bits) take the path through the planner: [`rows`] returns `None`.

use std::cell::LazyCell;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, NullArray, RecordBatch, StringViewArray,
    UInt32Array,
};
use arrow::compute::take;
use arrow::datatypes::DataType;
use datafusion::sql::sqlparser::ast::{
    DataType as SqlType, Expr, Function, FunctionArguments, Ident, ObjectNamePart, Query, SetExpr, TimezoneInfo,
    UnaryOperator, Value,
};
use keyaki_store::ColumnType;

use super::defaults::is_default;
use crate::Result;
use crate::catalog::ColumnDef;
use crate::catalog::Table;
use crate::sql::prepared::lone_parameter;
use crate::sql::short::{Cell, now};
use crate::values::cast::parse;
use crate::values::zone::Zone;
use crate::write::assign::assign;
use crate::write::generated;

/// A literal, as the kinds that the arrays distinguish.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Literal<'a> {
    Null,
    Boolean(bool),
    /// Digits as written, without sign.
    Number {
        negative: bool,
        digits: &'a str,
    },
    Text(&'a str),
}

/// The rows of a query that consists of VALUES with plain literals for `columns`, with all columns of the table. `None`
/// if the query is of another form.
pub(super) fn rows(table: &Table, columns: &[usize], query: &Query, zone: Zone) -> Result<Option<RecordBatch>> {
    let Some(rows) = plain_values(query) else { return Ok(None) };
    if columns.is_empty() || rows.iter().any(|row| row.len() != columns.len()) {
        return Ok(None);
    }
    let now = LazyCell::new(|| now(rows.len()));
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(table.def.columns.len());
    for (i, column) in table.def.columns.iter().enumerate() {
        let array = match columns.iter().position(|&c| c == i) {
            _ if column.generated.is_some() => {
                arrays.push(generated::unset(column, rows.len()));
                continue;
            }
            Some(position) if rows.iter().all(|row| is_now(&row[position])) => Some(now.clone()),
            Some(position) => {
                let literals: Option<Vec<Literal<'_>>> =
                    rows.iter().map(|row| literal(&row[position], column)).collect();
                literals.and_then(|literals| array_of(&literals, column.ty.column))
            }
            None if column.identity.is_some() => None,
            None if column.default.is_none() => Some(Arc::new(NullArray::new(rows.len())) as ArrayRef),
            None => match constant(table, i) {
                Some(value) => Some(repeated(value, rows.len())?),
                None => is_now_by_default(column).then(|| now.clone()),
            },
        };
        let Some(array) = array else { return Ok(None) };
        arrays.push(assign(&array, &table.def.name, column, zone)?);
    }
    generated::completed(table, arrays).map(Some)
}

/// The cells of each table column, for rows of parameters, literals and, if `has_now`, the current time for `columns`; `None`
/// for other expressions, rows of different lengths, and defaults that must be evaluated. `types` gives the types of the
/// parameters.
pub(super) fn cells(
    table: &Table,
    columns: &[usize],
    rows: &[&[Expr]],
    types: &dyn Fn(usize) -> Option<DataType>,
    has_now: bool,
) -> Option<Vec<Option<Vec<Cell>>>> {
    if columns.is_empty() || rows.is_empty() || rows.iter().any(|row| row.len() != columns.len()) {
        return None;
    }
    let mut cells = Vec::with_capacity(table.def.columns.len());
    for (i, column) in table.def.columns.iter().enumerate() {
        if column.generated.is_some() {
            cells.push(None);
            continue;
        }
        let Some(position) = columns.iter().position(|&c| c == i) else {
            cells.push(match (&column.default, constant(table, i)) {
                (None, _) => None,
                (Some(_), Some(value)) => Some(vec![Cell::Constant(value.clone()); rows.len()]),
                (Some(_), None) if has_now && is_now_by_default(column) => Some(vec![Cell::Now; rows.len()]),
                (Some(_), None) => return None,
            });
            continue;
        };
        let ty = column.ty.column;
        let cell = |row: &&[Expr]| match lone_parameter(&row[position]) {
            Some(parameter) => (types(parameter)? == ty.arrow()).then_some(Cell::Parameter(parameter)),
            None if is_now(&row[position]) => has_now.then_some(Cell::Now),
            None => array_of(&[literal(&row[position], column)?], ty).map(Cell::Constant),
        };
        cells.push(Some(rows.iter().map(cell).collect::<Option<Vec<_>>>()?));
    }
    Some(cells)
}

/// True for `now()` and CURRENT_TIMESTAMP.
fn is_now(expr: &Expr) -> bool {
    let Expr::Function(Function {
        name,
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args,
        filter: None,
        null_treatment: None,
        over: None,
        within_group,
    }) = expr
    else {
        return false;
    };
    let [ObjectNamePart::Identifier(Ident { value: name, quote_style: None, .. })] = name.0.as_slice() else {
        return false;
    };
    let expected = match args {
        FunctionArguments::None => "current_timestamp",
        FunctionArguments::List(list) if list.args.is_empty() && list.clauses.is_empty() => "now",
        _ => return false,
    };
    name.eq_ignore_ascii_case(expected) && within_group.is_empty()
}

/// True if the default of a column is the current time.
fn is_now_by_default(column: &ColumnDef) -> bool {
    column.default.as_deref().is_some_and(|text| crate::sql::parse_expr(text).is_ok_and(|expr| is_now(&expr)))
}

/// The constant default of a column; `None` if there is none, or if it has not been compiled.
fn constant(table: &Table, column: usize) -> Option<&ArrayRef> {
    table.compiled()?.constants[column].as_ref()
}

fn repeated(value: &ArrayRef, rows: usize) -> Result<ArrayRef> {
    Ok(take(value, &UInt32Array::from(vec![0; rows]), None)?)
}

/// A NULL, integer, boolean or text literal as an array of one value of the literal's own type.
pub(super) fn literal_cell(expr: &Expr, column: &ColumnDef) -> Option<ArrayRef> {
    let (Expr::Value(_) | Expr::UnaryOp { .. }) = expr else { return None };
    match literal(expr, column)? {
        Literal::Null => Some(Arc::new(NullArray::new(1))),
        Literal::Boolean(value) => Some(Arc::new(BooleanArray::from(vec![value]))),
        Literal::Text(text) => Some(Arc::new(StringViewArray::from(vec![text]))),
        Literal::Number { negative, digits } => {
            let text = format!("{}{digits}", if negative { "-" } else { "" });
            Some(Arc::new(Int64Array::from(vec![text.parse::<i64>().ok()?])))
        }
    }
}

/// The rows of a query without any clause besides VALUES.
pub(super) fn plain_values(query: &Query) -> Option<Vec<&[Expr]>> {
    let Query {
        with: None,
        body,
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks,
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators,
    } = query
    else {
        return None;
    };
    match body.as_ref() {
        SetExpr::Values(values) if locks.is_empty() && pipe_operators.is_empty() => {
            Some(values.rows.iter().map(|row| row.content.as_slice()).collect())
        }
        _ => None,
    }
}

fn literal<'a>(expr: &'a Expr, column: &ColumnDef) -> Option<Literal<'a>> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Null => Some(Literal::Null),
            Value::Boolean(value) => Some(Literal::Boolean(*value)),
            Value::Number(digits, false) => Some(Literal::Number { negative: false, digits }),
            Value::SingleQuotedString(text) => Some(Literal::Text(text)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match literal(expr, column)? {
            Literal::Number { negative, digits } => Some(Literal::Number { negative: !negative, digits }),
            _ => None,
        },
        // For a column of the same type, the literal is equivalent to its text.
        Expr::TypedString(typed) if !typed.uses_odbc_syntax => match (&typed.data_type, column.ty.column) {
            (SqlType::Date, ColumnType::Date | ColumnType::Timestamp { .. })
            | (SqlType::Timestamp(None, TimezoneInfo::None), ColumnType::Timestamp { utc: false }) => {
                match &typed.value.value {
                    Value::SingleQuotedString(text) => Some(Literal::Text(text)),
                    _ => None,
                }
            }
            _ => None,
        },
        _ if is_default(expr) && !column.has_default() => Some(Literal::Null),
        _ => None,
    }
}

/// The literals of a column as one array; `None` if they are of different kinds.
fn array_of(literals: &[Literal<'_>], target: ColumnType) -> Option<ArrayRef> {
    let kind = literals.iter().find(|literal| **literal != Literal::Null);
    match kind {
        None => Some(Arc::new(NullArray::new(literals.len()))),
        Some(Literal::Boolean(_)) => {
            let values = values(literals, |literal| match literal {
                Literal::Boolean(value) => Some(value),
                _ => None,
            })?;
            Some(Arc::new(BooleanArray::from(values)))
        }
        Some(Literal::Text(_)) => {
            let values = values(literals, |literal| match literal {
                Literal::Text(text) => Some(text),
                _ => None,
            })?;
            Some(Arc::new(StringViewArray::from(values)))
        }
        Some(_) => numbers(literals, target),
    }
}

fn values<'a, T>(literals: &[Literal<'a>], value: impl Fn(Literal<'a>) -> Option<T>) -> Option<Vec<Option<T>>> {
    literals
        .iter()
        .map(|literal| if *literal == Literal::Null { Some(None) } else { value(*literal).map(Some) })
        .collect()
}

fn numbers(literals: &[Literal<'_>], target: ColumnType) -> Option<ArrayRef> {
    match target {
        ColumnType::Float32 | ColumnType::Float64 => {
            let values = values(literals, |literal| match literal {
                Literal::Number { negative, digits } => {
                    // The planner refuses numbers out of range.
                    let value = parse::<f64>(digits)?;
                    Some(if negative { -value } else { value })
                }
                _ => None,
            })?;
            Some(Arc::new(Float64Array::from(values)))
        }
        ColumnType::Decimal { .. } => decimals(literals),
        _ => {
            let values = values(literals, |literal| match literal {
                Literal::Number { negative, digits } => {
                    let value: i128 = digits.parse().ok()?;
                    i64::try_from(if negative { -value } else { value }).ok()
                }
                _ => None,
            })?;
            Some(Arc::new(Int64Array::from(values)))
        }
    }
}

/// The literals as exact decimals, with the scale of the literal with the most decimal places.
fn decimals(literals: &[Literal<'_>]) -> Option<ArrayRef> {
    const PRECISION: u8 = 38;
    let parts = values(literals, |literal| match literal {
        Literal::Number { negative, digits } => {
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            // The planner handles exponents and underscores.
            let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
            (plain(whole) && plain(fraction)).then_some((negative, whole, fraction))
        }
        _ => None,
    })?;
    let scale = parts.iter().flatten().map(|(_, _, fraction)| fraction.len()).max().unwrap_or(0);
    let mut digits = String::new();
    let mut unscaled = Vec::with_capacity(parts.len());
    for part in &parts {
        let Some((negative, whole, fraction)) = part else {
            unscaled.push(None);
            continue;
        };
        if whole.len() + scale > usize::from(PRECISION) {
            return None;
        }
        digits.clear();
        digits.push_str(whole);
        digits.push_str(fraction);
        digits.extend(std::iter::repeat_n('0', scale - fraction.len()));
        let value: i128 = digits.parse().ok()?;
        unscaled.push(Some(if *negative { -value } else { value }));
    }
    let array = Decimal128Array::from(unscaled).with_precision_and_scale(PRECISION, i8::try_from(scale).ok()?).ok()?;
    Some(Arc::new(array))
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;

    use super::*;
    use crate::catalog::TableDef;

    fn table(ty: ColumnType) -> Table {
        let columns = vec![ColumnDef::new("a", ty), ColumnDef::new("b", ColumnType::Text)];
        let def =
            TableDef::new(crate::catalog::RelationName::public("t"), keyaki_store::TreeId::new(16), columns, vec![]);
        Table::new(def, None).unwrap()
    }

    fn inserted(ty: ColumnType, values: &str) -> Option<ArrayRef> {
        let query = crate::sql::parse_query(&format!("VALUES {values}")).unwrap();
        rows(&table(ty), &[0], &query, Zone::UTC).unwrap().map(|batch| {
            assert_eq!(batch.column(1).null_count(), batch.num_rows());
            batch.column(0).clone()
        })
    }

    #[test]
    fn plain_literals_become_arrays() {
        let integers = inserted(ColumnType::Int64, "(1), (-9223372036854775808), (NULL), (DEFAULT)").unwrap();
        assert_eq!(integers.as_ref(), &Int64Array::from(vec![Some(1), Some(i64::MIN), None, None]) as &dyn Array);
        let decimal = ColumnType::Decimal { precision: 6, scale: 2 };
        let decimals = inserted(decimal, "(1.005), (-2), (.5), (3.)").unwrap();
        let expected = Decimal128Array::from(vec![101, -200, 50, 300]).with_precision_and_scale(6, 2).unwrap();
        assert_eq!(decimals.as_ref(), &expected as &dyn Array);
        let floats = inserted(ColumnType::Float64, "(1e300), (-0.5)").unwrap();
        assert_eq!(floats.as_ref(), &Float64Array::from(vec![1e300, -0.5]) as &dyn Array);
        assert_eq!(inserted(ColumnType::Boolean, "(true), (NULL)").unwrap().null_count(), 1);
        assert_eq!(inserted(ColumnType::Date, "('2024-01-01'), (DATE '2024-01-02')").unwrap().len(), 2);
    }

    #[test]
    fn other_values_go_through_the_planner() {
        for values in [
            "(1 + 1)",
            "(1), ('x')",
            "(9223372036854775808)",
            "(1.5)",
            "(1e3)",
            "(DATE '2024-01-01')",
            "(abs(1))",
            "(X'00')",
        ] {
            assert!(inserted(ColumnType::Int64, values).is_none(), "{values}");
        }
        assert!(inserted(ColumnType::Int64, "(1) ORDER BY 1").is_none());
        assert!(inserted(ColumnType::Decimal { precision: 6, scale: 2 }, "(1e3)").is_none());
    }
}
