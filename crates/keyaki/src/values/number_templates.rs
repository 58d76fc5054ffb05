//! Templates of `to_char` for numbers, such as `FM9,990.00`.
//!
//! The rules follow `formatting.c` of PostgreSQL, with the signs and separators of the locale C, in which the currency
//! symbol is a blank. A number is rounded to the places of the template first. The template then writes it place by
//! place.

use super::templates::ordinal;
use crate::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Nine,
    Zero,
    Point,
    Comma,
    Group,
    Currency,
    Minus,
    Plus,
    Sign,
    Roman { is_upper: bool },
    Ordinal { is_upper: bool },
    Literal(char),
}

/// The place of the sign of a template with S.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Anchor {
    Before,
    After,
}

/// A template.
#[derive(Debug, Clone, Default)]
pub(super) struct NumberTemplate {
    items: Vec<Item>,
    /// Places before the point, and behind it.
    whole: usize,
    fraction: usize,
    /// Places behind V.
    shift: usize,
    /// The first place with a zero, and the number of places up to the last one.
    first_zero: Option<usize>,
    zero_end: usize,
    anchor: Option<Anchor>,
    /// Places before S.
    anchor_places: usize,
    has_point: bool,
    has_shift: bool,
    is_filled: bool,
    has_minus: bool,
    has_plus: bool,
    has_brackets: bool,
    has_exponent: bool,
    is_roman: bool,
}

/// A number in decimal digits.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Number {
    /// Digits, and how many of them are behind the point.
    Decimal { is_negative: bool, digits: String, scale: usize },
    /// A float, and how many of its decimal digits are exact.
    Float { value: f64, digits: usize },
}

/// Exact decimal digits of REAL and of DOUBLE PRECISION.
pub(super) const REAL_DIGITS: usize = 6;
pub(super) const DOUBLE_DIGITS: usize = 15;
/// Digits of a template: the greatest scale of PostgreSQL's NUMERIC.
const PLACES_MAX: usize = 16_383;
/// Width of a Roman number.
const ROMAN_WIDTH: usize = 15;

impl NumberTemplate {
    /// # Errors
    /// `Syntax` for patterns that contradict each other, `Unsupported` for patterns that are not known, `Evaluation`
    /// for more than 16,383 digits.
    pub fn parse(template: &str) -> Result<NumberTemplate> {
        // Longer patterns come before their beginnings.
        const PATTERNS: [&str; 19] =
            ["EEEE", "FM", "MI", "PL", "PR", "RN", "SG", "SP", "TH", ",", ".", "0", "9", "B", "C", "D", "G", "L", "S"];
        let mut parsed = NumberTemplate::default();
        let mut rest = template;
        while let Some(first) = rest.chars().next() {
            if let Some((literal, after)) = super::templates::quoted(rest) {
                parsed.items.extend(literal.chars().map(Item::Literal));
                rest = after;
                continue;
            }
            let pattern = PATTERNS
                .iter()
                .chain(&["V"])
                .find(|pattern| rest.get(..pattern.len()).is_some_and(|start| start.eq_ignore_ascii_case(pattern)));
            let Some(pattern) = pattern else {
                parsed.items.push(Item::Literal(first));
                rest = &rest[first.len_utf8()..];
                continue;
            };
            let is_upper = first.is_ascii_uppercase();
            rest = &rest[pattern.len()..];
            parsed.add(pattern, is_upper, template)?;
        }
        if parsed.whole + parsed.fraction + parsed.shift > PLACES_MAX {
            return Err(Error::Evaluation(format!("template of to_char has more than {PLACES_MAX} digits")));
        }
        Ok(parsed)
    }

