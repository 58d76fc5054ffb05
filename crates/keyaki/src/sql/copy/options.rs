//! Options of COPY: parsing, defaults by format, and consistency checks.

use std::path::Path;

use datafusion::common::utils::datafusion_strsim::levenshtein;

use super::values::OptionValue;
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

/// True for the names of standard input and output, terminals and open files, which have no format.
pub(super) fn is_stream_name(path: &Path) -> bool {
    let devices = ["/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/null"];
    devices.iter().any(|device| path == Path::new(device))
        || ["/dev/fd", "/proc/self/fd"].iter().any(|folder| path.starts_with(folder))
}

/// What the name of a file says about it.
struct ByName {
    format: Option<Format>,
    delimiter: Option<u8>,
    compression: Compression,
}

impl ByName {
    fn of(path: &Path) -> ByName {
        if is_stream_name(path) {
            return ByName { format: Some(Format::Csv), delimiter: None, compression: Compression::None };
        }
        let name = |compression| {
            let (format, delimiter) = format_of(&path.with_extension("")).unzip();
            ByName { format, delimiter: delimiter.flatten(), compression }
        };
        match extension(path).as_deref() {
            Some("gz" | "gzip") => name(Compression::Gzip),
            Some("bz2") => name(Compression::Bzip2),
            Some("xz") => name(Compression::Xz),
            Some("zst" | "zstd") => name(Compression::Zstd),
            _ => {
                let (format, delimiter) = format_of(path).unzip();
                ByName { format, delimiter: delimiter.flatten(), compression: Compression::None }
            }
        }
    }
}

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// The format and, for tsv, the delimiter that a file's extension implies.
fn format_of(path: &Path) -> Option<(Format, Option<u8>)> {
    Some(match extension(path)?.as_str() {
        "parquet" | "parq" | "pq" => (Format::Parquet, None),
        "csv" => (Format::Csv, None),
        "tsv" => (Format::Csv, Some(b'\t')),
        "json" | "ndjson" | "jsonl" => (Format::Json, None),
        "tbl" => (Format::Tbl, None),
        // dbgen writes parts as lineitem.tbl.1, lineitem.tbl.2 …
        part if part.bytes().all(|byte| byte.is_ascii_digit()) => return format_of(Path::new(path.file_stem()?)),
        _ => return None,
    })
}

/// Compression of a text file, or of the pages of a Parquet file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Bzip2,
    Xz,
    /// Parquet only.
    Snappy,
    /// Parquet only.
    Lz4,
}

impl Compression {
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
        }
    }

    /// The extension of text files that are compressed in this way.
    pub fn extension(self) -> &'static str {
        match self {
            Compression::Gzip => "gz",
            Compression::Zstd => "zst",
            Compression::Bzip2 => "bz2",
            other => other.name(),
        }
    }
}

/// Options of a COPY statement and of the functions that read files; `None` where the statement does not specify the option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopyOptions {
    pub format: Option<Format>,
    pub header: Option<bool>,
    pub delimiter: Option<u8>,
    /// Texts that stand for null.
    pub nulls: Option<Vec<String>>,
    /// Quoted texts can stand for null.
    pub quoted_nulls: Option<bool>,
    pub quote: Option<u8>,
    pub escape: Option<u8>,
    /// Lines before the header or the first record.
    pub skip: Option<u64>,
    pub comment: Option<u8>,
    /// Records that are malformed or have invalid values are left out.
    pub ignore_errors: Option<bool>,
    pub date_format: Option<String>,
    pub timestamp_format: Option<String>,
    pub compression: Option<Compression>,
    pub row_group_rows: Option<usize>,
    /// Columns with whose values the names of folders are made.
    pub partition_by: Vec<String>,
    /// Files are written into a folder that has others.
    pub overwrite_or_ignore: Option<bool>,
}

