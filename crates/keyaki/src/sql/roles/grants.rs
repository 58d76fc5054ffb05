//! GRANT and REVOKE: privileges on tables, views, sequences and schemas. Memberships are granted by [`super::define`].

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{Ident, ObjectName};
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use keyaki_store::WriteBatch;

use super::words::{accept, expect, identifier, list, next, role_name, unexpected};
use super::{Members, RoleName, RoleStatement};
use crate::base::interrupt::Execution;
use crate::base::syntax;
use crate::catalog::{Access, Authority, Catalog, DocumentKind, Privileges, RelationName, put, put_schema};
use crate::sql::access::sequence_access;
use crate::sql::ddl::redefine;
use crate::sql::names::plain_ident;
use crate::sql::{Outcome, SqlSession, schemas};
use crate::{Error, ObjectKind, Result};

/// A parsed statement.
#[derive(Debug)]
pub(in crate::sql) struct GrantStatement {
    is_grant: bool,
    /// WITH GRANT OPTION, or GRANT OPTION FOR.
    grant_option: bool,
    /// `None` for ALL PRIVILEGES.
    privileges: Option<Vec<String>>,
    objects: Objects,
    /// `None` for PUBLIC.
    grantees: Vec<Option<RoleName>>,
    granted_by: Option<RoleName>,
    cascades: bool,
}

#[derive(Debug)]
enum Objects {
    Relations(Vec<ObjectName>),
    Sequences(Vec<ObjectName>),
    TablesIn(Vec<Ident>),
    SequencesIn(Vec<Ident>),
    Schemas(Vec<Ident>),
}

/// An object whose access changes.
#[derive(Debug)]
enum Object {
    Table(RelationName),
    View(RelationName),
    Sequence(RelationName),
    Schema(String),
}

/// Parses a statement whose first word is GRANT or REVOKE.
///
/// # Errors
/// `Syntax`, `Unsupported`.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<RoleStatement> {
    let is_grant = next(parser).is_some_and(|word| word == "GRANT");
    let mut grant_option = !is_grant && accept(parser, &["GRANT", "OPTION", "FOR"]);
    let admin_option = !is_grant && accept(parser, &["ADMIN", "OPTION", "FOR"]);
    // A list of privileges or of roles.
    let words = list(parser, |parser| {
        let ident = identifier(parser)?;
        match parser.peek_token().token {
            Token::LParen => Err(Error::Unsupported("privileges for columns (grant them for the table)".into())),
            _ => Ok(ident),
        }
    })?;
    let is_all =
        matches!(words.as_slice(), [word] if word.quote_style.is_none() && word.value.eq_ignore_ascii_case("all"));
    if is_all {
        let _ = accept(parser, &["PRIVILEGES"]);
        if parser.peek_token().token == Token::LParen {
            return Err(Error::Unsupported("privileges for columns (grant them for the table)".into()));
        }
    }
    if admin_option || !accept(parser, &["ON"]) {
        return parse_members(parser, words, is_grant, admin_option);
    }
    let objects = parse_objects(parser)?;
    let grantees = parse_grantees(parser, is_grant)?;
    grant_option |= is_grant && accept(parser, &["WITH", "GRANT", "OPTION"]);
    let granted_by = if accept(parser, &["GRANTED", "BY"]) { Some(role_name(parser)?) } else { None };
    let cascades = !is_grant && accept(parser, &["CASCADE"]);
    let _ = !is_grant && !cascades && accept(parser, &["RESTRICT"]);
    let privileges = (!is_all).then(|| words.iter().map(|word| word.value.to_ascii_uppercase()).collect());
    let statement = GrantStatement { is_grant, grant_option, privileges, objects, grantees, granted_by, cascades };
    Ok(RoleStatement::Grant(Box::new(statement)))
}

/// TO or FROM, and the grantees; `None` for PUBLIC.
pub(super) fn parse_grantees(parser: &mut Parser<'_>, is_grant: bool) -> Result<Vec<Option<RoleName>>> {
    expect(parser, &[if is_grant { "TO" } else { "FROM" }])?;
    list(parser, |parser| {
        let _ = accept(parser, &["GROUP"]);
        Ok(if accept(parser, &["PUBLIC"]) { None } else { Some(role_name(parser)?) })
    })
}

