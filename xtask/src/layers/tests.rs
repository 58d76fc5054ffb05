//! Each syntactic form of an upward use is found, and legal uses are not reported.

use std::path::Path;

use super::source::{ROOT, Sources};
use super::{Order, check_sources};

/// A crate with the layers `low < side, tree < high`, whose `tree::leaf` has the given source.
fn leaf(source: &str) -> Vec<String> {
    check_crate(&[
        ("low", "pub struct Low; pub fn low() {}"),
        ("side", "pub struct Side;"),
        ("tree", "mod cursor; mod leaf; pub use cursor::Cursor; pub(crate) use crate::low::Low as Short;"),
        ("tree::cursor", "pub struct Cursor;"),
        ("tree::leaf", source),
        ("high", "pub mod store; pub struct High; pub fn high() {} pub use store::{Store, open as start};"),
        ("high::store", "pub struct Store; pub fn open() {} pub trait Trait {} pub mod text {}"),
    ])
}

fn check_crate(modules: &[(&str, &str)]) -> Vec<String> {
    check_with(
        "low < side, tree < high",
        "mod high; mod low; mod side; mod tree; pub use high::Store; pub use low::*;",
        modules,
    )
}

/// Checks a crate of the given root file and modules (path and source, outer modules first).
fn check_with(order: &str, root: &str, modules: &[(&str, &str)]) -> Vec<String> {
    let mut sources = Sources { modules: Vec::new(), unreached: Vec::new() };
    sources.add(None, "", "src/lib.rs".into());
    sources.parse_into(ROOT, root).unwrap();
    for (path, text) in modules {
        let (mut parent, mut name) = (ROOT, *path);
        while let Some((outer, inner)) = name.split_once("::") {
            (parent, name) = (sources.modules[parent].children[outer], inner);
        }
        let id = sources.add(Some(parent), name, format!("src/{}.rs", path.replace("::", "/")));
        sources.parse_into(id, text).unwrap();
    }
    check_sources(&sources, &Order::parse(order))
}

/// Asserts that `source` in `tree::leaf` gives one error line for each of `uses`, all of them in line 1.
#[track_caller]
fn assert_found(source: &str, uses: &[&str]) {
    let found = leaf(source);
    let expected: Vec<String> =
        uses.iter().map(|used| format!("src/tree/leaf.rs:1: tree (step 2) uses {used}")).collect();
    assert_eq!(found, expected, "{source}");
}

#[test]
fn this_repository_keeps_its_layers() {
    assert_eq!(super::check(&crate::run::root()), Ok(()));
}

#[test]
fn lower_layers_and_the_own_folder_are_free() {
    for source in [
        "use crate::low::{Low, low as other}; fn f() { other(); crate::low::low(); }",
        "use super::{Cursor, Short}; use super::cursor::Cursor as Walk; use crate::tree;",
        "use crate::Low; use std::high::Thing; use high_crate::Store; fn f() { ::high::f(); let high = 1; g(high); }",
        "pub(in crate::tree) fn f() {} pub(super) struct S { high: u32 } impl S { fn f(&self) { assert!(self.high > 0) } }",
        "#[doc = \"crate::high::High\"] fn f<'high>(x: &'high str) { println!(\"crate::high::High {x}\"); }",
        "mod inner { use super::super::cursor::Cursor; use crate::low::*; } fn open() { open(); }",
    ] {
        assert_eq!(leaf(source), Vec::<String>::new(), "{source}");
    }
}

