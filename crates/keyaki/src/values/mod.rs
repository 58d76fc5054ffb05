//! Values of SQL: arithmetic, conversions and sums with PostgreSQL's results and errors.
//!
//! | module | contents |
//! |---|---|
//! | [`arithmetic`] | `+ - * / %` without overflow |
//! | [`floats`] | one zero and one NaN |
//! | [`sum`] | the aggregate function `sum` without overflow |
//! | [`functions`] | arithmetic as functions of DataFusion |

pub(crate) mod arithmetic;
pub(crate) mod floats;
pub(crate) mod functions;
pub(crate) mod sum;
