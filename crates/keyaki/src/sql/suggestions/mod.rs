//! Suggestions of indexes for a query.
//!
//! The optimized plan of the query gives candidates (`plan::candidates`). The query is planned again with each of them
//! in the catalog of the statement, where it has a tree that cannot be read ([`assumed`]). The candidate that lowers the
//! estimated time of the plan most is chosen, and the others are compared beside it, until none of them is worthwhile. A
//! narrower index is preferred to one that is little better. Nothing is written.

mod assumed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::sql::sqlparser::ast::Statement as Sql;
use keyaki_store::TreeId;

use super::state::StatementState;
use super::{Parsed, SqlSession, dml, located, locking, parameters, parse, show, split};
use crate::catalog::{Catalog, RelationName, Table};
use crate::plan;
use crate::table::AssumedTrees;
use crate::{Error, Result};
use assumed::{AssumedIndex, Sample};

/// An index must lower the estimated time to at most this share.
const SHARE_MAX: f64 = 0.9;
/// An index must save at least this much of the estimated time.
const SAVED_SECONDS_MIN: f64 = 1e-4;
/// A narrower index is preferred if it loses at most this share of what the best one saves.
const LOSS_MAX: f64 = 0.25;
/// Maximum number of candidates.
const CANDIDATES_MAX: usize = 48;
/// The ids of assumed trees are lower than this: they are ids of trees on disk, and not the last one, which is reserved.
const ASSUMED_IDS_END: u32 = (1 << 31) - 1;
/// Maximum number of suggested indexes.
const INDEXES_MAX: usize = 3;

/// Indexes that would lower the cost of a query, with the estimated times of its plans. Returned by
/// [`Session::suggest_indexes`](crate::Session::suggest_indexes).
#[derive(Debug, Clone)]
pub struct IndexSuggestions {
    /// Estimated elapsed seconds of the plan with the present indexes.
    pub seconds: f64,
    /// The suggested indexes, in the order of their benefit; empty if no index is worthwhile.
    pub indexes: Vec<SuggestedIndex>,
    /// The plan with the suggested indexes, as EXPLAIN shows it.
    pub plan: String,
}

/// An index that does not exist.
#[derive(Debug, Clone)]
pub struct SuggestedIndex {
    /// The CREATE INDEX statement, without a semicolon.
    pub sql: String,
    /// The table: its name, with the schema unless that is `public`.
    pub table: String,
    /// Estimated size on disk in bytes.
    pub bytes: u64,
    /// Estimated elapsed seconds of the plan with this index and those before it.
    pub seconds: f64,
}

/// Suggests indexes for a query, or for the query that finds the rows of an UPDATE, DELETE, MERGE or INSERT.
///
/// # Errors
/// `Unsupported` for other statements; errors of planning; errors of reading rows.
pub(crate) async fn suggest(session: &SqlSession, sql: &str) -> Result<IndexSuggestions> {
    let statement = split::single(sql)?;
    let found = suggest_for(session, &statement).await;
    found.map_err(|error| located::explained(session, &statement, error))
}

async fn suggest_for(session: &SqlSession, statement: &split::Statement<'_>) -> Result<IndexSuggestions> {
    session.transaction.check()?;
    let state = StatementState::reading(session)?;
    let statement = parsed(statement)?;
    if parameters::count(&statement)? > 0 {
        return Err(Error::UndefinedParameter { name: "$1".into() });
    }
    let logical = state.plan(query(session, &state, &statement)?).await?;
    let mut candidates = plan::candidates(&state.state.optimize(&logical)?)?;
    candidates.truncate(CANDIDATES_MAX);
    let mut samples = BTreeMap::<RelationName, Sample>::new();
    let mut indexes = Vec::with_capacity(candidates.len());
    // The largest free ones, so that no index takes the id of a tree that another process creates meanwhile.
    let used: BTreeSet<TreeId> = state.catalog.trees().collect();
    let mut ids = (0..ASSUMED_IDS_END).rev().map(TreeId::new).filter(|id| !used.contains(id));
    for candidate in &candidates {
        let name = &candidate.table.def.name;
        if !samples.contains_key(name) {
            let view = state.snapshot.tree(candidate.table.def.tree)?;
            samples.insert(name.clone(), Sample::read(&session.engine, &candidate.table, view).await?);
        }
        if let (Some(sample), Some(id)) = (samples.get(name), ids.next()) {
            // Types that cannot be keys are errors.
            indexes.extend(AssumedIndex::new(&state.catalog, id, candidate, sample).ok());
        }
    }
    Search { session, state, statement }.choose(&indexes).await
}

fn unsupported() -> Error {
    Error::Unsupported("suggestions of indexes for this statement (use a query)".into())
}

/// The statement, without EXPLAIN.
fn parsed(statement: &split::Statement<'_>) -> Result<Sql> {
    let Parsed::Sql(statement) = parse(statement)? else { return Err(unsupported()) };
    match *statement {
        Sql::Explain { statement, .. } => Ok(*statement),
        statement => Ok(statement),
    }
}

