//! Functions that tell whether a role has privileges: `has_table_privilege` and its relatives, `pg_has_role`.
//!
//! Their arguments are a role (the current user without it), an object and a list of privileges, of which one suffices. Roles and
//! objects are names or OIDs. An OID of no object gives NULL, a name an error.

use super::functions::{Argument, missing, relation, schema};
use super::objects::{CATALOG_SCHEMA, INFORMATION_SCHEMA, Kind, OWNER, OWNER_NAME, Relation, Source};
use super::shapes::Value;
use crate::catalog::{Access, Authority, Catalog, Privileges, TEMPORARY_PREFIX};
use crate::sql::access::relation_access;
use crate::{Error, ObjectKind, Result};

/// A privilege of a list.
struct Wanted {
    name: String,
    /// WITH GRANT OPTION, or WITH ADMIN OPTION.
    with_option: bool,
}

impl Wanted {
    /// The privilege as one of `all`.
    fn of(&self, all: Privileges) -> Result<Privileges> {
        let known = Privileges::named(&self.name).filter(|one| all.has(*one));
        known.ok_or_else(|| self.unknown(&all.names().collect::<Vec<_>>().join(", ")))
    }

    fn unknown(&self, known: &str) -> Error {
        let expected = format!("one of {known}, or a list of these");
        Error::InvalidParameter { name: "privilege".into(), value: self.name.clone(), expected }
    }

    fn is_held(&self, authority: &Authority, access: &Access, all: Privileges) -> Result<bool> {
        let privilege = self.of(all)?;
        Ok(match self.with_option {
            true => authority.may_grant(access, privilege),
            false => authority.holds(access, privilege),
        })
    }
}

/// The privileges of a list.
fn wanted(list: &str) -> Vec<Wanted> {
    let one = |text: &str| {
        let words = text.split_whitespace().map(str::to_ascii_uppercase).collect::<Vec<_>>().join(" ");
        let options = [" WITH GRANT OPTION", " WITH ADMIN OPTION"];
        let without = options.iter().find_map(|option| words.strip_suffix(option));
        Wanted { with_option: without.is_some(), name: without.unwrap_or(&words).into() }
    };
    list.split(',').map(one).collect()
}

/// A role as an argument, PUBLIC included; `None` for an OID of no role.
fn authority(source: &Source, catalog: &Catalog, role: &Argument) -> Result<Option<Authority>> {
    let name = match role {
        Argument::Number(_) => {
            let oid = role.oid();
            let known = source.objects().roles.iter().find(|(known, _)| Some(*known) == oid);
            let Some((oid, name)) = known else { return Ok(None) };
            if *oid == OWNER {
                return Ok(Some(Authority::All));
            }
            name.clone()
        }
        role => role.text().unwrap_or_default().to_string(),
    };
    match Authority::named(catalog, &name) {
        Some(authority) => Ok(Some(authority)),
        None if name == "public" => Ok(Some(Authority::of_public())),
        None if name == OWNER_NAME => Ok(Some(Authority::All)),
        None => Err(missing(ObjectKind::Role, &name)),
    }
}

/// Splits the arguments into the role, the others and the list of privileges, and evaluates `holds` for each privilege. NULL as an
/// argument gives NULL.
fn evaluate<const N: usize>(
    source: &Source,
    args: &[Argument],
    holds: impl Fn(&Authority, &Catalog, &[Argument; N], &Wanted) -> Result<Option<bool>>,
) -> Result<Value> {
    if args.contains(&Argument::Null) {
        return Ok(Value::Null);
    }
    let (role, args) = if args.len() == N + 2 { (Some(&args[0]), &args[1..]) } else { (None, args) };
    let (Some((list, others)), Ok(found)) = (args.split_last(), <&[Argument; N]>::try_from(&args[..N])) else {
        return Ok(Value::Null);
    };
    debug_assert_eq!(others.len(), N);
    let list = list.text().unwrap_or_default();
    let check = |authority: &Authority, catalog: &Catalog| -> Result<Option<bool>> {
        let mut result = Some(false);
        // All are checked: an unknown one is an error.
        for wanted in wanted(list) {
            let one = holds(authority, catalog, found, &wanted)?;
            result = result.zip(one).map(|(result, one)| result || one);
        }
        Ok(result)
    };
    let Some(role) = role else {
        let own = check(&source.authority, &source.catalog)?;
        // REVOKE takes effect also for transactions that keep their snapshot.
        let newest = source.authority.newest().map_or(Ok(own), |(authority, catalog)| check(authority, catalog))?;
        return Ok(own.zip(newest).map(|(own, newest)| own && newest).into());
    };
    match authority(source, &source.catalog, role)? {
        Some(authority) => Ok(check(&authority, &source.catalog)?.into()),
        None => Ok(Value::Null),
    }
}

