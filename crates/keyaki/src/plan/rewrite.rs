//! Replaces parts of join trees by index pipelines in an optimized logical plan.
//!
//! The rewriter works from the leaves up. It flattens every maximal tree of joins, filters and projections to a graph
//! and searches for the cheapest plan. If that plan contains a pipeline, the rewriter rebuilds the tree: pipelines
//! become extension nodes, other relations stay as they are, hash joins connect them, and late filters and the original
//! output columns go on top. DataFusion's rules then push filters to the remaining scans and prune columns.
//!
//! COUNT, MIN and MAX that keys answer become summary nodes ([`super::summary`]). Sorts with a limit get the first rows
//! of an index as input ([`super::first_rows`]). Aggregations along a key get a scan in its order ([`super::key_groups`]).
//!
//! Invariant: the rewritten plan has the columns of the original one; otherwise the rewrite fails.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, NullEquality, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Expr, Extension, Filter, Join, JoinConstraint, LogicalPlan, Projection, Sort, SubqueryAlias,
};
use datafusion::optimizer::{Optimizer, OptimizerContext};

use super::facts::{Facts, local_filters};
use super::graph::{Graph, RelationSet, RelationSource, finds_one, is_member, is_simple};
use super::node::{PipelineNode, PipelineSpec, PtrEq};
use super::rules::pushdown;
use super::search::{Node, Search, SearchResult};
use super::summary::SummaryNode;
use super::{assemble, first_rows, key_groups};
use crate::JoinMode;
use crate::table::PlanContext;

/// Rewrites the logical plans of one statement.
#[derive(Debug)]
pub(super) struct Rewriter<'a> {
    pub context: &'a PlanContext,
    pub config: Arc<ConfigOptions>,
}

impl Rewriter<'_> {
    /// Returns an equivalent plan with the same columns. Does nothing if the session's join mode is `scan`.
    pub fn rewrite(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if self.context.options.join == JoinMode::Scan {
            return Ok(plan);
        }
        let plan = self.below(plan)?;
        if !is_member(&plan) {
            return Ok(plan);
        }
        Ok(self.join_tree(&plan)?.unwrap_or(plan))
    }

    /// Rewrites the inputs of the join tree at the top of `plan` and subqueries in its expressions. Without a join tree
    /// at the top, rewrites the whole plan.
    fn below(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = plan.map_subqueries(|subquery| self.rewrite(subquery).map(Transformed::yes))?.data;
        if let LogicalPlan::Aggregate(aggregate) = &plan
            && let Some(node) = SummaryNode::of(aggregate)?
        {
            return Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }));
        }
        if let LogicalPlan::Sort(sort) = &plan
            && let Some(input) = first_rows::input(sort)?
        {
            return Ok(LogicalPlan::Sort(Sort { input: Arc::new(input), ..sort.clone() }));
        }
        if !is_member(&plan) {
            let plan = plan.map_children(|child| self.rewrite(child).map(Transformed::yes))?.data;
            let LogicalPlan::Aggregate(aggregate) = plan else { return Ok(plan) };
            let along = key_groups::along_key(&aggregate)?;
            return Ok(LogicalPlan::Aggregate(along.unwrap_or(aggregate)));
        }
        match plan {
            LogicalPlan::Join(mut join) if join.join_type != JoinType::Inner && !finds_one(&join) => {
                let right = matches!(join.join_type, JoinType::Right | JoinType::RightSemi | JoinType::RightAnti);
                let Join { left, right: other, .. } = &mut join;
                let (kept, supplied) = if right { (other, left) } else { (left, other) };
                *kept = Arc::new(self.below(kept.as_ref().clone())?);
                if !is_simple(supplied) {
                    *supplied = Arc::new(self.rewrite(supplied.as_ref().clone())?);
                }
                Ok(LogicalPlan::Join(join))
            }
            plan => Ok(plan.map_children(|child| self.below(child).map(Transformed::yes))?.data),
        }
    }

    /// Rebuilds a join tree. Returns `None` if it cannot be flattened or its cheapest plan has no pipeline.
    fn join_tree(&self, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        let Some(graph) = Graph::of(plan)? else { return Ok(None) };
        let facts = Facts::of(&graph)?;
        let Some(found) = Search::new(&graph, &facts, self.context).run() else { return Ok(None) };
        if !found.has_pipeline(found.root) {
            return Ok(None);
        }
        let joined = Builder { graph: &graph, facts: &facts, found: &found }.build(found.root)?;
        let joined = filtered(joined, graph.predicates.iter().filter(|p| p.late).map(|p| p.expr.clone()))?;
        let schema = plan.schema();
        let output = graph.output.iter().zip(schema.iter());
        let output = output
            .map(|(expr, (qualifier, field))| expr.clone().alias_qualified(qualifier.cloned(), field.name().clone()));
        let output: Vec<Expr> = output.collect();
        let rebuilt = LogicalPlan::Projection(Projection::try_new(output, Arc::new(joined))?);
        self.finish(rebuilt, plan).map(Some)
    }

    /// Pushes filters down and prunes columns. Fails if the columns of the result differ from `original`.
    fn finish(&self, rebuilt: LogicalPlan, original: &LogicalPlan) -> Result<LogicalPlan> {
        let rules = Optimizer::with_rules(pushdown());
        let config = OptimizerContext::new_with_config_options(self.config.clone());
        let plan = rules.optimize(rebuilt, &config, |_, _| {})?;
        let columns = |plan: &LogicalPlan| -> Vec<_> {
            let fields = plan.schema().iter();
            fields.map(|(q, f)| (q.cloned(), f.name().clone(), f.data_type().clone())).collect()
        };
        if columns(&plan) != columns(original) {
            return Err(DataFusionError::Internal(format!(
                "a rewritten join has other columns: {:?} instead of {:?}",
                plan.schema(),
                original.schema()
            )));
        }
        Ok(plan)
    }
}

