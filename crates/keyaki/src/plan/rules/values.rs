//! Operators and casts with PostgreSQL's results.
//!
//! DataFusion's integers wrap, and its casts truncate. [`ReplaceOperators`] puts the functions of [`crate::values`] in
//! their place. It runs after the types are resolved, before the optimizer evaluates constants.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, Projection, cast, lit};
use datafusion::optimizer::AnalyzerRule;

use super::{lists, rewritten};
use crate::Error;
use crate::base::intervals::INTERVAL;
use crate::base::tree::PlanTree;
use crate::values::conversions::{conversion, is_conversion};
use crate::values::floats::Float;
use crate::values::functions::{arithmetic, canonical, is_own};
use crate::values::intervals;
use crate::values::templates::chrono_format;
use crate::values::zone::{STORED, Zone};

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct ReplaceOperators {
    /// The time zone of the session.
    pub zone: Zone,
}

impl AnalyzerRule for ReplaceOperators {
    fn name(&self) -> &str {
        "replace_operators"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries_dyn(&mut |plan| self.rewrite(plan, config))?.data)
    }
}

impl ReplaceOperators {
    fn rewrite(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<Transformed<LogicalPlan>> {
        let rewritten = rewritten(plan, |expr, schema| self.replace(expr, schema, config))?;
        Ok(match canonical_results(&rewritten.data)? {
            Some(plan) => Transformed::yes(plan),
            None => rewritten,
        })
    }

    fn replace(&self, expr: Expr, schema: &DFSchema, config: &ConfigOptions) -> Result<Transformed<Expr>> {
        let templated = with_chrono_format(expr)?;
        Ok(match self.replace_operator(&templated.data, schema, config)? {
            Some(expr) => Transformed::yes(expr),
            None => templated,
        })
    }

    fn replace_operator(&self, expr: &Expr, schema: &DFSchema, config: &ConfigOptions) -> Result<Option<Expr>> {
        if !self.zone.is_utc()
            && let Some(local) = self.localized(expr, schema, config)?
        {
            return Ok(Some(local));
        }
        Ok(match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (left.get_type(schema), right.get_type(schema)) {
                (Ok(INTERVAL), Ok(INTERVAL)) => intervals::arithmetic(left, *op, right),
                (Ok(a), Ok(b)) => arithmetic(left, *op, right, (&a, &b)),
                // The type of a parameter may not be known yet.
                _ => None,
            },
            // The difference to zero: of the smallest integer, it is an error, and of 0.0, it is not -0.0.
            Expr::Negative(operand) => match operand.get_type(schema) {
                Ok(INTERVAL) => Some(intervals::negate(operand.as_ref().clone())),
                Ok(ty) if ty.is_integer() || ty.is_floating() => {
                    arithmetic(&lit(ScalarValue::new_zero(&ty)?), Operator::Minus, operand, (&ty, &ty))
                }
                _ => None,
            },
            Expr::Literal(ScalarValue::Float64(Some(value)), metadata) if is_special(*value) => {
                let value = Float::canonical(*value);
                Some(Expr::Literal(ScalarValue::Float64(Some(value)), metadata.clone()))
            }
            Expr::Literal(ScalarValue::Float32(Some(value)), metadata) if is_special((*value).into()) => {
                let value = Float::canonical(*value);
                Some(Expr::Literal(ScalarValue::Float32(Some(value)), metadata.clone()))
            }
            Expr::Cast(cast) => match cast.expr.get_type(schema) {
                Ok(from) => conversion(&cast.expr, &from, cast.field.data_type(), false, self.zone),
                _ => None,
            },
            Expr::InList(list) if !matches!(list.expr.get_type(schema), Ok(INTERVAL)) => lists::split(list),
            Expr::TryCast(cast) => match cast.expr.get_type(schema) {
                Ok(from) => conversion(&cast.expr, &from, cast.field.data_type(), true, self.zone),
                _ => None,
            },
            Expr::ScalarFunction(call) if call.func.name() == "to_timestamp" && call.args.len() == 1 => {
                self.timestamp_of_number(expr, &call.args[0], schema)?
            }
            Expr::ScalarFunction(call)
                if !is_own(&call.func) && !is_conversion(&call.func) && !intervals::is_own(&call.func) =>
            {
                match expr.get_type(schema) {
                    Ok(DataType::Float32 | DataType::Float64) => Some(canonical(expr.clone())),
                    _ => None,
                }
            }
            _ => None,
        })
    }
}

/// Functions that read texts in a format.
const FORMATTING: [&str; 2] = ["to_date", "to_timestamp"];

/// Replaces PostgreSQL's templates in calls of these functions by formats of chrono.
fn with_chrono_format(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::ScalarFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
    let mut found = false;
    if FORMATTING.contains(&call.func.name()) {
        for format in call.args.iter_mut().skip(1) {
            if let Expr::Literal(template, _) = format
                && let Some(Some(template)) = template.try_as_str()
                && let Some(chrono) = chrono_format(template)?
            {
                *format = lit(chrono);
                found = true;
            }
        }
    }
    let call = Expr::ScalarFunction(call);
    Ok(if found { Transformed::yes(call) } else { Transformed::no(call) })
}

/// Functions that return one of their arguments.
const SELECTING: [&str; 8] = ["min", "max", "first_value", "last_value", "nth_value", "lag", "lead", "percentile_disc"];

