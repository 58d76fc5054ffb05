//! Functions of texts that PostgreSQL has for BYTEA, too: `substr`, `position`, `overlay` and `bit_length`; and
//! `get_byte` and `set_byte`.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewBuilder, Int32Array, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use memchr::memmem;

use super::functions::{arrays, coerced, result, strict_field, undefined};
use crate::{Error, Result};

/// `strpos`, which `position(a IN b)` calls.
pub(crate) fn position() -> ScalarUDF {
    of_kind(Kind::Position, Some(datafusion::functions::unicode::strpos()))
}

/// `overlay`.
pub(crate) fn overlay() -> ScalarUDF {
    of_kind(Kind::Overlay, Some(datafusion::functions::core::overlay()))
}

/// The functions of this module.
pub(crate) fn functions() -> [ScalarUDF; 5] {
    [
        position(),
        overlay(),
        of_kind(Kind::BitLength, Some(datafusion::functions::string::bit_length())),
        of_kind(Kind::GetByte, None),
        of_kind(Kind::SetByte, None),
    ]
}

fn of_kind(kind: Kind, inner: Option<Arc<ScalarUDF>>) -> ScalarUDF {
    let aliases = inner.as_ref().map(|inner| inner.aliases().to_vec()).unwrap_or_default();
    ScalarUDF::new_from_impl(OfBytes {
        kind,
        inner,
        aliases,
        signature: Signature::user_defined(Volatility::Immutable),
    })
}