/// Builds the logical plan of a search result, over canonical columns.
struct Builder<'a> {
    graph: &'a Graph,
    facts: &'a Facts,
    found: &'a SearchResult,
}

impl Builder<'_> {
    fn build(&self, plan: usize) -> Result<LogicalPlan> {
        match &self.found.plans[plan].node {
            Node::Scan(relation) => self.leaf(*relation),
            Node::Driver(_) | Node::Input(_) | Node::Step(..) => {
                let (mut spec, input) = assemble::pipeline(self.graph, self.facts, &self.found.plans, plan)?;
                spec.without_seconds = self.found.without_seconds(self.found.plans[plan].set);
                let input = input.map(|input| self.input(input, &spec)).transpose()?;
                let node = Arc::new(PipelineNode { spec: PtrEq(Arc::new(spec)), input });
                Ok(LogicalPlan::Extension(Extension { node }))
            }
            Node::Hash { left, right, outer } => {
                let (l, r) = (self.found.plans[*left].set, self.found.plans[*right].set);
                let conditions = if *outer { self.outer_conditions(r) } else { self.conditions(l, r) };
                let (on, filter) = self.keys(l, r, conditions);
                let kind = match outer {
                    true => self.graph.relations[r.trailing_zeros() as usize].join_type(),
                    false => JoinType::Inner,
                };
                let (left, right) = (Arc::new(self.build(*left)?), Arc::new(self.build(*right)?));
                let filter = conjunction(filter);
                let nulls = NullEquality::NullEqualsNothing;
                let join = Join::try_new(left, right, on, filter, kind, JoinConstraint::On, nulls, false)?;
                Ok(LogicalPlan::Join(join))
            }
        }
    }

    /// Predicates whose relations are in the union of two sets but not in one of them alone.
    fn conditions(&self, left: RelationSet, right: RelationSet) -> Vec<Expr> {
        let first = |set: RelationSet| set & !(left | right) == 0 && set & !left != 0 && set & !right != 0;
        let predicates = self.graph.predicates.iter().filter(|p| !p.late && first(p.relations));
        predicates.map(|p| p.expr.clone()).collect()
    }

    /// ON conditions of an outer relation that use other relations too.
    fn outer_conditions(&self, supplied: RelationSet) -> Vec<Expr> {
        let relation = supplied.trailing_zeros() as usize;
        let on = self.graph.relations[relation].on().iter();
        on.filter(|expr| self.graph.relations_of(expr) != supplied).cloned().collect()
    }

    /// Splits conditions into hash join keys (left, right) and other conditions.
    fn keys(&self, left: RelationSet, right: RelationSet, conditions: Vec<Expr>) -> (Vec<(Expr, Expr)>, Vec<Expr>) {
        let (mut on, mut filter) = (Vec::new(), Vec::new());
        for condition in conditions {
            match (self.graph.sides(&condition), condition) {
                (Some((x, y)), Expr::BinaryExpr(equality)) if x & !left == 0 && y & !right == 0 => {
                    on.push((*equality.left, *equality.right));
                }
                (Some((x, y)), Expr::BinaryExpr(equality)) if x & !right == 0 && y & !left == 0 => {
                    on.push((*equality.right, *equality.left));
                }
                (_, condition) => filter.push(condition),
            }
        }
        (on, filter)
    }

    /// The columns of a plan that the driver of a pipeline takes.
    fn input(&self, plan: usize, spec: &PipelineSpec) -> Result<LogicalPlan> {
        let columns = spec.accesses[0].scope.columns().into_iter().map(Expr::Column).collect();
        Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(self.build(plan)?))?))
    }

    /// A relation with its own filters, planned by DataFusion.
    fn leaf(&self, relation: usize) -> Result<LogicalPlan> {
        let definition = &self.graph.relations[relation];
        let name = TableReference::bare(definition.name.clone());
        let plan = match &definition.source {
            RelationSource::Table { scan, .. } => {
                let named = scan.table_name == name;
                let scan = LogicalPlan::TableScan(scan.clone());
                match named {
                    true => scan,
                    false => LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(scan), name)?),
                }
            }
            RelationSource::Plan(plan) => {
                let columns = plan.schema().columns().into_iter().zip(&definition.columns);
                let columns = columns.map(|(column, canonical)| {
                    Expr::Column(column).alias_qualified(Some(name.clone()), canonical.name.clone())
                });
                LogicalPlan::Projection(Projection::try_new(columns.collect(), Arc::new(plan.clone()))?)
            }
        };
        filtered(plan, local_filters(self.graph, relation).into_iter().map(|(_, filter)| filter.clone()))
    }
}

/// Adds a filter node, unless there are no filters.
fn filtered(plan: LogicalPlan, filters: impl Iterator<Item = Expr>) -> Result<LogicalPlan> {
    match conjunction(filters) {
        Some(filter) => Ok(LogicalPlan::Filter(Filter::try_new(filter, Arc::new(plan))?)),
        None => Ok(plan),
    }
}
