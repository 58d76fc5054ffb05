//! INSERT … VALUES of parameters, literals and the current time.

use std::cell::LazyCell;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, Int64Array, PrimitiveArray, PrimitiveBuilder, StringViewBuilder,
    TimestampMicrosecondArray, new_null_array,
};
use arrow::compute::concat;
use arrow::datatypes::{Date32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType};
use keyaki_store::ColumnType;

use crate::Result;
use crate::base::interrupt::Execution;
use crate::base::value::{ValueRef, value_at};
use crate::catalog::{Catalog, ColumnDef, Table};
use crate::sql::parameters::bind;
use crate::sql::prepared::Executed;
use crate::sql::{Outcome, SqlSession};
use crate::values::floats::Float;
use crate::values::zone::Zone;
use crate::write::apply::TableChange;
use crate::write::assign::assign;
use crate::write::generated;
use crate::write::rows::TableRows;

/// One value of a row to insert.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    Parameter(usize),
    /// An array of one value, of any type that can be assigned to the column.
    Constant(ArrayRef),
    /// The start of the statement: `now()`, CURRENT_TIMESTAMP.
    Now,
}

/// The current time, as an array of `rows` equal values.
pub(crate) fn now(rows: usize) -> ArrayRef {
    let micros = chrono::Utc::now().timestamp_micros();
    let array = TimestampMicrosecondArray::from_value(micros, rows);
    Arc::new(array.with_data_type(ColumnType::Timestamp { utc: true }.arrow()))
}

/// An INSERT of rows of parameters, literals and the current time.
#[derive(Debug)]
pub(crate) struct Insert {
    pub table: Arc<Table>,
    pub rows: usize,
    /// For each table column, `rows` cells; `None` for columns that get null or are generated.
    pub columns: Vec<Option<Vec<Cell>>>,
}