pub(super) fn is_binary(ty: &DataType) -> bool {
    matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// `(bytes, part)`: the place of the part, from 1, or 0.
    Position,
    /// `(bytes, new, start[, length])`.
    Overlay,
    BitLength,
    /// `(bytes, place)`, from 0.
    GetByte,
    /// `(bytes, place, byte)`.
    SetByte,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfBytes {
    kind: Kind,
    /// The function of texts.
    inner: Option<Arc<ScalarUDF>>,
    aliases: Vec<String>,
    signature: Signature,
}

impl OfBytes {
    /// The types of the arguments for bytes; `None` for other arguments.
    fn types(&self, types: &[DataType]) -> Option<Vec<DataType>> {
        // A literal beside bytes is a text.
        let is_bytes = |ty: &DataType| is_binary(ty) || ty.is_null() || self.inner.is_some() && ty.is_string();
        let is_integer = |ty: &DataType| ty.is_integer() || ty.is_null();
        let bytes = match self.kind {
            Kind::Position | Kind::Overlay => 2,
            Kind::BitLength | Kind::GetByte | Kind::SetByte => 1,
        };
        let integers = match self.kind {
            Kind::Position | Kind::BitLength => 0..=0,
            Kind::Overlay => 1..=2,
            Kind::GetByte => 1..=1,
            Kind::SetByte => 2..=2,
        };
        let (first, others) = types.split_at_checked(bytes)?;
        let fits = first.iter().all(is_bytes)
            && (first.iter().any(is_binary) || self.inner.is_none())
            && integers.contains(&others.len())
            && others.iter().all(is_integer);
        fits.then(|| [vec![DataType::BinaryView; bytes], vec![DataType::Int64; others.len()]].concat())
    }
}

impl ScalarUDFImpl for OfBytes {
    fn name(&self) -> &str {
        match (self.kind, &self.inner) {
            (_, Some(inner)) => inner.name(),
            (Kind::GetByte, None) => "get_byte",
            (_, None) => "set_byte",
        }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match (self.types(types), &self.inner) {
            (Some(types), _) => Ok(types),
            (None, Some(inner)) => coerced(inner, types),
            (None, None) => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        match (self.kind, &self.inner) {
            (_, Some(inner)) if types[0] != DataType::BinaryView => inner.return_type(types),
            (Kind::Overlay | Kind::SetByte, _) => Ok(DataType::BinaryView),
            _ => Ok(DataType::Int32),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        match &self.inner {
            Some(inner) if *args.arg_fields[0].data_type() != DataType::BinaryView => {
                inner.return_field_from_args(args)
            }
            _ => Ok(strict_field(self.name(), self.return_type(&[DataType::BinaryView])?, &args)),
        }
    }

    fn is_strict(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.is_strict())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        if let Some(inner) = &self.inner
            && args.args[0].data_type() != DataType::BinaryView
        {
            return inner.invoke_with_args(args);
        }
        let (arrays, is_single) = arrays(&args)?;
        result(self.compute(&arrays)?, is_single)
    }
}

impl OfBytes {
    fn compute(&self, args: &[ArrayRef]) -> Result<ArrayRef> {
        let bytes = args[0].as_binary_view();
        let rows = bytes.len();
        let is_valid = |row: &usize| args.iter().all(|arg| arg.is_valid(*row));
        let integer = |arg: usize, row: usize| args[arg].as_primitive::<Int64Type>().value(row);
        match self.kind {
            Kind::Position => {
                let parts = args[1].as_binary_view();
                let place = |row: usize| is_valid(&row).then(|| place_of(bytes.value(row), parts.value(row)));
                Ok(Arc::new((0..rows).map(|row| place(row).transpose()).collect::<Result<Int32Array>>()?))
            }
            Kind::BitLength => {
                let bits = |row: usize| is_valid(&row).then(|| bits(bytes.value(row).len()));
                Ok(Arc::new((0..rows).map(|row| bits(row).transpose()).collect::<Result<Int32Array>>()?))
            }
            Kind::GetByte => {
                let byte = |row: usize| match is_valid(&row) {
                    true => place(bytes.value(row), integer(1, row)).map(|at| Some(i32::from(bytes.value(row)[at]))),
                    false => Ok(None),
                };
                Ok(Arc::new((0..rows).map(byte).collect::<Result<Int32Array>>()?))
            }
            Kind::SetByte => self.changed(rows, &is_valid, |row, output| {
                output.extend_from_slice(bytes.value(row));
                let at = place(output, integer(1, row))?;
                output[at] = integer(2, row) as u8;
                Ok(())
            }),
            Kind::Overlay => {
                let new = args[1].as_binary_view();
                self.changed(rows, &is_valid, |row, output| {
                    let (old, new, start) = (bytes.value(row), new.value(row), integer(2, row));
                    let length = if args.len() > 3 { integer(3, row) } else { new.len() as i64 };
                    if start <= 0 {
                        return Err(Error::Evaluation("negative substring length not allowed".into()));
                    }
                    let end = start.checked_add(length).ok_or_else(|| out_of_range("integer"))?;
                    output.extend_from_slice(&old[part_of(old.len(), 1, Some(start - 1))?]);
                    output.extend_from_slice(new);
                    output.extend_from_slice(&old[part_of(old.len(), end, None)?]);
                    Ok(())
                })
            }
        }
    }

    /// Bytes that `change` writes for each row whose arguments are not NULL.
    fn changed(
        &self,
        rows: usize,
        is_valid: &dyn Fn(&usize) -> bool,
        change: impl Fn(usize, &mut Vec<u8>) -> Result<()>,
    ) -> Result<ArrayRef> {
        let mut builder = BinaryViewBuilder::with_capacity(rows);
        let mut output = Vec::new();
        for row in 0..rows {
            if !is_valid(&row) {
                builder.append_null();
                continue;
            }
            output.clear();
            change(row, &mut output)?;
            builder.append_value(&output);
        }
        Ok(Arc::new(builder.finish()))
    }
}

fn out_of_range(ty: &str) -> Error {
    Error::OutOfRange { ty: ty.into(), value: None, column: None }
}

/// The place of a byte, from 0.
///
/// # Errors
/// `Evaluation` if there is none.
fn place(bytes: &[u8], place: i64) -> Result<usize> {
    usize::try_from(place)
        .ok()
        .filter(|place| *place < bytes.len())
        .ok_or_else(|| Error::Evaluation(format!("index {place} out of valid range, 0..{}", bytes.len() as i64 - 1)))
}

/// The place of a part, from 1; 0 if there is none.
///
/// # Errors
/// `OutOfRange` for places beyond the range of INTEGER.
fn place_of(bytes: &[u8], part: &[u8]) -> Result<i32> {
    memmem::find(bytes, part).map_or(Ok(0), |at| i32::try_from(at + 1).map_err(|_| out_of_range("integer")))
}

/// The bits of a number of bytes.
///
/// # Errors
/// `OutOfRange` for 256 MiB and more.
fn bits(bytes: usize) -> Result<i32> {
    bytes.checked_mul(8).and_then(|bits| i32::try_from(bits).ok()).ok_or_else(|| out_of_range("integer"))
}

/// The range of `substr(bytes, start, length)`.
///
/// # Errors
/// `Evaluation` for a negative length.
fn part_of(bytes: usize, start: i64, length: Option<i64>) -> Result<Range<usize>> {
    if length.is_some_and(|length| length < 0) {
        return Err(Error::Evaluation("negative substring length not allowed".into()));
    }
    let end = length.map_or(i64::MAX, |length| start.saturating_add(length));
    let place = |place: i64| usize::try_from(place.saturating_sub(1)).map_or(0, |place| place.min(bytes));
    Ok(place(start)..place(end).max(place(start)))
}

/// `substr(bytes, start[, length])`.
///
/// # Errors
/// As [`part_of`].
pub(super) fn parts(args: &[ArrayRef]) -> Result<ArrayRef> {
    let bytes = cast(&args[0], &DataType::BinaryView)?;
    let bytes = bytes.as_binary_view();
    let numbers: Vec<&PrimitiveArray<Int64Type>> = args[1..].iter().map(|arg| arg.as_primitive()).collect();
    let mut builder = BinaryViewBuilder::with_capacity(bytes.len());
    for row in 0..bytes.len() {
        if bytes.is_null(row) || numbers.iter().any(|numbers| numbers.is_null(row)) {
            builder.append_null();
            continue;
        }
        let value = bytes.value(row);
        let length = numbers.get(1).map(|lengths| lengths.value(row));
        builder.append_value(&value[part_of(value.len(), numbers[0].value(row), length)?]);
    }
    Ok(Arc::new(builder.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_with_one() {
        for (start, length, expected) in [
            (1, None, 0..3),
            (2, Some(1), 1..2),
            (0, Some(2), 0..1),
            (-5, Some(2), 0..0),
            (4, Some(1), 3..3),
            (9, None, 3..3),
            (2, Some(i64::MAX), 1..3),
            (i64::MIN, None, 0..3),
        ] {
            assert_eq!(part_of(3, start, length).unwrap(), expected, "{start} {length:?}");
        }
        assert!(part_of(3, 1, Some(-1)).is_err());
    }

    #[test]
    fn places_of_parts_begin_with_one() {
        assert_eq!(place_of(&[1, 2, 3], &[2, 3]).unwrap(), 2);
        assert_eq!(place_of(&[1, 2, 3], &[3, 2]).unwrap(), 0);
        assert_eq!(place_of(&[], &[]).unwrap(), 1);
        assert!(place(&[1], 1).is_err() && place(&[1], -1).is_err());
    }

    #[test]
    fn bits_are_checked() {
        assert_eq!(bits((1 << 28) - 1).unwrap(), i32::MAX - 7);
        assert_eq!(bits(1 << 28).unwrap_err().sqlstate().code(), "22003");
    }
}
