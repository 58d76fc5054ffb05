//! Row upserts: "insert this row, or change these columns of the row with its key", as one operand that is applied without
//! reading the row when it is written (Bε-tree paper, section 1.4).
//!
//! ```text
//! flags       1 if arguments follow
//! changes     one byte for each value column, see ColumnChange
//! length      varint: length of the new row; only with arguments
//! new row     the row if the key has none, see RowCodec
//! arguments   the row of the arguments of the changes; without it, the new row has them
//! ```
//!
//! Applying an upsert never fails: commits refuse sums that could overflow. The upserts of a key are combined into one
//! where its effect is the same, so that a counter that is never read does not collect operands.

use super::RowCodec;
use super::scalar::Scalar;
use super::varint::{Reader, put_varint};
use crate::base::{ColumnType, Error, Result};

/// The function id of row upserts in messages. [`crate::UpsertFunctions`] cannot have it.
pub(crate) const ROW_UPSERT: u32 = u32::MAX;

/// The change of a column of an existing row by an argument. NULL is the result of [`Add`](ColumnChange::Add) and
/// [`Append`](ColumnChange::Append) if the column or the argument is NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ColumnChange {
    /// The column keeps its value. There is no argument.
    Keep = 0,
    /// The column gets the argument.
    Set = 1,
    /// The sum, of integers, decimals and doubles.
    Add = 2,
    /// The smaller value, not of intervals and lists; NULLs are ignored. Floats are in total order.
    Min = 3,
    /// The larger value, not of intervals and lists; NULLs are ignored.
    Max = 4,
    /// The argument if the column is NULL.
    Fill = 5,
    /// The argument unless it is NULL.
    Replace = 6,
    /// The text or bytes, followed by the argument.
    Append = 7,
}

impl ColumnChange {
    const ALL: [ColumnChange; 8] = {
        use ColumnChange::{Add, Append, Fill, Keep, Max, Min, Replace, Set};
        [Keep, Set, Add, Min, Max, Fill, Replace, Append]
    };

    fn of_byte(byte: u8) -> Option<ColumnChange> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// True if the change is defined for columns of a type.
    pub fn is_for(self, ty: ColumnType) -> bool {
        use ColumnType as C;
        match self {
            ColumnChange::Add => {
                matches!(ty, C::Int8 | C::Int16 | C::Int32 | C::Int64 | C::Float64 | C::Decimal { .. })
            }
            ColumnChange::Append => matches!(ty, C::Text | C::Bytes),
            // Months and days have no common unit, so the store does not compare intervals.
            // Lists are not compared, either.
            ColumnChange::Min | ColumnChange::Max => !matches!(ty, C::Interval | C::List(_)),
            _ => true,
        }
    }
}

/// A decoded operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowUpsert<'a> {
    codec: &'a RowCodec,
    changes: &'a [u8],
    /// The row if the key has none.
    pub new: &'a [u8],
    arguments: &'a [u8],
}

/// Appends an operand to `out`. `changes` has one entry for each value column; `arguments`, an encoded row, may be `None`
/// if the new row has the arguments.
pub(crate) fn put_row_upsert(changes: &[ColumnChange], new: &[u8], arguments: Option<&[u8]>, out: &mut Vec<u8>) {
    out.push(u8::from(arguments.is_some()));
    out.extend(changes.iter().map(|change| *change as u8));
    if arguments.is_some() {
        put_varint(new.len() as u64, out);
    }
    out.extend_from_slice(new);
    out.extend_from_slice(arguments.unwrap_or_default());
}

impl<'a> RowUpsert<'a> {
    /// Decodes an operand; `None` if its parts have wrong lengths. Rows and changes are checked by [`RowUpsert::check`].
    pub fn decode(codec: &'a RowCodec, operand: &'a [u8]) -> Option<Self> {
        let (flags, rest) = operand.split_first()?;
        let (changes, rest) = rest.split_at_checked(codec.value_columns().len())?;
        let (new, arguments) = match flags {
            0 => (rest, rest),
            1 => {
                let mut reader = Reader::new(rest);
                let len = reader.len()?;
                rest[reader.at..].split_at_checked(len)?
            }
            _ => return None,
        };
        Some(RowUpsert { codec, changes, new, arguments })
    }

