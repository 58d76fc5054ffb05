//! The functions that find a value in a document, with PostgreSQL's choice of a member that an object has several
//! times: the last one. `datafusion-functions-json` takes the first. [`LastMember`] finds the value at the end of the
//! path, and gives its text to the function. It skips other values of any depth.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray, StringViewBuilder};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ExpressionPlacement, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};
use jiter::{Jiter, Peek};

use crate::values::functions::{of_inner, result};

/// A function of a document and a path.
pub(super) fn of_last_member(inner: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(LastMember { inner }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LastMember {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for LastMember {
    of_inner!(name, aliases, signature, return_type, return_field_from_args, documentation);

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.inner.placement(args)
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some((document, path)) = args.args.split_first() else { return self.inner.invoke_with_args(args) };
        let (is_text, is_dictionary) = match document.data_type() {
            DataType::Dictionary(_, values) => (values.is_string(), true),
            ty => (ty.is_string(), false),
        };
        let (Some(path), true) = (Path::of(path)?, is_text) else { return self.inner.invoke_with_args(args) };
        let is_single = matches!(document, ColumnarValue::Scalar(_)) && matches!(path, Path::Constant(_));
        let documents = document.to_array(if is_single { 1 } else { args.number_rows })?;
        let documents = cast(&documents, &DataType::Utf8View)?;
        let mut values: ArrayRef = Arc::new(path.values(documents.as_string_view()));
        if is_dictionary {
            // The type of the result depends on that of the document.
            let texts = cast(&values, &DataType::Utf8)?;
            values = cast(&texts, &DataType::Dictionary(Box::new(DataType::Int64), Box::new(DataType::Utf8)))?;
        }
        args.args = vec![result(values, is_single)?];
        args.arg_fields.truncate(1);
        self.inner.invoke_with_args(args)
    }
}

/// A step from an object to a member, or from an array to an element.
#[derive(Debug, PartialEq)]
enum Step {
    Key(String),
    /// A position, negative from the end.
    Index(i64),
}

/// A path with the name of a member.
enum Path {
    /// NULL is a part of the path for `None`.
    Constant(Option<Vec<Step>>),
    /// A name for each document.
    Names(StringViewArray),
}

impl Path {
    /// The path of arguments; `None` for those without names of members, and for others than texts and numbers.
    fn of(args: &[ColumnarValue]) -> Result<Option<Path>> {
        if let [ColumnarValue::Array(names)] = args {
            return Ok(match names.data_type().is_string() {
                true => Some(Path::Names(cast(names, &DataType::Utf8View)?.as_string_view().clone())),
                false => None,
            });
        }
        let mut steps = Vec::with_capacity(args.len());
        for arg in args {
            match arg {
                ColumnarValue::Scalar(ScalarValue::List(list)) if list.len() == 1 => {
                    let elements = list.value(0);
                    for i in 0..elements.len() {
                        steps.push(Step::of(&ScalarValue::try_from_array(&elements, i)?));
                    }
                }
                ColumnarValue::Scalar(step) => steps.push(Step::of(step)),
                ColumnarValue::Array(_) => return Ok(None),
            }
        }
        let has_names = steps.iter().any(|step| matches!(step, Some(Some(Step::Key(_)))));
        if !has_names || steps.contains(&None) {
            return Ok(None);
        }
        Ok(Some(Path::Constant(steps.into_iter().map(Option::flatten).collect())))
    }

    /// The texts of the values at the end of the path; null where there is none.
    fn values(&self, documents: &StringViewArray) -> StringViewArray {
        let mut values = StringViewBuilder::with_capacity(documents.len());
        for (row, document) in documents.iter().enumerate() {
            let value = document.and_then(|document| match self {
                Path::Constant(steps) => {
                    steps.as_ref()?.iter().try_fold(document, |document, step| part(document, step))
                }
                Path::Names(names) => match names.is_null(row) {
                    true => None,
                    false => member_or_element(document, names.value(row)),
                },
            });
            values.append_option(value);
        }
        values.finish()
    }
}

impl Step {
    /// The step of a literal: `None` for other types, and `Some(None)` for NULL.
    fn of(value: &ScalarValue) -> Option<Option<Step>> {
        if value.is_null() {
            return Some(None);
        }
        match value {
            ScalarValue::Int64(Some(position)) => Some(Some(Step::Index(*position))),
            value => value.try_as_str().flatten().map(|name| Some(Step::Key(name.to_string()))),
        }
    }
}

fn part<'a>(document: &'a str, step: &Step) -> Option<&'a str> {
    match step {
        Step::Key(name) => member_or_element(document, name),
        Step::Index(position) => element(document, *position),
    }
}

