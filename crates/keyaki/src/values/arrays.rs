//! Operators of arrays, with PostgreSQL's results.
//!
//! | operator | rule |
//! |---|---|
//! | `x = ANY (array)`, `x <> ALL (array)` and others | NULL if the elements that are NULL decide |
//! | `a @> b`, `a <@ b`, `a && b` | elements that are NULL are not equal to others |
//! | comparisons, ORDER BY, joins | element by element; NULL is the greatest element and equals NULL; then by length |
//!
//! Arrow's comparisons take NULL for the least element, DataFusion's accumulators take it for the greatest. [`key`] gives
//! bytes with PostgreSQL's order, which are equal for equal arrays.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryViewArray, BooleanArray, ListArray, UInt32Array};
use arrow::compute::kernels::cmp::{eq, gt, gt_eq, lt, lt_eq, neq};
use arrow::compute::{SortOptions, can_cast_types, take};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::row::{Row, RowConverter, Rows, SortField};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr, RawFieldAccessExpr};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, GetFieldAccess, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, cast as cast_expr, lit,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::byte_strings::is_binary;
use super::cast;
use super::functions::{any, call, result, strict_field};
use super::untyped::marked;
use super::zone::Zone;
use crate::Error;
use crate::base::arrays::{element_type, is_list, list_of, lists};
use crate::base::type_name;

/// Bytes with the order of arrays, which are equal for equal arrays.
pub(crate) fn key(array: Expr) -> Expr {
    call(Key { signature: any(1) }, vec![array])
}

/// The functions of comparisons with ANY and ALL; see [`quantified_name`].
pub(crate) fn functions() -> impl Iterator<Item = ScalarUDF> {
    let quantified = |(compare, is_all)| {
        let signature = Signature::user_defined(Volatility::Immutable);
        ScalarUDF::new_from_impl(Quantified { compare, is_all, signature })
    };
    Compare::ALL.into_iter().flat_map(|compare| [(compare, false), (compare, true)]).map(quantified)
}

/// The name of the function of `x operator ANY (array)` or `x operator ALL (array)`; `None` for other operators.
pub(crate) fn quantified_name(operator: &BinaryOperator, is_all: bool) -> Option<&'static str> {
    let compare = match operator {
        BinaryOperator::Eq => Compare::Equal,
        BinaryOperator::NotEq => Compare::NotEqual,
        BinaryOperator::Lt => Compare::Less,
        BinaryOperator::LtEq => Compare::LessOrEqual,
        BinaryOperator::Gt => Compare::Greater,
        BinaryOperator::GtEq => Compare::GreaterOrEqual,
        _ => return None,
    };
    Some(compare.name(is_all))
}

/// An index or bound of an array as BIGINT: numbers of elements are unsigned.
fn index(expr: Box<Expr>, schema: &DFSchema) -> Box<Expr> {
    match expr.get_type(schema) {
        Ok(ty) if ty.is_unsigned_integer() => Box::new(cast_expr(*expr, DataType::Int64)),
        _ => expr,
    }
}

/// `@>`, `<@` and `&&` of arrays. Texts beside arrays become arrays.
#[derive(Debug)]
pub(crate) struct Operators;

impl ExprPlanner for Operators {
    /// Literals of texts beside BYTEA, for which DataFusion finds no common type.
    fn plan_array_literal(&self, mut exprs: Vec<Expr>, schema: &DFSchema) -> Result<PlannerResult<Vec<Expr>>> {
        let bytes = exprs.iter().filter_map(|expr| expr.get_type(schema).ok()).find(is_binary);
        if let Some(bytes) = bytes {
            for expr in &mut exprs {
                let literal = marked(expr).unwrap_or(expr);
                if matches!(literal, Expr::Literal(value, _) if value.data_type().is_string()) {
                    *expr = cast_expr(literal.clone(), bytes.clone());
                }
            }
        }
        Ok(PlannerResult::Original(exprs))
    }