/// The rest of GRANT and REVOKE of memberships.
fn parse_members(
    parser: &mut Parser<'_>,
    roles: Vec<Ident>,
    is_grant: bool,
    admin_option: bool,
) -> Result<RoleStatement> {
    expect(parser, &[if is_grant { "TO" } else { "FROM" }])?;
    let members = list(parser, role_name)?;
    let mut admin = admin_option.then_some(false);
    if is_grant && accept(parser, &["WITH"]) {
        expect(parser, &["ADMIN"]).map_err(|_| {
            Error::Unsupported("WITH INHERIT and WITH SET (members inherit privileges, and may use SET ROLE)".into())
        })?;
        let word = next(parser).unwrap_or_default();
        admin = match word.as_str() {
            "OPTION" | "TRUE" => Some(true),
            "FALSE" => Some(false),
            _ => return Err(unexpected(parser, "OPTION, TRUE or FALSE")),
        };
    }
    if accept(parser, &["GRANTED", "BY"]) {
        drop(role_name(parser)?);
    }
    let _ = !is_grant && (accept(parser, &["CASCADE"]) || accept(parser, &["RESTRICT"]));
    Ok(RoleStatement::Members(Members { roles, members, is_grant, admin }))
}

fn parse_objects(parser: &mut Parser<'_>) -> Result<Objects> {
    let name = |parser: &mut Parser<'_>| parser.parse_object_name(false).map_err(syntax);
    if accept(parser, &["ALL"]) {
        let kind = next(parser).unwrap_or_default();
        expect(parser, &["IN", "SCHEMA"])?;
        let schemas = list(parser, identifier)?;
        return match kind.as_str() {
            "TABLES" => Ok(Objects::TablesIn(schemas)),
            "SEQUENCES" => Ok(Objects::SequencesIn(schemas)),
            other => Err(Error::Unsupported(format!("privileges on ALL {other}"))),
        };
    }
    for kind in
        ["DATABASE", "FUNCTION", "LANGUAGE", "TYPE", "DOMAIN", "TABLESPACE", "PARAMETER", "PROCEDURE", "ROUTINE"]
    {
        // A name follows, unless the word is the name of a table.
        let is_kind = match parser.peek_nth_token(1).token {
            Token::Word(word) => !matches!(word.value.to_ascii_uppercase().as_str(), "TO" | "FROM"),
            _ => false,
        };
        if is_kind && accept(parser, &[kind]) {
            return Err(Error::Unsupported(format!("privileges on {kind}")));
        }
    }
    if accept(parser, &["SCHEMA"]) {
        return Ok(Objects::Schemas(list(parser, identifier)?));
    }
    if accept(parser, &["SEQUENCE"]) {
        return Ok(Objects::Sequences(list(parser, name)?));
    }
    let _ = accept(parser, &["TABLE"]);
    match parser.peek_token().token {
        Token::Word(_) => Ok(Objects::Relations(list(parser, name)?)),
        _ => Err(unexpected(parser, "an object")),
    }
}

/// Executes a statement.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, statement: GrantStatement) -> Result<Outcome> {
    let tag = if statement.is_grant { "GRANT" } else { "REVOKE" };
    let writer = session.writer(execution, tag).await?;
    let (catalog, _) = session.engine.latest(&writer);
    let authority = session.authority(&catalog)?;
    let grantees = statement.grantees.iter().map(|grantee| {
        let name = grantee.as_ref().map(|grantee| grantee.existing(session, &catalog)).transpose()?;
        match name {
            None if statement.is_grant && statement.grant_option => {
                Err(Error::InvalidGrant("grant options can only be granted to roles".into()))
            }
            name => Ok(name),
        }
    });
    let grantees = grantees.collect::<Result<Vec<_>>>()?;
    if let Some(by) = &statement.granted_by {
        let by = by.existing(session, &catalog)?;
        if session.current_role(&catalog)?.is_none_or(|role| role.name != by) {
            return Err(Error::Unsupported("GRANTED BY another role than the current user".into()));
        }
    }
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    for object in objects(session, &catalog, &statement.objects)? {
        let access = object.access(&catalog);
        let changed_access = statement.change(&authority, &object, access.clone(), &grantees)?;
        if changed_access != access {
            object.put(&mut changed, &mut batch, changed_access)?;
        }
    }
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done(tag))
}

