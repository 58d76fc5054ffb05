//! The shell's dot commands.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use keyaki::Database;

use super::complete::{PUBLIC, quoted};
use super::script::{self, OnError};
use super::{server, stats};
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::output::Mode;
use crate::remote::{Address, Remote, is_address};
use crate::run::{Runner, Target};
use crate::terminal;

/// The completion of an argument.
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    Table,
    File,
    Command,
    OneOf(&'static [&'static str]),
}

/// A dot command.
#[derive(Debug)]
pub struct Command {
    pub name: &'static str,
    pub arguments: &'static str,
    pub summary: &'static str,
    /// Further lines of `.help COMMAND`.
    pub details: &'static str,
    pub completes: &'static [Argument],
    /// Minimum and maximum number of arguments.
    counts: (usize, usize),
}

const MODES: &[&str] = &["table", "csv", "json", "line", "markdown"];

#[rustfmt::skip]
pub const ALL: &[Command] = &[
    Command { name: ".cache", arguments: "", summary: "Show the CPU caches, the cache governor and pinned objects",
        details: "Keyaki keeps scans larger than the last-level cache out of the CPU caches, by hardware partitioning (resctrl) or by\n\
                  reads that bypass the cache. The view keyaki_cache shows the same as rows.\n\
                  WARM TABLE t, WARM INDEX i    read every node into memory and into the CPU cache\n\
                  PIN TABLE t, PIN INDEX i      warm, and keep there as far as the machine allows, until UNPIN or close\n\
                  SET keyaki.cache_governor = on | off\n\
                  keyaki calibrate --cache [DATABASE]   measure the caches and the scan methods", completes: &[], counts: (0, 0) },
    Command { name: ".databases", arguments: "", summary: "Show the path and size of the open database", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".exit", arguments: "", summary: "Leave the shell (also .quit and Ctrl-D)", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".help", arguments: "[COMMAND]", summary: "Show this list, or details of one command", details: "", completes: &[Argument::Command], counts: (0, 1) },
    Command { name: ".import", arguments: "FILE TABLE", summary: "Load a CSV, JSON or Parquet file into a table",
        details: "The same as COPY TABLE FROM 'FILE'. The extension of the file selects the format. CSV files must have a header.\n\
                  For other formats, use COPY with options. To servers, the shell sends CSV files only.", completes: &[Argument::File, Argument::Table], counts: (2, 2) },
    Command { name: ".indexes", arguments: "[TABLE]", summary: "List indexes with their columns and sizes",
        details: "A masstree index is in memory. The tree of a vast index is in memory, and its entries too if they fit. The view\n\
                  keyaki_indexes shows more: entries, depth, build time, bits of memory per key.", completes: &[Argument::Table], counts: (0, 1) },
    Command { name: ".mode", arguments: "table|csv|json|line|markdown", summary: "Set or show the output format of results",
        details: "table     a boxed table; on a terminal, wide values are truncated\n\
                  csv       comma-separated values with a header; NULL is an empty field\n\
                  json      an array of JSON objects\n\
                  line      one \"column = value\" line per value\n\
                  markdown  a Markdown table", completes: &[Argument::OneOf(MODES)], counts: (0, 1) },
    Command { name: ".open", arguments: "DATABASE", summary: "Close this database and open another, or connect to a server",
        details: "The database is created if it does not exist. The options of the command line (--memory, --device, ...) apply to\n\
                  it as well. postgres://user@host:port/database connects to a server (as keyaki sql).", completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".output", arguments: "[FILE]", summary: "Write results to a file; without FILE, to standard output", details: "", completes: &[Argument::File], counts: (0, 1) },
    Command { name: ".quit", arguments: "", summary: "Leave the shell (also .exit and Ctrl-D)", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".read", arguments: "FILE", summary: "Run the statements of a file until the first error", details: "", completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".schema", arguments: "[TABLE]", summary: "Show CREATE statements, constraints and comments", details: "", completes: &[Argument::Table], counts: (0, 1) },
    Command { name: ".stats", arguments: "", summary: "Show pages, reads and IOPS of the last query, and reads in flight over time",
        details: "pages     pages that the query requested\n\
                  cached    pages found in the page cache\n\
                  shared    pages for which a read by another task was already in flight\n\
                  read      pages read from the device\n\
                  requests  reads, each of one or more neighbouring pages\n\
                  flight    maximum number of requests in flight\n\
                  The view keyaki_queries shows running and recent statements of all sessions, keyaki_io the latencies of the device, keyaki_store commits and stalls.", completes: &[], counts: (0, 0) },
    Command { name: ".tables", arguments: "[PATTERN]", summary: "List tables and views with their rows and sizes",
        details: "In PATTERN, % matches any text and _ any character. Names of other schemas than public contain the schema.", completes: &[Argument::Table], counts: (0, 1) },
    Command { name: ".timer", arguments: "on|off", summary: "Print the elapsed time of each statement, or not", details: "", completes: &[Argument::OneOf(&["on", "off"])], counts: (0, 1) },
];

