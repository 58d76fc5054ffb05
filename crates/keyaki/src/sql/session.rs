//! State of one session: options, settings of DataFusion, statistics of the last query.

use std::sync::Arc;

use keyaki_exec::Stats;
use parking_lot::Mutex;

use super::state::Planning;
use crate::base::options::SessionOptions;
use crate::base::progress::{NoProgress, Progress};
use crate::engine::{Engine, Writer};
use crate::write::WriteStatement;

/// The state of one session, and the engine of its database.
#[derive(Debug)]
pub(crate) struct SqlSession {
    pub engine: Arc<Engine>,
    pub options: Mutex<SessionOptions>,
    pub progress: Mutex<Arc<dyn Progress>>,
    /// Statistics of the index pipelines and scans that the last query started, with a name for each.
    pub last_stats: Arc<Mutex<Vec<(String, Stats)>>>,
    /// Settings of DataFusion changed with SET, in the order of the statements.
    pub overrides: Mutex<Vec<(String, String)>>,
    /// DataFusion's state for the current options and overrides; `None` after a change of either.
    pub planning: Mutex<Option<Planning>>,
}

impl SqlSession {
    pub fn new(engine: Arc<Engine>) -> Self {
        SqlSession {
            engine,
            options: Mutex::default(),
            progress: Mutex::new(Arc::new(NoProgress)),
            last_stats: Arc::default(),
            overrides: Mutex::default(),
            planning: Mutex::default(),
        }
    }

    pub fn options(&self) -> SessionOptions {
        self.options.lock().clone()
    }

    /// The context of a writing statement that holds `writer`.
    pub fn write(&self, writer: &Writer) -> WriteStatement {
        WriteStatement { engine: self.engine.clone(), writer: writer.clone(), progress: self.progress.lock().clone() }
    }
}
