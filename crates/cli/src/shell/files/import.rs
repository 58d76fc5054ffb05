//! `.import [OPTIONS] FILE TABLE`: loads the rows of a file into a table, which is created if it does not exist.
//!
//! An existing table is loaded by COPY. A new one is created by CREATE TABLE AS over the file, in one statement: it exists with
//! all rows, or not at all. To a server, COPY sends CSV files. The types of the columns of a new table there are inferred in a
//! temporary database.

use std::fs::File;
use std::path::Path;

use keyaki::{Database, TransactionStatus};

use super::super::complete::quoted;
use super::super::server::{rows, text};
use super::super::settings::unescaped;
use crate::failure::{Failure, Result};
use crate::output::statements::text_literal;
use crate::remote::CopySource;
use crate::run::Runner;
use crate::similar::similar;
use crate::terminal;

const USAGE: &str = "usage: .import [OPTIONS] FILE TABLE (.help import lists the options)";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Csv,
    Tsv,
    Json,
    Parquet,
}

impl Format {
    /// The format that the extension of a file implies, without that of a compression.
    fn of(file: &str) -> Option<Format> {
        let path = match is_compressed(file) {
            true => Path::new(file).with_extension(""),
            false => file.into(),
        };
        match extension(&path).as_deref() {
            Some("csv") => Some(Format::Csv),
            Some("tsv") => Some(Format::Tsv),
            Some("json" | "ndjson" | "jsonl") => Some(Format::Json),
            Some("parquet" | "parq" | "pq") => Some(Format::Parquet),
            _ => None,
        }
    }

    fn is_delimited(self) -> bool {
        matches!(self, Format::Csv | Format::Tsv)
    }
}

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

fn is_compressed(file: &str) -> bool {
    let extension = extension(Path::new(file));
    extension.is_some_and(|extension| ["gz", "gzip", "bz2", "xz", "zst", "zstd"].contains(&extension.as_str()))
}

/// The arguments of the command.
#[derive(Debug, Clone, Default, PartialEq)]
struct Import {
    file: String,
    table: String,
    schema: Option<String>,
    format: Option<Format>,
    header: Option<bool>,
    delimiter: Option<String>,
    skip: Option<u64>,
    null: Option<String>,
    ignore_errors: bool,
    /// Columns of the primary key of a new table.
    key: Vec<String>,
}

