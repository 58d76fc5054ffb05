//! Error messages on standard error, with the position in the statement if it is known.
//!
//! ```text
//! error: column "nme" does not exist
//!   SELECT nme FROM customer
//!          ^
//!   HINT: did you mean "name"?
//! ```

use keyaki::Position;
use unicode_width::UnicodeWidthStr;

use crate::failure::Failure;
use crate::remote::{self, plain};
use crate::terminal;

/// Characters of a line of the statement if the width of the terminal is unknown.
const LINE_CHARS: usize = 120;
/// Spaces in front of a line of the statement.
const INDENT: usize = 2;

/// An error in the parts that are printed.
#[derive(Debug, Default)]
struct Report {
    message: String,
    position: Option<Position>,
    /// Each one with its name: `HINT: …`.
    notes: Vec<String>,
}

impl Report {
    fn of(failure: &Failure, statement: &str) -> Report {
        let note = |name: &str, text: Option<&str>| text.map(|text| format!("{name}: {text}"));
        match failure {
            // The position is in the statement; the line of the script is printed instead.
            Failure::Database(error) => Report {
                message: error.message(),
                position: error.position(),
                notes: note("HINT", error.hint()).into_iter().collect(),
            },
            Failure::Remote(remote::Error::Server(error)) => Report {
                message: error.message.clone(),
                position: error.place(statement).map(|(line, column)| Position { line, column }),
                notes: [note("DETAIL", error.detail.as_deref()), note("HINT", error.hint.as_deref())]
                    .into_iter()
                    .flatten()
                    .collect(),
            },
            failure => Report { message: failure.to_string(), ..Report::default() },
        }
    }

    /// The message; before it the place in the script, below it the line concerned with a mark, and the notes.
    fn text(&self, statement: &str, origin: Option<(&str, usize)>, width: usize) -> String {
        // Both count from 1.
        let position = self.position.map(|Position { line, column }| (line.max(1) as usize, column.max(1) as usize));
        let mut text = String::new();
        if let Some((name, first_line)) = origin {
            let line = first_line + position.map_or(0, |(line, _)| line - 1);
            text.push_str(&format!("{name}:{line}: "));
        }
        text.push_str(&self.message);
        if let Some((line, column)) = position
            && !remote::has_password(statement)
            && let Some(source) = statement.lines().nth(line - 1)
        {
            let (shown, mark) = window(source, column - 1, width.saturating_sub(INDENT).max(20));
            let before: String = shown.chars().take(mark).collect();
            text.push_str(&format!("\n  {shown}\n  {}^", " ".repeat(before.width())));
        }
        self.notes.iter().for_each(|note| text.push_str(&format!("\n  {note}")));
        text
    }
}

/// Prints the error of a statement. `origin` is the script's name and the line on which the statement begins, from 1.
pub fn show(failure: &Failure, statement: &str, origin: Option<(&str, usize)>) {
    if matches!(failure, Failure::Reported) {
        return;
    }
    let (red, reset) = if terminal::error_colours() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let width = terminal::size().map_or(LINE_CHARS, |(columns, _)| columns);
    eprintln!("{red}error{reset}: {}", plain(&Report::of(failure, statement).text(statement, origin, width)));
}

/// The part of a line around a character, with at most `width` characters, and the place of the character in it.
fn window(line: &str, at: usize, width: usize) -> (String, usize) {
    let chars: Vec<char> = line.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
    let at = at.min(chars.len());
    if chars.len() <= width {
        return (chars.into_iter().collect(), at);
    }
    // A third of the window stands before the character.
    let start = at.saturating_sub(width / 3).min(chars.len() - width);
    let mut shown = chars[start..start + width].to_vec();
    if start > 0 {
        shown[0] = '…';
    }
    if start + width < chars.len() {
        shown[width - 1] = '…';
    }
    (shown.into_iter().collect(), at - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(message: &str, position: Option<(u64, u64)>, statement: &str, origin: Option<(&str, usize)>) -> String {
        let position = position.map(|(line, column)| Position { line, column });
        Report { message: message.into(), position, notes: Vec::new() }.text(statement, origin, 80)
    }

    #[test]
    fn messages_show_the_place() {
        let shown = text("bad", Some((2, 3)), "SELECT\n  x y", Some(("a.sql", 10)));
        assert_eq!(shown, "a.sql:11: bad\n    x y\n    ^");
        assert_eq!(text("no table", None, "SELECT 1", None), "no table");
        // Wide letters take two columns.
        assert_eq!(text("bad", Some((1, 14)), "SELECT '東京', x", None), "bad\n  SELECT '東京', x\n                 ^");
        // The text has no such line.
        assert_eq!(text("bad", Some((9, 9)), "x", None), "bad");
    }

    #[test]
    fn notes_stand_below_the_place() {
        let source = keyaki::Error::Unsupported("x".into());
        let position = Some(Position { line: 1, column: 8 });
        let located = keyaki::Error::Located { source: Box::new(source), position, hint: Some("use y".into()) };
        let shown = Report::of(&Failure::Database(located), "").text("SELECT x", None, 80);
        assert_eq!(shown, "not supported: x\n  SELECT x\n         ^\n  HINT: use y");
        let server = remote::ServerError {
            message: "bad".into(),
            detail: Some("why".into()),
            hint: Some("how".into()),
            position: Some(8),
            ..remote::ServerError::default()
        };
        let shown = Report::of(&Failure::Remote(remote::Error::Server(Box::new(server))), "SELECT x");
        let shown = shown.text("SELECT x", None, 80);
        assert_eq!(shown, "bad\n  SELECT x\n         ^\n  DETAIL: why\n  HINT: how");
    }

    #[test]
    fn long_lines_are_cut_around_the_position() {
        let line = format!("SELECT {} FROM t", "abc, ".repeat(40));
        for at in [0, 7, 50, 120, line.chars().count() - 1, line.chars().count()] {
            let (shown, mark) = window(&line, at, 40);
            assert_eq!(shown.chars().count(), 40);
            assert_eq!(shown.chars().nth(mark), line.chars().nth(at), "{at}: {shown}");
            assert_eq!((shown.starts_with('…'), shown.ends_with('…')), (at > 13, at < 190), "{at}: {shown}");
        }
        assert_eq!(window("a\tb", 2, 40), ("a b".into(), 2));
        assert_eq!(window("größe", 99, 40), ("größe".into(), 5));
    }
}
