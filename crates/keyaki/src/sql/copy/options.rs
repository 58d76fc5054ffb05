//! Options of COPY: parsing, defaults by format, and consistency checks.

use std::path::Path;

use crate::base::shown;
use crate::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Parquet,
    Csv,
    /// One object per line, or one array of objects.
    Json,
    /// Output of TPC-H's dbgen: `value|value|…|` per line.
    Tbl,
}

impl Format {
    /// The format and, for tsv, the delimiter that a file's extension implies.
    fn of(path: &Path) -> Option<(Format, Option<u8>)> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "parquet" | "parq" | "pq" => (Format::Parquet, None),
            "csv" => (Format::Csv, None),
            "tsv" => (Format::Csv, Some(b'\t')),
            "json" | "ndjson" | "jsonl" => (Format::Json, None),
            "tbl" => (Format::Tbl, None),
            // dbgen writes parts as lineitem.tbl.1, lineitem.tbl.2 …
            part if part.bytes().all(|byte| byte.is_ascii_digit()) => return Format::of(Path::new(path.file_stem()?)),
            _ => return None,
        })
    }

    fn has_text_options(self) -> bool {
        matches!(self, Format::Csv | Format::Tbl)
    }
}

/// Compression of the pages of a Parquet file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Snappy,
    Zstd,
    Lz4,
}

/// Options of a COPY statement; `None` where the statement does not specify the option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopyOptions {
    pub format: Option<Format>,
    pub header: Option<bool>,
    pub delimiter: Option<u8>,
    pub null: Option<String>,
    pub quote: Option<u8>,
    pub escape: Option<u8>,
    pub compression: Option<Compression>,
    pub row_group_rows: Option<usize>,
}

/// Syntax of a delimited text file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub delimiter: u8,
    pub quote: Option<u8>,
    /// Precedes a quote or another escape character in a quoted value.
    pub escape: u8,
    /// Representation of null, unquoted.
    pub null: String,
    /// Each line ends with a delimiter.
    pub trailing_delimiter: bool,
}

impl CopyOptions {
    /// Sets option `name`, given in upper case.
    ///
    /// # Errors
    /// `Syntax` for an unknown or repeated option and for a missing value, `InvalidParameter` for an invalid value.
    pub fn set(&mut self, name: &str, value: Option<String>) -> Result<()> {
        let needed = || required(name, &value);
        match name {
            "FORMAT" => once(&mut self.format, name, format(&needed()?)?),
            "HEADER" => once(&mut self.header, name, value.as_deref().map_or(Ok(true), boolean)?),
            "DELIMITER" | "DELIMITERS" | "DELIM" | "SEP" => {
                once(&mut self.delimiter, name, character(name, &needed()?)?)
            }
            "NULL" | "NULLSTR" => once(&mut self.null, name, null(needed()?)?),
            "QUOTE" => once(&mut self.quote, name, character(name, &needed()?)?),
            "ESCAPE" => once(&mut self.escape, name, character(name, &needed()?)?),
            "COMPRESSION" | "CODEC" => once(&mut self.compression, name, compression(&needed()?)?),
            "ROW_GROUP_SIZE" => once(&mut self.row_group_rows, name, count(name, &needed()?)?),
            "ENCODING" => encoding(&needed()?),
            _ => Err(Error::syntax(format!("option {name} not recognized by COPY"))),
        }
    }

    /// True if neither an option nor the name of the file determines the format.
    pub fn lacks_format(&self, path: &Path) -> bool {
        self.format.is_none() && Format::of(path).is_none()
    }

    /// The format of a file, from the option or else from its name, and the dialect of text formats. `to` is true for
    /// COPY TO.
    ///
    /// # Errors
    /// `Syntax` if the format cannot be determined or the characters of the dialect conflict, `Unsupported` for options
    /// that the format does not have.
    pub fn resolve(&self, path: &Path, to: bool) -> Result<(Format, Dialect)> {
        let by_name = Format::of(path);
        let Some(format) = self.format.or(by_name.map(|(format, _)| format)) else {
            return Err(Error::syntax(format!(
                "no file format given for \"{}\", and its name has no known extension (add FORMAT parquet, csv, json or tbl)",
                path.display()
            )));
        };
        let dialect = Dialect {
            delimiter: self.delimiter.or(by_name.and_then(|(_, delimiter)| delimiter)).unwrap_or(match format {
                Format::Tbl => b'|',
                _ => b',',
            }),
            quote: if format == Format::Tbl { None } else { Some(self.quote.unwrap_or(b'"')) },
            escape: self.escape.or(self.quote).unwrap_or(b'"'),
            null: self.null.clone().unwrap_or(if format == Format::Tbl { "\\N".into() } else { String::new() }),
            trailing_delimiter: format == Format::Tbl,
        };
        self.check(format, &dialect, to)?;
        Ok((format, dialect))
    }

