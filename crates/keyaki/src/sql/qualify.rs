//! Resolves the names of a statement's relations along a search path, before DataFusion plans it.
//!
//! DataFusion knows names without a schema as those of `public`. Names that the path leads to other schemas get the
//! schema. A qualified relation gets its name as an alias, and `schema.table.column` becomes `table.column`: DataFusion
//! compares qualifiers of columns loosely, and could confuse tables of different schemas.
//!
//! Tables of one FROM list with equal names in different schemas get their qualified names as aliases. The target of an
//! UPDATE or DELETE keeps its name, which is ambiguous in the expressions of the statement only.
//!
//! *Invariant.* `schema.table.column` means the innermost relation of this name without another alias, and is an error if
//! that one belongs to another schema.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Cte, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query,
    Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, ShowStatementIn, Statement, TableAlias, TableFactor,
    TableWithJoins, Value, VisitMut, VisitorMut, With,
};

use super::dml::{RETURNED_PREFIX, TARGET_PREFIX, is_target};
use super::names::{SearchPath, full_sql, ident, plain_ident, relation_name, stored_name};
use super::renames::NewName;
use super::sequences;
use super::{information_schema, pg_catalog};
use crate::catalog::{Catalog, PUBLIC, RelationName};
use crate::engine::CATALOG_NAME;
use crate::sql::visit::walk_mut;
use crate::{Error, ObjectKind, Result};

/// Makes the names of a statement or expression independent of the search path, for DataFusion.
///
/// # Errors
/// `NotFound` for a table of `public` that is not on the path; `MissingFromEntry` for `schema.table.column` without the
/// table.
pub(super) fn planned(node: &mut impl VisitMut, catalog: &Catalog, path: &SearchPath) -> Result<()> {
    qualify(node, catalog, path, false)
}

/// As [`planned`], for a definition that is stored: its text changes only where it must.
///
/// # Errors
/// As [`planned`].
pub(super) fn stored(node: &mut impl VisitMut, catalog: &Catalog, path: &SearchPath) -> Result<()> {
    qualify(node, catalog, path, true)
}

/// Renames the relations and sequences that a stored definition uses. `new` returns the new name of a relation, or `None`.
///
/// # Errors
/// None is expected.
pub(super) fn renamed(node: &mut impl VisitMut, catalog: &Catalog, new: &NewName<'_>) -> Result<()> {
    let path = SearchPath::default();
    let mut visitor = Qualify { new: Some(new), ..Qualify::new(catalog, &path, true) };
    match walk_mut(node, &mut visitor) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

fn qualify(node: &mut impl VisitMut, catalog: &Catalog, path: &SearchPath, is_stored: bool) -> Result<()> {
    let mut visitor = Qualify::new(catalog, path, is_stored);
    if let ControlFlow::Break(error) = walk_mut(node, &mut visitor) {
        return Err(error);
    }
    match visitor.temporary_sequence.filter(|_| is_stored) {
        Some(name) => {
            let problem = format!("a definition cannot use the temporary sequence \"{name}\"");
            Err(Error::InvalidDefinition { kind: ObjectKind::Relation, problem })
        }
        None => Ok(()),
    }
}

struct Qualify<'a> {
    catalog: &'a Catalog,
    path: &'a SearchPath,
    is_stored: bool,
    /// Relations get new names, and the names of columns stay.
    new: Option<&'a NewName<'a>>,
    /// The names of common table expressions, for each open query.
    common: Vec<Vec<String>>,
    /// The WITH clauses of the open queries, which are visited first.
    withs: Vec<Option<With>>,
    /// The FROM lists of the open queries and SELECTs.
    scopes: Vec<Vec<Entry>>,
    /// A temporary sequence that a function uses.
    temporary_sequence: Option<RelationName>,
}

/// An entry of a FROM list.
struct Entry {
    /// Its name in expressions.
    alias: String,
    /// The relation, if it can be named with its schema.
    relation: Option<RelationName>,
    /// The entry is a table without an alias.
    is_table: bool,
    /// Its alias, if a table of another schema with the same name is in the list.
    distinct: Option<String>,
}

impl Entry {
    /// An entry that cannot be named with a schema.
    fn aliased(alias: String) -> Entry {
        Entry { alias, relation: None, is_table: false, distinct: None }
    }
}

