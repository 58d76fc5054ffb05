//! LATERAL: a subquery in FROM that refers to the tables before it becomes a join with its rows for all values of their
//! columns ([`Rewriter::for_all`]).

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, merge_schema, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, JoinConstraint, LogicalPlan, Projection, Subquery, SubqueryAlias};

use super::domain::Domain;
use super::references::{outer_columns, rename_outer, subquery_from};
use super::values::Input;
use super::{Rewriter, is_subquery_in, restricted, unsupported};

/// The subquery of a lateral join; `None` for other joins.
pub(super) fn lateral_of(join: &Join) -> Option<&Subquery> {
    let mut plan = join.right.as_ref();
    loop {
        match plan {
            LogicalPlan::SubqueryAlias(alias) => plan = &alias.input,
            LogicalPlan::Subquery(subquery) => return Some(subquery),
            _ => return None,
        }
    }
}

/// True for a lateral join.
pub(super) fn is_lateral(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Join(join) if lateral_of(join).is_some())
}

/// Marks a lateral join as one. DataFusion 55 omits the mark if only nested subqueries refer to the left input.
/// `is_outer`: a query further out has the column, too, to which the reference may belong.
pub(super) fn marked(mut join: Join, is_outer: impl Fn(&Column) -> bool) -> Result<Join> {
    let LogicalPlan::SubqueryAlias(alias) = join.right.as_ref() else { return Ok(join) };
    if lateral_of(&join).is_some() {
        return Ok(join);
    }
    let columns = outer_columns(&alias.input)?;
    if columns.iter().any(|column| join.left.schema().has_column(column) && !is_outer(column)) {
        let subquery = LogicalPlan::Subquery(subquery_from(alias.input.as_ref().clone()));
        let right = SubqueryAlias::try_new(Arc::new(subquery), alias.alias.clone())?;
        join.right = Arc::new(LogicalPlan::SubqueryAlias(right));
    }
    Ok(join)
}

/// Applies the conditions of a filter above a lateral join that use only its left input before the join, whose subquery is
/// then evaluated for fewer rows.
pub(super) fn before_lateral(filter: Filter) -> Result<LogicalPlan> {
    let LogicalPlan::Join(join) = filter.input.as_ref() else { return Ok(LogicalPlan::Filter(filter)) };
    let is_kept = matches!(join.join_type, JoinType::Inner | JoinType::Left);
    let schema = join.left.schema();
    let is_before = |condition: &Expr| {
        is_kept
            && !condition.is_volatile()
            && !condition.contains_outer()
            && !is_subquery_in(condition)
            && condition.column_refs().iter().all(|column| schema.has_column(column))
    };
    let (before, after): (Vec<Expr>, Vec<Expr>) =
        split_conjunction_owned(filter.predicate.clone()).into_iter().partition(is_before);
    let Some(before) = conjunction(before) else { return Ok(LogicalPlan::Filter(filter)) };
    let mut join = join.clone();
    join.left = Arc::new(LogicalPlan::Filter(Filter::try_new(before, join.left)?));
    let join = LogicalPlan::Join(join);
    Ok(match conjunction(after) {
        Some(after) => LogicalPlan::Filter(Filter::try_new(after, Arc::new(join))?),
        None => join,
    })
}

impl Rewriter {
    /// Rewrites a lateral join, whose subquery refers to its left input only.
    ///
    /// # Errors
    /// `NotImplemented` for the forms that [`Rewriter::for_all`] does not support, and for RIGHT and FULL joins.
    pub(super) fn lateral(&mut self, join: &Join) -> Result<LogicalPlan> {
        let Some(subquery) = lateral_of(join) else { return Ok(LogicalPlan::Join(join.clone())) };
        if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
            let kind = join.join_type.to_string().to_uppercase();
            return Err(unsupported(format!("LATERAL with a {kind} join (use CROSS JOIN, JOIN or LEFT JOIN)")));
        }
        let plan = &subquery.subquery;
        let columns = outer_columns(plan)?;
        let mut input = Input::with_columns(&join.left, columns.clone(), self);
        let (domain, rows) = match columns.is_empty() {
            true => (None, plan.as_ref().clone()),
            false => {
                let domain = self.domain(&mut input, columns)?;
                let rows = self.for_all(plan, &domain)?;
                (Some(domain), rows)
            }
        };
        let mut columns = domain.as_ref().map(Domain::expressions).unwrap_or_default();
        let own = plan.schema().columns().into_iter().zip(join.right.schema().columns());
        columns.extend(own.map(|(own, shown)| Expr::Column(own).alias_qualified(shown.relation, shown.name)));
        let rows = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?);
        let on = domain.iter().flat_map(|domain| &domain.columns);
        let on = on.map(|(outer, new)| (Expr::Column(outer.clone()), Expr::Column(new.clone()))).collect();
        // The keys of the join take NULL for a value, the conditions of ON do not.
        let equalities = join.on.iter().map(|(left, right)| left.clone().eq(right.clone()));
        let filter = conjunction(equalities.chain(join.filter.clone()));
        let nulls = NullEquality::NullEqualsNull;
        let joined = Join::try_new(
            Arc::new(input.finish()?),
            Arc::new(rows),
            on,
            filter,
            join.join_type,
            JoinConstraint::On,
            nulls,
            false,
        )?;
        restricted(LogicalPlan::Join(joined), &join.schema)
    }

    /// A lateral join in a correlated subquery, for all values of the domain.
    pub(super) fn lateral_for_all(&mut self, join: &Join, domain: &Domain) -> Result<LogicalPlan> {
        let Some(subquery) = lateral_of(join) else { return Ok(LogicalPlan::Join(join.clone())) };
        let scope: DFSchema = merge_schema(&[&join.left, &join.right]);
        let left = self.for_all(&join.left, domain)?;
        // The outer values are columns of the left input now.
        let of_domain = |column: &Column| match join.left.schema().has_column(column) {
            true => None,
            false => domain.columns.iter().find(|(outer, _)| outer == column).map(|(_, new)| new.clone()),
        };
        let plan = rename_outer(subquery.subquery.as_ref().clone(), &of_domain)?;
        let right = aliased_as(&join.right, LogicalPlan::Subquery(subquery_from(plan)))?;
        let bind_pair = |(left, right): &(Expr, Expr)| {
            Ok((domain.bind(left.clone(), &scope)?, domain.bind(right.clone(), &scope)?))
        };
        let on = join.on.iter().map(bind_pair).collect::<Result<Vec<_>>>()?;
        let filter = join.filter.clone().map(|filter| domain.bind(filter, &scope)).transpose()?;
        let (left, right, nulls) = (Arc::new(left), Arc::new(right), join.null_equality);
        let joined = Join::try_new(left, right, on, filter, join.join_type, JoinConstraint::On, nulls, false)?;
        self.lateral(&joined)
    }
}

/// `plan` in the place of the subquery below the aliases of `model`.
fn aliased_as(model: &LogicalPlan, plan: LogicalPlan) -> Result<LogicalPlan> {
    match model {
        LogicalPlan::SubqueryAlias(alias) => {
            let input = aliased_as(&alias.input, plan)?;
            model.with_new_exprs(Vec::new(), vec![input])
        }
        _ => Ok(plan),
    }
}
