//! Functions that make documents of values and of other documents.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, ListBuilder, RecordBatch, StringBuilder, StringViewArray,
    StringViewBuilder,
};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use arrow::json::writer::{EncoderOptions, make_encoder};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::parts::{self, Change, Parts};
use super::path;
use crate::base::arrays::{is_list, list_of, lists};
use crate::base::uuids;
use crate::values::functions::{self, any, arrays, result, strict_field, undefined};
use crate::{Error, Result};

/// The name of the function that makes a document of a value.
pub(crate) const TO_JSON: &str = "to_json";

/// The error for rows.
const NO_ROWS: &str = "a document that is not an array of objects cannot be rows";

/// The functions of this module.
pub(super) fn functions() -> impl Iterator<Item = ScalarUDF> {
    let signature = || Signature::user_defined(Volatility::Immutable);
    let document = move |kind| ScalarUDF::new_from_impl(DocumentFunction { kind, signature: signature() });
    let to_json = ScalarUDF::new_from_impl(ToJson::new(false));
    Kind::ALL.into_iter().map(document).chain(std::iter::once(to_json))
}

/// The call of a function.
pub(crate) fn call(kind: Kind, args: Vec<Expr>) -> Expr {
    functions::call(DocumentFunction { kind, signature: Signature::user_defined(Volatility::Immutable) }, args)
}

/// `to_json` of a document or of an array of documents, which are values already.
pub(crate) fn of_documents() -> ScalarUDF {
    ScalarUDF::new_from_impl(ToJson::new(true))
}

/// `to_json(value)`: the document of a value, as COPY writes it. Texts become strings.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ToJson {
    /// Texts are documents.
    is_document: bool,
    signature: Signature,
}

impl ToJson {
    fn new(is_document: bool) -> ToJson {
        // The statement determines which texts are documents.
        ToJson { is_document, signature: Signature { volatility: Volatility::Stable, ..any(1) } }
    }
}

impl ScalarUDFImpl for ToJson {
    fn name(&self) -> &str {
        TO_JSON
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8View)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(TO_JSON, DataType::Utf8View, &args))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let is_single = matches!(args.args[0], ColumnarValue::Scalar(_));
        let array = args.args[0].to_array(if is_single { 1 } else { args.number_rows })?;
        let texts = if self.is_document { documents(&array)? } else { values(&array)? };
        result(Arc::new(texts), is_single)
    }
}

/// The documents of an array; arrays of documents become documents.
fn documents(array: &ArrayRef) -> DfResult<StringViewArray> {
    let Some(lists) = lists(array)? else { return Ok(texts(array)?.as_string_view().clone()) };
    let elements = documents(lists.values())?;
    let ends = lists.value_offsets();
    let text = |row: usize| {
        let elements = (ends[row] as usize..ends[row + 1] as usize).map(|i| element(&elements, i));
        lists.is_valid(row).then(|| parts::array(elements))
    };
    Ok((0..lists.len()).map(text).collect())
}

fn element(documents: &StringViewArray, i: usize) -> &str {
    if documents.is_valid(i) { documents.value(i) } else { "null" }
}

/// The documents of values.
///
/// # Errors
/// Types that JSON does not have.
pub(crate) fn values(array: &ArrayRef) -> DfResult<StringViewArray> {
    let batch = RecordBatch::try_from_iter([("value", array.clone())])?;
    let printable = uuids::printable_as_json(&batch);
    let (field, column) = (printable.schema().fields()[0].clone(), printable.column(0).clone());
    let mut builder = StringViewBuilder::with_capacity(column.len());
    if column.data_type() == &DataType::Null {
        (0..column.len()).for_each(|_| builder.append_null());
        return Ok(builder.finish());
    }
    let options = EncoderOptions::default().with_explicit_nulls(true);
    let mut encoder = make_encoder(&field, column.as_ref(), &options)?;
    let mut text = Vec::new();
    for row in 0..column.len() {
        if column.is_null(row) {
            builder.append_null();
            continue;
        }
        text.clear();
        encoder.encode(row, &mut text);
        builder.append_value(std::str::from_utf8(&text).map_err(|_| Error::Internal("JSON is not UTF-8".into()))?);
    }
    Ok(builder.finish())
}

