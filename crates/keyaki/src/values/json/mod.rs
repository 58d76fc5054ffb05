//! JSON: texts that are JSON documents, with PostgreSQL's operators.
//!
//! A document is stored as it was given. The functions that find values in it come from `datafusion-functions-json`;
//! [`members`] follows their paths. [`build`] makes documents of values and changes documents.

pub(crate) mod build;
mod members;
mod parts;
mod path;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, StringViewArray};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility, cast, lit,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;
use datafusion_functions_json::udfs;
use serde::de::IgnoredAny;

use self::members::of_last_member;
use self::path::Step;
use super::functions;
use crate::base::arrays;
use crate::{Error, JsonType};

/// The function of a cast to JSONB.
pub(crate) const JSONB: &str = "jsonb";
/// The function that gives documents, or arrays of documents, the type JSONB.
pub(crate) const AS_JSONB: &str = "as_jsonb";

/// True if the text is a JSON document.
pub(crate) fn is_valid(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The functions of JSON.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let aliased = |function: Arc<ScalarUDF>, alias| Arc::new(function.as_ref().clone().with_aliases([alias]));
    let found = [
        udfs::json_as_text_udf(),
        udfs::json_contains_udf(),
        udfs::json_get_array_udf(),
        udfs::json_get_bool_udf(),
        udfs::json_get_float_udf(),
        udfs::json_get_int_udf(),
        udfs::json_get_json_udf(),
        udfs::json_get_str_udf(),
        aliased(udfs::json_length_udf(), "json_array_length"),
        udfs::json_object_keys_udf(),
    ];
    let own = [
        Own::new("json", Kind::Checked),
        Own::new(JSONB, Kind::Checked),
        Own::new("json_valid", Kind::Valid),
        Own::new("json_typeof", Kind::Type),
    ];
    found
        .into_iter()
        .map(of_last_member)
        .chain(own.map(|own| Arc::new(ScalarUDF::new_from_impl(own))))
        .chain([Arc::new(ScalarUDF::new_from_impl(AsJsonb { signature: functions::any(1) }))])
        .chain(build::functions().map(Arc::new))
        .collect()
}

/// The documents that a function returns, also in arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Documents {
    /// Documents of a type.
    Always(JsonType),
    /// Documents of the type of the first argument that has documents; JSON if none has.
    AsArguments,
}

/// The documents that a function returns; `None` for functions that return other values.
pub(crate) fn returned(name: &str) -> Option<Documents> {
    Some(match name {
        AS_JSONB | JSONB | "jsonb_set" => Documents::Always(JsonType::Jsonb),
        "json"
        | "json_array_of"
        | "json_build_array"
        | "json_build_object"
        | "json_object_of_members"
        | "json_row"
        | "json_rows"
        | build::TO_JSON => Documents::Always(JsonType::Json),
        "json_concat" | "json_get_array" | "json_get_json" | "json_insert" | "json_patch" | "json_pretty"
        | "json_remove" | "json_remove_at" | "json_remove_part" | "json_remove_path" | "json_replace" | "json_set"
        | "json_strip_nulls" | "json_values" => Documents::AsArguments,
        _ => return None,
    })
}

/// `->`, `->>`, `#>` and `#>>`, `@>` and `<@` of documents, `document - 'key'` and `document - position`.
#[derive(Debug)]
pub(crate) struct Operators;

/// The keys of a path such as `$.key[0]`; `None` for other expressions, and for positions from the end.
fn keys(path: &Expr) -> Option<Vec<Expr>> {
    let Expr::Literal(value, _) = path else { return None };
    let key = |step: Step| match step {
        Step::Key(name) | Step::Any(name) => Some(lit(name)),
        Step::Index(position) => Some(lit(i64::try_from(position).ok()?)),
        Step::End(back @ 1..) => Some(lit(-i64::try_from(back).ok()?)),
        Step::End(0) => None,
    };
    path::steps(value.try_as_str()??)?.into_iter().map(key).collect()
}

