//! Properties of the terminal, and number formats for people.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;

/// Columns and rows of the terminal on standard output; none if standard output is not a terminal.
pub fn size() -> Option<(usize, usize)> {
    if !stdout().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

/// Prints a line. Ends the program if this fails: silently if the reader of standard output has closed it, as `head` does.
pub fn print_line(line: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(line).and_then(|()| out.write_all(b"\n")) {
        let is_closed = error.kind() == ErrorKind::BrokenPipe;
        if !is_closed {
            eprintln!("error: output: {error}");
        }
        std::process::exit(i32::from(!is_closed));
    }
}

/// True if output to standard output may have colours (<https://no-color.org>).
pub fn colours() -> bool {
    stdout().is_terminal() && colours_wanted()
}

/// True if output to standard error may have colours.
pub fn error_colours() -> bool {
    stderr().is_terminal() && colours_wanted()
}

fn colours_wanted() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `12.3 MiB`.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// `1,234,567`.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1,234,567 rows`, `1 row`.
pub fn rows(count: u64) -> String {
    format!("{} row{}", thousands(count), if count == 1 { "" } else { "s" })
}

/// The sum of a column of BIGINT values; 0 if there is none with this name.
pub fn sum(batches: &[RecordBatch], column: &str) -> u64 {
    let numbers = batches.iter().filter_map(|batch| batch.column_by_name(column)?.as_primitive_opt::<Int64Type>());
    numbers.flat_map(|numbers| numbers.iter().flatten()).map(|number| number as u64).sum()
}

/// Seconds with at least three significant digits: `0.00123 s`, `1.23 s`, `123 s`.
pub fn seconds(duration: Duration) -> String {
    format!("{} s", significant(duration.as_secs_f64()))
}

/// At least three significant digits, no exponent.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (2 - magnitude).clamp(0, 9) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(rows(1), "1 row");
        assert_eq!(seconds(Duration::from_micros(1234)), "0.00123 s");
        assert_eq!(seconds(Duration::from_millis(12_345)), "12.3 s");
        assert_eq!(significant(0.0), "0");
        assert_eq!(significant(1234.5), "1234");
    }
}
