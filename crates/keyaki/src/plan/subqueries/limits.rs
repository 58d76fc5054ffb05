//! LIMIT and OFFSET that are computed by a query: the rows are numbered in their order, and the numbers compared.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Column, ScalarValue};
use datafusion::error::Result;
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{
    ColumnarValue, Distinct, Expr, ExprFunctionExt, Limit, LogicalPlan, LogicalPlanBuilder, Projection,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Sort, Volatility, lit,
};

use super::{Rewriter, unsupported};
use crate::Error;

impl Rewriter {
    /// The rows of a limit whose numbers are not constants.
    pub(super) fn computed_limit(&mut self, limit: Limit) -> Result<LogicalPlan> {
        let lower = |input: &Arc<LogicalPlan>| Limit { input: input.clone(), ..limit.clone() };
        // The order is that of a sort below projections, which keep rows.
        if let LogicalPlan::Projection(projection) = limit.input.as_ref() {
            let input = Arc::new(self.computed_limit(lower(&projection.input))?);
            let projection =
                Projection::try_new_with_schema(projection.expr.clone(), input, projection.schema.clone())?;
            return Ok(LogicalPlan::Projection(projection));
        }
        check_order(&limit.input)?;
        let (input, keys) = match limit.input.as_ref() {
            LogicalPlan::Sort(Sort { expr, input, fetch: None }) => (input.as_ref().clone(), expr.clone()),
            other => (other.clone(), Vec::new()),
        };
        let (input, keys, columns) = self.keys_as_columns(input, keys)?;
        let [number, skip, fetch] = ["number", "offset", "limit"].map(|what| self.name(what));
        let column = |name: &str| Expr::Column(Column::new_unqualified(name));
        let row_count = |expr: Option<Box<Expr>>, what, name: &str| {
            let rows = expr.map_or(lit(ScalarValue::Int64(None)), |expr| *expr);
            ScalarUDF::new_from_impl(RowCount::of(what)).call(vec![rows]).alias(name)
        };
        let numbered = row_number().order_by(keys).build()?.alias(&number);
        let mut computed = columns.clone();
        computed.push(datafusion::logical_expr::cast(column(&number), DataType::Int64).alias(&number));
        computed.push(row_count(limit.skip, What::Offset, &skip));
        computed.push(row_count(limit.fetch, What::Limit, &fetch));
        let skipped = || coalesce(vec![column(&skip), lit(0_i64)]);
        let is_within = column(&fetch).is_null().or((column(&number) - skipped()).lt_eq(column(&fetch)));
        LogicalPlanBuilder::from(input)
            .window(vec![numbered])?
            .project(computed)?
            .filter(column(&number).gt(skipped()).and(is_within))?
            .sort(vec![column(&number).sort(true, true)])?
            .project(columns)?
            .build()
    }
}

/// The rows of DISTINCT ON are in an order that is not one of its columns.
///
/// # Errors
/// `NotImplemented` for such an input of a limit.
pub(super) fn check_order(input: &LogicalPlan) -> Result<()> {
    match input {
        LogicalPlan::Projection(projection) => check_order(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => check_order(&alias.input),
        LogicalPlan::Distinct(Distinct::On(distinct)) if distinct.sort_expr.is_some() => Err(unsupported(
            "DISTINCT ON with a LIMIT that is a subquery, or in a correlated subquery (use row_number() OVER …)",
        )),
        _ => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Limit,
    Offset,
}

/// Its argument, which must not be negative.
#[derive(Debug, PartialEq, Eq, Hash)]
struct RowCount {
    what: What,
    signature: Signature,
}

impl RowCount {
    fn of(what: What) -> RowCount {
        RowCount { what, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for RowCount {
    fn name(&self) -> &str {
        match self.what {
            What::Limit => "LIMIT",
            What::Offset => "OFFSET",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let checked = |rows: &ArrayRef| -> Result<ArrayRef> {
            let rows = cast(rows, &DataType::Int64)?;
            if let Some(negative) = rows.as_primitive::<Int64Type>().iter().flatten().find(|rows| *rows < 0) {
                let (name, value) = (self.name().into(), negative.to_string());
                return Err(Error::InvalidParameter { name, value, expected: "a number of rows from 0".into() }.into());
            }
            Ok(rows)
        };
        Ok(match &args.args[0] {
            ColumnarValue::Array(rows) => ColumnarValue::Array(checked(rows)?),
            ColumnarValue::Scalar(rows) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&checked(&rows.to_array()?)?, 0)?)
            }
        })
    }
}
