//! Rejects clauses that DataFusion parses and then ignores.
//!
//! A visitor walks over all queries, SELECTs and table factors of a statement, including subqueries, and stops at the
//! first such clause.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Join, JoinOperator, Query, Select,
    Statement, TableFactor, TableWithJoins, Visitor,
};

use super::with_queries::{NESTED_CHANGE, is_change};
use crate::sql::visit::walk;
use crate::{Error, Result};

/// Checks a statement before it is planned.
///
/// # Errors
/// `Unsupported` with the name of the clause.
pub(crate) fn check(statement: &Statement) -> Result<()> {
    match walk(statement, &mut Strict::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(what) => Err(Error::Unsupported(what)),
    }
}

#[derive(Default)]
struct Strict {
    /// For each open SELECT: whether FROM has outer joins.
    outer: Vec<bool>,
}

const SAMPLE: &str = "TABLESAMPLE (use WHERE random() < 0.01, for one row in a hundred)";

fn refuse_if(refused: bool, what: impl Into<String>) -> ControlFlow<String> {
    if refused { ControlFlow::Break(what.into()) } else { ControlFlow::Continue(()) }
}

impl Visitor for Strict {
    type Break = String;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        refuse_if(!query.locks.is_empty(), "FOR UPDATE and FOR SHARE in this statement")?;
        refuse_if(query.for_clause.is_some(), "FOR XML and FOR JSON")?;
        refuse_if(query.settings.is_some() || query.format_clause.is_some(), "SETTINGS and FORMAT of a query")?;
        refuse_if(is_change(query), NESTED_CHANGE)?;
        if let Some(fetch) = &query.fetch {
            refuse_if(fetch.percent, "FETCH … PERCENT")?;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<String> {
        self.outer.push(select.from.iter().any(has_outer_join));
        refuse_if(select.into.is_some(), "SELECT INTO (use CREATE TABLE … AS)")?;
        refuse_if(select.top.is_some(), "TOP (use LIMIT)")?;
        refuse_if(select.prewhere.is_some(), "PREWHERE")?;
        refuse_if(!select.lateral_views.is_empty(), "LATERAL VIEW")?;
        refuse_if(!select.connect_by.is_empty(), "CONNECT BY")
    }

    fn post_visit_select(&mut self, _: &Select) -> ControlFlow<String> {
        self.outer.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<String> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let FunctionArguments::List(list) = &function.args else { return ControlFlow::Continue(()) };
        let is_row = |arg: &FunctionArg| matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(_)));
        let Some(row) = list.args.iter().find(|arg| is_row(arg)) else { return ControlFlow::Continue(()) };
        // DataFusion counts all rows, those that an outer join adds included. Other functions take rows, or refuse them.
        if !function.name.to_string().eq_ignore_ascii_case("count") {
            return ControlFlow::Continue(());
        }
        let is_distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
        refuse_if(is_distinct, format!("count(DISTINCT {row}) (use its columns, or a subquery with DISTINCT)"))?;
        let is_optional = self.outer.last().copied().unwrap_or(false);
        refuse_if(is_optional, format!("count({row}) beside an outer join (use a column that is not NULL)"))
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<String> {
        match factor {
            TableFactor::Table { sample, version, partitions, with_hints, index_hints, .. } => {
                refuse_if(sample.is_some(), SAMPLE)?;
                refuse_if(version.is_some(), "FOR SYSTEM_TIME")?;
                refuse_if(!partitions.is_empty(), "PARTITION")?;
                refuse_if(!with_hints.is_empty() || !index_hints.is_empty(), "hints for tables")
            }
            TableFactor::Derived { sample, .. } => refuse_if(sample.is_some(), SAMPLE),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn has_outer_join(table: &TableWithJoins) -> bool {
    use JoinOperator as J;
    let is_inner = |join: &Join| matches!(join.join_operator, J::Join(_) | J::Inner(_) | J::CrossJoin(_));
    let is_nested = |factor: &TableFactor| match factor {
        TableFactor::NestedJoin { table_with_joins, .. } => has_outer_join(table_with_joins),
        _ => false,
    };
    let mut joins = table.joins.iter();
    is_nested(&table.relation) || joins.any(|join| !is_inner(join) || is_nested(&join.relation))
}