    /// The operand with the effect of this one on the rows of the codec of a schema that
    /// [extends](crate::Schema::extends) its own. It keeps the columns that it lacks, and new rows have their missing
    /// values; `None` if it is invalid.
    pub fn widened(&self, codec: &RowCodec) -> Option<Vec<u8>> {
        let changes: Option<Vec<ColumnChange>> = self.changes.iter().map(|byte| ColumnChange::of_byte(*byte)).collect();
        let mut changes = changes?;
        changes.resize(codec.value_columns().len(), ColumnChange::Keep);
        let (new, arguments) = (codec.widened(self.codec, self.new)?, codec.widened(self.codec, self.arguments)?);
        let arguments = (arguments != new).then_some(arguments);
        let mut operand = Vec::with_capacity(2 * new.len() + changes.len() + 8);
        put_row_upsert(&changes, &new, arguments.as_deref(), &mut operand);
        Some(operand)
    }

    /// Checks an operand. After that, applying it cannot fail.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if a row is invalid, or a change is not defined for its column.
    pub fn check(codec: &'a RowCodec, operand: &'a [u8]) -> Result<Self> {
        let invalid = || Error::InvalidRow { len: operand.len() };
        let upsert = Self::decode(codec, operand).ok_or_else(invalid)?;
        codec.check_encoded(upsert.new)?;
        codec.check_encoded(upsert.arguments)?;
        for (i, column) in codec.value_columns().iter().enumerate() {
            if ColumnChange::of_byte(upsert.changes[i]).is_none_or(|change| !change.is_for(column.ty)) {
                return Err(invalid());
            }
        }
        Ok(upsert)
    }

    /// The changes with their arguments; `None` if the operand is invalid.
    pub fn changes(&self) -> impl Iterator<Item = Option<(ColumnChange, Scalar<'a>)>> {
        let RowUpsert { codec, changes, arguments, .. } = *self;
        (0..changes.len()).map(move |i| Some((ColumnChange::of_byte(changes[i])?, codec.value(arguments, i)?)))
    }

    /// The row after the upsert; `None` if the old row or the operand is invalid.
    pub fn apply(&self, old: Option<&[u8]>) -> Option<Vec<u8>> {
        let Some(old) = old else { return Some(self.new.to_vec()) };
        let columns = self.codec.value_columns();
        let mut values = Vec::with_capacity(columns.len());
        for (i, change) in self.changes().enumerate() {
            let (change, argument) = change?;
            values.push(changed(change, columns[i].ty, self.codec.value(old, i)?, argument)?);
        }
        Some(self.codec.row_of(&values))
    }

    /// The upsert that has the effect of this one, followed by a newer one; `None` if it has no form of its own.
    pub fn then(&self, newer: &RowUpsert<'_>) -> Option<Vec<u8>> {
        let columns = self.codec.value_columns();
        let (mut changes, mut arguments) = (Vec::new(), Vec::new());
        for ((i, first), second) in self.changes().enumerate().zip(newer.changes()) {
            let ((first, a), (second, b)) = (first?, second?);
            let (change, argument) = combined(columns[i].ty, (first, a), (second, b))?;
            changes.push(change);
            arguments.push(argument);
        }
        let (new, arguments) = (newer.apply(Some(self.new))?, self.codec.row_of(&arguments));
        let mut operand = Vec::with_capacity(new.len() + arguments.len() + changes.len() + 8);
        put_row_upsert(&changes, &new, Some(&arguments), &mut operand);
        Some(operand)
    }
}

/// A value of a column after a change.
fn changed<'a>(change: ColumnChange, ty: ColumnType, old: Scalar<'a>, argument: Scalar<'a>) -> Option<Scalar<'a>> {
    use Scalar::{Bytes, Null};
    Some(match (change, old, argument) {
        (ColumnChange::Keep, old, _) => old,
        (ColumnChange::Set, _, argument) => argument,
        (ColumnChange::Fill, Null, argument)
        | (ColumnChange::Replace | ColumnChange::Min | ColumnChange::Max, Null, argument) => argument,
        (ColumnChange::Fill, old, _) => old,
        (ColumnChange::Replace | ColumnChange::Min | ColumnChange::Max, old, Null) => old,
        (ColumnChange::Replace, _, argument) => argument,
        (ColumnChange::Min, old, argument) => {
            if is_less(ty, argument, old) {
                argument
            } else {
                old
            }
        }
        (ColumnChange::Max, old, argument) => {
            if is_less(ty, old, argument) {
                argument
            } else {
                old
            }
        }
        (ColumnChange::Add | ColumnChange::Append, Null, _) | (ColumnChange::Add | ColumnChange::Append, _, Null) => {
            Null
        }
        (ColumnChange::Add, old, argument) => sum(ty, old, argument)?,
        // The values of a message have one part.
        (ColumnChange::Append, Bytes(old, []), Bytes(argument, [])) => Bytes(old, argument),
        (ColumnChange::Append, ..) => return None,
    })
}

