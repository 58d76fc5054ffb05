//! What can go wrong.

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Parameters that make no tree.
    #[error("these parameters make no tree: {0}")]
    Plan(&'static str),
    /// A goal that cannot be reached.
    #[error("{0}")]
    Goal(&'static str),
    /// Keys that are not in ascending order.
    #[error("the keys are not in ascending order at row {row}")]
    Order {
        /// The first row that is below the one before.
        row: usize,
    },
    /// Columns of different lengths.
    #[error("{keys} keys with {values} values")]
    Lengths {
        /// Keys given.
        keys: usize,
        /// Values given.
        values: usize,
    },
    /// Bytes that are not, or no longer, what was written.
    #[error("the serialised form is damaged or of another kind: {0}")]
    Damaged(&'static str),
}
