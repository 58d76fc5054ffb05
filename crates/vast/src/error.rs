//! The errors of this crate.

/// Reasons for which building or opening a tree, a column or an index fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plan or preset that does not describe a valid tree, or a column that is too large.
    #[error("invalid plan: {0}")]
    Plan(&'static str),
    /// No plan meets the goal.
    #[error("{0}")]
    Goal(&'static str),
    /// Keys are not in ascending order.
    #[error("keys are not in ascending order at row {row}")]
    Order {
        /// The first row with a key lower than its predecessor's.
        row: usize,
    },
    /// The numbers of keys and values differ.
    #[error("{keys} keys with {values} values")]
    Lengths {
        /// Keys given.
        keys: usize,
        /// Values given.
        values: usize,
    },
    /// Bytes that are no valid serialised form of the requested kind.
    #[error("invalid serialised form: {0}")]
    Damaged(&'static str),
}
