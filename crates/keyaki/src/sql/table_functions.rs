//! Functions in FROM whose arguments use columns of the tables before them, as `FROM t, generate_series(1, t.n)` and
//! `FROM t, unnest(string_to_array(t.tags, ','))`. They become LATERAL subqueries, because DataFusion's functions in FROM
//! have constant arguments. Array literals with columns become calls, VALUES with columns a UNION, the columns of LATERAL
//! subqueries get names, and commas before joins with LATERAL subqueries become CROSS JOINs.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    DataType, Expr, FunctionArg, FunctionArgExpr, Ident, Join, JoinConstraint, JoinOperator, ObjectName,
    ObjectNamePart, Query, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins, Value, VisitMut, VisitorMut,
};

use super::json_calls;
use super::parameters::call;
use crate::catalog::types;
use crate::sql::visit::{has_query, visit_expressions, walk_mut};
use crate::values::json::AS_JSONB;
use crate::values::regexps::ALL_MATCHES;
use crate::{Error, Result};

/// Functions that return an array of the same values when they are not in FROM.
pub(super) const SERIES: [&str; 2] = ["generate_series", "range"];
const UNNEST: &str = "unnest";
/// Functions that return the elements of an array, and the function that returns the array.
const OF_ARRAYS: [(&str, &str); 3] = [
    ("regexp_matches", ALL_MATCHES),
    ("regexp_split_to_table", "regexp_split_to_array"),
    ("string_to_table", "string_to_array"),
];