fn texts(array: &ArrayRef) -> DfResult<ArrayRef> {
    Ok(arrow::compute::cast(array, &DataType::Utf8View)?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// An object of names and documents, in turns.
    Object,
    /// An array of documents.
    Array,
    /// A name and a document as text of a member.
    Member,
    /// An object of an array of members.
    ObjectOf,
    /// An array of an array of documents.
    ArrayOf,
    /// A document, a path as an array of texts, a value, and whether a missing member is added.
    SetAt,
    /// A document, paths and values in turns.
    Set,
    Insert,
    Replace,
    /// A document and paths.
    Remove,
    /// A document and the name of a member, or a text that is an element.
    RemovePart,
    /// A document and a position.
    RemoveAt,
    Patch,
    /// Two documents: members of both objects, elements of both arrays.
    Concat,
    StripNulls,
    Pretty,
    /// The names of members and the positions of elements.
    Keys,
    /// Members and elements as documents.
    Values,
    /// Members and elements as texts.
    Texts,
    /// A document that is an object.
    Row,
    /// The elements of a document that is an array of objects.
    Rows,
    /// Two documents.
    Contains,
    /// A document and a text: the name of a member, an element, or the string itself.
    Has,
    /// A document and an array of texts.
    HasAny,
    HasAll,
    /// A document and a path as an array of texts.
    RemovePath,
}

impl Kind {
    const ALL: [Kind; 26] = [
        Kind::Object,
        Kind::Array,
        Kind::Member,
        Kind::ObjectOf,
        Kind::ArrayOf,
        Kind::SetAt,
        Kind::Set,
        Kind::Insert,
        Kind::Replace,
        Kind::Remove,
        Kind::RemovePart,
        Kind::RemoveAt,
        Kind::Patch,
        Kind::Concat,
        Kind::StripNulls,
        Kind::Pretty,
        Kind::Keys,
        Kind::Values,
        Kind::Texts,
        Kind::Row,
        Kind::Rows,
        Kind::Contains,
        Kind::Has,
        Kind::HasAny,
        Kind::HasAll,
        Kind::RemovePath,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::Object => "json_build_object",
            Kind::Array => "json_build_array",
            Kind::Member => "json_member",
            Kind::ObjectOf => "json_object_of_members",
            Kind::ArrayOf => "json_array_of",
            Kind::SetAt => "jsonb_set",
            Kind::Set => "json_set",
            Kind::Insert => "json_insert",
            Kind::Replace => "json_replace",
            Kind::Remove => "json_remove",
            Kind::RemovePart => "json_remove_part",
            Kind::RemoveAt => "json_remove_at",
            Kind::Patch => "json_patch",
            Kind::Concat => "json_concat",
            Kind::StripNulls => "json_strip_nulls",
            Kind::Pretty => "json_pretty",
            Kind::Keys => "json_keys",
            Kind::Values => "json_values",
            Kind::Texts => "json_texts",
            Kind::Row => "json_row",
            Kind::Rows => "json_rows",
            Kind::Contains => "json_contains_parts",
            Kind::Has => "jsonb_exists",
            Kind::HasAny => "jsonb_exists_any",
            Kind::HasAll => "jsonb_exists_all",
            Kind::RemovePath => "json_remove_path",
        }
    }

    /// NULL is a value for these functions; the others return NULL.
    fn takes_null(self) -> bool {
        matches!(self, Kind::Object | Kind::Array | Kind::Member | Kind::Set | Kind::Insert | Kind::Replace)
    }

    /// The types of the arguments; `None` for other numbers of arguments.
    fn arguments(self, count: usize) -> Option<Vec<DataType>> {
        use DataType::{Boolean, Int64, Utf8View};
        let list = || list_of(Utf8View);
        Some(match (self, count) {
            (Kind::Object, _) if count.is_multiple_of(2) => vec![Utf8View; count],
            (Kind::Array, _) => vec![Utf8View; count],
            (Kind::Set | Kind::Insert | Kind::Replace, 3..) if !count.is_multiple_of(2) => vec![Utf8View; count],
            (Kind::Remove, 1..) => vec![Utf8View; count],
            (Kind::ObjectOf | Kind::ArrayOf, 1) => vec![list()],
            (Kind::RemoveAt, 2) => vec![Utf8View, Int64],
            (Kind::SetAt, 3) => vec![Utf8View, list(), Utf8View],
            (Kind::SetAt, 4) => vec![Utf8View, list(), Utf8View, Boolean],
            (Kind::HasAny | Kind::HasAll | Kind::RemovePath, 2) => vec![Utf8View, list()],
            (Kind::Member | Kind::RemovePart | Kind::Patch | Kind::Concat, 2) => vec![Utf8View; 2],
            (Kind::Contains | Kind::Has, 2) => vec![Utf8View; 2],
            (Kind::StripNulls | Kind::Pretty | Kind::Row, 1) => vec![Utf8View],
            (kind, 1) if kind.is_list() => vec![Utf8View],
            _ => return None,
        })
    }
}

