//! `keyaki completions` and `keyaki man`: files for the shells and the manual of the operating system, made from the definition
//! of the command line.

use std::io::{Write, stdout};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};

/// Writes the completions of a shell to standard output.
///
/// # Errors
/// Errors of the output.
pub fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "keyaki", &mut script);
    write(&script)
}

/// Writes the manual page of the program, or of one of its commands, to standard output.
///
/// # Errors
/// For an unknown command; errors of the output.
pub fn page(command: Option<&str>) -> Result<()> {
    write(&text(command)?)
}

fn text(command: Option<&str>) -> Result<Vec<u8>> {
    let mut program = Arguments::command();
    program.build();
    let shown = match command {
        None => program,
        Some(name) => {
            let unknown = || Failure::Usage(format!("unknown command \"{name}\" (keyaki --help lists them)"));
            program.find_subcommand(name).cloned().ok_or_else(unknown)?
        }
    };
    let mut page = Vec::new();
    Man::new(shown).render(&mut page).map_err(Failure::Output)?;
    Ok(page)
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let page = |command| String::from_utf8(text(command).unwrap()).unwrap();
        assert!(page(None).contains(".TH keyaki") && page(None).contains("FILE"));
        for command in Arguments::command().get_subcommands() {
            let page = page(Some(command.get_name()));
            assert!(page.contains(&format!(".TH keyaki-{}", command.get_name())), "{page}");
        }
        assert!(text(Some("nonsense")).is_err());
    }
}