/// Rewrites the functions of a statement.
///
/// # Errors
/// `Unsupported` for LATERAL before other functions, and for arguments of other forms.
pub(super) fn to_subqueries(statement: &mut impl VisitMut) -> Result<()> {
    match walk_mut(statement, &mut Rewrite::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

#[derive(Default)]
struct Rewrite {
    /// The names of the tables in FROM of each enclosing query, the innermost last.
    scopes: Vec<Vec<String>>,
}

impl Rewrite {
    /// A table beside a LATERAL subquery that nested subqueries may mean, and whose name an outer query has, too: the plan
    /// does not tell which of them a reference in a nested subquery means.
    fn ambiguous_name(&self, lateral: &Query) -> Option<&String> {
        let (own, outer) = self.scopes.split_last()?;
        let nested = visit_expressions(lateral, |expr| match expr {
            Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => ControlFlow::Break(()),
            Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } if matches!(**right, Expr::Subquery(_)) => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        own.iter().find(|name| nested.is_break() && outer.iter().flatten().any(|outer| outer == *name))
    }
}

impl VisitorMut for Rewrite {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        if let TableFactor::Derived { lateral: true, subquery, .. } = factor {
            if let Some(name) = self.ambiguous_name(subquery) {
                let what =
                    format!("LATERAL with subqueries beside table \"{name}\", whose name an outer query has, too");
                return ControlFlow::Break(Error::Unsupported(format!("{what} (use another alias)")));
            }
            name_columns(&mut subquery.body);
        }
        match subquery(factor) {
            Ok(Some(subquery)) => {
                *factor = subquery;
                ControlFlow::Continue(())
            }
            Ok(None) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    /// DataFusion converts VALUES to common types before the types of outer columns are known, and evaluates them before
    /// subqueries.
    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let mut names = Vec::new();
        add_table_names(&query.body, &mut names);
        self.scopes.push(names);
        super::series::name_elements(query);
        let SetExpr::Values(values) = query.body.as_ref() else { return ControlFlow::Continue(()) };
        let is_plain = |value: &Expr| !has_column(value) && !has_query(value);
        if values.rows.iter().all(|row| row.content.iter().all(is_plain)) {
            return ControlFlow::Continue(());
        }
        let select = |row: &[Expr]| {
            let columns = row.iter().enumerate().map(|(i, value)| format!("{value} AS column{}", i + 1));
            format!("SELECT {}", columns.collect::<Vec<_>>().join(", "))
        };
        let selects: Vec<String> = values.rows.iter().map(|row| select(&row.content)).collect();
        match super::parse_query(&selects.join(" UNION ALL ")) {
            Ok(selects) => {
                query.body = selects.body;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.scopes.pop();
        super::series::name(query);
        join_tables_before(&mut query.body);
        ControlFlow::Continue(())
    }

    /// DataFusion finds no columns of outer queries in array literals.
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::Array(array) = &*expr else { return ControlFlow::Continue(()) };
        if !array.elem.iter().any(has_column) {
            return ControlFlow::Continue(());
        }
        let elements: Vec<String> = array.elem.iter().map(Expr::to_string).collect();
        match super::parse_expr(&format!("make_array({})", elements.join(", "))) {
            Ok(call) => {
                *expr = call;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

/// The names of the tables in FROM, except those of LATERAL subqueries.
fn add_table_names(body: &SetExpr, names: &mut Vec<String>) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            add_table_names(left, names);
            add_table_names(right, names);
        }
        SetExpr::Select(select) => {
            let factors = select.from.iter().flat_map(|tables| {
                std::iter::once(&tables.relation).chain(tables.joins.iter().map(|join| &join.relation))
            });
            names.extend(factors.filter_map(|factor| match factor {
                TableFactor::Table { alias: Some(alias), .. }
                | TableFactor::Derived { alias: Some(alias), lateral: false, .. } => {
                    Some(super::names::plain_ident(&alias.name))
                }
                TableFactor::Table { name, .. } => name.0.last()?.as_ident().map(super::names::plain_ident),
                _ => None,
            }));
        }
        _ => {}
    }
}

/// `a, b JOIN LATERAL (..)` becomes `a CROSS JOIN b JOIN LATERAL (..)`, in which the subquery may use columns of `a`: for
/// DataFusion, the tables before a LATERAL subquery are those of its own join. Only subqueries that name one of the other
/// tables are changed, because the rows are computed for all combinations of the tables before them. The joins must keep
/// all rows of the tables before them, and their conditions must name the tables of their columns, because they see more
/// tables then.
fn join_tables_before(body: &mut SetExpr) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            join_tables_before(left);
            join_tables_before(right);
        }
        SetExpr::Select(select) => {
            let mut from: Vec<TableWithJoins> = Vec::with_capacity(select.from.len());
            for tables in std::mem::take(&mut select.from) {
                let place = first_used(&from, &tables).filter(|_| tables.joins.iter().all(keeps_rows_before));
                match place {
                    Some(place) => {
                        let mut items = from.split_off(place).into_iter();
                        let Some(mut before) = items.next() else { continue };
                        for item in items {
                            cross_join(&mut before, item);
                        }
                        cross_join(&mut before, tables);
                        from.push(before);
                    }
                    None => from.push(tables),
                }
            }
            select.from = from;
        }
        _ => {}
    }
}

/// The first of the items of FROM before `tables` that a LATERAL subquery in it names, if all further ones can be joined.
fn first_used(from: &[TableWithJoins], tables: &TableWithJoins) -> Option<usize> {
    let is_lateral = |join: &&Join| matches!(join.relation, TableFactor::Derived { lateral: true, .. });
    let mut used = std::collections::HashSet::new();
    for join in tables.joins.iter().filter(is_lateral) {
        let _ = visit_expressions(&join.relation, |expr| {
            if let Expr::CompoundIdentifier(parts) = expr
                && let [.., table, _] = &parts[..]
            {
                used.insert(normalized(table));
            }
            ControlFlow::<()>::Continue(())
        });
    }
    let names = |item: &TableWithJoins| {
        let factors = std::iter::once(&item.relation).chain(item.joins.iter().map(|join| &join.relation));
        factors.filter_map(name_of).collect::<Vec<_>>()
    };
    let is_own = |name: &String| names(tables).contains(name);
    let place = from.iter().position(|item| names(item).iter().any(|name| used.contains(name) && !is_own(name)))?;
    from[place + 1..].iter().all(|item| item.joins.iter().all(keeps_rows_before)).then_some(place)
}

/// The name by which columns of a table are qualified.
fn name_of(factor: &TableFactor) -> Option<String> {
    match factor {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            Some(normalized(&alias.name))
        }
        TableFactor::Table { name, .. } => name.0.last().and_then(ObjectNamePart::as_ident).map(normalized),
        _ => None,
    }
}

fn normalized(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_lowercase() }
}

fn cross_join(before: &mut TableWithJoins, tables: TableWithJoins) {
    let join_operator = JoinOperator::CrossJoin(JoinConstraint::None);
    before.joins.push(Join { relation: tables.relation, global: false, join_operator });
    before.joins.extend(tables.joins);
}

fn keeps_rows_before(join: &Join) -> bool {
    let constraint = match &join.join_operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::CrossJoin(constraint) => constraint,
        _ => return false,
    };
    match constraint {
        JoinConstraint::None => true,
        JoinConstraint::On(condition) => {
            let unqualified = visit_expressions(condition, |expr| match expr {
                Expr::Identifier(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            });
            unqualified.is_continue()
        }
        JoinConstraint::Using(_) | JoinConstraint::Natural => false,
    }
}

