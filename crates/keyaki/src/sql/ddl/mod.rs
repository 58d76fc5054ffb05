//! Definitions of tables: CREATE, ALTER, DROP, TRUNCATE, COMMENT.
//!
//! Each statement changes definitions and trees in one write batch: it takes effect as a whole or not at all, and belongs
//! to the open transaction if there is one.
//!
//! | module | contents |
//! |---|---|
//! | [`create`] | CREATE TABLE, CREATE TABLE AS |
//! | [`drop`] | DROP TABLE, DROP INDEX |
//! | [`alter`], [`rename`] | ALTER TABLE, ALTER INDEX |
//! | [`truncate`] | TRUNCATE |
//! | [`comment`] | COMMENT ON |
//! | [`checks`] | CHECK constraints: their text and names; the text of other expressions |
//! | [`foreign_keys`] | FOREIGN KEY constraints, and what they depend on |

mod alter;
pub(super) mod checks;
mod comment;
mod create;
mod drop;
mod foreign_keys;
mod rename;
mod truncate;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, IndexColumn, NullsDistinctOption, PrimaryKeyConstraint, UniqueConstraint,
};

use super::names::plain_ident;
use super::synonyms;
use crate::catalog::{Catalog, TableDef};
use crate::{Error, Result};

pub(crate) use alter::alter_table;
pub(crate) use comment::{comment, redefine};
pub(crate) use create::create_table;
pub(crate) use drop::{drop_dependents, drop_index, drop_table, remove_from};
pub(crate) use foreign_keys::check_unreferenced;
pub(crate) use rename::alter_index;
pub(crate) use truncate::truncate;

/// An unused name for an index of columns.
pub(super) fn free_index_name(catalog: &Catalog, table: &TableDef, columns: &[usize], suffix: &str) -> String {
    let names: Vec<String> = columns.iter().map(|&c| table.columns[c].name.clone()).collect();
    free_name(catalog, table, &names, suffix)
}

/// An unused index name: `TABLE_NAMES_suffix`, with a number appended if that name is taken.
pub(super) fn free_name(catalog: &Catalog, table: &TableDef, names: &[String], suffix: &str) -> String {
    let base = format!("{}_{}_{suffix}", table.name.name, names.join("_"));
    let taken = |name: &str| {
        catalog.check_free(&table.name.sibling(name)).is_err() || table.indexes.iter().any(|i| i.name == name)
    };
    if !taken(&base) {
        return base;
    }
    (1u32..).map(|n| format!("{base}{n}")).find(|name| !taken(name)).unwrap_or(base)
}

/// Positions of the columns of a constraint in `names`.
///
/// # Errors
/// `Unsupported` for expressions and options of the columns; `UndefinedColumn`; `DuplicateColumn`.
pub(super) fn constraint_positions(columns: &[IndexColumn], names: &[&str]) -> Result<Vec<usize>> {
    let mut positions = Vec::new();
    for column in columns {
        let expr = key_expr(column)?;
        let Expr::Identifier(ident) = expr else {
            let hint = "CREATE UNIQUE INDEX accepts expressions";
            return Err(Error::Unsupported(format!("expression {expr} in a constraint ({hint})")));
        };
        positions.push(column_position(ident, names)?);
    }
    check_distinct(&positions, names)?;
    Ok(positions)
}

/// Operator classes of PostgreSQL that order values as keys are ordered: texts by their bytes, with and without `pattern`.
const OPERATOR_CLASSES: [&str; 20] = [
    "bool_ops",
    "bpchar_ops",
    "bpchar_pattern_ops",
    "bytea_ops",
    "date_ops",
    "float4_ops",
    "float8_ops",
    "int2_ops",
    "int4_ops",
    "int8_ops",
    "interval_ops",
    "numeric_ops",
    "text_ops",
    "text_pattern_ops",
    "time_ops",
    "timestamp_ops",
    "timestamptz_ops",
    "uuid_ops",
    "varchar_ops",
    "varchar_pattern_ops",
];

/// The column or expression of a key, without parentheses around it.
///
/// # Errors
/// `Unsupported` for other operator classes than [`OPERATOR_CLASSES`] and for other options.
pub(super) fn key_expr(column: &IndexColumn) -> Result<&Expr> {
    let order = &column.column;
    // ASC, DESC and NULLS FIRST or LAST do not matter: keys are ascending, and are read in both directions.
    if order.with_fill.is_some() {
        return Err(Error::Unsupported(format!("WITH FILL in {column}")));
    }
    let class = column.operator_class.as_ref().and_then(|class| class.0.last()?.as_ident());
    let is_known = |class: &Ident| OPERATOR_CLASSES.contains(&plain_ident(class).as_str());
    if column.operator_class.is_some() && !class.is_some_and(is_known) {
        return Err(Error::Unsupported(format!("operator class in {column}")));
    }
    let mut expr = &order.expr;
    loop {
        expr = match expr {
            Expr::Nested(inner) => inner,
            Expr::Collate { expr, collation } => {
                synonyms::check_collation(collation)?;
                expr
            }
            _ => return Ok(expr),
        };
    }
}

pub(super) fn column_position(ident: &Ident, names: &[&str]) -> Result<usize> {
    let name = plain_ident(ident);
    let found = names.iter().position(|other| *other == name);
    found.ok_or(Error::UndefinedColumn { column: name, relation: None, similar: Vec::new() })
}

pub(super) fn check_distinct(positions: &[usize], names: &[&str]) -> Result<()> {
    match positions.iter().enumerate().find(|(i, position)| positions[..*i].contains(position)) {
        Some((_, &twice)) => Err(Error::DuplicateColumn(names[twice].into())),
        None => Ok(()),
    }
}

/// Constraints without options: `is_plain` is false if a constraint has clauses that Keyaki does not implement.
trait Plain {
    fn is_plain(&self) -> bool;
}

impl Plain for PrimaryKeyConstraint {
    fn is_plain(&self) -> bool {
        self.index_name.is_none()
            && self.index_type.is_none()
            && self.index_options.is_empty()
            && self.characteristics.is_none()
    }
}

impl Plain for UniqueConstraint {
    fn is_plain(&self) -> bool {
        self.index_name.is_none()
            && self.index_type.is_none()
            && self.index_options.is_empty()
            && self.characteristics.is_none()
            && !matches!(self.nulls_distinct, NullsDistinctOption::NotDistinct)
    }
}
