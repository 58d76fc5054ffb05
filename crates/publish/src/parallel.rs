//! Threads that share the parts of a long task.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::error::Result;

/// Calls `work` for each number below `count` on up to `threads` threads, the calling one among them, until it fails or
/// returns false. Returns false in the latter case. Fewer threads do the work if the system starts no more.
///
/// # Errors
/// The first error of `work`.
pub(crate) fn for_each(
    name: &str,
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> Result<bool> + Sync,
) -> Result<bool> {
    let (next, is_ended, failed) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let run = || {
        while !is_ended.load(Ordering::Relaxed)
            && let number = next.fetch_add(1, Ordering::Relaxed)
            && number < count
        {
            let goes_on = work(number).unwrap_or_else(|error| {
                failed.lock().get_or_insert(error);
                false
            });
            if !goes_on {
                is_ended.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().name(name.into()).spawn_scoped(scope, run).ok();
        let helpers: Vec<_> = (1..threads.min(count)).filter_map(spawn).collect();
        run();
        for helper in helpers {
            helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    failed.into_inner().map_or(Ok(()), Err)?;
    Ok(!is_ended.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn each_number_is_worked_on_once_until_the_end() {
        for (threads, count) in [(1, 0), (1, 5), (8, 3), (3, 1000)] {
            let done = Mutex::new(vec![0; count]);
            let work = |number: usize| {
                done.lock()[number] += 1;
                Ok(true)
            };
            assert!(for_each("keyaki-test", threads, count, work).unwrap());
            assert_eq!(done.into_inner(), vec![1; count]);
        }
        let done = AtomicUsize::new(0);
        let ends = |number| {
            done.fetch_add(1, Ordering::Relaxed);
            if number == 7 { Ok(false) } else { Ok(true) }
        };
        assert!(!for_each("keyaki-test", 1, 1000, ends).unwrap());
        assert_eq!(done.into_inner(), 8);
        let fails = |number| if number < 9 { Ok(true) } else { Err(Error::Cancelled) };
        assert!(matches!(for_each("keyaki-test", 4, 1000, fails), Err(Error::Cancelled)));
    }
}