impl GrantStatement {
    /// The changed access to an object.
    ///
    /// # Errors
    /// `InvalidGrant`, `InsufficientPrivilege`, `DependentPrivileges`.
    fn change(
        &self,
        authority: &Authority,
        object: &Object,
        mut access: Access,
        grantees: &[Option<String>],
    ) -> Result<Access> {
        let all = object.privileges();
        let wanted = wanted(self.privileges.as_deref(), all, object.kind())?;
        let (by, grantable) = authority.grantor(&access, all);
        let by = by.map(String::from);
        let privileges = wanted.common(grantable);
        if privileges.is_empty() || (self.privileges.is_some() && privileges != wanted) {
            return Err(Error::InsufficientPrivilege(format!(
                "permission denied for {} {}",
                object.kind(),
                object.name()
            )));
        }
        for to in grantees {
            if self.is_grant {
                // The owner holds all privileges.
                if to.is_none() || *to != access.owner {
                    let grantable = if self.grant_option { privileges } else { Privileges::NONE };
                    access.grant(to.as_deref(), by.as_deref(), privileges, grantable);
                }
            } else if access.revoke(to.as_deref(), by.as_deref(), privileges, self.grant_option) && !self.cascades {
                return Err(Error::DependentPrivileges(
                    "dependent privileges exist (use CASCADE to revoke them too)".into(),
                ));
            }
        }
        Ok(access)
    }
}

/// The privileges with some names, or `all` of a kind of objects.
///
/// # Errors
/// `InvalidGrant` for privileges of other objects, `Syntax`.
pub(super) fn wanted(names: Option<&[String]>, all: Privileges, kind: ObjectKind) -> Result<Privileges> {
    let Some(names) = names else { return Ok(all) };
    names.iter().try_fold(Privileges::NONE, |wanted, name| match Privileges::named(name) {
        Some(privilege) if all.has(privilege) => Ok(wanted.and(privilege)),
        Some(_) => Err(Error::InvalidGrant(format!("invalid privilege type {name} for {kind}"))),
        None => Err(Error::syntax(format!("unrecognized privilege type \"{}\"", name.to_ascii_lowercase()))),
    })
}

/// The objects of a statement.
///
/// # Errors
/// `NotFound`, `WrongObjectType`.
fn objects(session: &SqlSession, catalog: &Catalog, named: &Objects) -> Result<Vec<Object>> {
    let relation = |name: &ObjectName| -> Result<Object> {
        let name = session.relation(catalog, name)?;
        if catalog.tables.contains_key(&name) {
            Ok(Object::Table(name))
        } else if catalog.views.contains_key(&name) {
            Ok(Object::View(name))
        } else if catalog.sequence(&name).is_some() {
            Ok(Object::Sequence(name))
        } else {
            Err(Error::NotFound { kind: ObjectKind::Relation, name: name.to_string() })
        }
    };
    let schema = |ident: &Ident| schemas::known(catalog, &ObjectName::from(vec![ident.clone()]));
    match named {
        Objects::Relations(names) => names.iter().map(relation).collect(),
        Objects::Sequences(names) => {
            let sequence = |name: &ObjectName| match relation(name)? {
                Object::Sequence(name) => Ok(Object::Sequence(name)),
                other => Err(crate::sql::sequences::missing(catalog, other.relation())),
            };
            names.iter().map(sequence).collect()
        }
        Objects::TablesIn(schemas) => {
            let schemas = schemas.iter().map(schema).collect::<Result<Vec<_>>>()?;
            let is_in = |name: &&RelationName| schemas.iter().any(|schema| **schema == *name.schema);
            let tables = catalog.tables.keys().filter(is_in).cloned().map(Object::Table);
            Ok(tables.chain(catalog.views.keys().filter(is_in).cloned().map(Object::View)).collect())
        }
        Objects::SequencesIn(schemas) => {
            let schemas = schemas.iter().map(schema).collect::<Result<Vec<_>>>()?;
            let names = catalog.sequences().map(|(def, _)| &def.name);
            let names = names.filter(|name| schemas.iter().any(|schema| **schema == *name.schema));
            Ok(names.cloned().map(Object::Sequence).collect())
        }
        Objects::Schemas(names) => names.iter().map(|name| schema(name).map(Object::Schema)).collect(),
    }
}

