//! What a statement with an unknown name may have meant.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{ObjectName, Query, Select, SelectItem, TableFactor, Visitor};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use super::position::significant;
use super::words::{CLAUSES, EXPRESSIONS, OTHER_FUNCTIONS, OTHER_RELATIONS, OTHER_TYPES, STATEMENTS, TYPES};
use crate::base::{did_you_mean, similar};
use crate::catalog::{Catalog, PUBLIC, RelationName};
use crate::sql::names::{SearchPath, plain_ident, shown_sql};
use crate::sql::split::Statement;
use crate::sql::visit::walk;
use crate::sql::{SqlSession, StatementState, information_schema, pg_catalog, settings, system};
use crate::{Error, ObjectKind, Position};

/// The hint for an error of a statement.
pub(super) fn find(
    session: &SqlSession,
    statement: &Statement<'_>,
    error: &Error,
    position: Option<Position>,
) -> Option<String> {
    match error {
        Error::NotFound { kind: ObjectKind::Setting, name } => of_setting(session, statement, name),
        Error::NotFound { kind, name } => Names::of(session, statement)?.object(*kind, name),
        Error::UndefinedColumn { column, relation, similar } => did_you_mean(similar)
            .or_else(|| of_quotes(statement, column, position?))
            .or_else(|| Names::of(session, statement)?.column(column, relation.as_deref())),
        Error::MissingFromEntry(table) => Names::of(session, statement)?.qualifier(table),
        Error::UndefinedFunction { signature } => {
            Names::of(session, statement)?.function(session, signature.strip_prefix("function ")?)
        }
        Error::Unsupported(what) => of_type(what.strip_prefix("type ")?),
        Error::Syntax { .. } => of_syntax(statement, position?),
        _ => None,
    }
}

/// The part of a name behind its last point.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// A table of names and their counterparts here.
fn counterpart(table: &[(&str, &str)], name: &str) -> Option<String> {
    let (_, here) = table.iter().find(|(other, _)| *other == name)?;
    Some((*here).to_string())
}

fn of_type(ty: &str) -> Option<String> {
    let name = ty.split('(').next()?.trim().to_lowercase();
    // Of a known type, something else is not supported.
    if TYPES.split(' ').any(|known| known == name) {
        return None;
    }
    counterpart(&OTHER_TYPES, &name)
        .map(|here| format!("use {here}"))
        .or_else(|| did_you_mean(&similar(&name, TYPES.split(' ').map(|ty| (ty, ty.to_string())))))
}

/// The place of a position among significant tokens.
fn at(tokens: &[&TokenWithSpan], position: Position) -> Option<usize> {
    tokens.iter().position(|token| {
        let start = token.span.start;
        (start.line, start.column) == (position.line, position.column)
    })
}

/// A name in double quotes that is probably a text, or a text in quotes of typography.
fn of_quotes(statement: &Statement<'_>, column: &str, position: Position) -> Option<String> {
    if column.starts_with(['‘', '’', '“', '”', '´']) {
        return Some("texts have straight quotes: 'text'".into());
    }
    let tokens: Vec<&TokenWithSpan> = significant(&statement.tokens).collect();
    match &tokens.get(at(&tokens, position)?)?.token {
        Token::Word(word) if word.quote_style == Some('"') => {
            Some(format!("a text has single quotes: '{}'", word.value.replace('\'', "''")))
        }
        _ => None,
    }
}

fn of_setting(session: &SqlSession, statement: &Statement<'_>, name: &str) -> Option<String> {
    let is_show = statement.words().first().is_some_and(|word| word == "SHOW");
    if is_show && !similar(name, [("tables", String::new())]).is_empty() {
        return Some("did you mean SHOW TABLES?".into());
    }
    let known = settings::names(session);
    let known = known.iter().map(|known| match name.contains('.') {
        true => (known.as_str(), known.clone()),
        false => (last(known), known.clone()),
    });
    did_you_mean(&similar(name, known))
}

