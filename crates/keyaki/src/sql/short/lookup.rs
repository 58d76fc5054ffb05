//! Lookups in a table for rows found so far.

use arrow::array::{Array, ArrayRef, UInt32Array, new_null_array};
use arrow::compute::{concat, take};
use keyaki_store::Store;

use super::access::Found;
use super::expressions::Expressions;
use super::scan::{Scan, filtered_places};
use super::steps::Rows;
use crate::Result;
use crate::engine::Moment;

/// A table that is joined to the rows found so far.
#[derive(Debug)]
pub(super) struct Lookup {
    pub scan: Scan,
    /// The rest of the ON clause of a left join, over the columns so far and those of the table.
    pub on: Option<Expressions>,
    /// Conditions on the joined rows.
    pub filter: Option<Expressions>,
    /// Rows without a match continue with nulls.
    pub is_outer: bool,
}

impl Lookup {
    /// Joins the table to `rows`.
    ///
    /// # Errors
    /// Errors of the store and of the conditions.
    pub fn join(
        &self,
        store: &Store,
        moment: &mut Moment,
        parameters: &[ArrayRef],
        rows: &Rows,
    ) -> Result<Found<Rows>> {
        self.scan.look_up(store, moment, parameters, rows)?.try_map(|(own, places)| {
            let mut joined = Joined { rows: rows.at(&places)?, places };
            joined.rows.columns.extend(own.columns);
            if let Some(on) = &self.on {
                joined = joined.filtered(on, parameters)?;
            }
            if self.is_outer {
                joined = joined.with_unmatched(rows)?;
            }
            if let Some(condition) = &self.filter {
                joined = joined.filtered(condition, parameters)?;
            }
            Ok(Some(joined.rows))
        })
    }
}

/// Joined rows, and the positions of the outer rows they come from, in ascending order.
struct Joined {
    rows: Rows,
    places: UInt32Array,
}

impl Joined {
    fn filtered(self, condition: &Expressions, parameters: &[ArrayRef]) -> Result<Joined> {
        let Some(mask) = condition.mask(&self.rows, parameters)? else { return Ok(self) };
        let places = filtered_places(&self.places, &mask);
        Ok(Joined { rows: self.rows.filtered(&mask)?, places })
    }

    /// Adds the outer rows without a match.
    fn with_unmatched(self, outer: &Rows) -> Result<Joined> {
        let Joined { rows, places } = self;
        let matched = places.values();
        let is_unmatched = |place: &u32| matched.binary_search(place).is_err();
        let unmatched: UInt32Array = (0..outer.len as u32).filter(is_unmatched).collect::<Vec<_>>().into();
        if unmatched.is_empty() {
            return Ok(Joined { rows, places });
        }
        let mut added = outer.at(&unmatched)?.columns;
        let inner = rows.columns[outer.columns.len()..].iter();
        added.extend(inner.map(|column| new_null_array(column.data_type(), unmatched.len())));
        let both = rows.columns.iter().zip(&added).map(|(a, b)| concat(&[a.as_ref(), b.as_ref()]));
        let columns = both.collect::<std::result::Result<_, _>>()?;
        Ok(Joined { rows: Rows { columns, len: rows.len + unmatched.len() }, places })
    }
}

impl Rows {
    /// The rows at these positions.
    fn at(&self, places: &UInt32Array) -> Result<Rows> {
        let columns = self.columns.iter().map(|column| take(column, places, None));
        Ok(Rows { columns: columns.collect::<std::result::Result<_, _>>()?, len: places.len() })
    }
}
