//! Running programs, and the directories they use.

use std::path::{Path, PathBuf};
use std::process::Command;

pub type Result<T> = std::result::Result<T, String>;

/// The repository's directory.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Cargo's target directory.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(path) => root().join(path),
        None => root().join("target"),
    }
}

/// A cargo command that runs in the repository.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    // `cargo xtask` has set them for this program. Build scripts that read them would run again, and with them the builds of
    // all packages that depend on theirs.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Prints a command, runs it with our standard output, and fails if it fails.
pub fn step(command: &mut Command) -> Result<()> {
    let line = describe(command);
    eprintln!("\n$ {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{line}: {status}")),
        Err(error) => Err(format!("{line}: {error}")),
    }
}

/// True if a program exists and succeeds. Its output is dropped.
pub fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The program, without its directory, and its arguments.
pub fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Paths of the programs that tests and benchmarks run.
#[derive(Debug)]
pub struct Programs {
    /// The shipped program.
    pub keyaki: PathBuf,
    /// The programs behind tests and benchmarks (`tests/harness`).
    pub harness: PathBuf,
    /// The server of objects (`tests/object_server`).
    pub object_server: PathBuf,
}

impl Programs {
    /// Builds the first two.
    pub fn build(release: bool) -> Result<Self> {
        let mut command = cargo(&["build", "--package", "keyaki-cli", "--package", "keyaki-harness"]);
        if release {
            command.arg("--release");
        }
        step(&mut command)?;
        Ok(Self::paths(if release { "release" } else { "debug" }))
    }

    /// The programs that `cargo test --workspace` has built. Building them alone would build DataFusion again, with other
    /// features.
    pub fn built_by_tests() -> Result<Self> {
        let programs = Self::paths("debug");
        let all = [&programs.keyaki, &programs.harness, &programs.object_server];
        let missing = all.into_iter().find(|path| !path.exists());
        if let Some(missing) = missing {
            return Err(format!("{} does not exist: the tests should have built it", missing.display()));
        }
        Ok(programs)
    }

    fn paths(profile: &str) -> Self {
        let folder = target().join(profile);
        let [keyaki, harness, object_server] =
            ["keyaki", "keyaki-harness", "keyaki-object-server"].map(|name| folder.join(name));
        Self { keyaki, harness, object_server }
    }
}
