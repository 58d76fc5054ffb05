//! Window functions over partitions that are in memory.

use std::collections::BTreeSet;
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, NullArray, RecordBatch, RecordBatchOptions, UInt32Array, UInt64Array};
use arrow::compute::{concat, concat_batches, partition, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::Result;
use datafusion::functions_window::rank::Rank;
use datafusion::functions_window::row_number::RowNumber;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::windows::WindowUDFExpr;

/// The functions of an operator. All have the same partitions.
#[derive(Debug)]
pub(super) struct Functions {
    pub functions: Vec<Function>,
    pub partition_by: Vec<Arc<dyn PhysicalExpr>>,
    /// Every function can return the result of a row before the partition ends, and needs only the rows of the frame.
    pub moves: bool,
    /// The columns of the input that functions refer to. All others have the type Null.
    narrow_schema: SchemaRef,
    is_used: Vec<bool>,
    results_schema: SchemaRef,
}

#[derive(Debug)]
pub(super) struct Function {
    pub expression: Arc<dyn WindowExpr>,
    pub kind: Kind,
    /// It refers to columns that cannot be listed.
    is_opaque: bool,
}

#[derive(Debug)]
pub(super) enum Kind {
    RowNumber,
    /// The number of rows before the peers of a row, plus 1.
    Rank,
    /// The number of groups of peers before the row, plus 1.
    DenseRank,
    /// An aggregate of the whole partition.
    Aggregate(Arc<AggregateFunctionExpr>),
    /// Evaluated one partition after another.
    Other,
}

impl Functions {
    /// `moves`: DataFusion plans to evaluate the functions in batches.
    pub fn new(expressions: &[Arc<dyn WindowExpr>], input: &SchemaRef, moves: bool) -> Result<Functions> {
        let functions: Vec<Function> = expressions.iter().map(Function::new).collect();
        let used: BTreeSet<usize> = functions.iter().flat_map(Function::columns).collect();
        let is_opaque = functions.iter().any(|function| function.is_opaque);
        let is_used: Vec<bool> = (0..input.fields().len()).map(|i| is_opaque || used.contains(&i)).collect();
        let narrow = |(field, is_used): (&Arc<Field>, &bool)| match is_used {
            true => field.clone(),
            false => Arc::new(Field::new(field.name(), DataType::Null, true)),
        };
        let fields: Vec<Arc<Field>> = input.fields().iter().zip(&is_used).map(narrow).collect();
        let narrow_schema = Arc::new(Schema::new(fields));
        let partition_by = expressions.first().map(|first| first.partition_by().to_vec()).unwrap_or_default();
        let results = expressions.iter().map(|expression| expression.field()).collect::<Result<Vec<_>>>()?;
        let results_schema = Arc::new(Schema::new(results));
        let moves = moves && functions.iter().all(Function::moves);
        Ok(Functions { functions, partition_by, moves, narrow_schema, is_used, results_schema })
    }

    /// The values of the partition keys, one array for each.
    pub fn keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.partition_by.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows())).collect()
    }

    /// Concatenates the columns that functions refer to, of batches in order.
    pub fn narrow<'a>(&self, batches: impl Iterator<Item = &'a RecordBatch> + Clone) -> Result<RecordBatch> {
        let rows = batches.clone().map(RecordBatch::num_rows).sum();
        let column = |(i, is_used): (usize, &bool)| -> Result<ArrayRef> {
            if !*is_used {
                return Ok(Arc::new(NullArray::new(rows)));
            }
            let parts: Vec<&dyn Array> = batches.clone().map(|batch| batch.column(i).as_ref()).collect();
            match (parts.len(), batches.clone().next()) {
                (1, Some(batch)) => Ok(batch.column(i).clone()),
                (0, _) => Ok(arrow::array::new_empty_array(self.narrow_schema.field(i).data_type())),
                _ => Ok(concat(&parts)?),
            }
        };
        let columns = self.is_used.iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.narrow_schema.clone(), columns, &options)?)
    }

    /// Concatenates results of [`narrow`](Self::narrow).
    pub fn joined(&self, narrow: &[RecordBatch]) -> Result<RecordBatch> {
        Ok(concat_batches(&self.narrow_schema, narrow)?)
    }

    /// Results of the functions as a batch.
    pub fn results(&self, results: Vec<ArrayRef>) -> Result<RecordBatch> {
        Ok(RecordBatch::try_new(self.results_schema.clone(), results)?)
    }

    /// The results over the partitions that start at `starts`, one array for each function. `narrow`: see
    /// [`narrow`](Self::narrow).
    pub fn evaluate(&self, narrow: &RecordBatch, starts: &[usize]) -> Result<Vec<ArrayRef>> {
        self.functions.iter().map(|function| function.evaluate(narrow, starts)).collect()
    }
}

impl Function {
    fn new(expression: &Arc<dyn WindowExpr>) -> Function {
        let is_opaque = has_filter(expression.as_ref());
        let kind = if is_opaque { Kind::Other } else { Kind::of(expression.as_ref()) };
        Function { expression: expression.clone(), kind, is_opaque }
    }