impl Insert {
    /// Inserts the rows, with a value for each parameter; `None` if the catalog has changed.
    ///
    /// # Errors
    /// `Context` with the parameter for a value that cannot be converted to its column; `Constraint`; errors of the
    /// commit.
    pub async fn run(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        catalog: &Arc<Catalog>,
        values: &[ValueRef<'_>],
    ) -> Result<Option<Executed>> {
        let new = self.new_rows(session, values)?;
        let writer = session.writer(execution, "INSERT").await?;
        let (current, snapshot) = session.engine.latest(&writer);
        if !Arc::ptr_eq(&current, catalog) {
            return Ok(None);
        }
        let change = TableChange::insertion(&self.table, new);
        let rows = crate::write::commit(session.write(writer), snapshot, change).await?;
        Ok(Some(Executed::Outcome(Outcome::rows("INSERT", rows))))
    }

    /// The rows, with a value for each parameter.
    ///
    /// # Errors
    /// `Context` with the parameter for a value that cannot be converted to its column; `Constraint` for NOT NULL.
    pub(super) fn new_rows(&self, session: &SqlSession, values: &[ValueRef<'_>]) -> Result<TableRows> {
        let mut columns = Vec::with_capacity(self.columns.len());
        let now = LazyCell::<ArrayRef>::new(|| now(1));
        for (cells, column) in self.columns.iter().zip(&self.table.def.columns) {
            let array = match cells {
                None if column.generated.is_some() => {
                    columns.push(generated::unset(column, self.rows));
                    continue;
                }
                None if let Some(identity) = &column.identity => {
                    let def = &identity.sequence;
                    let values = session.engine.sequences.next(&session.engine.store, def, self.rows)?;
                    session.taken.lock().note(def.lasting_id(), &values);
                    Arc::new(Int64Array::from(values))
                }
                None => new_null_array(&column.ty.column.arrow(), self.rows),
                Some(cells) => column_of(cells, (values, &now), column, session.zone())?,
            };
            columns.push(assign(&array, &self.table.def.name, column, session.zone())?);
        }
        generated::complete(&self.table, &mut columns, self.rows)?;
        Ok(TableRows { len: self.rows, columns: columns.into_iter().map(Some).collect(), rowid: None })
    }
}

/// The values of a column, as an array of the column's type, with values for the parameters and the current time.
///
/// # Errors
/// `Context` with the parameter for a value that cannot be converted.
pub(super) fn column_of(
    cells: &[Cell],
    (values, now): (&[ValueRef<'_>], &LazyCell<ArrayRef>),
    column: &ColumnDef,
    zone: Zone,
) -> Result<ArrayRef> {
    let plain = |cell: usize| match &cells[cell] {
        Cell::Parameter(parameter) => Some(values[*parameter]),
        Cell::Constant(array) => value_at(array, 0),
        Cell::Now => value_at(&**now, 0),
    };
    if let Some(array) = array_of(cells.len(), plain, column.ty.column) {
        return Ok(array);
    }
    let ty = column.ty.column.arrow();
    let converted = cells.iter().map(|cell| match cell {
        Cell::Parameter(parameter) => bind(*parameter, values[*parameter], Some(&ty), zone),
        Cell::Constant(array) => assign(array, "", &ColumnDef { nullable: true, ..column.clone() }, zone),
        Cell::Now => assign(now, "", column, zone),
    });
    let converted = converted.collect::<Result<Vec<_>>>()?;
    let arrays: Vec<&dyn Array> = converted.iter().map(AsRef::as_ref).collect();
    Ok(concat(&arrays)?)
}

/// The `len` values as an array of type `ty`; `None` if one of them is missing or needs more than a widening conversion.
fn array_of<'v>(len: usize, value: impl Fn(usize) -> Option<ValueRef<'v>>, ty: ColumnType) -> Option<ArrayRef> {
    /// An array of numbers, converted by `number`.
    fn numbers<'v, T: ArrowPrimitiveType>(
        (len, value): (usize, &impl Fn(usize) -> Option<ValueRef<'v>>),
        number: impl Fn(ValueRef<'v>) -> Option<T::Native>,
    ) -> Option<PrimitiveArray<T>> {
        let mut builder = PrimitiveBuilder::<T>::with_capacity(len);
        for i in 0..len {
            match value(i)? {
                ValueRef::Null => builder.append_null(),
                value => builder.append_value(number(value)?),
            }
        }
        Some(builder.finish())
    }
    let values = (len, &value);
    let integer = |value: ValueRef<'v>| match value {
        ValueRef::Integer(value) => Some(value),
        _ => None,
    };
    let micros = |value: ValueRef<'v>| match (value, ty) {
        (ValueRef::Timestamp(micros), ColumnType::Timestamp { utc: false })
        | (ValueRef::TimestampTz(micros), ColumnType::Timestamp { utc: true }) => Some(micros),
        _ => None,
    };
    Some(match ty {
        ColumnType::Int8 => Arc::new(numbers::<Int8Type>(values, |v| integer(v)?.try_into().ok())?),
        ColumnType::Int16 => Arc::new(numbers::<Int16Type>(values, |v| integer(v)?.try_into().ok())?),
        ColumnType::Int32 => Arc::new(numbers::<Int32Type>(values, |v| integer(v)?.try_into().ok())?),
        ColumnType::Int64 => Arc::new(numbers::<Int64Type>(values, integer)?),
        ColumnType::Float64 => {
            let float = |value: ValueRef<'v>| match value {
                ValueRef::Float(value) => Some(value.canonical()),
                _ => None,
            };
            Arc::new(numbers::<Float64Type>(values, float)?)
        }
        ColumnType::Date => {
            let days = |value: ValueRef<'v>| match value {
                ValueRef::Date(days) => Some(days),
                _ => None,
            };
            Arc::new(numbers::<Date32Type>(values, days)?)
        }
        ColumnType::Timestamp { .. } => {
            let array = numbers::<TimestampMicrosecondType>(values, micros)?;
            Arc::new(array.with_data_type(ty.arrow()))
        }
        ColumnType::Text => {
            let mut builder = StringViewBuilder::with_capacity(len);
            for i in 0..len {
                match value(i)? {
                    ValueRef::Null => builder.append_null(),
                    ValueRef::Text(text) => builder.append_value(text),
                    _ => return None,
                }
            }
            Arc::new(builder.finish())
        }
        _ => return None,
    })
}
