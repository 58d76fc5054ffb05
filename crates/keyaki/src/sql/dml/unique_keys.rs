//! The unique keys of a table that the rows of an INSERT can have in common with others.

use std::collections::{HashMap, HashSet};

use arrow::array::{RecordBatch, UInt32Array};
use datafusion::sql::sqlparser::ast::{ConflictTarget, Expr, Ident};

use super::plain_ident;
use crate::catalog::Table;
use crate::engine::Engine;
use crate::sql::ddl::checks::unqualified;
use crate::sql::skipped::{is_condition, is_expression};
use crate::sql::{expressions, names, parse_expr};
use crate::table::implies_all;
use crate::write::apply::unique_keys;
use crate::write::rows::{Keys, TableRows};
use crate::{Error, Result};

/// The primary key, or the columns and expressions of a unique index.
#[derive(Debug, Clone)]
pub(super) struct UniqueKey {
    pub name: String,
    pub columns: Vec<usize>,
    pub expressions: Vec<Expr>,
    /// Position of the index; `None` for the primary key.
    pub index: Option<usize>,
    /// Condition for the rows of a partial index.
    pub predicate: Option<Expr>,
}

/// The primary key and the keys of all unique indexes.
pub(super) fn unique_keys_of(table: &Table) -> Result<Vec<UniqueKey>> {
    let def = &table.def;
    let mut keys = Vec::new();
    if !def.hidden_rowid {
        let (name, columns) = (def.primary_key_name(), def.primary_key.clone());
        keys.push(UniqueKey { name, columns, expressions: Vec::new(), index: None, predicate: None });
    }
    for (position, index) in def.indexes.iter().enumerate().filter(|(_, index)| index.unique) {
        let predicate = index.predicate.as_deref().map(parse_expr).transpose()?;
        // In parentheses, they are operands of AND and =.
        let nested = |expr| Expr::Nested(Box::new(expr));
        let predicate = predicate.map(nested);
        let expressions = index.expressions().map(|expression| parse_expr(&expression.sql).map(nested));
        let (expressions, columns) = (expressions.collect::<Result<_>>()?, index.key_columns().collect());
        keys.push(UniqueKey { name: index.name.clone(), columns, expressions, index: Some(position), predicate });
    }
    Ok(keys)
}

/// The keys that a conflict target names: the key with its columns or, if all unique indexes with these columns are partial,
/// those whose predicate the target's condition implies.
pub(super) fn keys_of(engine: &Engine, table: &Table, target: &ConflictTarget) -> Result<Vec<UniqueKey>> {
    let mut keys = unique_keys_of(table)?;
    let columns = match target {
        ConflictTarget::OnConstraint(name) => {
            let name = names::stored_name(name)?.name;
            let found = keys.into_iter().find(|key| key.name == name);
            return found.map(|key| vec![key]).ok_or(Error::NotFound { kind: crate::ObjectKind::Index, name });
        }
        ConflictTarget::Columns(columns) => columns,
    };
    let (condition, columns): (Vec<&Ident>, Vec<&Ident>) = columns.iter().partition(|ident| is_condition(ident));
    let (expressions, columns): (Vec<&Ident>, Vec<&Ident>) =
        columns.into_iter().partition(|ident| is_expression(ident));
    let expression = |ident: &Ident| {
        let expr = unqualified(&parse_expr(&ident.value)?, &table.def.name);
        Ok(Expr::Nested(Box::new(expr)))
    };
    let expressions = expressions.into_iter().map(expression).collect::<Result<HashSet<_>>>()?;
    let columns = columns.iter().map(|name| table.column(&plain_ident(name))).collect::<Result<HashSet<_>>>()?;
    keys.retain(|key| {
        let has_columns = key.columns.len() == columns.len() && key.columns.iter().all(|c| columns.contains(c));
        let found = key.expressions.iter().filter(|expression| expressions.contains(expression)).count();
        has_columns && found == key.expressions.len() && found == expressions.len()
    });
    let given = match condition.first() {
        Some(condition) => {
            let condition = unqualified(&parse_expr(&condition.value)?, &table.def.name);
            expressions::conjuncts(engine, table, &condition.to_string(), "ON CONFLICT")?
        }
        None => Vec::new(),
    };
    if let Some(whole) = keys.iter().position(|key| key.predicate.is_none()) {
        return Ok(vec![keys.swap_remove(whole)]);
    }
    let mut implied = Vec::new();
    for key in keys {
        let predicate = key.index.map_or(Ok(None), |index| table.predicate(index))?;
        if !condition.is_empty() && predicate.is_some_and(|predicate| implies_all(table, &given, &predicate.conjuncts))
        {
            implied.push(key);
        }
    }
    match implied.is_empty() {
        false => Ok(implied),
        true => {
            let problem = "there is no unique or exclusion constraint matching the ON CONFLICT specification";
            Err(Error::InvalidColumnReference(problem.into()))
        }
    }
}

