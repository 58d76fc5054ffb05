//! Completion from the text before the cursor and the catalog.
//!
//! The candidates after FROM, JOIN, INTO and the like are tables. After `t.` they are the columns of `t`, a table or an alias.
//! Elsewhere they are the columns of the tables that the statement names, functions, keywords and tables. Arguments of dot
//! commands are completed by their kind, and string literals that name files as such.

use keyaki::Database;
use rustyline::completion::{FilenameCompleter, Pair};

use super::commands;
use super::lexer::{Kind, Token, tokens};
use super::words::{FUNCTIONS, KEYWORDS, SETTINGS};

/// Keywords that precede a table name.
const BEFORE_TABLE: [&str; 8] = ["FROM", "JOIN", "INTO", "UPDATE", "TABLE", "ANALYZE", "COPY", "DESCRIBE"];

/// The schema of names without a schema.
pub const PUBLIC: &str = "public";

/// Names of tables of the schema `public`, and of columns. A trait, so that tests need no database.
pub trait Names {
    fn tables(&self) -> Vec<String>;
    /// Column names of a table; empty if the table does not exist.
    fn columns(&self, table: &str) -> Vec<String>;
}

impl Names for Database {
    fn tables(&self) -> Vec<String> {
        let public = self.tables().into_iter().filter(|table| table.schema == PUBLIC);
        public.map(|table| table.name).collect()
    }
    fn columns(&self, table: &str) -> Vec<String> {
        self.columns(table).map(|columns| columns.into_iter().map(|(name, _)| name).collect()).unwrap_or_default()
    }
}

/// Candidates, and the byte offset in `line` from which they replace the text up to `position`.
pub fn complete(names: &dyn Names, line: &str, position: usize) -> (usize, Vec<Pair>) {
    let before = &line[..position];
    if before.trim_start().starts_with('.') {
        return dot_command(names, before);
    }
    let tokens_before = tokens(before);
    let last = tokens_before.last().copied();
    if let Some(literal) = last.filter(|token| token.kind == Kind::String && is_open(token.text)) {
        return if names_file(&tokens_before) { file(before, literal.offset + 1) } else { (position, Vec::new()) };
    }
    let word = last.filter(|token| matches!(token.kind, Kind::Keyword | Kind::Identifier));
    let start = word.map_or(position, |token| token.offset);
    let prefix = &before[start..];
    let context: Vec<Token> = tokens_before
        .into_iter()
        .filter(|t| t.offset < start && !matches!(t.kind, Kind::Space | Kind::Comment))
        .collect();
    if context.first().is_some_and(|token| token.text.eq_ignore_ascii_case("set"))
        && let Some(at) = before.to_ascii_lowercase().rfind("keyaki")
    {
        return (at, candidates(SETTINGS.iter().map(ToString::to_string), &before[at..]));
    }
    (start, words(names, &context, line, prefix))
}

fn words(names: &dyn Names, context: &[Token], statement: &str, prefix: &str) -> Vec<Pair> {
    match context {
        [.., qualifier, dot] if dot.text == "." => {
            let table = resolve(names, qualifier.text, statement);
            candidates(names.columns(&table).into_iter().map(|name| quoted(&name)), prefix)
        }
        [.., last] if BEFORE_TABLE.iter().any(|keyword| last.text.eq_ignore_ascii_case(keyword)) => {
            candidates(names.tables().into_iter().map(|name| quoted(&name)), prefix)
        }
        _ => {
            let columns = mentioned(names, statement).into_iter().flat_map(|table| names.columns(&table));
            let named = columns.chain(names.tables()).map(|name| quoted(&name));
            let mut all = candidates(named, prefix);
            if !prefix.is_empty() {
                let lower = prefix.chars().all(|c| !c.is_uppercase());
                let keywords =
                    KEYWORDS.iter().map(|word| if lower { word.to_ascii_lowercase() } else { word.to_string() });
                all.extend(candidates(keywords.chain(FUNCTIONS.iter().map(|name| format!("{name}("))), prefix));
            }
            all.dedup_by(|a, b| a.replacement == b.replacement);
            all
        }
    }
}

/// Tables whose names occur in the statement; all tables if none does.
fn mentioned(names: &dyn Names, statement: &str) -> Vec<String> {
    let words = tokens(statement);
    let is_named = |table: &String| words.iter().any(|token| unquoted(token.text).eq_ignore_ascii_case(table));
    let (named, others): (Vec<_>, Vec<_>) = names.tables().into_iter().partition(is_named);
    if named.is_empty() { others } else { named }
}

/// The table of a qualifier: the table of that name, or the one it is an alias of (`orders AS o`, `orders o`).
fn resolve(names: &dyn Names, qualifier: &str, statement: &str) -> String {
    let qualifier = unquoted(qualifier);
    let tables = names.tables();
    if let Some(table) = tables.iter().find(|table| table.eq_ignore_ascii_case(&qualifier)) {
        return table.clone();
    }
    let words: Vec<Token> = tokens(statement)
        .into_iter()
        .filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment) && !token.text.eq_ignore_ascii_case("as"))
        .collect();
    let alias_of = |pair: &[Token]| {
        let table = tables.iter().find(|table| unquoted(pair[0].text).eq_ignore_ascii_case(table))?;
        unquoted(pair[1].text).eq_ignore_ascii_case(&qualifier).then(|| table.clone())
    };
    words.windows(2).find_map(alias_of).unwrap_or(qualifier)
}