/// The change with the effect of two successive changes. Sums of floats depend on their order.
fn combined<'a>(
    ty: ColumnType,
    (first, a): (ColumnChange, Scalar<'a>),
    (second, b): (ColumnChange, Scalar<'a>),
) -> Option<(ColumnChange, Scalar<'a>)> {
    use ColumnChange::{Add, Append, Fill, Keep, Max, Min, Replace, Set};
    let of = |change, value| Some((change, value));
    match (first, second) {
        (first, Keep) => of(first, a),
        (_, Set) => of(Set, b),
        (Keep, second) => of(second, b),
        (Set, second) => of(Set, changed(second, ty, a, b)?),
        (Add, Add) if ty == ColumnType::Float64 => None,
        (Add, Add) | (Min, Min) | (Max, Max) | (Fill, Fill) | (Replace, Replace) | (Append, Append) => {
            of(first, changed(second, ty, a, b)?)
        }
        _ => None,
    }
}

/// The sum of two numbers, which are not NULL; `None` if it is out of the range of the type.
fn sum<'a>(ty: ColumnType, a: Scalar<'_>, b: Scalar<'_>) -> Option<Scalar<'a>> {
    match (ty, a, b) {
        (ColumnType::Float64, Scalar::Word(a), Scalar::Word(b)) => {
            let sum = f64::from_bits(a as u64) + f64::from_bits(b as u64);
            // Files contain one NaN and one zero.
            let sum = if sum.is_nan() { f64::NAN } else { sum + 0.0 };
            Some(Scalar::Word(sum.to_bits() as i64))
        }
        (_, Scalar::Word(a), Scalar::Word(b)) => {
            let sum = a.checked_add(b)?;
            (sum.unsigned_abs() <= limit(ty) || sum == least(ty)).then_some(Scalar::Word(sum))
        }
        (_, Scalar::Wide(a), Scalar::Wide(b)) => {
            let sum = a.checked_add(b)?;
            let ColumnType::Decimal { precision, .. } = ty else { return None };
            (sum.unsigned_abs() < 10_u128.pow(precision.into())).then_some(Scalar::Wide(sum))
        }
        _ => None,
    }
}

/// The least integer of a type.
fn least(ty: ColumnType) -> i64 {
    match ty {
        ColumnType::Int8 => i8::MIN.into(),
        ColumnType::Int16 => i16::MIN.into(),
        ColumnType::Int32 => i32::MIN.into(),
        _ => i64::MIN,
    }
}

/// The largest absolute value that sums of a column may reach: positive and negative integers of this magnitude exist.
pub(crate) fn limit(ty: ColumnType) -> u64 {
    match ty {
        ColumnType::Int8 => i8::MAX as u64,
        ColumnType::Int16 => i16::MAX as u64,
        ColumnType::Int32 => i32::MAX as u64,
        ColumnType::Int64 => i64::MAX as u64,
        ColumnType::Decimal { precision, .. } => 10_u64.checked_pow(precision.into()).unwrap_or(u64::MAX) - 1,
        _ => u64::MAX,
    }
}

/// Order of two values, which are not NULL.
fn is_less(ty: ColumnType, a: Scalar<'_>, b: Scalar<'_>) -> bool {
    match (a, b) {
        (Scalar::Word(a), Scalar::Word(b)) => match ty {
            ColumnType::Float64 => f64::from_bits(a as u64).total_cmp(&f64::from_bits(b as u64)).is_lt(),
            ColumnType::Float32 => f32::from_bits(a as u32).total_cmp(&f32::from_bits(b as u32)).is_lt(),
            _ => a < b,
        },
        (Scalar::Wide(a), Scalar::Wide(b)) => a < b,
        (Scalar::Bytes(a, after_a), Scalar::Bytes(b, after_b)) => a.iter().chain(after_a).lt(b.iter().chain(after_b)),
        _ => false,
    }
}

/// True for the types of columns whose sums could leave their range: integers and decimals.
pub(crate) fn is_bounded(ty: ColumnType) -> bool {
    use ColumnType as C;
    matches!(ty, C::Int8 | C::Int16 | C::Int32 | C::Int64 | C::Decimal { .. })
}

/// The magnitude of a number as far as sums are concerned; 0 for values of other types.
pub(crate) fn magnitude(ty: ColumnType, value: &Scalar<'_>) -> u64 {
    match (ty, value) {
        (ColumnType::Int8 | ColumnType::Int16 | ColumnType::Int32 | ColumnType::Int64, Scalar::Word(word)) => {
            word.unsigned_abs()
        }
        (ColumnType::Decimal { .. }, Scalar::Wide(wide)) => u64::try_from(wide.unsigned_abs()).unwrap_or(u64::MAX),
        _ => 0,
    }
}
