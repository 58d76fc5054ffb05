//! Real time, and timers as precise as the operating system offers.

use std::time::{Duration, Instant};

/// Nanoseconds since the clock was started.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Clock { started: Instant::now() }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Sleeps until `due_ns`.
    pub(super) fn sleep_until(&self, due_ns: u64) {
        loop {
            match due_ns.saturating_sub(self.now_ns()) {
                0 => return,
                rest => {
                    sharpen_timers();
                    std::thread::sleep(Duration::from_nanos(rest));
                }
            }
        }
    }
}

/// Sets the timer slack of the calling thread to 1 ns: the kernel may otherwise end waits 50 µs late, to share
/// interrupts with other timers.
#[cfg(target_os = "linux")]
pub(super) fn sharpen_timers() {
    use std::cell::Cell;
    use std::num::NonZeroU64;

    thread_local! {
        static SHARP: Cell<bool> = const { Cell::new(false) };
    }
    if !SHARP.replace(true) {
        // A refusal costs precision only.
        let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn sharpen_timers() {}
