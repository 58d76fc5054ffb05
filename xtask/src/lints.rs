//! The lint attributes that every crate in `crates/` has at its root.
//!
//! A library warns about missing documentation, `unwrap` and `expect`, a program about `unwrap` and `expect`. Both allow them in
//! tests. Warnings are errors in `cargo xtask test`.

use std::path::Path;

use proc_macro2::TokenStream;
use syn::Meta;

use crate::run::Result;

/// `#![warn(...)]` of a library.
const LIBRARY: &[&str] = &["missing_docs", "clippy::unwrap_used", "clippy::expect_used"];
/// `#![warn(...)]` of a program.
const PROGRAM: &[&str] = &["clippy::unwrap_used", "clippy::expect_used"];
/// `#![cfg_attr(test, allow(...))]` of both.
const ALLOWED_IN_TESTS: &[&str] = &["clippy::unwrap_used", "clippy::expect_used"];

/// Checks the root file of every crate in `crates/`.
pub fn check(root: &Path) -> Result<()> {
    let directory = root.join("crates");
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut missing = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let folder = entry.map_err(failed)?.path();
        let sources = folder.join("src");
        for (name, warned) in [("lib.rs", LIBRARY), ("main.rs", PROGRAM)] {
            let file = sources.join(name);
            if file.exists() {
                let shown = file.strip_prefix(root).unwrap_or(&file).display().to_string();
                let text = std::fs::read_to_string(&file).map_err(|error| format!("{shown}: {error}"))?;
                missing
                    .extend(check_text(&text, warned)?.into_iter().map(|lint| format!("{shown}: {lint} is missing")));
            }
        }
    }
    missing.sort();
    if missing.is_empty() { Ok(()) } else { Err(missing.join("\n")) }
}

/// The attributes that a root file lacks.
fn check_text(text: &str, warned: &[&str]) -> Result<Vec<String>> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let (mut warnings, mut allowed) = (Vec::new(), Vec::new());
    for attribute in &file.attrs {
        if let Meta::List(list) = &attribute.meta {
            match list.path.get_ident().map(ToString::to_string).as_deref() {
                Some("warn") => warnings.extend(names(&list.tokens)),
                Some("cfg_attr") => {
                    let words = names(&list.tokens);
                    if words.first().is_some_and(|word| word == "test") {
                        allowed.extend(words);
                    }
                }
                _ => {}
            }
        }
    }
    let lacks = |found: &[String], lint: &&&str| !found.iter().any(|other| other == **lint);
    let warn = warned.iter().filter(|lint| lacks(&warnings, lint)).map(|lint| format!("#![warn({lint})]"));
    let allow = ALLOWED_IN_TESTS.iter().filter(|lint| lacks(&allowed, lint));
    Ok(warn.chain(allow.map(|lint| format!("#![cfg_attr(test, allow({lint}))]"))).collect())
}

/// The words separated by commas or parentheses, as `clippy::unwrap_used`.
fn names(tokens: &TokenStream) -> Vec<String> {
    let text: String = tokens.to_string().chars().filter(|letter| !letter.is_whitespace()).collect();
    text.split([',', '(', ')']).filter(|word| !word.is_empty()).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_of_this_repository_has_the_lints() {
        assert_eq!(check(&crate::run::root()), Ok(()));
    }

    #[test]
    fn missing_attributes_are_found() {
        let complete = "//! Doc.\n#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]\n\
                        #![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]\nmod a;";
        assert_eq!(check_text(complete, LIBRARY), Ok(vec![]));
        let none = check_text("//! Doc.", LIBRARY).unwrap();
        assert_eq!(none.len(), LIBRARY.len() + ALLOWED_IN_TESTS.len());
        let other = complete.replace("missing_docs, ", "").replace("test, ", "debug_assertions, ");
        let missing = check_text(&other, LIBRARY).unwrap();
        assert_eq!(missing[0], "#![warn(missing_docs)]");
        assert_eq!(missing.len(), 3);
        assert_eq!(check_text(complete, PROGRAM), Ok(vec![]));
    }
}
