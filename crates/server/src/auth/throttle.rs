//! Delays attempts to authenticate as a user from an address, after many failures.
//!
//! Each pair of an address and a user has a debt of time that every failure raises and that time itself repays: with a debt
//! above [`FREE_DEBT`], the next attempt waits. Few attempts of a pair wait at a time; more are refused. Other users behind the
//! same address do not wait. The memory is bounded: if too many pairs have a debt, the smallest one is forgotten.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The debt of a failure: ten failures in a minute are free.
const FAILURE_DEBT: Duration = Duration::from_secs(6);
/// The debt of a handshake of TLS that fails: 60 in a minute are free, because many clients can share an address.
const HANDSHAKE_DEBT: Duration = Duration::from_secs(1);
/// Attempts wait if the debt is larger.
const FREE_DEBT: Duration = Duration::from_secs(60);
/// No debt is larger.
const DEBT_MAX: Duration = Duration::from_secs(180);
/// Attempts wait for at most this time.
const DELAY_MAX: Duration = Duration::from_secs(3);
/// Maximum number of attempts of a pair that wait at a time.
const WAITING_MAX: u32 = 4;
/// Maximum number of known pairs.
const PAIRS_MAX: usize = 4096;

/// The network of a peer, and a hash of the name of the user.
type Pair = (IpAddr, u64);

/// The pairs with failures.
#[derive(Debug)]
pub struct Throttle {
    /// The debt of a failure.
    failure: Duration,
    names: RandomState,
    pairs: Mutex<HashMap<Pair, Debt>>,
}

#[derive(Debug)]
struct Debt {
    /// When the debt is repaid.
    repaid: Instant,
    /// Number of attempts that wait.
    waiting: u32,
}

/// An attempt that waits.
struct Waiting<'a> {
    throttle: &'a Throttle,
    pair: Pair,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(debt) = self.throttle.pairs.lock().get_mut(&self.pair) {
            debt.waiting = debt.waiting.saturating_sub(1);
        }
    }
}

impl Default for Throttle {
    /// For failed authentications.
    fn default() -> Self {
        Throttle { failure: FAILURE_DEBT, names: RandomState::new(), pairs: Mutex::default() }
    }
}

impl Throttle {
    /// For handshakes of TLS, which have no user.
    pub fn of_handshakes() -> Throttle {
        Throttle { failure: HANDSHAKE_DEBT, ..Throttle::default() }
    }

    fn pair(&self, address: IpAddr, user: &str) -> Pair {
        (network(address), self.names.hash_one(user))
    }

    /// Waits until the next attempt of a user at an address may begin. False if too many attempts wait already.
    pub async fn admit(&self, address: IpAddr, user: &str) -> bool {
        match self.enter(self.pair(address, user), Instant::now()) {
            Some((delay, _waiting)) => {
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                true
            }
            None => false,
        }
    }

    /// The delay of an attempt, and its place among the waiting ones. `None` if too many wait already.
    fn enter(&self, pair: Pair, now: Instant) -> Option<(Duration, Option<Waiting<'_>>)> {
        let mut pairs = self.pairs.lock();
        let Some(debt) = pairs.get_mut(&pair) else { return Some((Duration::ZERO, None)) };
        let delay = debt.repaid.saturating_duration_since(now).saturating_sub(FREE_DEBT);
        if delay.is_zero() {
            return Some((Duration::ZERO, None));
        }
        if debt.waiting >= WAITING_MAX {
            return None;
        }
        debt.waiting += 1;
        Some((delay.min(DELAY_MAX), Some(Waiting { throttle: self, pair })))
    }

    /// Notes a failed attempt.
    pub fn fail(&self, address: IpAddr, user: &str) {
        self.fail_at(self.pair(address, user), Instant::now());
    }

