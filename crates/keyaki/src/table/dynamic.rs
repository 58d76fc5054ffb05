//! Filters of hash joins over the rows that they probe.
//!
//! When the build sides of a join are complete, DataFusion gives the scans of the probe side the range of the keys, and a
//! list of the keys or lookups in the hash tables:
//!
//! ```text
//! CASE hash(key) % 2 WHEN 0 THEN key >= 1 AND key <= 9 AND lookup(key) WHEN 1 THEN … ELSE false END
//! ```
//!
//! The CASE divides each batch, and the join looks up the rows that pass again: together this takes longer than to join
//! all rows in the range. Joins with one key of a type with sets of keys give a [`KeySetExpr`] instead
//! ([`super::key_set`]). [`without_lookups`] reduces the filters of others to the range of all keys. Lists of keys
//! stay, because they are short and select few rows. Where the keys lead the key of the scanned tree, their range
//! limits the pages that are read ([`bounds`]).

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, Operator, binary_expr, ident};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_plan::expressions::{BinaryExpr, CaseExpr, Column, Literal, lit};
use datafusion::physical_plan::joins::{HashExpr, HashTableLookupExpr};

use super::key_set::KeySetExpr;
use crate::base::tree::Tree;

/// A condition that is true wherever `filter`, the current state of a dynamic filter, is.
pub(super) fn without_lookups(filter: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    if let Some(binary) = filter.downcast_ref::<BinaryExpr>()
        && matches!(binary.op(), Operator::And | Operator::Or)
    {
        let [left, right] = [binary.left(), binary.right()].map(|side| without_lookups(side.clone()));
        return Arc::new(BinaryExpr::new(left, *binary.op(), right));
    }
    if let Some(case) = filter.downcast_ref::<CaseExpr>()
        && let Some(range) = range_of(case)
    {
        return range;
    }
    filter
}

/// The comparisons of columns with literals among the conjuncts of `filter`, the current state of a dynamic filter. The columns
/// have their index as name.
pub(super) fn bounds(filter: Arc<dyn PhysicalExpr>) -> Vec<Expr> {
    let filter = without_lookups(filter);
    let bounds = split_conjunction(&filter).into_iter().flat_map(|conjunct| {
        let bounds = match conjunct.downcast_ref::<KeySetExpr>() {
            Some(keys) => Bound::of_keys(keys),
            None => Bound::of(conjunct).into_iter().collect(),
        };
        bounds.into_iter().filter_map(|Bound { key, op, value }| {
            let column = key.downcast_ref::<Column>()?.index();
            Some(binary_expr(ident(column.to_string()), op, Expr::Literal(value, None)))
        })
    });
    bounds.collect()
}

/// A comparison of a key with a literal.
struct Bound {
    key: Arc<dyn PhysicalExpr>,
    op: Operator,
    value: ScalarValue,
}

impl Bound {
    fn of(expr: &Arc<dyn PhysicalExpr>) -> Option<Bound> {
        let binary = expr.downcast_ref::<BinaryExpr>()?;
        let value = binary.right().downcast_ref::<Literal>()?.value().clone();
        let is_bound = matches!(binary.op(), Operator::GtEq | Operator::LtEq) && !value.is_null();
        is_bound.then(|| Bound { key: binary.left().clone(), op: *binary.op(), value })
    }

    /// The bounds of a set of keys.
    fn of_keys(keys: &KeySetExpr) -> Vec<Bound> {
        let Some((least, greatest)) = keys.set.bounds() else { return Vec::new() };
        let bound = |op, value: &ScalarValue| Bound { key: keys.key.clone(), op, value: value.clone() };
        vec![bound(Operator::GtEq, least), bound(Operator::LtEq, greatest)]
    }

    /// The weaker of two bounds of the same key.
    fn or(self, other: Bound) -> Option<Bound> {
        if self.key.as_ref() != other.key.as_ref() || self.op != other.op {
            return None;
        }
        let order = self.value.partial_cmp(&other.value)?;
        let is_weaker = if self.op == Operator::GtEq { order.is_le() } else { order.is_ge() };
        Some(if is_weaker { self } else { other })
    }

    fn into_expr(self) -> Arc<dyn PhysicalExpr> {
        Arc::new(BinaryExpr::new(self.key, self.op, lit(self.value)))
    }
}

/// The range of the keys of all branches, if the branches are chosen by a hash, and consist of bounds and lookups.
fn range_of(case: &CaseExpr) -> Option<Arc<dyn PhysicalExpr>> {
    let is_false = case.else_expr()?.downcast_ref::<Literal>()?.value() == &ScalarValue::Boolean(Some(false));
    if !is_false || !is_hashed(case.expr()?) {
        return None;
    }
    let mut all: Option<Vec<Bound>> = None;
    for (_, branch) in case.when_then_expr() {
        let is_lookup = |expr: &&Arc<dyn PhysicalExpr>| expr.is::<HashTableLookupExpr>();
        let (lookups, bounds): (Vec<_>, Vec<_>) = split_conjunction(branch).into_iter().partition(is_lookup);
        if lookups.is_empty() {
            return None;
        }
        let bounds = bounds.into_iter().map(Bound::of).collect::<Option<Vec<_>>>()?;
        all = Some(match all {
            None => bounds,
            Some(all) if all.len() == bounds.len() => {
                all.into_iter().zip(bounds).map(|(one, other)| one.or(other)).collect::<Option<_>>()?
            }
            Some(_) => return None,
        });
    }
    let bounds = all?.into_iter().map(Bound::into_expr);
    let and = |left, right| Arc::new(BinaryExpr::new(left, Operator::And, right)) as Arc<dyn PhysicalExpr>;
    Some(bounds.reduce(and).unwrap_or_else(|| lit(true)))
}

