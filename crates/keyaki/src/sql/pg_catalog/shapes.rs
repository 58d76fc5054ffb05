//! Names, OIDs and columns of the relations of `pg_catalog`, and batches of their rows.
//!
//! `relations.txt` has a line for each relation: `name|oid|kind|column type, …`. The types are
//!
//! | letter | PostgreSQL | Arrow |
//! |---|---|---|
//! | `b` | boolean | Boolean |
//! | `c`, `n`, `t` | "char", name, text | Utf8 |
//! | `o` | oid | UInt32 |
//! | `2`, `4`, `8` | smallint, integer, bigint | Int16, Int32, Int64 |
//! | `f`, `d` | real, double precision | Float32, Float64 |
//! | `z` | timestamp with time zone | Timestamp |
//! | `S`, `O`, `T` | arrays of `2`, `o`, `t` | List |
//! | `V`, `W` | int2vector, oidvector | LargeList |
//!
//! Values of other types are texts: functions (`regproc`) have their names.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int16Array, Int16Builder, Int32Array, Int32Builder, Int64Array,
    LargeListBuilder, ListBuilder, RecordBatch, RecordBatchOptions, StringArray, StringBuilder,
    TimestampMicrosecondArray, UInt32Array, UInt32Builder,
};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::error::Result;

/// A relation of the schema.
#[derive(Debug)]
pub(super) struct Shape {
    pub name: &'static str,
    pub oid: u32,
    /// `r` for tables, `v` for views.
    pub kind: &'static str,
    /// Names and types of the columns.
    pub columns: Vec<(&'static str, Letter)>,
}

/// All relations, sorted by name.
static SHAPES: LazyLock<Vec<Shape>> =
    LazyLock::new(|| include_str!("relations.txt").lines().filter_map(shape).collect());

fn shape(line: &'static str) -> Option<Shape> {
    let mut parts = line.split('|');
    let (name, oid, kind) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    let columns = parts.next()?.split(", ").map(|column| {
        let (name, letter) = column.split_once(' ')?;
        Some((name, Letter::of(letter)?))
    });
    Some(Shape { name, oid, kind, columns: columns.collect::<Option<_>>()? })
}

/// All relations.
pub(super) fn all() -> &'static [Shape] {
    &SHAPES
}

/// A relation by its name.
pub(super) fn find(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}

/// True if the schema has the relation.
pub(in crate::sql) fn exists(name: &str) -> bool {
    // Most names of other relations do not begin so.
    name.starts_with("pg_") && find(name).is_some()
}

/// Names of all relations.
pub(in crate::sql) fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Letter {
    Bool,
    Text,
    Oid,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Time,
    Int2s,
    Int4s,
    Oids,
    Texts,
    Int2Vector,
    OidVector,
}

impl Letter {
    fn of(letter: &str) -> Option<Letter> {
        Some(match letter {
            "b" => Letter::Bool,
            "c" | "n" | "t" => Letter::Text,
            "o" => Letter::Oid,
            "2" => Letter::Int2,
            "4" => Letter::Int4,
            "8" => Letter::Int8,
            "f" => Letter::Float4,
            "d" => Letter::Float8,
            "z" => Letter::Time,
            "S" => Letter::Int2s,
            "I" => Letter::Int4s,
            "O" => Letter::Oids,
            "T" => Letter::Texts,
            "V" => Letter::Int2Vector,
            "W" => Letter::OidVector,
            _ => return None,
        })
    }

    pub fn data_type(self) -> DataType {
        let list = |ty| DataType::List(Arc::new(Field::new_list_field(ty, true)));
        let vector = |ty| DataType::LargeList(Arc::new(Field::new_list_field(ty, true)));
        match self {
            Letter::Bool => DataType::Boolean,
            Letter::Text => DataType::Utf8,
            Letter::Oid => DataType::UInt32,
            Letter::Int2 => DataType::Int16,
            Letter::Int4 => DataType::Int32,
            Letter::Int8 => DataType::Int64,
            Letter::Float4 => DataType::Float32,
            Letter::Float8 => DataType::Float64,
            Letter::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Letter::Int2s => list(DataType::Int16),
            Letter::Int4s => list(DataType::Int32),
            Letter::Oids => list(DataType::UInt32),
            Letter::Texts => list(DataType::Utf8),
            Letter::Int2Vector => vector(DataType::Int16),
            Letter::OidVector => vector(DataType::UInt32),
        }
    }

