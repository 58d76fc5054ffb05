//! Intervals.
//!
//! Arrow compares months, days and times one after another: `40 days` is less than `1 month`. PostgreSQL counts 30 days
//! for a month and 24 hours for a day, so different intervals can be equal. [`OrderIntervals`] puts values with this order
//! in the place of intervals wherever rows are compared:
//!
//! | place | value |
//! |---|---|
//! | comparisons, IN, BETWEEN, CASE, joins, ORDER BY, PARTITION BY, `count(DISTINCT …)` | the number [`order`] |
//! | GROUP BY, DISTINCT, UNION | the number; one interval of each group is restored from its least key |
//! | `min`, `max`, `greatest`, `least` | the [`key`], from which the interval is restored |
//! | `sum`, `avg` | the sums of the parts, without overflow |
//!
//! Functions that could compare intervals in another way are errors.
//!
//! Arrays are compared by their keys ([`arrays::key`]) in the places of the first row of the table.
//!
//! [`PrepareIntervals`] runs before the types are resolved. A date plus an interval is a timestamp, as in PostgreSQL, unless
//! the interval is a literal of months and days: then the date is exact, and an index of dates is used. `extract` gets
//! PostgreSQL's parts of intervals.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::min_max::min_udaf;
use datafusion::logical_expr::expr::{
    AggregateFunction, Alias, Between, Case, InList, InSubquery, ScalarFunction, Sort, WindowFunction,
};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, Expr, ExprSchemable, Join, LogicalPlan, Operator, Projection, Subquery, Window,
    WindowFrameBound, WindowFrameUnits, cast, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::rewritten;
use crate::Error;
use crate::base::arrays::is_list;
use crate::base::intervals::INTERVAL;
use crate::base::tree::PlanTree;
use crate::values::arrays;
use crate::values::conversions::is_conversion;
use crate::values::eras;
use crate::values::intervals::{is_own, key, of_key, of_part_averages, of_part_sums, order, part, parts};
use crate::values::operators::date_operand;

/// The rule before the types are resolved.
#[derive(Debug)]
pub(in crate::plan) struct PrepareIntervals;

impl AnalyzerRule for PrepareIntervals {
    fn name(&self) -> &str {
        "prepare_intervals"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries_dyn(&mut |plan| rewritten(plan, prepared))?.data)
    }
}

/// The rule after the types are resolved.
#[derive(Debug)]
pub(in crate::plan) struct OrderIntervals;

impl AnalyzerRule for OrderIntervals {
    fn name(&self) -> &str {
        "order_intervals"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan
            .transform_up_with_subqueries_dyn(&mut |plan| rewritten(plan, ordered)?.transform_data(ordered_rows))?
            .data)
    }
}

fn is_interval(ty: &DataType) -> bool {
    matches!(ty, DataType::Interval(_))
}

/// True for intervals, and for arrays and structs of them.
fn has_intervals(ty: &DataType) -> bool {
    match ty {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_intervals(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_intervals(field.data_type())),
        DataType::Dictionary(_, values) => has_intervals(values),
        ty => is_interval(ty),
    }
}

fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::Unsupported(format!("{what} of intervals (use extract(epoch FROM interval), or a cast to TEXT)"))
}

/// Functions that compare arrays as Arrow does.
fn of_arrays(function: &str) -> Error {
    Error::Unsupported(format!("function {function} of arrays (use ORDER BY with LIMIT 1)"))
}