/// A function of documents.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DocumentFunction {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for DocumentFunction {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let wanted = self.kind.arguments(types.len());
        let fits = |wanted: &Vec<DataType>| {
            let is_text = |ty: &DataType| matches!(ty, DataType::Null) || !is_list(ty);
            wanted.iter().zip(types).all(|(wanted, ty)| *ty == DataType::Null || is_list(wanted) != is_text(ty))
        };
        match wanted.filter(fits) {
            Some(types) => Ok(types),
            None => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(match self.kind {
            kind if kind.is_list() => list_of(DataType::Utf8),
            kind if kind.is_condition() => DataType::Boolean,
            _ => DataType::Utf8View,
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let ty = self.return_type(&[])?;
        Ok(match self.kind {
            Kind::Object | Kind::Array | Kind::Member => Arc::new(Field::new(self.name(), ty, false)),
            kind if kind.takes_null() => Arc::new(Field::new(self.name(), ty, args.arg_fields[0].is_nullable())),
            _ => strict_field(self.name(), ty, &args),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        // A function without arguments has one value.
        let rows = arrays.first().map_or(1, |array| array.len());
        let arguments = Arguments::of(&arrays);
        let is_null = |row: usize| match self.kind {
            Kind::Set | Kind::Insert | Kind::Replace => arrays[0].is_null(row),
            kind if kind.takes_null() => false,
            _ => arrays.iter().any(|array| array.is_null(row)),
        };
        let value = |row: usize| if is_null(row) { Ok(None) } else { self.kind.value(&arguments, row).map(Some) };
        let array: ArrayRef = match self.kind {
            kind if kind.is_list() => {
                let mut builder = ListBuilder::new(StringBuilder::new());
                for row in 0..rows {
                    match is_null(row) {
                        true => builder.append_null(),
                        false => builder.append_value(kind.list(arguments.document(row)?)?),
                    }
                }
                Arc::new(builder.finish())
            }
            kind if kind.is_condition() => {
                let holds = |row: usize| {
                    if is_null(row) { Ok(None) } else { kind.holds(&arguments, row).map(Some) }
                };
                Arc::new((0..rows).map(holds).collect::<Result<BooleanArray>>()?)
            }
            _ => Arc::new((0..rows).map(value).collect::<Result<StringViewArray>>()?),
        };
        result(array, is_single)
    }
}

fn invalid(document: &str) -> Error {
    Error::invalid_text("json", document, None)
}

/// The arguments of a function, of the types of [`Kind::arguments`].
struct Arguments<'a> {
    arrays: &'a [ArrayRef],
}

impl<'a> Arguments<'a> {
    fn of(arrays: &'a [ArrayRef]) -> Arguments<'a> {
        Arguments { arrays }
    }

    fn len(&self) -> usize {
        self.arrays.len()
    }

    fn text(&self, argument: usize, row: usize) -> &'a str {
        self.arrays[argument].as_string_view().value(row)
    }

    /// A text; `None` for NULL.
    fn optional(&self, argument: usize, row: usize) -> Option<&'a str> {
        self.arrays[argument].is_valid(row).then(|| self.text(argument, row))
    }

    /// The document of a value.
    fn value(&self, argument: usize, row: usize) -> &'a str {
        self.optional(argument, row).unwrap_or("null")
    }

    /// The parts of the first argument.
    fn document(&self, row: usize) -> Result<Parts<'a>> {
        Parts::of(self.text(0, row)).ok_or_else(|| invalid(self.text(0, row)))
    }

    /// The elements of an array of texts.
    fn elements(&self, argument: usize, row: usize) -> Vec<String> {
        let lists: &ListArray = self.arrays[argument].as_list();
        let elements = lists.value(row);
        let elements = elements.as_string_view();
        (0..elements.len()).map(|i| element(elements, i).to_string()).collect()
    }

    /// The steps of a path as in SQLite; `None` for NULL.
    fn path(&self, argument: usize, row: usize) -> Result<Option<Vec<path::Step>>> {
        let Some(text) = self.optional(argument, row) else { return Ok(None) };
        match path::steps(text) {
            Some(steps) => Ok(Some(steps)),
            None => Err(Error::InvalidParameter {
                name: "path".into(),
                value: text.into(),
                expected: "a path such as $.key[0]".into(),
            }),
        }
    }
}

