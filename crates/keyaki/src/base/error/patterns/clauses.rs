//! Clauses of queries: grouping, set operations, subqueries, ORDER BY and LIMIT.

use super::text::literals_as_sql;
use super::{Pattern, pattern};
use crate::base::error::Error;

pub(super) const PATTERNS: &[Pattern] = &[
    pattern("{}While expanding wildcard, column \"{}\" must appear in the GROUP BY clause or {}", |c| grouping(c[1])),
    pattern("HAVING clause references: {} must appear in the GROUP BY clause or {}", |c| grouping(c[0])),
    pattern("Aggregate functions are not allowed in the WHERE clause{}", |_| {
        Error::Grouping("aggregate functions are not allowed in WHERE (use HAVING)".into())
    }),
    pattern("Aggregate function calls cannot be nested: {}", |_| {
        Error::Grouping("aggregate function calls cannot be nested".into())
    }),
    pattern("INTERSECT/EXCEPT query must have the same number of columns{}", |_| {
        Error::syntax("each INTERSECT or EXCEPT query must have the same number of columns")
    }),
    pattern("{} queries have different number of columns{}", |c| {
        Error::syntax(format!("each {} query must have the same number of columns", c[0]))
    }),
    pattern("Inconsistent data length across values list: {}", |_| {
        Error::syntax("VALUES lists must all be the same length")
    }),
    pattern("SELECT * with no tables specified is not valid", |_| {
        Error::syntax("SELECT * with no tables specified is not valid")
    }),
    pattern("{} should only return one column, but found {}", |_| {
        Error::syntax("subquery must return only one column")
    }),
    pattern("Too many columns! The subquery should only return one column{}", |_| {
        Error::syntax("subquery must return only one column")
    }),
    pattern("Order by column out of bounds, specified: {}, max: {}", |c| {
        Error::InvalidColumnReference(format!("ORDER BY position {} is not in select list", c[0]))
    }),
    pattern("Cannot find column with position {} in SELECT clause. {}", |c| {
        Error::InvalidColumnReference(format!("ORDER BY or GROUP BY position {} is not in select list", c[0]))
    }),
    pattern("For SELECT DISTINCT, ORDER BY expressions {} must appear in select list", |c| {
        Error::InvalidColumnReference(format!(
            "for SELECT DISTINCT, ORDER BY expressions must appear in select list: {}",
            c[0]
        ))
    }),
    pattern("SELECT DISTINCT ON expressions must match initial ORDER BY expressions", |_| {
        Error::InvalidColumnReference("SELECT DISTINCT ON expressions must match initial ORDER BY expressions".into())
    }),
    pattern("Source table contains {} columns but only {} names given as column alias", |c| {
        Error::InvalidColumnReference(format!("table has {} columns available but {} columns specified", c[0], c[1]))
    }),
    pattern("Placeholder '{}' was not provided a value for execution{}", |c| {
        Error::Unsupported(format!("parameter {} without a value", c[0]))
    }),
    pattern("Unsupported LIMIT expression: {}", |_| not_constant("LIMIT")),
    pattern("Unsupported OFFSET expression: {}", |_| not_constant("OFFSET")),
    pattern("LIMIT must be >= 0, '{}' was provided", |c| not_negative("LIMIT", c[0])),
    pattern("OFFSET must be >=0, '{}' was provided", |c| not_negative("OFFSET", c[0])),
    pattern("join condition should not be empty", |_| {
        Error::syntax("a join needs ON or USING (CROSS JOIN has no condition)")
    }),
    pattern("wildcard * with AS alias not supported", |_| Error::syntax("* cannot have an alias")),
    pattern("Dot access not supported for non-string expr: {}", |_| {
        Error::Unsupported("fields of values, as in (value).field".into())
    }),
    pattern("Typed literal requires a string payload", |_| {
        Error::syntax("a literal with a type is a text, as in DATE '2024-01-31'")
    }),
    pattern("Physical plan does not support logical expression Wildcard {}", |_| {
        Error::syntax("* is an argument of count only")
    }),
    pattern("Physical plan does not support logical expression WindowFunction{}", |_| {
        Error::Grouping("window functions are allowed in the select list, ORDER BY and QUALIFY only".into())
    }),
    pattern("Physical plan does not support logical expression {}({}", |c| {
        Error::Unsupported(match c[0] {
            "InSubquery" => "this form of IN (SELECT …)".into(),
            "Exists" => "this form of EXISTS".into(),
            "SetComparison" => "this form of ANY or ALL".into(),
            "ScalarSubquery" => "this form of scalar subquery".into(),
            other => format!("expression {other} here"),
        })
    }),
    pattern("Correlated scalar subquery must be aggregated to return at most one row", |_| {
        Error::Unsupported("correlated scalar subqueries without an aggregate function".into())
    }),
];

fn grouping(column: &str) -> Error {
    let column = literals_as_sql(column);
    Error::Grouping(format!(
        "column \"{column}\" must appear in the GROUP BY clause or be used in an aggregate function"
    ))
}

