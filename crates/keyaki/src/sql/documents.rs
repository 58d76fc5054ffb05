//! Which texts of a plan are JSON documents.
//!
//! Texts and documents have the same type in DataFusion. `to_json` makes a string of a text, and leaves a document as it
//! is; `||` joins texts, and merges documents. Columns of type JSON and functions of JSON
//! have documents, and so have the operators above them. A literal beside documents is one, too, if it can be.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::grouping_set_to_exprlist;
use datafusion::logical_expr::{BinaryExpr, Distinct, Expr, JoinType, LogicalPlan, Operator, Subquery};

use crate::JsonType;
use crate::base::json_fields::{holds_texts, json_type, with_json_type};
use crate::base::tree::{PlanTree, Tree};
use crate::table::KeyakiTable;
use crate::values::json::build::{Kind, TO_JSON, call, of_documents};
use crate::values::json::{Documents as Returned, is_valid, returned};
use crate::values::untyped::marked;

/// Functions whose result is one of their arguments, or one of the elements of their first argument.
const CHOICES: [&str; 7] = ["array_element", "coalesce", "greatest", "least", "make_array", "nullif", "unnest"];
/// Aggregate and window functions whose results are values of their first argument, or arrays of them.
const SELECTIONS: [&str; 13] = [
    "any_value",
    "array_agg",
    "first_value",
    "lag",
    "last_value",
    "lead",
    "max",
    "min",
    "mode",
    "mode_desc",
    "nth_value",
    "string_agg",
    "string_agg_by_row",
];

/// Replaces `to_json` and `||` with documents as arguments.
///
/// # Errors
/// None is expected.
pub(super) fn kept(plan: LogicalPlan) -> Result<LogicalPlan> {
    let is_call = |expr: &Expr| match expr {
        Expr::ScalarFunction(call) => call.func.name() == TO_JSON,
        Expr::BinaryExpr(binary) => binary.op == Operator::StringConcat,
        _ => false,
    };
    let mut has_calls = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        node.apply_expressions_dyn(&mut |expr| {
            has_calls |= expr.exists_dyn(&mut |expr| Ok(is_call(expr)))?;
            Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
        })
    })?;
    if !has_calls {
        return Ok(plan);
    }
    within(plan, &[], &[])
}

/// For each column of a plan, the type of its documents; `None` for columns without documents or arrays of documents.
pub(super) fn columns(plan: &LogicalPlan) -> Vec<Option<JsonType>> {
    (0..plan.schema().fields().len())
        .map(|column| Documents { outer: &[], recursive: &[] }.output(plan, column))
        .collect()
}