/// The last member of a name. As in PostgreSQL, a text that reaches an array is a position if it is a number.
fn member_or_element<'a>(document: &'a str, name: &str) -> Option<&'a str> {
    let mut jiter = Jiter::new(document.as_bytes());
    match jiter.peek().ok()? {
        Peek::Object => {
            let mut found = None;
            let mut is_wanted = jiter.known_object().ok()?.map(|key| key == name);
            while let Some(is_member) = is_wanted {
                let first = jiter.peek().ok()?;
                let value = next(&mut jiter, first, document)?;
                if is_member {
                    found = Some(value);
                }
                is_wanted = jiter.next_key().ok()?.map(|key| key == name);
            }
            found
        }
        Peek::Array => element(document, name.parse().ok()?),
        _ => None,
    }
}

/// The text of the value that begins with `first`. Other than `Jiter::known_skip`, it has no limit of depth.
fn next<'a>(jiter: &mut Jiter<'a>, first: Peek, document: &'a str) -> Option<&'a str> {
    let start = jiter.current_index();
    // True for each object, and false for each array, around the next value.
    let mut around = Vec::new();
    let mut value = first;
    loop {
        let inner = match value {
            Peek::Object => {
                around.push(true);
                let has_name = jiter.known_object().ok()?.is_some();
                member(has_name, jiter)?
            }
            Peek::Array => {
                around.push(false);
                jiter.known_array().ok()?
            }
            scalar => {
                jiter.known_skip(scalar).ok()?;
                behind(&around, jiter)?
            }
        };
        value = match inner {
            Some(inner) => inner,
            None => loop {
                // The object or array has ended.
                if around.pop().is_none() {
                    return document.get(start..jiter.current_index());
                }
                if let Some(next) = behind(&around, jiter)? {
                    break next;
                }
            },
        };
    }
}

/// The beginning of the value behind another one, `Some(None)` behind the last one, and `None` for other texts than
/// documents.
fn behind(around: &[bool], jiter: &mut Jiter<'_>) -> Option<Option<Peek>> {
    match around.last() {
        None => Some(None),
        Some(true) => {
            let has_name = jiter.next_key().ok()?.is_some();
            member(has_name, jiter)
        }
        Some(false) => jiter.array_step().ok(),
    }
}

/// As [`behind`], for the value of a member whose name has been read.
fn member(has_name: bool, jiter: &mut Jiter<'_>) -> Option<Option<Peek>> {
    if has_name { jiter.peek().ok().map(Some) } else { Some(None) }
}

fn element(document: &str, position: i64) -> Option<&str> {
    let mut jiter = Jiter::new(document.as_bytes());
    if jiter.peek().ok()? != Peek::Array {
        return None;
    }
    let mut first = jiter.known_array().ok()?;
    let mut elements = Vec::new();
    while let Some(peek) = first {
        let element = next(&mut jiter, peek, document)?;
        if i64::try_from(elements.len()) == Ok(position) {
            return Some(element);
        }
        elements.push(element);
        first = jiter.array_step().ok()?;
    }
    let back = usize::try_from(position.unsigned_abs()).ok().filter(|_| position < 0)?;
    elements.get(elements.len().checked_sub(back)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_member_of_a_name_is_found() {
        for (document, path, expected) in [
            (r#"{"a":1,"b":2,"a":3}"#, &["a"][..], Some("3")),
            (r#"{"a":{"b":1,"b":2},"a":{"b":3,"b":4}}"#, &["a", "b"], Some("4")),
            (r#"{"a":[1,{"b":2, "b" : "x"}]}"#, &["a", "-1", "b"], Some("\"x\"")),
            (r#"{"a":[1,2]}"#, &["a", "2"], None),
            (r#"{"a":null}"#, &["a"], Some("null")),
            (r#"{"a":1}"#, &["a", "b"], None),
            (r#"{"\u0061":1}"#, &["a"], Some("1")),
            ("[1]", &["a"], None),
            ("{", &["a"], None),
        ] {
            let found = path.iter().try_fold(document, |document, name| member_or_element(document, name));
            assert_eq!(found, expected, "{document} {path:?}");
        }
        assert_eq!(element("[1, [2], 3]", 1), Some("[2]"));
        assert_eq!(element("[1, 2, 3]", -3), Some("1"));
        assert_eq!(element("[1, 2, 3]", -4), None);
        let deep = format!("{}1{}", "[{\"a\":".repeat(100_000), "}]".repeat(100_000));
        let document = format!("{{\"deep\":{deep},\"a\":1,\"b\":{{}},\"c\":[]}}");
        assert_eq!(member_or_element(&document, "a"), Some("1"));
        assert_eq!(member_or_element(&document, "deep"), Some(deep.as_str()));
        assert_eq!(member_or_element(&document, "b"), Some("{}"));
        assert_eq!(member_or_element(&document, "c"), Some("[]"));
        assert_eq!(member_or_element("{\"deep\":[{\"x\":[1,}],\"a\":1}", "a"), None);
    }
}
