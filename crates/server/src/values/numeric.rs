//! The binary format of numeric: groups of four decimal digits.
//!
//! ```text
//! i16 number of groups │ i16 weight of the first group │ u16 sign │ u16 digits after the point │ i16 groups …
//! ```
//!
//! The value is the sum of group × 10000^(weight - index). Leading and trailing groups of zeros are left out.

use bytes::{Buf, BufMut};

/// Decimal digits in a group.
const GROUP: usize = 4;
const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const POSITIVE_INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;
/// Limits of the digits after the point, and of the groups before it: no type has more here.
const SCALE_MAX: u16 = 400;
const WEIGHT_MAX: i16 = 100;

/// Appends a number: its decimal digits as an integer, with a sign, divided by 10^`scale`.
pub fn put(number: &str, scale: i32, out: &mut Vec<u8>) {
    let (is_negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number),
    };
    let digits = digits.as_bytes();
    let after_point = scale.max(0) as usize;
    // The digit at 10^place, counted from the point.
    let lowest = -scale;
    let digit = |place: i32| {
        let from_right = place - lowest;
        match usize::try_from(from_right) {
            Ok(from_right) if from_right < digits.len() => digits[digits.len() - 1 - from_right] - b'0',
            _ => 0,
        }
    };
    let group = |weight: i32| {
        (0..GROUP as i32).rev().fold(0, |value, place| value * 10 + i16::from(digit(weight * GROUP as i32 + place)))
    };
    let (mut first, mut last) =
        ((digits.len() as i32 + lowest).div_euclid(GROUP as i32), lowest.div_euclid(GROUP as i32));
    while first >= last && group(first) == 0 {
        first -= 1;
    }
    while last <= first && group(last) == 0 {
        last += 1;
    }
    let is_zero = first < last;
    out.put_i16(if is_zero { 0 } else { (first - last + 1) as i16 });
    out.put_i16(if is_zero { 0 } else { first as i16 });
    out.put_u16(if is_negative && !is_zero { NEGATIVE } else { 0 });
    out.put_u16(after_point as u16);
    if !is_zero {
        (last..=first).rev().for_each(|weight| out.put_i16(group(weight)));
    }
}

/// Appends `number` / 10^`scale`.
pub fn put_integer(number: i128, scale: i32, out: &mut Vec<u8>) {
    /// Powers of ten that make whole groups of the digits after the point, by their number modulo the length of a group.
    const POWERS: [u64; GROUP] = [1, 1000, 100, 10];
    /// Groups of the largest 64-bit number.
    const GROUPS_MAX: usize = 5;
    let scaled = usize::try_from(scale).ok().and_then(|scale| {
        let number = u64::try_from(number.unsigned_abs()).ok()?;
        number.checked_mul(POWERS[scale % GROUP])
    });
    let Some(mut rest) = scaled else { return put(itoa::Buffer::new().format(number), scale, out) };
    let (mut groups, mut count) = ([0_u16; GROUPS_MAX], 0);
    while rest > 0 {
        groups[count] = (rest % 10_000) as u16;
        rest /= 10_000;
        count += 1;
    }
    let zeros = groups[..count].iter().take_while(|group| **group == 0).count();
    let last_weight = -((scale + GROUP as i32 - 1) / GROUP as i32);
    let weight = if count == 0 { 0 } else { last_weight + count as i32 - 1 };
    let header = [(count - zeros) as u16, weight as u16, if number < 0 { NEGATIVE } else { 0 }, scale as u16];
    let words = header.iter().chain(groups[zeros..count].iter().rev());
    let (mut bytes, mut len) = ([0; 2 * (4 + GROUPS_MAX)], 0);
    for word in words {
        bytes[len..len + 2].copy_from_slice(&word.to_be_bytes());
        len += 2;
    }
    out.put_slice(&bytes[..len]);
}

