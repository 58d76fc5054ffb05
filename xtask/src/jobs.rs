//! Runs programs, several at a time: many test programs have one long test, which leaves the other cores idle.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Deserialize;

use crate::run::{Result, cargo, describe};

/// The test programs that take longest: the others run beside them.
const LONGEST: [&str; 2] = ["database", "crash"];

/// A message of cargo about something that it has built.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

/// Builds all tests of the workspace. Returns the commands that run them in the directories of their packages, the
/// longest ones first.
pub fn build_tests() -> Result<Vec<Command>> {
    let mut build = cargo(&["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    let line = describe(&build);
    eprintln!("\n$ {line}");
    let output = build.stderr(Stdio::inherit()).output().map_err(|error| format!("{line}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{line}: {}", output.status));
    }
    let mut tests = tests(&String::from_utf8_lossy(&output.stdout))?;
    tests.sort_by_key(|(name, _)| LONGEST.iter().position(|long| long == name).unwrap_or(LONGEST.len()));
    Ok(tests.into_iter().map(|(_, command)| command).collect())
}

/// The names and commands of the tests in the messages of cargo.
fn tests(messages: &str) -> Result<Vec<(String, Command)>> {
    let mut tests = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).map_err(|error| format!("messages of cargo: {error}"))?;
        let is_test = message.reason == "compiler-artifact" && message.profile.is_some_and(|profile| profile.test);
        let (true, Some(program), Some(target)) = (is_test, message.executable, message.target) else { continue };
        let manifest = message.manifest_path.unwrap_or_default();
        let directory = manifest.parent().ok_or_else(|| format!("{}: no directory", manifest.display()))?;
        let mut command = Command::new(program);
        command.current_dir(directory).env("CARGO_MANIFEST_DIR", directory);
        tests.push((target.name, command));
    }
    Ok(tests)
}

/// Runs all commands, as many at a time as the machine has cores, and prints the output of each when it ends.
///
/// # Errors
/// The commands that fail.
pub fn run(commands: Vec<Command>) -> Result<()> {
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let commands = Mutex::new(VecDeque::from(commands));
    let failed = Mutex::new(Vec::new());
    let printing = Mutex::new(());
    let next = || commands.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(mut command) = next() {
                    let line = describe(&command);
                    eprintln!("$ {line} …");
                    let start = Instant::now();
                    let output = command.stdin(Stdio::null()).output();
                    let _printing = printing.lock().unwrap_or_else(PoisonError::into_inner);
                    let failure = match &output {
                        Ok(output) if output.status.success() => None,
                        Ok(output) => Some(format!("{line}: {}", output.status)),
                        Err(error) => Some(format!("{line}: {error}")),
                    };
                    println!("\n$ {line} ({:.1} s)", start.elapsed().as_secs_f64());
                    if let Ok(output) = &output {
                        // Nothing can be done if the output is closed.
                        let mut stdout = std::io::stdout().lock();
                        _ = stdout.write_all(&output.stdout).and_then(|()| stdout.write_all(&output.stderr));
                        _ = stdout.flush();
                    }
                    failed.lock().unwrap_or_else(PoisonError::into_inner).extend(failure);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_the_messages_of_cargo() {
        let artifact = |name: &str, is_test: bool, executable: &str| {
            let target = format!(r#""manifest_path":"/w/{name}/Cargo.toml","target":{{"name":"{name}"}}"#);
            let profile = format!(r#""profile":{{"test":{is_test}}},"executable":{executable}"#);
            format!(r#"{{"reason":"compiler-artifact",{target},{profile}}}"#)
        };
        let messages = [
            artifact("library", false, "null"),
            artifact("program", false, "\"/t/program\""),
            artifact("tests", true, "\"/t/tests-1\""),
            r#"{"reason":"build-finished","success":true}"#.to_string(),
        ];
        let found = tests(&messages.join("\n")).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "tests");
        assert_eq!(found[0].1.get_program(), "/t/tests-1");
        assert_eq!(found[0].1.get_current_dir().unwrap(), std::path::Path::new("/w/tests"));
    }

    #[test]
    fn all_commands_run_and_failures_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let touch = |name: &str| {
            let mut command = Command::new("touch");
            command.arg(directory.path().join(name));
            command
        };
        let commands = vec![touch("a"), Command::new("false"), touch("b"), touch("c")];
        let error = run(commands).unwrap_err();
        assert!(error.starts_with("false: ") && !error.contains("touch"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
        run(vec![touch("d")]).unwrap();
        run(Vec::new()).unwrap();
    }
}
