//! Texts of definitions, in PostgreSQL's form.

use super::objects::{Constraint, ConstraintKind, Kind, OWNER_NAME, Objects, Relation};
use crate::catalog::{Access, Grant, IndexKey, IndexMethod, RelationName, TableDef};
use crate::sql::names::{full_sql, quoted};
use crate::sql::show;

/// The privileges of an object as PostgreSQL's access control list; `None` for those of a new object.
pub(super) fn privileges(access: &Access) -> Option<Vec<String>> {
    /// PostgreSQL's order of the letters.
    const LETTERS: &str = "arwdDxtUC";
    let letters = |grant: &Grant| {
        let (held, grantable) = (grant.privileges.to_string(), grant.grantable.to_string());
        let letters = LETTERS.chars().filter(|letter| held.contains(*letter));
        letters
            .flat_map(|letter| std::iter::once(letter).chain(grantable.contains(letter).then_some('*')))
            .collect::<String>()
    };
    let name = |role: &Option<String>| quoted(role.as_deref().unwrap_or(OWNER_NAME));
    let item = |grant: &Grant| {
        let to = grant.to.as_deref().map(quoted).unwrap_or_default();
        format!("{to}={}/{}", letters(grant), name(&grant.by))
    };
    (!access.grants.is_empty()).then(|| access.grants.iter().map(item).collect())
}

/// `pg_get_constraintdef`. `name` writes the name of a relation.
pub(super) fn constraint(objects: &Objects, of: &Constraint, name: &dyn Fn(&RelationName) -> String) -> Option<String> {
    let def = objects.relation(of.table)?.kind.table()?;
    Some(match of.kind {
        ConstraintKind::Primary => format!("PRIMARY KEY ({})", show::column_list(def, &def.primary_key)),
        ConstraintKind::Unique(place) => format!("UNIQUE ({})", show::key_list(def, &def.indexes[place])),
        ConstraintKind::Check(place) => format!("CHECK ({})", def.checks[place].sql),
        ConstraintKind::Foreign(place) => {
            let key = &def.foreign_keys[place];
            let referenced: Vec<String> = key.referenced.iter().map(|column| quoted(column)).collect();
            format!(
                "FOREIGN KEY ({}) REFERENCES {}({}){}",
                show::column_list(def, &key.columns),
                name(&key.references),
                referenced.join(", "),
                show::clauses(key)
            )
        }
    })
}

/// PostgreSQL's name of an index's method. Its tools know ordered indexes as `btree`.
pub(super) fn method(kind: &Kind) -> &'static str {
    match kind.index().map(|index| index.method) {
        Some(IndexMethod::Masstree) => "masstree",
        Some(IndexMethod::Vast) => "vast",
        Some(IndexMethod::Betree) | None => "btree",
    }
}

/// `pg_get_indexdef` of a whole index.
pub(super) fn index(of: &Relation) -> Option<String> {
    let def = of.kind.table().filter(|_| of.kind.letter() == "i")?;
    let unique = if of.kind.index().is_none_or(|index| index.unique) { "UNIQUE " } else { "" };
    let keys = match of.kind.index() {
        Some(index) => show::key_list(def, index),
        None => show::column_list(def, &def.primary_key),
    };
    let (name, table) = (quoted(&of.name.name), full_sql(&def.name));
    let mut sql = format!("CREATE {unique}INDEX {name} ON {table} USING {} ({keys})", method(&of.kind));
    if let Some(index) = of.kind.index() {
        if !index.include.is_empty() {
            sql.push_str(&format!(" INCLUDE ({})", show::column_list(def, &index.include)));
        }
        if let Some(predicate) = &index.predicate {
            sql.push_str(&format!(" WHERE ({predicate})"));
        }
    }
    Some(sql)
}

/// `pg_get_indexdef` of one column of an index, from 1 on; the empty text if there is none.
pub(super) fn index_column(of: &Relation, number: usize) -> Option<String> {
    let def = of.kind.table()?;
    let column = index_columns(of)?.into_iter().nth(number.checked_sub(1)?);
    Some(column.map_or(String::new(), |column| match column {
        IndexColumn::Column(column) => quoted(&def.columns[column].name),
        IndexColumn::Expression(sql) => format!("({sql})"),
    }))
}

/// A column of an index.
pub(super) enum IndexColumn<'r> {
    /// A column of the table.
    Column(usize),
    /// The text of an expression.
    Expression(&'r str),
}

/// The keys of an index, then its included columns.
pub(super) fn index_columns(of: &Relation) -> Option<Vec<IndexColumn<'_>>> {
    let def: &TableDef = of.kind.table()?;
    let Some(index) = of.kind.index() else {
        return matches!(of.kind, Kind::PrimaryKey(_))
            .then(|| def.primary_key.iter().map(|&column| IndexColumn::Column(column)).collect());
    };
    let keys = index.keys.iter().map(|key| match key {
        IndexKey::Column(column) => IndexColumn::Column(*column),
        IndexKey::Expression(expression) => IndexColumn::Expression(&expression.sql),
    });
    Some(keys.chain(index.include.iter().map(|&column| IndexColumn::Column(column))).collect())
}

/// Number of keys of an index.
pub(super) fn key_count(of: &Relation) -> usize {
    match (of.kind.index(), of.kind.table()) {
        (Some(index), _) => index.keys.len(),
        (None, Some(def)) => def.primary_key.len(),
        (None, None) => 0,
    }
}