fn not_negative(clause: &str, value: &str) -> Error {
    Error::InvalidParameter { name: clause.into(), value: value.into(), expected: "a number of rows from 0".into() }
}

fn not_constant(clause: &str) -> Error {
    Error::Unsupported(format!("{clause} with this expression (use a number, a parameter or a subquery)"))
}

/// At least one text for each pattern.
#[cfg(test)]
pub(super) const EXAMPLES: &[super::Example] = &[
    (
        "Column in SELECT must be in GROUP BY or an aggregate function: While expanding wildcard, column \"t.id\" must \
         appear in the GROUP BY clause or must be part of an aggregate function, currently only \"t.name\" appears",
        "42803",
        "column \"t.id\" must appear in the GROUP BY clause or be used in an aggregate function",
    ),
    (
        "HAVING clause references: t.id must appear in the GROUP BY clause or be used in an aggregate function",
        "42803",
        "column \"t.id\" must appear in the GROUP BY clause or be used in an aggregate function",
    ),
    (
        "Aggregate functions are not allowed in the WHERE clause. Consider using HAVING instead",
        "42803",
        "aggregate functions are not allowed in WHERE (use HAVING)",
    ),
    (
        "Aggregate function calls cannot be nested: 'count(Int64(1))' is nested inside 'sum(count(*))'",
        "42803",
        "aggregate function calls cannot be nested",
    ),
    (
        "INTERSECT/EXCEPT query must have the same number of columns. Left is 1 and right is 2.",
        "42601",
        "each INTERSECT or EXCEPT query must have the same number of columns",
    ),
    (
        "UNION queries have different number of columns: left has 1 columns whereas right has 2 columns",
        "42601",
        "each UNION query must have the same number of columns",
    ),
    (
        "Inconsistent data length across values list: got 1 values in row 1 but expected 2",
        "42601",
        "VALUES lists must all be the same length",
    ),
    ("SELECT * with no tables specified is not valid", "42601", "SELECT * with no tables specified is not valid"),
    (
        "Scalar subquery should only return one column, but found 2: a, b",
        "42601",
        "subquery must return only one column",
    ),
    (
        "Too many columns! The subquery should only return one column: a, b",
        "42601",
        "subquery must return only one column",
    ),
    ("Order by column out of bounds, specified: 5, max: 1", "42P10", "ORDER BY position 5 is not in select list"),
    (
        "Cannot find column with position 5 in SELECT clause. Valid columns: 1 to 2",
        "42P10",
        "ORDER BY or GROUP BY position 5 is not in select list",
    ),
    (
        "For SELECT DISTINCT, ORDER BY expressions t.b must appear in select list",
        "42P10",
        "for SELECT DISTINCT, ORDER BY expressions must appear in select list: t.b",
    ),
    (
        "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
        "42P10",
        "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
    ),
    (
        "Source table contains 2 columns but only 3 names given as column alias",
        "42P10",
        "table has 2 columns available but 3 columns specified",
    ),
    (
        "Placeholder '$1' was not provided a value for execution.",
        "0A000",
        "not supported: parameter $1 without a value",
    ),
    (
        "Unsupported LIMIT expression: Some(ScalarFunction(ScalarFunction { args: [] }))",
        "0A000",
        "not supported: LIMIT with this expression (use a number, a parameter or a subquery)",
    ),
    (
        "Unsupported OFFSET expression: Some(ScalarFunction(ScalarFunction { args: [] }))",
        "0A000",
        "not supported: OFFSET with this expression (use a number, a parameter or a subquery)",
    ),
    (
        "LIMIT must be >= 0, '-1' was provided",
        "22023",
        "invalid value for parameter \"LIMIT\": \"-1\" (expected a number of rows from 0)",
    ),
    (
        "OFFSET must be >=0, '-1' was provided",
        "22023",
        "invalid value for parameter \"OFFSET\": \"-1\" (expected a number of rows from 0)",
    ),
    ("join condition should not be empty", "42601", "a join needs ON or USING (CROSS JOIN has no condition)"),
    ("wildcard * with AS alias not supported", "42601", "* cannot have an alias"),
    (
        "Dot access not supported for non-string expr: Identifier(Ident { value: \"x\" })",
        "0A000",
        "not supported: fields of values, as in (value).field",
    ),
    ("Typed literal requires a string payload", "42601", "a literal with a type is a text, as in DATE '2024-01-31'"),
    (
        "Physical plan does not support logical expression Wildcard { qualifier: None }",
        "42601",
        "* is an argument of count only",
    ),
    (
        "Physical plan does not support logical expression WindowFunction(WindowFunction { fun: x })",
        "42803",
        "window functions are allowed in the select list, ORDER BY and QUALIFY only",
    ),
    (
        "Physical plan does not support logical expression Exists(Exists { subquery: <subquery>, negated: false })",
        "0A000",
        "not supported: this form of EXISTS",
    ),
    (
        "Correlated scalar subquery must be aggregated to return at most one row",
        "0A000",
        "not supported: correlated scalar subqueries without an aggregate function",
    ),
];
