//! Runs scripts from standard input, files and `-c`.
//!
//! A script is read line by line, and each statement runs as soon as it is complete, so a script may be larger than memory. A line
//! that begins with a dot or a backslash between two statements is a command of the shell. The lines after a COPY FROM STDIN of a server, up to one that is
//! `\.`, are its rows.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::iter;
use std::path::Path;

use keyaki::Session;
use tokio::sync::mpsc;

use super::commands::{self, Next};
use super::lexer::{Kind, tokens};
use super::{parameters, report};
use crate::failure::{Failure, Result};
use crate::remote::CopySource;
use crate::run::Runner;

/// The name of the statements of the option `-c`.
pub const COMMAND: &str = "-c";
/// Rows of COPY are sent in pieces of about this size.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for the connection.
const PIECES: usize = 4;

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
    let (pending, pending_line) = (String::new(), 1);
    let mut script = Script { runner, name, on_error, pending, pending_line, copy: None, failed: false };
    let mut lines = lines(input).zip(1..);
    while let Some((line, number)) = lines.next() {
        let line = line.and_then(text).map_err(Failure::file(name))?;
        // Some editors begin files with a byte order mark.
        let line = if number == 1 { line.strip_prefix('\u{feff}').unwrap_or(&line) } else { &line };
        if script.line(number, line).await? == Next::Quit {
            return Ok(Next::Quit);
        }
        if let Some((statement, line)) = script.copy.take() {
            script.copy_in(&statement, line, &mut lines.by_ref().map(|(line, _)| line)).await?;
        }
    }
    script.flush().await?;
    if script.failed { Err(Failure::Reported) } else { Ok(Next::Continue) }
}

/// Runs a file.
///
/// # Errors
/// As [`run`].
pub async fn run_file(runner: &mut Runner, path: &Path, on_error: OnError) -> Result<Next> {
    let file = File::open(path).map_err(Failure::file(path))?;
    run(runner, BufReader::new(file), &path.display().to_string(), on_error).await
}

/// The lines of a script, with their ends.
fn lines(mut input: impl BufRead) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    iter::from_fn(move || {
        let mut line = Vec::new();
        match input.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    })
}

/// A line with its end, which may belong to a text.
///
/// # Errors
/// `InvalidData` if it is not UTF-8.
fn text(line: Vec<u8>) -> io::Result<String> {
    String::from_utf8(line).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line is not valid UTF-8"))
}

fn content(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

struct Script<'a> {
    runner: &'a mut Runner,
    name: &'a str,
    on_error: OnError,
    /// The text of an incomplete statement.
    pending: String,
    /// The line on which `pending` begins, from 1.
    pending_line: usize,
    /// A COPY FROM STDIN whose rows are the next lines of the script, and its line.
    copy: Option<(String, usize)>,
    failed: bool,
}

/// True for COPY … FROM STDIN.
fn reads_rows(statement: &str) -> bool {
    let words = tokens(statement).into_iter().filter(|token| matches!(token.kind, Kind::Keyword | Kind::Identifier));
    let words: Vec<String> = words.map(|token| token.text.to_ascii_lowercase()).collect();
    words.first().is_some_and(|word| word == "copy") && words.windows(2).any(|pair| pair == ["from", "stdin"])
}

impl Script<'_> {
    async fn line(&mut self, number: usize, line: &str) -> Result<Next> {
        if self.pending.trim().is_empty() {
            self.pending.clear();
            self.pending_line = number;
            if line.trim_start().starts_with(['.', '\\']) {
                // Boxed, because `.read` runs scripts in scripts.
                let result = Box::pin(commands::run(self.runner, line.trim_end_matches(['\n', '\r']))).await;
                return self.check(result, "", number).map(|next| next.unwrap_or(Next::Continue));
            }
        }
        self.pending.push_str(line);
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
            let is_last = text[end..].trim().trim_matches(';').trim().is_empty();
            if is_last && self.takes_rows() && reads_rows(&statement) {
                self.copy = Some((statement, line));
                return Ok(());
            }
            let sql = parameters::apply(&statement, &self.runner.parameters).into_owned();
            let result = self.runner.typed(&sql).await;
            self.check(result, &sql, line)?;
        }
        Ok(())
    }

    /// True if the lines after a statement of the script can be its rows: a server takes them, and `-c` has no lines.
    fn takes_rows(&self) -> bool {
        self.name != COMMAND && self.runner.session().is_err()
    }

    /// Executes a COPY FROM STDIN with the next lines, up to one that is `\.`, as its rows. The lines are skipped if it fails.
    async fn copy_in(
        &mut self,
        statement: &str,
        line: usize,
        lines: &mut impl Iterator<Item = io::Result<Vec<u8>>>,
    ) -> Result<()> {
        let (sender, rows) = mpsc::channel(PIECES);
        let name = self.name;
        let feed = async {
            let (mut sender, mut piece) = (Some(sender), Vec::new());
            for line in lines {
                let line = match line {
                    Ok(line) => line,
                    Err(error) => {
                        if let Some(open) = sender {
                            // The rows so far must not remain.
                            let failed = io::Error::new(error.kind(), error.to_string());
                            let _ = open.send(Err(failed)).await;
                        }
                        return Err(Failure::file(name)(error));
                    }
                };
                if content(&line) == b"\\." {
                    break;
                }
                piece.extend_from_slice(&line);
                if piece.len() >= PIECE_BYTES
                    && let Some(open) = &sender
                    && open.send(Ok(std::mem::take(&mut piece))).await.is_err()
                {
                    sender = None;
                }
                if sender.is_none() {
                    piece.clear();
                }
            }
            if let Some(open) = sender {
                // The statement may have failed.
                let _ = open.send(Ok(piece)).await;
            }
            Ok::<(), Failure>(())
        };
        let (result, fed) = tokio::join!(self.runner.copy_in(statement, CopySource::Pieces(rows)), feed);
        fed?;
        self.check(result, statement, line).map(drop)
    }

    /// Reports the error of the statement that begins on `line`. None continues the script, an error ends it.
    fn check<T>(&mut self, result: Result<T>, statement: &str, line: usize) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(fatal @ (Failure::Cancelled | Failure::Output(_))) => Err(fatal),
            Err(closed) if closed.is_broken_pipe() => Err(closed),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_read_rows() {
        assert!(reads_rows("copy t (a, b) from stdin with (format csv)") && reads_rows("-- rows\nCOPY t FROM STDIN"));
        assert!(!reads_rows("COPY t FROM 'stdin'") && !reads_rows("COPY t TO STDOUT") && !reads_rows("SELECT 1"));
    }
}