impl Object {
    fn privileges(&self) -> Privileges {
        match self {
            Object::Table(_) | Object::View(_) => Privileges::OF_TABLES,
            Object::Sequence(_) => Privileges::OF_SEQUENCES,
            Object::Schema(_) => Privileges::OF_SCHEMAS,
        }
    }

    fn kind(&self) -> ObjectKind {
        match self {
            Object::Table(_) => ObjectKind::Table,
            Object::View(_) => ObjectKind::View,
            Object::Sequence(_) => ObjectKind::Sequence,
            Object::Schema(_) => ObjectKind::Schema,
        }
    }

    fn name(&self) -> &str {
        match self {
            Object::Table(name) | Object::View(name) | Object::Sequence(name) => &name.name,
            Object::Schema(name) => name,
        }
    }

    /// The name of a relation; for a schema, that of no relation.
    fn relation(&self) -> &RelationName {
        static NONE: std::sync::LazyLock<RelationName> = std::sync::LazyLock::new(|| RelationName::public(""));
        match self {
            Object::Table(name) | Object::View(name) | Object::Sequence(name) => name,
            Object::Schema(_) => &NONE,
        }
    }

    fn access(&self, catalog: &Catalog) -> Access {
        let found = match self {
            Object::Table(name) => catalog.tables.get(name).map(|table| table.def.access.clone()),
            Object::View(name) => catalog.views.get(name).map(|view| view.access.clone()),
            Object::Sequence(name) => sequence_access(catalog, name).map(Cow::into_owned),
            Object::Schema(name) => Some(catalog.access_of_schema(name).into_owned()),
        };
        found.unwrap_or_default()
    }

    /// Stores a changed access.
    fn put(&self, changed: &mut Catalog, batch: &mut WriteBatch, access: Access) -> Result<()> {
        match self {
            Object::Table(name) => {
                let table = changed.table(name)?.clone();
                redefine(changed, batch, &table, |def| def.access = access)
            }
            Object::View(name) => {
                let Some(view) = changed.views.get_mut(name) else { return Ok(()) };
                Arc::make_mut(view).access = access;
                put(batch, DocumentKind::View, name, &**view)
            }
            Object::Sequence(name) => put_sequence_access(changed, batch, name, access),
            Object::Schema(name) => {
                changed.schema_access.insert(name.clone(), Arc::new(access));
                put_schema(batch, changed, name)
            }
        }
    }
}

/// Stores a changed access of a sequence. The owner of that of an identity column is the owner of the table.
fn put_sequence_access(
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    name: &RelationName,
    access: Access,
) -> Result<()> {
    if let Some(def) = changed.sequences.get_mut(name) {
        Arc::make_mut(def).access = access;
        return put(batch, DocumentKind::Sequence, name, &**def);
    }
    let found = changed.sequences().find(|(def, _)| def.name == *name).and_then(|(_, owner)| owner);
    let Some((table, column)) = found.map(|(table, column)| (table.clone(), column.to_string())) else { return Ok(()) };
    let table = changed.table(&table)?.clone();
    redefine(changed, batch, &table, |def| {
        let columns = def.columns.iter_mut().filter(|other| other.name == column);
        let identities = columns.filter_map(|column| column.identity.as_mut());
        identities
            .for_each(|identity| identity.sequence.access = Access { owner: None, grants: access.grants.clone() });
    })
}

