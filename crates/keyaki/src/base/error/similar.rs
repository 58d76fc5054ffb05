//! Names that resemble a name without an object, for hints.
//!
//! The difference of two names is the number of letters that are missing, added, replaced or transposed. Long names may
//! differ in more letters. A name also resembles names that consist of it and another word (`name` and `c_name`), and
//! names that it abbreviates (`cust` and `customer`).

use strsim::osa_distance;

/// Maximum number of names in a hint.
const NAMES_MAX: usize = 3;
/// Difference between a name and one that has another word, and between an abbreviation and its name.
const WORD_DIFFERENCE: usize = 2;
const ABBREVIATION_DIFFERENCE: usize = 3;
/// A longer name resembles none: no object has such a name, and comparisons would take long.
const NAME_BYTES_MAX: usize = 255;

/// The candidates that resemble a name most. A candidate is a name and the form that the hint has.
pub(crate) fn similar<'a>(name: &str, candidates: impl IntoIterator<Item = (&'a str, String)>) -> Vec<String> {
    if name.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let name = name.to_lowercase();
    let candidates = candidates.into_iter();
    let found = candidates.filter_map(|(other, shown)| Some((difference(&name, &other.to_lowercase())?, shown)));
    let mut found: Vec<(usize, String)> = found.collect();
    found.sort();
    found.dedup_by(|a, b| a.1 == b.1);
    // Less similar names only distract.
    let least = found.first().map_or(0, |(difference, _)| *difference);
    found
        .into_iter()
        .take_while(|(difference, _)| *difference == least)
        .map(|(_, shown)| shown)
        .take(NAMES_MAX)
        .collect()
}

/// `None` if the names, in lower case, do not resemble each other.
fn difference(name: &str, other: &str) -> Option<usize> {
    let length = name.chars().count();
    let letters_max = match length {
        0..3 => 0,
        3..6 => 1,
        6..9 => 2,
        _ => 3,
    };
    if length.abs_diff(other.chars().count()) <= letters_max {
        let letters = osa_distance(name, other);
        if letters <= letters_max || (letters == 1 && is_transposed(name, other)) {
            return Some(letters);
        }
    }
    if has_word(other, name) || has_word(name, other) {
        return Some(WORD_DIFFERENCE);
    }
    (name.len() >= 3 && other.starts_with(name)).then_some(ABBREVIATION_DIFFERENCE)
}

/// True if the names have the same letters.
fn is_transposed(name: &str, other: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    sorted(name) == sorted(other)
}

/// True for names such as `c_name` and the word `name`.
fn has_word(name: &str, word: &str) -> bool {
    let is_bounded = name.strip_suffix(word).is_some_and(|rest| rest.ends_with('_'))
        || name.strip_prefix(word).is_some_and(|rest| rest.starts_with('_'));
    word.len() >= 2 && is_bounded
}

/// `did you mean "a", "b" or "c"?`; `None` without names.
pub(crate) fn did_you_mean(names: &[String]) -> Option<String> {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let list = match quoted.as_slice() {
        [] => return None,
        [name] => name.clone(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    };
    Some(format!("did you mean {list}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, candidates: &[&str]) -> Vec<String> {
        similar(name, candidates.iter().map(|other| (*other, (*other).to_string())))
    }

    #[test]
    fn similar_names_are_sorted_by_their_difference() {
        let tables = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"];
        assert_eq!(found("custmer", &tables), ["customer"]);
        assert_eq!(found("Customers", &tables), ["customer"]);
        assert_eq!(found("oders", &tables), ["orders"]);
        assert_eq!(found("cust", &tables), ["customer"]);
        assert_eq!(found("line_item", &tables), ["lineitem"]);
        assert_eq!(found("parts", &tables), ["part"]);
        for different in ["x", "invoice", "", "tables"] {
            assert!(found(different, &tables).is_empty(), "{different}");
        }
    }

    #[test]
    fn words_of_names_are_similar() {
        let columns = ["c_custkey", "c_name", "o_custkey", "n_name", "name_first", "d"];
        assert_eq!(found("custkey", &columns), ["c_custkey", "o_custkey"]);
        assert_eq!(found("name", &columns), ["c_name", "n_name", "name_first"]);
        assert_eq!(found("c_nam", &columns), ["c_name"]);
        assert!(found("e", &columns).is_empty());
        assert_eq!(found("di", &["id", "de"]), ["id"]);
        assert_eq!(found("customer_name", &["name"]), ["name"]);
    }

    #[test]
    fn very_long_names_resemble_none() {
        let long = "x".repeat(10 << 20);
        assert!(found(&long, &["x", &long]).is_empty());
        assert!(found("x", &[&long]).is_empty());
    }

    #[test]
    fn hints_have_a_list_of_names() {
        let hint = |names: &[&str]| did_you_mean(&names.iter().map(|name| (*name).into()).collect::<Vec<_>>());
        assert_eq!(hint(&[]), None);
        assert_eq!(hint(&["a"]).as_deref(), Some("did you mean \"a\"?"));
        assert_eq!(hint(&["a", "b", "c"]).as_deref(), Some("did you mean \"a\", \"b\" or \"c\"?"));
    }
}
