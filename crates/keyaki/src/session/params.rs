//! Lists of parameter values: tuples, arrays, slices and iterators.

use crate::Result;
use crate::base::to_sql::{ToSql, ToSqlOutput};
use crate::base::value::ValueRef;

/// The values of all parameters of a statement, or of all columns of an appended row.
///
/// | form | use |
/// |---|---|
/// | `()`, `[]` | no values |
/// | `(1, "a", None::<f64>)` | up to 16 values of different types; `(1,)` for one value |
/// | `params![1, "a", x]` | any number of values of different types |
/// | `[1, 2, 3]`, `&[…]`, `&[T; N]`, `&Vec<T>` | values of one type, for example of [`Value`](crate::Value) |
/// | [`params_from_iter`]`(iterator)` | any number of values of one type |
///
/// ```
/// use keyaki::{Value, params, params_from_iter};
///
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// let add = connection.prepare("SELECT $1 + $2")?;
/// let sum = |row: &keyaki::Row<'_>| row.get::<_, i64>(0);
/// assert_eq!(add.query_row((1, 2_u8), sum)?, 3);
/// assert_eq!(add.query_row(params![1, 2], sum)?, 3);
/// assert_eq!(add.query_row([1, 2], sum)?, 3);
/// assert_eq!(add.query_row(&[Value::Integer(1), Value::Integer(2)], sum)?, 3);
/// assert_eq!(add.query_row(params_from_iter(1..=2), sum)?, 3);
/// # Ok(()) }
/// ```
pub trait Params {
    /// Calls `run` with the values.
    ///
    /// # Errors
    /// Errors of [`ToSql::to_sql`], within the parameter, and of `run`.
    #[doc(hidden)]
    fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R>;
}

/// The value of parameter `index`, counted from 0.
fn output<T: ToSql + ?Sized>(index: usize, value: &T) -> Result<ToSqlOutput<'_>> {
    value.to_sql().map_err(|error| error.within(format!("parameter ${}", index + 1)))
}

impl Params for () {
    fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
        run(&[])
    }
}

/// `[]`. The element type makes the type of an empty array known.
impl Params for [&(dyn ToSql + Send + Sync); 0] {
    fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
        run(&[])
    }
}

/// Implements [`Params`] for tuples, without allocations.
macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: ToSql),+> Params for ($($name,)+) {
            fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
                let outputs = [$(output($index, &self.$index)?),+];
                run(&outputs.each_ref().map(ToSqlOutput::as_ref))
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15);

/// Implements [`Params`] for arrays. A generic implementation would leave the type of `[]` open.
macro_rules! arrays {
    ($($len:literal)+) => {$(
        impl<T: ToSql> Params for [T; $len] {
            fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
                Params::with_values(&self, run)
            }
        }
    )+};
}

arrays!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);

impl<T: ToSql, const N: usize> Params for &[T; N] {
    fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
        self.as_slice().with_values(run)
    }
}

impl<T: ToSql> Params for &[T] {
    fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
        const ON_STACK: usize = 16;
        if self.len() > ON_STACK {
            return params_from_iter(self).with_values(run);
        }
        let mut outputs = [const { ToSqlOutput::Borrowed(ValueRef::Null) }; ON_STACK];
        for (index, (place, value)) in outputs.iter_mut().zip(self).enumerate() {
            *place = output(index, value)?;
        }
        run(&outputs.each_ref().map(ToSqlOutput::as_ref)[..self.len()])
    }
}

impl<T: ToSql> Params for &Vec<T> {
    fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
        self.as_slice().with_values(run)
    }
}

/// Parameter values from an iterator ([`params_from_iter`]).
#[derive(Debug, Clone)]
pub struct ParamsFromIter<I>(I);

/// The values of an iterator as parameters.
pub fn params_from_iter<I: IntoIterator<Item: ToSql>>(values: I) -> ParamsFromIter<I> {
    ParamsFromIter(values)
}

impl<I: IntoIterator<Item: ToSql>> Params for ParamsFromIter<I> {
    fn with_values<R>(self, run: impl FnOnce(&[ValueRef<'_>]) -> Result<R>) -> Result<R> {
        let values: Vec<I::Item> = self.0.into_iter().collect();
        let outputs = values.iter().enumerate().map(|(index, value)| output(index, value));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        run(&outputs.iter().map(ToSqlOutput::as_ref).collect::<Vec<_>>())
    }
}

/// Parameter values of different types; see [`Params`](crate::Params).
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// # let connection = keyaki::Connection::open_temporary()?;
/// let text: String = connection.query_row("SELECT $1 || $2", keyaki::params!["a", "b"], |row| row.get(0))?;
/// assert_eq!(text, "ab");
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$(&$value as &dyn $crate::ToSql),*] as &[&dyn $crate::ToSql]
    };
}
