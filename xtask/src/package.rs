//! The Python package: its tests, and `cargo xtask wheel`.
//!
//! `cargo test --workspace` builds the extension module as a library, with the features that the other tests use. [`tests`] puts it
//! beside the Python files of the package, which takes no time. Benches and wheels are release builds.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};

use crate::python;
use crate::run::{Result, cargo, root, step, target};

/// The folder of the crate.
const CRATE: &str = "crates/python";
const REQUIREMENTS: &str = "tests/python_package/requirements.txt";
const TESTS: &str = "tests/python_package";
const CONTENTS: &str = "tests/python_package/distribution.py";
/// With Zig, whose C compiler and linker build for other processors and for older C libraries than that of this machine.
const MATURIN: &str = "maturin[zig]==1.16.0";
/// Wheels need glibc 2.28 (Debian 10, Red Hat Enterprise Linux 8) or newer.
const COMPATIBILITY: &str = "manylinux_2_28";
const TWINE: &str = "twine==7.0.0";
/// Maximum length of a wheel.
const WHEEL_BYTES_MAX: u64 = 60 << 20;

#[derive(Debug, Args)]
pub struct Arguments {
    /// Install the wheel in a new environment and run the tests of the package there
    #[arg(long)]
    test: bool,
    /// Build for this processor only; may be repeated
    #[arg(long = "processor", value_enum)]
    processors: Vec<Processor>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Processor {
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "aarch64")]
    Aarch64,
}

impl Processor {
    const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }
}

/// A command that runs the tests of the package with the module that `cargo test --workspace` has built.
pub fn tests() -> Result<Command> {
    let debug = target().join("debug");
    // That of another build may be older.
    let built = [debug.join("deps/libkeyaki_python.so"), debug.join("libkeyaki_python.so")];
    let module = built.iter().find(|path| path.exists());
    let module =
        module.ok_or_else(|| format!("{} does not exist: the tests should have built it", built[0].display()))?;
    let packages = assemble(module, "python")?;
    let python = python::environment("python-venv", REQUIREMENTS)?;
    let mut command = unittest(&python);
    command.env("PYTHONPATH", packages);
    Ok(command)
}

/// A command that runs a script of the repository with a release build of the module, and the modules of `tests/python`.
pub fn script(script: &str) -> Result<Command> {
    step(&mut cargo(&["build", "--release", "--package", "keyaki-python"]))?;
    let packages = assemble(&target().join("release/libkeyaki_python.so"), "python-release")?;
    let paths = std::env::join_paths([packages, root().join("tests/python")]).map_err(|error| error.to_string())?;
    let mut command = Command::new(python::environment("python-venv", REQUIREMENTS)?);
    command.arg(root().join(script)).env("PYTHONPATH", paths).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("KEYAKI_TARGET", target());
    Ok(command)
}

fn unittest(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "discover", "--verbose", "--start-directory", TESTS]).current_dir(root());
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("HYPOTHESIS_STORAGE_DIRECTORY", target().join("hypothesis"));
    command
}

/// Makes the package of the Python files and a module, in a folder of the target directory. Returns the folder above it.
fn assemble(module: &Path, folder: &str) -> Result<PathBuf> {
    let packages = target().join(folder);
    let package = packages.join("keyaki");
    let failed = |error: std::io::Error| format!("{}: {error}", package.display());
    if package.exists() {
        fs::remove_dir_all(&package).map_err(failed)?;
    }
    fs::create_dir_all(&package).map_err(failed)?;
    for entry in fs::read_dir(root().join(CRATE).join("python/keyaki")).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().is_file() {
            fs::copy(entry.path(), package.join(entry.file_name())).map_err(failed)?;
        }
    }
    fs::hard_link(module, package.join("_keyaki.abi3.so")).map_err(failed)?;
    Ok(packages)
}

