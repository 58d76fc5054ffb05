//! COMMENT ON TABLE, COLUMN, INDEX, VIEW, SEQUENCE and SCHEMA. The view `keyaki_comments` shows the comments.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{CommentObject, ObjectName, ObjectNamePart};
use keyaki_store::WriteBatch;

use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, DocumentKind, SequenceDef, Table, TableDef, ViewDef, put, put_schema};
use crate::sql::names::plain_ident;
use crate::sql::{Outcome, SqlSession, access, roles, schemas, views};
use crate::{Error, ObjectKind, Result};

/// Maximum length of a comment in bytes: a definition is one row of the catalog.
const COMMENT_BYTES_MAX: usize = 1 << 20;

pub(crate) async fn comment(
    session: &SqlSession,
    execution: &Execution<'_>,
    object: &CommentObject,
    name: &ObjectName,
    comment: Option<String>,
) -> Result<Outcome> {
    if let Some(text) = comment.as_ref().filter(|text| text.len() > COMMENT_BYTES_MAX) {
        return Err(Error::InvalidParameter {
            name: "length of a comment".into(),
            value: text.len().to_string(),
            expected: format!("at most {COMMENT_BYTES_MAX} bytes"),
        });
    }
    // An empty text removes the comment, as in PostgreSQL.
    let comment = comment.filter(|text| !text.is_empty());
    let writer = session.writer(execution, "COMMENT").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let mut changed = Catalog::clone(&catalog);
    let mut batch = WriteBatch::new();
    match object {
        CommentObject::Table => {
            let table = catalog.table(&session.relation(&catalog, name)?)?;
            access::owner(session, &catalog, &table.def.name)?;
            redefine(&mut changed, &mut batch, table, |def| def.comment = comment)?;
        }
        CommentObject::Column => {
            let (table, column) = column(session, &catalog, name)?;
            access::owner(session, &catalog, &table.def.name)?;
            redefine(&mut changed, &mut batch, &table, |def| def.columns[column].comment = comment)?;
        }
        CommentObject::Index => {
            let name = session.relation(&catalog, name)?;
            let found = catalog.index(&name);
            let (table, index) = found.ok_or(Error::NotFound { kind: ObjectKind::Index, name: name.to_string() })?;
            access::owner(session, &catalog, &table.def.name)?;
            redefine(&mut changed, &mut batch, table, |def| def.indexes[index].comment = comment)?;
        }
        CommentObject::View => {
            let name = session.relation(&catalog, name)?;
            let view = views::existing(&catalog, &name)?;
            access::owner(session, &catalog, &name)?;
            let view = ViewDef { comment, ..ViewDef::clone(view) };
            put(&mut batch, DocumentKind::View, &name, &view)?;
            changed.views.insert(name, Arc::new(view));
        }
        CommentObject::Sequence => {
            let name = session.relation(&catalog, name)?;
            let owner = catalog.sequences().find(|(def, _)| def.name == name);
            let Some((def, owner)) = owner else {
                return Err(Error::NotFound { kind: ObjectKind::Sequence, name: name.to_string() });
            };
            access::owner(session, &catalog, &name)?;
            match owner {
                Some((table, column)) => {
                    let table = catalog.table(table)?;
                    let column = table.column(column)?;
                    let of = |def: &mut TableDef| {
                        if let Some(identity) = &mut def.columns[column].identity {
                            identity.sequence.comment = comment;
                        }
                    };
                    redefine(&mut changed, &mut batch, table, of)?;
                }
                None => {
                    let def = SequenceDef { comment, ..def.clone() };
                    put(&mut batch, DocumentKind::Sequence, &name, &def)?;
                    changed.sequences.insert(name, Arc::new(def));
                }
            }
        }
        CommentObject::Schema => {
            let name = schemas::known(&catalog, name)?;
            access::schema_owner(session, &catalog, &name)?;
            changed.schema_comments.remove(&name);
            changed.schema_comments.extend(comment.map(|comment| (name.clone(), comment)));
            put_schema(&mut batch, &changed, &name)?;
        }
        CommentObject::Role | CommentObject::User => {
            roles::comment(session, &mut changed, &mut batch, name, comment)?;
        }
        other => return Err(Error::Unsupported(format!("COMMENT ON {other}"))),
    }
    session.engine.commit_catalog(&writer, batch, changed).await?;
    Ok(Outcome::done("COMMENT"))
}

/// Stores a changed definition of a table.
pub(crate) fn redefine(
    catalog: &mut Catalog,
    batch: &mut WriteBatch,
    table: &Table,
    change: impl FnOnce(&mut TableDef),
) -> Result<()> {
    let mut def = table.def.clone();
    change(&mut def);
    put(batch, DocumentKind::Table, &def.name, &def)?;
    catalog.tables.insert(def.name.clone(), Arc::new(Table::new(def, table.statistics.clone())?));
    Ok(())
}

/// The table and the position of a column with a qualified name.
fn column(session: &SqlSession, catalog: &Catalog, name: &ObjectName) -> Result<(Arc<Table>, usize)> {
    match name.0.as_slice() {
        [relation @ .., ObjectNamePart::Identifier(column)] if !relation.is_empty() => {
            let table = catalog.table(&session.relation(catalog, &ObjectName(relation.to_vec()))?)?;
            Ok((table.clone(), table.column(&plain_ident(column))?))
        }
        _ => Err(Error::syntax("column name must be qualified")),
    }
}
