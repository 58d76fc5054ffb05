//! Runs scripts from standard input, files and `-c`.
//!
//! A script is read line by line, and each statement runs as soon as it is complete, so a script may be larger than memory. A line
//! that begins with a dot between two statements is a dot command.

use std::io::BufRead;

use keyaki::Session;

use super::commands::{self, Next};
use super::report;
use crate::failure::{Failure, Result};
use crate::run::Runner;

/// The action of a script after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    Stop,
    Continue,
}

/// Runs all statements and dot commands of `input`. `name` is its name in error messages.
///
/// # Errors
/// [`Failure::Reported`] if a statement failed, [`Failure::Cancelled`] after Ctrl-C, and errors of reading and writing.
pub async fn run(runner: &mut Runner, input: impl BufRead, name: &str, on_error: OnError) -> Result<Next> {
    let mut script = Script { runner, name, on_error, pending: String::new(), pending_line: 1, failed: false };
    for (number, line) in input.lines().enumerate() {
        let line = line.map_err(Failure::file(name))?;
        if script.line(number + 1, &line).await? == Next::Quit {
            return Ok(Next::Quit);
        }
    }
    script.flush().await?;
    if script.failed { Err(Failure::Reported) } else { Ok(Next::Continue) }
}

struct Script<'a> {
    runner: &'a mut Runner,
    name: &'a str,
    on_error: OnError,
    /// The text of an incomplete statement.
    pending: String,
    /// The line on which `pending` begins, from 1.
    pending_line: usize,
    failed: bool,
}

impl Script<'_> {
    async fn line(&mut self, number: usize, line: &str) -> Result<Next> {
        if self.pending.trim().is_empty() {
            self.pending.clear();
            self.pending_line = number;
            if line.trim_start().starts_with('.') {
                // Boxed, because `.read` runs scripts in scripts.
                let result = Box::pin(commands::run(self.runner, line)).await;
                return self.check(result, "", number).map(|next| next.unwrap_or(Next::Continue));
            }
        }
        self.pending.push_str(line);
        self.pending.push('\n');
        if line.contains(';') && Session::is_complete(&self.pending) {
            self.flush().await?;
        }
        Ok(Next::Continue)
    }

    /// Runs the statements read so far.
    async fn flush(&mut self) -> Result<()> {
        let text = std::mem::take(&mut self.pending);
        if text.trim().is_empty() {
            return Ok(());
        }
        let statements = Session::split(&text).map_err(Failure::from);
        let Some(statements) = self.check(statements, &text, self.pending_line)? else { return Ok(()) };
        let mut end = 0;
        for statement in statements {
            let found = text[end..].find(&statement).map(|at| end + at);
            let line = self.pending_line + text[..found.unwrap_or(end)].matches('\n').count();
            end = found.map_or(end, |at| at + statement.len());
            let result = self.runner.statement(&statement).await;
            self.check(result, &statement, line)?;
        }
        Ok(())
    }

    /// Reports the error of the statement that begins on `line`. None continues the script, an error ends it.
    fn check<T>(&mut self, result: Result<T>, statement: &str, line: usize) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(fatal @ (Failure::Cancelled | Failure::Output(_))) => Err(fatal),
            Err(failure) => {
                report::show(&failure, statement, Some((self.name, line)));
                self.failed = true;
                match self.on_error {
                    OnError::Continue => Ok(None),
                    OnError::Stop => Err(Failure::Reported),
                }
            }
        }
    }
}