/// Syntax of a delimited text file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub delimiter: u8,
    pub quote: Option<u8>,
    /// Precedes a quote or another escape character in a quoted value.
    pub escape: u8,
    /// Representations of null. COPY TO writes the first one, unquoted.
    pub nulls: Vec<String>,
    /// Quoted values can be null, too.
    pub quoted_nulls: bool,
    /// Begins a comment, which ends with the line.
    pub comment: Option<u8>,
    /// Lines that are skipped at the beginning.
    pub skip: u64,
    /// Malformed records are left out.
    pub ignore_errors: bool,
    /// Each line ends with a delimiter.
    pub trailing_delimiter: bool,
}

/// The names of options that COPY accepts, for suggestions.
const NAMES: [&str; 18] = [
    "FORMAT",
    "HEADER",
    "DELIMITER",
    "NULL",
    "QUOTE",
    "ESCAPE",
    "SKIP",
    "COMMENT",
    "IGNORE_ERRORS",
    "ALLOW_QUOTED_NULLS",
    "DATEFORMAT",
    "TIMESTAMPFORMAT",
    "COMPRESSION",
    "ROW_GROUP_SIZE",
    "ENCODING",
    "NULLSTR",
    "PARTITION_BY",
    "OVERWRITE_OR_IGNORE",
];

impl CopyOptions {
    /// Sets option `name`, given in upper case. Returns false for an unknown name.
    ///
    /// # Errors
    /// `Syntax` for a repeated option and for a missing value, `InvalidParameter` for an invalid value.
    pub fn set_known(&mut self, name: &str, value: Option<OptionValue>) -> Result<bool> {
        let is_flag = matches!(name, "HEADER" | "IGNORE_ERRORS" | "ALLOW_QUOTED_NULLS");
        let flag = |value: Option<OptionValue>| match value {
            Some(value) => boolean(name, &value.text(name)?),
            None => Ok(true),
        };
        if is_flag {
            let value = flag(value)?;
            return match name {
                "HEADER" => once(&mut self.header, name, value),
                "IGNORE_ERRORS" => once(&mut self.ignore_errors, name, value),
                _ => once(&mut self.quoted_nulls, name, value),
            }
            .map(|()| true);
        }
        let needed = || value.clone().ok_or_else(|| Error::syntax(format!("option {name} requires a value")));
        let text = || needed()?.text(name);
        match name {
            "FORMAT" => once(&mut self.format, name, format(&text()?)?),
            "DELIMITER" | "DELIMITERS" | "DELIM" | "SEP" => once(&mut self.delimiter, name, character(name, &text()?)?),
            "NULL" | "NULLSTR" => {
                let nulls = needed()?.texts(name)?.into_iter().map(null).collect::<Result<Vec<_>>>()?;
                once(&mut self.nulls, name, nulls)
            }
            "QUOTE" => once(&mut self.quote, name, character(name, &text()?)?),
            "ESCAPE" => once(&mut self.escape, name, character(name, &text()?)?),
            "SKIP" => once(&mut self.skip, name, lines(name, &text()?)?),
            "COMMENT" => once(&mut self.comment, name, character(name, &text()?)?),
            "DATEFORMAT" | "DATE_FORMAT" => once(&mut self.date_format, name, time_format(name, text()?)?),
            "TIMESTAMPFORMAT" | "TIMESTAMP_FORMAT" => {
                once(&mut self.timestamp_format, name, time_format(name, text()?)?)
            }
            "COMPRESSION" | "CODEC" => match text()?.to_ascii_lowercase().as_str() {
                // As without the option.
                "auto" | "auto_detect" => Ok(()),
                codec => once(&mut self.compression, name, compression(codec)?),
            },
            "ROW_GROUP_SIZE" => once(&mut self.row_group_rows, name, count(name, &text()?)?),
            "ENCODING" => encoding(&text()?),
            _ => return Ok(false),
        }
        .map(|()| true)
    }