    /// An array of values.
    ///
    /// # Panics
    /// If a value has another type.
    pub fn array<'v>(self, values: impl Iterator<Item = &'v Value>) -> ArrayRef {
        let values: Vec<&Value> = values.collect();
        let all = || values.iter().copied();
        match self {
            Letter::Bool => Arc::new(BooleanArray::from_iter(all().map(Value::boolean))),
            Letter::Text => Arc::new(StringArray::from_iter(all().map(Value::text))),
            Letter::Oid => Arc::new(UInt32Array::from_iter(all().map(|v| v.number().map(|n| n as u32)))),
            Letter::Int2 => Arc::new(Int16Array::from_iter(all().map(|v| v.number().map(|n| n as i16)))),
            Letter::Int4 => Arc::new(Int32Array::from_iter(all().map(|v| v.number().map(|n| n as i32)))),
            Letter::Int8 => Arc::new(Int64Array::from_iter(all().map(Value::number))),
            Letter::Float4 => Arc::new(Float32Array::from_iter(all().map(|v| v.real().map(|r| r as f32)))),
            Letter::Float8 => Arc::new(Float64Array::from_iter(all().map(Value::real))),
            Letter::Time => {
                Arc::new(TimestampMicrosecondArray::from_iter(all().map(Value::number)).with_timezone("UTC"))
            }
            Letter::Int2s => {
                let mut lists = ListBuilder::new(Int16Builder::new());
                all().for_each(|v| lists.append_option(v.numbers().map(|list| list.iter().map(|&n| Some(n as i16)))));
                Arc::new(lists.finish())
            }
            Letter::Int4s => {
                let mut lists = ListBuilder::new(Int32Builder::new());
                all().for_each(|v| lists.append_option(v.numbers().map(|list| list.iter().map(|&n| Some(n as i32)))));
                Arc::new(lists.finish())
            }
            Letter::Oids => {
                let mut lists = ListBuilder::new(UInt32Builder::new());
                all().for_each(|v| lists.append_option(v.numbers().map(|list| list.iter().map(|&n| Some(n as u32)))));
                Arc::new(lists.finish())
            }
            Letter::Int2Vector => {
                let mut lists = LargeListBuilder::new(Int16Builder::new());
                all().for_each(|v| lists.append_option(v.numbers().map(|list| list.iter().map(|&n| Some(n as i16)))));
                Arc::new(lists.finish())
            }
            Letter::OidVector => {
                let mut lists = LargeListBuilder::new(UInt32Builder::new());
                all().for_each(|v| lists.append_option(v.numbers().map(|list| list.iter().map(|&n| Some(n as u32)))));
                Arc::new(lists.finish())
            }
            Letter::Texts => {
                let mut lists = ListBuilder::new(StringBuilder::new());
                all().for_each(|v| lists.append_option(v.texts().map(|list| list.iter().map(Some))));
                Arc::new(lists.finish())
            }
        }
    }

    /// The value of a column of which nothing is known: NULL, or a value that PostgreSQL's tools take for none.
    fn nothing(self) -> Value {
        match self {
            Letter::Bool => Value::Bool(false),
            Letter::Oid | Letter::Int2 | Letter::Int4 | Letter::Int8 => Value::Number(0),
            Letter::Float4 | Letter::Float8 => Value::Real(0.0),
            Letter::Text | Letter::Time | Letter::Int2s | Letter::Int4s | Letter::Oids | Letter::Texts => Value::Null,
            Letter::Int2Vector | Letter::OidVector => Value::Numbers(Vec::new()),
        }
    }
}