/// Gives the columns in the select list of a LATERAL subquery their names: to DataFusion, a column of another table has no
/// name of its own there.
fn name_columns(body: &mut SetExpr) {
    let select = match body {
        SetExpr::Select(select) => select,
        SetExpr::SetOperation { left, .. } => return name_columns(left),
        SetExpr::Query(query) => return name_columns(&mut query.body),
        _ => return,
    };
    let name_of = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(Expr::Identifier(name)) | SelectItem::ExprWithAlias { alias: name, .. } => {
            Some(name.clone())
        }
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(names)) => names.last().cloned(),
        _ => None,
    };
    let names: Vec<Option<Ident>> = select.projection.iter().map(name_of).collect();
    for (i, item) in select.projection.iter_mut().enumerate() {
        let is_unique = names.iter().filter(|name| **name == names[i]).count() == 1;
        if let (SelectItem::UnnamedExpr(expr), Some(alias), true) = (&*item, &names[i], is_unique) {
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: alias.clone() };
        }
    }
}

/// The subquery for a function in FROM; `None` for other tables.
fn subquery(factor: &TableFactor) -> Result<Option<TableFactor>> {
    if let Some(subquery) = record(factor)? {
        return Ok(Some(subquery));
    }
    let (name, mut arguments, alias, with_ordinality) = match factor {
        TableFactor::Table { name, args: Some(args), alias, with_ordinality, .. } if args.settings.is_none() => {
            let Some(name) = plain(name) else { return Ok(None) };
            let has_elements = json_calls::columns_in_from(&name).is_some() || array_of(&name).is_some();
            if !has_elements && !SERIES.contains(&name.as_str()) {
                return Ok(None);
            }
            let is_subquery = has_elements || *with_ordinality;
            let arguments = expressions(&args.args);
            let Some(arguments) = arguments.filter(|list| is_subquery || !list.iter().all(is_number)) else {
                return Ok(None);
            };
            (name, arguments, alias, *with_ordinality)
        }
        TableFactor::Function { lateral: true, name, args, with_ordinality, alias } => {
            let is_known = |name: &String| {
                let has_elements = json_calls::columns_in_from(name).is_some() || array_of(name).is_some();
                *name == UNNEST || SERIES.contains(&name.as_str()) || has_elements
            };
            match (plain(name).filter(is_known), expressions(args)) {
                (Some(name), Some(arguments)) => (name, arguments, alias, *with_ordinality),
                _ => return Err(Error::Unsupported(format!("LATERAL {name}(…) (use LATERAL (SELECT …))"))),
            }
        }
        TableFactor::UNNEST { alias, array_exprs, with_offset: false, with_ordinality, .. } => {
            (UNNEST.to_string(), array_exprs.clone(), alias, *with_ordinality)
        }
        _ => return Ok(None),
    };
    if SERIES.contains(&name.as_str())
        && let [_, _, step @ Expr::Value(_)] = &mut arguments[..]
        && matches!(step, Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)))
    {
        *step = call("CAST(NULL AS INTERVAL)", [step.clone()])?;
    }
    let column = alias.as_ref().map_or_else(|| Ident::new(&name), |alias| alias.name.clone());
    let list: Vec<String> = arguments.iter().map(Expr::to_string).collect();
    let arrays = match json_calls::columns_in_from(&name) {
        Some(columns) => {
            let arguments = list.join(", ");
            columns.iter().map(|(_, function)| json_calls::array_in_from(&name, function, &arguments)).collect()
        }
        None if name == UNNEST => list.clone(),
        None => vec![format!("{}({})", array_of(&name).unwrap_or(&name), list.join(", "))],
    };
    let name_of = |i: usize| match (json_calls::columns_in_from(&name), i) {
        (Some(columns), _) => Ident::new(columns[i].0),
        (None, 0) => column.clone(),
        (None, _) => Ident::with_quote('"', format!("{}_{}", column.value, i + 1)),
    };
    let columns = arrays.iter().enumerate().map(|(i, array)| format!("{UNNEST}({array}) AS {}", name_of(i)));
    let mut columns: Vec<String> = columns.collect();
    if with_ordinality {
        let length = |array: &String| format!("coalesce(CAST(cardinality({array}) AS BIGINT), 0)");
        let lengths: Vec<String> = arrays.iter().map(length).collect();
        let length = match &lengths[..] {
            [length] => length.clone(),
            // Nulls follow the elements of shorter arrays.
            _ => format!("greatest({})", lengths.join(", ")),
        };
        columns.push(format!("{UNNEST}(generate_series(1, {length})) AS ordinality"));
    }
    let subquery: Box<Query> = super::parse_query(&format!("SELECT {}", columns.join(", ")))?;
    let alias = alias.clone().unwrap_or_else(|| TableAlias {
        explicit: true,
        name: Ident::new(&name),
        columns: Vec::new(),
        at: None,
    });
    Ok(Some(TableFactor::Derived { lateral: true, subquery, alias: Some(alias), sample: None }))
}