    /// Sets option `name` of COPY, given in upper case.
    ///
    /// # Errors
    /// As [`CopyOptions::set_known`]; `Syntax` for an unknown option.
    pub fn set(&mut self, name: &str, value: Option<OptionValue>) -> Result<()> {
        match name {
            "PARTITION_BY" => {
                let value = value.ok_or_else(|| Error::syntax(format!("option {name} requires a list of columns")))?;
                let columns = value.texts(name)?;
                return match columns.is_empty() || !self.partition_by.is_empty() {
                    true => Err(Error::syntax(format!("option {name} has one list of columns"))),
                    false => {
                        self.partition_by = columns;
                        Ok(())
                    }
                };
            }
            "OVERWRITE_OR_IGNORE" => {
                let value = value.map_or(Ok(true), |value| boolean(name, &value.text(name)?))?;
                return once(&mut self.overwrite_or_ignore, name, value);
            }
            _ => {}
        }
        match self.set_known(name, value)? {
            true => Ok(()),
            false => Err(unknown(name, "COPY", &NAMES)),
        }
    }

    /// True if neither an option nor the name of the file determines the format.
    pub fn lacks_format(&self, path: &Path) -> bool {
        self.format.is_none() && ByName::of(path).format.is_none()
    }

    /// True if neither an option nor the name of the file determines the delimiter.
    pub fn lacks_delimiter(&self, path: &Path) -> bool {
        self.delimiter.is_none() && ByName::of(path).delimiter.is_none()
    }

    /// The compression of a text file, from the option or else from its name.
    pub fn compression(&self, path: &Path) -> Compression {
        self.compression.unwrap_or_else(|| ByName::of(path).compression)
    }

    /// The format of a file, from the option or else from its name, and the dialect of text formats. `to` is true for
    /// COPY TO.
    ///
    /// # Errors
    /// `Syntax` if the format cannot be determined or the characters of the dialect conflict, `Unsupported` for options
    /// that the format does not have.
    pub fn resolve(&self, path: &Path, to: bool) -> Result<(Format, Dialect)> {
        let by_name = ByName::of(path);
        let Some(format) = self.format.or(by_name.format) else {
            return Err(Error::syntax(format!(
                "no file format given for \"{}\", and its name has no known extension (add FORMAT parquet, csv, json or tbl)",
                path.display()
            )));
        };
        let dialect = Dialect {
            delimiter: self.delimiter.or(by_name.delimiter).unwrap_or(match format {
                Format::Tbl => b'|',
                _ => b',',
            }),
            quote: if format == Format::Tbl { None } else { Some(self.quote.unwrap_or(b'"')) },
            escape: self.escape.or(self.quote).unwrap_or(b'"'),
            nulls: self.nulls.clone().unwrap_or_else(|| {
                vec![if format == Format::Tbl { "\\N".into() } else { String::new() }] //
            }),
            quoted_nulls: self.quoted_nulls.unwrap_or(false),
            comment: self.comment,
            skip: self.skip.unwrap_or(0),
            ignore_errors: self.ignore_errors.unwrap_or(false),
            trailing_delimiter: format == Format::Tbl,
        };
        self.check(format, path, &dialect, to)?;
        Ok((format, dialect))
    }