/// A relation as an argument; `None` for an OID of no relation.
fn named_relation<'s>(source: &'s Source, argument: &Argument) -> Result<Option<&'s Relation>> {
    match argument {
        Argument::Number(_) => Ok(argument.oid().and_then(|oid| source.objects().relation(oid))),
        argument => {
            let name = argument.text().unwrap_or_default();
            relation(source, name)?.map(Some).ok_or_else(|| missing(ObjectKind::Relation, name))
        }
    }
}

/// True if a relation can be used with a privilege.
fn holds_relation(
    source: &Source,
    authority: &Authority,
    catalog: &Catalog,
    relation: &Relation,
    wanted: &Wanted,
    all: Privileges,
) -> Result<bool> {
    let name = match &relation.kind {
        Kind::PrimaryKey(table) | Kind::Index(table, _) => &table.def.name,
        // Everyone may read these.
        Kind::System(_) | Kind::Information => {
            let is_read = wanted.of(all)? == Privileges::SELECT && !wanted.with_option;
            return Ok(authority.is_all() || is_read);
        }
        _ => &relation.name,
    };
    let access = relation_access(catalog, name).map(|(_, access)| access.into_owned());
    // The newest definitions may have no such relation any more.
    wanted.is_held(authority, &access.unwrap_or_else(|| source.access(relation).into_owned()), all)
}

/// `has_table_privilege` and `has_any_column_privilege`.
pub(super) fn of_table(source: &Source, args: &[Argument]) -> Result<Value> {
    evaluate(source, args, |authority, catalog, [relation]: &[Argument; 1], wanted| {
        let Some(relation) = named_relation(source, relation)? else { return Ok(None) };
        holds_relation(source, authority, catalog, relation, wanted, Privileges::OF_TABLES).map(Some)
    })
}

/// `has_column_privilege`: columns have the privileges of their tables.
pub(super) fn of_column(source: &Source, args: &[Argument]) -> Result<Value> {
    evaluate(source, args, |authority, catalog, [relation, column]: &[Argument; 2], wanted| {
        let Some(relation) = named_relation(source, relation)? else { return Ok(None) };
        if let Kind::Table(table) = &relation.kind {
            let columns = &table.def.columns;
            match column {
                Argument::Number(number) if !(1..=columns.len() as i64).contains(number) => return Ok(None),
                Argument::Text(name) if !columns.iter().any(|column| column.name == *name) => {
                    return Err(Error::UndefinedColumn {
                        column: name.clone(),
                        relation: Some(relation.name.name.clone()),
                        similar: Vec::new(),
                    });
                }
                _ => {}
            }
        }
        holds_relation(source, authority, catalog, relation, wanted, Privileges::OF_TABLES).map(Some)
    })
}

/// `has_sequence_privilege`.
pub(super) fn of_sequence(source: &Source, args: &[Argument]) -> Result<Value> {
    evaluate(source, args, |authority, catalog, [relation]: &[Argument; 1], wanted| {
        let Some(relation) = named_relation(source, relation)? else { return Ok(None) };
        if !matches!(relation.kind, Kind::Sequence(..)) {
            return Err(missing(ObjectKind::Sequence, &relation.name.name));
        }
        holds_relation(source, authority, catalog, relation, wanted, Privileges::OF_SEQUENCES).map(Some)
    })
}

