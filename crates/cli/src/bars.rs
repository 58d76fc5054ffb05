//! Progress on standard error, if it is a terminal.
//!
//! Statements that report phases (COPY, CREATE INDEX, ANALYZE) show a bar per phase. Other statements show the elapsed time and
//! the pages read after [`SHOW_AFTER`]. The progress line is erased when the statement ends.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use keyaki::Progress;
use keyaki::Session;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::terminal;

/// Statements without phases show progress after this time.
const SHOW_AFTER: Duration = Duration::from_secs(2);
const REFRESH: Duration = Duration::from_millis(250);

const WITH_TOTAL: &str =
    "{msg} {wide_bar:.cyan/blue} {percent:>3} %  {human_pos} of {human_len} rows, {rate}, {eta} left";
const WITHOUT_TOTAL: &str = "{spinner:.cyan} {msg}  {human_pos} rows, {rate}, {elapsed}";
const PLAIN: &str = "{spinner:.cyan} {msg}";

/// The bars on the terminal. At most one is visible.
#[derive(Debug, Default)]
struct Shown {
    phase: Option<ProgressBar>,
    status: Option<ProgressBar>,
}

/// The progress line of the terminal.
#[derive(Debug, Default)]
pub struct Bars {
    shown: Mutex<Shown>,
}

impl Bars {
    pub fn new() -> Arc<Bars> {
        Arc::default()
    }

    /// Shows a message without a row count, such as "calibrating", in place of the one before. A phase's bar takes precedence.
    pub fn status(&self, message: String) {
        let mut shown = self.shown.lock();
        if shown.phase.is_none() {
            let bar = shown.status.get_or_insert_with(|| bar(None, PLAIN));
            bar.set_message(message);
            bar.tick();
        }
    }

    /// Erases the progress line.
    pub fn clear(&self) {
        let shown = std::mem::take(&mut *self.shown.lock());
        for bar in [shown.phase, shown.status].into_iter().flatten() {
            bar.finish_and_clear();
        }
    }

    /// Shows the elapsed time and the pages read of the statement that `session` is about to start, from [`SHOW_AFTER`] until
    /// the result is dropped.
    pub fn watch(self: &Arc<Self>, session: &Arc<Session>) -> Watch {
        let (bars, session, start) = (self.clone(), session.clone(), Instant::now());
        let task = tokio::spawn(async move {
            tokio::time::sleep(SHOW_AFTER).await;
            loop {
                let (mut pages, mut reading) = (0, 0);
                for (_, stats) in session.last_stats() {
                    let now = stats.snapshot();
                    pages += now.pages_read;
                    reading += now.timeline.last().map_or(0, |sample| sample.in_flight);
                }
                let elapsed = start.elapsed().as_secs_f64();
                let pages = terminal::thousands(pages);
                bars.status(format!(
                    "{elapsed:.1} s, {pages} pages read, {reading} reads in flight (Ctrl-C to cancel)"
                ));
                tokio::time::sleep(REFRESH).await;
            }
        });
        Watch { task, bars: self.clone() }
    }
}

fn bar(total: Option<u64>, template: &str) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(8);
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let style = style.with_key("rate", |state: &ProgressState, text: &mut dyn fmt::Write| {
        // A failure would be one of the terminal.
        let _ = text.write_str(&rate(state.per_sec()));
    });
    ProgressBar::with_draw_target(total, target).with_style(style)
}

/// Rows per second, in whole rows.
fn rate(per_second: f64) -> String {
    format!("{}/s", terminal::thousands(per_second.round() as u64))
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

/// Shows the progress of one statement until dropped.
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
    fn rates_are_rounded() {
        assert_eq!([0.2, 165_814_651.2].map(rate), ["0/s", "165,814,651/s"]);
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
