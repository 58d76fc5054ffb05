//! The DataFusion state that all statements of a database share: functions, configuration, memory pool, spill
//! directory.
//!
//! A session clones the state, adds its options, and registers the tables of one snapshot for each statement. The
//! clones share one memory pool, which bounds the memory of all queries together.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::TrackConsumersPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateDefaults};
use datafusion::functions::math::signum;
use datafusion::functions_aggregate::variance::var_samp_udaf;
use datafusion::prelude::SessionConfig;

use super::query_memory::QueryPool;
use super::types::ColumnTypes;
use crate::Result;
use crate::catalog::PUBLIC;
use crate::values::ages::age;
use crate::values::average::average;
use crate::values::buckets::width_bucket;
use crate::values::conversions::at_time_zone;
use crate::values::extremes::extremes;
use crate::values::fractions::place;
use crate::values::halves::round;
use crate::values::mode::most_frequent;
use crate::values::multiples::lcm;
use crate::values::printf::printf;
use crate::values::quotient::div;
use crate::values::replacement::regexp_replace;
use crate::values::selection::coalesce;
use crate::values::string_agg::{string_agg, string_agg_by_row};
use crate::values::sum::sum;
use crate::values::to_char::to_char;
use crate::values::truncation::date_trunc;
use crate::values::untyped::untyped;
use crate::values::uuids;
use crate::values::zone::STORED;
use crate::values::{
    arrays, byte_strings, bytes, domains, elements, intervals, json, kinds, makers, operators, patterns, regexps,
    rounding, statistics, text_functions,
};

/// SQL name of the database.
pub(crate) const CATALOG_NAME: &str = "keyaki";
/// Largest number of rows per batch of DataFusion's operators.
const BATCH_ROWS: usize = 8192;
/// Bytes of the query memory for each row of a batch and thread. Several operators hold batches, of rows of some 100 bytes.
const BYTES_PER_BATCH_ROW: usize = 2048;
/// Smallest number of rows per batch.
const BATCH_ROWS_MIN: usize = 256;
/// Number of operators that DataFusion lists in the error when the memory pool is exhausted.
const CONSUMERS_NAMED_IN_ERRORS: usize = 5;

/// The partitions of a sort reserve at most one part in this many of the query memory for merging.
const SORT_RESERVATIONS_SHARE: usize = 4;

