//! Delays attempts to authenticate from addresses with many failures.
//!
//! Each address has a debt of time that every failure raises and that time itself repays: an address with a debt above
//! [`FREE_DEBT`] waits before its next attempt. Few attempts of an address wait at a time; more are refused. Addresses without
//! failures are not known and never wait. The memory is bounded: if too many addresses have a debt, the smallest one is forgotten.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The debt of a failure: ten failures in a minute are free.
const FAILURE_DEBT: Duration = Duration::from_secs(6);
/// Attempts wait if the debt is larger.
const FREE_DEBT: Duration = Duration::from_secs(60);
/// No debt is larger.
const DEBT_MAX: Duration = Duration::from_secs(180);
/// Attempts wait for at most this time, so that users behind the address of an attacker can still connect.
const DELAY_MAX: Duration = Duration::from_secs(3);
/// Maximum number of attempts of an address that wait at a time.
const WAITING_MAX: u32 = 4;
/// Maximum number of known addresses.
const ADDRESSES_MAX: usize = 4096;

/// The addresses with failures.
#[derive(Debug, Default)]
pub struct Throttle {
    addresses: Mutex<HashMap<IpAddr, Debt>>,
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
    address: IpAddr,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(debt) = self.throttle.addresses.lock().get_mut(&self.address) {
            debt.waiting = debt.waiting.saturating_sub(1);
        }
    }
}

impl Throttle {
    /// Waits until the next attempt of an address may begin. False if too many attempts wait already.
    pub async fn admit(&self, address: IpAddr) -> bool {
        match self.enter(address, Instant::now()) {
            Some((delay, _waiting)) => {
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                true
            }
            None => false,
        }
    }

    /// The delay of an attempt, and its place among those that wait. `None` if too many wait already.
    fn enter(&self, address: IpAddr, now: Instant) -> Option<(Duration, Option<Waiting<'_>>)> {
        let address = network(address);
        let mut addresses = self.addresses.lock();
        let Some(debt) = addresses.get_mut(&address) else { return Some((Duration::ZERO, None)) };
        let delay = debt.repaid.saturating_duration_since(now).saturating_sub(FREE_DEBT);
        if delay.is_zero() {
            return Some((Duration::ZERO, None));
        }
        if debt.waiting >= WAITING_MAX {
            return None;
        }
        debt.waiting += 1;
        Some((delay.min(DELAY_MAX), Some(Waiting { throttle: self, address })))
    }

    /// Notes a failed attempt.
    pub fn fail(&self, address: IpAddr) {
        self.fail_at(address, Instant::now());
    }

    fn fail_at(&self, address: IpAddr, now: Instant) {
        let address = network(address);
        let mut addresses = self.addresses.lock();
        if !addresses.contains_key(&address) && addresses.len() >= ADDRESSES_MAX {
            addresses.retain(|_, debt| debt.repaid > now || debt.waiting > 0);
            if addresses.len() >= ADDRESSES_MAX {
                let smallest = addresses.iter().min_by_key(|(_, debt)| debt.repaid).map(|(address, _)| *address);
                smallest.and_then(|address| addresses.remove(&address));
            }
        }
        let debt = addresses.entry(address).or_insert(Debt { repaid: now, waiting: 0 });
        debt.repaid = (debt.repaid.max(now) + FAILURE_DEBT).min(now + DEBT_MAX);
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

    fn delay(throttle: &Throttle, address: IpAddr, now: Instant) -> Duration {
        throttle.enter(address, now).unwrap().0
    }

    #[test]
    fn many_failures_delay_attempts() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        assert_eq!(delay(&throttle, address(1), now), Duration::ZERO);
        (0..10).for_each(|_| throttle.fail_at(address(1), now));
        assert_eq!(delay(&throttle, address(1), now), Duration::ZERO);
        throttle.fail_at(address(1), now);
        assert_eq!(delay(&throttle, address(1), now), DELAY_MAX);
        // The same address as an IPv4 address within IPv6, and another one.
        assert_eq!(delay(&throttle, "::ffff:192.0.2.1".parse().unwrap(), now), DELAY_MAX);
        assert_eq!(delay(&throttle, address(2), now), Duration::ZERO);
        // The debt is limited, and time repays it.
        (0..1000).for_each(|_| throttle.fail_at(address(1), now));
        assert_eq!(delay(&throttle, address(1), now + Duration::from_secs(119)), Duration::from_secs(1));
        assert_eq!(delay(&throttle, address(1), now + Duration::from_secs(120)), Duration::ZERO);
    }

    #[test]
    fn few_attempts_wait_at_a_time() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        (0..20).for_each(|_| throttle.fail_at(address(1), now));
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| throttle.enter(address(1), now).unwrap()).collect();
        assert!(throttle.enter(address(1), now).is_none() && throttle.enter(address(2), now).is_some());
        waiting.pop();
        assert!(throttle.enter(address(1), now).is_some_and(|(delay, _)| delay == DELAY_MAX));
    }

    /// The sleep of an attempt is not only computed.
    #[tokio::test]
    async fn attempts_wait() {
        let throttle = Throttle::default();
        (0..20).for_each(|_| throttle.fail(address(1)));
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, throttle.admit(address(1))).await.is_err());
        assert_eq!(tokio::time::timeout(limit, throttle.admit(address(2))).await, Ok(true));
    }

    #[test]
    fn memory_is_bounded() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        (0..20).for_each(|_| throttle.fail_at(address(1), now));
        for i in 0..2 * ADDRESSES_MAX as u32 {
            throttle.fail_at(IpAddr::V4(i.into()), now);
            assert!(throttle.addresses.lock().len() <= ADDRESSES_MAX);
        }
        assert_eq!(delay(&throttle, address(1), now), DELAY_MAX);
        // Addresses without a debt are forgotten first.
        throttle.fail_at(address(2), now + DEBT_MAX);
        assert_eq!(throttle.addresses.lock().len(), 1);
    }

    #[test]
    fn networks() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