#[test]
fn use_declarations() {
    assert_found("use crate::high::High;", &["high (step 3): crate::high::High"]);
    assert_found("use crate::high;", &["high (step 3): crate::high"]);
    assert_found("use crate::high::High; fn f(x: High) { m!(High::g()); }", &["high (step 3): crate::high::High"]);
    assert_found("use crate::high as below;", &["high (step 3): crate::high"]);
    assert_found("use crate::high::*;", &["high (step 3): crate::high"]);
    assert_found("use crate::high::{self};", &["high (step 3): crate::high"]);
    assert_found("use crate::high::store::Trait as _;", &["high (step 3): crate::high::store::Trait"]);
    assert_found("use super::super::high::High;", &["high (step 3): super::super::high::High"]);
    assert_found("use self::super::super::high::High;", &["high (step 3): self::super::super::high::High"]);
    assert_found("pub(crate) use crate::high::High;", &["high (step 3): crate::high::High"]);
    let group = "use crate::{low::Low, high::{High, store::{open, Store as S}}, side};";
    let all = [
        "high (step 3): crate::high::High",
        "high (step 3): crate::high::store::open",
        "high (step 3): crate::high::store::Store",
        "side (step 2): crate::side",
    ];
    assert_found(group, &all);
    assert_found("fn f() { use crate::high::High; }", &["high (step 3): crate::high::High"]);
    assert_found("use crate as k; fn f() { k::high::high(); }", &["high (step 3): k::high::high"]);
    assert_found("extern crate self as k; fn f() { k::high::high(); }", &["high (step 3): k::high::high"]);
    assert_found(
        "mod inner { use super::super::super::high::High; }",
        &["high (step 3): super::super::super::high::High"],
    );
    assert_found("#[cfg(test)] mod tests { use crate::high::High; }", &["high (step 3): crate::high::High"]);
}

#[test]
fn inline_paths() {
    for (source, path) in [
        ("fn f() { crate::high::high(); }", "crate::high::high"),
        ("fn f() { super::super::high::high(); }", "super::super::high::high"),
        ("fn f(x: &crate::high::High) {}", "crate::high::High"),
        ("fn f() -> Option<Vec<crate::high::High>> { None }", "crate::high::High"),
        ("fn f(x: impl crate::high::store::Trait) {}", "crate::high::store::Trait"),
        ("fn f(x: &dyn crate::high::store::Trait) {}", "crate::high::store::Trait"),
        ("fn f<T>() where T: crate::high::store::Trait {}", "crate::high::store::Trait"),
        ("struct S { field: crate::high::High }", "crate::high::High"),
        ("type T = [crate::high::High; 3];", "crate::high::High"),
        ("impl crate::high::High {}", "crate::high::High"),
        ("impl crate::high::store::Trait for S {}", "crate::high::store::Trait"),
        ("fn f<T>() { <T as crate::high::store::Trait>::g(); }", "crate::high::store::Trait::g"),
        ("fn f() { g::<crate::high::High>(); }", "crate::high::High"),
        ("fn f(x: T) { if let crate::high::High { .. } = x {} }", "crate::high::High"),
        ("fn f(x: T) { match x { crate::high::High => {} } }", "crate::high::High"),
        ("fn f(x: T) { match x { crate::high::High(_) => {} } }", "crate::high::High"),
        ("fn f() -> T { crate::high::High { field: 1 } }", "crate::high::High"),
        ("fn f() { crate::high::macros::check!(); }", "crate::high::macros::check"),
        ("const C: usize = size_of::<crate::high::High>();", "crate::high::High"),
        ("#[crate::high::attribute] fn f() {}", "crate::high::attribute"),
        ("#[derive(crate::high::Derive)] struct S;", "crate::high::Derive"),
        ("#[serde(with = \"crate::high::store::text\")] struct S;", "crate::high::store::text"),
        ("#[path_like = \"crate::high::store::text\"] struct S;", "crate::high::store::text"),
    ] {
        assert_found(source, &[&format!("high (step 3): {path}")]);
    }
}

#[test]
fn macros() {
    for (source, path) in [
        ("fn f() { assert!(crate::high::high()); }", "crate::high::high"),
        ("fn f() { assert_eq!(x.g(&[super::super::high::high()]), 1); }", "super::super::high::high"),
        ("fn f() { vec![crate::high::store::open::<u8>()]; }", "crate::high::store::open"),
        ("macro_rules! m { ($x:expr) => { $crate::high::high($x) }; }", "crate::high::high"),
        ("thread_local! { static S: Cell<crate::high::High> = x; }", "crate::high::High"),
    ] {
        assert_found(source, &[&format!("high (step 3): {path}")]);
    }
    let group = "m! { use crate::{low::Low, high::{High, store::Store}}; }";
    assert_found(group, &["high (step 3): crate::high::High", "high (step 3): crate::high::store::Store"]);
}

