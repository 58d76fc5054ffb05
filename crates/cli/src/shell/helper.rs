//! The line editor's helper: completion, colours and hints, and the test for complete input.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyaki::Session;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::{Hinter, HistoryHinter};
use rustyline::validate::Validator;
use rustyline::{Cmd, ConditionalEventHandler, Context, Event, EventContext, Helper, RepeatCount, Result};

use super::complete::Names;
use super::{aliases, commands, complete, lexer};

pub struct ShellHelper {
    pub names: Rc<dyn Names>,
    pub colours: bool,
    pub history: HistoryHinter,
    /// The lines of the input before the one that is edited, each with its end.
    pub before: String,
}

impl Helper for ShellHelper {}

/// Leaves a further line of an input upwards, to edit the lines before it, too.
#[derive(Debug, Default)]
pub struct Leave {
    /// A further line is edited.
    pub applies: AtomicBool,
    /// The user has left it.
    pub left: AtomicBool,
}

/// Bound to the keys that leave a line upwards.
pub struct LeaveKey(pub Arc<Leave>);

impl ConditionalEventHandler for LeaveKey {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext) -> Option<Cmd> {
        let applies = self.0.applies.load(Ordering::Relaxed);
        self.0.left.store(applies, Ordering::Relaxed);
        applies.then_some(Cmd::AcceptLine)
    }
}

impl Completer for ShellHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let (before, whole) = (self.before.len(), format!("{}{line}", self.before));
        let (start, candidates) = complete::complete(self.names.as_ref(), &whole, before + position);
        // A text that an earlier line has opened has no candidates.
        Ok(start.checked_sub(before).map_or((position, Vec::new()), |start| (start, candidates)))
    }
}

impl Hinter for ShellHelper {
    type Hint = String;

    /// The arguments of a dot command, else the rest of the latest input in the history with this beginning.
    fn hint(&self, line: &str, position: usize, context: &Context<'_>) -> Option<String> {
        if !self.before.is_empty() || position < line.len() || line.trim().is_empty() {
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
        match self.colours && !(self.before.is_empty() && line.starts_with(['.', '\\'])) {
            true => Cow::Owned(lexer::coloured_after(&self.before, line)),
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

impl Validator for ShellHelper {}

/// True if Enter runs `text`; otherwise another line of it follows.
pub fn is_complete(text: &str) -> bool {
    let nothing =
        lexer::tokens(text).iter().all(|token| matches!(token.kind, lexer::Kind::Space | lexer::Kind::Comment));
    nothing || text.trim_start().starts_with(['.', '\\']) || aliases::word(text).is_some() || Session::is_complete(text)
}
