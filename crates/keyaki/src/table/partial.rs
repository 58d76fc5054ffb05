//! Implication of the predicates of partial indexes by the filters of a query.
//!
//! A partial index lacks the rows for which its predicate is not true. It answers a query whose filters are true for no such
//! row. A list of conditions *implies* another condition if that is
//!
//! - one of them, or true,
//! - an AND of implied conditions, or an OR with an implied one,
//! - true for all values of a column to which the list bounds it: `status = 'open'` implies `status IN ('open', 'new')`, and
//!   `n > 5` implies `n IS NOT NULL`.
//!
//! Conversely, a filter that the predicate implies is true for every row of the index, and need not be evaluated.
//!
//! *Invariant.* An implied condition is true, not null, for each row for which the conditions of the list are true. Parameters
//! imply nothing.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};

use super::ranges::covers;
use crate::base::tree::Tree;
use crate::catalog::Table;

/// For each filter, true if each row of the index passes it. `None` if the index may lack rows that pass the filters.
/// `resolve` maps a column of the filters to a table column.
pub(crate) fn implied_filters(
    table: &Table,
    index: usize,
    filters: &[Expr],
    resolve: &dyn Fn(&Column) -> Option<usize>,
) -> Option<Vec<bool>> {
    // Predicates that could not be compiled select no index.
    let Some(predicate) = table.predicate(index).ok()? else { return Some(vec![false; filters.len()]) };
    let filters: Vec<Expr> = filters.iter().map(|filter| over_table(filter, table, resolve)).collect();
    let given: Vec<Expr> = filters.iter().cloned().flat_map(split_conjunction_owned).collect();
    let is_usable = implies_all(table, &given, &predicate.conjuncts);
    is_usable.then(|| filters.iter().map(|filter| implies(table, &predicate.conjuncts, filter)).collect())
}

/// True if `given` implies all of `conditions`. Both are over the unqualified columns of the table.
pub(crate) fn implies_all(table: &Table, given: &[Expr], conditions: &[Expr]) -> bool {
    conditions.iter().all(|condition| implies(table, given, condition))
}

/// The filter with the columns of the table in place of those of the query.
pub(super) fn over_table(filter: &Expr, table: &Table, resolve: &dyn Fn(&Column) -> Option<usize>) -> Expr {
    let replaced = filter.clone().transform_up_dyn(&mut |expr| {
        let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
        let def = resolve(column).and_then(|position| table.def.columns.get(position));
        Ok(match def {
            Some(def) => Transformed::yes(Expr::Column(Column::new_unqualified(&def.name))),
            None => Transformed::no(expr),
        })
    });
    // The closure never fails.
    replaced.map_or_else(|_| filter.clone(), |replaced| replaced.data)
}

fn implies(table: &Table, given: &[Expr], condition: &Expr) -> bool {
    let implied = |condition: &Expr| implies(table, given, condition);
    match condition {
        _ if given.contains(condition) => true,
        Expr::Literal(ScalarValue::Boolean(Some(true)), _) => true,
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => implied(left) && implied(right),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) if implied(left) || implied(right) => true,
        _ => is_covered(table, given, condition),
    }
}