#[test]
fn names_of_the_crate_root_belong_to_the_folder_they_come_from() {
    assert_found("use crate::Store;", &["high (step 3): crate::Store"]);
    assert_found("fn f() { assert!(crate::Store::open()); }", &["high (step 3): crate::Store::open"]);
    assert_found("use crate::*; fn f(x: Store) {}", &["high (step 3): Store"]);
    let modules = [("low", "fn f() { crate::helper(); }"), ("side", ""), ("tree", ""), ("high", "")];
    let root = "mod high; mod low; mod side; mod tree; pub(crate) fn helper() {}";
    let found = check_with("low < side, tree < high", root, &modules);
    assert_eq!(found, ["src/low.rs:1: low (step 1) uses the crate root: crate::helper"]);
}

#[test]
fn re_exports_are_followed_to_their_origin() {
    let found = check_crate(&[
        ("low", "fn f(x: crate::tree::Store) {}"),
        ("side", ""),
        ("tree", "pub use crate::high::Door as Store;"),
        ("high", "mod store; pub use store::Store as Door;"),
        ("high::store", "pub struct Store;"),
    ]);
    let expected = [
        "src/low.rs:1: low (step 1) uses tree (step 2): crate::tree::Store",
        "src/low.rs:1: low (step 1) uses high (step 3): crate::tree::Store",
        "src/tree.rs:1: tree (step 2) uses high (step 3): crate::high::Door",
    ];
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    found.sort_by_key(|line| expected.iter().position(|other| other == line));
    assert_eq!(found, expected);
}

#[test]
fn re_exports_in_a_circle_end() {
    let modules = [
        ("low", "pub use crate::tree::X;"),
        ("side", ""),
        ("tree", "pub use crate::low::X; pub use self::*;"),
        ("high", ""),
    ];
    let found = check_crate(&modules);
    assert_eq!(found, ["src/low.rs:1: low (step 1) uses tree (step 2): crate::tree::X"]);
}

#[test]
fn modules_and_the_table_agree() {
    let found = check_with("low < high", "mod low; mod extra;", &[("low", ""), ("extra", "")]);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], "src/lib.rs: module extra has no layer");
    assert_eq!(found[1], "src/lib.rs: module high is in the table of layers, but does not exist");
}

#[test]
fn files_are_found_as_the_compiler_finds_them() {
    let directory = tempfile::tempdir().unwrap();
    let files = [
        ("src/lib.rs", "mod low; mod tree; mod inline { mod deep; }"),
        ("src/low.rs", "mod part;"),
        ("src/low/part.rs", "\n\nuse crate::tree::Tree;"),
        ("src/tree/mod.rs", "#[cfg(test)] mod tests; #[path = \"other_name.rs\"] mod named;"),
        ("src/tree/tests.rs", "use crate::inline::Deep;"),
        ("src/tree/other_name.rs", ""),
        ("src/inline/deep.rs", ""),
        ("src/stray.rs", ""),
    ];
    for (path, text) in files {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let sources = Sources::read(directory.path(), &directory.path().join("src/lib.rs")).unwrap();
    let mut found = check_sources(&sources, &Order::parse("low < tree < inline"));
    found.sort();
    let expected = [
        "src/low/part.rs:3: low (step 1) uses tree (step 2): crate::tree::Tree",
        "src/stray.rs: no mod declaration reaches this file",
        "src/tree/tests.rs:1: tree (step 2) uses inline (step 3): crate::inline::Deep",
    ];
    assert_eq!(found, expected);
    assert!(Sources::read(Path::new(""), &directory.path().join("missing.rs")).is_err());
}
