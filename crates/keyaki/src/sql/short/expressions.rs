//! Expressions over rows and parameters.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{and, prep_null_mask_filter};
use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DFSchemaRef, ScalarValue};
use datafusion::execution::context::ExecutionProps;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};

use super::access::mismatch;
use super::steps::Rows;
use crate::Result;

/// Expressions over the columns of [`Rows`], followed by the parameters.
#[derive(Debug)]
pub(super) struct Expressions {
    /// Schema of the columns and the parameters.
    schema: SchemaRef,
    pub expressions: Vec<Arc<dyn PhysicalExpr>>,
}

impl Expressions {
    /// Expressions over the columns and the parameters of `schema`.
    pub fn new(schema: SchemaRef, expressions: Vec<Arc<dyn PhysicalExpr>>) -> Expressions {
        Expressions { schema, expressions }
    }

    /// The rows for which all expressions are true; `None` for all rows.
    ///
    /// # Errors
    /// Errors of the expressions.
    pub fn mask(&self, rows: &Rows, parameters: &[ArrayRef]) -> Result<Option<BooleanArray>> {
        // Expressions over no rows have no effect but errors, which they do not cause.
        if rows.len == 0 {
            return Ok(None);
        }
        let mut kept: Option<BooleanArray> = None;
        for value in self.evaluate(rows, parameters)? {
            let mask = value.as_boolean_opt().ok_or_else(|| mismatch("conditions"))?;
            let mask = if mask.null_count() == 0 { mask.clone() } else { prep_null_mask_filter(mask) };
            kept = Some(match kept {
                None => mask,
                Some(kept) => and(&kept, &mask)?,
            });
        }
        Ok(kept.filter(|kept| kept.true_count() < rows.len))
    }

    /// The values of all expressions, for each row.
    ///
    /// # Errors
    /// Errors of the expressions.
    pub fn evaluate(&self, rows: &Rows, parameters: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        columns.extend(rows.columns.iter().cloned());
        for parameter in parameters {
            columns.push(match rows.len {
                1 => parameter.clone(),
                len => ScalarValue::try_from_array(parameter, 0)?.to_array_of_size(len)?,
            });
        }
        if columns.len() != self.schema.fields().len() {
            return Err(mismatch("number of columns"));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        self.expressions.iter().map(|expression| Ok(expression.evaluate(&batch)?.into_array(rows.len)?)).collect()
    }
}

/// Compiles expressions with parameters.
#[derive(Debug)]
pub(super) struct Compiler<'a> {
    /// The types of the parameters.
    pub parameters: &'a [DataType],
    pub props: ExecutionProps,
}

impl Compiler<'_> {
    /// Physical expressions over `input` and the parameters.
    pub fn expressions<'e>(
        &self,
        expressions: impl IntoIterator<Item = &'e Expr>,
        input: &DFSchemaRef,
    ) -> Option<Expressions> {
        let schema = self.with_parameters(input)?;
        let physical = |expr: &Expr| {
            let expr = self.with_parameter_columns(expr)?;
            create_physical_expr(&expr, &schema, &self.props, &PhysicalPlanningContext::default()).ok()
        };
        let expressions = expressions.into_iter().map(physical).collect::<Option<Vec<_>>>()?;
        // Rows of an outer input may be null in columns that are not nullable; the schema of a batch must admit them.
        Some(Expressions { schema: Arc::new(schema.as_arrow().clone()), expressions })
    }

    /// The columns of `input` and the parameters.
    pub fn with_parameters(&self, input: &DFSchemaRef) -> Option<DFSchema> {
        let parameter = |(i, ty): (usize, &DataType)| Field::new(parameter_name(i), ty.clone(), true);
        let fields: Vec<Field> = self.parameters.iter().enumerate().map(parameter).collect();
        let parameters = DFSchema::try_from(arrow::datatypes::Schema::new(fields)).ok()?;
        input.join(&parameters).ok()
    }

    /// Replaces placeholders by the columns of their parameters; `None` if the types differ.
    pub fn with_parameter_columns(&self, expr: &Expr) -> Option<Expr> {
        let mut known = true;
        let replaced = expr.clone().transform(|expr| {
            let Expr::Placeholder(placeholder) = &expr else { return Ok(Transformed::no(expr)) };
            let parameter = parameter_index(&placeholder.id).filter(|&i| {
                let ty = placeholder.field.as_ref().map(|field| field.data_type());
                ty.is_some() && self.parameters.get(i) == ty
            });
            known &= parameter.is_some();
            let name = parameter_name(parameter.unwrap_or_default());
            Ok(Transformed::yes(Expr::Column(Column::new_unqualified(name))))
        });
        replaced.ok().map(|replaced| replaced.data).filter(|_| known)
    }
}

/// The index of the parameter `$n`, counted from 0.
pub(crate) fn parameter_index(id: &str) -> Option<usize> {
    id.strip_prefix('$')?.parse::<usize>().ok()?.checked_sub(1)
}

fn parameter_name(index: usize) -> String {
    format!("${}", index + 1)
}
