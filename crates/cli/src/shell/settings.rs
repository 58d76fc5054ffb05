//! The commands that change the output of the shell.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use clap::ValueEnum;

use crate::failure::{Failure, Result};
use crate::output::{Mode, Style};
use crate::program::Program;
use crate::run::{Runner, Target};

/// `.mode [MODE [TABLE]]`. Separators are those of a mode.
pub fn mode(runner: &mut Runner, arguments: &[String]) -> Result<()> {
    let Some(name) = arguments.first() else {
        let name = runner.mode.name();
        return runner.say(&name);
    };
    let names = || {
        let names: Vec<String> = Mode::value_variants().iter().map(|mode| mode.name()).collect();
        names.join(", ")
    };
    let mode = Mode::from_str(name, true)
        .map_err(|_| Failure::message(format!("unknown mode \"{name}\" (available: {})", names())))?;
    match arguments.get(1) {
        Some(table) if mode == Mode::Insert => runner.style.table.clone_from(table),
        Some(_) => return Err(Failure::message("only mode insert has a table")),
        None => {}
    }
    runner.mode = mode;
    runner.style.separator = None;
    Ok(())
}

/// A switch. Without a value, shows it.
pub fn switch(runner: &mut Runner, name: &str, value: Option<&str>) -> Result<()> {
    let setting = match name {
        ".timer" => &mut runner.timer,
        ".headers" => &mut runner.style.headers,
        _ => &mut runner.changes,
    };
    match value {
        Some("on") => *setting = true,
        Some("off") => *setting = false,
        None => {
            let shown = if *setting { "on" } else { "off" };
            return runner.say(shown);
        }
        Some(_) => return Err(Failure::message(format!("usage: {name} on|off"))),
    }
    Ok(())
}

/// `.maxrows [N]`, `.maxwidth [N]`: limits of boxed tables.
pub fn limit(runner: &mut Runner, name: &str, value: Option<&str>) -> Result<()> {
    let is_rows = name == ".maxrows";
    let Some(value) = value else {
        let limit = if is_rows { runner.style.max_rows } else { runner.style.max_width };
        let automatic = if is_rows { "that of the mode" } else { "that of the terminal" };
        return runner.say(&limit.map_or(automatic.into(), |limit| limit.to_string()));
    };
    let limit: usize =
        value.parse().map_err(|_| Failure::message(format!("invalid number \"{value}\" (usage: {name} N)")))?;
    match is_rows {
        true => runner.style.max_rows = Some(limit),
        false => runner.style.max_width = Some(limit).filter(|&limit| limit > 0),
    }
    Ok(())
}

/// `.width [N …]`: the widths of the first columns of boxed tables.
pub fn widths(runner: &mut Runner, values: &[String]) -> Result<()> {
    let width = |value: &String| {
        let valid = value.parse::<usize>().ok().filter(|&width| width <= WIDTH_MAX);
        valid.ok_or_else(|| Failure::message(format!("invalid width \"{value}\" (0 to {WIDTH_MAX}; 0 is automatic)")))
    };
    runner.style.widths = values.iter().map(width).collect::<Result<_>>()?;
    Ok(())
}

/// Upper bound of the width of a column.
const WIDTH_MAX: usize = 10_000;

/// `.nullvalue [TEXT]`
pub fn null(runner: &mut Runner, text: Option<&str>) {
    runner.style.null = text.map(String::from);
}

/// `.separator [TEXT]`
pub fn separator(runner: &mut Runner, text: Option<&str>) -> Result<()> {
    let Some(text) = text else {
        runner.style.separator = None;
        return Ok(());
    };
    let separator = unescaped(text)?;
    runner.mode.check_separator(&separator)?;
    runner.style.separator = Some(separator);
    Ok(())
}

