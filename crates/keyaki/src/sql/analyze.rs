//! ANALYZE: statistics of tables from a sample of their rows.

use crate::session::Outcome;
use crate::{Error, Result, Session};

/// Runs `ANALYZE` of one table or of all.
pub(crate) async fn run(_session: &Session, _table: Option<&str>) -> Result<Outcome> {
    Err(Error::Unsupported("ANALYZE".into()))
}