/// Dates beside intervals, and parts of intervals.
///
/// # Errors
/// `Unsupported` for parts that intervals do not have, and for frames with distances between intervals.
fn prepared(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right }) => {
            let types = (left.get_type(schema), right.get_type(schema));
            let (left, right, is_changed) = match types {
                (Ok(a), Ok(b)) => match (date_operand(&left, &a, &right, &b), date_operand(&right, &b, &left, &a)) {
                    (Some(left), _) => (Box::new(left), right, true),
                    (_, Some(right)) => (left, Box::new(right), true),
                    _ => (left, right, false),
                },
                // The type of a parameter may not be known yet.
                _ => (left, right, false),
            };
            let expr = Expr::BinaryExpr(BinaryExpr { left, op, right });
            Ok(Transformed::new(expr, is_changed, TreeNodeRecursion::Continue))
        }
        Expr::ScalarFunction(call) if call.func.name() == "date_part" => {
            if let [Expr::Literal(name, _), interval] = call.args.as_slice()
                && let Some(Some(name)) = name.try_as_str()
                && let Ok(ty @ (DataType::Interval(_) | DataType::Duration(_))) = interval.get_type(schema)
            {
                let interval = if ty == INTERVAL { interval.clone() } else { cast(interval.clone(), INTERVAL) };
                return Ok(Transformed::yes(part(name, interval)?));
            }
            if let [Expr::Literal(name, _), time] = call.args.as_slice()
                && let Some(Some(name)) = name.try_as_str()
                && eras::years(name).is_some()
            {
                let year = ScalarFunction { func: call.func.clone(), args: vec![lit("year"), time.clone()] };
                return Ok(match eras::of_year(name, Expr::ScalarFunction(year)) {
                    Some(era) => Transformed::yes(era),
                    None => Transformed::no(Expr::ScalarFunction(call)),
                });
            }
            Ok(Transformed::no(Expr::ScalarFunction(call)))
        }
        Expr::WindowFunction(call) => {
            let first = call.params.order_by.first().and_then(|sort| sort.expr.get_type(schema).ok());
            let has_offset = |bound: &WindowFrameBound| match bound {
                WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset) => !offset.is_null(),
                WindowFrameBound::CurrentRow => false,
            };
            let frame = &call.params.window_frame;
            match frame.units == WindowFrameUnits::Range
                && (has_offset(&frame.start_bound) || has_offset(&frame.end_bound))
                && first.is_some_and(|ty| is_interval(&ty))
            {
                true => Err(unsupported("frame RANGE with an offset over ORDER BY").into()),
                false => Ok(Transformed::no(Expr::WindowFunction(call))),
            }
        }
        other => Ok(Transformed::no(other)),
    }
}

/// True for types whose values are compared by a key, or not at all.
fn is_replaced(ty: &DataType) -> bool {
    has_intervals(ty) || is_list(ty)
}

/// The operand of a comparison: the number of an interval, the key of an array, or the operand itself.
///
/// # Errors
/// `Unsupported` for arrays and structs of intervals.
fn operand(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let ty = expr.get_type(schema)?;
    if is_interval(&ty) {
        return Ok(Transformed::yes(order(expr)));
    }
    match has_intervals(&ty) {
        true => Err(unsupported("comparison of arrays or structs").into()),
        false if is_list(&ty) => Ok(Transformed::yes(arrays::key(expr))),
        false => Ok(Transformed::no(expr)),
    }
}

fn boxed(expr: Expr, schema: &DFSchema) -> Result<Box<Expr>> {
    Ok(Box::new(operand(expr, schema)?.data))
}

/// Scalar functions that do not compare their arguments.
const PLAIN_FUNCTIONS: [&str; 24] = [
    "date_trunc",
    "to_char",
    "pg_typeof",
    "isfinite",
    "printf",
    "coalesce",
    "nvl2",
    "make_array",
    "struct",
    "named_struct",
    "get_field",
    "array_element",
    "array_length",
    "array_append",
    "array_prepend",
    "array_concat",
    "array_slice",
    "cardinality",
    "arrow_typeof",
    "arrow_cast",
    "date_bin",
    "generate_series",
    "range",
    "to_json",
];

