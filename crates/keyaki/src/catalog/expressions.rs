//! The expressions of a table's definition in executable form: CHECK conditions, generated columns and constant defaults.
//!
//! A definition stores expressions as SQL text. The first statement that needs them compiles them, and the [`Table`]
//! keeps the result. A changed definition is another [`Table`], so that the result never becomes stale.
//!
//! [`Table`]: super::Table

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;

use super::definitions::{ColumnDef, TableDef};

/// The compiled expressions of a table.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The conditions of [`TableDef::checks`], in the same order.
    pub checks: Vec<Check>,
    /// The constant default of each column, an array of one value of the column's type. `None` for columns without a
    /// default, and for defaults that must be evaluated by each statement.
    pub constants: Vec<Option<ArrayRef>>,
    /// `None` for a table without generated columns.
    pub generation: Option<Generation>,
}

/// The compiled expressions of a table's generated columns.
#[derive(Debug)]
pub(crate) struct Generation {
    /// All columns of the table, which may be null here: the expressions are evaluated over such rows.
    pub schema: SchemaRef,
    /// The generated columns in table order.
    pub columns: Vec<Generated>,
}

/// A compiled expression of a generated column.
#[derive(Debug)]
pub(crate) struct Generated {
    pub column: usize,
    pub value: Arc<dyn PhysicalExpr>,
    /// The columns that it uses.
    pub uses: Vec<usize>,
}

impl Generated {
    /// True if the value changes with one of these columns.
    pub fn depends_on(&self, columns: &[usize]) -> bool {
        self.uses.iter().any(|column| columns.contains(column))
    }
}

/// A compiled CHECK condition.
#[derive(Debug)]
pub(crate) struct Check {
    /// The condition over rows with all columns of the table.
    pub condition: Arc<dyn PhysicalExpr>,
    /// The columns that it uses.
    pub columns: Vec<usize>,
}

impl Compiled {
    /// The result for a definition without expressions; `None` for others.
    pub(super) fn trivial(def: &TableDef) -> Option<Compiled> {
        let is_plain = |column: &ColumnDef| column.default.is_none() && column.generated.is_none();
        let is_trivial = def.checks.is_empty() && def.columns.iter().all(is_plain);
        let compiled = || Compiled { checks: Vec::new(), constants: vec![None; def.columns.len()], generation: None };
        is_trivial.then(compiled)
    }
}
