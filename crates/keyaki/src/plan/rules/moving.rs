//! Aggregates over frames, from which DataFusion 55 removes rows inexactly or not at all, and whose results it takes for
//! ordered ([`frames`]).
//!
//! [`MovingFrames`] runs after the types are resolved.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition};
use datafusion::optimizer::AnalyzerRule;

use crate::base::tree::{PlanTree, Tree};
use crate::values::frames;

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct MovingFrames;

impl AnalyzerRule for MovingFrames {
    fn name(&self) -> &str {
        "moving_frames"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries_dyn(&mut rewrite)?.data)
    }
}

fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Window(window) = &plan else { return Ok(Transformed::no(plan)) };
    let schema = window.input.schema().clone();
    let names = NamePreserver::new(&plan);
    plan.map_expressions_dyn(&mut |expr| {
        let name = names.save(&expr);
        let changed = expr.transform_up_dyn(&mut |expr| match expr {
            Expr::WindowFunction(mut call) => match moving(&call, &schema)? {
                Some(function) => {
                    call.fun = WindowFunctionDefinition::AggregateUDF(function);
                    Ok(Transformed::yes(Expr::WindowFunction(call)))
                }
                None => Ok(Transformed::no(Expr::WindowFunction(call))),
            },
            other => Ok(Transformed::no(other)),
        })?;
        Ok(changed.update_data(|expr| name.restore(expr)))
    })
}

/// The function for the frames of a call; `None` if it stays.
fn moving(call: &WindowFunction, schema: &DFSchema) -> Result<Option<Arc<AggregateUDF>>> {
    let WindowFunctionDefinition::AggregateUDF(function) = &call.fun else { return Ok(None) };
    let types = call.params.args.iter().map(|arg| arg.get_type(schema)).collect::<Result<Vec<DataType>>>()?;
    let is_moving = !call.params.window_frame.is_ever_expanding();
    Ok(frames::framed(function, &types, call.params.distinct, is_moving))
}