impl Kind {
    /// True for functions that return arrays.
    fn is_list(self) -> bool {
        matches!(self, Kind::Keys | Kind::Values | Kind::Texts | Kind::Rows)
    }

    fn is_condition(self) -> bool {
        matches!(self, Kind::Contains | Kind::Has | Kind::HasAny | Kind::HasAll)
    }

    /// The value of a condition for a row whose arguments are not NULL.
    fn holds(self, args: &Arguments<'_>, row: usize) -> Result<bool> {
        if self == Kind::Contains {
            let (outer, inner) = (args.text(0, row), args.text(1, row));
            return parts::contains(outer, inner)
                .ok_or_else(|| invalid(if Parts::of(outer).is_none() { outer } else { inner }));
        }
        let document = args.document(row)?;
        let has = |key: &str| match &document {
            Parts::Object(members) => members.iter().any(|(name, _)| name == key),
            Parts::Array(elements) => elements.iter().any(|text| parts::string(text).as_deref() == Some(key)),
            Parts::Scalar(text) => parts::string(text).as_deref() == Some(key),
        };
        let keys = || -> ArrayRef { args.arrays[1].as_list::<i32>().value(row) };
        Ok(match self {
            Kind::HasAny => keys().as_string_view().iter().flatten().any(has),
            Kind::HasAll => keys().as_string_view().iter().flatten().all(has),
            _ => has(args.text(1, row)),
        })
    }

    /// The names, positions, documents or texts of the parts of a document.
    ///
    /// # Errors
    /// `Evaluation` for other documents than arrays of objects in place of rows.
    fn list(self, parts: Parts<'_>) -> Result<Vec<Option<String>>> {
        let value = |text: &str| match self {
            Kind::Texts if text == "null" => None,
            Kind::Texts => Some(parts::string(text).unwrap_or_else(|| text.to_string())),
            _ => Some(text.to_string()),
        };
        Ok(match parts {
            Parts::Array(elements) if self == Kind::Rows => {
                let row = |text: &str| matches!(Parts::of(text), Some(Parts::Object(_))).then(|| text.to_string());
                let rows: Option<Vec<String>> = elements.iter().map(|text| row(text)).collect();
                rows.ok_or_else(|| Error::Evaluation(NO_ROWS.into()))?.into_iter().map(Some).collect()
            }
            _ if self == Kind::Rows => return Err(Error::Evaluation(NO_ROWS.into())),
            Parts::Object(members) if self == Kind::Keys => members.into_iter().map(|(name, _)| Some(name)).collect(),
            Parts::Object(members) => members.iter().map(|(_, text)| value(text)).collect(),
            Parts::Array(elements) if self == Kind::Keys => (0..elements.len()).map(|i| Some(i.to_string())).collect(),
            Parts::Array(elements) => elements.iter().map(|text| value(text)).collect(),
            Parts::Scalar(_) => Vec::new(),
        })
    }

