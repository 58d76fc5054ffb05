//! Parsers of parts of statements, such as stored definitions.

use datafusion::sql::sqlparser::ast::{Expr, Ident, ObjectName, Query};
use datafusion::sql::sqlparser::parser::Parser;

use super::{expect_end, precedence, split, symmetric};
use crate::Result;
use crate::base::syntax;

/// Parses a single query: the stored definition of a view.
pub(crate) fn parse_query(sql: &str) -> Result<Box<Query>> {
    let mut parser = split::single(sql)?.parser();
    let mut query = parser.parse_query().map_err(syntax)?;
    precedence::correct(&mut query);
    symmetric::expand(&mut query);
    expect_end(&mut parser)?;
    Ok(query)
}

/// Parses the name of a relation.
///
/// # Errors
/// `Syntax`.
pub(crate) fn parse_name(sql: &str) -> Result<ObjectName> {
    let mut parser = split::single(sql)?.parser();
    let name = parser.parse_object_name(false).map_err(syntax)?;
    expect_end(&mut parser)?;
    Ok(name)
}

/// Parses a list of identifiers separated by commas.
///
/// # Errors
/// `Syntax`.
pub(crate) fn parse_idents(sql: &str) -> Result<Vec<Ident>> {
    if sql.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut parser = split::single(sql)?.parser();
    let idents = parser.parse_comma_separated(Parser::parse_identifier).map_err(syntax)?;
    expect_end(&mut parser)?;
    Ok(idents)
}

/// Parses a single expression: the stored default of a column.
pub(crate) fn parse_expr(sql: &str) -> Result<Expr> {
    let mut parser = split::single(sql)?.parser();
    let mut expr = parser.parse_expr().map_err(syntax)?;
    precedence::correct(&mut expr);
    symmetric::expand(&mut expr);
    expect_end(&mut parser)?;
    Ok(expr)
}
