//! Error messages on standard error, with the position in the statement if it is known.

use keyaki::Position;

use crate::failure::Failure;
use crate::remote::{self, plain};
use crate::terminal;

/// Prints the error of a statement. `origin` is the script's name and the line on which the statement begins, from 1.
pub fn show(failure: &Failure, statement: &str, origin: Option<(&str, usize)>) {
    if matches!(failure, Failure::Reported) {
        return;
    }
    let (red, reset) = if terminal::error_colours() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let (message, position) = match failure {
        // The position is in the statement; the line of the script is printed instead.
        Failure::Database(keyaki::Error::Syntax { message, position }) => (message.clone(), *position),
        Failure::Remote(remote::Error::Server(error)) => {
            (error.to_string(), error.place(statement).map(|(line, column)| Position { line, column }))
        }
        failure => (failure.to_string(), None),
    };
    let text = describe(&message, position, statement, origin);
    eprintln!("{red}error{reset}: {}", plain(&text));
}

/// The message; before it the place in the script, below it the line concerned with a mark.
fn describe(message: &str, position: Option<Position>, statement: &str, origin: Option<(&str, usize)>) -> String {
    // Both count from 1.
    let position = position.map(|Position { line, column }| (line.max(1) as usize, column.max(1) as usize));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_the_place() {
        let at = |line, column| Some(Position { line, column });
        let text = describe("bad", at(2, 3), "SELECT\n  x y", Some(("a.sql", 10)));
        assert_eq!(text, "a.sql:11: bad\n    x y\n    ^");
        assert_eq!(describe("no table", None, "SELECT 1", None), "no table");
        // The text has no such line.
        assert_eq!(describe("bad", at(9, 9), "x", None), "bad");
    }
}
