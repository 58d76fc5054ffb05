//! Arithmetic that fails instead of wrapping.
//!
//! The kernels compute all rows with wrapping operations and collect one overflow flag per batch. Only if the flag is
//! set, a second pass looks for a row that is not null and overflows. Operands are columns or single values of the same
//! type; decimals may differ in precision and scale.
//!
//! | type | result |
//! |---|---|
//! | integers | an error if it does not fit into the type |
//! | `DECIMAL` | precision and scale as computed by Arrow; an error beyond 38 digits; quotients are rounded, half away from zero |
//! | floats | canonical ([`super::floats`]); an error if finite operands give infinity, or for a division by zero |

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, Datum, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::numeric;
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type, i256,
};
use arrow::error::ArrowError;

use super::floats::Float;
use crate::base::type_name;
use crate::{Error, Result};

/// An operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// True if [`compute`] has the operation for operands of these types.
pub(crate) fn is_checked(operation: Operation, left: &DataType, right: &DataType) -> bool {
    match (left, right) {
        (DataType::Decimal128(..), DataType::Decimal128(..)) => operation != Operation::Remainder,
        // Remainders of integers do not overflow.
        (left, right) if left.is_integer() => left == right && operation != Operation::Remainder,
        (DataType::Float32, DataType::Float32) | (DataType::Float64, DataType::Float64) => true,
        _ => false,
    }
}

/// Applies an operation to columns or single values. Two single values give an array of one value.
///
/// # Errors
/// `OutOfRange`, `DivisionByZero`.
pub(crate) fn compute(operation: Operation, left: &dyn Datum, right: &dyn Datum) -> Result<ArrayRef> {
    let both = Operands::new(left, right);
    match left.get().0.data_type() {
        DataType::Int8 => integers::<Int8Type>(operation, &both),
        DataType::Int16 => integers::<Int16Type>(operation, &both),
        DataType::Int32 => integers::<Int32Type>(operation, &both),
        DataType::Int64 => integers::<Int64Type>(operation, &both),
        DataType::UInt8 => integers::<UInt8Type>(operation, &both),
        DataType::UInt16 => integers::<UInt16Type>(operation, &both),
        DataType::UInt32 => integers::<UInt32Type>(operation, &both),
        DataType::UInt64 => integers::<UInt64Type>(operation, &both),
        DataType::Float32 => floats::<Float32Type>(operation, &both),
        DataType::Float64 => floats::<Float64Type>(operation, &both),
        DataType::Decimal128(..) => decimals(operation, &both),
        other => Err(Error::Internal(format!("checked arithmetic on {other}"))),
    }
}

/// The error for a result that does not fit into a type.
pub(crate) fn overflow(ty: &DataType) -> Error {
    let ty = match ty {
        DataType::Decimal128(..) | DataType::Decimal256(..) => "numeric value".into(),
        ty => type_name(ty),
    };
    Error::OutOfRange { ty, value: None, column: None }
}

