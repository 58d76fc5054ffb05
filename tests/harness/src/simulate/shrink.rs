//! Reduction of a failing list of steps: delta debugging, which leaves out larger and then smaller parts as long as the
//! remaining steps still fail.

use std::time::{Duration, Instant};

/// Leaves out steps while `fails` is true for the others, for at most `limit`. Returns a list for which it is true, or
/// `steps`.
pub fn reduce<T: Clone>(steps: &[T], limit: Duration, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let end = Instant::now() + limit;
    let mut steps = steps.to_vec();
    let mut part = steps.len().div_ceil(2);
    while part > 0 {
        let (mut start, mut reduced) = (0, false);
        while start < steps.len() {
            if Instant::now() > end {
                return steps;
            }
            let rest = [&steps[..start], &steps[(start + part).min(steps.len())..]].concat();
            if fails(&rest) {
                (steps, reduced) = (rest, true);
            } else {
                start += part;
            }
        }
        if !(part == 1 && reduced) {
            part /= 2;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn only_the_necessary_steps_remain() {
        let steps: Vec<u32> = (0..500).collect();
        let fails = |steps: &[u32]| [17, 230, 231, 499].iter().all(|needed| steps.contains(needed));
        assert_eq!(reduce(&steps, LONG, fails), [17, 230, 231, 499]);
        assert_eq!(reduce(&steps, LONG, |steps| steps.len() >= 3).len(), 3);
    }

    #[test]
    fn steps_that_do_not_fail_again_are_kept() {
        assert_eq!(reduce(&[1, 2, 3], LONG, |_| false), [1, 2, 3]);
        assert_eq!(reduce(&[1, 2, 3], Duration::ZERO, |_| true).len(), 3);
        assert!(reduce(&[1, 2, 3], LONG, |_| true).is_empty());
    }
}
