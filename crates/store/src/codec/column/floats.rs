//! Floats that are decimal numbers, stored as integers if this restores each of them bit by bit.
//!
//! A float `x` is stored as the integer `n` with `x == n / 10^e`, computed in double precision (and rounded to single
//! precision for `f32`). The division is correctly rounded, so numbers parsed from up to 15 digits are restored
//! exactly. The encoder verifies every value. If one of them (−0, NaN, an infinity, a number with more digits) is not
//! restored, the whole column is stored as bits.

/// Powers of ten, exact as `f64`. Larger exponents are not tried.
const POWERS: [f64; 15] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14];

/// Number of exponents.
pub(crate) const EXPONENTS: u8 = POWERS.len() as u8;

/// Magnitude below which adding and subtracting [`ROUND`] rounds to an integer.
const EXACT: f64 = (1u64 << 51) as f64;
/// 1.5 · 2^52. The sum of this and a number of magnitude below [`EXACT`] has no mantissa bits for a fraction.
const ROUND: f64 = (3u64 << 51) as f64;

/// `10^exponent`.
pub(crate) fn power(exponent: u8) -> f64 {
    POWERS[usize::from(exponent).min(POWERS.len() - 1)]
}

/// The bits of `n / power`, sign-extended for single precision.
#[inline]
pub(crate) fn bits_of_scaled(n: i64, power: f64, single: bool) -> i64 {
    let value = n as f64 / power;
    if single { (value as f32).to_bits() as i32 as i64 } else { value.to_bits() as i64 }
}

/// The integer for which [`bits_of_scaled`] returns `bits`, if there is one.
#[inline]
fn scaled_of_bits(bits: i64, power: f64, single: bool) -> Option<i64> {
    let value = if single { f32::from_bits(bits as u32).into() } else { f64::from_bits(bits as u64) };
    let scaled = value * power;
    // Values without such an integer, NaN included, fail this test or the comparison below.
    let n = if scaled.abs() < EXACT { (scaled + ROUND - ROUND) as i64 } else { return None };
    (bits_of_scaled(n, power, single) == bits).then_some(n)
}

/// Replaces the floats in `values` (as bits) by integers and returns the exponent. Returns `None` and leaves `values`
/// unchanged if one of the floats has no such integer. `hint` is the exponent of the page before.
pub(crate) fn scale(values: &mut [i64], single: bool, hint: u8, scratch: &mut Vec<i64>) -> Option<u8> {
    let fits = |exponent: u8, values: &[i64]| {
        values.iter().all(|&bits| scaled_of_bits(bits, power(exponent), single).is_some())
    };
    // The smallest exponent that fits the first values, or the hint if it is larger and fits them too.
    let sample = &values[..values.len().min(8)];
    let mut exponent = (0..EXPONENTS).find(|&exponent| fits(exponent, sample))?;
    if hint > exponent && hint < EXPONENTS && fits(hint, sample) {
        exponent = hint;
    }
    while exponent < EXPONENTS {
        scratch.clear();
        let power = power(exponent);
        scratch.extend(values.iter().map_while(|&bits| scaled_of_bits(bits, power, single)));
        if scratch.len() == values.len() {
            values.copy_from_slice(scratch);
            return Some(exponent);
        }
        // Continues with the smallest exponent that fits the value that failed.
        let stuck = &values[scratch.len()..scratch.len() + 1];
        exponent = (exponent + 1..EXPONENTS).find(|&exponent| fits(exponent, stuck))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exponent_of(floats: &[f64]) -> Option<u8> {
        let bits: Vec<i64> = floats.iter().map(|float| float.to_bits() as i64).collect();
        let mut values = bits.clone();
        let exponent = scale(&mut values, false, 0, &mut Vec::new());
        match exponent {
            Some(exponent) => {
                let back: Vec<i64> =
                    values.iter().map(|&value| bits_of_scaled(value, power(exponent), false)).collect();
                assert_eq!(back, bits);
            }
            None => assert_eq!(values, bits),
        }
        exponent
    }

    #[test]
    fn decimals_are_found() {
        assert_eq!(exponent_of(&[1.0, 2.0, -3.0]), Some(0));
        assert_eq!(exponent_of(&[0.1, 0.25, -1e6, 19.99]), Some(2));
        // The first values have fewer digits than the last one.
        let mut late = vec![0.5; 20];
        late.push(0.123_456_7);
        assert_eq!(exponent_of(&late), Some(7));
        assert_eq!(exponent_of(&[]), Some(0));
    }

    #[test]
    fn values_without_an_exact_integer_stay_unchanged() {
        for float in [-0.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE, std::f64::consts::PI, 1e300] {
            assert_eq!(exponent_of(&[1.0, float, 0.5]), None, "{float}");
        }
    }

    #[test]
    fn single_precision() {
        let bits: Vec<i64> = [0.1f32, -7.25, 3e5].iter().map(|float| (float.to_bits() as i32).into()).collect();
        let mut values = bits.clone();
        let exponent = scale(&mut values, true, 0, &mut Vec::new()).unwrap();
        let back: Vec<i64> = values.iter().map(|&value| bits_of_scaled(value, power(exponent), true)).collect();
        assert_eq!((exponent, back), (2, bits));
    }
}
