//! Output of results to a terminal: directly if they fit on the screen, else through the user's pager.

use std::io::{self, Stdout, Write, stdout};
use std::process::{Child, Command, Stdio};

/// Does not wrap lines (-S), keeps colours (-R), exits if the text fits on the screen (-F) and does not clear it (-X).
const DEFAULT: &str = "less -SRFX";

/// A writer that holds text back until it exceeds the screen or ends.
#[derive(Debug)]
pub struct Pager {
    screen_lines: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Holding { text: Vec<u8>, lines: usize },
    Paging(Child),
    Plain(Stdout),
}

impl Pager {
    /// Texts of up to `screen_lines` lines are printed without a pager.
    pub fn new(screen_lines: usize) -> Pager {
        Pager { screen_lines, state: State::Holding { text: Vec::new(), lines: 0 } }
    }

    /// Starts the pager and writes the held text to it; without a pager, to standard output.
    fn start(held: &[u8]) -> io::Result<State> {
        let command = std::env::var("PAGER").unwrap_or_else(|_| DEFAULT.into());
        let child = match command.trim() {
            "" | "cat" => None,
            command => Command::new("sh").arg("-c").arg(command).stdin(Stdio::piped()).spawn().ok(),
        };
        let mut state = child.map_or_else(|| State::Plain(stdout()), State::Paging);
        state.write_all(held)?;
        Ok(state)
    }

    /// Writes the held text, and waits until the user leaves the pager.
    pub fn finish(mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.state, State::Plain(stdout())) {
            State::Holding { text, .. } => {
                stdout().write_all(&text)?;
                stdout().flush()
            }
            State::Plain(mut out) => out.flush(),
            State::Paging(mut child) => {
                drop(child.stdin.take());
                child.wait().map(drop)
            }
        }
    }
}

impl State {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            State::Holding { text, lines } => {
                *lines += bytes.iter().filter(|&&byte| byte == b'\n').count();
                text.extend_from_slice(bytes);
                Ok(())
            }
            State::Plain(out) => out.write_all(bytes),
            State::Paging(child) => match &mut child.stdin {
                Some(stdin) => stdin.write_all(bytes),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            },
        }
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.state.write_all(bytes)?;
        if let State::Holding { text, lines } = &self.state
            && *lines > self.screen_lines
        {
            self.state = Pager::start(text)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::Plain(out) => out.flush(),
            State::Paging(child) => child.stdin.as_mut().map_or(Ok(()), Write::flush),
            State::Holding { .. } => Ok(()),
        }
    }
}

impl Drop for Pager {
    /// After an error, the pager still shows the text before it.
    fn drop(&mut self) {
        if let State::Paging(child) = &mut self.state {
            drop(child.stdin.take());
            // The error that caused the drop is reported instead.
            let _ = child.wait();
        }
    }
}