/// Two operands, each of them a column or a single value.
struct Operands<'a> {
    left: (&'a dyn Array, bool),
    right: (&'a dyn Array, bool),
    len: usize,
}

impl<'a> Operands<'a> {
    fn new(left: &'a dyn Datum, right: &'a dyn Datum) -> Self {
        let (left, right) = (left.get(), right.get());
        let len = if left.1 { right.0.len() } else { left.0.len() };
        Operands { left, right, len }
    }

    /// Null where an operand is null.
    fn nulls(&self) -> Option<NullBuffer> {
        let of = |(array, is_single): (&dyn Array, bool)| match (is_single, array.logical_nulls()) {
            (_, None) => None,
            (false, nulls) => nulls,
            (true, Some(nulls)) if nulls.is_null(0) => Some(NullBuffer::new_null(self.len)),
            (true, Some(_)) => None,
        };
        NullBuffer::union(of(self.left).as_ref(), of(self.right).as_ref())
    }

    /// Applies `f` to all rows, also to those that are null. The second value is true if `f` has flagged a row.
    fn map<T: ArrowPrimitiveType>(
        &self,
        f: impl Fn(T::Native, T::Native) -> (T::Native, bool),
    ) -> (PrimitiveArray<T>, bool) {
        let (left, right) = (self.left.0.as_primitive::<T>().values(), self.right.0.as_primitive::<T>().values());
        let mut flagged = false;
        let mut one = |a: T::Native, b: T::Native| {
            let (value, flag) = f(a, b);
            flagged |= flag;
            value
        };
        let values: Vec<T::Native> = match (self.left.1, self.right.1) {
            (true, true) => vec![one(left[0], right[0])],
            (true, false) => {
                let a = left[0];
                right.iter().map(|&b| one(a, b)).collect()
            }
            (false, true) => {
                let b = right[0];
                left.iter().map(|&a| one(a, b)).collect()
            }
            (false, false) => left.iter().zip(right).map(|(&a, &b)| one(a, b)).collect(),
        };
        (PrimitiveArray::new(values.into(), self.nulls()), flagged)
    }

    /// Applies `f` to all rows; fails if it flags a row that is not null.
    fn checked<T: ArrowPrimitiveType>(
        &self,
        f: impl Fn(T::Native, T::Native) -> (T::Native, bool) + Copy,
    ) -> Result<ArrayRef> {
        let (values, flagged) = self.map::<T>(f);
        if flagged {
            self.find::<T>(values.nulls(), |a, b| f(a, b).1.then(|| overflow(&T::DATA_TYPE)))?;
        }
        Ok(Arc::new(values))
    }

    /// The first error of `check` for a row that is not null.
    fn find<T: ArrowPrimitiveType>(
        &self,
        nulls: Option<&NullBuffer>,
        check: impl Fn(T::Native, T::Native) -> Option<Error>,
    ) -> Result<()> {
        let (left, right) = (self.left.0.as_primitive::<T>(), self.right.0.as_primitive::<T>());
        for row in (0..self.len).filter(|&row| nulls.is_none_or(|nulls| nulls.is_valid(row))) {
            let value = |array: &PrimitiveArray<T>, is_single| array.value(if is_single { 0 } else { row });
            if let Some(error) = check(value(left, self.left.1), value(right, self.right.1)) {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Operations on an integer type, with a flag for overflow.
trait Integer: Sized + Copy {
    fn add(self, other: Self) -> (Self, bool);
    fn subtract(self, other: Self) -> (Self, bool);
    fn multiply(self, other: Self) -> (Self, bool);
}

/// The flags come from operations that compilers vectorise; `overflowing_add` is not among them.
macro_rules! signed {
    ($($ty:ty, $multiply:expr;)*) => {$(
        impl Integer for $ty {
            #[inline]
            fn add(self, other: Self) -> (Self, bool) {
                let sum = self.wrapping_add(other);
                (sum, ((self ^ sum) & (other ^ sum)) < 0)
            }
            #[inline]
            fn subtract(self, other: Self) -> (Self, bool) {
                let difference = self.wrapping_sub(other);
                (difference, ((self ^ other) & (self ^ difference)) < 0)
            }
            #[inline]
            fn multiply(self, other: Self) -> (Self, bool) {
                $multiply(self, other)
            }
        }
    )*};
}

macro_rules! unsigned {
    ($($ty:ty, $multiply:expr;)*) => {$(
        impl Integer for $ty {
            #[inline]
            fn add(self, other: Self) -> (Self, bool) {
                let sum = self.wrapping_add(other);
                (sum, sum < self)
            }
            #[inline]
            fn subtract(self, other: Self) -> (Self, bool) {
                (self.wrapping_sub(other), self < other)
            }
            #[inline]
            fn multiply(self, other: Self) -> (Self, bool) {
                $multiply(self, other)
            }
        }
    )*};
}

/// Multiplies in a wider type.
macro_rules! widened {
    ($ty:ty, $wide:ty) => {
        |a: $ty, b: $ty| {
            let product = <$wide>::from(a) * <$wide>::from(b);
            (product as $ty, <$wide>::from(product as $ty) != product)
        }
    };
}

signed! {
    i8, widened!(i8, i16);
    i16, widened!(i16, i32);
    i32, widened!(i32, i64);
    i64, i64::overflowing_mul;
}
unsigned! {
    u8, widened!(u8, u16);
    u16, widened!(u16, u32);
    u32, widened!(u32, u64);
    u64, u64::overflowing_mul;
}

fn integers<T: ArrowPrimitiveType>(operation: Operation, both: &Operands<'_>) -> Result<ArrayRef>
where
    T::Native: Integer,
{
    // One loop for each operation, so that it is inlined.
    match operation {
        Operation::Add => both.checked::<T>(T::Native::add),
        Operation::Subtract => both.checked::<T>(T::Native::subtract),
        Operation::Multiply => both.checked::<T>(T::Native::multiply),
        Operation::Divide | Operation::Remainder => by_arrow(operation, both),
    }
}

fn floats<T: ArrowPrimitiveType>(operation: Operation, both: &Operands<'_>) -> Result<ArrayRef>
where
    T::Native: Float,
{
    let is_division = matches!(operation, Operation::Divide | Operation::Remainder);
    let zero = T::Native::ZERO;
    let checked = |value: T::Native| (value.canonical(), value.is_infinite());
    let (values, flagged) = match operation {
        Operation::Add => both.map::<T>(|a, b| checked(a.add_wrapping(b))),
        Operation::Subtract => both.map::<T>(|a, b| checked(a.sub_wrapping(b))),
        Operation::Multiply => both.map::<T>(|a, b| checked(a.mul_wrapping(b))),
        Operation::Divide => both.map::<T>(|a, b| {
            let value = a.div_wrapping(b);
            (value.canonical(), value.is_infinite() | (b == zero))
        }),
        Operation::Remainder => both.map::<T>(|a, b| (a.mod_wrapping(b).canonical(), b == zero)),
    };
    if flagged {
        both.find::<T>(values.nulls(), |a, b| {
            let value = match operation {
                Operation::Add => a.add_wrapping(b),
                Operation::Subtract => a.sub_wrapping(b),
                Operation::Multiply => a.mul_wrapping(b),
                Operation::Divide | Operation::Remainder => a.div_wrapping(b),
            };
            match is_division && b == zero {
                true if a.is_not_a_number() => None,
                true => Some(Error::DivisionByZero),
                false => {
                    (operation != Operation::Remainder && value.is_infinite() && !a.is_infinite() && !b.is_infinite())
                        .then(|| overflow(&T::DATA_TYPE))
                }
            }
        })?;
    }
    Ok(Arc::new(values))
}

fn decimals(operation: Operation, both: &Operands<'_>) -> Result<ArrayRef> {
    let (DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)) =
        (both.left.0.data_type(), both.right.0.data_type())
    else {
        return Err(Error::Internal("decimals of different widths".into()));
    };
    let (p1, s1, p2, s2) = (i32::from(*p1), i32::from(*s1), i32::from(*p2), i32::from(*s2));
    // Arrow's rules for the type of the result.
    let (precision, scale) = match operation {
        Operation::Add | Operation::Subtract => (s1.max(s2) + (p1 - s1).max(p2 - s2) + 1, s1.max(s2)),
        Operation::Multiply => (p1 + p2 + 1, s1 + s2),
        Operation::Divide => return quotients(both, (p1, s1), s2),
        Operation::Remainder => return by_arrow(operation, both),
    };
    let digits = i32::from(DECIMAL128_MAX_PRECISION);
    if scale > digits || (precision > digits && operation != Operation::Multiply) {
        return by_arrow(operation, both);
    }
    if precision > digits {
        // The product of two numbers of 64 bits is at most 2^126, which has 38 digits.
        let short = |value: i128| (i128::from(value as i64), i128::from(value as i64) != value);
        let product = |a, b| {
            let ((a, a_is_long), (b, b_is_long)) = (short(a), short(b));
            (a * b, a_is_long | b_is_long)
        };
        return match both.map::<Decimal128Type>(product) {
            (_, true) => by_arrow(operation, both),
            (values, false) => Ok(Arc::new(values.with_data_type(DataType::Decimal128(digits as u8, scale as i8)))),
        };
    }
    // The result has at most 38 digits: no operation overflows.
    let power = |from: i32| 10_i128.pow((scale - from) as u32);
    let (left, right) = (power(s1), power(s2));
    let (values, _) = match (operation, left == 1 && right == 1) {
        (Operation::Multiply, _) => both.map::<Decimal128Type>(|a, b| (a.wrapping_mul(b), false)),
        (Operation::Add, true) => both.map::<Decimal128Type>(|a, b| (a.wrapping_add(b), false)),
        (Operation::Add, false) => both.map::<Decimal128Type>(|a, b| {
            (a.wrapping_mul(left).wrapping_add(b.wrapping_mul(right)), false) //
        }),
        (_, true) => both.map::<Decimal128Type>(|a, b| (a.wrapping_sub(b), false)),
        (_, false) => both.map::<Decimal128Type>(|a, b| {
            (a.wrapping_mul(left).wrapping_sub(b.wrapping_mul(right)), false) //
        }),
    };
    Ok(Arc::new(values.with_data_type(DataType::Decimal128(precision as u8, scale as i8))))
}

/// Quotients of decimals, rounded half away from zero.
fn quotients(both: &Operands<'_>, (p1, s1): (i32, i32), s2: i32) -> Result<ArrayRef> {
    let digits = i32::from(DECIMAL128_MAX_PRECISION);
    // Arrow's rules for the type of the result.
    let scale = (s1 + 4).min(digits);
    let shift = scale - s1 + s2;
    let precision = (shift + p1).min(digits);
    let Some(power) = u32::try_from(shift).ok().and_then(|shift| 10_i128.checked_pow(shift)) else {
        return by_arrow(Operation::Divide, both);
    };
    let limit = 10_i128.pow(precision as u32);
    let divide = |a: i128, b: i128| {
        let numerator = a.checked_mul(power)?;
        let quotient = numerator.checked_div(b)?;
        let remainder = numerator - quotient * b;
        let is_up = remainder.unsigned_abs() >= b.unsigned_abs() - remainder.unsigned_abs();
        let sign = if (a < 0) == (b < 0) { 1 } else { -1 };
        let rounded = if is_up && remainder != 0 { quotient + sign } else { quotient };
        (rounded.abs() < limit).then_some(rounded)
    };
    let (values, flagged) = both.map::<Decimal128Type>(|a, b| match divide(a, b) {
        Some(value) => (value, false),
        None => (0, true),
    });
    let ty = DataType::Decimal128(precision as u8, scale as i8);
    if !flagged {
        return Ok(Arc::new(values.with_data_type(ty)));
    }
    // Rows with long numerators.
    let (left, right) = (both.left.0.as_primitive::<Decimal128Type>(), both.right.0.as_primitive::<Decimal128Type>());
    let value = |array: &PrimitiveArray<Decimal128Type>, is_single, row| array.value(if is_single { 0 } else { row });
    let long = |row: usize| {
        if values.is_null(row) {
            return Ok(None);
        }
        let (a, b) = (value(left, both.left.1, row), value(right, both.right.1, row));
        if b == 0 {
            return Err(Error::DivisionByZero);
        }
        if let Some(value) = divide(a, b) {
            return Ok(Some(value));
        }
        let (a, b) = (i256::from_i128(a), i256::from_i128(b));
        let numerator = a.checked_mul(i256::from_i128(power)).ok_or_else(|| overflow(&ty))?;
        let (quotient, remainder) = (numerator.wrapping_div(b), numerator.wrapping_rem(b).wrapping_abs());
        let is_up = remainder >= b.wrapping_abs().wrapping_sub(remainder) && remainder != i256::ZERO;
        let sign = if a.is_negative() == b.is_negative() { i256::ONE } else { i256::MINUS_ONE };
        let rounded = if is_up { quotient.wrapping_add(sign) } else { quotient };
        rounded.to_i128().filter(|value| value.abs() < limit).map(Some).ok_or_else(|| overflow(&ty))
    };
    let long = (0..both.len).map(long).collect::<Result<PrimitiveArray<Decimal128Type>>>()?;
    Ok(Arc::new(long.with_data_type(ty)))
}

/// Arrow's checked operations, and a check of the digits of decimals.
fn by_arrow(operation: Operation, both: &Operands<'_>) -> Result<ArrayRef> {
    let kernel = match operation {
        Operation::Add => numeric::add,
        Operation::Subtract => numeric::sub,
        Operation::Multiply => numeric::mul,
        Operation::Divide => numeric::div,
        Operation::Remainder => numeric::rem,
    };
    let (left, right) = (Single(both.left), Single(both.right));
    let values = kernel(&left, &right).map_err(|error| match error {
        ArrowError::ArithmeticOverflow(_) => overflow(both.left.0.data_type()),
        error => Error::from(error),
    })?;
    if let (Some(decimals), DataType::Decimal128(precision, _)) =
        (values.as_primitive_opt::<Decimal128Type>(), values.data_type())
    {
        decimals.validate_decimal_precision(*precision).map_err(|_| overflow(values.data_type()))?;
    }
    Ok(values)
}

/// An operand as Arrow's kernels take it.
struct Single<'a>((&'a dyn Array, bool));

impl Datum for Single<'_> {
    fn get(&self) -> (&dyn Array, bool) {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, Float64Array, Int64Array, Scalar};
    use proptest::prelude::*;

    use super::*;

    const OPERATIONS: [Operation; 4] = [Operation::Add, Operation::Subtract, Operation::Multiply, Operation::Divide];

    fn exact(operation: Operation, a: i128, b: i128) -> Option<i128> {
        match operation {
            Operation::Add => Some(a + b),
            Operation::Subtract => Some(a - b),
            Operation::Multiply => a.checked_mul(b),
            Operation::Divide => a.checked_div(b),
            Operation::Remainder => a.checked_rem(b),
        }
    }

    /// The operands of a row.
    type Row<T> = (Option<T>, Option<T>);

    /// Compares an operation with i128, for two columns and for a column and a single value.
    fn check<T: ArrowPrimitiveType>(rows: &[Row<T::Native>])
    where
        T::Native: Into<i128> + TryFrom<i128>,
    {
        let left: PrimitiveArray<T> = rows.iter().map(|row| row.0).collect();
        let right: PrimitiveArray<T> = rows.iter().map(|row| row.1).collect();
        for operation in OPERATIONS {
            let compare = |actual: Result<ArrayRef>, pairs: Vec<Row<T::Native>>| {
                let expected: Option<Vec<Option<T::Native>>> = pairs
                    .iter()
                    .map(|pair| match pair {
                        (Some(a), Some(b)) => {
                            let value = exact(operation, (*a).into(), (*b).into())?;
                            T::Native::try_from(value).ok().map(Some)
                        }
                        _ => Some(None),
                    })
                    .collect();
                match (expected, actual) {
                    (Some(expected), Ok(actual)) => {
                        assert_eq!(actual.as_primitive::<T>(), &expected.into_iter().collect::<PrimitiveArray<T>>());
                    }
                    (None, Err(Error::OutOfRange { ty, .. })) => assert_eq!(ty, type_name(&T::DATA_TYPE)),
                    (None, Err(Error::DivisionByZero)) => assert_eq!(operation, Operation::Divide),
                    (expected, actual) => panic!("{operation:?} of {pairs:?}: {actual:?} instead of {expected:?}"),
                }
            };
            compare(compute(operation, &left, &right), rows.to_vec());
            let first = rows[0].1;
            let single = Scalar::new(right.slice(0, 1));
            let pairs = rows.iter().map(|row| (row.0, first)).collect();
            compare(compute(operation, &left, &single), pairs);
            let pairs = rows.iter().map(|row| (first, row.0)).collect();
            compare(compute(operation, &single, &left), pairs);
        }
    }

    /// Values near the ends of the type, near zero, and others.
    macro_rules! values {
        ($ty:ty) => {
            prop::option::weighted(
                0.9,
                prop_oneof![
                    Just(<$ty>::MIN),
                    Just(<$ty>::MAX),
                    (0 as $ty..4),
                    (0 as $ty..4).prop_map(|d| <$ty>::MAX - d),
                    (0 as $ty..4).prop_map(|d| <$ty>::MIN + d),
                    any::<$ty>(),
                ],
            )
        };
    }

    proptest! {
        #[test]
        fn integers_are_exact_or_fail(
            a in prop::collection::vec((values!(i8), values!(i8)), 1..20),
            b in prop::collection::vec((values!(i16), values!(i16)), 1..20),
            c in prop::collection::vec((values!(i32), values!(i32)), 1..20),
            d in prop::collection::vec((values!(i64), values!(i64)), 1..20),
            e in prop::collection::vec((values!(u64), values!(u64)), 1..4),
        ) {
            check::<Int8Type>(&a);
            check::<Int16Type>(&b);
            check::<Int32Type>(&c);
            check::<Int64Type>(&d);
            check::<UInt64Type>(&e);
        }

        #[test]
        fn decimals_are_exact_or_fail(
            rows in prop::collection::vec((-999_999_i128..1_000_000, -999_999_i128..1_000_000), 1..20),
            scales in (0_i8..6, 0_i8..6),
            precision in 6_u8..=38,
        ) {
            let column = |values: Vec<i128>, scale| {
                Decimal128Array::from(values).with_precision_and_scale(precision, scale).unwrap()
            };
            let left = column(rows.iter().map(|row| row.0).collect(), scales.0);
            let right = column(rows.iter().map(|row| row.1).collect(), scales.1);
            for operation in [Operation::Add, Operation::Subtract, Operation::Multiply] {
                let actual = compute(operation, &left, &right).unwrap();
                let scale = match operation {
                    Operation::Multiply => 0,
                    _ => scales.0.max(scales.1),
                };
                let units = |value: i128, from: i8| value * 10_i128.pow((scale - from).max(0) as u32);
                let expected: Vec<i128> = rows
                    .iter()
                    .map(|(a, b)| exact(operation, units(*a, scales.0), units(*b, scales.1)).unwrap())
                    .collect();
                prop_assert_eq!(actual.as_primitive::<Decimal128Type>().values().to_vec(), expected);
                // Arrow infers the same type.
                let arrow = by_arrow(operation, &Operands::new(&left, &right)).unwrap();
                prop_assert_eq!(&arrow, &actual);
            }
        }
    }

    #[test]
    fn quotients_of_decimals_are_rounded() {
        let column = |value: i128, precision, scale| {
            Decimal128Array::from(vec![Some(value), None]).with_precision_and_scale(precision, scale).unwrap()
        };
        for (a, b, expected) in [
            (20, 30, 66_667),
            (-20, 30, -66_667),
            (20, -30, -66_667),
            (-20, -30, 66_667),
            (10, 30, 33_333),
            (1, 40, 2500),
            (1, 16_000_000, 0),
            (-1, 1_000_000, 0),
            (5, 1_000_000, 1),
        ] {
            let quotient = compute(Operation::Divide, &column(a, 10, 1), &column(b, 10, 1)).unwrap();
            assert_eq!(quotient.data_type(), &DataType::Decimal128(15, 5));
            assert_eq!(quotient.as_primitive::<Decimal128Type>().value(0), expected, "{a} / {b}");
            assert!(quotient.is_null(1));
            let arrow = by_arrow(Operation::Divide, &Operands::new(&column(a, 10, 1), &column(b, 10, 1))).unwrap();
            assert_eq!(arrow.data_type(), quotient.data_type());
        }
        // Numerators of more than 38 digits.
        let long = 10_i128.pow(33) + 5;
        let quotient = compute(Operation::Divide, &column(long, 38, 0), &column(10_i128.pow(10), 38, 10)).unwrap();
        assert_eq!(quotient.data_type(), &DataType::Decimal128(38, 4));
        assert!(compute(Operation::Divide, &column(long, 38, 0), &column(1, 38, 10)).is_err());
        assert_eq!(quotient.as_primitive::<Decimal128Type>().value(0) / 10_000, long);
        let error = compute(Operation::Divide, &column(1, 10, 1), &column(0, 10, 1)).unwrap_err();
        assert!(matches!(error, Error::DivisionByZero));
    }

    #[test]
    fn decimals_end_at_38_digits() {
        let largest = 10_i128.pow(38) - 1;
        let column = |value| Decimal128Array::from(vec![Some(value), None]).with_precision_and_scale(38, 0).unwrap();
        for (operation, a, b) in [
            (Operation::Add, largest, 1),
            (Operation::Add, largest, largest),
            (Operation::Subtract, -largest, 1),
            (Operation::Multiply, largest, 2),
            (Operation::Multiply, largest, largest),
        ] {
            let error = compute(operation, &column(a), &column(b)).unwrap_err();
            assert_eq!(error.to_string(), "numeric value out of range", "{operation:?} {a} {b}");
        }
        assert!(compute(Operation::Add, &column(largest), &column(0)).is_ok());
        let (least, long) = (i128::from(i64::MIN), 1_i128 << 63);
        for (a, b) in [(least, least), (least, long - 1), (long, 5), (-7, long), (long, long)] {
            let product = compute(Operation::Multiply, &column(a), &column(b)).unwrap();
            assert_eq!(product.as_primitive::<Decimal128Type>(), &column(a * b), "{a} {b}");
        }
    }

    #[test]
    fn nulls_hide_overflows() {
        let left = Int64Array::new(vec![i64::MAX, 1].into(), Some(NullBuffer::from(vec![false, true])));
        let sum = compute(Operation::Add, &left, &Int64Array::from(vec![i64::MAX, 1])).unwrap();
        assert_eq!(sum.as_primitive::<Int64Type>(), &Int64Array::from(vec![None, Some(2)]));
    }

    #[test]
    fn floats_are_canonical_and_do_not_overflow() {
        let compute = |operation, a: f64, b: f64| {
            let result = compute(operation, &Float64Array::from(vec![a]), &Float64Array::from(vec![b]));
            result.map(|array| array.as_primitive::<Float64Type>().value(0))
        };
        let bits = |value: Result<f64>| value.unwrap().to_bits();
        assert_eq!(bits(compute(Operation::Multiply, 0.0, -1.0)), 0.0_f64.to_bits());
        assert_eq!(bits(compute(Operation::Subtract, -0.0, 0.0)), 0.0_f64.to_bits());
        assert_eq!(bits(compute(Operation::Remainder, -4.0, 2.0)), 0.0_f64.to_bits());
        assert_eq!(bits(compute(Operation::Subtract, f64::INFINITY, f64::INFINITY)), f64::NAN.to_bits());
        assert_eq!(compute(Operation::Add, f64::INFINITY, 1.0).unwrap(), f64::INFINITY);
        assert_eq!(compute(Operation::Divide, 1.0, f64::INFINITY).unwrap(), 0.0);
        for (operation, a, b) in [(Operation::Multiply, 1e308, 10.0), (Operation::Divide, 1e308, 0.1)] {
            assert_eq!(compute(operation, a, b).unwrap_err().to_string(), "double precision out of range");
        }
        assert!(matches!(compute(Operation::Divide, 1.0, 0.0), Err(Error::DivisionByZero)));
        assert!(matches!(compute(Operation::Remainder, 1.0, 0.0), Err(Error::DivisionByZero)));
        assert!(compute(Operation::Divide, f64::NAN, 0.0).unwrap().is_nan());
    }
}