/// Creates the state. Operators may use `query_bytes` bytes together; beyond that, sorts and joins spill to `spill`, or
/// to the operating system's directory for temporary files (`None`). `threads` is the number of partitions of a plan.
pub(super) fn base_state(query_bytes: usize, spill: Option<PathBuf>, threads: usize) -> Result<SessionState> {
    let mode = match spill {
        Some(dir) => DiskManagerMode::Directories(vec![dir]),
        None => DiskManagerMode::OsTmpDirectory,
    };
    // The constant is not zero, so the fallback is never used.
    let named = std::num::NonZeroUsize::new(CONSUMERS_NAMED_IN_ERRORS).unwrap_or(std::num::NonZeroUsize::MIN);
    // Each statement reads files again. The caches would find changes by lengths and times only, which in object stores are
    // whole seconds, and objects of different stores by the same names.
    let uncached = CacheManagerConfig {
        file_statistics_cache_limit: 0,
        list_files_cache_limit: 0,
        metadata_cache_limit: 0,
        ..CacheManagerConfig::default()
    };
    let runtime = RuntimeEnvBuilder::new()
        .with_cache_manager(uncached)
        .with_memory_pool(Arc::new(TrackConsumersPool::new(QueryPool::new(query_bytes), named)))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(mode))
        .build_arc()?;
    let mut config = SessionConfig::new()
        .with_target_partitions(threads)
        .with_batch_size(batch_rows(query_bytes, threads))
        .with_default_catalog_and_schema(CATALOG_NAME, PUBLIC)
        .with_create_default_catalog_and_schema(false);
    let options = config.options_mut();
    // Numbers with a decimal point are exact, as in the SQL standard.
    options.sql_parser.parse_float_as_decimal = true;
    options.execution.collect_statistics = false;
    // The type of TIMESTAMPTZ in expressions is that of columns.
    options.execution.time_zone = Some(STORED.into());
    // A LIMIT over a subquery with ORDER BY returns its first rows, as in PostgreSQL.
    options.sql_parser.enable_subquery_sort_elimination = false;
    // The check compares the nullability of CASE and COALESCE, which logical and physical expressions infer differently.
    options.execution.skip_physical_aggregate_schema_check = true;
    // With it, columns of joins become ambiguous (docs/upstream.md).
    options.optimizer.enable_leaf_expression_pushdown = false;
    // Each partition of a sort reserves this for merging. All partitions together must fit into a small budget.
    let reservation = &mut options.execution.sort_spill_reservation_bytes;
    *reservation = (*reservation).min(query_bytes / (SORT_RESERVATIONS_SHARE * threads.max(1)));
    // DataFusion's planners compare arrays otherwise.
    let mut planners = SessionStateDefaults::default_expr_planners();
    planners.insert(0, Arc::new(arrays::Operators));
    planners.insert(0, Arc::new(regexps::Substrings));
    let mut state = SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_default_features()
        .with_type_planner(Arc::new(ColumnTypes))
        .with_expr_planners(planners)
        .build();
    state.register_udaf(Arc::new(average()))?;
    state.register_udaf(Arc::new(sum()))?;
    state.register_udaf(Arc::new(string_agg()))?;
    state.register_udaf(Arc::new(string_agg_by_row()))?;
    // PostgreSQL's names.
    state.register_udaf(Arc::new(var_samp_udaf().as_ref().clone().with_aliases(["variance"])))?;
    state.register_udf(Arc::new(signum().as_ref().clone().with_aliases(["sign"])))?;
    for extreme in extremes() {
        state.register_udaf(Arc::new(extreme))?;
    }
    for function in statistics::functions() {
        state.register_udaf(Arc::new(function))?;
    }
    for function in most_frequent() {
        state.register_udaf(Arc::new(function))?;
    }
    state.register_udf(Arc::new(regexp_replace()))?;
    for function in [
        at_time_zone(),
        age(),
        width_bucket(),
        printf(),
        untyped(),
        coalesce(),
        div(),
        round(),
        lcm(),
        date_trunc(),
        place(),
        to_char(),
    ]
    .into_iter()
    .chain(domains::functions())
    .chain(kinds::functions())
    .chain(makers::functions())
    .chain(regexps::functions())
    .chain(text_functions::functions())
    .chain(patterns::functions())
    {
        state.register_udf(Arc::new(function))?;
    }
    for function in json::functions() {
        state.register_udf(function)?;
    }
    state.register_expr_planner(Arc::new(json::Operators))?;
    state.register_expr_planner(Arc::new(operators::Operators))?;
    for function in rounding::functions().into_iter().chain(bytes::lengths()).chain(byte_strings::functions()) {
        state.register_udf(Arc::new(function))?;
    }
    for name in elements::NAMES {
        let inner = state.udf(name)?;
        state.register_udf(Arc::new(elements::function(inner)))?;
    }
    for function in arrays::functions().chain(intervals::functions()) {
        state.register_udf(Arc::new(function))?;
    }
    state.register_udf(Arc::new(uuids::random()))?;
    state.register_udf(Arc::new(uuids::ascending()))?;
    Ok(state)
}

/// Rows per batch, so that the batches of all threads are a small part of the query memory.
fn batch_rows(query_bytes: usize, threads: usize) -> usize {
    (query_bytes / (BYTES_PER_BATCH_ROW * threads.max(1))).clamp(BATCH_ROWS_MIN, BATCH_ROWS)
}
