//! One partition of the operator.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{concat, take};
use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::{GroupsAccumulatorAdapter, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::metrics::BaselineMetrics;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use keyaki_store::compact_array;

use crate::plan::window::starts;

/// An aggregate, with the states of the groups that have not been returned.
struct Aggregate {
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    states: Box<dyn GroupsAccumulator>,
}

/// Groups one after another.
pub(super) struct KeyGroups {
    input: SendableRecordBatchStream,
    schema: SchemaRef,
    groups: Vec<Arc<dyn PhysicalExpr>>,
    aggregates: Vec<Aggregate>,
    /// The keys of the groups that have not been returned, in parts.
    keys: Vec<Vec<ArrayRef>>,
    /// Number of these groups. Rows that follow may belong to the last one.
    held: usize,
    /// The key of the last row, in arrays of one row.
    last: Option<Vec<ArrayRef>>,
    /// The group of each row of a batch.
    group_of: Vec<usize>,
    /// Number of complete groups that are returned at once. The first ones are returned early, for operators that need few.
    emitted_at: usize,
    batch_rows: usize,
    reservation: MemoryReservation,
    metrics: BaselineMetrics,
}

impl KeyGroups {
    pub fn new(
        plan: &AggregateExec,
        input: SendableRecordBatchStream,
        batch_rows: usize,
        reservation: MemoryReservation,
        metrics: BaselineMetrics,
    ) -> Result<KeyGroups> {
        let aggregates = plan.aggr_expr().iter().zip(plan.filter_expr()).map(|(aggregate, filter)| {
            Ok(Aggregate { arguments: aggregate.expressions(), filter: filter.clone(), states: states(aggregate)? })
        });
        Ok(KeyGroups {
            input,
            schema: plan.schema(),
            groups: plan.group_expr().expr().iter().map(|(expr, _)| expr.clone()).collect(),
            aggregates: aggregates.collect::<Result<_>>()?,
            keys: Vec::new(),
            held: 0,
            last: None,
            group_of: Vec::new(),
            emitted_at: 1,
            batch_rows,
            reservation,
            metrics,
        })
    }

    pub fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.schema.clone();
        let batches = futures::stream::try_unfold(self, |mut groups| async move {
            Ok(groups.next().await?.map(|batch| (batch, groups)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let timer = self.metrics.elapsed_compute().clone();
        while let Some(batch) = self.input.next().await.transpose()? {
            let _timer = timer.timer();
            self.add(&batch)?;
            // The memory that a batch needs is known only afterwards; groups that are complete can be returned at once.
            let fits = self.reservation.try_resize(self.bytes());
            let complete = self.held.saturating_sub(1);
            if complete >= self.emitted_at || fits.is_err() && complete > 0 {
                self.emitted_at = (8 * self.emitted_at).min(self.batch_rows);
                return self.emit(EmitTo::First(complete)).map(Some);
            }
            fits?;
        }
        let _timer = timer.timer();
        if self.held == 0 {
            return Ok(None);
        }
        self.emit(EmitTo::All).map(Some)
    }

    /// Adds the rows of a batch to their groups.
    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        let values = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(rows);
        let keys = self.groups.iter().map(values).collect::<Result<Vec<ArrayRef>>>()?;
        let starts = starts(&keys, self.last.as_deref(), rows)?;
        self.group_of.clear();
        let mut begun = self.held;
        for (&start, next) in starts.iter().zip(starts.iter().skip(1).chain([&rows])) {
            // Rows before the first start continue the last group.
            self.group_of.resize(start, begun.saturating_sub(1));
            self.group_of.resize(*next, begun);
            begun += 1;
        }
        self.group_of.resize(rows, begun.saturating_sub(1));
        self.held = begun;
        for aggregate in &mut self.aggregates {
            aggregate.update(batch, &self.group_of, self.held)?;
        }
        let first_rows = UInt32Array::from_iter_values(starts.iter().map(|&start| start as u32));
        if !starts.is_empty() {
            self.keys.push(rows_of(&keys, &first_rows)?);
        }
        self.last = Some(rows_of(&keys, &UInt32Array::from(vec![rows as u32 - 1]))?);
        Ok(())
    }

    /// Removes groups, from the first on, and returns them.
    fn emit(&mut self, which: EmitTo) -> Result<RecordBatch> {
        let count = if let EmitTo::First(count) = which { count } else { self.held };
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        let mut rest = Vec::new();
        for group in 0..self.groups.len() {
            let parts: Vec<&dyn Array> = self.keys.iter().map(|part| part[group].as_ref()).collect();
            let keys = concat(&parts)?;
            rest.push(keys.slice(count, keys.len() - count));
            columns.push(keys.slice(0, count));
        }
        for aggregate in &mut self.aggregates {
            columns.push(aggregate.states.evaluate(which)?);
        }
        self.held -= count;
        let all = UInt32Array::from_iter_values(0..self.held as u32);
        self.keys = if self.held > 0 { vec![rows_of(&rest, &all)?] } else { Vec::new() };
        self.reservation.try_resize(self.bytes())?;
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        self.metrics.record_output(batch.num_rows());
        Ok(batch)
    }

    /// Bytes of the groups that have not been returned.
    fn bytes(&self) -> usize {
        let keys = self.keys.iter().flatten().map(|key| key.get_array_memory_size()).sum::<usize>();
        let states = self.aggregates.iter().map(|aggregate| aggregate.states.size()).sum::<usize>();
        keys + states + self.group_of.capacity() * size_of::<usize>()
    }
}

impl Aggregate {
    fn update(&mut self, batch: &RecordBatch, group_of: &[usize], groups: usize) -> Result<()> {
        let rows = batch.num_rows();
        let values = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(rows);
        let arguments = self.arguments.iter().map(values).collect::<Result<Vec<ArrayRef>>>()?;
        let filter = self.filter.as_ref().map(values).transpose()?;
        let filter: Option<&BooleanArray> = filter.as_ref().map(|filter| filter.as_boolean());
        self.states.update_batch(&arguments, group_of, filter, groups)
    }
}

/// A copy of some rows, which does not keep the memory of the others.
fn rows_of(columns: &[ArrayRef], rows: &UInt32Array) -> Result<Vec<ArrayRef>> {
    columns.iter().map(|column| Ok(compact_array(&take(column, rows, None)?))).collect()
}

/// States of groups, one by one if the aggregate has no other form.
fn states(aggregate: &Arc<AggregateFunctionExpr>) -> Result<Box<dyn GroupsAccumulator>> {
    if aggregate.groups_accumulator_supported() {
        return aggregate.create_groups_accumulator();
    }
    let aggregate = aggregate.clone();
    Ok(Box::new(GroupsAccumulatorAdapter::new(move || aggregate.create_accumulator())))
}