/// A value of a column, or of an argument or result of a function.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(i64),
    Real(f64),
    Text(String),
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

impl Value {
    fn boolean(&self) -> Option<bool> {
        match self {
            Value::Null => None,
            Value::Bool(value) => Some(*value),
            other => unreachable!("{other:?} is no boolean"),
        }
    }

    fn number(&self) -> Option<i64> {
        match self {
            Value::Null => None,
            Value::Number(value) => Some(*value),
            other => unreachable!("{other:?} is no number"),
        }
    }

    fn real(&self) -> Option<f64> {
        match self {
            Value::Null => None,
            Value::Real(value) => Some(*value),
            other => unreachable!("{other:?} is no floating-point number"),
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Value::Null => None,
            Value::Text(value) => Some(value),
            other => unreachable!("{other:?} is no text"),
        }
    }

    fn numbers(&self) -> Option<&[i64]> {
        match self {
            Value::Null => None,
            Value::Numbers(values) => Some(values),
            other => unreachable!("{other:?} is no array of numbers"),
        }
    }

    fn texts(&self) -> Option<&[String]> {
        match self {
            Value::Null => None,
            Value::Texts(values) => Some(values),
            other => unreachable!("{other:?} is no array of texts"),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

macro_rules! from_numbers {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Self {
                Value::Number(value.into())
            }
        }
    )*};
}

from_numbers!(i16, i32, i64, u32);

/// Positions and counts.
impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Value::Number(value as i64)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Real(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(value.into())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::Text(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

impl From<Vec<i64>> for Value {
    fn from(values: Vec<i64>) -> Self {
        Value::Numbers(values)
    }
}

impl From<Vec<String>> for Value {
    fn from(values: Vec<String>) -> Self {
        Value::Texts(values)
    }
}

/// The rows of a relation.
#[derive(Debug)]
pub(super) struct Rows {
    shape: &'static Shape,
    columns: Vec<Vec<Value>>,
    len: usize,
}

impl Rows {
    pub fn new(shape: &'static Shape) -> Rows {
        Rows { shape, columns: vec![Vec::new(); shape.columns.len()], len: 0 }
    }

    /// Adds a row with values for some of the columns. The others get that of [`Letter::nothing`].
    ///
    /// # Panics
    /// If a column does not exist, or has another type.
    pub fn add(&mut self, values: &[(&str, Value)]) {
        for (name, _) in values {
            assert!(self.shape.columns.iter().any(|(column, _)| column == name), "{}.{name}", self.shape.name);
        }
        for ((name, letter), column) in self.shape.columns.iter().zip(&mut self.columns) {
            let value = values.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone());
            column.push(value.unwrap_or_else(|| letter.nothing()));
        }
        self.len += 1;
    }

    /// True if the relation has a column.
    pub fn has(&self, column: &str) -> bool {
        self.shape.columns.iter().any(|(name, _)| *name == column)
    }

    pub fn batch(self) -> Result<RecordBatch> {
        let columns = self.shape.columns.iter();
        let fields: Vec<Field> =
            columns.clone().map(|(name, letter)| Field::new(*name, letter.data_type(), true)).collect();
        let arrays = columns.zip(&self.columns).map(|((_, letter), values)| letter.array(values.iter())).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.len));
        Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_relation() {
        assert_eq!(all().len(), include_str!("relations.txt").lines().count());
        assert!(all().is_sorted_by_key(|shape| shape.name));
        let class = find("pg_class").unwrap();
        assert_eq!((class.oid, class.kind, class.columns[1]), (1259, "r", ("relname", Letter::Text)));
        assert!(exists("pg_type") && !exists("pg_none") && !exists("t"));
    }

    #[test]
    fn rows_without_values() {
        for shape in all() {
            let mut rows = Rows::new(shape);
            rows.add(&[]);
            assert_eq!(rows.batch().unwrap().num_rows(), 1, "{}", shape.name);
        }
    }
}