impl Import {
    /// # Errors
    /// Unknown options, options without a value, repeated options, and options that exclude each other or the format of the
    /// file.
    fn parse(arguments: &[String]) -> Result<Import> {
        let (mut import, mut names) = (Import::default(), Vec::new());
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let option = match argument.strip_prefix("--") {
                Some(option) => option,
                None => {
                    names.push(argument.clone());
                    continue;
                }
            };
            let mut value = || {
                let missing = || Failure::message(format!("option --{option} needs a value ({USAGE})"));
                arguments.next().cloned().ok_or_else(missing)
            };
            match option {
                "csv" => once(&mut import.format, "the format", Format::Csv)?,
                "tsv" => once(&mut import.format, "the format", Format::Tsv)?,
                "json" => once(&mut import.format, "the format", Format::Json)?,
                "parquet" => once(&mut import.format, "the format", Format::Parquet)?,
                "header" => once(&mut import.header, "--header or --no-header", true)?,
                "no-header" => once(&mut import.header, "--header or --no-header", false)?,
                "delimiter" => once(&mut import.delimiter, "--delimiter", unescaped(&value()?)?)?,
                "skip" => {
                    let lines = value()?;
                    let wrong = || Failure::message(format!("invalid number of lines \"{lines}\" for --skip"));
                    once(&mut import.skip, "--skip", lines.parse::<u64>().ok().ok_or_else(wrong)?)?;
                }
                "null" => once(&mut import.null, "--null", value()?)?,
                "schema" => once(&mut import.schema, "--schema", value()?)?,
                "key" if import.key.is_empty() => {
                    import.key = value()?.split(',').map(|column| column.trim().to_string()).collect();
                    if import.key.iter().any(String::is_empty) {
                        return Err(Failure::message("--key needs the names of columns, separated by commas"));
                    }
                }
                "key" => return Err(Failure::message("--key is given more than once")),
                "ignore-errors" => import.ignore_errors = true,
                _ => return Err(unknown(argument)),
            }
        }
        let Ok([file, table]) = <[String; 2]>::try_from(names) else { return Err(Failure::message(USAGE)) };
        import = Import { file, table, ..import };
        import.check()?;
        Ok(import)
    }

    /// Refuses options that do not apply to the format.
    fn check(&self) -> Result<()> {
        if self.format == Some(Format::Tsv) && self.delimiter.is_some() {
            return Err(Failure::message("--tsv and --delimiter exclude each other (use --csv --delimiter X)"));
        }
        if self.format.or_else(|| Format::of(&self.file)).is_none_or(Format::is_delimited) {
            return Ok(());
        }
        let given = [
            ("--header", self.header == Some(true)),
            ("--no-header", self.header == Some(false)),
            ("--delimiter", self.delimiter.is_some()),
            ("--skip", self.skip.is_some()),
            ("--null", self.null.is_some()),
            ("--ignore-errors", self.ignore_errors),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(Failure::message(format!("{option} applies to CSV and TSV files only"))),
            None => Ok(()),
        }
    }

    /// The options of CSV files, as pairs of a name and a value in SQL. `null` is the name of the option for NULL.
    fn dialect(&self, null: &'static str) -> Vec<(&'static str, String)> {
        let delimiter = match self.format {
            Some(Format::Tsv) => Some("\t"),
            _ => self.delimiter.as_deref(),
        };
        let options = [
            ("header", self.header.map(|header| header.to_string())),
            ("delimiter", delimiter.map(text_literal)),
            ("skip", self.skip.map(|lines| lines.to_string())),
            (null, self.null.as_deref().map(text_literal)),
            ("ignore_errors", self.ignore_errors.then(|| "true".into())),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The call of the function that reads the file in a query.
    ///
    /// # Errors
    /// If neither an option nor the name of the file tells the format.
    fn source(&self) -> Result<String> {
        let unknown = || {
            Failure::message(format!(
                "the name of \"{}\" has no known extension (add --csv, --tsv, --json or --parquet)",
                self.file
            ))
        };
        let (function, options) = match self.format.or_else(|| Format::of(&self.file)).ok_or_else(unknown)? {
            Format::Csv | Format::Tsv => {
                // As in COPY, which loads existing tables.
                let quoted = ("allow_quoted_nulls", "false".to_string());
                ("read_csv", self.dialect("nullstr").into_iter().chain([quoted]).collect())
            }
            Format::Json => ("read_json", Vec::new()),
            Format::Parquet => ("read_parquet", Vec::new()),
        };
        let options: String = options.iter().map(|(name, value)| format!(", {name} => {value}")).collect();
        Ok(format!("{function}({}{options})", text_literal(&self.file)))
    }

    /// COPY into an existing table.
    fn copy(&self, table: &str) -> String {
        let format = match self.format {
            Some(Format::Csv | Format::Tsv) => Some(("format", "csv".into())),
            Some(Format::Json) => Some(("format", "json".into())),
            Some(Format::Parquet) => Some(("format", "parquet".into())),
            None => None,
        };
        format!(
            "COPY {table} FROM {}{}",
            text_literal(&self.file),
            listed(format.into_iter().chain(self.dialect("null")))
        )
    }

    /// The primary key as a constraint, in a list; empty without a key.
    fn constraint(&self) -> Option<String> {
        let columns: Vec<String> = self.key.iter().map(|column| quoted(column)).collect();
        (!columns.is_empty()).then(|| format!("PRIMARY KEY ({})", columns.join(", ")))
    }

    /// The table as written in SQL: as the name of a table that exists, if there is one, else with the schema before the dot.
    async fn target(&self, runner: &mut Runner) -> Result<(String, bool)> {
        let split = match &self.schema {
            Some(schema) => Some((schema.as_str(), self.table.as_str())),
            None => self.table.split_once('.'),
        };
        let with_schema = split.map(|(schema, table)| format!("{}.{}", quoted(schema), quoted(table)));
        let plain = self.schema.is_none().then(|| quoted(&self.table));
        for name in plain.iter().chain(&with_schema) {
            let sql = format!("SELECT (to_regclass({}) IS NOT NULL)::text", text_literal(name));
            if rows(runner, &sql).await?.first().is_some_and(|row| text(row, 0).starts_with('t')) {
                return Ok((name.clone(), true));
            }
        }
        // One of them is there: `plain` is missing only with a schema.
        Ok((with_schema.or(plain).unwrap_or_default(), false))
    }
}

/// ` (name value, …)`; empty without options.
fn listed(options: impl Iterator<Item = (&'static str, String)>) -> String {
    let options: Vec<String> = options.map(|(name, value)| format!("{name} {value}")).collect();
    if options.is_empty() { String::new() } else { format!(" ({})", options.join(", ")) }
}

fn once<T>(slot: &mut Option<T>, what: &str, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Failure::message(format!("{what} is given more than once"))),
    }
}