/// Makes a role the owner of a relation or a schema: OWNER TO.
///
/// # Errors
/// `NotFound`; `InsufficientPrivilege` unless the session owns the object and is a member of the role, which may create
/// objects in the schema.
pub(in crate::sql) fn change_owner(
    session: &SqlSession,
    catalog: &Catalog,
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    owned: &Owned,
    new: &RoleName,
) -> Result<()> {
    let new = new.existing(session, catalog)?;
    if !catalog.roles.contains_key(&new) {
        return Err(Error::Unsupported(format!("objects of the predefined role \"{new}\"")));
    }
    let object = match owned {
        Owned::Relation(name) if catalog.tables.contains_key(name) => Object::Table(name.clone()),
        Owned::Relation(name) if catalog.views.contains_key(name) => Object::View(name.clone()),
        Owned::Relation(name) if catalog.sequences.contains_key(name) => Object::Sequence(name.clone()),
        Owned::Relation(name) => {
            return Err(Error::Unsupported(format!("OWNER TO for \"{name}\" (it belongs to the owner of its table)")));
        }
        Owned::Schema(name) => Object::Schema(name.clone()),
    };
    let authority = session.authority(catalog)?;
    if !authority.owns(&object.access(catalog)) {
        let problem = format!("must be owner of {} {}", object.kind(), object.name());
        return Err(Error::InsufficientPrivilege(problem));
    }
    if !authority.is_member_of(&new) {
        return Err(Error::InsufficientPrivilege(format!("must be member of role \"{new}\"")));
    }
    if let (false, Owned::Relation(name), Some(new)) = (authority.is_all(), owned, Authority::of(catalog, &new)) {
        crate::sql::access::schema(&new, catalog, &name.schema, Privileges::CREATE)?;
    }
    if matches!(owned, Owned::Schema(_)) && !authority.is_all() {
        crate::sql::access::schema_creation(session, catalog)?;
    }
    give(catalog, changed, batch, &object, &new)
}

/// Makes a role the owner of an object of `catalog`.
fn give(catalog: &Catalog, changed: &mut Catalog, batch: &mut WriteBatch, object: &Object, new: &str) -> Result<()> {
    let mut access = object.access(catalog);
    let old = access.owner.clone();
    access.change_owner(Some(new));
    // The privileges of the sequences of identity columns come from the same owner.
    if let Object::Table(name) = object {
        let table = changed.table(name)?.clone();
        return redefine(changed, batch, &table, |def| {
            def.access = access;
            for identity in def.columns.iter_mut().filter_map(|column| column.identity.as_mut()) {
                let mut of_sequence = Access { owner: old.clone(), ..std::mem::take(&mut identity.sequence.access) };
                of_sequence.change_owner(Some(new));
                identity.sequence.access = Access { owner: None, grants: of_sequence.grants };
            }
        });
    }
    object.put(changed, batch, access)
}

/// Gives all objects of some roles to another one.
///
/// # Errors
/// None is expected.
pub(super) fn give_all(
    catalog: &Catalog,
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    owners: &[String],
    new: &str,
) -> Result<()> {
    let tables = catalog.tables.keys().cloned().map(Object::Table);
    let views = catalog.views.keys().cloned().map(Object::View);
    let sequences = catalog.sequences.keys().cloned().map(Object::Sequence);
    let schemas = catalog.schema_access.keys().cloned().map(Object::Schema);
    for object in tables.chain(views).chain(sequences).chain(schemas) {
        if object.access(catalog).owner.is_some_and(|owner| owners.contains(&owner)) {
            give(catalog, changed, batch, &object, new)?;
        }
    }
    Ok(())
}

/// Gives a view the owner and the privileges that it had in a damaged database.
///
/// # Errors
/// Errors of the commit.
pub(in crate::sql) async fn restore_access(
    session: &SqlSession,
    execution: &Execution<'_>,
    view: &RelationName,
    access: &Access,
) -> Result<()> {
    let writer = session.writer(execution, "ALTER VIEW").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    Object::View(view.clone()).put(&mut changed, &mut batch, access.clone())?;
    session.engine.commit_catalog(&writer, batch, changed).await
}

/// An object whose owner changes.
#[derive(Debug)]
pub(in crate::sql) enum Owned {
    Relation(RelationName),
    Schema(String),
}

/// The role of OWNER TO in sqlparser's form.
pub(in crate::sql) fn owner_of(owner: &datafusion::sql::sqlparser::ast::Owner) -> RoleName {
    use datafusion::sql::sqlparser::ast::Owner;
    match owner {
        Owner::Ident(ident) => RoleName::Named(Ident::with_quote('"', plain_ident(ident))),
        Owner::CurrentRole | Owner::CurrentUser => RoleName::CurrentUser,
        Owner::SessionUser => RoleName::SessionUser,
    }
}