    fn fail_at(&self, pair: Pair, now: Instant) {
        let mut pairs = self.pairs.lock();
        if !pairs.contains_key(&pair) && pairs.len() >= PAIRS_MAX {
            pairs.retain(|_, debt| debt.repaid > now || debt.waiting > 0);
            if pairs.len() >= PAIRS_MAX {
                let smallest = pairs.iter().min_by_key(|(_, debt)| debt.repaid).map(|(pair, _)| *pair);
                smallest.and_then(|pair| pairs.remove(&pair));
            }
        }
        let debt = pairs.entry(pair).or_insert(Debt { repaid: now, waiting: 0 });
        debt.repaid = (debt.repaid.max(now) + self.failure).min(now + DEBT_MAX);
    }
}

/// The network of a peer: a client with IPv6 usually has all addresses with the same first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// The pair of an address and a user with the hash 0.
    fn of(address: IpAddr) -> Pair {
        (network(address), 0)
    }

    fn delay(throttle: &Throttle, address: IpAddr, now: Instant) -> Duration {
        throttle.enter(of(address), now).unwrap().0
    }

    #[test]
    fn many_failures_delay_attempts() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        assert_eq!(delay(&throttle, address(1), now), Duration::ZERO);
        (0..10).for_each(|_| throttle.fail_at(of(address(1)), now));
        assert_eq!(delay(&throttle, address(1), now), Duration::ZERO);
        throttle.fail_at(of(address(1)), now);
        assert_eq!(delay(&throttle, address(1), now), DELAY_MAX);
        // The same address as an IPv4 address within IPv6, and another one.
        assert_eq!(delay(&throttle, "::ffff:192.0.2.1".parse().unwrap(), now), DELAY_MAX);
        assert_eq!(delay(&throttle, address(2), now), Duration::ZERO);
        // Another user of the address.
        let other = throttle.enter((network(address(1)), 1), now).unwrap().0;
        assert_eq!(other, Duration::ZERO);
        // The debt is limited, and time repays it.
        (0..1000).for_each(|_| throttle.fail_at(of(address(1)), now));
        assert_eq!(delay(&throttle, address(1), now + Duration::from_secs(119)), Duration::from_secs(1));
        assert_eq!(delay(&throttle, address(1), now + Duration::from_secs(120)), Duration::ZERO);
    }

    #[test]
    fn handshakes_have_more_free_failures() {
        let (throttle, now) = (Throttle::of_handshakes(), Instant::now());
        (0..60).for_each(|_| throttle.fail_at(of(address(1)), now));
        assert_eq!(delay(&throttle, address(1), now), Duration::ZERO);
        (0..2).for_each(|_| throttle.fail_at(of(address(1)), now));
        assert_eq!(delay(&throttle, address(1), now), Duration::from_secs(2));
    }

    #[test]
    fn few_attempts_wait_at_a_time() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        (0..20).for_each(|_| throttle.fail_at(of(address(1)), now));
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| throttle.enter(of(address(1)), now).unwrap()).collect();
        assert!(throttle.enter(of(address(1)), now).is_none() && throttle.enter(of(address(2)), now).is_some());
        waiting.pop();
        assert!(throttle.enter(of(address(1)), now).is_some_and(|(delay, _)| delay == DELAY_MAX));
    }

    /// The sleep of an attempt is not only computed.
    #[tokio::test]
    async fn attempts_wait() {
        let throttle = Throttle::default();
        (0..20).for_each(|_| throttle.fail(address(1), "a"));
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, throttle.admit(address(1), "a")).await.is_err());
        assert_eq!(tokio::time::timeout(limit, throttle.admit(address(2), "a")).await, Ok(true));
    }

    #[test]
    fn memory_is_bounded() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        (0..20).for_each(|_| throttle.fail_at(of(address(1)), now));
        for i in 0..2 * PAIRS_MAX as u32 {
            throttle.fail_at(of(IpAddr::V4(i.into())), now);
            assert!(throttle.pairs.lock().len() <= PAIRS_MAX);
        }
        assert_eq!(delay(&throttle, address(1), now), DELAY_MAX);
        // Addresses without a debt are forgotten first.
        throttle.fail_at(of(address(2)), now + DEBT_MAX);
        assert_eq!(throttle.pairs.lock().len(), 1);
    }

    #[test]
    fn networks() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