/// The subquery for `json_to_record(doc) AS r(a INT, …)` and `json_to_recordset(doc)`: the members of an object, or of the
/// objects that are the elements of an array, as columns.
///
/// # Errors
/// `Syntax` if the columns have no types, `Unsupported` for columns that are arrays.
fn record(factor: &TableFactor) -> Result<Option<TableFactor>> {
    let (name, args, alias) = match factor {
        TableFactor::Table { name, args: Some(args), alias, with_ordinality: false, .. } => (name, &args.args, alias),
        TableFactor::Function { name, args, alias, with_ordinality: false, .. } => (name, args, alias),
        _ => return Ok(None),
    };
    let is_set = match plain(name).as_deref() {
        Some("json_to_record" | "jsonb_to_record") => false,
        Some("json_to_recordset" | "jsonb_to_recordset") => true,
        _ => return Ok(None),
    };
    let args = expressions(args);
    let (Some([document]), Some(alias)) = (args.as_deref(), alias) else {
        return Err(Error::syntax(format!("{name} needs a document and a list of columns: AS r(a INT, b TEXT)")));
    };
    let row = match is_set {
        true => format!("{UNNEST}(json_rows({document}))"),
        false => format!("json_row({document})"),
    };
    let columns = alias.columns.iter().map(|column| {
        let Some(ty) = &column.data_type else {
            return Err(Error::syntax(format!("column \"{}\" of {name} needs a type", column.name)));
        };
        let member = Value::SingleQuotedString(normalized(&column.name));
        Ok(match ty {
            DataType::JSON => format!("nullif({row} -> {member}, 'null') AS {}", column.name),
            DataType::JSONB => format!("{AS_JSONB}(nullif({row} -> {member}, 'null')) AS {}", column.name),
            DataType::Array(_) => {
                let what = format!("column \"{}\" of {name} with an array type (use JSON)", column.name);
                return Err(Error::Unsupported(what));
            }
            ty => format!("CAST({row} ->> {member} AS {ty}) AS {}", column.name),
        })
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    if columns.is_empty() {
        return Err(Error::syntax(format!("{name} needs a list of columns: AS r(a INT, b TEXT)")));
    }
    let subquery = super::parse_query(&format!("SELECT {}", columns.join(", ")))?;
    let alias = TableAlias { columns: Vec::new(), ..alias.clone() };
    Ok(Some(TableFactor::Derived { lateral: true, subquery, alias: Some(alias), sample: None }))
}

/// The function that returns the array of the elements that a function returns.
fn array_of(name: &str) -> Option<&'static str> {
    OF_ARRAYS.iter().find(|(known, _)| *known == name).map(|(_, array)| *array)
}

/// The name of a function without a schema, in lower case.
pub(super) fn plain(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] => Some(ident.value.to_ascii_lowercase()),
        _ => None,
    }
}

/// The arguments, if all are expressions without names.
fn expressions(arguments: &[FunctionArg]) -> Option<Vec<Expr>> {
    let expression = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    arguments.iter().map(expression).collect()
}

fn is_integer(ty: &DataType) -> bool {
    types::from_sql(ty).is_ok_and(|ty| ty.column.arrow().is_integer())
}

/// True for arithmetic of numbers.
fn is_number(expr: &Expr) -> bool {
    match expr {
        Expr::Value(value) => matches!(value.value, Value::Number(..) | Value::Placeholder(_) | Value::Null),
        Expr::UnaryOp { expr, .. } | Expr::Nested(expr) => is_number(expr),
        Expr::BinaryOp { left, right, .. } => is_number(left) && is_number(right),
        Expr::Cast { expr, data_type, .. } => is_integer(data_type) && !has_column(expr),
        // The value of a parameter.
        Expr::Function(function) if plain(&function.name).as_deref() == Some("arrow_cast") => {
            function.args.to_string().contains("'Int")
        }
        _ => false,
    }
}

/// True if an expression uses a column.
fn has_column(expr: &Expr) -> bool {
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}
