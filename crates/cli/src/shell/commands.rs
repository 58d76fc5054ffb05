//! The shell's dot commands.

use std::path::Path;

use super::aliases::{self, PSQL};
use super::script::{self, OnError};
use super::{catalog, dump, files, parameters, server, settings, stats};
use crate::failure::{Failure, Result};
use crate::run::Runner;
use crate::similar::similar;

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

const MODES: &[&str] = &[
    "table",
    "duckbox",
    "line",
    "csv",
    "tsv",
    "list",
    "ascii",
    "json",
    "jsonlines",
    "insert",
    "markdown",
    "html",
    "latex",
];

const SWITCH: &[Argument] = &[Argument::OneOf(&["on", "off"])];

/// Maximum number of arguments of commands without a limit.
const MANY: usize = usize::MAX;

#[rustfmt::skip]
pub const ALL: &[Command] = &[
    Command { name: ".backup", arguments: "DIRECTORY", summary: "Copy this database to a new directory",
        details: "The copy is a database: .open it, or copy it back with keyaki backup. keyaki backup --incremental updates a copy.",
        completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".cache", arguments: "", summary: "Show the CPU caches, the cache governor and pinned objects",
        details: "Keyaki keeps scans larger than the last-level cache out of the CPU caches, by hardware partitioning (resctrl) or by\n\
                  reads that bypass the cache. The view keyaki_cache shows the same as rows.\n\
                  WARM TABLE t, WARM INDEX i    read every node into memory and into the CPU cache\n\
                  PIN TABLE t, PIN INDEX i      warm, and keep there as far as the machine allows, until UNPIN or close\n\
                  SET keyaki.cache_governor = on | off\n\
                  keyaki calibrate --cache [DATABASE]   measure the caches and the scan methods", completes: &[], counts: (0, 0) },
    Command { name: ".cd", arguments: "DIRECTORY", summary: "Change the directory of relative paths", details: "", completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".changes", arguments: "on|off", summary: "Print the number of rows that each statement changes, or not", details: "", completes: SWITCH, counts: (0, 1) },
    Command { name: ".check", arguments: "", summary: "Verify all pages of this database, and compare its indexes with their tables", details: "The same as keyaki check and CHECK DATABASE.", completes: &[], counts: (0, 0) },
    Command { name: ".databases", arguments: "", summary: "Show the path and size of the open database", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".describe", arguments: "TABLE", summary: "Show the columns, indexes and constraints of a table or view", details: "", completes: &[Argument::Table], counts: (1, 1) },
    Command { name: ".dump", arguments: "[TABLE]", summary: "Print this database, or a table, as SQL statements",
        details: "The statements create the objects and insert the rows, which .read or keyaki NEW_DATABASE < FILE executes. keyaki dump\n\
                  and EXPORT DATABASE write Parquet files instead, which load faster.", completes: &[Argument::Table], counts: (0, 1) },
    Command { name: ".exit", arguments: "", summary: "Leave the shell (also exit and Ctrl-D)", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".expert", arguments: "[STATEMENT]", summary: "Suggest indexes for a statement, or for the next one, without executing it",
        details: "Prints CREATE INDEX statements, the estimated times of the statement without and with them, and the plan with them. An\n\
                  index must lower the estimated time by a tenth, and by 0.1 ms. ANALYZE makes estimates better. The cost of writes is\n\
                  not considered.", completes: &[], counts: (0, MANY) },
    Command { name: ".headers", arguments: "on|off", summary: "Print the names of columns, or not", details: "", completes: SWITCH, counts: (0, 1) },
    Command { name: ".help", arguments: "[COMMAND]", summary: "Show this list, or details of one command", details: "", completes: &[Argument::Command], counts: (0, 1) },
    Command { name: ".import", arguments: "[OPTIONS] FILE TABLE", summary: "Load a CSV, JSON or Parquet file into a table, which is created if missing",
        details: "The extension of the file tells its format, and its compression (.csv.gz). An existing table is loaded by COPY; CSV files\n\
                  have a header then. A new table has the columns and types that SELECT * FROM 'FILE' has. To servers, the shell sends\n\
                  CSV and TSV files.\n\
                  --csv, --tsv, --json, --parquet   the format\n\
                  --header, --no-header             the first record has the names of the columns, or not\n\
                  --delimiter X                     the delimiter of a CSV file\n\
                  --skip N                          lines to skip at the beginning of a CSV or TSV file\n\
                  --null TEXT                       the text that stands for NULL in a CSV or TSV file\n\
                  --ignore-errors                   leave out records that are malformed or have invalid values\n\
                  --schema NAME                     the schema of the table\n\
                  --key COLUMN[,COLUMN ...]         the primary key of a new table; without it, the table has none",
        completes: &[Argument::File, Argument::Table], counts: (2, MANY) },
    Command { name: ".indexes", arguments: "[TABLE]", summary: "List indexes with their columns and sizes",
        details: "A masstree index is in memory. The tree of a vast index is in memory, and its entries too if they fit. The view\n\
                  keyaki_indexes shows more: entries, depth, build time, bits of memory per key.", completes: &[Argument::Table], counts: (0, 1) },
    Command { name: ".log", arguments: "FILE|off", summary: "Append statements and their errors to a file", details: "Statements with passwords are left out.", completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".maxrows", arguments: "[N]", summary: "Limit the rows of boxed tables to the first and last of a result; 0: no limit",
        details: "Without a limit, mode duckbox shows 40 rows, and mode table all.", completes: &[], counts: (0, 1) },
    Command { name: ".maxwidth", arguments: "[N]", summary: "Limit the width of boxed tables, also in files; 0: the width of the terminal", details: "", completes: &[], counts: (0, 1) },
    Command { name: ".mode", arguments: "[MODE [TABLE]]", summary: "Set or show the output format of results",
        details: "table      a boxed table; on a terminal, wide values are cut, and if this does not suffice, columns are hidden\n\
                  duckbox    the same with the types of the columns, and at most 40 rows (.maxrows)\n\
                  line       one \"column = value\" line per value (also vertical)\n\
                  csv        comma-separated values with a header; NULL is an empty field\n\
                  tsv        tab-separated values with a header; backslashes escape tabs and line breaks\n\
                  list       values separated by |, without escapes\n\
                  ascii      values separated by the control characters 1F and 1E, without escapes\n\
                  json       an array of JSON objects\n\
                  jsonlines  a JSON object per line\n\
                  insert     an INSERT statement per row, into TABLE or t\n\
                  markdown   a Markdown table\n\
                  html       an HTML table\n\
                  latex      a LaTeX table", completes: &[Argument::OneOf(MODES)], counts: (0, 2) },
    Command { name: ".nullvalue", arguments: "[TEXT]", summary: "Set the text of NULL; without TEXT, that of the mode", details: "JSON and INSERT statements keep theirs. On terminals with colours, NULL is dimmed in tables and lines.", completes: &[], counts: (0, 1) },
    Command { name: ".once", arguments: "FILE | |COMMAND", summary: "Write the next result to a file, or to a command of the operating system's shell",
        details: "Examples: .once result.csv and .once |gzip > result.csv.gz",  completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".open", arguments: "DATABASE", summary: "Close this database and open another, or connect to a server",
        details: "The database is created if it does not exist. The options of the command line (--memory, --device, ...) apply to\n\
                  it as well. postgres://user@host:port/database connects to a server (as keyaki sql).", completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".output", arguments: "[FILE | |COMMAND]", summary: "Write results to a file or to a command; without these, to standard output",
        details: "The command is one of the operating system's shell. It gets all results until the next .output, or the end of the shell.", completes: &[Argument::File], counts: (0, 1) },
    Command { name: ".parameter", arguments: "set NAME VALUE | unset NAME | list | clear", summary: "Set values of parameters (:NAME, $NAME) in statements",
        details: "A value is one literal: NULL, true, false or a number as it is, any other value as a text. '7' in double quotes (\"'7'\") is\n\
                  the text 7. The option --param NAME=VALUE sets a parameter, too. Names without a value remain in the statement.",
        completes: &[Argument::OneOf(&["set", "unset", "list", "clear"])], counts: (0, 3) },
    Command { name: ".plot", arguments: "", summary: "Plot the reads in flight and the reads per second of the last query over time",
        details: "The reads of all statements are recorded. A statement that finds all pages in memory has none: DROP CACHES makes the\n\
                  next one read them from the device. keyaki plot draws the reads of a query in order and out of order.", completes: &[], counts: (0, 0) },
    Command { name: ".print", arguments: "[TEXT ...]", summary: "Print a text", details: "", completes: &[], counts: (0, MANY) },
    Command { name: ".quit", arguments: "", summary: "Leave the shell (also quit and Ctrl-D)", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".read", arguments: "FILE", summary: "Run the statements of a file until the first error", details: "", completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".restore", arguments: "DIRECTORY", summary: "Create the objects and rows of a dump in this database",
        details: "DIRECTORY is that of keyaki dump or EXPORT DATABASE (the same as IMPORT DATABASE 'DIRECTORY'). A backup is a database:\n\
                  .open it, or copy it with keyaki backup. Files of .dump are scripts: .read them.", completes: &[Argument::File], counts: (1, 1) },
    Command { name: ".roles", arguments: "", summary: "List roles with their rights", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".schema", arguments: "[TABLE]", summary: "Show CREATE statements, constraints and comments", details: "", completes: &[Argument::Table], counts: (0, 1) },
    Command { name: ".schemas", arguments: "", summary: "List schemas", details: "", completes: &[], counts: (0, 0) },
    Command { name: ".separator", arguments: "[TEXT]", summary: "Set the separator of values of modes csv, tsv, list and ascii",
        details: "Without TEXT, that of the mode. \\t, \\n, \\\\ and \\xHH stand for characters. .mode resets it.", completes: &[], counts: (0, 1) },
    Command { name: ".shell", arguments: "COMMAND", summary: "Run a command of the operating system's shell", details: "", completes: &[Argument::File], counts: (0, MANY) },
    Command { name: ".show", arguments: "", summary: "Show the settings of the shell", details: "", completes: &[], counts: (0, 0) },
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
    Command { name: ".timer", arguments: "on|off", summary: "Print the elapsed time of each statement, or not", details: "", completes: SWITCH, counts: (0, 1) },
    Command { name: ".views", arguments: "[PATTERN]", summary: "List views with their definitions", details: "", completes: &[Argument::Table], counts: (0, 1) },
    Command { name: ".width", arguments: "[N ...]", summary: "Set the widths of the first columns of boxed tables; 0: automatic", details: "Numbers, dates and times are not cut.", completes: &[], counts: (0, MANY) },
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

/// Commands that print nothing, or end `.once` themselves.
const SILENT: [&str; 10] =
    [".once", ".mode", ".headers", ".separator", ".nullvalue", ".width", ".maxrows", ".maxwidth", ".timer", ".expert"];

/// Runs the command in `line`, which begins with a dot, or with a backslash as those of psql. Its output is the next result for
/// `.once`.
pub async fn run(runner: &mut Runner, line: &str) -> Result<Next> {
    let first = line.split_whitespace().next().unwrap_or_default().trim_end_matches(';');
    let is_silent = find(first).is_some_and(|command| SILENT.contains(&command.name)) || first.starts_with("\\o");
    let result = run_command(runner, line).await;
    let restored = if is_silent { Ok(()) } else { runner.end_once() };
    result.and_then(|next| restored.map(|()| next))
}

async fn run_command(runner: &mut Runner, line: &str) -> Result<Next> {
    let translated;
    let line = match line.trim_start().starts_with('\\') {
        true => {
            translated = aliases::dot_command(line, runner.mode, runner.timer)?;
            translated.as_str()
        }
        false => line.trim(),
    };
    // The rest of the line belongs to another shell, or is a statement, quotes included.
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let name = find(first).map_or("", |command| command.name);
    match (name, rest.strip_prefix('|')) {
        (".shell", _) => return files::shell(runner, rest).map(|()| Next::Continue),
        (".expert", _) => return expert(runner, rest).await.map(|()| Next::Continue),
        (".once" | ".output", Some(command)) => {
            return settings::program(runner, command.trim(), name == ".once").map(|()| Next::Continue);
        }
        _ => {}
    }
    let words = split(line)?;
    let (name, arguments) = words.split_first().ok_or_else(|| Failure::message("a command is missing"))?;
    let command = find(name).ok_or_else(|| unknown(name))?;
    if arguments.len() < command.counts.0 || arguments.len() > command.counts.1 {
        return Err(Failure::message(format!("usage: {} {}", command.name, command.arguments)));
    }
    let argument = arguments.first().map(String::as_str);
    match (command.name, argument) {
        (".quit" | ".exit", _) => return Ok(Next::Quit),
        (".help", topic) => help(runner, topic)?,
        (".read", Some(path)) => {
            return script::run_file(runner, Path::new(path), OnError::Stop).await;
        }
        (".print", _) => runner.say(&arguments.join(" "))?,
        (".parameter", _) => parameters::command(runner, arguments)?,
        (".stats", _) => stats::show(runner)?,
        (".plot", _) => stats::plot(runner)?,
        (".cache", _) => crate::caches::show(runner)?,
        (name, _) if is_setting(name) => set(runner, name, argument, arguments)?,
        (name, argument) => on_database(runner, name, argument, arguments).await?,
    }
    Ok(Next::Continue)
}

/// Suggests indexes for a statement, or, without one, for the next one.
async fn expert(runner: &mut Runner, statement: &str) -> Result<()> {
    runner.session()?;
    if statement.trim_end_matches(';').trim().is_empty() {
        runner.suggests_indexes = true;
        return Ok(());
    }
    let statement = parameters::apply(statement, &runner.parameters).into_owned();
    runner.suggest_indexes(&statement).await
}

fn unknown(name: &str) -> Failure {
    let similar = similar(name, ALL.iter().map(|command| command.name));
    let hint = similar.map(|similar| format!(": did you mean {similar}?")).unwrap_or_default();
    Failure::message(format!("unknown command \"{name}\"{hint} (.help lists the commands)"))
}

/// True for commands that change the output of the shell.
fn is_setting(name: &str) -> bool {
    let settings = [
        ".cd",
        ".changes",
        ".headers",
        ".log",
        ".maxrows",
        ".maxwidth",
        ".mode",
        ".nullvalue",
        ".once",
        ".output",
        ".separator",
        ".show",
        ".timer",
        ".width",
    ];
    settings.contains(&name)
}

fn set(runner: &mut Runner, name: &str, argument: Option<&str>, arguments: &[String]) -> Result<()> {
    match (name, argument) {
        (".cd", Some(path)) => settings::directory(path),
        (".log", Some(path)) => settings::log(runner, path),
        (".maxrows" | ".maxwidth", value) => settings::limit(runner, name, value),
        (".mode", _) => settings::mode(runner, arguments),
        (".nullvalue", text) => {
            settings::null(runner, text);
            Ok(())
        }
        (".once" | ".output", path) => settings::output(runner, path, name == ".once"),
        (".separator", text) => settings::separator(runner, text),
        (".show", _) => settings::show(runner),
        (".width", _) => settings::widths(runner, arguments),
        (name, value) => settings::switch(runner, name, value),
    }
}

/// Commands that show, copy or change databases.
async fn on_database(runner: &mut Runner, name: &str, argument: Option<&str>, arguments: &[String]) -> Result<()> {
    match (name, argument) {
        (".tables" | ".schema" | ".indexes" | ".databases", _) if runner.session().is_err() => {
            server::list(runner, name, argument).await
        }
        (".tables", pattern) => catalog::tables(runner, pattern),
        (".schema", table) => catalog::schema(runner, table).await,
        (".indexes", table) => catalog::indexes(runner, table).await,
        (".databases", _) => catalog::databases(runner),
        (".views", pattern) => catalog::views(runner, pattern).await,
        (".schemas", _) => catalog::schemas(runner).await,
        (".roles", _) => catalog::roles(runner).await,
        (".describe", Some(table)) => catalog::describe(runner, table).await,
        (".dump", table) => dump::run(runner, table).await,
        (".backup", Some(directory)) => files::backup(runner, directory).await,
        (".restore", Some(directory)) => files::restore(runner, directory).await,
        (".check", _) => files::check(runner).await,
        (".import", _) => files::import::run(runner, arguments).await,
        (".open", Some(path)) => files::open(runner, path).await,
        (other, _) => Err(Failure::message(format!("an argument of {other} is missing"))),
    }
}

/// Splits a line at spaces. Single or double quotes keep spaces.
fn split(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    // The last word ends with a quoted part.
    let mut ends_quoted = false;
    while chars.next_if(|c| c.is_whitespace()).is_some() || chars.peek().is_some() {
        let mut word = String::new();
        let mut quote = None;
        let mut any = false;
        ends_quoted = false;
        while let Some(c) = chars.next_if(|c| quote.is_some() || !c.is_whitespace()) {
            any = true;
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(open), c) if c == open => (quote, ends_quoted) = (None, true),
                (_, c) => {
                    word.push(c);
                    ends_quoted = false;
                }
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
    if let Some(last) = words.last_mut().filter(|last| last.len() > 1 && !ends_quoted) {
        last.truncate(last.trim_end_matches(';').len());
    }
    Ok(words)
}

/// Longer usages do not widen the list of commands.
const USAGE_WIDTH: usize = 24;

fn help(runner: &mut Runner, topic: Option<&str>) -> Result<()> {
    let Some(topic) = topic else {
        let usage = |command: &Command| format!("{} {}", command.name, command.arguments);
        let width =
            ALL.iter().map(|command| usage(command).len()).filter(|&width| width <= USAGE_WIDTH).max().unwrap_or(0);
        let mut text = String::from("SQL statements end with a semicolon and may span lines.\n\n");
        for command in ALL {
            text.push_str(&format!("{:width$}  {}\n", usage(command), command.summary));
        }
        text.push_str("\npsql's commands:\n");
        for (alias, command) in PSQL {
            text.push_str(&format!("  {alias:9} {command}\n"));
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
    fn unknown_commands() {
        assert!(unknown(".tabels").to_string().contains("did you mean .tables?"));
        assert!(!unknown(".nonsense").to_string().contains("did you mean"));
    }

    #[test]
    fn every_mode_is_listed() {
        use clap::ValueEnum;
        let names: Vec<String> = crate::output::Mode::value_variants().iter().map(|mode| mode.name()).collect();
        assert_eq!(names, MODES);
        let details = find(".mode").unwrap().details;
        assert!(MODES.iter().all(|mode| details.lines().any(|line| line.starts_with(mode))));
    }
}