fn unknown(option: &str) -> Failure {
    const OPTIONS: [&str; 12] = [
        "--csv",
        "--tsv",
        "--json",
        "--parquet",
        "--header",
        "--no-header",
        "--delimiter",
        "--skip",
        "--null",
        "--schema",
        "--key",
        "--ignore-errors",
    ];
    let hint = match similar(option, OPTIONS) {
        Some(similar) => format!("did you mean {similar}?"),
        None => format!("available: {}", OPTIONS.join(", ")),
    };
    Failure::message(format!("unknown option \"{option}\" of .import ({hint})"))
}

/// Runs the command.
///
/// # Errors
/// Wrong options, a key for a table that exists, and errors of the file and of the statements.
pub async fn run(runner: &mut Runner, arguments: &[String]) -> Result<()> {
    let import = Import::parse(arguments)?;
    let (table, exists) = import.target(runner).await?;
    if exists && !import.key.is_empty() {
        return Err(Failure::message(format!("--key applies to new tables only, and table {table} exists")));
    }
    if runner.session().is_ok() {
        return match exists {
            true => runner.statement(&import.copy(&table)).await,
            false => create(runner, &import, &table).await,
        };
    }
    let import = readable_by_server(&import)?;
    match exists {
        true => send(runner, &import, &table).await.map(drop),
        false => create_on_server(runner, &import, &table).await,
    }
}

/// Creates the table with the rows of the file.
async fn create(runner: &mut Runner, import: &Import, table: &str) -> Result<()> {
    let key = import.constraint().map(|key| format!(" ({key})")).unwrap_or_default();
    let sql = format!("CREATE TABLE {table}{key} AS SELECT * FROM {}", import.source()?);
    let loaded = runner.changed(&sql).await?;
    let columns = columns(rows(runner, &format!("DESCRIBE {table}")).await?);
    report(runner, table, &defined(&columns, import), loaded)
}

/// The columns of a DESCRIBE: names as written in SQL, and types.
fn columns(rows: Vec<Vec<Option<String>>>) -> Vec<String> {
    rows.iter().map(|row| format!("{} {}", quoted(text(row, 0)), text(row, 1))).collect()
}

/// The columns and the key of a table as in CREATE TABLE.
fn defined(columns: &[String], import: &Import) -> String {
    columns.iter().cloned().chain(import.constraint()).collect::<Vec<_>>().join(", ")
}

/// The file as a server reads it.
///
/// # Errors
/// For other files than CSV and TSV files, and options that COPY of PostgreSQL does not have.
fn readable_by_server(import: &Import) -> Result<Import> {
    let format = import.format.or_else(|| Format::of(&import.file));
    let file = &import.file;
    if !format.is_some_and(Format::is_delimited) || is_compressed(file) {
        let problem = format!("{file}: only CSV and TSV files without compression can be sent to a server");
        return Err(Failure::message(problem));
    }
    if import.skip.is_some() || import.ignore_errors {
        return Err(Failure::message("--skip and --ignore-errors need an embedded database"));
    }
    // Without an option, the files have a header.
    Ok(Import { header: import.header.or(Some(true)), format, ..import.clone() })
}

/// Sends a file to a table of a server. Returns the number of rows.
async fn send(runner: &mut Runner, import: &Import, table: &str) -> Result<u64> {
    let file = File::open(&import.file).map_err(Failure::file(&import.file))?;
    let options = listed([("format", "csv".to_string())].into_iter().chain(import.dialect("null")));
    runner.copy_in(&format!("COPY {table} FROM STDIN{options}"), CopySource::File(file)).await
}