/// The schema of the result of a plan, whose documents are marked ([`json_type`]).
pub(super) fn typed(schema: SchemaRef, plan: &LogicalPlan) -> SchemaRef {
    let explains = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_));
    if explains || !schema.fields().iter().any(|field| holds_texts(field.data_type())) {
        return schema;
    }
    let documents = columns(plan);
    if documents.iter().all(Option::is_none) {
        return schema;
    }
    let fields = schema.fields().iter().zip(documents);
    let fields = fields.map(|(field, json)| with_json_type(field, json));
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Replaces the calls within a plan in the expressions of whose queries the rows of `outer` are known, the innermost last.
fn within(plan: LogicalPlan, outer: &[Arc<LogicalPlan>], recursive: &[Recursion]) -> Result<LogicalPlan> {
    if let LogicalPlan::RecursiveQuery(mut query) = plan {
        query.static_term = Arc::new(within(Arc::unwrap_or_clone(query.static_term), outer, recursive)?);
        let own = [recursive, &[(query.name.clone(), query.static_term.clone())]].concat();
        query.recursive_term = Arc::new(within(Arc::unwrap_or_clone(query.recursive_term), outer, &own)?);
        return Ok(LogicalPlan::RecursiveQuery(query));
    }
    let plan = plan.map_children(|child| Ok(Transformed::yes(within(child, outer, recursive)?)))?.data;
    let inputs: Vec<Arc<LogicalPlan>> = plan.inputs().into_iter().cloned().map(Arc::new).collect();
    let all = [outer, &inputs].concat();
    let documents = Documents { outer, recursive };
    let names = NamePreserver::new(&plan);
    let replaced = plan.map_expressions_dyn(&mut |expr| {
        let name = names.save(&expr);
        let inputs: Vec<&LogicalPlan> = inputs.iter().map(Arc::as_ref).collect();
        let expr = expr.transform_up_dyn(&mut |expr| match expr {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right })
                if documents.common_type([&*left, &*right].into_iter(), &inputs).is_some()
                    && !is_null(&left)
                    && !is_null(&right) =>
            {
                Ok(Transformed::yes(call(Kind::Concat, vec![*left, *right])))
            }
            Expr::ScalarFunction(mut call) if call.func.name() == TO_JSON => {
                if !call.args.iter().all(|arg| documents.type_of(arg, &inputs).is_some()) {
                    return Ok(Transformed::no(Expr::ScalarFunction(call)));
                }
                call.func = Arc::new(of_documents());
                Ok(Transformed::yes(Expr::ScalarFunction(call)))
            }
            Expr::ScalarSubquery(subquery) => {
                Ok(Transformed::yes(Expr::ScalarSubquery(nested(subquery, &all, recursive)?)))
            }
            Expr::Exists(mut exists) => {
                exists.subquery = nested(exists.subquery, &all, recursive)?;
                Ok(Transformed::yes(Expr::Exists(exists)))
            }
            Expr::InSubquery(mut list) => {
                list.subquery = nested(list.subquery, &all, recursive)?;
                Ok(Transformed::yes(Expr::InSubquery(list)))
            }
            Expr::SetComparison(mut comparison) => {
                comparison.subquery = nested(comparison.subquery, &all, recursive)?;
                Ok(Transformed::yes(Expr::SetComparison(comparison)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(expr.update_data(|expr| name.restore(expr)))
    })?;
    Ok(replaced.data)
}

fn nested(subquery: Subquery, outer: &[Arc<LogicalPlan>], recursive: &[Recursion]) -> Result<Subquery> {
    let plan = within(Arc::unwrap_or_clone(subquery.subquery), outer, recursive)?;
    Ok(Subquery { subquery: Arc::new(plan), ..subquery })
}

/// The name of a recursive query, and its first term.
type Recursion = (String, Arc<LogicalPlan>);

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if value.is_null())
}

/// True for a literal that can be a document.
fn can_be_document(expr: &Expr) -> bool {
    let literal = marked(expr).unwrap_or(expr);
    matches!(literal, Expr::Literal(value, _) if value.try_as_str().flatten().is_some_and(is_valid))
}

/// Finds documents in queries within others.
#[derive(Clone, Copy)]
struct Documents<'a> {
    /// The inputs of the enclosing queries, the innermost last.
    outer: &'a [Arc<LogicalPlan>],
    /// The recursive queries whose recursive terms these are.
    recursive: &'a [Recursion],
}