fn dot_command(names: &dyn Names, before: &str) -> (usize, Vec<Pair>) {
    let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let prefix = &before[start..];
    let mut words = before[..start].split_whitespace();
    let Some(name) = words.next() else {
        return (start, candidates(commands::ALL.iter().map(|command| command.name.to_string()), prefix));
    };
    let arguments_before = words.count();
    match commands::find(name).and_then(|command| command.completes.get(arguments_before)) {
        Some(commands::Argument::Table) => (start, candidates(names.tables().into_iter(), prefix)),
        Some(commands::Argument::File) => file(before, start),
        Some(commands::Argument::OneOf(words)) => (start, candidates(words.iter().map(ToString::to_string), prefix)),
        Some(commands::Argument::Command) => {
            let bare = commands::ALL.iter().map(|command| command.name.trim_start_matches('.').to_string());
            (start, candidates(bare, prefix))
        }
        None => (start, Vec::new()),
    }
}

fn file(before: &str, start: usize) -> (usize, Vec<Pair>) {
    match FilenameCompleter::new().complete_path(&before[start..], before.len() - start) {
        Ok((at, pairs)) => (start + at, pairs),
        Err(_) => (start, Vec::new()),
    }
}

/// True if the last token, a string literal, is the name of a file: in COPY, as a table, and in `read_csv` and the like.
fn names_file(tokens: &[Token]) -> bool {
    let before = tokens.iter().rev().skip(1).filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment));
    let mut words = before.map(|token| token.text.to_ascii_lowercase());
    let is_copy = tokens.iter().any(|token| token.text.eq_ignore_ascii_case("copy"));
    let reads = |word: String| ["from", "join", "parquet_scan"].contains(&word.as_str()) || word.starts_with("read_");
    is_copy || words.find(|word| word != "(" && word != "[").is_some_and(reads)
}

/// True if a string literal lacks its closing quote.
fn is_open(literal: &str) -> bool {
    literal.matches('\'').count() % 2 == 1
}

fn candidates(words: impl Iterator<Item = String>, prefix: &str) -> Vec<Pair> {
    let starts = |word: &str| word.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let bare = |word: &str| starts(word) || starts(word.trim_start_matches('"'));
    words.filter(|word| bare(word)).map(|word| Pair { display: word.clone(), replacement: word }).collect()
}

/// A name as written in SQL, with quotes if necessary.
pub fn quoted(name: &str) -> String {
    let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && !super::words::is_keyword(name);
    if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A name without its quotes.
pub fn unquoted(name: &str) -> String {
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shop;

    impl Names for Shop {
        fn tables(&self) -> Vec<String> {
            vec!["customer".into(), "orders".into(), "Odd Name".into()]
        }
        fn columns(&self, table: &str) -> Vec<String> {
            match table {
                "customer" => vec!["c_custkey".into(), "c_name".into()],
                "orders" => vec!["o_orderkey".into(), "o_custkey".into()],
                _ => Vec::new(),
            }
        }
    }

    fn at_end(line: &str) -> Vec<String> {
        let (start, pairs) = complete(&Shop, line, line.len());
        pairs.into_iter().map(|pair| format!("{}{}", &line[..start], pair.replacement)).collect()
    }

    #[test]
    fn tables_and_columns() {
        assert_eq!(at_end("select * from cu"), ["select * from customer"]);
        assert_eq!(at_end("select * from odd"), ["select * from \"Odd Name\""]);
        assert_eq!(at_end("select c_n"), ["select c_name"]);
        assert_eq!(at_end("select * from orders where o_cu"), ["select * from orders where o_custkey"]);
        let line = "select o. from customer c join orders as o";
        let (start, pairs) = complete(&Shop, line, "select o.".len());
        assert_eq!((start, pairs[0].replacement.as_str()), (9, "o_orderkey"));
        assert_eq!(at_end("select 1 from customer c where c.c_n"), ["select 1 from customer c where c.c_name"]);
    }

    #[test]
    fn keywords_follow_the_case() {
        assert_eq!(at_end("sel"), ["select"]);
        assert_eq!(at_end("SEL"), ["SELECT"]);
        assert_eq!(at_end("select cou"), ["select count("]);
        assert!(at_end("select 'fro").is_empty());
        assert_eq!(at_end("set keyaki.e"), ["set keyaki.execution"]);
    }

    #[test]
    fn files_of_queries() {
        for line in [
            "copy t from 'a",
            "select * from 'a",
            "select 1 from t join 'a",
            "SELECT * FROM read_csv('a",
            "select * from read_parquet( ['a",
        ] {
            assert!(names_file(&tokens(line)), "{line}");
        }
        for line in
            ["select 'a", "select * from t where x = 'a", "select trim('a", "select * from read_csv('a', quote => 'b"]
        {
            assert!(!names_file(&tokens(line)), "{line}");
        }
    }

    #[test]
    fn dot_commands() {
        assert_eq!(at_end(".tab"), [".tables"]);
        assert_eq!(at_end(".schema or"), [".schema orders"]);
        assert_eq!(at_end(".mode ma"), [".mode markdown"]);
        assert!(at_end(".unknown x").is_empty());
    }
}
