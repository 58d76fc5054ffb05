//! WITH queries that a statement declares as MATERIALIZED.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{CteAsMaterialized, Query, Statement, Visit, Visitor};

use super::names::plain_ident;

/// The names of the WITH queries of a statement that are declared AS MATERIALIZED.
pub(crate) fn materialized(statement: &Statement) -> Vec<String> {
    #[derive(Default)]
    struct Names(Vec<String>);
    impl Visitor for Names {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
            let declared = ctes.filter(|cte| matches!(cte.materialized, Some(CteAsMaterialized::Materialized)));
            self.0.extend(declared.map(|cte| plain_ident(&cte.alias.name)));
            ControlFlow::Continue(())
        }
    }
    let mut names = Names::default();
    _ = statement.visit(&mut names);
    names.0
}