impl Documents<'_> {
    /// The type of the documents that are the values of an expression over the rows of `inputs`; `None` for other values.
    fn type_of(self, expr: &Expr, inputs: &[&LogicalPlan]) -> Option<JsonType> {
        match expr {
            Expr::Alias(alias) => self.type_of(&alias.expr, inputs),
            Expr::Column(column) => inputs.iter().find_map(|input| self.column(input, column)),
            Expr::OuterReferenceColumn(_, column) => {
                let named = |plan: &&Arc<LogicalPlan>| position(plan.schema(), column).is_some();
                self.outer.iter().rev().find(named).and_then(|plan| self.column(plan, column))
            }
            Expr::ScalarFunction(call) if CHOICES.contains(&call.func.name()) => {
                let args = match call.func.name() {
                    "array_element" | "nullif" => &call.args[..1],
                    _ => &call.args[..],
                };
                self.common_type(args.iter(), inputs)
            }
            Expr::ScalarFunction(call) => match returned(call.func.name())? {
                Returned::Always(json) => Some(json),
                Returned::AsArguments => {
                    let types = call.args.iter().map(|arg| self.type_of(arg, inputs));
                    Some(types.flatten().next().unwrap_or(JsonType::Json))
                }
            },
            Expr::AggregateFunction(call) if SELECTIONS.contains(&call.func.name()) => {
                call.params.args.first().and_then(|arg| self.type_of(arg, inputs))
            }
            Expr::WindowFunction(call) if SELECTIONS.contains(&call.fun.name()) => {
                call.params.args.first().and_then(|arg| self.type_of(arg, inputs))
            }
            Expr::Case(case) => {
                let results = case.when_then_expr.iter().map(|(_, then)| then.as_ref());
                self.common_type(results.chain(case.else_expr.as_deref()), inputs)
            }
            Expr::Unnest(unnest) => self.type_of(&unnest.expr, inputs),
            Expr::ScalarSubquery(subquery) => {
                let outer: Vec<_> = inputs.iter().map(|input| Arc::new((*input).clone())).collect();
                let outer = [self.outer, &outer].concat();
                Documents { outer: &outer, ..self }.output(&subquery.subquery, 0)
            }
            _ => None,
        }
    }

    /// The type of the first document, if the other values are documents, NULL or literals that can be documents.
    fn common_type<'e>(self, values: impl Iterator<Item = &'e Expr>, inputs: &[&LogicalPlan]) -> Option<JsonType> {
        let mut found = None;
        for value in values {
            match self.type_of(value, inputs) {
                Some(json) => found = found.or(Some(json)),
                None if !is_null(value) && !can_be_document(value) => return None,
                None => {}
            }
        }
        found
    }

    fn column(self, plan: &LogicalPlan, column: &Column) -> Option<JsonType> {
        position(plan.schema(), column).and_then(|position| self.output(plan, position))
    }

    /// The type of the documents of a column of the result of a plan; `None` for other columns.
    fn output(self, plan: &LogicalPlan, column: usize) -> Option<JsonType> {
        let of = |expr: Option<&Expr>, input: &LogicalPlan| expr.and_then(|expr| self.type_of(expr, &[input]));
        match plan {
            LogicalPlan::Projection(node) => of(node.expr.get(column), &node.input),
            LogicalPlan::Aggregate(node) => {
                let groups = grouping_set_to_exprlist(&node.group_expr).unwrap_or_default();
                let others = node.schema.fields().len() - node.aggr_expr.len();
                match column.checked_sub(others) {
                    Some(aggregate) => of(node.aggr_expr.get(aggregate), &node.input),
                    None => of(groups.get(column).copied(), &node.input),
                }
            }
            LogicalPlan::Window(node) => match column.checked_sub(node.input.schema().fields().len()) {
                Some(window) => of(node.window_expr.get(window), &node.input),
                None => self.output(&node.input, column),
            },
            LogicalPlan::Distinct(Distinct::On(node)) => of(node.select_expr.get(column), &node.input),
            LogicalPlan::Join(node) => {
                let left = match node.join_type {
                    JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => 0,
                    _ => node.left.schema().fields().len(),
                };
                match column.checked_sub(left) {
                    Some(column) if column >= node.right.schema().fields().len() => None,
                    Some(column) => self.output(&node.right, column),
                    None => self.output(&node.left, column),
                }
            }
            LogicalPlan::Union(node) => {
                let types: Option<Vec<_>> = node.inputs.iter().map(|input| self.output(input, column)).collect();
                types?.first().copied()
            }
            LogicalPlan::RecursiveQuery(node) => self.output(&node.static_term, column),
            LogicalPlan::Unnest(node) => {
                node.dependency_indices.get(column).and_then(|input| self.output(&node.input, *input))
            }
            LogicalPlan::Values(node) => self.common_type(node.values.iter().filter_map(|row| row.get(column)), &[]),
            LogicalPlan::TableScan(scan) => {
                let source = scan.projection.as_ref().map_or(Some(column), |kept| kept.get(column).copied());
                let source = source?;
                if let Some(view) = scan.source.get_logical_plan() {
                    return self.output(&view, source);
                }
                let own = self.recursive.iter().rev().find(|(name, _)| scan.table_name.table() == *name);
                if let Some((_, first)) = own {
                    return self.output(first, source);
                }
                let provider = source_as_provider(&scan.source).ok()?;
                match provider.downcast_ref::<KeyakiTable>() {
                    Some(table) => table.table.def.columns.get(source).and_then(|column| column.ty.json),
                    // The rows of RETURNING.
                    None => scan.source.schema().fields().get(source).and_then(|field| json_type(field)),
                }
            }
            LogicalPlan::Subquery(node) => self.output(&node.subquery, column),
            other => match &other.inputs()[..] {
                [input] if input.schema().fields().len() == other.schema().fields().len() => self.output(input, column),
                _ => None,
            },
        }
    }
}

fn position(schema: &DFSchema, column: &Column) -> Option<usize> {
    schema.maybe_index_of_column(column)
}
