//! Ctrl-C cancels the running statement, not the program.
//!
//! One task listens for the signal. While work is [`Active`], a press cancels the work: it interrupts a statement, and
//! drops the rows of a query. The [`PRESSES_MAX`]th press ends the program, in case the work does not react. Without active work the first press ends the
//! program. At the shell's prompt the terminal is in raw mode, and the line editor reads Ctrl-C as a key.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

pub const EXIT_CODE: u8 = 130;
/// Number of presses that end the program although work is active.
const PRESSES_MAX: usize = 3;

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
        // Read before the work is notified, because the work may end immediately.
        let idle = self.active.load(Ordering::SeqCst) == 0;
        self.presses.send_modify(|presses| *presses += 1);
        if idle || *self.presses.borrow() >= PRESSES_MAX {
            std::process::exit(EXIT_CODE.into());
        }
    }

    /// Registers work that Ctrl-C cancels, until the result is dropped.
    pub fn activate(&self) -> Active<'_> {
        self.active.fetch_add(1, Ordering::SeqCst);
        self.presses.send_modify(|presses| *presses = 0);
        Active { interrupts: self, presses: self.presses.subscribe() }
    }
}

/// A registration of cancellable work.
#[derive(Debug)]
pub struct Active<'a> {
    interrupts: &'a Interrupts,
    presses: watch::Receiver<usize>,
}

impl Active<'_> {
    /// Waits for Ctrl-C. The future can be dropped and created again without missing a press.
    pub async fn pressed(&mut self) {
        if self.presses.wait_for(|&presses| presses > 0).await.is_err() {
            // Unreachable: the borrowed `interrupts` owns the sender.
            std::future::pending::<()>().await;
        }
    }

    /// True after Ctrl-C, for work that does not wait.
    pub fn is_pressed(&self) -> bool {
        *self.presses.borrow() > 0
    }

    /// Runs `work` to its end. Ctrl-C calls `interrupt`, and `work` decides whether it is too late.
    pub async fn interrupting<T>(&mut self, interrupt: impl FnOnce(), work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            // Polled first: an interrupt affects only work that has started.
            result = work.as_mut() => return result,
            () = self.pressed() => interrupt(),
        }
        work.await
    }

    /// Runs `work`. Ctrl-C drops it, and the result is none.
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
        let (sender, receiver) = tokio::sync::oneshot::channel();
        interrupts.press();
        assert_eq!(second.interrupting(|| sender.send(6).unwrap(), receiver).await, Ok(6));
        assert_eq!(second.interrupting(|| panic!("the work has ended"), async { 7 }).await, 7);
    }
}
