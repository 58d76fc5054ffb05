//! Ctrl-C: cancels what runs, not the program.
//!
//! One task listens for the signal. While a piece of work is [`Active`] the first presses are handed to it (it drops its
//! query); a third press ends the program, for work that does not react. Without active work the program ends at once. The
//! prompt of the shell is not concerned: there the terminal hands Ctrl-C over as a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

pub const EXIT_CODE: u8 = 130;
/// Presses after which the program ends although something is active.
const PATIENCE: usize = 3;

#[derive(Debug)]
pub struct Interrupts {
    presses: watch::Sender<usize>,
    active: AtomicUsize,
}

impl Interrupts {
    /// Starts listening; must be called within a runtime.
    pub fn listen() -> Arc<Interrupts> {
        let interrupts = Arc::new(Interrupts { presses: watch::Sender::new(0), active: AtomicUsize::new(0) });
        let listener = interrupts.clone();
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                listener.press();
            }
        });
        interrupts
    }

    fn press(&self) {
        // Looked at before the work is told: it may end at once, and would not count as active any more.
        let idle = self.active.load(Ordering::SeqCst) == 0;
        self.presses.send_modify(|presses| *presses += 1);
        if idle || *self.presses.borrow() >= PATIENCE {
            std::process::exit(EXIT_CODE.into());
        }
    }

    /// Until the result is dropped, Ctrl-C is its business.
    pub fn activate(&self) -> Active<'_> {
        self.active.fetch_add(1, Ordering::SeqCst);
        self.presses.send_modify(|presses| *presses = 0);
        Active { interrupts: self, presses: self.presses.subscribe() }
    }
}

#[derive(Debug)]
pub struct Active<'a> {
    interrupts: &'a Interrupts,
    presses: watch::Receiver<usize>,
}

impl Active<'_> {
    /// Waits for Ctrl-C. May be dropped and called again without missing one.
    pub async fn pressed(&mut self) {
        if self.presses.wait_for(|&presses| presses > 0).await.is_err() {
            // The sender lives in `interrupts`, which is borrowed; without it there would be nothing to wait for.
            std::future::pending::<()>().await;
        }
    }

    /// Runs `work` unless Ctrl-C is pressed first, which drops it and gives none.
    pub async fn unless_pressed<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.pressed() => None,
            result = work => Some(result),
        }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.interrupts.active.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_press_cancels_only_what_is_active_now() {
        let interrupts = Interrupts { presses: watch::Sender::new(0), active: AtomicUsize::new(0) };
        {
            let mut first = interrupts.activate();
            interrupts.press();
            assert_eq!(first.unless_pressed(std::future::pending::<()>()).await, None);
            assert_eq!(first.unless_pressed(async {}).await, None, "stays cancelled");
        }
        let mut second = interrupts.activate();
        assert_eq!(second.unless_pressed(async { 5 }).await, Some(5));
    }
}
