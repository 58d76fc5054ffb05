//! The report of a repair.

/// The result of a repair: the tables of the new database, losses and notices.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Repaired {
    /// The tables of the new database.
    pub tables: Vec<RepairedTable>,
    /// Losses that do not belong to a table: commits, definitions and constraints. One text for each.
    pub losses: Vec<String>,
    /// Damage without a loss. One text for each.
    pub notices: Vec<String>,
}

/// A table of the new database.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RepairedTable {
    /// The schema.
    pub schema: String,
    /// The name; `recovered_N` if the definition is lost.
    pub name: String,
    /// Number of salvaged rows.
    pub rows: u64,
    /// Number of damaged pages.
    pub damaged_pages: u64,
    /// Keys whose rows are lost, unless newer changes contain the whole rows.
    pub lost: Vec<KeySpan>,
    /// Keys whose rows may be older than they were, or deleted ones.
    pub outdated: Vec<KeySpan>,
    /// Number of rows in lost ranges that are left out because only changes of them remain.
    pub lost_changes: u64,
}

/// The keys between two bounds, each as the list of its values in parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySpan {
    /// Inclusive lower bound.
    pub low: String,
    /// Upper bound. It may be one of the keys.
    pub high: String,
}

impl Repaired {
    /// True if nothing is lost or may be outdated.
    pub fn is_complete(&self) -> bool {
        self.losses.is_empty() && self.tables.iter().all(|table| table.lost.is_empty() && table.outdated.is_empty())
    }
}
