//! Floats that are decimal numbers: kept as integers, if that gives every one of them back bit by bit.
//!
//! `x` is kept as `n` with `x == n / 10^e`, computed in double precision (and rounded to single for `f32`). The division
//! is correctly rounded, so that what was parsed from up to 15 digits comes back exactly; everything else (−0, NaN,
//! infinities, more digits) is found by trying, and makes the whole column be kept as bits.

/// Powers of ten that are exact as `f64`; exponents above are not tried.
const POWERS: [f64; 15] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14];

/// Number of exponents that there are.
pub(crate) const EXPONENTS: u8 = POWERS.len() as u8;

/// Below this, adding and subtracting [`ROUND`] rounds to an integer.
const EXACT: f64 = (1u64 << 51) as f64;
/// Has no room for a fraction in its mantissa, nor has what it is added to.
const ROUND: f64 = (3u64 << 51) as f64;

/// `10^exponent`.
pub(crate) fn power(exponent: u8) -> f64 {
    POWERS[usize::from(exponent).min(POWERS.len() - 1)]
}

/// The bits (as a column keeps them) of `n / power`.
#[inline]
pub(crate) fn bits_of_scaled(n: i64, power: f64, single: bool) -> i64 {
    let value = n as f64 / power;
    if single { (value as f32).to_bits() as i32 as i64 } else { value.to_bits() as i64 }
}

/// `n` such that [`bits_of_scaled`] gives back `bits`.
#[inline]
fn scaled_of_bits(bits: i64, power: f64, single: bool) -> Option<i64> {
    let value = if single { f32::from_bits(bits as u32).into() } else { f64::from_bits(bits as u64) };
    let scaled = value * power;
    // What is no such number (NaN neither) fails here or at the comparison below.
    let n = if scaled.abs() < EXACT { (scaled + ROUND - ROUND) as i64 } else { return None };
    (bits_of_scaled(n, power, single) == bits).then_some(n)
}

/// Replaces the floats in `values` (bits) by integers; gives the exponent. `None` (and `values` as they were) if some
/// float has no such integer. `hint` is tried first.
pub(crate) fn scale(values: &mut [i64], single: bool, hint: u8, scratch: &mut Vec<i64>) -> Option<u8> {
    let fits = |exponent: u8, values: &[i64]| {
        values.iter().all(|&bits| scaled_of_bits(bits, power(exponent), single).is_some())
    };
    // The smallest exponent for a few values; the hint if it is as good.
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
        // The value that did not fit tells how far to go.
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
        // The sample has fewer digits than what follows.
        let mut late = vec![0.5; 20];
        late.push(0.123_456_7);
        assert_eq!(exponent_of(&late), Some(7));
        assert_eq!(exponent_of(&[]), Some(0));
    }

    #[test]
    fn what_is_no_decimal_is_left_alone() {
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
