//! Texts of servers for a terminal.

use std::borrow::Cow;
use std::io::{self, Write};

/// A text of a server without characters that control a terminal. Line ends and tabs remain.
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(is_unsafe) {
        true => text.chars().map(|c| if is_unsafe(c) { char::REPLACEMENT_CHARACTER } else { c }).collect(),
        false => text.into(),
    }
}

/// Passes texts on to a terminal, without characters that control it. A character may arrive in several writes.
pub struct PlainWriter<W> {
    writer: W,
    /// False: texts pass as they are.
    is_terminal: bool,
    /// The begin of a character of several bytes.
    begun: Vec<u8>,
}

impl<W: Write> PlainWriter<W> {
    pub fn new(writer: W, is_terminal: bool) -> PlainWriter<W> {
        PlainWriter { writer, is_terminal, begun: Vec::new() }
    }

    pub fn into_inner(self) -> W {
        self.writer
    }
}

impl<W: Write> Write for PlainWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.writer.write(bytes);
        }
        self.begun.extend_from_slice(bytes);
        let text = std::mem::take(&mut self.begun);
        for chunk in text.utf8_chunks() {
            self.writer.write_all(plain(chunk.valid()).as_bytes())?;
            let invalid = chunk.invalid();
            let is_begun = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            match is_begun && text.ends_with(invalid) {
                true => self.begun = invalid.to_vec(),
                false if invalid.is_empty() => {}
                false => self.writer.write_all("\u{fffd}".as_bytes())?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_do_not_control_the_terminal() {
        assert_eq!(plain("a\tb\n"), "a\tb\n");
        assert_eq!(plain("\x1b]0;title\x07 \u{9b}31m \x7f\r"), "\u{fffd}]0;title\u{fffd} \u{fffd}31m \u{fffd}\u{fffd}");
        let text = "ä \x1b[31m €\u{9b} 😀\n".as_bytes();
        for size in 1..text.len() {
            let mut writer = PlainWriter::new(Vec::new(), true);
            for piece in text.chunks(size) {
                writer.write_all(piece).unwrap();
            }
            let written = String::from_utf8(writer.into_inner()).unwrap();
            assert_eq!(written, "ä \u{fffd}[31m €\u{fffd} 😀\n", "pieces of {size} bytes");
        }
    }
}
