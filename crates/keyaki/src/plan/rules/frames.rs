//! Frames of window functions over types for which DataFusion 55 has no RANGE: BYTEA and INTERVAL among others.
//!
//! `RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW`, the default frame, contains whole groups of peers. Without an offset it
//! is the same as GROUPS, which compares rows only for equality. [`GroupFrames`] runs before DataFusion resolves the types.

use crate::base::tree::{PlanTree, Tree};
use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::optimizer::AnalyzerRule;
use datafusion::scalar::ScalarValue;

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct GroupFrames;

impl AnalyzerRule for GroupFrames {
    fn name(&self) -> &str {
        "group_frames"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries_dyn(&mut rewrite)?.data)
    }
}

fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Window(window) = &plan else { return Ok(Transformed::no(plan)) };
    let schema = window.input.schema().clone();
    let mut found = false;
    for expr in &window.window_expr {
        found |= expr.exists_dyn(&mut |expr| Ok(has_groups(expr, &schema)))?;
    }
    if !found {
        return Ok(Transformed::no(plan));
    }
    let names = NamePreserver::new(&plan);
    let rewritten = plan.map_expressions_dyn(&mut |expr| {
        let name = names.save(&expr);
        let changed = expr.transform_up_dyn(&mut |expr| match expr {
            Expr::WindowFunction(mut call) if is_refused(&call, &schema) => {
                let frame = &mut call.params.window_frame;
                let bounds = (groups_bound(&frame.start_bound), groups_bound(&frame.end_bound));
                *frame = WindowFrame::new_bounds(WindowFrameUnits::Groups, bounds.0, bounds.1);
                Ok(Transformed::yes(Expr::WindowFunction(call)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(changed.update_data(|expr| name.restore(expr)))
    })?;
    rewritten.map_data(LogicalPlan::recompute_schema)
}

fn has_groups(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr, Expr::WindowFunction(call) if is_refused(call, schema))
}

/// True for a RANGE frame without offsets over a type that DataFusion refuses.
fn is_refused(call: &WindowFunction, schema: &DFSchema) -> bool {
    let frame = &call.params.window_frame;
    let has_offset = [&frame.start_bound, &frame.end_bound].into_iter().any(|bound| match bound {
        WindowFrameBound::CurrentRow => false,
        WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset) => !offset.is_null(),
    });
    let ty = call.params.order_by.first().and_then(|sort| sort.expr.get_type(schema).ok());
    frame.units == WindowFrameUnits::Range && !has_offset && ty.is_some_and(|ty| !has_range(&ty))
}

/// True for types with RANGE in DataFusion.
fn has_range(ty: &DataType) -> bool {
    match ty {
        DataType::Dictionary(_, values) => has_range(values),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Boolean => true,
        DataType::Interval(_) => false,
        ty => ty.is_numeric() || ty.is_string() || ty.is_null() || ty.is_temporal(),
    }
}

/// The bound without an offset of a GROUPS frame.
fn groups_bound(bound: &WindowFrameBound) -> WindowFrameBound {
    match bound {
        WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
        WindowFrameBound::Preceding(_) => WindowFrameBound::Preceding(ScalarValue::UInt64(None)),
        WindowFrameBound::Following(_) => WindowFrameBound::Following(ScalarValue::UInt64(None)),
    }
}