impl<'a> Qualify<'a> {
    fn new(catalog: &'a Catalog, path: &'a SearchPath, is_stored: bool) -> Qualify<'a> {
        let (common, withs, scopes) = (Vec::new(), Vec::new(), Vec::new());
        Qualify { catalog, path, is_stored, new: None, common, withs, scopes, temporary_sequence: None }
    }

    fn is_common(&self, name: &str) -> bool {
        self.common.iter().flatten().any(|common| common == name)
    }

    /// The entries of a FROM list.
    ///
    /// # Errors
    /// `DuplicateAlias` for a repeated name, unless it is that of tables of different schemas.
    fn entries(&self, from: &[TableWithJoins]) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        from.iter().for_each(|item| self.add_entries(item, &mut entries));
        // The target of a change has an alias already.
        let distinct = |entry: &Entry| {
            let relation = entry.relation.as_ref().filter(|_| entry.is_table)?;
            let is_other = |other: &Entry| {
                other.alias == entry.alias && other.relation.as_ref().is_some_and(|other| other != relation)
            };
            let alias = || format!("{}.{}", relation.schema, relation.name);
            entries.iter().any(is_other).then(alias)
        };
        let aliases: Vec<Option<String>> = entries.iter().map(distinct).collect();
        for (entry, alias) in entries.iter_mut().zip(aliases) {
            entry.distinct = alias;
        }
        // DataFusion reports missing relations.
        let exists = |entry: &Entry| entry.relation.as_ref().is_none_or(|name| self.catalog.has_relation(name));
        for (place, entry) in entries.iter().enumerate() {
            let conflicts = |other: &Entry| {
                let are_tables = entry.relation.is_some() && other.relation.is_some();
                other.alias == entry.alias && !(are_tables && other.relation != entry.relation)
            };
            if entries[..place].iter().any(|other| conflicts(other) && exists(other) && exists(entry)) {
                return Err(Error::DuplicateAlias(entry.alias.clone()));
            }
        }
        Ok(entries)
    }

    fn open_scope(&mut self, from: &[TableWithJoins]) -> Result<()> {
        let entries = if self.new.is_none() { self.entries(from)? } else { Vec::new() };
        self.scopes.push(entries);
        Ok(())
    }

    fn add_entries(&self, item: &TableWithJoins, entries: &mut Vec<Entry>) {
        for factor in std::iter::once(&item.relation).chain(item.joins.iter().map(|join| &join.relation)) {
            match factor {
                TableFactor::NestedJoin { table_with_joins, alias: None } => {
                    self.add_entries(table_with_joins, entries);
                }
                TableFactor::NestedJoin { alias: Some(alias), .. }
                | TableFactor::Derived { alias: Some(alias), .. }
                | TableFactor::UNNEST { alias: Some(alias), .. }
                | TableFactor::Function { alias: Some(alias), .. } => {
                    entries.push(Entry::aliased(plain_ident(&alias.name)));
                }
                TableFactor::Table { name, alias, .. } => entries.extend(self.entry(name, alias.as_ref())),
                _ => {}
            }
        }
    }

    fn entry(&self, name: &ObjectName, alias: Option<&TableAlias>) -> Option<Entry> {
        let ObjectNamePart::Identifier(last) = name.0.last()? else { return None };
        let last = plain_ident(last);
        let Some(alias) = alias else {
            let relation = match name.0.len() {
                1 if self.is_common(&last) => None,
                1 => Some(self.path.find(self.catalog, &last).unwrap_or_else(|| RelationName::public(last.clone()))),
                _ => relation_name(name, self.catalog, self.path).ok(),
            };
            return Some(Entry { alias: last, is_table: relation.is_some(), relation, distinct: None });
        };
        // Targets of changes are read under other names, which contain theirs.
        let alias = plain_ident(&alias.name);
        let target = last.strip_prefix(TARGET_PREFIX).or_else(|| last.strip_prefix(RETURNED_PREFIX));
        let schema = target.and_then(|target| match target.strip_suffix(&alias)? {
            "" => Some(PUBLIC),
            schema => schema.strip_suffix('.'),
        });
        let relation = schema.map(|schema| RelationName::new(schema, alias.clone()));
        Some(Entry { alias, is_table: false, relation, distinct: None })
    }

    /// The alias of a relation that has none, if its FROM list has another one with its name.
    fn distinct(&self, name: &ObjectName) -> Option<(RelationName, String)> {
        let relation = self.entry(name, None)?.relation?;
        let mut entries = self.scopes.last()?.iter();
        let entry = entries.find(|entry| entry.distinct.is_some() && entry.relation.as_ref() == Some(&relation))?;
        Some((relation, entry.distinct.clone()?))
    }

    /// Checks that a name without a schema does not mean several tables.
    ///
    /// # Errors
    /// `AmbiguousTable`.
    fn check_distinct(&self, table: &Ident) -> Result<()> {
        if is_target(table) {
            return Ok(());
        }
        let table = plain_ident(table);
        let scopes = self.scopes.iter().rev();
        let mut named = scopes.map(|scope| scope.iter().filter(|entry| entry.alias == table).collect::<Vec<_>>());
        match named.find(|named| !named.is_empty()) {
            Some(named) if named.iter().any(|entry| entry.distinct.is_some()) && named.len() > 1 => {
                Err(Error::AmbiguousTable(table))
            }
            _ => Ok(()),
        }
    }

    /// The number of leading parts that name the database and the schema of a column or wildcard, and the alias that
    /// replaces the name of the table. `parts` are its qualifiers.
    fn redundant(&self, parts: &[&Ident]) -> Result<(usize, Option<Ident>)> {
        let database = usize::from(parts.len() > 2 && plain_ident(parts[0]) == CATALOG_NAME);
        let [schema, table, ..] = parts[database..] else { return Ok((0, None)) };
        let (schema, table, shown) = (self.path.schema(schema), plain_ident(table), plain_ident(schema));
        let is_alias = |entry: &Entry| entry.alias == shown && entry.distinct.is_none();
        let is_schema =
            self.catalog.has_schema(&schema) || [information_schema::NAME, pg_catalog::NAME].contains(&schema.as_str());
        if !is_schema || self.scopes.iter().flatten().any(is_alias) {
            // A field of a structure.
            return Ok((0, None));
        }
        for scope in self.scopes.iter().rev() {
            let named: Vec<&Entry> = scope.iter().filter(|entry| entry.alias == table).collect();
            let is_meant = |entry: &Entry| entry.relation.as_ref().is_some_and(|name| *name.schema == *schema);
            let meant = named.iter().find(|entry| is_meant(entry));
            // Tables with this name in other schemas have other aliases.
            if let Some(meant) = meant
                && named.iter().all(|entry| is_meant(entry) || entry.distinct.is_some() || meant.distinct.is_some())
            {
                return Ok((database + 1, meant.distinct.as_ref().map(|alias| Ident::with_quote('"', alias))));
            }
            if !named.is_empty() {
                break;
            }
        }
        Err(Error::MissingFromEntry(format!("{shown}.{table}")))
    }

    fn shorten(&self, idents: &mut Vec<Ident>) -> Result<()> {
        let parts: Vec<&Ident> = idents.iter().collect();
        let (redundant, alias) = self.redundant(&parts[..parts.len() - 1])?;
        if redundant == 0 {
            self.check_distinct(&idents[0])?;
        }
        idents.drain(..redundant);
        if let Some(alias) = alias {
            idents[0] = alias;
        }
        Ok(())
    }

    fn shorten_wildcard(&self, name: &mut ObjectName) -> Result<()> {
        let Some(parts) = name.0.iter().map(|part| part.as_ident()).collect::<Option<Vec<_>>>() else { return Ok(()) };
        let (redundant, alias) = self.redundant(&parts)?;
        if redundant == 0 {
            self.check_distinct(parts[0])?;
        }
        name.0.drain(..redundant);
        if let Some(alias) = alias {
            name.0[0] = ObjectNamePart::Identifier(alias);
        }
        Ok(())
    }

    /// Renames a relation of a stored definition.
    fn rename(&self, name: &mut ObjectName, alias: &mut Option<TableAlias>, new: &NewName<'_>) {
        if let Some(ObjectNamePart::Identifier(last)) = name.0.last().cloned()
            && !(name.0.len() == 1 && (last.quote_style == Some('\'') || self.is_common(&plain_ident(&last))))
            && let Ok(old) = stored_name(name)
            && let Some(new) = new(&old)
        {
            *name = ObjectName::from(vec![ident(&new.schema), ident(&new.name)]);
            if new.name != old.name {
                alias.get_or_insert_with(|| TableAlias { explicit: true, name: last, columns: Vec::new(), at: None });
            }
        }
    }

    fn relation(&self, name: &mut ObjectName, alias: &mut Option<TableAlias>) -> Result<()> {
        if let Some(new) = self.new {
            self.rename(name, alias, new);
            return Ok(());
        }
        if alias.is_none()
            && let Some((relation, distinct)) = self.distinct(name)
        {
            *name = ObjectName::from(vec![ident(&relation.schema), ident(&relation.name)]);
            let distinct = Ident::with_quote('"', distinct);
            *alias = Some(TableAlias { explicit: true, name: distinct, columns: Vec::new(), at: None });
            return Ok(());
        }
        let parts = name.0.iter().map(|part| part.as_ident().cloned()).collect::<Option<Vec<_>>>();
        let qualified = match parts.as_deref() {
            Some([only]) => self.found(only)?,
            Some([schema, name]) => Some((ident(&self.path.schema(schema)), name.clone())),
            Some([database, schema, name]) if plain_ident(database) == CATALOG_NAME => {
                Some((ident(&self.path.schema(schema)), name.clone()))
            }
            _ => None,
        };
        if let Some((schema, table)) = qualified {
            *name = ObjectName::from(vec![schema, table.clone()]);
            alias.get_or_insert_with(|| TableAlias { explicit: true, name: table, columns: Vec::new(), at: None });
        }
        Ok(())
    }

    /// The schema and the name of a relation that the path finds in another schema than `public`.
    fn found(&self, only: &Ident) -> Result<Option<(Ident, Ident)>> {
        let name = plain_ident(only);
        // A quoted text is a file.
        if only.quote_style == Some('\'') || self.is_common(&name) {
            return Ok(None);
        }
        match self.path.find(self.catalog, &name) {
            Some(found) if found.is_public() => Ok(None),
            Some(found) => Ok(Some((ident(&found.schema), only.clone()))),
            None if self.catalog.has_relation(&RelationName::public(name.clone())) => {
                Err(Error::NotFound { kind: ObjectKind::Relation, name })
            }
            None if pg_catalog::exists(&name) => Ok(Some((ident(pg_catalog::NAME), only.clone()))),
            // A common table expression, a system view, or a table of the statement.
            None => Ok(None),
        }
    }
}