/// Builds a source distribution and a wheel for each processor, checks them, and prints the paths of the wheels.
pub fn wheel(arguments: &Arguments) -> Result<()> {
    let chosen = &arguments.processors;
    let is_own = |processor: &Processor| processor.name() == std::env::consts::ARCH;
    if arguments.test && !chosen.is_empty() && !chosen.iter().any(is_own) {
        return Err("--test needs a wheel for the processor of this machine".into());
    }
    let python = python::environment("python-venv", REQUIREMENTS)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    step(Command::new(&python).args(pip).args([MATURIN, TWINE]))?;
    let wheels = target().join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    }
    let maturin = |arguments: &[&str]| {
        let mut maturin = Command::new(&python);
        maturin
            .args(["-m", "maturin"])
            .args(arguments)
            .arg("--manifest-path")
            .arg(root().join(CRATE).join("Cargo.toml"));
        // Zig is a package of the environment.
        let folders = python.parent().map(Path::to_path_buf).into_iter();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths =
            std::env::join_paths(folders.chain(std::env::split_paths(&path))).map_err(|error| error.to_string())?;
        step(maturin.arg("--out").arg(&wheels).current_dir(root()).env("PATH", paths))
    };
    maturin(&["sdist"])?;
    let sources = only(&wheels, ".tar.gz")?;
    let processors = Processor::value_variants().iter().filter(|one| chosen.is_empty() || chosen.contains(one));
    for processor in processors {
        let target = processor.target();
        step(Command::new("rustup").args(["target", "add", &target]))?;
        maturin(&["build", "--release", "--zig", "--target", &target, "--compatibility", COMPATIBILITY])?;
        let wheel = only(&wheels, &format!("{}.whl", processor.name()))?;
        check(&wheel, *processor)?;
        step(Command::new(&python).args(["-m", "twine", "check", "--strict"]).args([&sources, &wheel]))?;
        step(Command::new(&python).arg(root().join(CONTENTS)).args([&sources, &wheel]))?;
    }
    if arguments.test {
        let wheel = only(&wheels, &format!("{}.whl", std::env::consts::ARCH))?;
        let clean = target().join("wheel-venv");
        step(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&clean))?;
        let python = clean.join("bin/python");
        step(Command::new(&python).args(pip).arg(&wheel).arg("--requirement").arg(root().join(REQUIREMENTS)))?;
        step(&mut unittest(&python))?;
    }
    Ok(())
}

/// The path of the only file in a folder whose name ends with `end`.
fn only(folder: &Path, end: &str) -> Result<PathBuf> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let files = fs::read_dir(folder).map_err(failed)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = files.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    files.retain(|file| file.to_str().is_some_and(|name| name.ends_with(end)));
    match <[PathBuf; 1]>::try_from(files) {
        Ok([file]) => Ok(file),
        Err(files) => {
            let count = files.len();
            Err(format!("{} contains {count} files *{end} instead of one", folder.display()))
        }
    }
}

/// Checks the name and the length of a wheel.
fn check(wheel: &Path, processor: Processor) -> Result<()> {
    let name = wheel.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if !name.ends_with(&format!("-cp310-abi3-{COMPATIBILITY}_{}.whl", processor.name())) {
        let processor = processor.name();
        return Err(format!(
            "{name} is no wheel for {COMPATIBILITY}, {processor} and the stable interface of Python 3.10"
        ));
    }
    let bytes = fs::metadata(wheel).map_err(|error| format!("{}: {error}", wheel.display()))?.len();
    println!("{} ({:.1} MiB)", wheel.display(), bytes as f64 / f64::from(1 << 20));
    if bytes > WHEEL_BYTES_MAX {
        return Err(format!("{name} has {bytes} bytes, more than {WHEEL_BYTES_MAX}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_checked() {
        let folder = std::env::temp_dir().join(format!("keyaki-wheels-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(only(&folder, ".whl").unwrap_err().contains("0 files"));
        let wheel = folder.join("keyaki-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl");
        fs::write(&wheel, "zip").unwrap();
        fs::write(folder.join("keyaki-0.1.0.tar.gz"), "tar").unwrap();
        assert_eq!(only(&folder, "x86_64.whl"), Ok(wheel.clone()));
        assert_eq!(check(&wheel, Processor::X86_64), Ok(()));
        assert!(check(&wheel, Processor::Aarch64).unwrap_err().contains("no wheel for manylinux_2_28, aarch64"));
        fs::rename(&wheel, folder.join("keyaki-0.1.0-cp311-cp311-linux_x86_64.whl")).unwrap();
        let other = only(&folder, ".whl").unwrap();
        assert!(check(&other, Processor::X86_64).unwrap_err().contains("no wheel for manylinux"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
