//! Wildcards and the names of select lists.

use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, ObjectName, ReplaceSelectElement, ReplaceSelectItem, SelectItem,
    SelectItemQualifiedWildcardKind as Wildcard, WildcardAdditionalOptions,
};

use super::scope::{Meaning, Merged, Scope, only};
use crate::sql::columns;
use crate::sql::names::{ident, plain_ident};

impl Scope {
    /// Wildcards of the factors or their columns in place of `*`; `None` if columns are needed and not known.
    pub fn expanded(&self) -> Option<Vec<SelectItem>> {
        let all: Option<Vec<_>> = (0..self.factors.len()).map(|factor| self.items(factor)).collect();
        Some(all?.concat())
    }

    fn items(&self, i: usize) -> Option<Vec<SelectItem>> {
        let factor = &self.factors[i];
        let is_replaced =
            |merged: &&Merged| merged.factors[0] == i && factor.column(&merged.name).as_ref() != Some(&merged.value);
        let replaced = self.merged.iter().filter(is_replaced);
        let is_repeated = |merged: &Merged| matches!(self.meaning(&merged.name), Meaning::Ambiguous);
        let is_column = |merged: &Merged| matches!(merged.value, Expr::CompoundIdentifier(_));
        // REPLACE would give a column of another table an alias, beside which ORDER BY cannot use other columns of its
        // name.
        if replaced.clone().any(|merged| is_repeated(merged) || is_column(merged) && factor.columns.is_some()) {
            let names = factor.columns.as_ref()?.iter().filter(|name| !self.is_later(i, name));
            let item = |name: &String| match replaced.clone().find(|merged| merged.name == *name) {
                Some(merged) if is_column(merged) => Some(SelectItem::UnnamedExpr(merged.value.clone())),
                Some(merged) => {
                    // `columns::name` marks other columns beside `*` once.
                    let alias = if is_repeated(merged) { columns::repeated(name, i + 2) } else { ident(name) };
                    Some(SelectItem::ExprWithAlias { expr: merged.value.clone(), alias })
                }
                None => Some(SelectItem::UnnamedExpr(factor.column(name)?)),
            };
            return names.map(item).collect();
        }
        let excluded = self.merged.iter().filter(|merged| merged.factors[1..].contains(&i));
        let excluded: Vec<ObjectName> = excluded.map(|merged| ObjectName::from(vec![ident(&merged.name)])).collect();
        let replaced = replaced.map(|Merged { name, value, .. }| ReplaceSelectElement {
            expr: value.clone(),
            column_name: ident(name),
            as_keyword: true,
        });
        let items: Vec<_> = replaced.map(Box::new).collect();
        let options = WildcardAdditionalOptions {
            opt_exclude: (!excluded.is_empty()).then_some(ExcludeSelectItem::Multiple(excluded)),
            opt_replace: (!items.is_empty()).then_some(ReplaceSelectItem { items }),
            ..WildcardAdditionalOptions::default()
        };
        let alias = Wildcard::ObjectName(ObjectName::from(vec![factor.alias.clone()?]));
        Some(vec![SelectItem::QualifiedWildcard(alias, options)])
    }

    /// True if a select list has a column of this name.
    pub fn outputs(&self, items: &[SelectItem], name: &str) -> bool {
        items.iter().any(|item| match item {
            SelectItem::QualifiedWildcard(Wildcard::ObjectName(alias), _) => {
                let factor = only(alias).and_then(|alias| self.factor(alias));
                factor.is_none_or(|factor| factor.has(name) != Some(false))
            }
            item => output(item).is_none_or(|output| output == name),
        })
    }
}

/// The name of a column of a select list; `None` for wildcards and expressions without a name.
pub(super) fn output(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(name)) | SelectItem::ExprWithAlias { alias: name, .. } => {
            Some(plain_ident(name))
        }
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(names)) => names.last().map(plain_ident),
        _ => None,
    }
}
