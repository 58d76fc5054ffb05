//! Statistics of tables, made by ANALYZE and by loads, used by the cost model.

use serde::{Deserialize, Serialize};

/// Stored in the catalog tree beside the table's definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatistics {
    pub rows: u64,
    /// By table column.
    pub columns: Vec<ColumnStatistics>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnStatistics {
    /// Estimated number of distinct values.
    pub distinct: f64,
    pub null_fraction: f64,
    /// Equi-depth bounds of the values' order-preserving numeric image (ints, dates, timestamps, decimals and floats as
    /// f64; text: first 8 bytes), ascending; empty when unknown.
    pub histogram: Vec<f64>,
    /// Most common values' images and their fractions.
    pub common: Vec<(f64, f64)>,
    /// Average bytes of a value.
    pub width: f64,
}
