//! Statements that begin a transaction.
//!
//! Without autocommit, a statement that changes or locks rows begins a transaction if none is open, as in Python's `sqlite3`.
//! Queries, definitions, loads by COPY and settings belong to the open transaction if there is one, and otherwise stand alone:
//! a query then pins no snapshot, and indexes and loads are built by the fast paths that a transaction cannot use.

use crate::parameters::comment_end;

/// True if the statement begins a transaction.
pub fn begins_transaction(sql: &str) -> bool {
    let mut words = Words { rest: sql };
    let Some(first) = words.next() else { return false };
    let is = |names: &[&str]| names.iter().any(|name| first.eq_ignore_ascii_case(name));
    if is(&["insert", "update", "delete", "merge", "replace", "truncate", "execute"]) {
        return true;
    }
    // These may contain a change or lock rows. A name or text that looks so makes a difference only for the snapshot.
    let may_change = is(&["with"]);
    if !may_change && !is(&["select"]) {
        return false;
    }
    let mut follows_for = false;
    words.any(|word| {
        let is_one_of = |names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
        let changes = may_change && is_one_of(&["insert", "update", "delete", "merge"]);
        let locks = follows_for && is_one_of(&["update", "share", "no", "key"]);
        follows_for = word.eq_ignore_ascii_case("for");
        changes || locks
    })
}

/// The words of a statement, without comments and parentheses. Texts are not told apart.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        loop {
            self.rest = self.rest.trim_start_matches(|letter| !is_word(letter) && !['-', '/'].contains(&letter));
            if let Some(comment) = self.rest.strip_prefix("--") {
                self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest);
            } else if self.rest.starts_with("/*") {
                self.rest = &self.rest[comment_end(self.rest.as_bytes(), 0)..];
            } else if self.rest.starts_with(['-', '/']) {
                self.rest = &self.rest[1..];
            } else {
                break;
            }
        }
        let end = self.rest.find(|letter| !is_word(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }
}
