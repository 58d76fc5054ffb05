//! Statements of several changes, each of which sees those before it. They take effect together or not at all.
//!
//! The changes belong to the open transaction of the session. Outside of one, they become a transaction that holds the
//! writer lock of the statement, so that it has no conflicts.

use std::sync::Arc;

use super::{Characteristics, Committed, TransactionSlot};
use crate::Result;
use crate::base::options::Isolation;
use crate::engine::{Engine, Writer};

/// The changes of one statement.
#[derive(Debug)]
pub(crate) struct Parts {
    writer: Writer,
    /// The transaction of the statement, if the session has none.
    own: Option<TransactionSlot>,
}

impl Engine {
    /// Begins the changes of a statement, which has not changed anything yet.
    ///
    /// # Errors
    /// Errors of the log.
    pub async fn begin_parts(&self, writer: Writer) -> Result<Parts> {
        let decision = writer.decision.clone();
        let lock = match writer.into_scope() {
            Err(statement) => return Ok(Parts { writer: Writer::of_part(&decision, statement), own: None }),
            Ok(lock) => lock,
        };
        let slot = TransactionSlot::default();
        let characteristics =
            Characteristics { isolation: Isolation::RepeatableRead, is_read_only: false, timeout: None };
        slot.open(self, characteristics, Some(lock)).await?;
        let statement = slot.statement(self, "").await?;
        let Some(statement) = statement else { unreachable!("the transaction was opened") };
        Ok(Parts { writer: Writer::of_part(&decision, Arc::new(statement)), own: Some(slot) })
    }
}

impl Parts {
    /// The writer of each change.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Commits all changes, or leaves them to the transaction of the session. No other share of the writer is left.
    ///
    /// # Errors
    /// `Cancelled`; errors of the commit. Outside of a transaction, nothing has changed then.
    pub async fn commit(self, engine: &Arc<Engine>) -> Result<Committed> {
        let Parts { writer, own } = self;
        let decision = writer.decision.clone();
        match own {
            None => {
                writer.end_parts()?;
                Ok(Committed::default())
            }
            Some(slot) => {
                writer.complete();
                drop(writer);
                Ok(slot.commit(engine, &decision).await?.unwrap_or_default())
            }
        }
    }
}
