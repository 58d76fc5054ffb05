//! Links the program at a fixed address.
//!
//! The dynamic loader of a position-independent program writes the address of every constant that has pointers, mostly
//! the tables of virtual methods of generic code: 187,000 of them, on 800 pages, take a third of the time of a short
//! statement. The stack, the heap and the libraries keep their random addresses.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|actual| actual == value);
    // Other linkers and C libraries may have no such option.
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
