//! Names as SQL text.

/// A name as SQL text, quoted if it is a reserved word or not in lower case.
pub(crate) fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !is_keyword(name);
    if plain { name.into() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Reserved as an identifier, a column alias or a table alias.
fn is_keyword(name: &str) -> bool {
    use datafusion::sql::sqlparser::keywords::{ALL_KEYWORDS, ALL_KEYWORDS_INDEX, RESERVED_FOR_IDENTIFIER};
    use datafusion::sql::sqlparser::keywords::{RESERVED_FOR_COLUMN_ALIAS, RESERVED_FOR_TABLE_ALIAS};
    let Ok(position) = ALL_KEYWORDS.binary_search(&name.to_ascii_uppercase().as_str()) else { return false };
    let keyword = ALL_KEYWORDS_INDEX[position];
    RESERVED_FOR_IDENTIFIER.contains(&keyword)
        || RESERVED_FOR_TABLE_ALIAS.contains(&keyword)
        || RESERVED_FOR_COLUMN_ALIAS.contains(&keyword)
}
