//! Renders definitions as CREATE statements that recreate the objects.
//!
//! CREATE TABLE omits the indexes of UNIQUE constraints; they are rendered as CREATE UNIQUE INDEX.

use super::names::quoted;
use crate::catalog::{IndexDef, IndexMethod, TableDef, ViewDef};

pub(crate) fn create_table(def: &TableDef) -> String {
    let mut items: Vec<String> = Vec::new();
    for (i, column) in def.columns.iter().enumerate() {
        let mut item = format!("{} {}", quoted(&column.name), column.ty);
        if def.primary_key == [i] {
            item.push_str(" PRIMARY KEY");
        } else if !column.nullable && !def.primary_key.contains(&i) {
            item.push_str(" NOT NULL");
        }
        if let Some(default) = &column.default {
            item.push_str(" DEFAULT ");
            item.push_str(default);
        }
        items.push(item);
    }
    if def.primary_key.len() > 1 {
        items.push(format!("PRIMARY KEY ({})", column_list(def, &def.primary_key)));
    }
    for check in &def.checks {
        items.push(format!("CONSTRAINT {} CHECK ({})", quoted(&check.name), check.sql));
    }
    format!("CREATE TABLE {} (\n    {}\n)", quoted(&def.name), items.join(",\n    "))
}

pub(crate) fn create_index(table: &TableDef, index: &IndexDef) -> String {
    let unique = if index.unique { "UNIQUE " } else { "" };
    let columns = column_list(table, &index.columns);
    let using = match index.method {
        IndexMethod::Betree => String::new(),
        method => format!(" USING {method}"),
    };
    let mut sql = format!("CREATE {unique}INDEX {} ON {}{using} ({columns})", quoted(&index.name), quoted(&table.name));
    if !index.include.is_empty() {
        sql.push_str(&format!(" INCLUDE ({})", column_list(table, &index.include)));
    }
    sql + &super::vast::with(&index.vast)
}

pub(crate) fn create_view(view: &ViewDef) -> String {
    format!("CREATE VIEW {} AS {}", quoted(&view.name), view.sql)
}

pub(crate) fn column_list(def: &TableDef, columns: &[usize]) -> String {
    columns.iter().map(|&c| quoted(&def.columns[c].name)).collect::<Vec<_>>().join(", ")
}
