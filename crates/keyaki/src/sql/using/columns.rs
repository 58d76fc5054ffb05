//! The names of the columns of relations and queries.

use std::mem::replace;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Cte, ObjectName, Query, Select, SelectItem, SelectItemQualifiedWildcardKind as Wildcard, SetExpr, Statement,
    TableAlias,
};

use super::Using;
use super::scope::only;
use super::wildcards::output;
use crate::catalog::RelationName;
use crate::sql::dml::TARGET_PREFIX;
use crate::sql::names::{plain_ident, stored_name};
use crate::sql::{columns, parse_query};

/// Names of columns; `None` if they are not known.
pub(super) type Columns = Option<Vec<String>>;

/// The columns that an alias names; `None` if it names none.
pub(super) fn declared(alias: Option<&TableAlias>) -> Columns {
    let columns = &alias?.columns;
    (!columns.is_empty()).then(|| columns.iter().map(|column| plain_ident(&column.name)).collect())
}

impl Using<'_> {
    pub fn relation_columns(&self, name: &ObjectName) -> Columns {
        let mut relation = stored_name(name).ok()?;
        if let Some(only) = only(name) {
            let plain = plain_ident(only);
            if let Some((_, columns)) = self.common.iter().rev().find(|(common, _)| *common == plain) {
                return columns.clone();
            }
            match plain.strip_prefix(TARGET_PREFIX) {
                Some(target) => relation = RelationName::public(target),
                None if only.quote_style == Some('\'') => return None,
                None => {}
            }
        }
        if let Some(table) = self.catalog.tables.get(&relation) {
            return Some(table.def.columns.iter().map(|column| column.name.clone()).collect());
        }
        let view = self.catalog.views.get(&relation)?;
        let mut statement = Statement::Query(parse_query(&view.sql).ok()?);
        columns::name(&mut statement);
        let Statement::Query(query) = statement else { return None };
        Using::new(self.catalog).query_columns(&query)
    }

    pub fn common_columns(&mut self, cte: &Cte) -> Columns {
        declared(Some(&cte.alias)).or_else(|| self.query_columns(&cte.query))
    }

    pub fn query_columns(&mut self, query: &Query) -> Columns {
        let common = self.common.len();
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            let columns = self.common_columns(cte);
            self.common.push((plain_ident(&cte.alias.name), columns));
        }
        let columns = self.body_columns(&query.body);
        self.common.truncate(common);
        columns
    }

    pub fn body_columns(&mut self, body: &SetExpr) -> Columns {
        match body {
            SetExpr::Select(select) => self.select_columns(select),
            SetExpr::Query(query) => self.query_columns(query),
            SetExpr::SetOperation { left, .. } => self.body_columns(left),
            SetExpr::Values(values) => {
                let columns = values.rows.first()?.len();
                Some((1..=columns).map(|column| format!("column{column}")).collect())
            }
            _ => None,
        }
    }

    pub fn select_columns(&mut self, select: &Select) -> Columns {
        let visits = replace(&mut self.visits, false);
        let scope = self.from(&mut select.from.clone());
        self.visits = visits;
        let ControlFlow::Continue(scope) = scope else { return None };
        let mut columns = Vec::new();
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(_) => columns.extend(scope.columns()?),
                SelectItem::QualifiedWildcard(Wildcard::ObjectName(name), _) => {
                    columns.extend(only(name).and_then(|alias| scope.factor(alias))?.columns.clone()?);
                }
                item => columns.push(output(item)?),
            }
        }
        Some(columns)
    }
}