/// The items of FROM that the ORDER BY of a query sees.
fn from_of(body: &SetExpr) -> &[TableWithJoins] {
    match body {
        SetExpr::Select(select) => &select.from,
        SetExpr::Query(query) => from_of(&query.body),
        _ => &[],
    }
}

/// Replaces the sequence names in calls of sequence functions (`nextval`, `currval`, `setval`) by the qualified names that
/// `resolve` returns.
pub(super) fn calls(node: &mut impl VisitMut, resolve: impl FnMut(&ObjectName) -> Option<RelationName>) {
    struct Calls<F>(F);
    impl<F: FnMut(&ObjectName) -> Option<RelationName>> VisitorMut for Calls<F> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            if let Expr::Function(call) = expr {
                self::call(call, &mut self.0);
            }
            ControlFlow::Continue(())
        }
    }
    let _ = walk_mut(node, &mut Calls(resolve));
}

/// As [`calls`], for one call of any function.
fn call(call: &mut Function, mut resolve: impl FnMut(&ObjectName) -> Option<RelationName>) {
    if sequences::is_sequence_function(&call.name)
        && let FunctionArguments::List(list) = &mut call.args
        && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value)))) = list.args.first_mut()
        && let Some(text) = value.value.clone().into_string()
        && let Ok(name) = super::parse_name(&text)
        && let Some(name) = resolve(&name)
    {
        value.value = Value::SingleQuotedString(full_sql(&name));
    }
}

