//! Tables for people.

use comfy_table::{Table, presets};

/// Prints a title and returns an empty table.
pub fn table(title: &str, header: &[&str]) -> Table {
    println!("\n{title}");
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    table
}
