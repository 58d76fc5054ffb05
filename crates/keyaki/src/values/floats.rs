//! Canonical floating-point numbers.
//!
//! Arrow compares floats by the IEEE total order: -0.0 is below 0.0, and NaNs differ by sign and payload. Every other
//! operation (hashing, grouping, sorting, index keys) uses the bits as well. Keyaki therefore has one zero, 0.0, and one
//! NaN, the positive quiet one. For these values, the total order is PostgreSQL's: -0 equals 0, and NaN equals NaN and is
//! above all other values. Floats are made canonical where they enter: from literals, casts, parameters and files, and as
//! results of arithmetic and functions.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};

/// A floating-point number.
pub(crate) trait Float: ArrowNativeTypeOp {
    /// 0.0 for -0.0, and the same NaN for each NaN.
    fn canonical(self) -> Self;
    fn is_infinite(self) -> bool;
    fn is_not_a_number(self) -> bool;
    /// True unless `canonical` changes the value.
    fn is_canonical(self) -> bool;
}

macro_rules! float {
    ($($ty:ty)*) => {$(
        impl Float for $ty {
            #[inline]
            fn canonical(self) -> Self {
                // The sum of -0.0 and 0.0 is 0.0.
                if self.is_nan() { <$ty>::NAN } else { self + 0.0 }
            }
            #[inline]
            fn is_infinite(self) -> bool {
                self.abs() == <$ty>::INFINITY
            }
            #[inline]
            fn is_not_a_number(self) -> bool {
                self.is_nan()
            }
            #[inline]
            fn is_canonical(self) -> bool {
                Float::canonical(self).to_bits() == self.to_bits()
            }
        }
    )*};
}

float! { f32 f64 }

/// The array with canonical floats. Arrays of other types, and arrays whose floats are canonical, are returned as they
/// are.
pub(crate) fn canonical(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float32 => of::<Float32Type>(array),
        DataType::Float64 => of::<Float64Type>(array),
        _ => array.clone(),
    }
}

fn of<T: ArrowPrimitiveType>(array: &ArrayRef) -> ArrayRef
where
    T::Native: Float,
{
    let floats: &PrimitiveArray<T> = array.as_primitive();
    // Without a branch for each value.
    let all = floats.values().iter().fold(true, |all, value| all & value.is_canonical());
    if all { array.clone() } else { Arc::new(floats.unary::<_, T>(Float::canonical)) }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float32Array, Float64Array, Int32Array};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equal_numbers_have_equal_bits(a in any::<u64>(), b in any::<u64>()) {
            for (a, b) in [(a, b), (a & 1 << 63, b & 1 << 63), (a | 0x7ff8 << 48, b | 0x7ff0 << 48)] {
                let (x, y) = (f64::from_bits(a), f64::from_bits(b));
                let equal = x == y || x.is_nan() && y.is_nan();
                let (x, y) = (Float::canonical(x), Float::canonical(y));
                prop_assert_eq!(equal, x.to_bits() == y.to_bits());
                // The total order is the order of the numbers, with NaN at the end.
                let order = x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
                prop_assert_eq!(order, x.total_cmp(&y));
                prop_assert!(x.is_canonical());
            }
        }
    }

    #[test]
    fn arrays_are_copied_only_if_they_change() {
        let plain: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), None, Some(f64::NAN), Some(f64::MIN)]));
        assert!(Arc::ptr_eq(&canonical(&plain), &plain));
        let zeros: ArrayRef = Arc::new(Float32Array::from(vec![Some(-0.0), None, Some(-f32::NAN)]));
        let changed = canonical(&zeros);
        let values = changed.as_primitive::<Float32Type>();
        assert_eq!(values.value(0).to_bits(), 0);
        assert!(values.is_null(1));
        assert_eq!(values.value(2).to_bits(), f32::NAN.to_bits());
        let integers: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        assert!(Arc::ptr_eq(&canonical(&integers), &integers));
    }
}
