//! The expressions of a table's definition in executable form: CHECK conditions, generated columns, constant defaults, and
//! the expressions and predicates of indexes.
//!
//! A definition stores expressions as SQL text. The first statement that needs them compiles them, and the [`Table`]
//! keeps the result. A changed definition is another [`Table`], so that the result never becomes stale.
//!
//! [`Table`]: super::Table

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options, prep_null_mask_filter};
use arrow::datatypes::SchemaRef;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::PhysicalExpr;
use keyaki_store::ColumnType;

use super::definitions::{ColumnDef, IndexDef, TableDef};
use crate::values::floats::canonical;
use crate::{Error, Result};

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
    /// The predicate of each index; `None` for an index of all rows.
    pub predicates: Vec<Option<Predicate>>,
    /// The expressions of indexes, in the order of the virtual columns.
    pub virtual_values: Vec<VirtualValue>,
}

/// An expression over some columns of a table.
#[derive(Debug)]
pub(crate) struct RowExpression {
    /// The columns that it uses.
    pub columns: Vec<usize>,
    /// The expression over rows with these columns alone.
    pub value: Arc<dyn PhysicalExpr>,
    /// The schema of such rows.
    pub schema: SchemaRef,
}

impl RowExpression {
    /// The value of each row. `columns` are the values of [`RowExpression::columns`].
    ///
    /// # Errors
    /// Errors of the expression.
    fn evaluate(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<ArrayRef> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        Ok(self.value.evaluate(&batch)?.into_array(rows)?)
    }
}

/// The compiled predicate of a partial index.
#[derive(Debug)]
pub(crate) struct Predicate {
    /// Its conditions, of which all must be true, in the form that the optimizer gives to filters, over unqualified columns.
    pub conjuncts: Vec<Expr>,
    pub condition: RowExpression,
}

impl Predicate {
    /// For each row, true if it belongs to the index. `columns` are the values of the condition's columns.
    ///
    /// # Errors
    /// Errors of the condition.
    pub fn select(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<BooleanArray> {
        let values = self.condition.evaluate(columns, rows)?;
        let Some(values) = values.as_boolean_opt() else {
            return Err(Error::Internal(format!("the predicate of an index is of type {}", values.data_type())));
        };
        Ok(if values.null_count() == 0 { values.clone() } else { prep_null_mask_filter(values) })
    }
}

/// A compiled expression of an index.
#[derive(Debug)]
pub(crate) struct VirtualValue {
    /// The expression in the form that the optimizer gives to filters, over unqualified columns.
    pub expr: Expr,
    pub value: RowExpression,
    /// The type of the index's column.
    pub ty: ColumnType,
}

impl VirtualValue {
    /// The value of each row, in the type of the index. `columns` are the values of the expression's columns.
    ///
    /// # Errors
    /// Errors of the expression; values that the type of the index does not hold.
    pub fn evaluate(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<ArrayRef> {
        let values = self.value.evaluate(columns, rows)?;
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let ty = self.ty.arrow();
        Ok(canonical(&if *values.data_type() == ty { values } else { cast_with_options(&values, &ty, &options)? }))
    }
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
    /// The analyzed expression over unqualified columns.
    pub expr: Expr,
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
        let is_stored = |index: &IndexDef| index.texts().next().is_none();
        let is_trivial = def.checks.is_empty() && def.columns.iter().all(is_plain) && def.indexes.iter().all(is_stored);
        let compiled = || Compiled {
            checks: Vec::new(),
            constants: vec![None; def.columns.len()],
            generation: None,
            predicates: def.indexes.iter().map(|_| None).collect(),
            virtual_values: Vec::new(),
        };
        is_trivial.then(compiled)
    }
}
