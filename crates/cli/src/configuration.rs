//! The configuration file of `keyaki serve`: TOML with the names of the options.
//!
//! ```toml
//! listen = ["127.0.0.1:5432", "[::1]:5432"]
//! socket = "/run/keyaki"
//! max-connections = 200
//! statement-timeout = "30s"
//! ```
//!
//! The entries become arguments of the program, in front of those of the command line, so the options of both have the same values
//! and checks. An option of the command line replaces all values of the file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, Parser};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};

/// The command with a configuration file.
const SERVE: &str = "serve";
/// The option that names the file.
const CONFIG: &str = "config";

/// The arguments of the program, with those of a configuration file.
///
/// # Errors
/// If the file cannot be read, is malformed or has an unknown name. Ends the program for invalid arguments.
pub fn arguments(given: Vec<OsString>) -> Result<Arguments> {
    let Some(path) = file(&given) else { return Ok(Arguments::parse_from(given)) };
    let text = std::fs::read_to_string(&path).map_err(Failure::file(&path))?;
    Ok(Arguments::parse_from(merge(given, &path, &text)?))
}

/// The configuration file in arguments.
fn file(given: &[OsString]) -> Option<PathBuf> {
    // Options that need each other may be in the file.
    let matches = Arguments::command().ignore_errors(true).try_get_matches_from(given).ok()?;
    matches.subcommand_matches(SERVE)?.get_one::<PathBuf>(CONFIG).cloned()
}

/// Adds the entries of a configuration file to arguments.
fn merge(mut given: Vec<OsString>, path: &Path, text: &str) -> Result<Vec<OsString>> {
    let failed = |at: usize, problem: String| {
        let line = 1 + text[..at.min(text.len())].matches('\n').count();
        Failure::Usage(format!("{}:{line}: {problem}", path.display()))
    };
    let malformed = |error: toml::de::Error| {
        failed(error.span().map_or(0, |span| span.start), format!("invalid TOML: {}", error.message()))
    };
    let table = DeTable::parse(text).map_err(malformed)?;
    let mut command = Arguments::command().ignore_errors(true);
    let matches = command.try_get_matches_from_mut(&given).ok();
    let matches = matches.as_ref().and_then(|matches| matches.subcommand_matches(SERVE));
    let serve = command.find_subcommand(SERVE);
    let mut added = Vec::new();
    for (key, value) in table.get_ref() {
        let name: &str = key.get_ref();
        let known = serve.and_then(|serve| serve.get_arguments().find(|argument| argument.get_long() == Some(name)));
        let known = known.filter(|_| !matches!(name, CONFIG | "help"));
        let known = known.ok_or_else(|| failed(key.span().start, format!("unknown option \"{name}\"")))?;
        let source = matches.and_then(|matches| matches.value_source(known.get_id().as_str()));
        let is_flag = matches!(known.get_action(), ArgAction::SetTrue);
        let is_list = matches!(known.get_action(), ArgAction::Append);
        let expected = match (is_flag, is_list) {
            (true, _) => "true or false",
            (_, true) => "a string, a number, or an array of them",
            _ => "a string or a number",
        };
        let wrong = |value: &Spanned<DeValue<'_>>| {
            let found = value.get_ref().type_str();
            failed(value.span().start, format!("option \"{name}\" needs {expected}, found {found}"))
        };
        let one = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) if !is_flag => Ok(format!("--{name}={text}").into()),
            DeValue::Integer(number) if !is_flag && number.radix() == 10 => {
                Ok(format!("--{name}={}", number.as_str()).into())
            }
            _ => Err(wrong(value)),
        };
        let values: Vec<OsString> = match value.get_ref() {
            DeValue::Boolean(true) if is_flag => vec![format!("--{name}").into()],
            DeValue::Boolean(false) if is_flag => Vec::new(),
            DeValue::Array(values) if is_list => values.iter().map(one).collect::<Result<_>>()?,
            _ => vec![one(value)?],
        };
        if source != Some(ValueSource::CommandLine) {
            added.extend(values);
        }
    }
    // After the name of the command: later arguments may follow a "--".
    let at = given.iter().position(|argument| argument == SERVE).map_or(given.len(), |at| at + 1);
    given.splice(at..at, added);
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Command, ServeArguments};

    fn merged(given: &[&str], text: &str) -> Result<Vec<OsString>> {
        let given = ["keyaki", "serve", "shop"].iter().chain(given).map(OsString::from).collect();
        merge(given, Path::new("keyaki.toml"), text)
    }

    fn serve(given: &[&str], text: &str) -> ServeArguments {
        match Arguments::try_parse_from(merged(given, text).unwrap()).unwrap().command {
            Some(Command::Serve(arguments)) => *arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_of_the_file() {
        let text = "# A comment\nlisten = ['127.0.0.1:1', '[::1]:2']\nmax-connections = 7\nstatement-timeout = \"30s\"\n\
                    memory = '1G'\nreadonly = true\nallow-unprotected = false\ntls-certificate = 'a'\ntls-key = 'b'\n";
        let arguments = serve(&[], text);
        assert_eq!(arguments.listen, ["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]);
        assert_eq!((arguments.max_connections, arguments.allow_unprotected), (7, false));
        assert_eq!(arguments.statement_timeout.map(|time| time.0.as_secs()), Some(30));
        assert!(arguments.open.readonly && arguments.open.memory.is_some());
        assert_eq!((arguments.tls_certificate, arguments.tls_key), (Some("a".into()), Some("b".into())));
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let text = "listen = ['127.0.0.1:1', '127.0.0.1:2']\nmax-connections = 7\nreadonly = false\n";
        let arguments = serve(&["--listen", "127.0.0.1:3", "--max-connections=8", "--readonly"], text);
        assert_eq!(arguments.listen, ["127.0.0.1:3".parse().unwrap()]);
        assert!(arguments.max_connections == 8 && arguments.open.readonly);
    }

    #[test]
    fn errors_have_the_line() {
        for (text, expected) in [
            ("listen = '127.0.0.1:1'\nmax_connections = 7", "keyaki.toml:2: unknown option \"max_connections\""),
            ("\n\nconfig = 'other.toml'", "keyaki.toml:3: unknown option \"config\""),
            ("[server]\nlisten = 'a'", "keyaki.toml:1: unknown option \"server\""),
            ("max-connections = 7\nmax-connections = 8", "keyaki.toml:2: invalid TOML"),
            ("readonly =\n", "keyaki.toml:1: invalid TOML"),
            ("readonly = 'yes'", "keyaki.toml:1: option \"readonly\" needs true or false, found string"),
            ("socket = ['a']", "keyaki.toml:1: option \"socket\" needs a string or a number, found array"),
            ("listen = [\n'a',\ntrue]", "keyaki.toml:3: option \"listen\" needs"),
        ] {
            let error = merged(&[], text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        // The values are those of the options.
        assert!(Arguments::try_parse_from(merged(&[], "max-connections = 0").unwrap()).is_err());
    }

    #[test]
    fn the_file_is_found() {
        let found = |given: &[&str]| file(&given.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(found(&["keyaki", "serve", "shop", "--config", "a.toml"]), Some("a.toml".into()));
        assert_eq!(found(&["keyaki", "serve", "--config=a.toml", "--tls-key", "b", "shop"]), Some("a.toml".into()));
        assert_eq!(found(&["keyaki", "serve", "shop"]), None);
        assert_eq!(found(&["keyaki", "shop", "-c", "SELECT 1"]), None);
    }
}