    fn check(&self, format: Format, path: &Path, dialect: &Dialect, to: bool) -> Result<()> {
        let misplaced = |name: &str, of: &str| Err(Error::Unsupported(format!("{name} except for {of}")));
        let is_text = matches!(format, Format::Csv | Format::Tbl);
        if !is_text && self.header.is_some() {
            return misplaced("HEADER", "csv");
        }
        let has_characters = self.delimiter.is_some() || self.quote.is_some() || self.escape.is_some();
        if !is_text && (has_characters || self.nulls.is_some()) {
            return misplaced("DELIMITER, NULL, QUOTE and ESCAPE", "csv and tbl");
        }
        let reads = self.skip.is_some() || self.comment.is_some() || self.ignore_errors.is_some();
        let reads = reads || self.quoted_nulls.is_some() || self.date_format.is_some();
        if (!is_text || to) && (reads || self.timestamp_format.is_some()) {
            let names = "SKIP, COMMENT, IGNORE_ERRORS, ALLOW_QUOTED_NULLS, DATEFORMAT and TIMESTAMPFORMAT";
            return misplaced(names, "csv and tbl files that are read");
        }
        if to && self.nulls.as_ref().is_some_and(|nulls| nulls.len() != 1) {
            return Err(Error::Unsupported("several texts for NULL in COPY TO".into()));
        }
        if format == Format::Tbl && (self.quote.is_some() || self.escape.is_some() || self.header == Some(true)) {
            return misplaced("QUOTE, ESCAPE and HEADER", "csv");
        }
        if (format != Format::Parquet || !to) && self.row_group_rows.is_some() {
            return misplaced("ROW_GROUP_SIZE", "COPY TO in format parquet");
        }
        if !to && !self.partition_by.is_empty() {
            return misplaced("PARTITION_BY", "COPY TO");
        }
        if self.partition_by.is_empty() && self.overwrite_or_ignore.is_some() {
            return misplaced("OVERWRITE_OR_IGNORE", "COPY TO with PARTITION_BY");
        }
        self.check_compression(format, path, to)?;
        let special = |byte: u8| dialect.nulls.iter().any(|null| null.as_bytes().contains(&byte));
        let characters = [Some(dialect.delimiter), dialect.quote, dialect.comment];
        let same = |i: usize| characters[i].is_some() && characters[..i].contains(&characters[i]);
        if characters.iter().flatten().any(|byte| special(*byte)) || same(1) || same(2) {
            return Err(Error::syntax("DELIMITER, QUOTE, COMMENT and NULL must not contain one another"));
        }
        Ok(())
    }

    fn check_compression(&self, format: Format, path: &Path, to: bool) -> Result<()> {
        use Compression as C;
        let compression = self.compression(path);
        let refused = match (format, compression) {
            (Format::Parquet, _) if !to && (self.compression.is_some() || compression != C::None) => {
                "COMPRESSION of Parquet files that are read (the files say how their pages are compressed)"
            }
            (Format::Parquet, C::Bzip2 | C::Xz) => {
                "this compression of Parquet files (use zstd, snappy, gzip, lz4 or none)"
            }
            (Format::Parquet, _) if self.compression.is_none() && compression != C::None => {
                "Parquet files that are compressed as a whole (set COMPRESSION, and use the extension .parquet)"
            }
            (Format::Csv | Format::Json | Format::Tbl, C::Snappy | C::Lz4) => {
                "this compression of text files (use gzip or zstd)"
            }
            (Format::Csv | Format::Json | Format::Tbl, C::Bzip2 | C::Xz) if to => {
                "writing this compression (use gzip or zstd)"
            }
            _ => return Ok(()),
        };
        Err(Error::Unsupported(refused.into()))
    }
}

/// The error for an unknown option of `what`, with a similar name if there is one.
pub(in crate::sql) fn unknown(name: &str, what: &str, known: &[&str]) -> Error {
    let distance = |other: &&&str| levenshtein(&name.to_ascii_uppercase(), &other.to_ascii_uppercase());
    let similar = known.iter().min_by_key(distance).filter(|other| distance(other) <= 1 + name.len() / 4);
    let hint = match similar {
        Some(similar) => format!("perhaps you meant {similar}"),
        None => format!("it has {}", known.join(", ")),
    };
    Error::syntax(format!("option {name} not recognized by {what} ({hint})"))
}