/// Values with the order of intervals in comparisons.
fn ordered(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    // Rewritten expressions are new only if an operand is.
    let type_of = |expr: &Expr| expr.get_type(schema);
    let concerns = |exprs: &mut dyn Iterator<Item = &Expr>| -> Result<bool> {
        for expr in exprs {
            if is_replaced(&type_of(expr)?) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if concerns(&mut [&*left, &*right].into_iter())? => {
            if op.supports_propagation() || matches!(op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom) {
                let (left, right) = (boxed(*left, schema)?, boxed(*right, schema)?);
                return Ok(Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right })));
            }
            let is_interval = has_intervals(&type_of(&left)?) || has_intervals(&type_of(&right)?);
            if is_interval && !matches!(op, Operator::Plus | Operator::Minus | Operator::StringConcat) {
                return Err(unsupported(format!("operator {op}")).into());
            }
            Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        Expr::InList(InList { expr, list, negated }) if concerns(&mut std::iter::once(&*expr).chain(&list))? => {
            let list = list.into_iter().map(|item| Ok(operand(item, schema)?.data)).collect::<Result<Vec<_>>>()?;
            Transformed::yes(Expr::InList(InList { expr: boxed(*expr, schema)?, list, negated }))
        }
        Expr::Between(Between { expr, negated, low, high }) if concerns(&mut std::iter::once(&*expr))? => {
            let (expr, low, high) = (boxed(*expr, schema)?, boxed(*low, schema)?, boxed(*high, schema)?);
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated }) if concerns(&mut std::iter::once(&*expr))? => {
            let subquery = ordered_subquery(subquery)?;
            Transformed::yes(Expr::InSubquery(InSubquery { expr: boxed(*expr, schema)?, subquery, negated }))
        }
        Expr::SetComparison(mut comparison) if concerns(&mut std::iter::once(&*comparison.expr))? => {
            comparison.subquery = ordered_subquery(comparison.subquery)?;
            comparison.expr = boxed(*comparison.expr, schema)?;
            Transformed::yes(Expr::SetComparison(comparison))
        }
        Expr::Case(Case { expr: Some(compared), when_then_expr, else_expr })
            if concerns(&mut std::iter::once(&*compared))? =>
        {
            let branches = when_then_expr.into_iter().map(|(when, then)| Ok((boxed(*when, schema)?, then)));
            let when_then_expr = branches.collect::<Result<Vec<_>>>()?;
            let compared = Some(boxed(*compared, schema)?);
            Transformed::yes(Expr::Case(Case { expr: compared, when_then_expr, else_expr }))
        }
        Expr::ScalarFunction(call) if concerns(&mut call.args.iter())? => scalar_function(call, schema)?,
        Expr::AggregateFunction(mut call) if concerns(&mut call.params.order_by.iter().map(|sort| &sort.expr))? => {
            call.params.order_by = ordered_sorts(call.params.order_by, schema)?;
            Transformed::yes(Expr::AggregateFunction(call))
        }
        Expr::WindowFunction(mut call) => {
            let params = &mut call.params;
            let is_sorted = concerns(&mut params.order_by.iter().map(|sort| &sort.expr))?;
            if !is_sorted && !concerns(&mut params.partition_by.iter())? {
                return Ok(Transformed::no(Expr::WindowFunction(call)));
            }
            params.order_by = ordered_sorts(std::mem::take(&mut params.order_by), schema)?;
            let partitions = std::mem::take(&mut params.partition_by).into_iter();
            params.partition_by = partitions.map(|expr| Ok(operand(expr, schema)?.data)).collect::<Result<_>>()?;
            Transformed::yes(Expr::WindowFunction(call))
        }
        other => Transformed::no(other),
    })
}

fn ordered_sorts(sorts: Vec<Sort>, schema: &DFSchema) -> Result<Vec<Sort>> {
    let sort = |sort: Sort| Ok(Sort { expr: operand(sort.expr, schema)?.data, ..sort });
    sorts.into_iter().map(sort).collect()
}

/// A subquery with the numbers of its only column.
fn ordered_subquery(subquery: Subquery) -> Result<Subquery> {
    let plan = subquery.subquery.as_ref().clone();
    let column = Expr::Column(Column::from(plan.schema().qualified_field(0)));
    let (column, schema) = (operand(column, plan.schema())?.data, plan.schema().clone());
    let name = schema.field(0).name();
    let projection = Projection::try_new(vec![column.alias(name)], Arc::new(plan))?;
    Ok(subquery.with_plan(Arc::new(LogicalPlan::Projection(projection))))
}

fn scalar_function(mut call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let types = call.args.iter().map(|arg| arg.get_type(schema)).collect::<Result<Vec<_>>>()?;
    let has_intervals = types.iter().any(has_intervals);
    match call.func.name() {
        name @ ("greatest" | "least") if !has_intervals => Err(of_arrays(name).into()),
        name if name != "nullif" && !has_intervals => Ok(Transformed::no(Expr::ScalarFunction(call))),
        "greatest" | "least" => {
            if types.iter().any(|ty| *ty != INTERVAL) {
                return Err(unsupported(format!("function {}", call.func.name())).into());
            }
            call.args = std::mem::take(&mut call.args).into_iter().map(key).collect();
            Ok(Transformed::yes(of_key(Expr::ScalarFunction(call))))
        }
        "nullif" => {
            let [left, right] = call.args.as_slice() else { return Ok(Transformed::no(Expr::ScalarFunction(call))) };
            let (a, b) = (operand(left.clone(), schema)?.data, operand(right.clone(), schema)?.data);
            // NULL if the numbers are equal, else the interval.
            let null = lit(ScalarValue::try_from(&left.get_type(schema)?)?);
            let branches = vec![(Box::new(a.eq(b)), Box::new(null))];
            let case = Case { expr: None, when_then_expr: branches, else_expr: Some(Box::new(left.clone())) };
            Ok(Transformed::yes(Expr::Case(case)))
        }
        name if PLAIN_FUNCTIONS.contains(&name) || is_own(&call.func) || is_conversion(&call.func) => {
            Ok(Transformed::no(Expr::ScalarFunction(call)))
        }
        name => Err(unsupported(format!("function {name}")).into()),
    }
}