    fn plan_field_access(
        &self,
        expr: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawFieldAccessExpr>> {
        let RawFieldAccessExpr { field_access, expr } = expr;
        let field_access = match field_access {
            GetFieldAccess::ListIndex { key } => GetFieldAccess::ListIndex { key: index(key, schema) },
            GetFieldAccess::ListRange { start, stop, stride } => {
                GetFieldAccess::ListRange { start: index(start, schema), stop: index(stop, schema), stride }
            }
            other => other,
        };
        Ok(PlannerResult::Original(RawFieldAccessExpr { field_access, expr }))
    }

    fn plan_binary_op(&self, mut expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        use BinaryOperator as Op;
        let is_comparison = matches!(expr.op, Op::Eq | Op::NotEq | Op::Lt | Op::LtEq | Op::Gt | Op::GtEq);
        if !is_comparison && !matches!(expr.op, Op::StringConcat | Op::AtArrow | Op::ArrowAt | Op::PGOverlap) {
            return Ok(PlannerResult::Original(expr));
        }
        let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
            // The type of a parameter may not be known yet.
            return Ok(PlannerResult::Original(expr));
        };
        if !is_list(&left) && !is_list(&right) {
            return Ok(PlannerResult::Original(expr));
        }
        // A text appended to an array of texts is an element.
        let is_converted = |list: &DataType| {
            is_comparison
                || expr.op == Op::StringConcat && element_type(list).is_some_and(|element| !element.is_string())
        };
        if left.is_string() && is_converted(&right) {
            expr.left = cast_expr(expr.left, right);
        } else if right.is_string() && is_converted(&left) {
            expr.right = cast_expr(expr.right, left);
        } else if expr.op == Op::StringConcat {
            appended((&mut expr.left, left), (&mut expr.right, right));
        }
        let (relation, left, right) = match expr.op {
            Op::AtArrow => (Relation::Contains, expr.left, expr.right),
            Op::ArrowAt => (Relation::Contains, expr.right, expr.left),
            Op::PGOverlap => (Relation::Overlaps, expr.left, expr.right),
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let (a, b) = (left.get_type(schema)?, right.get_type(schema)?);
        let list = relation.common(&a, &b)?;
        let args = [(left, a), (right, b)].map(|(arg, ty)| if ty == list { arg } else { cast_expr(arg, list.clone()) });
        Ok(PlannerResult::Planned(call(Related { relation, signature: any(2) }, args.into())))
    }
}

/// Converts an array and a value beside it, or another array, to a common type of elements. NULL is an array, as in
/// PostgreSQL.
fn appended((a, a_type): (&mut Expr, DataType), (b, b_type): (&mut Expr, DataType)) {
    let (element, other, is_array) = match (element_type(&a_type), element_type(&b_type)) {
        (Some(own), Some(other)) => (own, other, [true, true]),
        (Some(own), None) => (own, &b_type, [true, b_type == DataType::Null]),
        (None, Some(own)) => (own, &a_type, [a_type == DataType::Null, true]),
        (None, None) => return,
    };
    // Arrays in arrays are left to the function.
    if is_list(element) || is_list(other) {
        return;
    }
    let Some(common) = common(element, other) else { return };
    for (expr, ty, is_array) in [(a, &a_type, is_array[0]), (b, &b_type, is_array[1])] {
        let to = if is_array { list_of(common.clone()) } else { common.clone() };
        if *ty != to {
            *expr = cast_expr(expr.clone(), to);
        }
    }
}

/// The common type of elements; `None` if there is none.
fn common(a: &DataType, b: &DataType) -> Option<DataType> {
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (DataType::Null, ty) | (ty, DataType::Null) => Some(ty.clone()),
        // As for other comparisons.
        (a, b) if a.is_floating() && b.is_decimal() || a.is_decimal() && b.is_floating() => Some(DataType::Float64),
        (text, ty) | (ty, text) if text.is_string() && !ty.is_string() => None,
        (a, b) => match (element_type(a), element_type(b)) {
            (Some(a), Some(b)) => Some(list_of(common(a, b)?)),
            _ => comparison_coercion(a, b),
        },
    }
}