/// The shell's next step after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Continue,
    Quit,
}

/// The command with this name, or the only one that the name abbreviates.
pub fn find(name: &str) -> Option<&'static Command> {
    let mut fitting = ALL.iter().filter(|command| command.name.starts_with(name));
    match (ALL.iter().find(|command| command.name == name), fitting.next(), fitting.next()) {
        (Some(exact), _, _) => Some(exact),
        (None, Some(only), None) if name.len() > 1 => Some(only),
        _ => None,
    }
}

/// Runs the command in `line`, which begins with a dot.
pub async fn run(runner: &mut Runner, line: &str) -> Result<Next> {
    let words = split(line)?;
    let (name, arguments) = words.split_first().ok_or_else(|| Failure::message("a command is missing"))?;
    let command =
        find(name).ok_or_else(|| Failure::message(format!("unknown command \"{name}\" (.help lists the commands)")))?;
    if arguments.len() < command.counts.0 || arguments.len() > command.counts.1 {
        return Err(Failure::message(format!("usage: {} {}", command.name, command.arguments)));
    }
    let argument = arguments.first().map(String::as_str);
    match (command.name, argument) {
        (".quit" | ".exit", _) => return Ok(Next::Quit),
        (".help", topic) => help(runner, topic)?,
        (".tables" | ".schema" | ".indexes" | ".databases", _) if runner.session().is_err() => {
            server::list(runner, command.name, argument).await?;
        }
        (".tables", pattern) => tables(runner, pattern)?,
        (".schema", table) => schema(runner, table)?,
        (".indexes", table) => indexes(runner, table)?,
        (".cache", _) => crate::caches::show(runner)?,
        (".databases", _) => databases(runner)?,
        (".stats", _) => stats::show(runner)?,
        (".mode", mode) => set_mode(runner, mode)?,
        (".timer", value) => set_timer(runner, value)?,
        (".output", path) => set_output(runner, path)?,
        (".import", Some(file)) => import(runner, file, &arguments[1]).await?,
        (".read", Some(path)) => {
            let file = File::open(path).map_err(Failure::file(path))?;
            return script::run(runner, BufReader::new(file), path, OnError::Stop).await;
        }
        (".open", Some(address)) if is_address(address) => {
            runner.connection = Connection::Remote(Remote::connect(Address::parse(address)?).await?);
        }
        (".open", Some(path)) => open(runner, Path::new(path))?,
        (other, _) => return Err(Failure::message(format!("an argument of {other} is missing"))),
    }
    Ok(Next::Continue)
}

/// Splits a line at spaces. Single or double quotes keep spaces.
fn split(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while chars.next_if(|c| c.is_whitespace()).is_some() || chars.peek().is_some() {
        let mut word = String::new();
        let mut quote = None;
        let mut any = false;
        while let Some(c) = chars.next_if(|c| quote.is_some() || !c.is_whitespace()) {
            any = true;
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(open), c) if c == open => quote = None,
                (_, c) => word.push(c),
            }
        }
        if quote.is_some() {
            return Err(Failure::message("unterminated quote"));
        }
        if any {
            words.push(word);
        }
    }
    // Accepts a semicolon at the end, as in `.tables;`.
    if let Some(last) = words.last_mut().filter(|last| last.len() > 1) {
        last.truncate(last.trim_end_matches(';').len());
    }
    Ok(words)
}

