//! CHECK constraints, generated columns and index predicates of a definition: their text, and the names of constraints.
//!
//! A condition or expression is stored as SQL text in which columns have no qualifiers, so that it does not change with the name of
//! the table. A renamed column is renamed in the syntax tree of each.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{CheckConstraint, Expr, Ident, Visitor, VisitorMut};

use crate::catalog::{CheckDef, TableDef};
use crate::sql::names::{new_name, plain_ident};
use crate::sql::parse_expr;
use crate::sql::visit::{walk, walk_mut};
use crate::{Error, ObjectKind, Result};

/// Adds a constraint to a definition. A constraint without a name gets a name as in PostgreSQL: `TABLE_COLUMN_check` if
/// the condition uses one column, else `TABLE_check`, with a number appended if the name is taken.
///
/// # Errors
/// `AlreadyExists`, `Unsupported`.
pub(super) fn add(def: &mut TableDef, check: &CheckConstraint) -> Result<()> {
    if check.enforced == Some(false) {
        return Err(Error::Unsupported("CHECK … NOT ENFORCED".into()));
    }
    let sql = text(&check.expr, &def.name, "CHECK")?;
    let name = match &check.name {
        Some(name) => new_name(name)?,
        None => free_name(def, &unqualified(&check.expr, &def.name)),
    };
    if def.has_constraint(&name) {
        return Err(Error::AlreadyExists { kind: ObjectKind::Constraint, name });
    }
    def.checks.push(CheckDef { name, sql });
    Ok(())
}

/// The text of an expression of a definition. `place` is CHECK or another clause.
///
/// # Errors
/// `Unsupported` for an expression that is not the same after parsing its text.
pub(in crate::sql) fn text(expr: &Expr, table: &str, place: &str) -> Result<String> {
    let expr = unqualified(expr, table);
    let sql = expr.to_string();
    match parse_expr(&sql).ok() == Some(expr) {
        true => Ok(sql),
        false => Err(Error::Unsupported(format!("this form of {place}: {sql}"))),
    }
}

fn free_name(def: &TableDef, condition: &Expr) -> String {
    let columns = columns_of(def, condition);
    let base = match columns.as_slice() {
        [column] => format!("{}_{}_check", def.name.name, def.columns[*column].name),
        _ => format!("{}_check", def.name.name),
    };
    let numbered = (1_u32..).map(|n| format!("{base}{n}"));
    std::iter::once(base.clone()).chain(numbered).find(|name| !def.has_constraint(name)).unwrap_or(base)
}

/// The columns that a condition uses, without repetitions.
pub(in crate::sql) fn columns_of(def: &TableDef, condition: &Expr) -> Vec<usize> {
    struct Columns<'a>(&'a TableDef, Vec<usize>);
    impl Visitor for Columns<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Identifier(ident) = expr
                && let Some(column) = self.0.columns.iter().position(|column| column.name == plain_ident(ident))
                && !self.1.contains(&column)
            {
                self.1.push(column);
            }
            ControlFlow::Continue(())
        }
    }
    let mut columns = Columns(def, Vec::new());
    let _ = walk(condition, &mut columns);
    columns.1
}

/// The expression with `column` in place of `table.column`.
pub(in crate::sql) fn unqualified(expr: &Expr, table: &str) -> Expr {
    let mut expr = expr.clone();
    let _ = walk_mut(&mut expr, &mut Unqualify { table });
    expr
}

struct Unqualify<'a> {
    table: &'a str,
}

impl VisitorMut for Unqualify<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = expr
            && let [qualifier, column] = parts.as_slice()
            && plain_ident(qualifier) == self.table
        {
            *expr = Expr::Identifier(Ident::clone(column));
        }
        ControlFlow::Continue(())
    }
}
