//! Types of parameters that clients of servers declare.
//!
//! The type of a parameter follows from the expression around it. A parameter with another declared type keeps the first one:
//! drivers declare the least type that has the value. In the select list of a query, a parameter whose type is not known gets
//! its declared type by a cast: it decides the type of the column.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{CastKind, DataType, Expr, SetExpr, Statement};

use super::pg_catalog;
use super::prepared::lone_parameter;
use super::visit::visit_expressions_mut;

/// The declared types that are used, by OID: other parameters are texts, or have the type of their value.
const TYPES: [u32; 15] = [16, 17, 20, 21, 23, 114, 700, 701, 1082, 1083, 1114, 1184, 1186, 2950, 3802];

/// The type with an OID; `None` for types that are not used.
pub(super) fn declared_type(oid: u32) -> Option<DataType> {
    let element = pg_catalog::element_oid(oid).unwrap_or(oid);
    if TYPES.contains(&element) { pg_catalog::sql_type(oid) } else { None }
}

/// Gives parameters in the select list of a query, counted from 0, their types by casts.
pub(super) fn cast(statement: &mut Statement, types: &[(usize, DataType)]) {
    if let Statement::Query(query) = statement {
        cast_in(&mut query.body, types);
    }
}

fn cast_in(body: &mut SetExpr, types: &[(usize, DataType)]) {
    let typed = |expr: &mut Expr| {
        let ty = lone_parameter(expr).and_then(|index| types.iter().find(|(known, _)| *known == index));
        if let Some((_, ty)) = ty {
            let (inner, data_type) = (Box::new(expr.clone()), ty.clone());
            *expr = Expr::Cast { kind: CastKind::Cast, expr: inner, data_type, array: false, format: None };
        }
        ControlFlow::<()>::Continue(())
    };
    match body {
        SetExpr::Select(select) => {
            let _ = visit_expressions_mut(&mut select.projection, typed);
        }
        SetExpr::Query(query) => cast_in(&mut query.body, types),
        SetExpr::SetOperation { left, right, .. } => {
            cast_in(left, types);
            cast_in(right, types);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::split::single;

    #[test]
    fn types_by_oid() {
        let name = |oid| declared_type(oid).map(|ty| ty.to_string().to_ascii_lowercase());
        assert_eq!(name(23).as_deref(), Some("integer"));
        assert_eq!(name(3802).as_deref(), Some("jsonb"));
        assert_eq!(name(1007).as_deref(), Some("integer[]"));
        assert_eq!((name(25), name(0), name(1700)), (None, None, None));
    }

    #[test]
    fn parameters_are_cast() {
        let mut statement = single("SELECT $1, a + $2 FROM t LIMIT $1").unwrap().parser().parse_statement().unwrap();
        cast(&mut statement, &[(0, declared_type(23).unwrap())]);
        assert_eq!(statement.to_string(), "SELECT CAST($1 AS INTEGER), a + $2 FROM t LIMIT $1");
    }
}