/// Creates a table of a server and sends the file, in a transaction.
async fn create_on_server(runner: &mut Runner, import: &Import, table: &str) -> Result<()> {
    let described = {
        let database = Database::open_temporary(keyaki::Options::default())?;
        let mut local = Runner::new(&database, runner.mode, runner.interrupts());
        rows(&mut local, &format!("DESCRIBE SELECT * FROM {}", import.source()?)).await?
    };
    let defined = defined(&columns(described), import);
    let is_own = runner.connection.transaction_status() == TransactionStatus::Idle;
    if is_own {
        runner.changed("BEGIN").await?;
    }
    let sent = match runner.changed(&format!("CREATE TABLE {table} ({defined})")).await {
        Ok(_) => send(runner, import, table).await,
        Err(failure) => Err(failure),
    };
    if is_own && sent.is_err() {
        // The first error counts. Without a connection, the server ends the transaction.
        let _ = runner.changed("ROLLBACK").await;
    } else if is_own {
        runner.changed("COMMIT").await?;
    }
    report(runner, table, &defined, sent?)
}

fn report(runner: &mut Runner, table: &str, defined: &str, loaded: u64) -> Result<()> {
    runner.say(&format!("created table {table} ({defined})"))?;
    runner.say(&format!("loaded {}", terminal::rows(loaded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Import> {
        Import::parse(&line.split(' ').map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn files_and_options_become_sql() {
        let source = |line| parse(line).unwrap().source().unwrap();
        assert_eq!(source("a.csv t"), "read_csv('a.csv', allow_quoted_nulls => false)");
        assert_eq!(source("a.json.gz t"), "read_json('a.json.gz')");
        assert_eq!(source("--parquet it's t"), "read_parquet('it''s')");
        assert_eq!(
            source("--tsv --no-header --skip 2 a.txt t --null NA --ignore-errors"),
            "read_csv('a.txt', header => false, delimiter => '\t', skip => 2, nullstr => 'NA', ignore_errors => true, \
             allow_quoted_nulls => false)"
        );
        assert_eq!(
            source("--delimiter \\t a.csv t"),
            "read_csv('a.csv', delimiter => '\t', allow_quoted_nulls => false)"
        );
        let copy = |line| parse(line).unwrap().copy("t");
        assert_eq!(copy("a.csv t"), "COPY t FROM 'a.csv'");
        assert_eq!(copy("--json a t"), "COPY t FROM 'a' (format json)");
        assert_eq!(
            copy("--csv --header --delimiter ; a t"),
            "COPY t FROM 'a' (format csv, header true, delimiter ';')"
        );
        assert_eq!(parse("a.csv t --key id,Day").unwrap().constraint().unwrap(), "PRIMARY KEY (id, \"Day\")");
    }

    #[test]
    fn wrong_arguments() {
        for (line, expected) in [
            ("a.csv", "usage: .import"),
            ("a.csv t u", "usage: .import"),
            ("--keys id a.csv t", "did you mean --key?"),
            ("--whatever a.csv t", "available: --csv, "),
            ("a.csv t --skip", "--skip needs a value"),
            ("a.csv t --skip x", "invalid number of lines"),
            ("--csv --json a t", "the format is given more than once"),
            ("--header --no-header a.csv t", "--header or --no-header is given more than once"),
            ("--key a --key b a.csv t", "--key is given more than once"),
            ("--key a,, a.csv t", "--key needs"),
            ("--tsv --delimiter ; a t", "exclude each other"),
            ("--skip 1 a.parquet t", "--skip applies to CSV and TSV files only"),
            ("--json --null x a t", "--null applies to CSV and TSV files only"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let error = parse("data t").unwrap().source().unwrap_err().to_string();
        assert!(error.contains("add --csv"), "{error}");
    }

    #[test]
    fn servers_read_plain_csv_files() {
        let sent = |line| readable_by_server(&parse(line).unwrap()).map(|import| import.dialect("null"));
        let [header, delimiter] = [("header", "true".to_string()), ("delimiter", "'\t'".to_string())];
        assert_eq!(sent("a.csv t").unwrap(), std::slice::from_ref(&header));
        assert_eq!(sent("a.tsv t").unwrap(), [header, delimiter]);
        for refused in ["a.parquet t", "a.csv.gz t", "a t", "--skip 1 a.csv t", "--ignore-errors a.csv t"] {
            assert!(sent(refused).is_err(), "{refused}");
        }
    }
}