/// The query of a statement in a state, which gets the tables that the query needs.
fn query(session: &SqlSession, state: &StatementState, statement: &Sql) -> Result<Sql> {
    match statement {
        Sql::Query(_) => locking::without(statement),
        Sql::Insert(_) | Sql::Update(_) | Sql::Delete(_) | Sql::Merge(_) => {
            let (_, query) = dml::explain::change(session, state, statement)?;
            query.map(|query| Sql::Query(Box::new(query))).ok_or_else(unsupported)
        }
        _ => Err(unsupported()),
    }
}

/// The indexes of one comparison, and the time and plan with them.
struct Compared {
    index: usize,
    seconds: f64,
    physical: Arc<dyn ExecutionPlan>,
}

struct Search<'a> {
    session: &'a SqlSession,
    state: StatementState,
    statement: Sql,
}

impl Search<'_> {
    /// Plans the query with indexes that do not exist. Returns the estimated seconds and the plan.
    async fn with(&self, indexes: &[&AssumedIndex]) -> Result<(f64, Arc<dyn ExecutionPlan>)> {
        let mut catalog = Catalog::clone(&self.state.catalog);
        let mut trees = AssumedTrees::new();
        for index in indexes {
            let table = catalog.table(&index.table)?.clone();
            let mut def = table.def.clone();
            def.indexes.push(index.def.clone());
            let table = Table::new(def, table.statistics.clone())?;
            catalog.tables.insert(index.table.clone(), Arc::new(table));
            trees.insert(index.def.tree, index.tree.clone());
        }
        let (snapshot, trees) = (self.state.snapshot.clone(), Arc::new(trees));
        let state = StatementState::assuming(self.session, Arc::new(catalog), snapshot, trees)?;
        let logical = state.plan(query(self.session, &state, &self.statement)?).await?;
        let physical = state.state.create_physical_plan(&logical).await?;
        Ok((plan::seconds(&physical, &state.machine())?, physical))
    }

    /// Chooses indexes one after another.
    async fn choose(&self, indexes: &[AssumedIndex]) -> Result<IndexSuggestions> {
        // Reading the samples has changed the page cache.
        let (before, mut physical) = self.with(&[]).await?;
        let (mut chosen, mut seconds) = (Vec::<usize>::new(), before);
        while chosen.len() < INDEXES_MAX {
            let mut compared = Vec::new();
            for index in 0..indexes.len() {
                if chosen.iter().any(|&known| indexes[known].excludes(&indexes[index])) {
                    continue;
                }
                let all: Vec<&AssumedIndex> = chosen.iter().chain([&index]).map(|&index| &indexes[index]).collect();
                let (seconds, physical) = self.with(&all).await?;
                compared.push(Compared { index, seconds, physical });
                // Planning does not wait for anything: an interrupt takes effect here.
                tokio::task::yield_now().await;
            }
            let least = compared.iter().map(|compared| compared.seconds).fold(f64::INFINITY, f64::min);
            let enough = (seconds * SHARE_MAX).min(seconds - SAVED_SECONDS_MIN);
            let enough = enough.min(least + LOSS_MAX * (seconds - least));
            let worthwhile = compared.into_iter().filter(|compared| compared.seconds <= enough);
            let size = |index: usize| indexes[index].def.keys.len() + indexes[index].def.include.len();
            let narrowest = worthwhile.min_by(|a, b| {
                size(a.index).cmp(&size(b.index)).then(a.seconds.total_cmp(&b.seconds)) //
            });
            let Some(best) = narrowest else { break };
            (seconds, physical) = (best.seconds, best.physical);
            chosen.push(best.index);
        }
        // A later index may serve in place of an earlier one.
        let mut place = 0;
        while chosen.len() > 1 && place < chosen.len() {
            let others = chosen.iter().enumerate().filter(|(other, _)| *other != place);
            let others: Vec<&AssumedIndex> = others.map(|(_, &index)| &indexes[index]).collect();
            let (without, plan) = self.with(&others).await?;
            if without <= seconds {
                chosen.remove(place);
                (seconds, physical) = (without, plan);
            } else {
                place += 1;
            }
        }
        let chosen: Vec<&AssumedIndex> = chosen.into_iter().map(|index| &indexes[index]).collect();
        let mut suggested = Vec::with_capacity(chosen.len());
        for (place, index) in chosen.iter().enumerate() {
            let table = self.state.catalog.table(&index.table)?;
            suggested.push(SuggestedIndex {
                sql: show::create_index(&table.def, &index.def),
                table: index.table.qualified(),
                bytes: index.bytes,
                seconds: self.with(&chosen[..=place]).await?.0,
            });
        }
        let plan = displayable(physical.as_ref()).set_show_statistics(true).indent(false).to_string();
        Ok(IndexSuggestions { seconds: before, indexes: suggested, plan })
    }
}