/// `has_schema_privilege`.
pub(super) fn of_schema(source: &Source, args: &[Argument]) -> Result<Value> {
    evaluate(source, args, |authority, catalog, [argument]: &[Argument; 1], wanted| {
        let schemas = &source.objects().schemas;
        let oid = match argument {
            Argument::Number(_) => argument.oid(),
            argument => {
                let name = argument.text().unwrap_or_default();
                Some(schema(source, name).ok_or_else(|| missing(ObjectKind::Schema, name))?)
            }
        };
        let Some((oid, name)) = schemas.iter().find(|(known, _)| Some(*known) == oid) else { return Ok(None) };
        let privilege = wanted.of(Privileges::OF_SCHEMAS)?;
        let is_usage = privilege == Privileges::USAGE && !wanted.with_option;
        if [CATALOG_SCHEMA, INFORMATION_SCHEMA].contains(oid) {
            return Ok(Some(authority.is_all() || is_usage));
        }
        if name.starts_with(TEMPORARY_PREFIX) || (is_usage && authority.uses_all_schemas()) {
            return Ok(Some(true));
        }
        wanted.is_held(authority, &catalog.access_of_schema(name), Privileges::OF_SCHEMAS).map(Some)
    })
}

/// `has_database_privilege`: a server has one database, which clients know by any name.
pub(super) fn of_database(source: &Source, args: &[Argument]) -> Result<Value> {
    evaluate(source, args, |authority, _, _: &[Argument; 1], wanted| {
        let is_held = match wanted.name.as_str() {
            "CONNECT" | "TEMPORARY" | "TEMP" => true,
            "CREATE" => authority.creates_schemas(),
            _ => return Err(wanted.unknown("CREATE, CONNECT, TEMPORARY, TEMP")),
        };
        Ok(Some(if wanted.with_option { authority.is_all() } else { is_held }))
    })
}

/// `has_function_privilege`: everyone may call all functions. The types of arguments in a text are ignored.
pub(super) fn of_function(source: &Source, args: &[Argument]) -> Result<Value> {
    evaluate(source, args, |authority, _, [function]: &[Argument; 1], wanted| {
        let text = function.text().map(|text| text.split('(').next().unwrap_or_default().trim());
        let known = match text {
            Some(name) => {
                let plain = name.strip_prefix("pg_catalog.").unwrap_or(name);
                let is_known = source.functions().iter().any(|known| known.name == plain);
                Some(is_known.then_some(()).ok_or_else(|| no_function(name))?)
            }
            None => source.functions().iter().any(|known| Some(known.oid) == function.oid()).then_some(()),
        };
        match wanted.name.as_str() {
            "EXECUTE" => Ok(known.map(|()| !wanted.with_option || authority.is_all())),
            _ => Err(wanted.unknown("EXECUTE")),
        }
    })
}

fn no_function(name: &str) -> Error {
    Error::UndefinedFunction { signature: format!("function {name}") }
}

/// `pg_has_role`.
pub(super) fn of_role(source: &Source, args: &[Argument]) -> Result<Value> {
    evaluate(source, args, |authority, catalog, [role]: &[Argument; 1], wanted| {
        let roles = &source.objects().roles;
        let name = match role {
            Argument::Number(_) => match roles.iter().find(|(oid, _)| Some(*oid) == role.oid()) {
                Some((_, name)) => name.as_str(),
                None => return Ok(None),
            },
            role => role.text().unwrap_or_default(),
        };
        if source.objects().role(name) == 0 {
            return Err(missing(ObjectKind::Role, name));
        }
        match wanted.name.as_str() {
            "MEMBER" | "USAGE" if wanted.with_option => Ok(Some(authority.administers(catalog, name))),
            "MEMBER" | "USAGE" => Ok(Some(authority.is_member_of(name))),
            _ => Err(wanted.unknown("MEMBER, USAGE")),
        }
    })
}