/// Sets an option.
///
/// # Errors
/// `Syntax` if it was set before.
pub(in crate::sql) fn once<T>(option: &mut Option<T>, name: &str, value: T) -> Result<()> {
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

pub(in crate::sql) fn invalid(name: &str, value: &str, expected: &str) -> Error {
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
    Ok(match name {
        "none" | "uncompressed" => Compression::None,
        "snappy" => Compression::Snappy,
        "zstd" | "zst" => Compression::Zstd,
        "lz4" | "lz4_raw" => Compression::Lz4,
        "gzip" | "gz" => Compression::Gzip,
        "bzip2" | "bz2" => Compression::Bzip2,
        "xz" => Compression::Xz,
        other => return Err(invalid("COMPRESSION", other, "gzip, zstd, bzip2, xz, snappy, lz4, none or auto")),
    })
}

pub(in crate::sql) fn boolean(name: &str, text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(invalid(name, text, "true or false")),
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

fn lines(name: &str, text: &str) -> Result<u64> {
    text.parse().map_err(|_| invalid(name, text, "a number of lines"))
}

/// Checks a format of dates or timestamps, in the notation of strftime.
fn time_format(name: &str, text: String) -> Result<String> {
    use chrono::format::{Item, StrftimeItems};
    let is_valid = text.contains('%') && !StrftimeItems::new(&text).any(|item| item == Item::Error);
    if is_valid { Ok(text) } else { Err(invalid(name, &text, "a format such as %d/%m/%Y")) }
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
        assert_eq!(resolve("a/b.tsv.gz").expect("tsv"), (Format::Csv, b'\t'));
        assert_eq!(resolve("lineitem.tbl.12.zst").expect("tbl"), (Format::Tbl, b'|'));
        for unknown in ["b", ".csv", "b.gz", "b.parquet.gz", "b.csv.rar"] {
            assert!(resolve(unknown).is_err(), "{unknown}");
        }
        let compression = |name: &str| CopyOptions::default().compression(Path::new(name)).extension();
        assert_eq!(
            ["a.csv.GZ", "a.json.zst", "a.bz2", "a.xz", "a.csv"].map(compression),
            ["gz", "zst", "bz2", "xz", "none"]
        );
    }

    #[test]
    fn options_must_fit_the_format() {
        let resolved = |format: &str, name: &str, value: &str, to: bool| {
            let mut options = CopyOptions::default();
            options.set("FORMAT", Some(OptionValue::Text(format.into()))).expect("format");
            let set = options.set(name, Some(OptionValue::Text(value.into())));
            set.and_then(|()| options.resolve(Path::new("f"), to)).is_ok()
        };
        let check = |format: &str, name: &str, value: &str| resolved(format, name, value, false);
        assert!(check("csv", "HEADER", "true") && check("tbl", "NULL", "-"));
        assert!(!check("parquet", "HEADER", "true") && !check("json", "DELIMITER", ";"));
        assert!(!check("tbl", "QUOTE", "'") && !check("csv", "COMPRESSION", "snappy"));
        assert!(check("csv", "COMPRESSION", "xz") && check("json", "COMPRESSION", "gzip"));
        assert!(!resolved("csv", "COMPRESSION", "xz", true) && resolved("tbl", "COMPRESSION", "zstd", true));
        assert!(!check("parquet", "COMPRESSION", "zstd") && resolved("parquet", "COMPRESSION", "gzip", true));
        assert!(check("csv", "SKIP", "3") && !resolved("csv", "SKIP", "3", true) && !check("json", "SKIP", "3"));
        assert!(!check("csv", "SKIP", "-1") && !check("csv", "COMMENT", ",") && check("csv", "COMMENT", "#"));
        assert!(
            check("csv", "DATEFORMAT", "%d.%m.%Y")
                && !check("csv", "DATEFORMAT", "%!")
                && !check("csv", "DATEFORMAT", "d")
        );
        assert!(!check("csv", "DELIMITER", "\"") && !check("csv", "NULL", "a,b") && !check("csv", "NULL", "\""));
    }

    #[test]
    fn unknown_options_have_hints() {
        let message = |name: &str| CopyOptions::default().set(name, None).expect_err("unknown").to_string();
        assert_eq!(message("HEADR"), "option HEADR not recognized by COPY (perhaps you meant HEADER)");
        assert!(message("COLOUR").contains("(it has FORMAT, HEADER, DELIMITER, NULL, "));
    }
}