pub(super) fn all_rows(rows: &RecordBatch) -> TableRows {
    let columns = rows.columns().iter().cloned().map(Some).collect();
    TableRows { len: rows.num_rows(), columns, rowid: None }
}

/// The rows that are not taken and whose keys no earlier row of these has.
pub(super) fn first_of_each_key(
    table: &Table,
    keys: &[UniqueKey],
    rows: &RecordBatch,
    taken: &HashSet<i64>,
) -> Result<TableRows> {
    let keys = row_keys(table, keys, rows)?;
    let mut seen: Vec<HashSet<&[u8]>> = vec![HashSet::new(); keys.len()];
    let mut first = Vec::new();
    for row in 0..rows.num_rows() {
        let of_row = || keys.iter().map(|keys| keys[row].as_deref());
        let is_free = of_row().zip(&seen).all(|(key, seen)| key.is_none_or(|key| !seen.contains(key)));
        if is_free && !taken.contains(&(row as i64)) {
            of_row().zip(&mut seen).for_each(|(key, seen)| seen.extend(key));
            first.push(row as u32);
        }
    }
    all_rows(rows).select(&UInt32Array::from(first))
}

/// The rows that remain if each row removes the earlier rows with which it shares a key.
pub(super) fn last_of_each_key(table: &Table, keys: &[UniqueKey], rows: &RecordBatch) -> Result<TableRows> {
    let keys = row_keys(table, keys, rows)?;
    let mut owners: Vec<HashMap<&[u8], usize>> = vec![HashMap::new(); keys.len()];
    let mut is_kept = vec![true; rows.num_rows()];
    for row in 0..rows.num_rows() {
        for (keys, owners) in keys.iter().zip(&mut owners) {
            if let Some(earlier) = keys[row].as_deref().and_then(|key| owners.insert(key, row)) {
                is_kept[earlier] = false;
            }
        }
    }
    let kept = (0..rows.num_rows() as u32).filter(|row| is_kept[*row as usize]);
    all_rows(rows).select(&UInt32Array::from_iter_values(kept))
}

/// For each unique key, the encoded key of each row; `None` for keys with a NULL, and for rows without an entry in a partial
/// index.
pub(super) fn row_keys(table: &Table, keys: &[UniqueKey], rows: &RecordBatch) -> Result<Vec<Vec<Option<Vec<u8>>>>> {
    let mut all = all_rows(rows);
    all.add_virtual(table)?;
    let encode = |key: &UniqueKey| -> Result<Vec<Option<Vec<u8>>>> {
        let encoded = encoded_keys(table, key, &all)?;
        let mut keys = vec![None; rows.num_rows()];
        (0..encoded.len()).for_each(|i| keys[encoded.row(i)] = Some(encoded.get(i).to_vec()));
        Ok(keys)
    };
    keys.iter().map(encode).collect()
}

/// The encoded keys of rows that have all columns, without those with a NULL and those of rows without an entry in a partial
/// index.
pub(super) fn encoded_keys(table: &Table, key: &UniqueKey, rows: &TableRows) -> Result<Keys> {
    let (tree, mut columns) = match key.index {
        None => (0, table.table_columns()),
        Some(index) => (index + 1, table.index_columns(index)),
    };
    columns.truncate(key.columns.len() + key.expressions.len());
    let predicate = key.index.map_or(Ok(None), |index| table.predicate(index))?;
    let selected = predicate.map(|predicate| rows.selected(predicate)).transpose()?;
    Ok(unique_keys(&table.trees[tree].keys, &rows.of_tree(&columns)?, rows.len, selected.as_ref()))
}