fn help(runner: &mut Runner, topic: Option<&str>) -> Result<()> {
    let Some(topic) = topic else {
        let usage = |command: &Command| format!("{} {}", command.name, command.arguments);
        let width = ALL.iter().map(|command| usage(command).len()).max().unwrap_or(0);
        let mut text = String::from("SQL statements end with a semicolon and may span lines.\n\n");
        for command in ALL {
            text.push_str(&format!("{:width$}  {}\n", usage(command), command.summary));
        }
        return runner.show(&text);
    };
    let dotted = format!(".{}", topic.trim_start_matches('.'));
    let command = find(&dotted)
        .ok_or_else(|| Failure::message(format!("unknown command \"{dotted}\" (.help lists the commands)")))?;
    runner.say(&format!("{} {}\n  {}", command.name, command.arguments, command.summary))?;
    for line in command.details.lines() {
        runner.say(&format!("  {line}"))?;
    }
    Ok(())
}

fn tables(runner: &mut Runner, pattern: Option<&str>) -> Result<()> {
    let mut listed = comfy_table::Table::new();
    listed.load_preset(comfy_table::presets::NOTHING).set_header(["table", "rows", "bytes"]);
    for table in runner.session()?.database().tables() {
        let name = shown(&table.schema, table.name);
        if pattern.is_none_or(|pattern| like(pattern, &name)) {
            let (rows, bytes) = if table.is_view {
                ("view".into(), String::new())
            } else {
                (format!("~{}", terminal::thousands(table.rows.round().max(0.0) as u64)), terminal::bytes(table.bytes))
            };
            listed.add_row([name, rows, bytes]);
        }
    }
    show_list(runner, listed, &[1, 2])
}

fn indexes(runner: &mut Runner, table: Option<&str>) -> Result<()> {
    let mut listed = comfy_table::Table::new();
    listed.load_preset(comfy_table::presets::NOTHING).set_header([
        "index",
        "table",
        "method",
        "columns",
        "include",
        "",
        "bytes",
        "in memory",
    ]);
    for index in runner.session()?.database().indexes() {
        let of = shown(&index.schema, index.table.clone());
        if table.is_none_or(|table| table == of) {
            let unique = if index.unique { "unique" } else { "" };
            let bytes = terminal::bytes(index.bytes);
            let memory = Some(index.memory_bytes()).filter(|&bytes| bytes > 0).map(terminal::bytes);
            let (columns, include) = (index.columns.join(", "), index.include.join(", "));
            let method = index.method.to_string();
            let memory = memory.unwrap_or_default();
            let name = shown(&index.schema, index.name);
            listed.add_row([name, of, method, columns, include, unique.into(), bytes, memory]);
        }
    }
    show_list(runner, listed, &[6, 7])
}

/// A name with its schema, unless that is `public`.
pub(super) fn shown(schema: &str, name: String) -> String {
    if schema == PUBLIC { name } else { format!("{schema}.{name}") }
}