/// True if the values to which `given` bounds the only column of the condition satisfy it.
fn is_covered(table: &Table, given: &[Expr], condition: &Expr) -> bool {
    let mut columns = condition.column_refs().into_iter();
    let (Some(column), None) = (columns.next(), columns.next()) else { return false };
    let is_column = |other: &Column| other.relation.is_none() && other.name == column.name;
    table.column(&column.name).is_ok_and(|position| {
        let def = &table.def.columns[position];
        is_column(column) && covers(def.ty.column, def.nullable, given, condition, &is_column)
    })
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{col, lit};

    use super::*;

    /// A table with the nullable columns `n` (BIGINT) and `s` (TEXT), and the column `k` (BIGINT), which is not nullable.
    fn table() -> Table {
        let column = |name: &str, ty: &str, nullable: bool| {
            format!(
                r#"{{"name":"{name}","ty":{{"column":"{ty}","max_chars":null}},"nullable":{nullable},"default":null}}"#
            )
        };
        let columns = [column("n", "BIGINT", true), column("s", "TEXT", true), column("k", "BIGINT", false)].join(",");
        let def = format!(
            r#"{{"name":"t","tree":16,"columns":[{columns}],"primary_key":[2],"hidden_rowid":false,"indexes":[]}}"#
        );
        Table::new(serde_json::from_str(&def).unwrap(), None).unwrap()
    }

    fn assert_implied(given: &[Expr], condition: Expr, expected: bool) {
        assert_eq!(implies(&table(), given, &condition), expected, "{given:?} implies {condition}");
    }

    #[test]
    fn values_of_a_column_imply_conditions() {
        let open = || col("s").eq(lit("open"));
        assert_implied(&[open()], open(), true);
        assert_implied(&[open()], col("s").in_list(vec![lit("open"), lit("new")], false), true);
        assert_implied(&[col("s").in_list(vec![lit("open"), lit("new")], false)], open(), false);
        assert_implied(&[open()], col("s").not_eq(lit("closed")), true);
        assert_implied(&[col("n").gt(lit(5_i64))], col("n").gt_eq(lit(5_i64)), true);
        assert_implied(&[col("n").gt_eq(lit(5_i64))], col("n").gt(lit(5_i64)), false);
        assert_implied(&[col("n").gt(lit(5_i64)), col("n").lt(lit(7_i64))], col("n").eq(lit(6_i64)), false);
        assert_implied(
            &[col("n").gt(lit(5_i64)), col("n").lt(lit(9_i64))],
            col("n").between(lit(5_i64), lit(9_i64)),
            true,
        );
        assert_implied(&[col("n").gt(lit(5_i64))], col("k").gt(lit(5_i64)), false);
    }

    #[test]
    fn null_is_not_true() {
        assert_implied(&[col("n").gt(lit(5_i64))], col("n").is_not_null(), true);
        assert_implied(&[col("n").is_not_null()], col("n").gt(lit(5_i64)), false);
        // Without a filter, a nullable column may be null.
        assert_implied(&[], col("n").is_not_null(), false);
        assert_implied(&[], col("k").is_not_null(), true);
        assert_implied(&[col("n").is_null()], col("n").not_eq(lit(5_i64)), false);
        assert_implied(&[col("n").not_eq(lit(5_i64))], col("n").is_not_null(), true);
        assert_implied(&[col("n").is_null()], col("n").lt(lit(5_i64)).or(col("n").is_null()), true);
        assert_implied(&[col("n").is_null().or(col("n").eq(lit(1_i64)))], col("n").is_not_null(), false);
        assert_implied(&[col("n").eq(lit(ScalarValue::Int64(None)))], col("n").eq(lit(1_i64)), true);
    }

    #[test]
    fn conjunctions_and_disjunctions_follow_their_parts() {
        let (a, b) = (col("n").gt(lit(5_i64)), col("s").eq(lit("open")));
        assert_implied(std::slice::from_ref(&a), a.clone().or(b.clone()), true);
        assert_implied(std::slice::from_ref(&a), a.clone().and(b.clone()), false);
        assert_implied(&[a.clone(), b.clone()], a.clone().and(b.clone()), true);
        assert_implied(&[a.clone().or(b.clone())], a.clone(), false);
        assert_implied(&[a.clone().or(b.clone())], a.or(b), true);
        assert_implied(&[], lit(true), true);
        assert_implied(&[], lit(false), false);
    }

    #[test]
    fn parameters_and_columns_of_other_tables_imply_nothing() {
        let parameter = datafusion::logical_expr::expr::Placeholder::new_with_field("$1".into(), None);
        assert_implied(&[col("s").eq(Expr::Placeholder(parameter))], col("s").is_not_null(), false);
        let other = Expr::Column(Column::new(Some("u"), "s"));
        assert_implied(&[other.eq(lit("open"))], col("s").eq(lit("open")), false);
    }
}