/// The keys of a path such as `{key,0}`; `None` for other expressions.
fn keys_of_list(path: &Expr) -> Option<Vec<Expr>> {
    let Expr::Literal(value, _) = path else { return None };
    let text = value.try_as_str()??;
    let (lists, malformed) = arrays::split(&StringViewArray::from(vec![text]), false);
    if malformed.is_some() {
        return None;
    }
    let elements = lists.values().as_string_view_opt()?;
    // A number is the position of an element, or a name.
    let key = |element: Option<&str>| match element?.parse::<i64>() {
        Ok(position) => Some(lit(position)),
        Err(_) => element.map(lit),
    };
    elements.iter().map(key).collect()
}

/// The array of texts of a literal such as `{key,0}`; `None` for other expressions.
fn texts_of_list(literal: &Expr) -> Option<Expr> {
    let Expr::Literal(value, _) = literal else { return None };
    let (lists, malformed) = arrays::split(&StringViewArray::from(vec![value.try_as_str()??]), false);
    if malformed.is_some() {
        return None;
    }
    Some(lit(ScalarValue::List(Arc::new(lists))))
}

/// The operator of two documents or texts as a function.
fn of_documents(expr: &RawBinaryExpr, schema: &DFSchema) -> Option<Expr> {
    let (kind, left, right) = match expr.op {
        BinaryOperator::AtArrow => (build::Kind::Contains, &expr.left, &expr.right),
        BinaryOperator::ArrowAt => (build::Kind::Contains, &expr.right, &expr.left),
        BinaryOperator::Question => (build::Kind::Has, &expr.left, &expr.right),
        BinaryOperator::QuestionPipe => (build::Kind::HasAny, &expr.left, &expr.right),
        BinaryOperator::QuestionAnd => (build::Kind::HasAll, &expr.left, &expr.right),
        BinaryOperator::HashMinus => (build::Kind::RemovePath, &expr.left, &expr.right),
        BinaryOperator::Minus => {
            let is_position = expr.right.get_type(schema).is_ok_and(|ty| ty.is_integer());
            let kind = if is_position { build::Kind::RemoveAt } else { build::Kind::RemovePart };
            (kind, &expr.left, &expr.right)
        }
        _ => return None,
    };
    let is_text = |expr: &Expr| expr.get_type(schema).is_ok_and(|ty| ty.is_string());
    // An array as a literal is a text.
    let takes_list = matches!(kind, build::Kind::HasAny | build::Kind::HasAll | build::Kind::RemovePath);
    let right = match right {
        Expr::Literal(value, _) if takes_list && value.data_type().is_string() => {
            // The cast of another text is an error.
            texts_of_list(right).unwrap_or_else(|| cast(right.clone(), arrays::list_of(DataType::Utf8View)))
        }
        right => right.clone(),
    };
    let is_known = is_text(&right) || matches!(kind, build::Kind::RemoveAt);
    let is_untyped = matches!(kind, build::Kind::Has) && matches!(right, Expr::Placeholder(_));
    (is_text(left) && (takes_list || is_known || is_untyped)).then(|| build::call(kind, vec![left.clone(), right]))
}

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        if let Some(planned) = of_documents(&expr, schema) {
            return Ok(PlannerResult::Planned(planned));
        }
        let func = match expr.op {
            BinaryOperator::Arrow | BinaryOperator::HashArrow => of_last_member(udfs::json_get_json_udf()),
            BinaryOperator::LongArrow | BinaryOperator::HashLongArrow => of_last_member(udfs::json_as_text_udf()),
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let mut args = match &expr.left {
            // `a -> 'b' -> 'c'` searches the document once.
            Expr::ScalarFunction(inner) if inner.func.name() == "json_get_json" && is_constant(&inner.args[1..]) => {
                inner.args.clone()
            }
            document => vec![document.clone()],
        };
        let is_list = matches!(expr.op, BinaryOperator::HashArrow | BinaryOperator::HashLongArrow);
        let keys = if is_list { keys_of_list(&expr.right) } else { keys(&expr.right) };
        match keys {
            Some(keys) => args.extend(keys),
            // Positions are of one type.
            None => args.push(match expr.right.get_type(schema) {
                Ok(ty) if ty.is_integer() && ty != DataType::Int64 => cast(expr.right, DataType::Int64),
                _ => expr.right,
            }),
        }
        Ok(PlannerResult::Planned(Expr::ScalarFunction(ScalarFunction { func, args })))
    }
}

