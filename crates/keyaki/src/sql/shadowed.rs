//! WITH queries that have the name of a WITH query of an outer query.
//!
//! DataFusion refuses them. [`rename`] gives them names of their own; their tables keep the old name as an alias.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Query, Statement, VisitorMut};

use super::columns::repeated;
use super::names::plain_ident;
use super::recursion::Rename;
use crate::sql::visit::walk_mut;

/// Renames the WITH queries of a statement that hide others.
pub(super) fn rename(statement: &mut Statement) {
    let _ = walk_mut(statement, &mut Shadowed::default());
}

#[derive(Default)]
struct Shadowed {
    /// The names of the WITH queries of each open query.
    open: Vec<Vec<String>>,
    /// Number of the names given.
    given: usize,
}

impl VisitorMut for Shadowed {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let tables = query.with.iter().flat_map(|with| &with.cte_tables);
        self.open.push(tables.map(|cte| plain_ident(&cte.alias.name)).collect());
        ControlFlow::Continue(())
    }

    // The queries within this one no longer have a WITH query with one of its names.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let own = self.open.pop().unwrap_or_default();
        for (place, name) in own.iter().enumerate() {
            if self.open.iter().flatten().any(|outer| outer == name) {
                self.given += 1;
                rename_one(query, place, name, self.given);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Renames the WITH query at `place`. It sees itself only if it is recursive, those before it never see it.
fn rename_one(query: &mut Query, place: usize, from: &str, number: usize) {
    let Some(mut with) = query.with.take() else { return };
    let to = repeated(&format!("{from} within"), number);
    let mut rename = Rename { from, to: &to };
    let _ = walk_mut(query, &mut rename);
    let first = if with.recursive { 0 } else { place + 1 };
    for cte in with.cte_tables.iter_mut().skip(first) {
        let _ = walk_mut(&mut cte.query, &mut rename);
    }
    with.cte_tables[place].alias.name = to;
    query.with = Some(with);
}