fn flow(result: Result<()>) -> ControlFlow<Error> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

impl VisitorMut for Qualify<'_> {
    type Break = Error;

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<Error> {
        // DataFusion would show the columns of all tables with the name.
        if let Statement::ShowColumns { show_options, .. } = statement
            && let Some(ShowStatementIn { parent_name: Some(name), .. }) = &mut show_options.show_in
            && let Ok(found) = relation_name(name, self.catalog, self.path)
            && !found.schema.is_empty()
        {
            *name = ObjectName::from(vec![ident(&found.schema), ident(&found.name)]);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        // The clause is taken out of the query, so that each expression is visited with the names before it.
        let mut with = query.with.take();
        self.common.push(Vec::new());
        let open = self.common.len() - 1;
        if let Some(With { recursive, cte_tables, .. }) = &mut with {
            for Cte { alias, query, .. } in cte_tables {
                let name = plain_ident(&alias.name);
                if *recursive {
                    self.common[open].push(name.clone());
                }
                walk_mut(query, self)?;
                self.common[open].push(name);
            }
        }
        self.withs.push(with);
        flow(self.open_scope(from_of(&query.body)))
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.scopes.pop();
        query.with = self.withs.pop().flatten();
        self.common.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        flow(self.open_scope(&select.from))?;
        for item in &mut select.projection {
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = item
                && self.new.is_none()
            {
                flow(self.shorten_wildcard(name))?;
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &mut Select) -> ControlFlow<Error> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        match factor {
            TableFactor::Table { name, alias, args: None, .. } => flow(self.relation(name, alias)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match expr {
            Expr::CompoundIdentifier(parts) if parts.len() > 1 && self.new.is_none() => flow(self.shorten(parts)),
            Expr::Function(call) => {
                if let Some(new) = self.new {
                    self::call(call, |name| stored_name(name).ok().and_then(|old| new(&old)));
                    return ControlFlow::Continue(());
                }
                self::call(call, |name| {
                    let (path, catalog) = (self.path, self.catalog);
                    let found = relation_name(name, catalog, path).ok()?;
                    if found.is_temporary() {
                        self.temporary_sequence = Some(found.clone());
                    }
                    (catalog.has_relation(&found) && !(self.is_stored && found.is_public())).then_some(found)
                });
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}