fn undefined(what: &str, left: &DataType, right: &DataType) -> DataFusionError {
    let signature = format!("operator {} {what} {}", type_name(left), type_name(right));
    Error::UndefinedFunction { signature }.into()
}

/// The type in which a value is compared with the elements of an array; `None` if there is none.
fn compared(value: &DataType, array: &DataType) -> Option<DataType> {
    match element_type(array) {
        // As other operands, texts are converted.
        Some(element) if value.is_string() => Some(element.clone()),
        Some(element) => common(value, element),
        None if !array.is_string() && *array != DataType::Null => None,
        None if *value == DataType::Null => Some(DataType::Utf8View),
        None => Some(value.clone()),
    }
}

/// The types to which DataFusion casts arguments. It refuses casts that Arrow does not have: [`converted`] makes them.
fn coerced<const N: usize>(from: &[DataType], to: [DataType; N]) -> Vec<DataType> {
    from.iter().zip(to).map(|(from, to)| if can_cast_types(from, &to) { to } else { from.clone() }).collect()
}

fn converted(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if values.data_type() == to { Ok(values.clone()) } else { Ok(cast::cast(values, to, Zone::UTC)?) }
}

/// The lists of an argument of a list type.
fn argument(array: &ArrayRef) -> Result<ListArray> {
    let none = || Error::Internal(format!("{} in the place of an array", type_name(array.data_type())));
    Ok(lists(array)?.ok_or_else(none)?)
}

fn elements(lists: &ListArray, row: usize) -> std::ops::Range<usize> {
    let offsets = lists.value_offsets();
    offsets[row] as usize..offsets[row + 1] as usize
}

fn rows_of(array: &ArrayRef) -> Result<Rows> {
    let options = SortOptions { descending: false, nulls_first: false };
    let converter = RowConverter::new(vec![SortField::new_with_options(array.data_type().clone(), options)]);
    Ok(converter?.convert_columns(std::slice::from_ref(array))?)
}

fn keys(array: &ArrayRef) -> Result<BinaryViewArray> {
    let rows = rows_of(array)?;
    let nulls = array.logical_nulls();
    let is_valid = |row| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
    Ok(rows.iter().enumerate().map(|(row, key)| is_valid(row).then(|| key.as_ref().to_vec())).collect())
}

/// Evaluates a function of two arrays.
fn evaluate(
    args: &ScalarFunctionArgs,
    compute: impl FnOnce(&ArrayRef, &ArrayRef) -> Result<BooleanArray>,
) -> Result<ColumnarValue> {
    let is_single = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
    let rows = if is_single { 1 } else { args.number_rows };
    let (left, right) = (args.args[0].to_array(rows)?, args.args[1].to_array(rows)?);
    result(Arc::new(compute(&left, &right)?), is_single)
}

/// [`key`].
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    signature: Signature,
}

