//! Checks of privileges.
//!
//! Every statement is checked against the definitions that it sees:
//!
//! - [`StatementState`](super::state::StatementState) checks SELECT for all relations of a query when it plans the query,
//!   with the authority of the session, or of the owner of the view whose query it is. Queries that the database adds
//!   itself, as those of foreign keys, are not checked.
//! - Statements that change rows check their targets ([`Target`]); definitions check owners and schemas.
//! - Plans that are kept belong to the roles of a session and one version of the catalog ([`super::prepared`]).
//!
//! In a transaction that keeps its snapshot, the newest definitions have to permit a statement, too: REVOKE takes effect for
//! the next statement of every session.

use std::borrow::Cow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectName, Visitor,
};

use super::SqlSession;
use super::visit::walk;
use crate::catalog::{Access, Authority, Catalog, DefaultKind, Privileges, RelationName, Table, TableDef};
use crate::{Error, ObjectKind, Result};

/// A relation: its kind, and its access.
pub(super) fn relation_access<'a>(catalog: &'a Catalog, name: &RelationName) -> Option<(ObjectKind, Cow<'a, Access>)> {
    if let Some(table) = catalog.tables.get(name) {
        return Some((ObjectKind::Table, Cow::Borrowed(&table.def.access)));
    }
    if let Some(view) = catalog.views.get(name) {
        return Some((ObjectKind::View, Cow::Borrowed(&view.access)));
    }
    sequence_access(catalog, name).map(|access| (ObjectKind::Sequence, access))
}

/// The access to a sequence. That of an identity column belongs to the owner of the table.
pub(super) fn sequence_access<'a>(catalog: &'a Catalog, name: &RelationName) -> Option<Cow<'a, Access>> {
    if let Some(def) = catalog.sequences.get(name) {
        return Some(Cow::Borrowed(&def.access));
    }
    let (def, table) = catalog.sequences().find(|(def, _)| def.name == *name)?;
    let owner = table.and_then(|(table, _)| catalog.tables.get(table)?.def.access.owner.clone());
    Some(Cow::Owned(Access { owner, grants: def.access.grants.clone() }))
}

fn denied(kind: ObjectKind, name: &str) -> Error {
    Error::InsufficientPrivilege(format!("permission denied for {kind} {name}"))
}

/// Checks all of some privileges for a relation. Names of other relations than those of the catalog, such as system views, are
/// permitted.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn relation(
    authority: &Authority,
    catalog: &Catalog,
    name: &RelationName,
    privileges: Privileges,
) -> Result<()> {
    relation_with(authority, catalog, name, |authority, access| authority.holds(access, privileges))
}

/// As [`relation`], for at least one of some privileges.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn relation_any(
    authority: &Authority,
    catalog: &Catalog,
    name: &RelationName,
    privileges: Privileges,
) -> Result<()> {
    relation_with(authority, catalog, name, |authority, access| authority.holds_any(access, privileges))
}

fn relation_with(
    authority: &Authority,
    catalog: &Catalog,
    name: &RelationName,
    holds: impl Fn(&Authority, &Access) -> bool,
) -> Result<()> {
    if authority.is_all() {
        return Ok(());
    }
    let check = |authority: &Authority, catalog: &Catalog| {
        let Some((kind, access)) = relation_access(catalog, name) else { return Ok(()) };
        schema(authority, catalog, &name.schema, Privileges::USAGE)?;
        match holds(authority, &access) {
            true => Ok(()),
            false => Err(denied(kind, &name.name)),
        }
    };
    check(authority, catalog)?;
    match authority.newest() {
        Some((authority, newest)) => check(authority, newest),
        None => Ok(()),
    }
}

/// Checks privileges for a schema. Everyone may use the schemas of temporary objects.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn schema(authority: &Authority, catalog: &Catalog, name: &str, privileges: Privileges) -> Result<()> {
    let is_permitted = authority.is_all()
        || name.starts_with(crate::catalog::TEMPORARY_PREFIX)
        || (privileges == Privileges::USAGE && authority.uses_all_schemas())
        || authority.holds(&catalog.access_of_schema(name), privileges);
    match is_permitted {
        true => Ok(()),
        false => Err(denied(ObjectKind::Schema, name)),
    }
}

/// Checks that a relation may be created.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn creation(session: &SqlSession, catalog: &Catalog, name: &RelationName) -> Result<()> {
    schema(&session.authority(catalog)?, catalog, &name.schema, Privileges::CREATE)
}

/// Checks that a relation belongs to the session. A name without a relation is permitted.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn owner(session: &SqlSession, catalog: &Catalog, name: &RelationName) -> Result<()> {
    let authority = session.authority(catalog)?;
    match relation_access(catalog, name) {
        Some((kind, access)) if !authority.owns(&access) => {
            Err(Error::InsufficientPrivilege(format!("must be owner of {kind} {}", name.name)))
        }
        _ => Ok(()),
    }
}

/// Checks that a relation may be dropped: it, or its schema, belongs to the session.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn removal(session: &SqlSession, catalog: &Catalog, name: &RelationName) -> Result<()> {
    match session.authority(catalog)?.owns(&catalog.access_of_schema(&name.schema)) {
        true => Ok(()),
        false => owner(session, catalog, name),
    }
}

/// Checks that a schema belongs to the session.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn schema_owner(session: &SqlSession, catalog: &Catalog, name: &str) -> Result<()> {
    match session.authority(catalog)?.owns(&catalog.access_of_schema(name)) {
        true => Ok(()),
        false => Err(Error::InsufficientPrivilege(format!("must be owner of schema {name}"))),
    }
}