    fn check(&self, format: Format, dialect: &Dialect, to: bool) -> Result<()> {
        let misplaced = |name: &str, of: &str| Err(Error::Unsupported(format!("{name} except for {of}")));
        if !format.has_text_options() {
            if self.header.is_some() {
                return misplaced("HEADER", "csv");
            }
            if self.delimiter.is_some() || self.null.is_some() || self.quote.is_some() || self.escape.is_some() {
                return misplaced("DELIMITER, NULL, QUOTE and ESCAPE", "csv and tbl");
            }
        }
        if format == Format::Tbl && (self.quote.is_some() || self.escape.is_some() || self.header == Some(true)) {
            return misplaced("QUOTE, ESCAPE and HEADER", "csv");
        }
        if (format != Format::Parquet || !to) && (self.compression.is_some() || self.row_group_rows.is_some()) {
            return misplaced("COMPRESSION and ROW_GROUP_SIZE", "COPY TO in format parquet");
        }
        let special = |byte: u8| dialect.null.as_bytes().contains(&byte);
        if dialect.quote == Some(dialect.delimiter) || special(dialect.delimiter) || dialect.quote.is_some_and(special)
        {
            return Err(Error::syntax("DELIMITER, QUOTE and NULL must not contain one another"));
        }
        Ok(())
    }
}

/// Sets an option.
///
/// # Errors
/// `Syntax` if it was set before.
pub(super) fn once<T>(option: &mut Option<T>, name: &str, value: T) -> Result<()> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::syntax(format!("option {name} specified more than once"))),
    }
}

/// The value of an option that needs one.
///
/// # Errors
/// `Syntax`.
pub(super) fn required(name: &str, value: &Option<String>) -> Result<String> {
    value.clone().ok_or_else(|| Error::syntax(format!("option {name} requires a value")))
}

/// Checks the only encoding.
pub(super) fn encoding(name: &str) -> Result<()> {
    match name.to_ascii_lowercase().as_str() {
        "utf8" | "utf-8" | "unicode" => Ok(()),
        other => Err(invalid("ENCODING", other, "UTF8")),
    }
}

pub(super) fn invalid(name: &str, value: &str, expected: &str) -> Error {
    Error::InvalidParameter { name: name.into(), value: shown(value), expected: expected.into() }
}

fn format(name: &str) -> Result<Format> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "parquet" => Format::Parquet,
        "csv" => Format::Csv,
        "json" | "ndjson" | "jsonl" => Format::Json,
        "tbl" => Format::Tbl,
        other => return Err(invalid("FORMAT", other, "parquet, csv, json or tbl")),
    })
}

fn compression(name: &str) -> Result<Compression> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "none" | "uncompressed" => Compression::None,
        "snappy" => Compression::Snappy,
        "zstd" => Compression::Zstd,
        "lz4" | "lz4_raw" => Compression::Lz4,
        other => return Err(invalid("COMPRESSION", other, "zstd, snappy, lz4 or none")),
    })
}

pub(super) fn boolean(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(invalid("HEADER", text, "true or false")),
    }
}

pub(super) fn character(name: &str, text: &str) -> Result<u8> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r' | 0) => Ok(*byte),
        b"\\t" => Ok(b'\t'),
        _ => Err(invalid(name, text, "one ASCII character other than a line end")),
    }
}

pub(super) fn null(text: String) -> Result<String> {
    if text.contains(['\n', '\r']) {
        return Err(invalid("NULL", &text, "a text without line ends"));
    }
    Ok(text)
}

fn count(name: &str, text: &str) -> Result<usize> {
    match text.parse() {
        Ok(count @ 1..=100_000_000) => Ok(count),
        _ => Err(invalid(name, text, "a number from 1 to 100000000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_imply_formats() {
        let resolve =
            |name: &str| CopyOptions::default().resolve(Path::new(name), false).map(|(f, d)| (f, d.delimiter));
        assert_eq!(resolve("a/b.PARQUET").expect("parquet").0, Format::Parquet);
        assert_eq!(resolve("b.tsv").expect("tsv"), (Format::Csv, b'\t'));
        assert_eq!(resolve("lineitem.tbl.12").expect("tbl"), (Format::Tbl, b'|'));
        assert!(resolve("b").is_err() && resolve("b.csv.gz").is_err() && resolve(".csv").is_err());
    }

    #[test]
    fn options_must_fit_the_format() {
        let check = |format: &str, name: &str, value: &str| {
            let mut options = CopyOptions::default();
            options.set("FORMAT", Some(format.into())).expect("format");
            options.set(name, Some(value.into())).and_then(|()| options.resolve(Path::new("f"), false)).is_ok()
        };
        assert!(check("csv", "HEADER", "true") && check("tbl", "NULL", "-"));
        assert!(!check("parquet", "HEADER", "true") && !check("json", "DELIMITER", ";"));
        assert!(!check("tbl", "QUOTE", "'") && !check("csv", "COMPRESSION", "zstd"));
        assert!(!check("csv", "DELIMITER", "\"") && !check("csv", "NULL", "a,b") && !check("csv", "NULL", "\""));
    }
}