    fn add(&mut self, pattern: &str, is_upper: bool, template: &str) -> Result<()> {
        let wrong = |problem: &str| Err(Error::syntax(format!("{problem} in the template \"{template}\"")));
        let has_sign = self.has_plus || self.has_minus || self.has_brackets;
        match pattern {
            "9" | "0" if self.has_brackets => return wrong("digits must be ahead of PR"),
            "9" | "0" => {
                let is_zero = pattern == "0";
                self.items.push(if is_zero { Item::Zero } else { Item::Nine });
                if is_zero && self.first_zero.is_none() && !self.has_point {
                    self.first_zero = Some(self.whole);
                }
                match (self.has_shift && !is_zero, self.has_point) {
                    (true, _) => self.shift += 1,
                    (false, true) => self.fraction += 1,
                    (false, false) => self.whole += 1,
                }
                if is_zero {
                    self.zero_end = self.whole + self.fraction;
                }
            }
            "." | "D" if self.has_point => return wrong("multiple decimal points"),
            "." | "D" if self.has_shift => return wrong("V and a decimal point"),
            "." | "D" => {
                self.has_point = true;
                self.items.push(Item::Point);
            }
            "," => self.items.push(Item::Comma),
            "G" => self.items.push(Item::Group),
            "L" => self.items.push(Item::Currency),
            "FM" => self.is_filled = true,
            "S" if self.anchor.is_some() => return wrong("S twice"),
            "S" if has_sign => return wrong("S beside MI, PL, SG or PR"),
            "S" => {
                self.anchor = Some(if self.has_point { Anchor::After } else { Anchor::Before });
                self.anchor_places = self.whole;
            }
            "MI" | "PL" | "SG" if self.anchor.is_some() => return wrong("S beside MI, PL or SG"),
            "MI" => {
                self.has_minus = true;
                self.items.push(Item::Minus);
            }
            "PL" => {
                self.has_plus = true;
                self.items.push(Item::Plus);
            }
            "SG" => {
                (self.has_minus, self.has_plus) = (true, true);
                self.items.push(Item::Sign);
            }
            "PR" if self.anchor.is_some() || self.has_plus || self.has_minus => {
                return wrong("PR beside S, MI, PL or SG");
            }
            "PR" => self.has_brackets = true,
            "RN" => {
                self.is_roman = true;
                self.items.push(Item::Roman { is_upper });
            }
            "TH" => self.items.push(Item::Ordinal { is_upper }),
            "V" if self.has_point => return wrong("V and a decimal point"),
            "V" => self.has_shift = true,
            "EEEE" => self.has_exponent = true,
            other => {
                return Err(Error::Unsupported(format!("pattern {other} in the template \"{template}\"")));
            }
        }
        let is_plain = self.anchor.is_none() && !self.has_plus && !self.has_minus && !self.has_brackets;
        if self.has_exponent && !(is_plain && !self.is_filled && !self.has_shift && !self.is_roman) {
            return wrong("EEEE with other patterns than digits and a decimal point");
        }
        Ok(())
    }

    /// The number as a text.
    pub fn format(&self, number: &Number) -> String {
        if self.has_exponent {
            return self.scientific(number);
        }
        if self.is_roman {
            let (is_negative, digits) = number.rounded(0);
            let roman = if is_negative { None } else { digits.parse().ok().and_then(roman) };
            return self.write(false, &roman.unwrap_or_else(|| "#".repeat(ROMAN_WIDTH)));
        }
        let whole = self.whole + self.shift;
        let shifted = number.shifted(self.shift);
        let (is_negative, mut digits) = match shifted {
            Number::Float { value, digits } if value.is_finite() => {
                let places = format!("{:.0}", value.abs()).len();
                let fraction = self.fraction.min(digits.saturating_sub(places));
                shifted.rounded(fraction)
            }
            _ => shifted.rounded(self.fraction),
        };
        if digits.find('.').unwrap_or(digits.len()) > whole {
            digits = format!("{}.{}", "#".repeat(whole), "#".repeat(self.fraction));
        }
        self.write(is_negative, &digits)
    }

