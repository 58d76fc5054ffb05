//! The adapter between leaf operators and DataFusion's [`ExecutionPlan`].
//!
//! An operator without inputs implements [`LeafOperator`]: display, execution and statistics. [`LeafExec`] adds the
//! common part: plan properties, metrics, and methods about children. Operators are immutable: a change of limit, order
//! or filters creates a new `LeafExec` with new properties and empty metrics.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, SortOrderPushdownResult};

/// The specific part of a leaf operator.
pub(crate) trait LeafOperator: Debug + Send + Sync + Sized + 'static {
    /// Name in EXPLAIN.
    const NAME: &'static str;

    /// Schema, partitioning and ordering of the output.
    fn properties(&self) -> PlanProperties;

    /// One line of EXPLAIN, or the lines of a node in a rendered tree.
    fn describe(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result;

    /// Starts the stream of one partition.
    fn execute(
        &self,
        partition: usize,
        task: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream>;

    /// Estimates for one partition, or for all partitions together (`None`).
    fn statistics(&self, partition: Option<usize>) -> Arc<Statistics>;

    /// Expressions that the operator evaluates.
    fn expressions(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        Vec::new()
    }

    /// Maximum number of rows that each partition returns.
    fn fetch(&self) -> Option<usize> {
        None
    }

    /// Returns the operator with another row limit, or `None` if it does not support limits.
    fn with_fetch(&self, _fetch: Option<usize>) -> Option<Self> {
        None
    }

    /// Returns the operator with its rows in reverse order, or `None` if it cannot reverse them.
    fn reversed(&self) -> Option<Self> {
        None
    }

    /// Returns the operator with additional filters over its output columns, or `None` if it cannot evaluate them.
    fn with_filters(&self, _filters: &[Arc<dyn PhysicalExpr>]) -> Option<Self> {
        None
    }
}

/// A leaf operator in a physical plan.
#[derive(Debug)]
pub(crate) struct LeafExec<O> {
    operator: O,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl<O: LeafOperator> LeafExec<O> {
    pub fn new(operator: O) -> Self {
        let properties = Arc::new(operator.properties());
        LeafExec { operator, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// The operator.
    pub fn operator(&self) -> &O {
        &self.operator
    }
}

impl<O: LeafOperator> DisplayAs for LeafExec<O> {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.operator.describe(format, f)
    }
}

impl<O: LeafOperator> ExecutionPlan for LeafExec<O> {
    fn name(&self) -> &str {
        O::NAME
    }
    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }
    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }
    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }
    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut recursion = TreeNodeRecursion::Continue;
        for expr in self.operator.expressions() {
            recursion = recursion.visit_sibling(|| f(expr))?;
        }
        Ok(recursion)
    }
    fn execute(&self, partition: usize, task: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.operator.execute(partition, &task, &self.metrics)
    }
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(self.operator.statistics(args.partition()))
    }
    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(LeafExec::new(self.operator.with_fetch(fetch)?)))
    }
    fn fetch(&self) -> Option<usize> {
        self.operator.fetch()
    }

    fn try_pushdown_sort(&self, order: &[PhysicalSortExpr]) -> Result<SortOrderPushdownResult<Arc<dyn ExecutionPlan>>> {
        let Some(reversed) = self.operator.reversed().map(LeafExec::new) else {
            return Ok(SortOrderPushdownResult::Unsupported);
        };
        match reversed.properties.eq_properties.ordering_satisfy(order.to_vec())? {
            true => Ok(SortOrderPushdownResult::Exact { inner: Arc::new(reversed) }),
            false => Ok(SortOrderPushdownResult::Unsupported),
        }
    }

    fn handle_child_pushdown_result(
        &self,
        _: FilterPushdownPhase,
        filters: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let pushed: Vec<Arc<dyn PhysicalExpr>> = filters.parent_filters.iter().map(|f| f.filter.clone()).collect();
        let Some(filtered) = self.operator.with_filters(&pushed) else {
            return Ok(FilterPushdownPropagation::if_all(filters));
        };
        let mut found: FilterPushdownPropagation<Arc<dyn ExecutionPlan>> =
            FilterPushdownPropagation::with_parent_pushdown_result(vec![PushedDown::Yes; pushed.len()]);
        if !pushed.is_empty() {
            found.updated_node = Some(Arc::new(LeafExec::new(filtered)));
        }
        Ok(found)
    }
}
