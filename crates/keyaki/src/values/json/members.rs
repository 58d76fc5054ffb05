//! The functions that find a value in a document, with PostgreSQL's choice of a member that an object has several
//! times: the last one. `datafusion-functions-json` takes the first. [`LastMember`] finds the value at the end of the
//! path, and gives its text to the function.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray, StringViewBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ExpressionPlacement, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature,
};
use jiter::{Jiter, Peek};

use super::parts::next;
use crate::values::functions::result;

/// A function of a document and a path.
pub(super) fn of_last_member(inner: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let aliases = inner.aliases().to_vec();
    Arc::new(ScalarUDF::new_from_impl(LastMember { inner, aliases }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LastMember {
    inner: Arc<ScalarUDF>,
    aliases: Vec<String>,
}

impl ScalarUDFImpl for LastMember {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.inner.placement(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some((document, path)) = args.args.split_first() else { return self.inner.invoke_with_args(args) };
        let is_text = document.data_type().is_string();
        let (Some(path), true) = (Path::of(path)?, is_text) else { return self.inner.invoke_with_args(args) };
        let is_single = matches!(document, ColumnarValue::Scalar(_)) && matches!(path, Path::Constant(_));
        let documents = document.to_array(if is_single { 1 } else { args.number_rows })?;
        let documents = cast(&documents, &DataType::Utf8View)?;
        let values = path.values(documents.as_string_view());
        args.args = vec![result(Arc::new(values) as ArrayRef, is_single)?];
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
    }
}