/// A text with `\t`, `\n`, `\\` and `\xHH` in place of their characters.
pub(super) fn unescaped(text: &str) -> Result<String> {
    let mut unescaped = String::new();
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        unescaped.push_str(before);
        let hex = || u8::from_str_radix(escape.get(1..3)?, 16).ok().filter(u8::is_ascii);
        let (c, len) = match escape.chars().next() {
            Some('t') => ('\t', 1),
            Some('n') => ('\n', 1),
            Some('\\') => ('\\', 1),
            Some('x') if hex().is_some() => (hex().map_or('\0', char::from), 3),
            _ => {
                return Err(Failure::message("a backslash precedes t, n, a backslash, or x and two hex digits"));
            }
        };
        unescaped.push(c);
        rest = &escape[len..];
    }
    unescaped.push_str(rest);
    Ok(unescaped)
}

/// `.output [FILE]`, `.once FILE`: the destination of all results, or of the next one.
pub fn output(runner: &mut Runner, path: Option<&str>, is_once: bool) -> Result<()> {
    if let Some(command) = path.and_then(|path| path.strip_prefix('|')) {
        return program(runner, command.trim(), is_once);
    }
    let target = match path {
        None => Target::Stdout,
        Some(path) => Target::File(BufWriter::new(File::create(path).map_err(Failure::file(path))?)),
    };
    set_target(runner, target, is_once)
}

/// `.output |COMMAND`, `.once |COMMAND`: a program gets all results, or the next one.
pub fn program(runner: &mut Runner, command: &str, is_once: bool) -> Result<()> {
    if command.is_empty() {
        return Err(Failure::message("a command is missing after |"));
    }
    let target = Target::Program(Program::start(command)?);
    set_target(runner, target, is_once)
}

fn set_target(runner: &mut Runner, target: Target, is_once: bool) -> Result<()> {
    if !is_once {
        runner.next_target = None;
        return runner.redirect(target);
    }
    match &runner.next_target {
        // The destination after the next statement remains.
        Some(_) => runner.redirect(target),
        None => {
            runner.next_target = Some(std::mem::replace(&mut runner.target, target));
            Ok(())
        }
    }
}

/// `.log FILE|off`: statements and their results are appended to a file.
pub fn log(runner: &mut Runner, path: &str) -> Result<()> {
    runner.log = match path {
        "off" => None,
        path => Some(File::options().append(true).create(true).open(path).map_err(Failure::file(path))?),
    };
    Ok(())
}

/// `.cd DIRECTORY`: the directory of relative paths.
pub fn directory(path: &str) -> Result<()> {
    std::env::set_current_dir(Path::new(path)).map_err(Failure::file(path))
}

/// `.show`: all settings.
pub fn show(runner: &mut Runner) -> Result<()> {
    let on = |is_on: bool| if is_on { "on" } else { "off" }.to_string();
    let Style { null, headers, separator, max_rows, max_width, widths, table, .. } = &runner.style;
    let number = |limit: &Option<usize>| limit.map_or("automatic".into(), |limit| limit.to_string());
    let text = |text: &Option<String>| text.as_ref().map_or("that of the mode".into(), |text| format!("{text:?}"));
    let widths: Vec<String> = widths.iter().map(usize::to_string).collect();
    let settings = [
        ("changes", on(runner.changes)),
        ("headers", on(*headers)),
        ("log", on(runner.log.is_some())),
        ("maxrows", number(max_rows)),
        ("maxwidth", number(max_width)),
        (
            "mode",
            match runner.mode {
                Mode::Insert => format!("insert {table}"),
                mode => mode.name(),
            },
        ),
        ("nullvalue", text(null)),
        ("separator", text(separator)),
        ("timer", on(runner.timer)),
        ("width", widths.join(" ")),
    ];
    let lines = settings.iter().map(|(name, value)| format!("{name:>9}: {value}").trim_end().to_string() + "\n");
    let lines: String = lines.collect();
    runner.show(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_separators() {
        let shown = |text| unescaped(text).unwrap();
        assert_eq!((shown("\\t"), shown(" | "), shown("a\\\\b\\x1f")), ("\t".into(), " | ".into(), "a\\b\x1f".into()));
        for wrong in ["\\", "\\q", "\\x", "\\xg0", "\\xff", "\\xé"] {
            assert!(unescaped(wrong).is_err(), "{wrong}");
        }
    }
}
