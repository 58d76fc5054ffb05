//! The operator.

use std::collections::HashSet;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalExpr, PhysicalSortExpr,
};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{
    Boundedness, CardinalityEffect, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};

use super::rule::follow_each_other;
use super::stream::KeyGroups;

/// Aggregates rows whose groups follow each other and are not divided among partitions.
#[derive(Debug)]
pub(super) struct KeyGroupsExec {
    /// The same aggregation with a hash table.
    once: AggregateExec,
    /// The columns of the input by which rows are grouped.
    columns: Vec<usize>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl KeyGroupsExec {
    /// `once`: an aggregation in one step by the columns `columns` of its input.
    pub fn new(once: AggregateExec, columns: Vec<usize>) -> Result<KeyGroupsExec> {
        let schema = once.schema();
        let input = once.input();
        // The order of the input, as far as it is one of the groups.
        let of_group = |sort: &PhysicalSortExpr| {
            let column = sort.expr.downcast_ref::<Column>()?.index();
            let place = columns.iter().position(|group| *group == column)?;
            let expr = Arc::new(Column::new(schema.field(place).name(), place));
            Some(PhysicalSortExpr::new(expr, sort.options))
        };
        let orders = input.equivalence_properties().oeq_class().iter();
        let orders: Vec<Vec<PhysicalSortExpr>> = orders
            .map(|order| order.iter().map_while(of_group).collect())
            .filter(|order: &Vec<_>| !order.is_empty())
            .collect();
        let equivalences = EquivalenceProperties::new_with_orderings(schema, orders);
        let partitioning = Partitioning::UnknownPartitioning(input.output_partitioning().partition_count());
        let properties =
            PlanProperties::new(equivalences, partitioning, EmissionType::Incremental, Boundedness::Bounded);
        Ok(KeyGroupsExec { once, columns, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() })
    }
}

impl DisplayAs for KeyGroupsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let groups: Vec<&str> = self.once.group_expr().expr().iter().map(|(_, name)| name.as_str()).collect();
        let aggregates: Vec<&str> = self.once.aggr_expr().iter().map(|aggregate| aggregate.name()).collect();
        let (groups, aggregates) = (groups.join(", "), aggregates.join(", "));
        match format {
            DisplayFormatType::TreeRender => write!(f, "{groups}\n{aggregates}"),
            _ => write!(f, "KeyGroupsExec: groups=[{groups}], aggregates=[{aggregates}]"),
        }
    }
}

impl ExecutionPlan for KeyGroupsExec {
    fn name(&self) -> &str {
        "KeyGroupsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let order = self.once.input().equivalence_properties().oeq_class().iter().next();
        let order = order.and_then(|order| LexOrdering::new(order.iter().cloned()));
        vec![order.map(OrderingRequirements::from)]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    /// No exchange: it would divide groups.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.once.input()]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.once.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return Err(DataFusionError::Internal("KeyGroupsExec has one input".into()));
        };
        let once = AggregateExec::try_new(
            AggregateMode::SinglePartitioned,
            self.once.group_expr().clone(),
            self.once.aggr_expr().to_vec(),
            self.once.filter_expr().to_vec(),
            input,
            self.once.input_schema(),
        )?;
        Ok(Arc::new(KeyGroupsExec::new(once, self.columns.clone())?))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.once.input();
        if !follow_each_other(input, &self.columns) {
            return Err(DataFusionError::Internal("the groups of KeyGroupsExec are divided".into()));
        }
        let batch_rows = context.session_config().batch_size();
        let consumer = MemoryConsumer::new(format!("KeyGroupsExec[{partition}]"));
        let reservation = consumer.register(context.memory_pool());
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let input = input.execute(partition, context)?;
        Ok(KeyGroups::new(&self.once, input, batch_rows, reservation, metrics)?.into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.once.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.once.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    /// A condition on the columns of the groups holds for all rows of a group or for none.
    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let groups: HashSet<usize> = (0..self.columns.len()).collect();
        let child = ChildFilterDescription::from_child_with_allowed_indices(&filters, groups, self.once.input())?;
        Ok(FilterDescription::new().with_child(child))
    }

    fn handle_child_pushdown_result(
        &self,
        _: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        Ok(FilterPushdownPropagation::if_any(result))
    }
}
