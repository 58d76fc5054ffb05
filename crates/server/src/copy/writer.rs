//! Writes rows.

use bytes::{Buf, BufMut};
use keyaki::{CopyFormat, ProgramCopy};

use super::SIGNATURE;
use crate::values::Format;
use crate::values::columns::Column;

/// A writer of rows.
pub struct Writer {
    copy: ProgramCopy,
    /// The value that is written, with its length.
    value: Vec<u8>,
}

impl Writer {
    /// A writer in the format of a statement.
    pub fn new(copy: ProgramCopy) -> Writer {
        Writer { copy, value: Vec::new() }
    }

    /// The format of values.
    pub fn format(&self) -> Format {
        if self.copy.format == CopyFormat::Binary { Format::Binary } else { Format::Text }
    }

    /// What precedes the rows; `None` for nothing. `names` are those of the columns.
    pub fn header<'a>(&self, names: impl Iterator<Item = &'a str>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match self.copy.format {
            CopyFormat::Binary => {
                out.put_slice(SIGNATURE);
                // Flags, and the length of an extension.
                out.put_u64(0);
            }
            _ if !self.copy.header => return None,
            _ => {
                for (index, name) in names.enumerate() {
                    if index > 0 {
                        out.put_u8(self.copy.delimiter);
                    }
                    put_text(&self.copy, name.as_bytes(), &mut out);
                }
                out.put_u8(b'\n');
            }
        }
        Some(out)
    }

    /// What follows the rows; `None` for nothing.
    pub fn trailer(&self) -> Option<[u8; 2]> {
        (self.copy.format == CopyFormat::Binary).then(|| (-1_i16).to_be_bytes())
    }

    /// Appends a row.
    pub fn put(&mut self, columns: &[Column], row: usize, out: &mut Vec<u8>) {
        if self.copy.format == CopyFormat::Binary {
            out.put_u16(columns.len() as u16);
            return columns.iter().for_each(|column| column.put(row, out));
        }
        for (index, column) in columns.iter().enumerate() {
            if index > 0 {
                out.put_u8(self.copy.delimiter);
            }
            self.value.clear();
            column.put(row, &mut self.value);
            let mut value = self.value.as_slice();
            match value.get_i32() {
                // NULL
                ..0 => out.put_slice(self.copy.null.as_bytes()),
                _ => put_text(&self.copy, value, out),
            }
        }
        out.put_u8(b'\n');
    }
}

fn put_text(copy: &ProgramCopy, value: &[u8], out: &mut Vec<u8>) {
    if copy.format == CopyFormat::Csv {
        return put_quoted(copy, value, out);
    }
    for &byte in value {
        let escape = match byte {
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            b'\\' => b'\\',
            byte if byte == copy.delimiter => byte,
            byte => {
                out.put_u8(byte);
                continue;
            }
        };
        out.put_slice(&[b'\\', escape]);
    }
}

/// Appends a value, in quotes if it could be read as another one without them.
fn put_quoted(copy: &ProgramCopy, value: &[u8], out: &mut Vec<u8>) {
    let is_special = |byte: &u8| *byte == copy.delimiter || *byte == copy.quote || matches!(byte, b'\n' | b'\r');
    if value != copy.null.as_bytes() && value != b"\\." && !value.iter().any(is_special) {
        return out.put_slice(value);
    }
    out.put_u8(copy.quote);
    for &byte in value {
        if byte == copy.quote || byte == copy.escape {
            out.put_u8(copy.escape);
        }
        out.put_u8(byte);
    }
    out.put_u8(copy.quote);
}