/// A misspelt or missing word at or before an unexpected token.
fn of_syntax(statement: &Statement<'_>, position: Position) -> Option<String> {
    let tokens: Vec<&TokenWithSpan> = significant(&statement.tokens).collect();
    let at = at(&tokens, position)?;
    if at == 0 {
        return of_first_word(statement);
    }
    let word = |at: usize| match &tokens.get(at)?.token {
        Token::Word(word) if word.quote_style.is_none() => Some(word),
        _ => None,
    };
    let here = word(at);
    let takes_by = |word: &&Word| [Keyword::GROUP, Keyword::ORDER, Keyword::PARTITION].contains(&word.keyword);
    let has_by = word(at + 1).is_some_and(|word| word.keyword == Keyword::BY);
    if let Some(word) = here.filter(takes_by).filter(|_| !has_by) {
        return Some(format!("did you mean {} BY?", word.value.to_uppercase()));
    }
    if matches!(tokens[at].token, Token::Char('`')) {
        return Some("names have double quotes: \"name\"".into());
    }
    if tokens[at - 1].token == Token::Comma && here.is_some_and(|word| word.keyword == Keyword::FROM) {
        return Some("remove the comma before FROM".into());
    }
    // The word before an unexpected one is an alias for the parser.
    let misspelt = [here, word(at - 1)].into_iter().flatten().filter(|word| word.keyword == Keyword::NoKeyword);
    misspelt.into_iter().find_map(|word| {
        let found = similar(&word.value, CLAUSES.split(' ').map(|clause| (clause, clause.to_string())));
        found.first().map(|clause| format!("did you mean {clause}?"))
    })
}

/// A misspelt word at the start of a statement.
fn of_first_word(statement: &Statement<'_>) -> Option<String> {
    let words = statement.words();
    let first = words.first().filter(|word| !STATEMENTS.split(' ').any(|known| known == *word))?;
    let found = similar(first, STATEMENTS.split(' ').map(|word| (word, word.to_string())));
    found.first().map(|word| format!("did you mean {word}?"))
}

/// The names that a statement could use.
struct Names<'a> {
    state: StatementState,
    statement: &'a Statement<'a>,
}

