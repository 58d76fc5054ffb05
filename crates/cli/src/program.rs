//! Programs that receive results.

use std::io::{self, BufWriter, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::failure::{Failure, Result};

/// A command of the operating system's shell, whose standard input receives results. Dropping it waits for its end.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// `None` after the program has closed its input.
    input: Option<BufWriter<ChildStdin>>,
}

impl Program {
    /// Starts a command.
    ///
    /// # Errors
    /// If there is no shell.
    pub fn start(command: &str) -> Result<Program> {
        let mut shell = Command::new("sh");
        let mut child = shell.arg("-c").arg(command).stdin(Stdio::piped()).spawn().map_err(Failure::file("sh"))?;
        let input = child.stdin.take().map(BufWriter::new);
        Ok(Program { child, input })
    }

    /// Sends the results so far, and waits for the end of the program.
    ///
    /// # Errors
    /// If results cannot be sent, and if the program fails.
    pub fn finish(mut self) -> Result<()> {
        let sent = self.flush().map_err(Failure::Output);
        drop(self.input.take());
        let status = self.child.wait().map_err(Failure::Output)?;
        match status.success() {
            true => sent,
            false => Err(Failure::message(format!("the command failed ({status})"))),
        }
    }

    /// A program that needs no more input, as `head`, has closed it.
    fn unless_closed<T>(&mut self, result: io::Result<T>, otherwise: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                if let Some(input) = self.input.take() {
                    // Dropping the buffer would try to write it again.
                    let _ = input.into_parts();
                }
                Ok(otherwise)
            }
            result => result,
        }
    }
}

impl Write for Program {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.input.as_mut().map_or(Ok(bytes.len()), |input| input.write(bytes));
        self.unless_closed(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.input.as_mut().map_or(Ok(()), Write::flush);
        self.unless_closed(flushed, ())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Errors have been reported by `finish`, or a first one by the statement.
        let _ = self.flush();
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_receive_results() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("o'ut");
        let mut program = Program::start(&format!("tr a-z A-Z > \"{}\"", file.display())).unwrap();
        program.write_all(b"abc\n").unwrap();
        program.finish().unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "ABC\n");
    }

    #[test]
    fn programs_may_close_their_input() {
        let mut program = Program::start("head -c 1 > /dev/null").unwrap();
        let block = vec![b'a'; 1 << 16];
        (0..64).for_each(|_| program.write_all(&block).unwrap());
        program.finish().unwrap();
    }

    #[test]
    fn failures_are_reported() {
        let error = Program::start("exit 3").unwrap().finish().unwrap_err();
        assert_eq!(error.to_string(), "the command failed (exit status: 3)");
    }
}