/// Values with the order of intervals in the places where plans compare rows.
fn ordered_rows(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let has_columns = |plan: &LogicalPlan| plan.schema().fields().iter().any(|field| has_intervals(field.data_type()));
    match plan {
        LogicalPlan::Sort(mut sort) => {
            let schema = sort.input.schema().clone();
            sort.expr = ordered_sorts(sort.expr, &schema)?;
            Ok(Transformed::yes(LogicalPlan::Sort(sort)))
        }
        LogicalPlan::Join(join) => ordered_join(join),
        LogicalPlan::Distinct(Distinct::All(input)) if has_columns(&input) => {
            let columns = input.schema().iter().map(|field| Expr::Column(Column::from(field))).collect();
            ordered_aggregate(Aggregate::try_new(input, columns, Vec::new())?)
        }
        LogicalPlan::Distinct(Distinct::On(mut on)) => {
            let schema = on.input.schema().clone();
            let exprs = std::mem::take(&mut on.on_expr).into_iter();
            on.on_expr = exprs.map(|expr| Ok(operand(expr, &schema)?.data)).collect::<Result<_>>()?;
            on.sort_expr = on.sort_expr.map(|sorts| ordered_sorts(sorts, &schema)).transpose()?;
            Ok(Transformed::yes(LogicalPlan::Distinct(Distinct::On(on))))
        }
        LogicalPlan::Aggregate(aggregate) => ordered_aggregate(aggregate),
        LogicalPlan::Window(window) => ordered_window(window),
        LogicalPlan::RecursiveQuery(ref query) if query.is_distinct && has_columns(&query.static_term) => {
            Err(unsupported("recursive UNION without ALL").into())
        }
        other => Ok(Transformed::no(other)),
    }
}

fn ordered_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let (left, right) = (join.left.schema().clone(), join.right.schema().clone());
    let mut is_changed = false;
    let mut ordered = |expr, schema: &DFSchema| -> Result<Expr> {
        let operand = operand(expr, schema)?;
        is_changed |= operand.transformed;
        Ok(operand.data)
    };
    let pairs = std::mem::take(&mut join.on).into_iter();
    join.on = pairs.map(|(a, b)| Ok((ordered(a, &left)?, ordered(b, &right)?))).collect::<Result<_>>()?;
    Ok(Transformed::new(LogicalPlan::Join(join), is_changed, TreeNodeRecursion::Continue))
}

/// The place of a result column below the projection that restores intervals.
struct Results {
    /// The expressions of the projection, in the order of the original columns.
    columns: Vec<Expr>,
    count: usize,
}

impl Results {
    /// A name for a column below the projection, which no other column has.
    fn name(&mut self) -> String {
        self.count += 1;
        format!("__interval_{}", self.count)
    }

    fn project(self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(self.columns, Arc::new(plan))?)))
    }
}

fn named(name: &str) -> Expr {
    Expr::Column(Column::from_name(name))
}

