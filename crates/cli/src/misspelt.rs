//! Names of databases that are probably misspelt commands: `keyaki srve` must not create a database of this name.

use std::path::Path;

use clap::CommandFactory;
use strsim::damerau_levenshtein;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};

/// Commands of other programs.
const FOREIGN: [&str; 11] =
    ["connect", "export", "import", "init", "load", "open", "run", "start", "status", "vacuum", "version"];

/// Checks the name of a database that does not exist.
///
/// # Errors
/// If it resembles a command, or is one of another program.
pub fn check(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    match path.to_str().and_then(similar) {
        Some(command) => {
            let name = path.display();
            Err(Failure::Usage(format!(
                "there is no command or database \"{name}\": did you mean keyaki {command}? (keyaki ./{name} creates a \
                 database of this name)"
            )))
        }
        None if path.to_str().is_some_and(|name| FOREIGN.contains(&name)) => {
            let name = path.display();
            Err(Failure::Usage(format!(
                "there is no command or database \"{name}\": keyaki help lists the commands (keyaki ./{name} creates a database \
                 of this name)"
            )))
        }
        None => Ok(()),
    }
}

/// The command that a word resembles.
fn similar(word: &str) -> Option<String> {
    // Names of directories are no commands.
    if word.contains(['/', '.']) {
        return None;
    }
    let word = word.to_lowercase();
    let program = Arguments::command();
    let names = program.get_subcommands().map(clap::Command::get_name).chain(["help"]);
    let mut similar = names.filter(|name| resembles(&word, name));
    similar.next().map(Into::into)
}

/// True for transposed letters and for a missing one, in long commands also for a letter that is added or another one. Plurals and
/// names with a number are names of their own.
fn resembles(word: &str, name: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    if damerau_levenshtein(name, word) > 1 || word.strip_prefix(name).is_some_and(|rest| rest != "r") {
        return false;
    }
    let is_shorter = word.len() < name.len();
    sorted(word) == sorted(name)
        || is_shorter && name.len() >= 4
        || word.len() != name.len() && name.len() >= 5
        || name.len() >= 6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_resemble_commands() {
        for (word, command) in
            [("srve", "serve"), ("Server", "serve"), ("calibarte", "calibrate"), ("dmup", "dump"), ("dmp", "dump")]
        {
            assert_eq!(similar(word).as_deref(), Some(command), "{word}");
        }
        for word in ["shop", "orders", "./srve", "serve.db", "tpch", "data", "main", "memo", "slot", "backup2", "track"]
        {
            assert_eq!(similar(word), None, "{word}");
        }
        assert!(check(Path::new("import")).is_err() && check(Path::new("./import")).is_ok());
        assert!(check(Path::new("srve")).is_err() && check(Path::new("/")).is_ok());
    }
}
