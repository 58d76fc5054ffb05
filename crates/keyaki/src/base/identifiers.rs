//! Names as SQL text.

/// Words that PostgreSQL reserves, and words of definitions that `sql::skipped` replaces or refuses, sorted.
#[rustfmt::skip]
const RESERVED: [&str; 105] = [
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "auto_increment",
    "autoincrement", "between", "both", "case", "cast", "check", "collate", "collation", "column", "concurrently",
    "constraint", "create", "cross", "current_catalog", "current_date", "current_role", "current_schema",
    "current_time", "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct", "do", "else",
    "end", "except", "false", "fetch", "for", "foreign", "freeze", "from", "full", "grant", "group", "having",
    "identity", "ilike", "in", "initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral", "leading",
    "left", "like", "limit", "localtime", "localtimestamp", "natural", "not", "notnull", "null", "offset", "on", "only",
    "or", "order", "outer", "overlaps", "placing", "primary", "references", "returning", "right", "select",
    "session_user", "similar", "some", "srid", "symmetric", "system_user", "table", "tablesample", "then", "to",
    "trailing", "true", "union", "unique", "user", "using", "variadic", "verbose", "when", "where", "window", "with",
];

/// The zero-width space, at the end of the names of columns that a select list has several times.
pub(crate) const REPEATED: char = '\u{200b}';

/// A name as SQL text, quoted if it is a reserved word or not in lower case.
pub(crate) fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !is_keyword(name);
    if plain { name.into() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// In [`RESERVED`], or reserved by sqlparser as an identifier, a column alias or a table alias.
fn is_keyword(name: &str) -> bool {
    use datafusion::sql::sqlparser::keywords::{ALL_KEYWORDS, ALL_KEYWORDS_INDEX, RESERVED_FOR_IDENTIFIER};
    use datafusion::sql::sqlparser::keywords::{RESERVED_FOR_COLUMN_ALIAS, RESERVED_FOR_TABLE_ALIAS};
    if RESERVED.binary_search(&name).is_ok() {
        return true;
    }
    let Ok(position) = ALL_KEYWORDS.binary_search(&name.to_ascii_uppercase().as_str()) else { return false };
    let keyword = ALL_KEYWORDS_INDEX[position];
    RESERVED_FOR_IDENTIFIER.contains(&keyword)
        || RESERVED_FOR_TABLE_ALIAS.contains(&keyword)
        || RESERVED_FOR_COLUMN_ALIAS.contains(&keyword)
}