    /// The columns of the input that the function refers to.
    fn columns(&self) -> BTreeSet<usize> {
        let all = self.expression.all_expressions();
        let all = all.args.into_iter().chain(all.partition_by_exprs).chain(all.order_by_exprs);
        all.flat_map(|expression| collect_columns(&expression)).map(|column| column.index()).collect()
    }

    /// False for functions that DataFusion evaluates wrongly in batches (`docs/upstream.md`): frames of GROUPS that start
    /// after the row, and IGNORE NULLS.
    fn moves(&self) -> bool {
        let frame = self.expression.get_window_frame();
        let starts_later =
            frame.units == WindowFrameUnits::Groups && matches!(frame.start_bound, WindowFrameBound::Following(_));
        let standard = self.expression.as_any().downcast_ref::<StandardWindowExpr>();
        // The debug format is the only place that shows IGNORE NULLS.
        let ignores_nulls = standard.is_some_and(|function| {
            !format!("{:?}", function.get_standard_func_expr()).contains("ignore_nulls: false")
        });
        !starts_later && !ignores_nulls
    }

    pub fn evaluate(&self, narrow: &RecordBatch, starts: &[usize]) -> Result<ArrayRef> {
        let rows = narrow.num_rows();
        match &self.kind {
            Kind::RowNumber => {
                let numbers = ranges(starts, rows).flat_map(|range| 1..=range.len() as u64);
                Ok(Arc::new(UInt64Array::from_iter_values(numbers)))
            }
            Kind::Rank => self.ranks(narrow, starts, |rank, rows_before| rank.max(rows_before + 1)),
            Kind::DenseRank => self.ranks(narrow, starts, |rank, _| rank + 1),
            Kind::Aggregate(aggregate) => {
                let mut groups = aggregate.create_groups_accumulator()?;
                let partitions = |(group, range): (usize, Range<usize>)| range.map(move |_| group);
                let group_of: Vec<usize> = ranges(starts, rows).enumerate().flat_map(partitions).collect();
                self.update(groups.as_mut(), narrow, &group_of, starts.len())?;
                let results = groups.evaluate(EmitTo::All)?;
                let indices = UInt32Array::from_iter_values(group_of.into_iter().map(|group| group as u32));
                Ok(take(&results, &indices, None)?)
            }
            Kind::Other => {
                let evaluate = |range: Range<usize>| self.expression.evaluate(&narrow.slice(range.start, range.len()));
                let parts = ranges(starts, rows).map(evaluate).collect::<Result<Vec<_>>>()?;
                match &parts[..] {
                    [one] => Ok(one.clone()),
                    parts => Ok(concat(&parts.iter().map(|part| part.as_ref()).collect::<Vec<_>>())?),
                }
            }
        }
    }

    /// Adds rows to an accumulator of the function.
    pub fn update(
        &self,
        groups: &mut dyn GroupsAccumulator,
        narrow: &RecordBatch,
        group_of: &[usize],
        count: usize,
    ) -> Result<()> {
        groups.update_batch(&self.expression.evaluate_args(narrow)?, group_of, None, count)
    }

    /// The ranks of the rows: `next(rank, rows before in the partition)` for the first row of a group of peers whose
    /// predecessors have the rank `rank`, 0 at the start of a partition.
    fn ranks(&self, narrow: &RecordBatch, starts: &[usize], next: impl Fn(u64, u64) -> u64) -> Result<ArrayRef> {
        let columns = self.expression.order_by_columns(narrow)?;
        let columns: Vec<ArrayRef> = columns.into_iter().map(|column| column.values).collect();
        let rows = narrow.num_rows();
        let mut peers = match columns.is_empty() {
            true => Vec::new(),
            false => partition(&columns)?.ranges().into_iter().map(|peers| peers.start).collect(),
        };
        peers.extend(starts);
        peers.sort_unstable();
        peers.dedup();
        let mut ranks = Vec::with_capacity(rows);
        let (mut later, mut start, mut rank) = (starts.iter().copied().peekable(), 0, 0);
        for peers in ranges(&peers, rows) {
            if let Some(first) = later.next_if_eq(&peers.start) {
                (start, rank) = (first, 0);
            }
            rank = next(rank, (peers.start - start) as u64);
            ranks.extend(peers.map(|_| rank));
        }
        Ok(Arc::new(UInt64Array::from(ranks)))
    }
}

impl Kind {
    fn of(expression: &dyn WindowExpr) -> Kind {
        if let Some(standard) = expression.as_any().downcast_ref::<StandardWindowExpr>() {
            let Some(function) = standard.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>() else {
                return Kind::Other;
            };
            let function = function.fun().inner();
            return match function.downcast_ref::<Rank>() {
                Some(rank) if *rank == Rank::basic() => Kind::Rank,
                Some(rank) if *rank == Rank::dense_rank() => Kind::DenseRank,
                _ if function.is::<RowNumber>() => Kind::RowNumber,
                _ => Kind::Other,
            };
        }
        let Some(plain) = expression.as_any().downcast_ref::<PlainAggregateWindowExpr>() else { return Kind::Other };
        let (frame, aggregate) = (expression.get_window_frame(), plain.get_aggregate_expr());
        // Without ORDER BY, all rows of a partition are peers of the current one.
        let is_all_peers = frame.units == WindowFrameUnits::Range && expression.order_by().is_empty();
        let is_whole = [&frame.start_bound, &frame.end_bound].into_iter().all(|bound| match bound {
            WindowFrameBound::CurrentRow => is_all_peers,
            bound => bound.is_unbounded(),
        });
        let is_grouped = aggregate.groups_accumulator_supported() && aggregate.order_bys().is_empty();
        match is_whole && is_grouped {
            true => Kind::Aggregate(Arc::new(aggregate.clone())),
            false => Kind::Other,
        }
    }
}

