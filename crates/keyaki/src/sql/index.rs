//! CREATE INDEX.
//!
//! The definition and the tree are created in one write batch; `write::create_index` adds the entries of existing rows
//! and commits; [`super::concurrent_index`] does so beside writers. Expressions and the predicate of a partial index are stored as SQL text, as CHECK conditions are.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{CreateIndex, Expr, Function, ObjectNamePart};
use keyaki_store::WriteBatch;

use super::access;
use super::ddl::{check_distinct, checks, column_position, free_name, key_expr};
use super::expressions;
use super::names::{new_sibling, plain_ident};
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, Table};
use crate::catalog::{DocumentKind, IndexDef, IndexExpression, IndexKey, IndexMethod, extend_format, put};
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::write;
use crate::{Error, Result};

pub(crate) async fn create(session: &SqlSession, execution: &Execution<'_>, create: CreateIndex) -> Result<Outcome> {
    check_plain(&create)?;
    if create.concurrently {
        return Box::pin(super::concurrent_index::create(session, execution, &create)).await;
    }
    let engine = &session.engine;
    let writer = session.writer(execution, "CREATE INDEX").await?;
    let (catalog, _) = engine.latest(&writer);
    let Some(NewIndex { table, position, .. }) = define(session, &catalog, &create)? else {
        return Ok(Outcome::done("CREATE INDEX"));
    };
    let mut batch = WriteBatch::new();
    batch.create_tree(table.def.indexes[position].tree, &table.index_schemas[position]);
    put_definition(&mut batch, &table, position)?;
    let mut changed = Catalog::clone(&catalog);
    changed.tables.insert(table.def.name.clone(), table.clone());
    write::create_index(&session.write(writer), &table, position, batch, changed).await?;
    Ok(Outcome::done("CREATE INDEX"))
}

/// An index that is not in the catalog yet.
pub(super) struct NewIndex {
    /// The table without the index.
    pub old: Arc<Table>,
    /// The table with the index, with compiled expressions.
    pub table: Arc<Table>,
    /// Position of the index in the definition of `table`.
    pub position: usize,
}

/// The index of a statement; `None` if it exists and the statement says IF NOT EXISTS.
pub(super) fn define(session: &SqlSession, catalog: &Catalog, create: &CreateIndex) -> Result<Option<NewIndex>> {
    let engine = &session.engine;
    let old = catalog.table(&session.relation(catalog, &create.table_name)?)?.clone();
    access::owner(session, catalog, &old.def.name)?;
    let name = create.name.as_ref().map(|name| new_sibling(name, &old.def.name)).transpose()?;
    let (keys, include) = keys(session, &old, create)?;
    let name = match name {
        Some(name) => name,
        None if create.if_not_exists => return Err(Error::syntax("CREATE INDEX IF NOT EXISTS requires an index name")),
        None => {
            let names: Vec<String> = keys.iter().map(|key| key_name(&old, key)).collect();
            old.def.name.sibling(free_name(catalog, &old.def, &names, "idx"))
        }
    };
    if create.if_not_exists && catalog.index(&name).is_some() {
        super::notices::relation_exists(session, &name);
        return Ok(None);
    }
    catalog.check_free(&name)?;
    let method = method(create)?;
    let (vast, compression) = super::storage::of_index(create, method, engine.memory_index_bytes_max)?;
    if method == IndexMethod::Vast {
        super::vast::check_key(&old.def, &keys[0])?;
    }
    let tree = match method {
        IndexMethod::Betree | IndexMethod::Vast => engine.store.new_tree_id(),
        IndexMethod::Masstree => engine.store.new_memory_tree_id(),
    };
    let mut def = old.def.clone();
    let predicate = create.predicate.as_ref();
    let predicate = predicate.map(|expr| checks::text(expr, &def.name, "an index predicate")).transpose()?;
    let unique = IndexDef::unique(name.name, tree, Vec::new());
    def.indexes.push(IndexDef { method, vast, compression, keys, include, unique: create.unique, predicate, ..unique });
    let position = def.indexes.len() - 1;
    let table = Arc::new(Table::new(def, old.statistics.clone())?);
    expressions::compiled(session, &table)?;
    Ok(Some(NewIndex { old, table, position }))
}

/// Adds the definition of a table with a new index to `batch`.
///
/// # Errors
/// None is expected.
pub(super) fn put_definition(batch: &mut WriteBatch, table: &Table, position: usize) -> Result<()> {
    if table.def.indexes[position].texts().next().is_some() {
        extend_format(batch)?;
    }
    put(batch, DocumentKind::Table, &table.def.name, &table.def)
}

fn check_plain(create: &CreateIndex) -> Result<()> {
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("CREATE INDEX … {what}"))),
        false => Ok(()),
    };
    // The pattern names every field, so that fields added by a new version of sqlparser do not compile unnoticed.
    let CreateIndex {
        name: _,
        table_name: _,
        using: _,
        columns: _,
        unique: _,
        concurrently: _,
        if_not_exists: _,
        include: _,
        nulls_distinct,
        with: _,
        predicate: _,
        index_options,
        alter_options,
    } = create;
    refuse(*nulls_distinct == Some(false), "NULLS NOT DISTINCT")?;
    refuse(!index_options.is_empty() || !alter_options.is_empty(), "with options other than WITH")
}

pub(super) fn method(create: &CreateIndex) -> Result<IndexMethod> {
    let Some(using) = &create.using else { return Ok(IndexMethod::default()) };
    let using = using.to_string().to_lowercase();
    using.parse().map_err(|known| Error::Unsupported(format!("index method \"{using}\" (use one of: {known})")))
}

/// The keys, and the positions of the included columns in the table.
fn keys(session: &SqlSession, table: &Table, create: &CreateIndex) -> Result<(Vec<IndexKey>, Vec<usize>)> {
    let names: Vec<&str> = table.def.columns.iter().map(|c| c.name.as_str()).collect();
    let mut keys = Vec::new();
    for column in &create.columns {
        let key = match key_expr(column)? {
            Expr::Identifier(ident) => IndexKey::Column(column_position(ident, &names)?),
            expr => {
                let sql = checks::text(expr, &table.def.name, "an index expression")?;
                let index = create.name.as_ref().map_or_else(|| sql.clone(), ToString::to_string);
                IndexKey::Expression(IndexExpression {
                    ty: expressions::index_type(&session.engine, table, &sql, &index)?,
                    sql,
                })
            }
        };
        if keys.contains(&key) {
            return Err(Error::DuplicateColumn(key_name(table, &key)));
        }
        keys.push(key);
    }
    let include = create.include.iter().map(|ident| column_position(ident, &names)).collect::<Result<Vec<_>>>()?;
    check_distinct(&include, &names)?;
    Ok((keys, include))
}

/// The name of a key in the default name of an index: as in PostgreSQL, that of the column or function, else `expr`.
fn key_name(table: &Table, key: &IndexKey) -> String {
    let expression = match key {
        IndexKey::Column(column) => return table.def.columns[*column].name.clone(),
        IndexKey::Expression(expression) => expression,
    };
    let function = match crate::sql::parse_expr(&expression.sql) {
        Ok(Expr::Function(Function { name, .. })) => name.0.last().and_then(ObjectNamePart::as_ident).map(plain_ident),
        _ => None,
    };
    function.unwrap_or_else(|| "expr".into())
}
