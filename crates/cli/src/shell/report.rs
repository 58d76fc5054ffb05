//! Error messages on standard error, with the position in the statement if it is known.

use crate::failure::Failure;
use crate::terminal;

/// Prints the error of a statement. `origin` is the script's name and the line on which the statement begins, from 1.
pub fn show(failure: &Failure, statement: &str, origin: Option<(&str, usize)>) {
    if matches!(failure, Failure::Reported) {
        return;
    }
    let (red, reset) = if terminal::error_colours() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    eprintln!("{red}error{reset}: {}", describe(&failure.to_string(), statement, origin));
}

/// The message, preceded by the position in the script and followed by the line of the error with a mark below.
fn describe(message: &str, statement: &str, origin: Option<(&str, usize)>) -> String {
    let position = position(message);
    let mut text = String::new();
    if let Some((name, first_line)) = origin {
        let line = first_line + position.map_or(0, |(line, _)| line - 1);
        text.push_str(&format!("{name}:{line}: "));
    }
    text.push_str(message);
    if let Some((line, column)) = position
        && let Some(source) = statement.lines().nth(line - 1)
    {
        let mark = " ".repeat(source.chars().take(column - 1).count());
        text.push_str(&format!("\n  {}\n  {mark}^", source.replace('\t', " ")));
    }
    text
}

/// Line and column of `Line: 3, Column: 14` at the end of a parser's message, both from 1.
fn position(message: &str) -> Option<(usize, usize)> {
    let (_, after) = message.rsplit_once("Line: ")?;
    let (line, after) = after.split_once(", Column: ")?;
    let column: String = after.chars().take_while(char::is_ascii_digit).collect();
    let (line, column) = (line.parse().ok()?, column.parse().ok()?);
    (line > 0 && column > 0).then_some((line, column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        assert_eq!(position("Expected: x, found: y at Line: 3, Column: 14"), Some((3, 14)));
        assert_eq!(position("Line: x, Column: 1"), None);
        assert_eq!(position("Line: 0, Column: 0"), None);
        assert_eq!(position("nothing"), None);
    }

    #[test]
    fn messages_show_the_place() {
        let text = describe("bad at Line: 2, Column: 3", "SELECT\n  x y", Some(("a.sql", 10)));
        assert_eq!(text, "a.sql:11: bad at Line: 2, Column: 3\n    x y\n    ^");
        assert_eq!(describe("no table", "SELECT 1", None), "no table");
        // A position that does not exist in the text is only repeated.
        assert_eq!(describe("bad at Line: 9, Column: 9", "x", None), "bad at Line: 9, Column: 9");
    }
}