pub(super) fn show_list(runner: &mut Runner, mut listed: comfy_table::Table, numbers: &[usize]) -> Result<()> {
    if listed.is_empty() {
        return Ok(());
    }
    for &number in numbers {
        if let Some(column) = listed.column_mut(number) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    runner.show(&format!("{}\n", listed.trim_fmt()))
}

/// The schemas of temporary objects begin with this prefix.
const TEMPORARY_PREFIX: &str = "pg_temp_";

fn schema(runner: &mut Runner, table: Option<&str>) -> Result<()> {
    let database = runner.session()?.database().clone();
    // Scripts do not create temporary objects.
    let wanted = |name: &str| table.map_or(!name.starts_with(TEMPORARY_PREFIX), |table| table == name);
    let (mut text, mut last) = (String::new(), String::new());
    let mut found = false;
    if table.is_none() {
        database.schemas().iter().for_each(|name| text.push_str(&format!("CREATE SCHEMA {};\n", quoted(name))));
        database.schema_comments().iter().for_each(|comment| text.push_str(&format!("{comment};\n")));
    }
    // The defaults of tables use them.
    for sequence in database.sequences() {
        if !wanted(&shown(&sequence.schema, sequence.name)) {
            continue;
        }
        found = true;
        for statement in std::iter::once(sequence.sql).chain(sequence.comment) {
            text.push_str(&format!("{statement};\n"));
        }
    }
    for info in database.tables() {
        if !wanted(&shown(&info.schema, info.name.clone())) {
            continue;
        }
        found = true;
        text.push_str(&format!("{};\n", info.sql.trim_end().trim_end_matches(';')));
        for index in
            database.indexes().into_iter().filter(|index| (&index.schema, &index.table) == (&info.schema, &info.name))
        {
            text.push_str(&format!("{};\n", index.sql.trim_end().trim_end_matches(';')));
        }
        for comment in &info.comments {
            text.push_str(&format!("{comment};\n"));
        }
        for key in &info.foreign_keys {
            last.push_str(&format!("{key};\n"));
        }
    }
    match table {
        Some(table) if !found => Err(Failure::message(format!("table \"{table}\" does not exist"))),
        _ => runner.show(&(text + &last)),
    }
}

fn databases(runner: &mut Runner) -> Result<()> {
    let database = runner.session()?.database().clone();
    let stats = database.store().stats();
    runner.say(&format!(
        "{}  {} ({} in use), {} cached",
        database.path().display(),
        terminal::bytes(stats.data_file_bytes),
        terminal::bytes(stats.data_bytes_used),
        terminal::bytes(stats.cache_bytes),
    ))
}

fn set_mode(runner: &mut Runner, mode: Option<&str>) -> Result<()> {
    let Some(mode) = mode else { return runner.say(runner.mode.name()) };
    runner.mode = Mode::from_str(mode, true)
        .map_err(|_| Failure::message(format!("unknown mode \"{mode}\" (available: {})", MODES.join(", "))))?;
    Ok(())
}

fn set_timer(runner: &mut Runner, value: Option<&str>) -> Result<()> {
    match value {
        Some("on") => runner.timer = true,
        Some("off") => runner.timer = false,
        None => return runner.say(if runner.timer { "on" } else { "off" }),
        Some(_) => return Err(Failure::message("usage: .timer on|off")),
    }
    Ok(())
}

fn set_output(runner: &mut Runner, path: Option<&str>) -> Result<()> {
    let target = match path {
        None => Target::Stdout,
        Some(path) => Target::File(BufWriter::new(File::create(path).map_err(Failure::file(path))?)),
    };
    if let Target::File(mut file) = std::mem::replace(&mut runner.target, target) {
        file.flush().map_err(Failure::Output)?;
    }
    Ok(())
}

async fn import(runner: &mut Runner, file: &str, table: &str) -> Result<()> {
    if runner.session().is_err() {
        return server::import(runner, file, table).await;
    }
    let literal = file.replace('\'', "''");
    let tables = runner.session()?.database().tables();
    let found = tables.iter().find(|info| shown(&info.schema, info.name.clone()) == table);
    let table = match found.filter(|info| info.schema != PUBLIC) {
        Some(info) => format!("{}.{}", quoted(&info.schema), quoted(&info.name)),
        None => quoted(table),
    };
    runner.statement(&format!("COPY {table} FROM '{literal}'")).await
}

fn open(runner: &mut Runner, path: &Path) -> Result<()> {
    // The old database stays open if the new one cannot be opened.
    let path: PathBuf = path.into();
    let options = keyaki::Options { must_exist: false, ..runner.open.options()? };
    let database = Database::open(&path, options)?;
    runner.switch(&database);
    Ok(())
}

/// SQL's LIKE, ignoring case.
pub(super) fn like(pattern: &str, text: &str) -> bool {
    fn matches(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('%', rest)), _) => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
            (Some(('_', pattern)), Some((_, text))) => matches(pattern, text),
            (Some((a, pattern)), Some((b, text))) if a == b => matches(pattern, text),
            _ => false,
        }
    }
    let chars = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    matches(&chars(pattern), &chars(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_found() {
        assert!(ALL.is_sorted_by_key(|command| command.name));
        assert_eq!(find(".tables").map(|c| c.name), Some(".tables"));
        assert_eq!(find(".ta").map(|c| c.name), Some(".tables"));
        assert!(find(".t").is_none() && find(".").is_none() && find(".nothing").is_none());
    }

    #[test]
    fn words() {
        let split = |line| split(line).expect("quotes are closed");
        assert_eq!(split(".import 'a b.csv'  \"T\""), [".import", "a b.csv", "T"]);
        assert_eq!(split("  .tables ; "), [".tables", ";"]);
        assert_eq!(split(".tables;"), [".tables"]);
        assert_eq!(split(".output ''"), [".output", ""]);
        assert!(super::split(".read 'x").is_err());
    }

    #[test]
    fn patterns() {
        assert!(like("o%", "orders") && like("%DER%", "orders") && like("_rders", "orders") && like("%", ""));
        assert!(!like("o", "orders") && !like("_", ""));
    }
}