    /// A digit, a fraction and an exponent.
    fn scientific(&self, number: &Number) -> String {
        let unknown = || format!(" {}.{}", "#".repeat(self.whole), "#".repeat(self.fraction + 4));
        let text = match number {
            Number::Float { value, .. } if !value.is_finite() => return unknown(),
            Number::Float { value, .. } => format!("{value:.*e}", self.fraction),
            Number::Decimal { is_negative, digits, scale } => {
                let significant = digits.trim_start_matches('0');
                let exponent = significant.len() as i64 - 1 - *scale as i64;
                let (mantissa, carry) = rounded_digits(significant, self.fraction + 1);
                let exponent = if significant.is_empty() { 0 } else { exponent + i64::from(carry) };
                let (first, fraction) = mantissa.split_at(1);
                let point = if fraction.is_empty() { "" } else { "." };
                let sign = if *is_negative && !significant.is_empty() { "-" } else { "" };
                format!("{sign}{first}{point}{fraction}e{exponent}")
            }
        };
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i64 = exponent.parse().unwrap_or(0);
        let blank = if text.starts_with('-') { "" } else { " " };
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{blank}{mantissa}e{sign}{:02}", exponent.abs())
    }

    /// Writes the digits of a rounded number.
    fn write(&self, is_negative: bool, digits: &str) -> String {
        Writer::new(self, is_negative, digits).write()
    }
}

impl Number {
    fn shifted(&self, places: usize) -> Number {
        match self {
            Number::Float { value, digits } => {
                Number::Float { value: value * 10_f64.powi(places as i32), digits: *digits }
            }
            Number::Decimal { is_negative, digits, scale } => {
                let zeros = "0".repeat(places.saturating_sub(*scale));
                let digits = format!("{digits}{zeros}");
                Number::Decimal { is_negative: *is_negative, digits, scale: scale.saturating_sub(places) }
            }
        }
    }

    /// The sign, and the digits of the number with this many places behind the point. Halves are rounded away from
    /// zero.
    fn rounded(&self, places: usize) -> (bool, String) {
        match self {
            Number::Float { value, .. } if value.is_nan() => (false, "NaN".into()),
            Number::Float { value, .. } if value.is_infinite() => (*value < 0.0, "Infinity".into()),
            Number::Float { value, .. } => (value.is_sign_negative(), format!("{:.places$}", value.abs())),
            Number::Decimal { is_negative, digits, scale } => {
                let padded = format!("{digits:0>width$}", width = scale + 1);
                let (whole, fraction) = padded.split_at(padded.len() - scale);
                let whole = whole.trim_start_matches('0');
                let kept = format!("{fraction:0<places$}");
                let rounds_up = kept.as_bytes().get(places).is_some_and(|digit| *digit >= b'5');
                let mut all = format!("0{whole}{}", &kept[..places]).into_bytes();
                if rounds_up {
                    increment(&mut all);
                }
                let all: String = all.into_iter().map(char::from).collect();
                let (whole, fraction) = all.split_at(all.len() - places);
                let whole = whole.trim_start_matches('0');
                let is_zero = all.bytes().all(|digit| digit == b'0');
                let whole = if whole.is_empty() { "0" } else { whole };
                let point = if places > 0 { "." } else { "" };
                (*is_negative && !is_zero, format!("{whole}{point}{fraction}"))
            }
        }
    }
}

/// Adds one to a number in decimal digits, the first of which is zero.
fn increment(digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        if *digit < b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
}

/// The first digits of a number without zeros before it, rounded, and true if the result is the next power of ten.
fn rounded_digits(digits: &str, count: usize) -> (String, bool) {
    let kept = format!("{digits:0<count$}");
    let mut rounded = format!("0{}", &kept[..count]).into_bytes();
    if kept.as_bytes().get(count).is_some_and(|digit| *digit >= b'5') {
        increment(&mut rounded);
    }
    let carry = rounded[0] == b'1';
    let start = usize::from(!carry);
    (rounded[start..start + count].iter().copied().map(char::from).collect(), carry)
}