impl ScalarUDFImpl for Key {
    fn name(&self) -> &str {
        "array_key"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::BinaryView)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(strict_field(self.name(), DataType::BinaryView, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match &args.args[0] {
            ColumnarValue::Array(values) => result(Arc::new(keys(values)?), false),
            ColumnarValue::Scalar(value) => result(Arc::new(keys(&value.to_array()?)?), true),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Compare {
    const ALL: [Compare; 6] = [
        Compare::Equal,
        Compare::NotEqual,
        Compare::Less,
        Compare::LessOrEqual,
        Compare::Greater,
        Compare::GreaterOrEqual,
    ];

    fn name(self, is_all: bool) -> &'static str {
        match (self, is_all) {
            (Compare::Equal, false) => "= ANY",
            (Compare::NotEqual, false) => "<> ANY",
            (Compare::Less, false) => "< ANY",
            (Compare::LessOrEqual, false) => "<= ANY",
            (Compare::Greater, false) => "> ANY",
            (Compare::GreaterOrEqual, false) => ">= ANY",
            (Compare::Equal, true) => "= ALL",
            (Compare::NotEqual, true) => "<> ALL",
            (Compare::Less, true) => "< ALL",
            (Compare::LessOrEqual, true) => "<= ALL",
            (Compare::Greater, true) => "> ALL",
            (Compare::GreaterOrEqual, true) => ">= ALL",
        }
    }

    fn apply(self, left: &ArrayRef, right: &ArrayRef) -> Result<BooleanArray> {
        if is_list(left.data_type()) {
            return self.apply(&(Arc::new(keys(left)?) as ArrayRef), &(Arc::new(keys(right)?) as ArrayRef));
        }
        let kernel = match self {
            Compare::Equal => eq,
            Compare::NotEqual => neq,
            Compare::Less => lt,
            Compare::LessOrEqual => lt_eq,
            Compare::Greater => gt,
            Compare::GreaterOrEqual => gt_eq,
        };
        Ok(kernel(left, right)?)
    }
}

/// A comparison with the elements of an array: true for ANY if it is for one of them, and for ALL if it is for all.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Quantified {
    compare: Compare,
    is_all: bool,
    signature: Signature,
}

impl Quantified {
    fn compute(&self, values: &ArrayRef, arrays: &ArrayRef) -> Result<BooleanArray> {
        let (value, array) = (values.data_type(), arrays.data_type());
        let element = compared(value, array).ok_or_else(|| undefined(self.name(), value, array))?;
        let lists = argument(&converted(arrays, &list_of(element.clone()))?)?;
        let values = converted(values, &element)?;
        let row_of_element = (0..lists.len()).flat_map(|row| elements(&lists, row).map(move |_| row as u32));
        let repeated = take(&values, &UInt32Array::from_iter_values(row_of_element), None)?;
        let compared = self.compare.apply(&repeated, lists.values())?;
        let of_row = |row: usize| {
            let mut is_unknown = false;
            for element in elements(&lists, row) {
                match compared.is_valid(element) {
                    true if compared.value(element) != self.is_all => return Some(!self.is_all),
                    is_known => is_unknown |= !is_known,
                }
            }
            (!is_unknown).then_some(self.is_all)
        };
        Ok((0..lists.len()).map(|row| if lists.is_valid(row) { of_row(row) } else { None }).collect())
    }

    /// A list that the optimizer and indexes can use; `None` for other comparisons and arrays.
    fn in_list(&self, value: &Expr, array: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
        let Expr::Literal(literal, _) = array else { return Ok(None) };
        if !matches!((self.compare, self.is_all), (Compare::Equal, false) | (Compare::NotEqual, true)) {
            return Ok(None);
        }
        // The hidden rowid is in no schema.
        let Ok(ty) = value.get_type(schema) else { return Ok(None) };
        if compared(&ty, &literal.data_type()).as_ref() != Some(&ty) {
            return Ok(None);
        }
        // A text that is not an array is an error for the rows only.
        let Ok(array) = converted(&literal.to_array()?, &list_of(ty)) else { return Ok(None) };
        let array = argument(&array)?;
        if array.is_null(0) {
            return Ok(Some(lit(ScalarValue::Boolean(None))));
        }
        let elements = array.value(0);
        if elements.is_empty() {
            return Ok(Some(lit(self.is_all)));
        }
        if is_list(elements.data_type()) {
            return Ok(None);
        }
        let element = |i| Ok(lit(ScalarValue::try_from_array(&elements, i)?));
        let list = (0..elements.len()).map(element).collect::<Result<Vec<_>>>()?;
        Ok(Some(value.clone().in_list(list, self.is_all)))
    }
}

fn quantified(expr: &Expr) -> Option<(&Quantified, &[Expr])> {
    let Expr::ScalarFunction(call) = expr else { return None };
    let inner: &dyn std::any::Any = call.func.inner().as_ref();
    Some((inner.downcast_ref()?, &call.args))
}

/// True for a comparison with the elements of an array.
pub(crate) fn is_quantified(expr: &Expr) -> bool {
    quantified(expr).is_some()
}

/// `value = ANY (literal)` or `value <> ALL (literal)` as a list; `None` for other expressions.
pub(crate) fn as_list(expr: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    match quantified(expr) {
        Some((quantified, [value, array])) => quantified.in_list(value, array, schema),
        _ => Ok(None),
    }
}

impl ScalarUDFImpl for Quantified {
    fn name(&self) -> &str {
        self.compare.name(self.is_all)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [value, array] = types else { return Err(undefined(self.name(), &DataType::Null, &DataType::Null)) };
        let element = compared(value, array).ok_or_else(|| undefined(self.name(), value, array))?;
        Ok(coerced(types, [element.clone(), list_of(element)]))
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(self.name(), DataType::Boolean, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        evaluate(&args, |values, arrays| self.compute(values, arrays))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Relation {
    /// The first array has all elements of the second.
    Contains,
    /// The arrays have an element in common.
    Overlaps,
}

impl Relation {
    /// The common type of two arrays.
    ///
    /// # Errors
    /// `UndefinedFunction` if there is none.
    fn common(self, a: &DataType, b: &DataType) -> Result<DataType> {
        let list = match (element_type(a), element_type(b)) {
            (Some(own), Some(other)) => common(own, other).map(list_of),
            (Some(own), None) if b.is_string() || *b == DataType::Null => Some(list_of(own.clone())),
            (None, Some(own)) if a.is_string() || *a == DataType::Null => Some(list_of(own.clone())),
            _ => None,
        };
        let operator = match self {
            Relation::Contains => "@>",
            Relation::Overlaps => "&&",
        };
        list.ok_or_else(|| undefined(operator, a, b))
    }
}

/// `@>` and `&&`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Related {
    relation: Relation,
    signature: Signature,
}

/// Arrays with more elements are searched by hash.
const SEARCHED_ELEMENTS_MAX: usize = 16;

impl Related {
    fn compute(&self, left: &ArrayRef, right: &ArrayRef) -> Result<BooleanArray> {
        let (left, right) = (argument(left)?, argument(right)?);
        let (left_rows, right_rows) = (rows_of(left.values())?, rows_of(right.values())?);
        let of_row = |row: usize| {
            let own: Vec<Row<'_>> =
                elements(&left, row).filter(|i| left.values().is_valid(*i)).map(|i| left_rows.row(i)).collect();
            let hashed: Option<HashSet<Row<'_>>> =
                (own.len() > SEARCHED_ELEMENTS_MAX).then(|| own.iter().copied().collect());
            let has = |i: usize| {
                let wanted = right_rows.row(i);
                let found = || hashed.as_ref().map_or_else(|| own.contains(&wanted), |hashed| hashed.contains(&wanted));
                right.values().is_valid(i) && found()
            };
            let mut wanted = elements(&right, row);
            match self.relation {
                Relation::Contains => wanted.all(has),
                Relation::Overlaps => wanted.any(has),
            }
        };
        let of_row = |row| (left.is_valid(row) && right.is_valid(row)).then(|| of_row(row));
        Ok((0..left.len()).map(of_row).collect())
    }
}

impl ScalarUDFImpl for Related {
    fn name(&self) -> &str {
        match self.relation {
            Relation::Contains => "array_contains_all",
            Relation::Overlaps => "array_overlaps",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(strict_field(self.name(), DataType::Boolean, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        evaluate(&args, |left, right| self.compute(left, right))
    }
}
