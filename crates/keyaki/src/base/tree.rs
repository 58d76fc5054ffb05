//! Traversal of plans and expressions with one compiled copy of DataFusion's code.
//!
//! DataFusion's methods are generic over the closure: each call compiles the traversal of all plans and expressions again. These
//! methods take the closure as a trait object. `clippy.toml` forbids the generic ones elsewhere.

#![allow(clippy::disallowed_methods)]

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// A function that is called with nodes.
type Visit<'f, 'n, N> = &'f mut dyn FnMut(&'n N) -> Result<TreeNodeRecursion>;

/// A function that replaces nodes.
type Change<'f, N> = &'f mut dyn FnMut(N) -> Result<Transformed<N>>;

/// [`TreeNode`] with closures as trait objects. All methods have the errors of their functions.
pub(crate) trait Tree: TreeNode {
    /// See [`TreeNode::apply`].
    fn apply_dyn<'n>(&'n self, f: Visit<'_, 'n, Self>) -> Result<TreeNodeRecursion> {
        self.apply(f)
    }

    /// See [`TreeNode::exists`].
    fn exists_dyn(&self, f: &mut dyn FnMut(&Self) -> Result<bool>) -> Result<bool> {
        self.exists(f)
    }

    /// See [`TreeNode::transform_up`].
    fn transform_up_dyn(self, f: Change<'_, Self>) -> Result<Transformed<Self>> {
        self.transform_up(f)
    }

    /// See [`TreeNode::transform_down`].
    fn transform_down_dyn(self, f: Change<'_, Self>) -> Result<Transformed<Self>> {
        self.transform_down(f)
    }
}

impl<N: TreeNode> Tree for N {}

/// [`LogicalPlan`] with closures as trait objects. All methods have the errors of their functions.
pub(crate) trait PlanTree: Sized {
    /// See [`LogicalPlan::apply_expressions`].
    fn apply_expressions_dyn(&self, f: &mut dyn FnMut(&Expr) -> Result<TreeNodeRecursion>)
    -> Result<TreeNodeRecursion>;

    /// See [`LogicalPlan::map_expressions`].
    fn map_expressions_dyn(self, f: Change<'_, Expr>) -> Result<Transformed<Self>>;

    /// See [`LogicalPlan::apply_with_subqueries`].
    fn apply_with_subqueries_dyn(
        &self,
        f: &mut dyn FnMut(&Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion>;

    /// See [`LogicalPlan::transform_up_with_subqueries`].
    fn transform_up_with_subqueries_dyn(self, f: Change<'_, Self>) -> Result<Transformed<Self>>;

    /// See [`LogicalPlan::transform_down_with_subqueries`].
    fn transform_down_with_subqueries_dyn(self, f: Change<'_, Self>) -> Result<Transformed<Self>>;
}

impl PlanTree for LogicalPlan {
    fn apply_expressions_dyn(
        &self,
        f: &mut dyn FnMut(&Expr) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.apply_expressions(f)
    }

    fn map_expressions_dyn(self, f: Change<'_, Expr>) -> Result<Transformed<Self>> {
        self.map_expressions(f)
    }

    fn apply_with_subqueries_dyn(
        &self,
        f: &mut dyn FnMut(&Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.apply_with_subqueries(f)
    }

    fn transform_up_with_subqueries_dyn(self, f: Change<'_, Self>) -> Result<Transformed<Self>> {
        self.transform_up_with_subqueries(f)
    }

    fn transform_down_with_subqueries_dyn(self, f: Change<'_, Self>) -> Result<Transformed<Self>> {
        self.transform_down_with_subqueries(f)
    }
}