/// The function may have a FILTER. DataFusion shows the condition of an aggregate only in its debug format, as the last field.
fn has_filter(expression: &dyn WindowExpr) -> bool {
    !expression.as_any().is::<StandardWindowExpr>() && !format!("{expression:?}").ends_with("filter: None }")
}

/// The ranges of rows from each start to the next one.
fn ranges(starts: &[usize], rows: usize) -> impl Iterator<Item = Range<usize>> {
    starts.iter().copied().zip(starts.iter().skip(1).copied().chain(once(rows))).map(|(start, end)| start..end)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array, StringArray};
    use arrow::datatypes::{Int64Type, UInt64Type};
    use datafusion::functions_aggregate::count::count_udaf;
    use datafusion::functions_aggregate::sum::sum_udaf;
    use datafusion::functions_window::{rank, row_number};
    use datafusion::logical_expr::{WindowFrame, WindowFunctionDefinition, WindowUDF};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::{binary, col, lit};
    use datafusion::physical_plan::windows::create_window_expr;

    use super::*;

    /// Rows of the partitions 0, 0, 0, 1, 1 with a column that no function uses.
    fn rows() -> RecordBatch {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![4, 4, 6, 6, 7]));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["a"; 5]));
        RecordBatch::try_from_iter([("text", text), ("v", values)]).unwrap()
    }

    fn function(
        definition: WindowFunctionDefinition,
        order_by: &[PhysicalSortExpr],
        frame: WindowFrame,
        filter: Option<Arc<dyn PhysicalExpr>>,
    ) -> Functions {
        let schema = rows().schema();
        let column = col("v", &schema).unwrap();
        let args: &[_] = match &definition {
            WindowFunctionDefinition::WindowUDF(_) => &[],
            WindowFunctionDefinition::AggregateUDF(_) => &[column],
        };
        let (name, frame, input) = ("f".to_string(), Arc::new(frame), schema.clone());
        let expression =
            create_window_expr(&definition, name, args, &[], order_by, frame, input, false, false, filter).unwrap();
        Functions::new(&[expression], &schema, false).unwrap()
    }

    fn evaluate(functions: &Functions) -> ArrayRef {
        let rows = rows();
        functions.evaluate(&functions.narrow([&rows].into_iter()).unwrap(), &[0, 3]).unwrap().remove(0)
    }

    fn ranking(function_of: Arc<WindowUDF>) -> Vec<u64> {
        let order = PhysicalSortExpr::new_default(col("v", &rows().schema()).unwrap());
        let definition = WindowFunctionDefinition::WindowUDF(function_of);
        let functions = function(definition, &[order], WindowFrame::new(Some(false)), None);
        assert!(!matches!(functions.functions[0].kind, Kind::Other));
        evaluate(&functions).as_primitive::<UInt64Type>().values().to_vec()
    }

    #[test]
    fn ranks_restart_with_the_partition() {
        assert_eq!(ranking(row_number::row_number_udwf()), [1, 2, 3, 1, 2]);
        assert_eq!(ranking(rank::rank_udwf()), [1, 1, 3, 1, 2]);
        assert_eq!(ranking(rank::dense_rank_udwf()), [1, 1, 2, 1, 2]);
    }

    #[test]
    fn aggregates_of_whole_partitions_are_groups() {
        let sum = WindowFunctionDefinition::AggregateUDF(sum_udaf());
        let functions = function(sum, &[], WindowFrame::new(None), None);
        assert!(matches!(functions.functions[0].kind, Kind::Aggregate(_)));
        assert_eq!(functions.is_used, [false, true]);
        assert_eq!(functions.narrow_schema.field(0).data_type(), &DataType::Null);
        assert_eq!(evaluate(&functions).as_primitive::<Int64Type>().values(), &[14, 14, 14, 13, 13]);
    }

    #[test]
    fn a_filter_makes_a_function_opaque() {
        let schema = rows().schema();
        let filter = binary(col("v", &schema).unwrap(), datafusion::logical_expr::Operator::Gt, lit(4_i64), &schema);
        let count = WindowFunctionDefinition::AggregateUDF(count_udaf());
        let functions = function(count, &[], WindowFrame::new(None), Some(filter.unwrap()));
        assert!(functions.functions[0].is_opaque && matches!(functions.functions[0].kind, Kind::Other));
        assert_eq!(functions.is_used, [true, true]);
        assert_eq!(evaluate(&functions).as_primitive::<Int64Type>().values(), &[1, 1, 1, 2, 2]);
    }
}