/// Checks that the session may create schemas.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn schema_creation(session: &SqlSession, catalog: &Catalog) -> Result<()> {
    let is_permitted =
        session.authority(catalog)?.is_all() || session.current_role(catalog)?.is_some_and(|role| role.create_schema);
    match is_permitted {
        true => Ok(()),
        false => Err(Error::InsufficientPrivilege("permission denied to create schemas (CREATEDB is needed)".into())),
    }
}

/// Checks that the session has no role, or that of a superuser. `what`: the statement, for example `execute CHECKPOINT`.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn superuser(session: &SqlSession, what: &str) -> Result<()> {
    if session.acting().is_none() {
        return Ok(());
    }
    let (catalog, _) = session.moment()?;
    match session.authority(&catalog)?.is_all() {
        true => Ok(()),
        false => Err(Error::InsufficientPrivilege(format!("must be superuser to {what}"))),
    }
}

/// The access to an object that the session creates: its owner, with the default privileges of this role. `schema`: that of
/// the object; `None` for a new schema.
///
/// # Errors
/// `NotFound` if the role of the session was dropped.
pub(super) fn new_access(
    session: &SqlSession,
    catalog: &Catalog,
    kind: DefaultKind,
    schema: Option<&str>,
) -> Result<Access> {
    let role = session.current_role(catalog)?;
    Ok(role.map_or_else(Access::default, |role| role.access_to_new(kind, schema)))
}

/// Gives the sequences of the identity columns of a table that are not in `old` the default privileges of the table's owner.
pub(super) fn default_identities(catalog: &Catalog, old: Option<&TableDef>, def: &mut TableDef) {
    let Some(owner) = def.access.owner.as_ref().and_then(|owner| catalog.roles.get(owner)) else { return };
    let identities = old.iter().flat_map(|def| &def.columns).filter_map(|column| column.identity.as_ref());
    let known: Vec<u64> = identities.map(|identity| identity.sequence.lasting_id()).collect();
    for identity in def.columns.iter_mut().filter_map(|column| column.identity.as_mut()) {
        let sequence = &mut identity.sequence;
        if !known.contains(&sequence.lasting_id()) {
            let Access { grants, .. } = owner.access_to_new(DefaultKind::Sequences, Some(&*sequence.name.schema));
            sequence.access = Access { owner: None, grants };
        }
    }
}

/// The privileges that a change of rows needs for its target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    needed: Privileges,
    /// The statement may take values of the target's identity columns without a privilege on their sequences.
    takes_identities: bool,
}

impl Target {
    /// A change that also reads the target if `reads`.
    pub fn new(change: Privileges, reads: bool) -> Target {
        let needed = if reads { change.and(Privileges::SELECT) } else { change };
        Target { needed, takes_identities: change.has(Privileges::INSERT) }
    }

    /// The target of an update that assigns DEFAULT to a column if `assigns_default`.
    pub fn with_default(self, assigns_default: bool) -> Target {
        Target { takes_identities: self.takes_identities || assigns_default, ..self }
    }

    /// # Errors
    /// `InsufficientPrivilege`.
    pub fn check(self, authority: &Authority, catalog: &Catalog, table: &Table) -> Result<()> {
        relation(authority, catalog, &table.def.name, self.needed)
    }

    /// True for changes that may take values of identity columns.
    pub fn takes_identities(self) -> bool {
        self.takes_identities
    }
}

/// Checks that the session may insert rows into a table.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(crate) fn insertion(session: &SqlSession, catalog: &Catalog, table: &Table) -> Result<()> {
    relation(&session.authority(catalog)?, catalog, &table.def.name, Privileges::INSERT)
}

/// True if a function has `*` or `t.*` as an argument.
fn has_wildcard(call: &Function) -> bool {
    let FunctionArguments::List(list) = &call.args else { return false };
    list.args.iter().any(|argument| match argument {
        FunctionArg::Unnamed(arg) | FunctionArg::Named { arg, .. } | FunctionArg::ExprNamed { arg, .. } => {
            !matches!(arg, FunctionArgExpr::Expr(_))
        }
    })
}

/// True unless expressions have neither columns nor subqueries.
pub(super) fn reads<'a>(expressions: impl IntoIterator<Item = &'a Expr>) -> bool {
    struct Columns;
    impl Visitor for Columns {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> std::ops::ControlFlow<()> {
            if matches!(expr, Expr::Function(call) if has_wildcard(call)) {
                // A whole row.
                return std::ops::ControlFlow::Break(());
            }
            let is_plain = matches!(
                expr,
                Expr::Value(_)
                    | Expr::Function(_)
                    | Expr::Cast { .. }
                    | Expr::Nested(_)
                    | Expr::UnaryOp { .. }
                    | Expr::BinaryOp { .. }
                    | Expr::TypedString(_)
                    | Expr::Interval(_)
            );
            let is_default = matches!(expr, Expr::Identifier(word) if word.value.eq_ignore_ascii_case("default"));
            match is_plain || is_default {
                true => std::ops::ControlFlow::Continue(()),
                false => std::ops::ControlFlow::Break(()),
            }
        }

        fn pre_visit_relation(&mut self, _: &ObjectName) -> std::ops::ControlFlow<()> {
            std::ops::ControlFlow::Break(())
        }
    }
    expressions.into_iter().any(|expr| walk(expr, &mut Columns).is_break())
}
