//! A Python environment in the target directory, with the peers that tests and benchmarks compare with.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Result, root, step, target, works};

const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// The environment's interpreter; made and filled if necessary.
pub fn interpreter() -> Result<PathBuf> {
    let environment = target().join("venv");
    let python = environment.join("bin/python");
    let requirements = root().join(REQUIREMENTS);
    let installed = environment.join("installed.txt");
    let wanted = std::fs::read_to_string(&requirements).map_err(|error| format!("{REQUIREMENTS}: {error}"))?;
    if std::fs::read_to_string(&installed).is_ok_and(|text| text == wanted) && works(Command::new(&python).arg("-V")) {
        return Ok(python);
    }
    step(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    step(Command::new(&python).args(pip).arg(&requirements))?;
    std::fs::write(&installed, wanted).map_err(|error| format!("{}: {error}", installed.display()))?;
    Ok(python)
}

/// A command that runs `script` (a path in the repository) with the given program under test.
pub fn script(keyaki: &Path, script: &str) -> Result<Command> {
    let mut command = Command::new(interpreter()?);
    command.current_dir(root()).arg(script).env("KEYAKI_BIN", keyaki).env("KEYAKI_TARGET", target());
    command.env("PYTHONPATH", root().join("tests/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}