fn is_hashed(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let mut found = false;
    // The closure never fails.
    let _ = expr.apply_dyn(&mut |expr| {
        found |= expr.is::<HashExpr>();
        Ok(TreeNodeRecursion::Continue)
    });
    found
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::expressions::in_list;
    use datafusion::physical_plan::joins::join_hash_map::JoinHashMapU32;
    use datafusion::physical_plan::joins::{Map, SeededRandomState};

    use super::*;

    type Physical = Arc<dyn PhysicalExpr>;

    fn key() -> Physical {
        Arc::new(Column::new("k", 0))
    }

    fn binary(left: Physical, op: Operator, right: Physical) -> Physical {
        Arc::new(BinaryExpr::new(left, op, right))
    }

    fn range(min: i64, max: i64) -> Physical {
        let min = binary(key(), Operator::GtEq, lit(min));
        binary(min, Operator::And, binary(key(), Operator::LtEq, lit(max)))
    }

    fn lookup() -> Physical {
        let map = Arc::new(Map::HashMap(Box::new(JoinHashMapU32::with_capacity(1))));
        Arc::new(HashTableLookupExpr::new(vec![key()], SeededRandomState::with_seed(1), map, "lookup".into()))
    }

    /// A condition for each of two partitions.
    fn case(branches: [Physical; 2], other: bool) -> Physical {
        let hash: Physical = Arc::new(HashExpr::new(vec![key()], SeededRandomState::with_seed(1), "hash".into()));
        let part = binary(hash, Operator::Modulo, lit(2_u64));
        let branches = branches.into_iter().enumerate().map(|(i, branch)| (lit(i as u64), branch)).collect();
        Arc::new(CaseExpr::try_new(Some(part), branches, Some(lit(other))).unwrap())
    }

    fn and(left: Physical, right: Physical) -> Physical {
        binary(left, Operator::And, right)
    }

    fn shown(filter: Physical) -> String {
        without_lookups(filter).to_string()
    }

    #[test]
    fn lookups_are_reduced_to_the_range_of_all_keys() {
        let branches = || [and(range(5, 20), lookup()), and(range(-3, 9), lookup())];
        let expected = "k@0 >= -3 AND k@0 <= 20";
        assert_eq!(shown(case(branches(), false)), expected);
        let own = binary(key(), Operator::NotEq, lit(7_i64));
        assert_eq!(shown(and(own, case(branches(), false))), format!("k@0 != 7 AND {expected}"));
        assert_eq!(shown(case([lookup(), lookup()], false)), "true");
    }

    #[test]
    fn bounds_of_columns() {
        let shown = |filter: Physical| bounds(filter).iter().map(ToString::to_string).collect::<Vec<_>>();
        let branches = || [and(range(5, 20), lookup()), and(range(-3, 9), lookup())];
        assert_eq!(shown(case(branches(), false)), ["0 >= Int64(-3)", "0 <= Int64(20)"]);
        assert_eq!(shown(and(range(5, 20), lookup())), ["0 >= Int64(5)", "0 <= Int64(20)"]);
        assert_eq!(shown(lit(true)), [""; 0]);
        // Not a conjunction, other comparisons, and bounds of other expressions.
        let or = binary(range(5, 20), Operator::Or, range(30, 40));
        assert_eq!(shown(and(or, binary(key(), Operator::NotEq, lit(7_i64)))), [""; 0]);
        let sum = binary(key(), Operator::Plus, lit(1_i64));
        assert_eq!(shown(binary(sum, Operator::GtEq, lit(7_i64))), [""; 0]);
        assert_eq!(shown(binary(key(), Operator::GtEq, lit(ScalarValue::Int64(None)))), [""; 0]);
    }

    #[test]
    fn other_filters_stay() {
        let schema = arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
            "k",
            arrow::datatypes::DataType::Int64,
            true,
        )]);
        let list = || and(range(1, 2), in_list(key(), vec![lit(1_i64), lit(2_i64)], &false, &schema).unwrap());
        let unknown = || and(range(5, 20), lookup());
        for filter in [
            case([list(), list()], false),
            case([unknown(), list()], false),
            // A branch without a condition.
            case([unknown(), lit(true)], false),
            // Partitions whose keys are not known.
            case([unknown(), unknown()], true),
            unknown(),
            Arc::new(datafusion::physical_plan::expressions::NotExpr::new(case([unknown(), unknown()], false))),
        ] {
            assert_eq!(shown(filter.clone()), filter.to_string());
        }
    }
}