impl<'a> Names<'a> {
    /// `None` if the state of the database cannot be read.
    fn of(session: &SqlSession, statement: &'a Statement<'a>) -> Option<Names<'a>> {
        Some(Names { state: StatementState::reading(session).ok()?, statement })
    }

    fn catalog(&self) -> &Catalog {
        &self.state.catalog
    }

    fn path(&self) -> &SearchPath {
        &self.state.path
    }

    fn object(&self, kind: ObjectKind, name: &str) -> Option<String> {
        let plain = |names: Vec<&str>| did_you_mean(&similar(name, names.iter().map(|name| (*name, name.to_string()))));
        let catalog = self.catalog();
        let indexes = catalog.tables.values().flat_map(|table| {
            let schema = &table.def.name;
            table.def.indexes.iter().map(move |index| schema.sibling(index.name.clone()))
        });
        let sequences = catalog.sequences().map(|(def, _)| def.name.clone());
        let (tables, views) = (catalog.tables.keys().cloned(), catalog.views.keys().cloned());
        match kind {
            ObjectKind::Table => self.relation(name, tables),
            ObjectKind::View => self.relation(name, views),
            ObjectKind::Index => self.relation(name, indexes),
            ObjectKind::Sequence => self.relation(name, sequences),
            ObjectKind::Relation => {
                let known = tables.chain(views).chain(self.others(name));
                self.file(name).or_else(|| counterpart(&OTHER_RELATIONS, name)).or_else(|| self.relation(name, known))
            }
            ObjectKind::Schema => plain(catalog.schemas.iter().map(String::as_str).chain([PUBLIC]).collect()),
            ObjectKind::Role => plain(catalog.roles.keys().map(String::as_str).collect()),
            _ => None,
        }
    }

    /// Relations that are not in the catalog: WITH queries, and those of the system that `name` may mean.
    fn others(&self, name: &str) -> Vec<RelationName> {
        let mut others: Vec<RelationName> = self.with_queries().into_iter().map(RelationName::public).collect();
        if name.starts_with("keyaki_") {
            others.extend(system::NAMES.iter().map(|name| RelationName::public(*name)));
        }
        if last(name).starts_with("pg_") {
            others.extend(pg_catalog::names().map(|name| RelationName::new(pg_catalog::NAME, name)));
        }
        if name.starts_with(information_schema::NAME) {
            let names = information_schema::NAMES.iter();
            others.extend(names.map(|name| RelationName::new(information_schema::NAME, *name)));
        }
        others
    }

    /// The names of the WITH queries of the statement.
    fn with_queries(&self) -> Vec<String> {
        struct Queries(Vec<String>);
        impl Visitor for Queries {
            type Break = ();
            fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
                let with = query.with.iter().flat_map(|with| &with.cte_tables);
                self.0.extend(with.map(|query| plain_ident(&query.alias.name)));
                ControlFlow::Continue(())
            }
        }
        let mut queries = Queries(Vec::new());
        if let Ok(statement) = self.statement.parser().parse_statement() {
            _ = walk(&statement, &mut queries);
        }
        queries.0
    }

    /// Similar names of relations. Those that the search path does not find have their schema.
    fn relation(&self, name: &str, known: impl Iterator<Item = RelationName>) -> Option<String> {
        let known: BTreeSet<RelationName> = known.collect();
        let is_found = |relation: &RelationName| {
            let is_query = !self.catalog().has_relation(relation) && relation.is_public();
            is_query || self.path().find(self.catalog(), relation).is_some_and(|found| found == *relation)
        };
        let mine = |relation: &&RelationName| !relation.is_temporary() || is_found(relation);
        let shown = |relation: &RelationName| match is_found(relation) {
            true => relation.name.clone(),
            false => shown_sql(relation).replace('"', ""),
        };
        // Of a name with a schema, either part may be wrong.
        let of_schema = name.rsplit_once('.').map(|(schema, _)| schema);
        let near = |relation: &&RelationName| {
            of_schema.is_none_or(|schema| *relation.schema == *schema || relation.name == last(name))
        };
        let known: Vec<&RelationName> = known.iter().filter(mine).filter(near).collect();
        did_you_mean(&similar(last(name), known.iter().map(|relation| (relation.name.as_str(), shown(relation)))))
    }

    /// The name of a file without quotes.
    fn file(&self, name: &str) -> Option<String> {
        let is_file = ["csv", "json", "ndjson", "parquet", "tsv"].contains(&name.rsplit_once('.')?.1);
        is_file.then(|| format!("put the name of a file in single quotes: '{name}'"))
    }

    fn column(&self, column: &str, relation: Option<&str>) -> Option<String> {
        let name = last(column);
        let (sources, aliases) = self.sources();
        let scope: Vec<RelationName> = match relation {
            Some(relation) => {
                let (schema, name) = relation.rsplit_once('.').unwrap_or((PUBLIC, relation));
                vec![self.path().find(self.catalog(), relation).unwrap_or_else(|| RelationName::new(schema, name))]
            }
            None => sources.iter().filter_map(|source| source.relation.clone()).collect(),
        };
        let catalog = self.catalog();
        let tables: Vec<_> = scope.iter().filter_map(|relation| catalog.tables.get(relation)).collect();
        if let Some(table) = tables.iter().find(|table| table.column(name).is_ok()) {
            let table = &table.def.name;
            return Some(format!("table \"{table}\" has this column, but this part of the statement cannot use it"));
        }
        if aliases.iter().any(|alias| alias == column) {
            return Some("an alias of the select list cannot be used here: repeat the expression".into());
        }
        let is_single = tables.len() == 1;
        let columns = tables.iter().flat_map(|table| {
            table.def.columns.iter().map(move |column| match is_single {
                true => (column.name.as_str(), column.name.clone()),
                false => (column.name.as_str(), format!("{}.{}", table.def.name, column.name)),
            })
        });
        did_you_mean(&similar(name, columns)).or_else(|| self.elsewhere(name, &scope)).or_else(|| {
            let is_query = self.statement.words().first().is_some_and(|word| word == "SELECT");
            (is_query && sources.is_empty()).then(|| "the query has no FROM clause".into())
        })
    }

    /// Another table that has the column.
    fn elsewhere(&self, name: &str, scope: &[RelationName]) -> Option<String> {
        let is_mine = |name: &RelationName| {
            !name.is_temporary() || self.path().find(self.catalog(), &name.name).is_some_and(|found| found == *name)
        };
        let tables = self.catalog().tables.values();
        let others = tables.filter(|table| !scope.contains(&table.def.name) && is_mine(&table.def.name));
        let mut having = others.filter(|table| table.column(name).is_ok());
        let table = having.next().filter(|_| !scope.is_empty())?;
        Some(format!("table \"{}\" has this column, but the statement does not read it", table.def.name))
    }

    /// An unknown table in front of a column.
    fn qualifier(&self, name: &str) -> Option<String> {
        let (sources, _) = self.sources();
        let aliased = sources.iter().find(|source| source.relation.as_ref().is_some_and(|known| known.name == name));
        if let Some(Source { alias: Some(alias), .. }) = aliased {
            return Some(format!("table \"{name}\" has the alias \"{alias}\" in this statement"));
        }
        let names = sources.iter().filter_map(|source| {
            let relation = source.relation.as_ref().map(|relation| &relation.name);
            source.alias.as_ref().or(relation)
        });
        did_you_mean(&similar(name, names.map(|name| (name.as_str(), name.clone())))).or_else(|| {
            let known = self.path().find(self.catalog(), name)?;
            Some(format!("add table \"{known}\" to FROM"))
        })
    }

    /// The relations that the statement names, and the aliases of its select lists.
    fn sources(&self) -> (Vec<Source>, Vec<String>) {
        struct Sources<'a> {
            found: Vec<Source>,
            aliases: Vec<String>,
            state: &'a StatementState,
        }
        impl Visitor for Sources<'_> {
            type Break = ();
            fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
                self.aliases.extend(select.projection.iter().filter_map(|item| match item {
                    SelectItem::ExprWithAlias { alias, .. } => Some(plain_ident(alias)),
                    _ => None,
                }));
                ControlFlow::Continue(())
            }
            /// Also of tables that are not in FROM: those of INSERT and CREATE INDEX.
            fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<()> {
                let relation = self.state.relation(name).ok();
                if !self.found.iter().any(|source| source.relation == relation) {
                    self.found.push(Source { relation, alias: None });
                }
                ControlFlow::Continue(())
            }
            fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
                let (relation, alias) = match factor {
                    TableFactor::Table { name, alias, .. } => (self.state.relation(name).ok(), alias),
                    TableFactor::Derived { alias, .. } => (None, alias),
                    _ => return ControlFlow::Continue(()),
                };
                let alias = alias.as_ref().map(|alias| plain_ident(&alias.name));
                self.found.push(Source { relation, alias });
                ControlFlow::Continue(())
            }
        }
        let mut sources = Sources { found: Vec::new(), aliases: Vec::new(), state: &self.state };
        if let Ok(statement) = self.statement.parser().parse_statement() {
            _ = walk(&statement, &mut sources);
        }
        (sources.found, sources.aliases)
    }

    fn function(&self, session: &SqlSession, signature: &str) -> Option<String> {
        let (name, arguments) = signature.split_once('(').unwrap_or((signature, "..."));
        let functions = pg_catalog::functions(&session.engine);
        let known: Vec<_> = functions.iter().filter(|function| function.name == name).collect();
        let Some(first) = known.first() else {
            let names = functions.iter().map(|function| function.name.as_str()).chain(EXPRESSIONS.split(' '));
            return counterpart(&OTHER_FUNCTIONS, name)
                .map(|here| format!("use {here}"))
                .or_else(|| did_you_mean(&similar(name, names.map(|name| (name, name.to_string())))));
        };
        let Some(given) = given(arguments.strip_suffix(')')?) else {
            return match (first.kind, first.returns_set) {
                ("w", _) => Some(format!("{name} is a window function: {name}(…) OVER (…)")),
                (_, true) => Some(format!("{name} is a function in FROM")),
                _ => None,
            };
        };
        let counts: BTreeSet<Option<usize>> = known.iter().map(|function| function.arguments).collect();
        if counts.contains(&Some(given)) {
            return (given > 0).then(|| "convert the arguments with casts".into());
        }
        if counts.contains(&None) {
            return None;
        }
        let list: Vec<String> = counts.iter().flatten().map(usize::to_string).collect();
        let noun = if list == ["1"] { "argument" } else { "arguments" };
        Some(format!("{name} takes {} {noun}", list.join(" or ")))
    }
}

/// Number of arguments in a signature; `None` if they are unknown.
fn given(arguments: &str) -> Option<usize> {
    let mut depth = 0;
    let mut commas = 0;
    for c in arguments.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => commas += 1,
            _ => {}
        }
    }
    match arguments.trim() {
        "..." => None,
        "" => Some(0),
        _ => Some(commas + 1),
    }
}

/// A relation that a statement names.
struct Source {
    /// `None` for subqueries.
    relation: Option<RelationName>,
    alias: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_have_a_number_of_arguments() {
        assert_eq!(given("..."), None);
        assert_eq!(given(""), Some(0));
        assert_eq!(given("text, numeric(4,2)"), Some(2));
    }

    #[test]
    fn types_of_other_systems_have_a_counterpart() {
        assert_eq!(of_type("VARCHAR2(10)").as_deref(), Some("use varchar"));
        assert_eq!(of_type("VARCHAR(3) for a column of a file"), None);
        assert_eq!(of_type("STRNG").as_deref(), Some("did you mean \"string\"?"));
        assert_eq!(of_type("geometry"), None);
    }
}
