//! Columns that scans of one tree share.
//!
//! A scan that reads a page of a leaf keeps the columns that it uses. Where a statement reads a tree several times, the first
//! scan must keep the columns of the others and of lookups, too, or they would read its pages again.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use keyaki_store::TreeId;

use super::exec::{IndexPipelineExec, IndexPipelineOperator};
use super::input_exec::InputPipelineExec;
use crate::base::tree::Tree;
use crate::table::ScanExec;

/// The rule, which gives each scan the columns of the others. It comes last, and replaces no operators.
#[derive(Debug)]
pub(super) struct ShareScanColumns;

impl PhysicalOptimizerRule for ShareScanColumns {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        // The columns of each access to a tree.
        let mut trees = BTreeMap::<TreeId, Vec<Vec<usize>>>::new();
        plan.apply_dyn(&mut |node| {
            if let Some(scan) = node.downcast_ref::<ScanExec>() {
                let columns = scan.operator().read_columns().collect();
                trees.entry(scan.operator().plan().view.tree()).or_default().push(columns);
            }
            let pipeline = node.downcast_ref::<IndexPipelineExec>().map(IndexPipelineExec::operator);
            let with_input = node.downcast_ref::<InputPipelineExec>().map(InputPipelineExec::operator);
            for (view, columns) in pipeline.or(with_input).into_iter().flat_map(IndexPipelineOperator::reads) {
                trees.entry(view.tree()).or_default().push(columns.to_vec());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        plan.apply_dyn(&mut |node| {
            if let Some(scan) = node.downcast_ref::<ScanExec>().map(ScanExec::operator)
                && let Some(accesses) = trees.get(&scan.plan().view.tree()).filter(|accesses| accesses.len() > 1)
            {
                scan.keep(accesses.concat());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "share_scan_columns"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
