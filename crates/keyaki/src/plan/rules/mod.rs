//! DataFusion's rules of the logical optimizer, without the cases in which they are wrong.
//!
//! [`corrected`] wraps the rules concerned. `docs/upstream.md` lists the defects; `tests/upstream.rs` fails once DataFusion
//! has corrected one of them.
//!
//! | module | defects |
//! |---|---|
//! | [`branches`] | branches of CASE that constants decide, evaluated for no rows |
//! | [`frames`] | default frames over BYTEA |
//! | [`generated`] | none: uses generated columns for their expressions |
//! | [`groups`] | dependencies of columns on others that do not determine them |
//! | [`guards`] | filters below ungrouped aggregates; joins that mix NULL-safe and ordinary equality; sums of sums of decimals; sort keys and DISTINCT removed by wrong dependencies; repeated window functions, names of their keys |
//! | [`inferred`] | conditions that can fail, copied to rows that are not joined |
//! | [`intervals`] | comparisons of the parts of intervals one after another |
//! | [`lazy`] | operands of AND and OR that are evaluated although another one decides; CASE replaced by AND and OR |
//! | [`lists`] | intersections of IN lists that ignore NULL and values that are not literals |
//! | [`moving`] | aggregates over frames that move, whose accumulators remove rows inexactly or not at all |
//! | [`multisets`] | INTERSECT ALL and EXCEPT ALL that do not count equal rows |
//! | [`operands`] | decimals beside floats as decimals; timestamps beside texts and dates in nanoseconds |
//! | [`values`] | operators that wrap and casts that truncate |
//! | [`sorts`] | sorts in subqueries, which DataFusion removes too often, are removed below joins |

use std::sync::Arc;

use crate::base::tree::{PlanTree, Tree};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};

mod branches;
mod frames;
mod generated;
mod groups;
mod guards;
mod inferred;
mod intervals;
mod lazy;
mod lists;
mod moving;
mod multisets;
mod operands;
mod sorts;
mod values;

pub(super) use frames::GroupFrames;
pub(super) use generated::UseGenerated;
pub(super) use intervals::{OrderIntervals, PrepareIntervals};
pub(super) use lazy::{LazyConditions, protected};
pub(super) use moving::MovingFrames;
pub(super) use multisets::Multisets;
pub(super) use operands::ConvertOperands;
pub(super) use values::ReplaceOperators;

pub(super) type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// Returns the optimizer's rules with the defective ones wrapped.
pub(super) fn corrected(optimizer: Option<Optimizer>) -> Vec<Rule> {
    let rules = optimizer.unwrap_or_default().rules.into_iter();
    let first = Arc::new(sorts::EliminateSort) as Rule;
    // Filters are at their places only after all other rules.
    let last = Arc::new(lazy::ProtectConditions) as Rule;
    let is_own = |rule: &Rule| [first.name(), last.name()].contains(&rule.name());
    let mut corrected: Vec<Rule> = rules.filter(|rule| !is_own(rule)).map(correct).collect();
    corrected.insert(0, first.clone());
    corrected.push(last);
    corrected
}

/// The rules that push filters down and prune columns.
pub(super) fn pushdown() -> Vec<Rule> {
    vec![correct(Arc::new(PushDownFilter::new())), correct(Arc::new(OptimizeProjections::new()))]
}

fn correct(rule: Rule) -> Rule {
    let apply: Apply = match rule.name() {
        "push_down_filter" => guards::push_down_filter,
        "eliminate_cross_join" => guards::eliminate_cross_join,
        "single_distinct_aggregation_to_group_by" => guards::single_distinct_to_group_by,
        "simplify_expressions" => branches::simplify,
        "extract_equijoin_predicate" => guards::extract_equijoin_predicate,
        "eliminate_join" => guards::eliminate_join,
        "eliminate_duplicated_expr" => guards::eliminate_duplicated_expr,
        "common_sub_expression_eliminate" => guards::common_sub_expression_eliminate,
        "optimize_projections" => groups::optimize_projections,
        "replace_distinct_aggregate" => guards::replace_distinct_aggregate,
        _ => return rule,
    };
    Arc::new(Corrected { name: format!("{}(corrected)", rule.name()), inner: rule, apply })
}

/// Applies a rule, or not, to a plan.
type Apply = fn(&Rule, LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>;

/// A rule of DataFusion that is applied through a function.
#[derive(Debug)]
struct Corrected {
    name: String,
    inner: Rule,
    apply: Apply,
}

impl OptimizerRule for Corrected {
    /// Not the name of the rule: a corrected rule is not wrapped again.
    fn name(&self) -> &str {
        &self.name
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.inner.apply_order()
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        (self.apply)(&self.inner, plan, config)
    }
}

/// Applies a function to the expressions of a node, from the innermost outwards. Names of columns stay.
fn rewritten(
    plan: LogicalPlan,
    mut replace: impl FnMut(Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    if matches!(plan, LogicalPlan::TableScan(_)) {
        return Ok(Transformed::no(plan));
    }
    let schema = merge_schema(&plan.inputs());
    let names = NamePreserver::new(&plan);
    let rewritten = plan.map_expressions_dyn(&mut |expr| {
        // Each key of grouping sets has a name, but not the sets.
        if let Expr::GroupingSet(_) = expr {
            return expr.map_children(|key| {
                let name = key.schema_name().to_string();
                let replaced = key.transform_up_dyn(&mut |expr| replace(expr, &schema))?;
                Ok(replaced
                    .update_data(|key| if key.schema_name().to_string() == name { key } else { key.alias(name) }))
            });
        }
        let name = names.save(&expr);
        Ok(expr.transform_up_dyn(&mut |expr| replace(expr, &schema))?.update_data(|expr| name.restore(expr)))
    })?;
    match rewritten.transformed {
        true => rewritten.map_data(LogicalPlan::recompute_schema),
        false => Ok(rewritten),
    }
}
