//! Queries that the workers of a cluster execute together.

use std::sync::Arc;

use super::Database;
use crate::sql::cluster::{Cluster, Planned, RemoteQuery, plan};
use crate::{Error, Result};

impl Database {
    /// Plans a query of a coordinator, as a worker that has opened the same version of the database.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn plan_remote(&self, query: RemoteQuery) -> Result<Planned> {
        plan(&self.engine, &self.plans, query).await
    }

    /// The same database with a cluster, which executes the queries of later sessions and connections. Queries of the short path
    /// and queries that depend on the session otherwise are executed by the session.
    ///
    /// # Errors
    /// `Unsupported` for a database that is not a published one.
    pub fn with_cluster(self, cluster: Arc<dyn Cluster>) -> Result<Database> {
        if self.engine.version_url.is_none() {
            return Err(Error::Unsupported("workers for a database that is not published (open it by its URL)".into()));
        }
        let mut database = self;
        database.cluster = Some(cluster);
        Ok(database)
    }
}
