//! Writes rows: as write batches and as bulk loads.
//!
//! | module | contents |
//! |---|---|
//! | [`assign`] | assignment casts: values of any type converted to the type of a column |
//! | [`conform`] | rows of a file or a program converted to rows of a table |
//! | [`text`] | conversion between values and text |
//! | [`checks`], [`foreign_keys`], [`deferred`] | CHECK and FOREIGN KEY constraints of new rows; those checked at the commit |
//! | [`rows`], [`apply`] | changed rows as messages of a write batch, with uniqueness checked |
//! | [`path`] | the choice between write batch and bulk load |
//! | [`insert`], [`index`], [`schema`] | new rows, indexes and tables |
//! | [`concurrent`] | indexes that are built beside writers |
//! | [`rebuild`] | new trees for a table whose definition changes |
//! | [`bulk`] | bulk loads: rows written directly to leaf extents |
//! | [`statistics`] | statistics collected from loaded or sampled rows |
//!
//! *Invariants.* A [`WriteStatement`] holds the writer lock from its first read to its commit. All changes of a statement
//! become visible in one commit, which follows its decision to commit ([`crate::base::interrupt`]).

pub(crate) mod apply;
pub(crate) mod assign;
mod bulk;
pub(crate) mod checks;
mod concurrent;
mod conform;
pub(crate) mod deferred;
pub(crate) mod foreign_keys;
pub(crate) mod generated;
mod index;
mod insert;
mod origin;
mod path;
pub(crate) mod rebuild;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod statistics;
pub(crate) mod text;

use std::sync::Arc;

use keyaki_store::Snapshot;

use crate::Result;
use crate::base::progress::Progress;
use crate::catalog::Catalog;
use crate::engine::{Engine, Writer};

pub(crate) use bulk::sorted;
pub(crate) use concurrent::ConcurrentBuild;
pub(crate) use conform::{BadCell, Conform, Defaults, Given, evaluate};
pub(crate) use deferred::Deferred;
pub(crate) use index::{create_index, wait_for_locators};
pub(crate) use insert::{
    AcceptedUpserts, add_part, append, commit, create_table_as, finish_upserts, insert_loaded, insert_query, insertion,
    submit_upserts,
};
pub(crate) use origin::{AppendedRows, NoOrigin, Origin};
pub(crate) use path::{BatchLimits, RowBuffer};

/// Context of a writing statement: the engine, the writer lock and the decision, and the receiver of progress reports.
#[derive(Debug, Clone)]
pub(crate) struct WriteStatement {
    pub engine: Arc<Engine>,
    pub writer: Writer,
    pub progress: Arc<dyn Progress>,
    /// The calling thread waits for the log itself: it runs no async code of others.
    pub waits_inline: bool,
    /// The checks that the open transaction of the session defers; `None` outside of one.
    pub deferred: Option<Arc<Deferred>>,
}

impl WriteStatement {
    /// The newest catalog and a snapshot of all committed changes.
    pub fn latest(&self) -> (Arc<Catalog>, Snapshot) {
        self.engine.latest(&self.writer)
    }

    /// Runs `work` on the blocking pool under the writer lock; see [`Engine::blocking`].
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.engine.blocking(&self.writer, work).await
    }
}
