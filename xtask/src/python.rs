//! Python environments in the target directory, with the packages that tests and benchmarks use.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{Programs, Result, root, step, target, works};

const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// The interpreter of the environment with the peers.
pub fn interpreter() -> Result<PathBuf> {
    environment("venv", REQUIREMENTS)
}

/// The interpreter of an environment in the target directory. Creates it and installs the packages if they changed.
pub fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    let environment = target().join(name);
    let python = environment.join("bin/python");
    let file = root().join(requirements);
    let installed = environment.join("installed.txt");
    let wanted = std::fs::read_to_string(&file).map_err(|error| format!("{requirements}: {error}"))?;
    if std::fs::read_to_string(&installed).is_ok_and(|text| text == wanted) && works(Command::new(&python).arg("-V")) {
        return Ok(python);
    }
    step(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    step(Command::new(&python).args(pip).arg(&file))?;
    std::fs::write(&installed, wanted).map_err(|error| format!("{}: {error}", installed.display()))?;
    Ok(python)
}

/// A command that runs a script of the repository on the given programs.
pub fn script(programs: &Programs, script: &str) -> Result<Command> {
    let mut command = command(programs)?;
    command.arg(root().join(script));
    Ok(command)
}

/// Like [`script`], in an environment with other packages.
pub fn script_in(name: &str, requirements: &str, programs: &Programs, script: &str) -> Result<Command> {
    let mut command = command_of(environment(name, requirements)?, programs);
    command.arg(root().join(script));
    Ok(command)
}

/// A command that runs Python with our modules and the given programs.
pub fn command(programs: &Programs) -> Result<Command> {
    Ok(command_of(interpreter()?, programs))
}

fn command_of(interpreter: PathBuf, programs: &Programs) -> Command {
    let mut command = Command::new(interpreter);
    command.env("KEYAKI_BIN", &programs.keyaki).env("KEYAKI_HARNESS", &programs.harness);
    command.env("KEYAKI_OBJECT_SERVER", &programs.object_server).env("KEYAKI_TARGET", target());
    command.env("PYTHONPATH", root().join("tests/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