/// A Roman number; `None` if there is none.
fn roman(number: u32) -> Option<String> {
    const DIGITS: [(u32, &str); 13] = [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ];
    if !(1..4000).contains(&number) {
        return None;
    }
    let mut rest = number;
    let mut text = String::new();
    for (value, digit) in DIGITS {
        while rest >= value {
            text.push_str(digit);
            rest -= value;
        }
    }
    Some(text)
}

/// Writes one number.
struct Writer<'a> {
    template: &'a NumberTemplate,
    is_negative: bool,
    /// The digits of the number, and the next of them.
    digits: &'a [u8],
    next: usize,
    /// Places before the first digit.
    blanks: usize,
    /// The last digit that is not dropped (FM).
    last: Option<usize>,
    /// The number of the place, and of the last one.
    place: usize,
    places: usize,
    /// Digits have been written.
    has_begun: bool,
    is_signed: bool,
    anchor: Option<Anchor>,
    has_brackets: bool,
    output: String,
}

impl<'a> Writer<'a> {
    fn new(template: &'a NumberTemplate, is_negative: bool, digits: &'a str) -> Writer<'a> {
        let whole = template.whole + template.shift;
        let blanks = whole.saturating_sub(digits.find('.').unwrap_or(digits.len()));
        let has_own_sign = template.has_plus || template.has_minus;
        let mut has_brackets = template.has_brackets;
        let mut anchor = template.anchor;
        let is_signed = if has_own_sign {
            template.has_minus
        } else {
            has_brackets &= is_negative || !template.is_filled;
            if anchor == Some(Anchor::Before) && whole == template.anchor_places {
                anchor = Some(Anchor::After);
            }
            !is_negative && template.is_filled && anchor.is_none()
        };
        let mut last = None;
        if template.is_filled && template.has_point {
            last = digits.find('.').map(|point| {
                let fraction = digits[point..].trim_end_matches('0');
                point + fraction.len() - 1
            });
            if let Some(last) = &mut last
                && template.zero_end > blanks
            {
                *last = (*last).max((digits.len() - 1).min(template.zero_end - blanks));
            }
        }
        let places = (whole + template.fraction).saturating_sub(1) + usize::from(!is_signed && blanks == 0);
        Writer {
            template,
            is_negative,
            digits: digits.as_bytes(),
            next: 0,
            blanks,
            last,
            place: 0,
            places,
            has_begun: false,
            is_signed,
            anchor,
            has_brackets,
            output: String::new(),
        }
    }

    fn write(mut self) -> String {
        let is_filled = self.template.is_filled;
        for item in &self.template.items {
            match item {
                Item::Nine | Item::Zero | Item::Point => self.put_place(*item),
                Item::Comma | Item::Group if self.has_begun => {
                    // The locale C has no separator of groups other than the comma.
                    self.output.push(',');
                }
                Item::Comma | Item::Group | Item::Minus | Item::Plus if is_filled && !self.is_written(*item) => {}
                Item::Comma | Item::Group | Item::Currency => self.output.push(' '),
                Item::Minus => self.output.push(if self.is_negative { '-' } else { ' ' }),
                Item::Plus => self.output.push(if self.is_negative { ' ' } else { '+' }),
                Item::Sign => self.output.push(if self.is_negative { '-' } else { '+' }),
                Item::Roman { is_upper } => {
                    let text: String = self.digits.iter().copied().map(char::from).collect();
                    let text = if *is_upper { text } else { text.to_ascii_lowercase() };
                    let width = if is_filled { 0 } else { ROMAN_WIDTH };
                    self.output.push_str(&format!("{text:>width$}"));
                }
                Item::Ordinal { is_upper } => {
                    let is_number = !self.digits.starts_with(b"#") && !self.is_negative && !self.template.has_point;
                    if is_number && !self.template.is_roman {
                        let digits: String = self.digits.iter().copied().map(char::from).collect();
                        self.output.push_str(ordinal(&digits, *is_upper));
                    }
                }
                Item::Literal(c) => self.output.push(*c),
            }
        }
        self.output
    }

    /// True for a sign that is not a blank.
    fn is_written(&self, item: Item) -> bool {
        matches!((item, self.is_negative), (Item::Minus, true) | (Item::Plus, false))
    }

    /// True for a zero before the point that is written as a blank: `9.9` of 0.1 is ` .1`.
    fn is_blank_zero(&self) -> bool {
        self.template.first_zero.is_none()
            && self.next == 0
            && self.digits.starts_with(b"0")
            && self.template.fraction != 0
    }

    fn ends_with_point(&self) -> bool {
        self.last.is_some_and(|last| self.digits.get(last) == Some(&b'.'))
    }

    fn put_place(&mut self, item: Item) {
        let template = self.template;
        if template.is_roman {
            return;
        }
        self.has_begun = false;
        let zero = template.first_zero;
        if !self.is_signed
            && (self.place >= self.blanks || zero == Some(self.place))
            && (!self.is_blank_zero() || self.ends_with_point())
        {
            self.put_sign();
        }
        if self.place < self.blanks {
            match zero {
                Some(zero) if zero <= self.place => {
                    self.output.push('0');
                    self.has_begun = true;
                }
                _ if !template.is_filled => self.output.push(' '),
                _ => {}
            }
        } else {
            match self.digits.get(self.next) {
                Some(b'.') => {
                    if !self.ends_with_point() || template.is_filled {
                        self.output.push('.');
                    }
                }
                digit => {
                    if self.last.is_some_and(|last| self.next > last) && item != Item::Zero {
                    } else if self.is_blank_zero() {
                        if !template.is_filled {
                            self.output.push(' ');
                        } else if self.ends_with_point() {
                            self.output.push('0');
                        }
                    } else if let Some(digit) = digit {
                        self.output.push(char::from(*digit));
                        self.has_begun = true;
                    }
                }
            }
            self.next += usize::from(self.next < self.digits.len());
        }
        let mut end = self.places + usize::from(self.blanks > 0) + usize::from(template.has_point);
        if self.last == Some(self.next) {
            end = self.place;
        }
        if self.place + 1 == end {
            if self.is_signed && self.has_brackets {
                self.output.push(if self.is_negative { '>' } else { ' ' });
            } else if self.anchor == Some(Anchor::After) {
                self.output.push(if self.is_negative { '-' } else { '+' });
            }
        }
        self.place += 1;
    }

    fn put_sign(&mut self) {
        match self.anchor {
            Some(Anchor::Before) => self.output.push(if self.is_negative { '-' } else { '+' }),
            Some(Anchor::After) => return,
            None if self.has_brackets => self.output.push(if self.is_negative { '<' } else { ' ' }),
            None if self.is_negative => self.output.push('-'),
            None if !self.template.is_filled => self.output.push(' '),
            None => {}
        }
        self.is_signed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Number {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let scale = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        Number::Decimal { is_negative, digits: text.replace('.', ""), scale }
    }

    #[test]
    fn numbers_are_written_as_in_postgresql() {
        for (number, template, expected) in [
            ("1234.5", "9,999.99", " 1,234.50"),
            ("-1234.5", "9,999.99", "-1,234.50"),
            ("12", "9G999", "    12"),
            ("0.1", "9.9", "  .1"),
            ("-0.1", "9.9", " -.1"),
            ("0.1", "FM9.9", ".1"),
            ("0", "FM9.9", "0."),
            ("0", "9.9", "  .0"),
            ("12.45", "99V9", " 125"),
            ("485", "L999", "  485"),
            ("485", "RN", "        CDLXXXV"),
            ("485", "FMrn", "cdlxxxv"),
            ("4000", "RN", "###############"),
            ("-5", "RN", "###############"),
            ("-0.4", "RN", "###############"),
            ("482", "999th", " 482nd"),
            ("12", "99TH", " 12TH"),
            ("13", "999th", "  13th"),
            ("485", "999PR", " 485 "),
            ("-485", "999PR", "<485>"),
            ("-485", "999S", "485-"),
            ("-485", "S999", "-485"),
            ("485", "SG999", "+485"),
            ("485", "MI999", " 485"),
            ("-485", "999MI", "485-"),
            ("485", "FM999MI", "485"),
            ("485", "PL999", "+ 485"),
            ("12345", "999", " ###"),
            ("0.0004859", "9.99EEEE", " 4.86e-04"),
            ("0.00001", "9.9EEEE", " 1.0e-05"),
            ("0", "9.9EEEE", " 0.0e+00"),
            ("-0.5", "FM990.00", "-0.50"),
            ("0.5", "FM999.009", ".50"),
            ("3148.5", "9G999D999", " 3,148.500"),
            ("148.5", "999D990", " 148.500"),
            ("-12", "FM0999", "-0012"),
            ("12", "0999.9", " 0012.0"),
            ("12", "FM99.99", "12."),
            ("12", "99.", " 12"),
            ("1", "\"a\"9\"b\"", "a 1b"),
            ("2.5", "9", " 3"),
            ("-1", "9", "-1"),
            ("100", "FM999,999", "100"),
            ("1000000", "FM999,999,999", "1,000,000"),
            ("1234", "FM9,999.00", "1,234.00"),
            ("0", "99.99", "   .00"),
            ("12", "S99.9", "+12.0"),
            ("12", "99.9S", "12.0+"),
            ("1234.567", "FM9999.9", "1234.6"),
            ("1", "0", " 1"),
            ("1", "00", " 01"),
            ("-1", "00", "-01"),
            ("-0.01", "9.9", "  .0"),
            ("99.95", "99.9", " ##.#"),
            ("1", "", ""),
        ] {
            let parsed = NumberTemplate::parse(template).unwrap();
            assert_eq!(parsed.format(&decimal(number)), expected, "{number} {template}");
        }
        for (number, template, expected) in [
            (12345.678, "9.999EEEE", " 1.235e+04"),
            (1e20, "9999", " ####"),
            (f64::NAN, "999", " NaN"),
            (123_456_789_012.345_67, "999999999999.999999", " 123456789012.346"),
            (0.5, "9", " 0"),
            (1.5, "9", " 2"),
            (-0.01, "9.9", " -.0"),
        ] {
            let parsed = NumberTemplate::parse(template).unwrap();
            let float = Number::Float { value: number, digits: DOUBLE_DIGITS };
            assert_eq!(parsed.format(&float), expected, "{number} {template}");
        }
        let real = Number::Float { value: 1.1_f32.into(), digits: REAL_DIGITS };
        assert_eq!(NumberTemplate::parse("9.9999999").unwrap().format(&real), " 1.10000");
        let longest = NumberTemplate::parse(&format!("9.{}", "9".repeat(PLACES_MAX - 1))).unwrap();
        assert_eq!(longest.format(&decimal("1")).len(), PLACES_MAX + 2);
        assert_eq!(longest.format(&Number::Float { value: 0.5, digits: DOUBLE_DIGITS }).trim(), ".50000000000000");
        let error = NumberTemplate::parse(&format!("9.{}", "9".repeat(PLACES_MAX))).unwrap_err();
        assert_eq!(error.to_string(), "template of to_char has more than 16383 digits");
        for template in ["9.9.9", "S9S", "9PR9", "9V.9", "FM9EEEE", "B9"] {
            assert!(NumberTemplate::parse(template).is_err(), "{template}");
        }
    }
}