fn is_constant(path: &[Expr]) -> bool {
    path.iter().all(|key| matches!(key, Expr::Literal(..)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// The text itself, which must be a document.
    Checked,
    /// True for a document.
    Valid,
    /// The type of a document.
    Type,
}

/// A function of one text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Own {
    name: &'static str,
    kind: Kind,
    signature: Signature,
}

impl Own {
    fn new(name: &'static str, kind: Kind) -> Own {
        let text = TypeSignature::Exact(vec![DataType::Utf8View]);
        Own { name, kind, signature: Signature::new(text, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Own {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(if self.kind == Kind::Valid { DataType::Boolean } else { DataType::Utf8View })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_single = matches!(args.args[0], ColumnarValue::Scalar(_));
        let array = args.args[0].to_array(if is_single { 1 } else { args.number_rows })?;
        let texts = array.as_string_view();
        let invalid = |text: &str| Error::invalid_text("json", text, None);
        let values: ArrayRef = match self.kind {
            Kind::Checked => match texts.iter().flatten().find(|text| !is_valid(text)) {
                Some(text) => return Err(Error::invalid_text(self.name, text, None).into()),
                None => array,
            },
            Kind::Valid => Arc::new(texts.iter().map(|text| text.map(is_valid)).collect::<BooleanArray>()),
            Kind::Type => {
                let type_of = |text: &str| type_name(text).ok_or_else(|| invalid(text));
                let types = texts.iter().map(|text| text.map(type_of).transpose());
                Arc::new(types.collect::<crate::Result<StringViewArray>>()?)
            }
        };
        functions::result(values, is_single)
    }
}

/// Documents, or arrays of documents, with the type JSONB: the values are those of the argument.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AsJsonb {
    signature: Signature,
}

impl ScalarUDFImpl for AsJsonb {
    fn name(&self) -> &str {
        AS_JSONB
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let ty = args.arg_fields[0].data_type().clone();
        Ok(functions::strict_field(AS_JSONB, ty, &args))
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args.swap_remove(0))
    }
}

/// PostgreSQL's name of the type of a document; `None` if the text is not a document.
fn type_name(text: &str) -> Option<&'static str> {
    if !is_valid(text) {
        return None;
    }
    Some(match text.trim_ascii_start().bytes().next()? {
        b'{' => "object",
        b'[' => "array",
        b'"' => "string",
        b't' | b'f' => "boolean",
        b'n' => "null",
        _ => "number",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_return_documents() {
        assert_eq!(returned("jsonb"), Some(Documents::Always(JsonType::Jsonb)));
        assert_eq!(returned("to_json"), Some(Documents::Always(JsonType::Json)));
        assert_eq!(returned("json_get_json"), Some(Documents::AsArguments));
        assert_eq!(returned("json_as_text"), None);
    }

    #[test]
    fn documents_have_types() {
        for (text, expected) in [
            (r#" {"a": [1]} "#, Some("object")),
            ("[]", Some("array")),
            (r#""x""#, Some("string")),
            ("-1.5e3", Some("number")),
            ("true", Some("boolean")),
            ("null", Some("null")),
            ("", None),
            ("{", None),
            ("{a: 1}", None),
            ("[1,]", None),
            ("1 2", None),
        ] {
            assert_eq!(type_name(text), expected, "{text}");
        }
    }
}
