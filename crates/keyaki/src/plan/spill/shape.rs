//! The properties of a join that decide how its inputs are split.

use std::sync::Arc;

use datafusion::common::{JoinType, NullEquality};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, PartitionMode};

use super::files::Split;
use super::order::{self, Order};

/// A join that can be executed in parts.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub join_type: JoinType,
    /// Join keys of both inputs. `None`: a nested loop join.
    keys: Option<Keys>,
    /// All partitions of the right input share one left input.
    pub shares_left: bool,
    /// Maximum number of rows of each partition.
    pub fetch: Option<usize>,
    pub order: Order,
}

#[derive(Debug, Clone)]
struct Keys {
    left: Vec<Arc<dyn PhysicalExpr>>,
    right: Vec<Arc<dyn PhysicalExpr>>,
    nulls: NullEquality,
}

impl Shape {
    /// Returns `None` if the operator is not a join, or is a join that cannot be split: NOT IN needs all rows of its
    /// right input. A join that does not return its rows in the order of its right input has only [`Order::Any`].
    pub fn new(plan: &dyn ExecutionPlan, order: Order) -> Option<Shape> {
        let is_ordered = plan.maintains_input_order().get(1).is_some_and(|kept| *kept);
        if order != Order::Any && !is_ordered {
            return None;
        }
        if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            let shares_left = match join.partition_mode() {
                PartitionMode::CollectLeft => true,
                PartitionMode::Partitioned => false,
                PartitionMode::Auto => return None,
            };
            let (left, right) = join.on().iter().cloned().unzip();
            let keys = Some(Keys { left, right, nulls: join.null_equality() });
            let (join_type, fetch) = (*join.join_type(), plan.fetch());
            return (!join.null_aware).then_some(Shape { join_type, keys, shares_left, fetch, order });
        }
        let join = plan.downcast_ref::<NestedLoopJoinExec>()?;
        let (join_type, fetch) = (*join.join_type(), plan.fetch());
        Some(Shape { join_type, keys: None, shares_left: true, fetch, order })
    }

    pub fn is_nested_loop(&self) -> bool {
        self.keys.is_none()
    }

    /// The join type allows to join the inputs in parts.
    pub fn is_divisible(&self) -> bool {
        self.keys.is_some() || self.join_type != JoinType::Full
    }

    /// The result depends on which left rows match in any partition of the right input.
    pub fn returns_left(&self) -> bool {
        use JoinType::{Full, Left, LeftAnti, LeftMark, LeftSemi};
        matches!(self.join_type, Left | LeftSemi | LeftAnti | LeftMark | Full)
    }

    fn returns_right(&self) -> bool {
        use JoinType::{Full, Right, RightAnti, RightMark, RightSemi};
        matches!(self.join_type, Right | RightSemi | RightAnti | RightMark | Full)
    }

    /// A pair of parts without left (right) rows has no result.
    pub fn needs(&self) -> (bool, bool) {
        (!self.returns_right(), !self.returns_left())
    }

    /// How the left and the right input are split at a depth.
    pub fn splits(&self, depth: usize) -> (Split, Split) {
        match &self.keys {
            Some(Keys { left, right, nulls }) => {
                let split = |keys: &Vec<_>| Split::Hash { keys: keys.clone(), seed: depth as u64, nulls: *nulls };
                (split(left), split(right))
            }
            None if self.returns_right() => (Split::Whole, Split::Slices),
            None => (Split::Slices, Split::Whole),
        }
    }

    /// The join over a pair of parts, with the input that was split as build side. If the order is that of the right
    /// input, the right part and the join have a last column with numbers.
    pub fn over(
        &self,
        join: &Arc<dyn ExecutionPlan>,
        left: Arc<dyn ExecutionPlan>,
        right: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(hash) = join.downcast_ref::<HashJoinExec>() {
            let builder = hash.builder().reset_state().with_partition_mode(PartitionMode::CollectLeft);
            let builder = match self.order {
                Order::Right => builder.with_projection(Some(order::numbered_columns(hash))),
                Order::Any | Order::Numbered => builder,
            };
            return builder.with_new_children(vec![left, right])?.build_exec();
        }
        let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let part = join.clone().replace_children(vec![left, right], recompute)?;
        match part.downcast_ref::<NestedLoopJoinExec>() {
            Some(nested) if self.returns_right() => nested.swap_inputs(),
            Some(_) => Ok(part),
            None => Err(DataFusionError::Internal("a spilling join contains a join".into())),
        }
    }
}