/// Adds a projection above aggregates and windows that compute floats: the difference of infinities in a sum is a NaN that
/// is not canonical.
fn canonical_results(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let computed = match plan {
        LogicalPlan::Aggregate(aggregate) => &aggregate.aggr_expr,
        LogicalPlan::Window(window) => &window.window_expr,
        _ => return Ok(None),
    };
    let schema = plan.schema();
    let first = schema.fields().len() - computed.len();
    let is_computed = |i: usize, ty: &DataType| {
        i >= first && matches!(ty, DataType::Float32 | DataType::Float64) && !is_selecting(&computed[i - first])
    };
    if !schema.fields().iter().enumerate().any(|(i, field)| is_computed(i, field.data_type())) {
        return Ok(None);
    }
    let columns = schema.iter().enumerate().map(|(i, (qualifier, field))| {
        let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
        match is_computed(i, field.data_type()) {
            true => canonical(column).alias_qualified(qualifier.cloned(), field.name()),
            false => column,
        }
    });
    let projection = Projection::try_new(columns.collect(), Arc::new(plan.clone()))?;
    Ok(Some(LogicalPlan::Projection(projection)))
}

fn is_selecting(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_selecting(&alias.expr),
        Expr::AggregateFunction(call) => SELECTING.contains(&call.func.name()),
        Expr::WindowFunction(call) => SELECTING.contains(&call.fun.name()),
        _ => false,
    }
}

/// Functions whose results depend on the local time.
const LOCAL_FUNCTIONS: [&str; 5] = ["date_trunc", "date_part", "to_char", "date_bin", "to_local_time"];

impl ReplaceOperators {
    /// The expression in the time zone of the session; `None` if it does not depend on it.
    fn localized(&self, expr: &Expr, schema: &DFSchema, config: &ConfigOptions) -> Result<Option<Expr>> {
        let stored = |ty: &DataType| matches!(ty, DataType::Timestamp(_, Some(zone)) if **zone == *STORED);
        // DataFusion's functions use the zone of the type.
        let labelled = |operand: &Expr, ty: &DataType, zone: &str| match ty {
            DataType::Timestamp(unit, Some(_)) => {
                cast(operand.clone(), DataType::Timestamp(*unit, Some(zone.into()))) //
            }
            _ => operand.clone(),
        };
        let zone = self.zone.to_string();
        let changed = match expr {
            Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right }) => {
                let (Ok(a), Ok(b)) = (left.get_type(schema), right.get_type(schema)) else { return Ok(None) };
                let is_interval = |ty: &DataType| matches!(ty, DataType::Interval(_));
                if !(stored(&a) && is_interval(&b) || is_interval(&a) && stored(&b)) {
                    return Ok(None);
                }
                let (left, right) = (labelled(left, &a, &zone), labelled(right, &b, &zone));
                Expr::BinaryExpr(BinaryExpr::new(Box::new(left), *op, Box::new(right)))
            }
            Expr::ScalarFunction(call) if LOCAL_FUNCTIONS.contains(&call.func.name()) => {
                let mut call = call.clone();
                let mut found = false;
                for argument in &mut call.args {
                    let Ok(ty) = argument.get_type(schema) else { return Ok(None) };
                    if stored(&ty) {
                        *argument = labelled(argument, &ty, &zone);
                        found = true;
                    }
                }
                if !found {
                    return Ok(None);
                }
                Expr::ScalarFunction(call)
            }
            Expr::ScalarFunction(call) if ["current_date", "current_time"].contains(&call.func.name()) => {
                let now = datafusion::functions::datetime::now(config).call(Vec::new());
                let (from, to) = (now.get_type(schema)?, expr.get_type(schema)?);
                let local = DataType::Timestamp(TimeUnit::Nanosecond, None);
                return Ok(conversion(&now, &from, &local, false, self.zone).map(|now| cast(now, to)));
            }
            Expr::ScalarFunction(call) if call.func.name().starts_with("to_timestamp") => {
                return self.timestamp_of_text(expr, &call.args, schema);
            }
            _ => return Ok(None),
        };
        let ty = changed.get_type(schema)?;
        Ok(Some(labelled(&changed, &ty, STORED)))
    }

    /// `to_timestamp(seconds)` rounded to microseconds. DataFusion cuts the nanoseconds of a float.
    fn timestamp_of_number(&self, call: &Expr, seconds: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
        let from = seconds.get_type(schema)?;
        if !from.is_floating() && !from.is_decimal() {
            return Ok(None);
        }
        let micros = cast(seconds.clone(), DataType::Float64) * lit(1e6);
        let micros = conversion(&micros, &DataType::Float64, &DataType::Int64, false, self.zone);
        let ty = call.get_type(schema)?;
        Ok(micros.map(|micros| cast(cast(micros, DataType::Timestamp(TimeUnit::Microsecond, None)), ty)))
    }

    /// `to_timestamp(text)`, which DataFusion reads in UTC, as a cast.
    fn timestamp_of_text(&self, call: &Expr, args: &[Expr], schema: &DFSchema) -> Result<Option<Expr>> {
        let from = match args.first().map(|text| text.get_type(schema)) {
            Some(Ok(ty)) if ty.is_string() => ty,
            _ => return Ok(None),
        };
        match args {
            [text] => Ok(conversion(text, &from, &call.get_type(schema)?, false, self.zone)),
            _ => {
                let what = format!("to_timestamp with a format in the time zone {} (use UTC)", self.zone);
                Err(Error::Unsupported(what).into())
            }
        }
    }
}

/// True for values that may not be canonical.
fn is_special(value: f64) -> bool {
    value == 0.0 || value.is_nan()
}