    /// The document for a row whose arguments are not NULL, except those of functions that take NULL.
    fn value(self, args: &Arguments<'_>, row: usize) -> Result<String> {
        let name = |argument: usize| match args.optional(argument, row) {
            Some(name) => Ok(name),
            None => Err(Error::Evaluation("null value not allowed for object key".into())),
        };
        Ok(match self {
            Kind::Object => {
                let members = (0..args.len()).step_by(2).map(|i| Ok((name(i)?, args.value(i + 1, row))));
                parts::object(members.collect::<Result<Vec<_>>>()?)
            }
            Kind::Array => parts::array((0..args.len()).map(|i| args.value(i, row))),
            Kind::Member => {
                let mut member = String::new();
                parts::put_string(name(0)?, &mut member);
                member.push(':');
                member.push_str(args.value(1, row));
                member
            }
            Kind::ArrayOf => parts::array(args.elements(0, row)),
            Kind::ObjectOf => format!("{{{}}}", args.elements(0, row).join(",")),
            Kind::SetAt => {
                let (path, value) = (args.elements(1, row), args.text(2, row));
                let inserts = args.len() < 4 || args.arrays[3].as_boolean().value(row);
                let change = Change::Value { value, replaces: true, inserts };
                Self::changed(args, row, &path::elements(path.iter().map(String::as_str)), change, false)?
            }
            Kind::Set | Kind::Insert | Kind::Replace => {
                args.document(row)?;
                let mut document = args.text(0, row).to_string();
                for i in (1..args.len()).step_by(2) {
                    let Some(path) = args.path(i, row)? else { continue };
                    let value = args.value(i + 1, row);
                    let change =
                        Change::Value { value, replaces: self != Kind::Insert, inserts: self != Kind::Replace };
                    document = parts::changed(&document, &path, change, true).unwrap_or(document);
                }
                document
            }
            Kind::Remove => {
                args.document(row)?;
                let mut document = args.text(0, row).to_string();
                for i in 1..args.len() {
                    let Some(path) = args.path(i, row)? else { continue };
                    document = parts::changed(&document, &path, Change::Remove, false).unwrap_or(document);
                }
                document
            }
            Kind::RemovePart => parts::without(args.document(row)?, args.text(1, row)).text(),
            Kind::RemoveAt => {
                let position = args.arrays[1].as_primitive::<Int64Type>().value(row).to_string();
                match args.document(row)? {
                    Parts::Array(_) => {
                        let path = path::elements(std::iter::once(position.as_str()));
                        Self::changed(args, row, &path, Change::Remove, false)?
                    }
                    other => other.text(),
                }
            }
            Kind::Patch => {
                let (target, patch) = (args.text(0, row), args.text(1, row));
                parts::patched(Some(target), patch)
                    .ok_or_else(|| invalid(if Parts::of(target).is_none() { target } else { patch }))?
            }
            Kind::Concat => {
                let (left, right) = (args.text(0, row), args.text(1, row));
                parts::joined(left, right)
                    .ok_or_else(|| invalid(if Parts::of(left).is_none() { left } else { right }))?
            }
            Kind::StripNulls => parts::without_nulls(args.text(0, row)).ok_or_else(|| invalid(args.text(0, row)))?,
            Kind::Pretty => {
                let mut text = String::new();
                parts::put_indented(args.text(0, row), 0, &mut text).ok_or_else(|| invalid(args.text(0, row)))?;
                text
            }
            Kind::RemovePath => {
                let lists: &ListArray = args.arrays[1].as_list();
                let path = lists.value(row);
                if let Some(problem) = parts::path_problem(args.document(row)?, path.as_string_view().iter()) {
                    return Err(Error::Evaluation(problem));
                }
                let path = path::elements(path.as_string_view().iter().flatten());
                Self::changed(args, row, &path, Change::Remove, false)?
            }
            Kind::Row => match args.document(row)? {
                Parts::Object(_) => args.text(0, row).to_string(),
                _ => return Err(Error::Evaluation("a document that is not an object cannot be a row".into())),
            },
            Kind::Keys
            | Kind::Values
            | Kind::Texts
            | Kind::Rows
            | Kind::Contains
            | Kind::Has
            | Kind::HasAny
            | Kind::HasAll => {
                return Err(Error::Internal(format!("{} does not return a document", self.name())));
            }
        })
    }

    fn changed(
        args: &Arguments<'_>,
        row: usize,
        path: &[path::Step],
        change: Change<'_>,
        creates: bool,
    ) -> Result<String> {
        args.document(row)?;
        let document = args.text(0, row);
        Ok(parts::changed(document, path, change, creates).unwrap_or_else(|| document.to_string()))
    }
}
