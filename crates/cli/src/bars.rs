//! Progress on standard error, if that is a terminal: a bar for statements that report phases (COPY, CREATE INDEX …), and
//! for others, once they take long, the time and pages read so far. Nothing stays on the screen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use keyaki::Progress;
use keyaki::Session;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::terminal;

/// Statements that take longer show that they are alive.
const PATIENCE: Duration = Duration::from_secs(2);
const REFRESH: Duration = Duration::from_millis(250);

const WITH_TOTAL: &str =
    "{msg} {wide_bar:.cyan/blue} {percent:>3} %  {human_pos} of {human_len} rows, {per_sec}, {eta} left";
const WITHOUT_TOTAL: &str = "{spinner:.cyan} {msg}  {human_pos} rows, {per_sec}, {elapsed}";
const PLAIN: &str = "{spinner:.cyan} {msg}";

/// What is shown at the moment.
#[derive(Debug, Default)]
struct Shown {
    phase: Option<ProgressBar>,
    status: Option<ProgressBar>,
}

/// The one line of progress on the terminal.
#[derive(Debug, Default)]
pub struct Bars {
    shown: Mutex<Shown>,
}

impl Bars {
    pub fn new() -> Arc<Bars> {
        Arc::default()
    }

    /// A line without rows, as "calibrating …"; replaces the one before.
    pub fn status(&self, message: String) {
        let mut shown = self.shown.lock();
        if shown.phase.is_none() {
            let bar = shown.status.get_or_insert_with(|| bar(None, PLAIN));
            bar.set_message(message);
            bar.tick();
        }
    }

    /// Removes whatever is shown.
    pub fn clear(&self) {
        let shown = std::mem::take(&mut *self.shown.lock());
        for bar in [shown.phase, shown.status].into_iter().flatten() {
            bar.finish_and_clear();
        }
    }

    /// Shows elapsed time and pages read of the statement that `session` starts now, once it takes long; until the result
    /// is dropped.
    pub fn watch(self: &Arc<Self>, session: &Arc<Session>) -> Watch {
        let (bars, session, start) = (self.clone(), session.clone(), Instant::now());
        let task = tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            loop {
                let (mut pages, mut reading) = (0, 0);
                for (_, stats) in session.last_stats() {
                    let now = stats.snapshot();
                    pages += now.pages_read;
                    reading += now.timeline.last().map_or(0, |sample| sample.in_flight);
                }
                let elapsed = start.elapsed().as_secs_f64();
                let pages = terminal::thousands(pages);
                bars.status(format!("{elapsed:.1} s, {pages} pages read, {reading} reads in flight (Ctrl-C cancels)"));
                tokio::time::sleep(REFRESH).await;
            }
        });
        Watch { task, bars: self.clone() }
    }
}

fn bar(total: Option<u64>, template: &str) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(8);
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(total, target).with_style(style)
}

impl Progress for Bars {
    fn start(&self, phase: &str, total: Option<u64>) {
        self.clear();
        let template = if total.is_some() { WITH_TOTAL } else { WITHOUT_TOTAL };
        let bar = bar(total, template).with_message(phase.to_string());
        bar.enable_steady_tick(REFRESH);
        self.shown.lock().phase = Some(bar);
    }

    fn advance(&self, rows: u64) {
        if let Some(bar) = &self.shown.lock().phase {
            bar.inc(rows);
        }
    }

    fn finish(&self) {
        self.clear();
    }
}

/// Shows a statement's time until dropped.
#[derive(Debug)]
pub struct Watch {
    task: JoinHandle<()>,
    bars: Arc<Bars>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
        self.bars.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [WITH_TOTAL, WITHOUT_TOTAL, PLAIN] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn phases_follow_each_other() {
        let bars = Bars::default();
        bars.advance(1);
        bars.start("reading", Some(10));
        bars.advance(4);
        bars.start("sorting", None);
        assert_eq!(bars.shown.lock().phase.as_ref().map(|bar| bar.position()), Some(0));
        bars.advance(7);
        assert_eq!(bars.shown.lock().phase.as_ref().map(|bar| bar.position()), Some(7));
        bars.finish();
        assert!(bars.shown.lock().phase.is_none());
    }
}
