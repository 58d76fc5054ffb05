//! Widths of the columns of tables, and texts that fit them.
//!
//! A width is a number of terminal cells: a Chinese character has two, a combining one none. A table is a line of columns with
//! `width + 3` cells each, and one more. If the columns need more than a line, the widest are narrowed first, down to their
//! lower bounds. If this does not suffice, columns in the middle are hidden.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Stands for the rest of a text.
const ELLIPSIS: char = '…';
/// Cells of a column beside its text: a border and two of padding.
const FRAME: usize = 3;
/// Cells of the column that stands for hidden ones.
const HIDDEN: usize = FRAME + 1;
/// Upper bound of a column's width.
const WIDTH_MAX: usize = 10_000;

/// The bounds of a column's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Shows the name and all values.
    pub wanted: usize,
    pub least: usize,
}

/// The width of each column; none for hidden columns.
pub fn fit(columns: &[Bounds], line: Option<usize>) -> Vec<Option<usize>> {
    let wanted = |bounds: &Bounds| bounds.wanted.clamp(1, WIDTH_MAX);
    let Some(line) = line else { return columns.iter().map(|bounds| Some(wanted(bounds))).collect() };
    let least = |bounds: &Bounds| bounds.least.min(wanted(bounds));
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let frames = |shown: &[usize]| {
        let hidden = if shown.len() < columns.len() { HIDDEN } else { 0 };
        shown.len() * FRAME + 1 + hidden
    };
    while shown.len() > 1 && frames(&shown) + shown.iter().map(|&at| least(&columns[at])).sum::<usize>() > line {
        shown.remove(shown.len() / 2);
    }
    let available = line.saturating_sub(frames(&shown));
    let limited = |limit: usize| -> Vec<usize> {
        shown.iter().map(|&at| wanted(&columns[at]).min(limit).max(least(&columns[at]))).collect()
    };
    let total = |widths: &[usize]| widths.iter().sum::<usize>();
    // Binary search for the greatest common limit with which a line fits.
    let (mut low, mut high) = (1, WIDTH_MAX);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if total(&limited(middle)) <= available {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let widths = limited(low);
    // The remaining cells go to the first narrowed columns.
    let mut spare = available.saturating_sub(total(&widths));
    let mut fitted = vec![None; columns.len()];
    for (&at, width) in shown.iter().zip(widths) {
        let more = spare.min(wanted(&columns[at]).saturating_sub(width));
        fitted[at] = Some(width + more);
        spare -= more;
    }
    fitted
}

/// The number of cells of a line of text.
pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

/// The beginning of a line of text that has at most `limit` cells.
fn beginning(text: &str, limit: usize) -> &str {
    let mut cells = 0;
    for (at, c) in text.char_indices() {
        cells += c.width().unwrap_or(0);
        if cells > limit {
            return &text[..at];
        }
    }
    text
}

/// A line of text, or its beginning and an ellipsis if it has more than `limit` cells.
pub fn clip(text: &str, limit: usize) -> String {
    let whole = beginning(text, limit);
    if whole.len() == text.len() && width(text) <= limit {
        return text.into();
    }
    let mut cut = beginning(text, limit.saturating_sub(1)).to_string();
    // Sequences of characters can be wider than their characters.
    while width(&cut) + 1 > limit && cut.pop().is_some() {}
    cut.push(ELLIPSIS);
    cut
}

/// Divides a line of text into parts of at most `limit` cells, at spaces if possible. Further parts have the indentation of the
/// first and two spaces.
pub fn wrap(text: &str, limit: usize) -> Vec<String> {
    if width(text) <= limit {
        return vec![text.into()];
    }
    let indented = text.len() - text.trim_start_matches(' ').len() + 2;
    let indentation = " ".repeat(if indented * 3 <= limit { indented } else { 0 });
    let (mut parts, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let prefix = if parts.is_empty() { "" } else { &indentation };
        let room = limit.saturating_sub(prefix.len()).max(1);
        let mut part = beginning(rest, room);
        if part.is_empty() {
            // A character that is wider than the column.
            part = &rest[..rest.chars().next().map_or(rest.len(), char::len_utf8)];
        }
        if part.len() < rest.len() {
            let space = part.rfind(' ').filter(|&space| space * 2 > part.len() && !part[..space].trim().is_empty());
            part = space.map_or(part, |space| &part[..=space]);
        }
        rest = &rest[part.len()..];
        parts.push(format!("{prefix}{}", if rest.is_empty() { part } else { part.trim_end() }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soft(wanted: &[usize]) -> Vec<Bounds> {
        wanted.iter().map(|&wanted| Bounds { wanted, least: wanted.min(8) }).collect()
    }

    fn widths(columns: &[Bounds], line: usize) -> Vec<usize> {
        fit(columns, Some(line)).into_iter().map(|width| width.unwrap_or(0)).collect()
    }

    #[test]
    fn wide_columns_are_narrowed() {
        assert_eq!(fit(&soft(&[3, 5]), None), [Some(3), Some(5)]);
        assert_eq!(widths(&soft(&[3, 100]), 40), [3, 30]);
        assert_eq!(widths(&soft(&[100, 100]), 40), [17, 16]);
        let number = Bounds { wanted: 20, least: 20 };
        assert_eq!(widths(&[number, soft(&[100])[0]], 40), [20, 13]);
        // The name of a column of small numbers is cut before numbers are.
        let named = Bounds { wanted: 30, least: 8 };
        assert_eq!(widths(&[number, named], 40), [20, 13]);
    }

    #[test]
    fn columns_in_the_middle_are_hidden() {
        for count in 1..40 {
            for line in [1, 20, 40, 80, 200] {
                let fitted = fit(&soft(&vec![30; count]), Some(line));
                let shown: Vec<usize> = fitted.iter().flatten().copied().collect();
                let hidden = if shown.len() < count { HIDDEN } else { 0 };
                let total = shown.iter().sum::<usize>() + shown.len() * FRAME + 1 + hidden;
                assert!(total <= line || shown.len() == 1, "{count} columns, {line} cells: {fitted:?}");
                let first = fitted.iter().position(Option::is_none).unwrap_or(count);
                let last = fitted.iter().rposition(Option::is_none).unwrap_or(0);
                assert!(first > 0 && (first == count || last - first + 1 == count - shown.len()), "{fitted:?}");
            }
        }
    }

    #[test]
    fn texts_are_cut() {
        assert_eq!((clip("abc", 3).as_str(), clip("abcd", 3).as_str()), ("abc", "ab…"));
        assert_eq!((clip("漢字漢字", 5).as_str(), clip("漢字漢字", 4).as_str()), ("漢字…", "漢…"));
        assert_eq!(clip("e\u{301}e\u{301}", 2), "e\u{301}e\u{301}");
        for limit in 1..9 {
            assert!(width(&clip("a👩‍👩‍👧❤️漢bc", limit)) <= limit, "{limit}");
        }
    }

    #[test]
    fn texts_are_wrapped() {
        assert_eq!(wrap("short", 10), ["short"]);
        assert_eq!(wrap("one two three", 8), ["one two", "  three"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("  filter a, b, c", 12), ["  filter a,", "    b, c"]);
        for limit in 1..20 {
            let parts = wrap("    漢字 x 漢字, and more of it", limit);
            assert!(parts.iter().all(|part| width(part) <= limit.max(2)), "{limit}: {parts:?}");
        }
    }
}
