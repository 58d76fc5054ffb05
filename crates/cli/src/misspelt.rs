//! Names of databases that are probably misspelt commands: `keyaki srve` must not create a database of this name.

use std::path::Path;

use clap::CommandFactory;
use strsim::damerau_levenshtein;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};

/// Checks the name of a database that does not exist.
///
/// # Errors
/// If it resembles a command.
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

/// True for transposed letters, in long commands also for a letter that is missing, added or another one. Plurals and names with
/// a number are names of their own.
fn resembles(word: &str, name: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    if damerau_levenshtein(name, word) > 1 || word.strip_prefix(name).is_some_and(|rest| rest != "r") {
        return false;
    }
    sorted(word) == sorted(name) || (name.len() >= 5 && word.len() != name.len()) || name.len() >= 6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_resemble_commands() {
        for (word, command) in [("srve", "serve"), ("Server", "serve"), ("calibarte", "calibrate"), ("dmup", "dump")] {
            assert_eq!(similar(word).as_deref(), Some(command), "{word}");
        }
        for word in ["shop", "orders", "./srve", "serve.db", "tpch", "data", "main", "memo", "slot", "backup2", "track"]
        {
            assert_eq!(similar(word), None, "{word}");
        }
        assert!(check(Path::new("srve")).is_err() && check(Path::new("/")).is_ok());
    }
}
