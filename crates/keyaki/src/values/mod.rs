//! Values of SQL: arithmetic, conversions, sums and averages with PostgreSQL's results and errors.
//!
//! | module | contents |
//! |---|---|
//! | [`ages`] | `age` of timestamps |
//! | [`arithmetic`] | `+ - * / %` without overflow |
//! | [`arrays`] | comparisons and sets of elements of arrays |
//! | [`average`] | the aggregate function `avg`, with rounded decimals |
//! | [`buckets`] | `width_bucket` |
//! | [`byte_strings`] | `substr`, `position`, `overlay` of BYTEA, `get_byte`, `set_byte` |
//! | [`bytes`] | BYTEA from and to text, `length` and `octet_length` |
//! | [`cast`] | conversions between types, for casts, assignments and parameters |
//! | [`conversions`] | casts and AT TIME ZONE as functions of DataFusion |
//! | [`domains`] | functions of numbers that fail outside of their domain |
//! | [`elements`] | functions of arrays and elements |
//! | [`eras`] | decades, centuries and millennia |
//! | [`extremes`] | the aggregate functions `min` and `max` of floats |
//! | [`floats`] | one zero and one NaN |
//! | [`fractions`] | the place of a percentile |
//! | [`frames`] | aggregates over frames that move |
//! | [`halves`] | `round` of floats |
//! | [`intervals`] | order, parts and arithmetic of intervals |
//! | [`json`] | functions and operators of JSON |
//! | [`kinds`] | `pg_typeof`, `isfinite` |
//! | [`makers`] | times of their parts |
//! | [`mode`] | the aggregate function `mode` |
//! | [`multiples`] | `lcm` |
//! | [`number_templates`] | templates of `to_char` for numbers |
//! | [`operators`] | operators of UUIDs, texts and times |
//! | [`patterns`] | patterns of LIKE, SIMILAR TO and regular expressions |
//! | [`printf`] | `printf` |
//! | [`quotient`] | `div` |
//! | [`regexps`] | functions of regular expressions |
//! | [`replacement`] | `regexp_replace` |
//! | [`rounding`] | `ceil` and `floor` |
//! | [`selection`] | `coalesce` |
//! | [`statistics`] | `var_pop`, `stddev_pop`, `regr_r2` |
//! | [`string_agg`] | the aggregate function `string_agg` |
//! | [`sum`] | the aggregate function `sum` without overflow |
//! | [`functions`] | arithmetic as functions of DataFusion |
//! | [`templates`] | templates of `to_date` and `to_timestamp` |
//! | [`text_functions`] | `format` and functions that quote texts |
//! | [`time`] | TIME from text |
//! | [`time_templates`] | templates of `to_char` for times |
//! | [`timestamps`] | TIMESTAMP and DATE from text |
//! | [`to_char`] | `to_char` |
//! | [`truncation`] | `date_trunc` |
//! | [`untyped`] | literals whose type depends on the values beside them |
//! | [`uuids`] | functions that make UUIDs |
//! | [`zone`] | time zones |

pub(crate) mod ages;
pub(crate) mod arithmetic;
pub(crate) mod arrays;
pub(crate) mod average;
pub(crate) mod buckets;
pub(crate) mod byte_strings;
pub(crate) mod bytes;
pub(crate) mod cast;
pub(crate) mod conversions;
pub(crate) mod domains;
pub(crate) mod elements;
pub(crate) mod eras;
pub(crate) mod extremes;
pub(crate) mod floats;
pub(crate) mod fractions;
pub(crate) mod frames;
pub(crate) mod functions;
mod group_sums;
pub(crate) mod halves;
pub(crate) mod intervals;
pub(crate) mod json;
pub(crate) mod kinds;
pub(crate) mod makers;
pub(crate) mod mode;
pub(crate) mod multiples;
mod number_templates;
pub(crate) mod operators;
pub(crate) mod patterns;
pub(crate) mod printf;
pub(crate) mod quotient;
pub(crate) mod regexps;
pub(crate) mod replacement;
pub(crate) mod rounding;
pub(crate) mod selection;
pub(crate) mod statistics;
pub(crate) mod string_agg;
pub(crate) mod sum;
pub(crate) mod templates;
pub(crate) mod text_functions;
pub(crate) mod time;
mod time_templates;
pub(crate) mod timestamps;
pub(crate) mod to_char;
pub(crate) mod truncation;
pub(crate) mod untyped;
pub(crate) mod uuids;
pub(crate) mod zone;