fn ordered_aggregate(mut aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let input = aggregate.input.schema().clone();
    // A repeated expression has one column.
    let mut distinct = Vec::with_capacity(aggregate.group_expr.len());
    for expr in std::mem::take(&mut aggregate.group_expr) {
        if !distinct.contains(&expr) {
            distinct.push(expr);
        }
    }
    aggregate.group_expr = distinct;
    let has = |expr: &Expr| -> Result<bool> { Ok(has_intervals(&expr.get_type(&input)?)) };
    let mut is_grouped = false;
    for expr in &aggregate.group_expr {
        if let Expr::GroupingSet(sets) = expr {
            for expr in sets.distinct_expr() {
                if has(expr)? {
                    return Err(unsupported("GROUPING SETS, ROLLUP or CUBE").into());
                }
            }
            continue;
        }
        is_grouped |= has(expr)?;
    }
    let mut is_computed = false;
    for expr in &aggregate.aggr_expr {
        let Some((call, _)) = aggregate_call(expr) else { continue };
        for arg in &call.params.args {
            is_computed |= has(arg)?;
        }
    }
    if !is_grouped && !is_computed {
        for expr in &aggregate.aggr_expr {
            if let Some((call, _)) = aggregate_call(expr) {
                Restored::of(call.func.name(), &call.params.args, call.params.distinct, &input)?;
            }
        }
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let schema = aggregate.schema.clone();
    let mut results = Results { columns: Vec::new(), count: 0 };
    let (mut groups, mut computed) = (Vec::new(), Vec::new());
    // Grouping sets have a column more than expressions: they are not changed.
    let group_columns = schema.fields().len() - aggregate.aggr_expr.len();
    let fields: Vec<_> = schema.iter().collect();
    let is_set = matches!(aggregate.group_expr.first(), Some(Expr::GroupingSet(_)));
    if is_set {
        groups = aggregate.group_expr;
        results.columns.extend(fields[..group_columns].iter().map(|&field| Expr::Column(Column::from(field))));
    } else {
        assert_eq!(aggregate.group_expr.len(), group_columns, "each group expression has one column");
        for (expr, &(qualifier, field)) in aggregate.group_expr.into_iter().zip(&fields) {
            if !has(&expr)? {
                results.columns.push(Expr::Column(Column::from((qualifier, field))));
                groups.push(expr);
                continue;
            }
            let expr = expr.unalias();
            let (group, least) = (results.name(), results.name());
            groups.push(operand(expr.clone(), &input)?.data.alias(group));
            computed.push(min_udaf().call(vec![key(expr)]).alias(&least));
            results.columns.push(of_key(named(&least)).alias_qualified(qualifier.cloned(), field.name()));
        }
    }
    for (expr, &(qualifier, field)) in aggregate.aggr_expr.into_iter().zip(&fields[group_columns..]) {
        let restored = match aggregate_call(&expr) {
            Some((call, _)) => restored_aggregate(call, &input, &mut results, &mut computed)?,
            None => None,
        };
        match restored {
            Some(restored) => results.columns.push(restored.alias_qualified(qualifier.cloned(), field.name())),
            None => {
                results.columns.push(Expr::Column(Column::from((qualifier, field))));
                computed.push(expr);
            }
        }
    }
    results.project(LogicalPlan::Aggregate(Aggregate::try_new(aggregate.input, groups, computed)?))
}

/// The aggregate function of an expression, with its alias.
fn aggregate_call(expr: &Expr) -> Option<(&AggregateFunction, Option<&Alias>)> {
    match expr {
        Expr::Alias(alias) => match alias.expr.as_ref() {
            Expr::AggregateFunction(call) => Some((call, Some(alias))),
            _ => None,
        },
        Expr::AggregateFunction(call) => Some((call, None)),
        _ => None,
    }
}

/// Functions that return their arguments as they are.
const PLAIN_AGGREGATES: [&str; 10] = [
    "count",
    "first_value",
    "last_value",
    "nth_value",
    "array_agg",
    "lag",
    "lead",
    "any_value",
    "string_agg",
    "string_agg_by_row",
];

/// How a function computes its result from functions of other arguments.
enum Restored {
    /// It does not compare or compute intervals.
    Plain,
    /// The arguments of `count(DISTINCT …)`.
    Numbers(Vec<Expr>),
    /// Of the key of its argument.
    Key(Expr),
    /// From the sums of the parts; an average with their number.
    Sums { parts: Box<[Expr; 3]>, counted: Option<Expr> },
}

impl Restored {
    fn of(name: &str, args: &[Expr], is_distinct: bool, input: &DFSchema) -> Result<Restored> {
        let types = args.iter().map(|arg| arg.get_type(input)).collect::<Result<Vec<_>>>()?;
        if !types.iter().any(has_intervals) {
            return match matches!(name, "min" | "max") && types.iter().any(is_list) {
                true => Err(of_arrays(name).into()),
                false => Ok(Restored::Plain),
            };
        }
        match (name, args, types.as_slice()) {
            ("count", _, _) if is_distinct => {
                let numbers = args.iter().map(|arg| Ok(operand(arg.clone(), input)?.data));
                Ok(Restored::Numbers(numbers.collect::<Result<_>>()?))
            }
            ("min" | "max", [arg], [INTERVAL]) => Ok(Restored::Key(key(arg.clone()))),
            ("sum", [arg], [INTERVAL]) if !is_distinct => {
                Ok(Restored::Sums { parts: Box::new(parts(arg)), counted: None })
            }
            ("avg", [arg], [INTERVAL]) if !is_distinct => {
                Ok(Restored::Sums { parts: Box::new(parts(arg)), counted: Some(arg.clone()) })
            }
            (name, ..) if PLAIN_AGGREGATES.contains(&name) && !is_distinct => Ok(Restored::Plain),
            (name, ..) => {
                Err(unsupported(format!("function {name}{}", if is_distinct { "(DISTINCT)" } else { "" })).into())
            }
        }
    }
}

/// The result of an aggregate function from columns of other ones, which are added to `computed`; `None` if the function
/// stays as it is.
fn restored_aggregate(
    call: &AggregateFunction,
    input: &DFSchema,
    results: &mut Results,
    computed: &mut Vec<Expr>,
) -> Result<Option<Expr>> {
    let mut column = |func: Option<_>, args: Vec<Expr>| {
        let mut call = call.clone();
        if let Some(func) = func {
            call.func = func;
        }
        call.params.args = args;
        let name = results.name();
        computed.push(Expr::AggregateFunction(call).alias(&name));
        named(&name)
    };
    let restored = Restored::of(call.func.name(), &call.params.args, call.params.distinct, input)?;
    Ok(match restored {
        Restored::Plain => None,
        Restored::Numbers(args) => Some(column(None, args)),
        Restored::Key(key) => Some(of_key(column(None, vec![key]))),
        Restored::Sums { parts, counted } => {
            let sum = crate::values::sum::shared();
            let sums = (*parts).map(|part| column(Some(sum.clone()), vec![part]));
            Some(match counted {
                None => of_part_sums(sums),
                Some(arg) => of_part_averages(sums, column(Some(count_udaf()), vec![arg])),
            })
        }
    })
}

fn ordered_window(window: Window) -> Result<Transformed<LogicalPlan>> {
    use datafusion::logical_expr::WindowFunctionDefinition as Definition;
    let input = window.input.schema().clone();
    let schema = window.schema.clone();
    let fields: Vec<_> = schema.iter().collect();
    let first = fields.len() - window.window_expr.len();
    let mut results = Results { columns: Vec::new(), count: 0 };
    results.columns.extend(fields[..first].iter().map(|&field| Expr::Column(Column::from(field))));
    let mut computed = Vec::new();
    let mut is_changed = false;
    for (expr, &(qualifier, field)) in window.window_expr.iter().zip(&fields[first..]) {
        let Expr::WindowFunction(call) = expr.clone().unalias() else {
            results.columns.push(Expr::Column(Column::from((qualifier, field))));
            computed.push(expr.clone());
            continue;
        };
        let WindowFunction { fun, params } = call.as_ref();
        let mut column = |fun: Option<Definition>, args: Vec<Expr>| {
            let mut call = call.clone();
            if let Some(fun) = fun {
                call.fun = fun;
            }
            call.params.args = args;
            let name = results.name();
            computed.push(Expr::WindowFunction(call).alias(&name));
            named(&name)
        };
        let restored = match Restored::of(fun.name(), &params.args, params.distinct, &input)? {
            Restored::Plain => None,
            Restored::Numbers(args) => Some(column(None, args)),
            Restored::Key(key) => Some(of_key(column(None, vec![key]))),
            Restored::Sums { parts, counted } => {
                let sum = Definition::AggregateUDF(crate::values::sum::shared());
                let sums = (*parts).map(|part| column(Some(sum.clone()), vec![part]));
                let count = Definition::AggregateUDF(count_udaf());
                Some(match counted {
                    None => of_part_sums(sums),
                    Some(arg) => of_part_averages(sums, column(Some(count), vec![arg])),
                })
            }
        };
        match restored {
            Some(restored) => {
                is_changed = true;
                results.columns.push(restored.alias_qualified(qualifier.cloned(), field.name()));
            }
            None => {
                results.columns.push(Expr::Column(Column::from((qualifier, field))));
                computed.push(expr.clone());
            }
        }
    }
    if !is_changed {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    results.project(LogicalPlan::Window(Window::try_new(computed, window.input)?))
}
