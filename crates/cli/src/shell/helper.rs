//! The line editor's helper: completion, colours, hints, and the test for complete input.

use std::borrow::Cow;
use std::rc::Rc;

use keyaki::Session;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::{Hinter, HistoryHinter};
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Result};

use super::complete::Names;
use super::{aliases, commands, complete, lexer};

pub struct ShellHelper {
    pub names: Rc<dyn Names>,
    pub colours: bool,
    pub history: HistoryHinter,
}

impl Helper for ShellHelper {}

impl Completer for ShellHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        Ok(complete::complete(self.names.as_ref(), line, position))
    }
}

impl Hinter for ShellHelper {
    type Hint = String;

    /// The arguments of a dot command, else the rest of the latest line in the history with this beginning.
    fn hint(&self, line: &str, position: usize, context: &Context<'_>) -> Option<String> {
        if position < line.len() || line.trim().is_empty() {
            return None;
        }
        match line.strip_suffix(' ').and_then(commands::find) {
            Some(command) if !command.arguments.is_empty() => Some(command.arguments.to_string()),
            _ => self.history.hint(line, position, context),
        }
    }
}

impl Highlighter for ShellHelper {
    fn highlight<'l>(&self, line: &'l str, _position: usize) -> Cow<'l, str> {
        match self.colours && !line.starts_with(['.', '\\']) {
            true => Cow::Owned(lexer::coloured_after("", line)),
            false => Cow::Borrowed(line),
        }
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        if self.colours { Cow::Owned(format!("\x1b[2m{hint}\x1b[0m")) } else { Cow::Borrowed(hint) }
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        if self.colours { Cow::Owned(format!("\x1b[1;32m{prompt}\x1b[0m")) } else { Cow::Borrowed(prompt) }
    }

    fn highlight_char(&self, _line: &str, _position: usize, kind: CmdKind) -> bool {
        self.colours && kind != CmdKind::MoveCursor
    }
}

impl Validator for ShellHelper {
    fn validate(&self, context: &mut ValidationContext) -> Result<ValidationResult> {
        Ok(if is_complete(context.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

/// True if Enter runs `text`; otherwise Enter begins another line of it.
pub fn is_complete(text: &str) -> bool {
    let nothing =
        lexer::tokens(text).iter().all(|token| matches!(token.kind, lexer::Kind::Space | lexer::Kind::Comment));
    nothing || text.trim_start().starts_with(['.', '\\']) || aliases::word(text).is_some() || Session::is_complete(text)
}
