//! The estimated time of a physical plan, to compare plans of one query.
//!
//! Scans, pipelines and joins have the costs by which the planner has chosen them. Sorts and aggregations get constants for each
//! row. The times of the operators are added up.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use keyaki_store::KeyRange;

use super::exec::IndexPipelineExec;
use super::first_rows_exec::FirstRowsExec;
use super::input_exec::InputPipelineExec;
use super::key_groups::hash_seconds;
use super::summary_exec::SummaryExec;
use crate::table::cost::{Lookups, Machine};
use crate::table::{PlannedTree, ScanExec};

/// Processor time of a comparison of two rows in a sort.
const COMPARE_SECONDS: f64 = 1.5e-8;
/// Processor time of a row that a sort with a limit compares with its last one.
const FIRST_ROWS_SECONDS: f64 = 1.0e-8;
/// Rows of an operator without statistics.
const UNKNOWN_ROWS: f64 = 1000.0;

/// Estimated elapsed seconds of a plan.
///
/// # Errors
/// Errors of statistics.
pub(crate) fn seconds(plan: &Arc<dyn ExecutionPlan>, machine: &Machine) -> Result<f64> {
    of(plan, machine, &StatisticsContext::new())
}

fn of(plan: &Arc<dyn ExecutionPlan>, machine: &Machine, statistics: &StatisticsContext) -> Result<f64> {
    let mut seconds = own(plan, machine, statistics)?;
    for input in plan.children() {
        seconds += of(input, machine, statistics)?;
    }
    Ok(seconds)
}

/// The time of one operator without its inputs.
fn own(plan: &Arc<dyn ExecutionPlan>, machine: &Machine, statistics: &StatisticsContext) -> Result<f64> {
    let rows = |plan: &Arc<dyn ExecutionPlan>| -> Result<f64> {
        let rows = statistics.compute(plan.as_ref(), &StatisticsArgs::new())?.num_rows;
        Ok(rows.get_value().map_or(UNKNOWN_ROWS, |rows| *rows as f64))
    };
    if let Some(scan) = plan.downcast_ref::<ScanExec>() {
        return Ok(scan.operator().seconds(machine));
    }
    if let Some(pipeline) = plan.downcast_ref::<IndexPipelineExec>() {
        return Ok(pipeline.operator().own_seconds());
    }
    if let Some(pipeline) = plan.downcast_ref::<InputPipelineExec>() {
        return Ok(pipeline.operator().own_seconds());
    }
    if let Some(first) = plan.downcast_ref::<FirstRowsExec>() {
        let spec = &first.operator().spec;
        let (table, count) = (PlannedTree::Stored(spec.table.clone()), spec.rows as f64);
        let entries = lookups(&spec.index, 1.0, count, spec.key.len());
        let rows = lookups(&table, count, 1.0, spec.columns.len());
        return Ok(machine.seconds(machine.lookups(&entries)) + machine.seconds(machine.lookups(&rows)));
    }
    if let Some(summary) = plan.downcast_ref::<SummaryExec>() {
        // The pages at both ends of each range.
        let items = summary.operator().spec.items.iter();
        let costs = items.map(|item| machine.lookups(&lookups(&item.view, 2.0 * item.ranges.len() as f64, 1.0, 1)));
        return Ok(costs.map(|cost| machine.seconds(cost)).sum());
    }
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        let rows = rows(sort.input())?.max(2.0);
        let seconds =
            if sort.fetch().is_some() { rows * FIRST_ROWS_SECONDS } else { rows * rows.log2() * COMPARE_SECONDS };
        return Ok(seconds / machine.workers());
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return Ok(hash_seconds(rows(aggregate.input())?, rows(plan)?) / machine.workers());
    }
    if let ("HashJoinExec" | "SortMergeJoinExec" | "NestedLoopJoinExec" | "CrossJoinExec", [left, right]) =
        (plan.name(), &plan.children()[..])
    {
        let keyless = matches!(plan.name(), "NestedLoopJoinExec" | "CrossJoinExec");
        return Ok(machine.seconds(machine.hash_join(rows(left)?, rows(right)?, rows(plan)?, keyless)));
    }
    Ok(0.0)
}

/// Input of the cost model for `count` lookups into a tree that find `matches` neighbouring rows each.
fn lookups(tree: &PlannedTree, count: f64, matches: f64, columns: usize) -> Lookups {
    let total = tree.estimate(&KeyRange::all());
    Lookups {
        count,
        distinct: count,
        matches,
        tree_rows: total.rows,
        tree_pages: total.pages,
        page_bytes: if total.pages > 0.0 { total.bytes / total.pages } else { 8192.0 },
        cached: tree.cached_share().whole,
        clustered: false,
        columns: columns as f64,
    }
}
