//! Aggregates with several grouping sets over sorted inputs.
//!
//! DataFusion 55 lets such an aggregate use an order of its input for the groups that all sets have. But it goes through each
//! batch once for each set, so that the groups of a batch are not sorted: groups end too early and are returned several times.
//! [`HideGroupOrders`] wraps the keys of such aggregates in [`Unordered`], which declares no order.

use std::fmt::{Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};

use crate::base::tree::Tree;

/// The rule. It comes before all rules that use the properties of operators.
#[derive(Debug)]
pub(super) struct HideGroupOrders;

impl PhysicalOptimizerRule for HideGroupOrders {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let hidden = plan.transform_up_dyn(&mut |plan| match plan.downcast_ref::<AggregateExec>() {
            Some(aggregate) if aggregate.group_expr().groups().len() > 1 => {
                Ok(Transformed::yes(Arc::new(without_order(aggregate)?) as Arc<dyn ExecutionPlan>))
            }
            _ => Ok(Transformed::no(plan)),
        });
        Ok(hidden?.data)
    }

    fn name(&self) -> &str {
        "hide_group_orders"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn without_order(aggregate: &AggregateExec) -> Result<AggregateExec> {
    let keys = aggregate.group_expr();
    let wrapped = keys.expr().iter().map(|(key, name)| {
        let key: Arc<dyn PhysicalExpr> = Arc::new(Unordered { key: key.clone() });
        (key, name.clone())
    });
    let keys = PhysicalGroupBy::new(
        wrapped.collect(),
        keys.null_expr().to_vec(),
        keys.groups().to_vec(),
        keys.has_grouping_set(),
    );
    AggregateExec::try_new(
        *aggregate.mode(),
        keys,
        aggregate.aggr_expr().to_vec(),
        aggregate.filter_expr().to_vec(),
        aggregate.input().clone(),
        aggregate.input_schema(),
    )
}

/// An expression with the values of another one, and no known order.
#[derive(Debug, Clone, Eq)]
struct Unordered {
    key: Arc<dyn PhysicalExpr>,
}

impl PartialEq for Unordered {
    fn eq(&self, other: &Self) -> bool {
        self.key.eq(&other.key)
    }
}

impl Hash for Unordered {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl Display for Unordered {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(f)
    }
}

impl PhysicalExpr for Unordered {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.key.data_type(input)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.key.nullable(input)
    }

    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.key.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.key.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.key]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        match <[_; 1]>::try_from(children) {
            Ok([key]) => Ok(Arc::new(Unordered { key })),
            Err(_) => Err(DataFusionError::Internal("Unordered has one child".into())),
        }
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.key.fmt_sql(f)
    }
}
