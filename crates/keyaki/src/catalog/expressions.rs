//! The expressions of a table's definition in executable form: CHECK conditions and constant defaults.
//!
//! A definition stores expressions as SQL text. The first statement that needs them compiles them, and the [`Table`]
//! keeps the result. A changed definition is another [`Table`], so that the result never becomes stale.
//!
//! [`Table`]: super::Table

use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::physical_expr::PhysicalExpr;

use super::definitions::TableDef;

/// The compiled expressions of a table.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The conditions of [`TableDef::checks`], in the same order.
    pub checks: Vec<Check>,
    /// The constant default of each column, an array of one value of the column's type. `None` for columns without a
    /// default, and for defaults that must be evaluated by each statement.
    pub constants: Vec<Option<ArrayRef>>,
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
        let is_trivial = def.checks.is_empty() && def.columns.iter().all(|column| column.default.is_none());
        is_trivial.then(|| Compiled { checks: Vec::new(), constants: vec![None; def.columns.len()] })
    }
}
