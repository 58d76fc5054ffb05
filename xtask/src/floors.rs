//! The floors of the architecture (`docs/architecture.md`): a crate may use only crates on lower floors, and no crate below the
//! database may use DataFusion or the SQL parser.

use std::path::Path;

use crate::run::Result;

/// Package and floor, lowest floor first.
const FLOORS: &[(&str, u32)] = &[
    ("keyaki-primitives", 0),
    ("keyaki-device", 1),
    ("keyaki-masstree", 1),
    ("keyaki-vast", 1),
    ("keyaki-llc", 1),
    ("keyaki-tpch", 1),
    ("keyaki-store", 2),
    ("keyaki-exec", 3),
    ("keyaki-publish", 3),
    ("keyaki", 4),
    ("keyaki-server", 5),
    ("keyaki-cluster", 5),
    ("keyaki-python", 5),
    ("keyaki-cluster", 5),
    // The program has the server.
    ("keyaki-cli", 6),
];

/// The lowest floor that may use DataFusion and the SQL parser.
const SQL_FLOOR: u32 = 4;

/// Checks every crate in `crates/`.
pub fn check(root: &Path) -> Result<()> {
    let directory = root.join("crates");
    let entries = std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut violations = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path().join("Cargo.toml");
        if path.exists() {
            let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            violations.extend(check_manifest(&text));
        }
    }
    violations.sort();
    if violations.is_empty() { Ok(()) } else { Err(violations.join("\n")) }
}

fn floor(package: &str) -> Option<u32> {
    FLOORS.iter().find(|(name, _)| *name == package).map(|&(_, floor)| floor)
}

/// The violations of one crate's manifest. Development dependencies count too: a test that needs a higher floor belongs there.
fn check_manifest(text: &str) -> Vec<String> {
    let (package, dependencies) = parse(text);
    let Some(own) = floor(&package) else {
        return vec![format!("{package} has no floor (add it to FLOORS in xtask/src/floors.rs)")];
    };
    let wrong = |dependency: &String| match floor(dependency) {
        Some(other) if other >= own => Some(format!("{package} (floor {own}) uses {dependency} (floor {other})")),
        None if own < SQL_FLOOR && (dependency.starts_with("datafusion") || dependency.starts_with("sqlparser")) => {
            Some(format!("{package} (floor {own}) uses {dependency}; only floor {SQL_FLOOR} and above may use SQL"))
        }
        _ => None,
    };
    dependencies.iter().filter_map(wrong).collect()
}

/// The package's name, and the names of its dependencies of every kind.
fn parse(manifest: &str) -> (String, Vec<String>) {
    let (mut package, mut dependencies) = (String::new(), Vec::new());
    let mut table = String::new();
    for line in manifest.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']').to_string();
            // [dependencies.name]
            if let Some((_, name)) = table.split_once("dependencies.") {
                dependencies.push(name.trim_matches('"').to_string());
            }
        } else if let Some((key, value)) = line.split_once('=') {
            let key = key.split('.').next().unwrap_or("").trim().trim_matches('"');
            if table == "package" && key == "name" {
                package = value.trim().trim_matches('"').to_string();
            } else if table.ends_with("dependencies") && !key.is_empty() {
                dependencies.push(key.to_string());
            }
        }
    }
    (package, dependencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_keeps_its_floors() {
        assert_eq!(check(&crate::run::root()), Ok(()));
    }

    #[test]
    fn violations_are_found() {
        let manifest = |name: &str, rest: &str| format!("[package]\nname = \"{name}\"\n{rest}");
        let upward = manifest("keyaki-store", "[dependencies]\nkeyaki-exec.workspace = true\n");
        assert_eq!(check_manifest(&upward), ["keyaki-store (floor 2) uses keyaki-exec (floor 3)"]);
        let sql = manifest("keyaki-exec", "[target.'cfg(unix)'.dev-dependencies]\ndatafusion-common = \"55\" # why\n");
        assert_eq!(check_manifest(&sql).len(), 1);
        let table = manifest("keyaki-device", "[dependencies.keyaki]\npath = \"x\"\n");
        assert_eq!(check_manifest(&table).len(), 1);
        assert_eq!(check_manifest(&manifest("stranger", "")).len(), 1);
        let sound = manifest("keyaki", "[dependencies]\nkeyaki-exec = { path = \"y\" }\ndatafusion.workspace = true\n");
        assert!(check_manifest(&sound).is_empty());
    }
}