/// The text of a number in the binary format; `None` for malformed bytes.
pub fn text(mut bytes: &[u8]) -> Option<String> {
    const HEADER: usize = 8;
    if bytes.len() < HEADER {
        return None;
    }
    let (groups, weight) = (bytes.get_i16(), bytes.get_i16());
    let (sign, scale) = (bytes.get_u16(), bytes.get_u16());
    if groups < 0 || bytes.len() != 2 * groups as usize || scale > SCALE_MAX || weight > WEIGHT_MAX {
        return None;
    }
    let mut text = String::new();
    match sign {
        0 => {}
        NEGATIVE => text.push('-'),
        NAN => return Some("NaN".into()),
        POSITIVE_INFINITY => return Some("Infinity".into()),
        NEGATIVE_INFINITY => return Some("-Infinity".into()),
        _ => return None,
    }
    let groups: Vec<i16> = bytes.chunks_exact(2).map(|pair| i16::from_be_bytes([pair[0], pair[1]])).collect();
    if groups.iter().any(|group| !(0..10_000).contains(group)) {
        return None;
    }
    let group = |at: i32| {
        let index = usize::try_from(i32::from(weight) - at).ok();
        index.and_then(|index| groups.get(index)).copied().unwrap_or(0)
    };
    if weight < 0 {
        text.push('0');
    } else {
        text.push_str(&group(i32::from(weight)).to_string());
        (0..i32::from(weight)).rev().for_each(|at| text.push_str(&format!("{:04}", group(at))));
    }
    if scale > 0 {
        text.push('.');
        let (point, scale) = (text.len(), usize::from(scale));
        let mut at = -1;
        while text.len() - point < scale {
            text.push_str(&format!("{:04}", group(at)));
            at -= 1;
        }
        text.truncate(point + scale);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(number: &str, scale: i32) -> Vec<u8> {
        let mut out = Vec::new();
        put(number, scale, &mut out);
        out
    }

    /// The bytes that PostgreSQL 15 sends for these numbers.
    #[test]
    fn groups_are_those_of_postgresql() {
        assert_eq!(encoded("0", 2), [0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(encoded("12345678", 2), [0, 3, 0, 1, 0, 0, 0, 2, 0, 12, 13, 128, 30, 120]);
        assert_eq!(encoded("-1", 4), [0, 1, 255, 255, 64, 0, 0, 4, 0, 1]);
        assert_eq!(encoded("10000", 0), [0, 1, 0, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(encoded("5", -4), [0, 1, 0, 1, 0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn integers_are_encoded_as_their_texts() {
        let numbers =
            (0..39).map(|exponent| 10_i128.pow(exponent)).flat_map(|power| [power, power - 1, 7 * (power / 9)]);
        for number in numbers.chain([1_0000_0000, 123_4567_8900_0000, u64::MAX.into(), i128::MAX]) {
            for (number, scale) in [number, -number].into_iter().flat_map(|number| (-5..39).map(move |s| (number, s))) {
                let mut out = Vec::new();
                put_integer(number, scale, &mut out);
                assert_eq!(out, encoded(&number.to_string(), scale), "{number} with {scale} digits after the point");
            }
        }
    }

    #[test]
    fn numbers_survive_the_round_trip() {
        for (number, scale, shown) in [
            ("0", 0, "0"),
            ("7", 0, "7"),
            ("-7", 1, "-0.7"),
            ("100", 2, "1.00"),
            ("99999999999999999999999999999999999999", 10, "9999999999999999999999999999.9999999999"),
            ("1", 38, "0.00000000000000000000000000000000000001"),
            ("123456789", 5, "1234.56789"),
            ("-120000", 0, "-120000"),
            ("10000", 4, "1.0000"),
        ] {
            assert_eq!(text(&encoded(number, scale)).as_deref(), Some(shown));
        }
    }

    #[test]
    fn malformed_numbers_are_refused() {
        assert_eq!(text(&[0; 7]), None);
        assert_eq!(text(&[0, 1, 0, 0, 0, 0, 0, 0]), None, "a group is missing");
        assert_eq!(text(&[255, 255, 0, 0, 0, 0, 0, 0]), None, "a negative number of groups");
        assert_eq!(text(&[0, 1, 0, 0, 0, 0, 0, 0, 0x27, 0x10]), None, "a group of five digits");
        assert_eq!(text(&[0, 1, 127, 255, 0, 0, 0, 0, 0, 1]), None, "131,072 digits");
        assert_eq!(text(&[0, 0, 0, 0, 0x12, 0, 0, 0]), None, "an unknown sign");
        assert_eq!(text(&[0, 0, 0, 0, 0xC0, 0, 0, 0]).as_deref(), Some("NaN"));
    }
}
