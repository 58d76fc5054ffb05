//! Priorities of threads.

/// Nice value of background threads. Beside a thread of ordinary priority, Linux gives such a thread a quarter of a
/// processor, so that it does not keep a lock for long.
#[cfg(target_os = "linux")]
const BACKGROUND_NICE: i32 = 5;

/// Lowers the priority of the calling thread, and of the threads that it starts from now on, below the ordinary priority.
/// No effect on systems other than Linux, or if the process has a lower priority already.
pub fn enter_background() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};

        // On Linux, both calls without a process concern the calling thread. A thread that keeps its priority works, too.
        if getpriority_process(None).is_ok_and(|nice| nice < BACKGROUND_NICE) {
            let _ = setpriority_process(None, BACKGROUND_NICE);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn only_the_thread_and_those_it_starts_have_a_lower_priority() {
        let before = getpriority_process(None).unwrap();
        let (own, started) = std::thread::spawn(|| {
            enter_background();
            let started = std::thread::spawn(|| getpriority_process(None).unwrap());
            (getpriority_process(None).unwrap(), started.join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(own, before.max(BACKGROUND_NICE));
        assert_eq!(started, own);
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
