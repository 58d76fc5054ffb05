//! Other names of the shell's commands: words at the prompt (`help`, `exit`, `quit`), and psql's commands, which begin with a
//! backslash.

use crate::failure::{Failure, Result};
use crate::output::Mode;

/// psql's commands and the shell's. `.help` shows this list.
pub const PSQL: &[(&str, &str)] = &[
    ("\\!", ".shell"),
    ("\\?", ".help"),
    ("\\cd", ".cd"),
    ("\\conninfo", ".databases"),
    ("\\d", ".tables or .describe"),
    ("\\di", ".indexes"),
    ("\\dn", ".schemas"),
    ("\\dt", ".tables"),
    ("\\du", ".roles"),
    ("\\dv", ".views"),
    ("\\echo", ".print"),
    ("\\h", ".help"),
    ("\\i", ".read"),
    ("\\l", ".databases"),
    ("\\o", ".output"),
    ("\\q", ".quit"),
    ("\\set", ".parameter set"),
    ("\\timing", ".timer"),
    ("\\unset", ".parameter unset"),
    ("\\x", ".mode line or table"),
];

/// The dot command of an input that begins with a backslash. Without an argument, `\x` and `\timing` change the present mode
/// and timer.
///
/// # Errors
/// If there is no such command.
pub fn dot_command(input: &str, mode: Mode, timer: bool) -> Result<String> {
    let input = input.trim();
    let end = input.find(|c: char| c.is_whitespace()).unwrap_or(input.len());
    let (name, rest) = (input[..end].trim_end_matches(';'), input[end..].trim());
    let name = match name.strip_suffix(['+', 'S']) {
        // psql's variants with more columns and with system objects.
        Some(plain) if plain.starts_with("\\d") || plain == "\\l" => plain,
        _ => name,
    };
    let switched = |is_on: bool| match rest.trim_end_matches(';') {
        "" => Ok(!is_on),
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Failure::message(format!("usage: {name} [on|off]"))),
    };
    let command = match name {
        "\\x" => return Ok(if switched(mode == Mode::Line)? { ".mode line" } else { ".mode table" }.into()),
        "\\timing" => return Ok(if switched(timer)? { ".timer on" } else { ".timer off" }.into()),
        "\\d" => {
            if rest.is_empty() {
                ".tables"
            } else {
                ".describe"
            }
        }
        name => {
            let found = PSQL.iter().find(|(known, _)| *known == name);
            found
                .map(|(_, command)| *command)
                .ok_or_else(|| Failure::message(format!("unknown command \"{name}\" (\\? lists the commands)")))?
        }
    };
    // psql's patterns.
    let rest = match command {
        ".tables" | ".views" => rest.replace('*', "%").replace('?', "_"),
        _ => rest.into(),
    };
    Ok(format!("{command} {rest}").trim_end().into())
}

/// The command of a word at the prompt.
pub fn word(input: &str) -> Option<&'static str> {
    match input.trim().trim_end_matches(';').trim_end().to_ascii_lowercase().as_str() {
        "help" | "?" => Some(".help"),
        "exit" | "quit" => Some(".quit"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands::find;
    use super::*;

    #[test]
    fn aliases_are_commands() {
        assert!(PSQL.is_sorted_by_key(|(name, _)| name.trim_start_matches('\\')));
        for (name, command) in PSQL {
            let dotted = dot_command(name, Mode::Table, false).unwrap();
            let first = dotted.split(' ').next().unwrap();
            assert!(find(first).is_some_and(|found| found.name == first), "{name}");
            assert!(command.starts_with(first), "{name}: {command}, {first}");
        }
    }

    #[test]
    fn arguments_and_switches() {
        let dotted = |input| dot_command(input, Mode::Table, true).unwrap();
        assert_eq!(dotted("\\d  orders;"), ".describe orders;");
        assert_eq!(dotted("\\d+ orders"), ".describe orders");
        assert_eq!(dotted("\\dt *ord?rs"), ".tables %ord_rs");
        assert_eq!(dotted("\\d;"), ".tables");
        assert_eq!((dotted("\\x").as_str(), dotted("\\x off").as_str()), (".mode line", ".mode table"));
        assert_eq!((dotted("\\timing").as_str(), dotted("\\timing on").as_str()), (".timer off", ".timer on"));
        assert_eq!(dot_command("\\x", Mode::Line, true).unwrap(), ".mode table");
        assert_eq!(dotted("\\! ls -l 'a b'"), ".shell ls -l 'a b'");
        for unknown in ["\\", "\\gexec", "\\x auto"] {
            assert!(dot_command(unknown, Mode::Table, true).is_err(), "{unknown}");
        }
    }

    #[test]
    fn words() {
        assert_eq!((word("help"), word(" QUIT ; "), word("exit")), (Some(".help"), Some(".quit"), Some(".quit")));
        assert!(word("help me").is_none() && word("SELECT 1").is_none());
    }
}
