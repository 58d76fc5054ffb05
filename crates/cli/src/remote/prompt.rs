//! A password that is typed on the terminal, without echo.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::error::{Error, Result};

/// Restores the modes of a terminal on drop.
struct Silent<'a> {
    terminal: &'a File,
    modes: Termios,
}

impl Silent<'_> {
    fn new(terminal: &File) -> std::io::Result<Silent<'_>> {
        let modes = tcgetattr(terminal)?;
        let mut silent = modes.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Silent { terminal, modes })
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // Nothing can be done if the terminal is gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.modes);
    }
}

/// Reads a password from the terminal.
///
/// # Errors
/// If there is no terminal.
pub fn password(user: &str) -> Result<String> {
    let missing = |_| {
        Error::Usage(format!(
            "the server requires the password of \"{user}\" (set PGPASSWORD, or add a line to ~/.pgpass)"
        ))
    };
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(missing)?;
    let mut line = String::new();
    {
        let _silent = Silent::new(&terminal).map_err(missing)?;
        let mut output = &terminal;
        write!(output, "Password of \"{user}\": ").and_then(|()| output.flush()).map_err(missing)?;
        BufReader::new(&terminal).read_line(&mut line).map_err(missing)?;
    }
    // The line end was not shown.
    let _ = writeln!(&terminal);
    match line.strip_suffix('\n') {
        Some(password) => Ok(password.strip_suffix('\r').unwrap_or(password).into()),
        None => Err(Error::Cancelled),
    }
}
