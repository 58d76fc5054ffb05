use std::task::{Context, Poll, Waker};

use super::*;

fn locks() -> (Arc<RowLocks>, impl Fn(u8) -> RowId) {
    let locks = Arc::new(RowLocks::default());
    let rows = locks.clone();
    (locks, move |key| rows.row(TreeId::new(1), &[key]))
}

fn lock(holder: &Arc<LockHolder>, row: RowId) -> Option<Wait> {
    holder.lock([(row, LockMode::Update)]).unwrap()
}

fn update(row: RowId) -> (RowId, LockMode) {
    (row, LockMode::Update)
}

fn is_granted(wait: &Wait) -> bool {
    wait.waiter.state.load(Ordering::Acquire) == GRANTED
}

fn is_empty(locks: &RowLocks) -> bool {
    let state = locks.state.lock();
    state.rows.is_empty() && state.holders.is_empty()
}

#[test]
fn rows_are_handed_over_in_the_order_of_the_queue() {
    let (locks, row) = locks();
    let holders: Vec<_> = (0..4).map(|_| Arc::new(locks.holder(1))).collect();
    assert!(holders[0].lock([row(1), row(2), row(1)].map(update)).unwrap().is_none(), "a holder locks a row once");
    let waits: Vec<_> = holders[1..].iter().map(|holder| lock(holder, row(1)).unwrap()).collect();
    assert!(!waits.iter().any(is_granted));
    holders[0].release();
    assert!(is_granted(&waits[0]) && !is_granted(&waits[1]));
    assert!(lock(&holders[3], row(2)).is_none(), "the other row is free");
    holders[1].release();
    assert!(is_granted(&waits[1]) && !is_granted(&waits[2]));
    drop((waits, holders));
    assert!(is_empty(&locks));
}

#[test]
fn a_wait_that_ends_leaves_the_queue() {
    let (locks, row) = locks();
    let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder(1)));
    assert!(lock(&a, row(1)).is_none());
    let (left, wait) = (lock(&b, row(1)).unwrap(), lock(&c, row(1)).unwrap());
    drop(left);
    a.release();
    assert!(is_granted(&wait), "the row passes over the waiter that has left");
    let late = lock(&b, row(1)).unwrap();
    assert!(late.timeout().expire(false), "the wait has not ended");
    assert!(!late.timeout().expire(true));
    let mut granted = std::pin::pin!(late.granted());
    let ended = granted.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ended, Poll::Ready(Err(Error::LockTimeout))));
    c.release();
    assert!(lock(&a, row(1)).is_none(), "the queue is empty");
}

#[test]
fn a_granted_row_survives_the_end_of_its_wait() {
    let (locks, row) = locks();
    let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder(1)));
    assert!(lock(&a, row(1)).is_none());
    let wait = lock(&b, row(1)).unwrap();
    a.release();
    assert!(!wait.timeout().expire(true));
    assert!(is_granted(&wait), "the grant was first");
    drop(wait);
    assert!(lock(&c, row(1)).is_some(), "the holder keeps the row");
    drop((a, b));
    assert!(lock(&c, row(1)).is_none());
}

#[test]
fn deadlocks_are_found_when_the_last_holder_begins_to_wait() {
    let (locks, row) = locks();
    let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder(1)));
    for (holder, key) in [(&a, 1), (&b, 2), (&c, 3)] {
        assert!(lock(holder, row(key)).is_none());
    }
    let first = lock(&a, row(2)).unwrap();
    let second = lock(&b, row(3)).unwrap();
    assert!(matches!(c.lock([update(row(1))]), Err(Error::Deadlock)));
    // The statement that fails ends its transaction.
    c.release();
    assert!(is_granted(&second) && !is_granted(&first));
    b.release();
    assert!(is_granted(&first));
}

#[test]
fn a_waiter_that_becomes_the_holder_is_part_of_the_chain() {
    let (locks, row) = locks();
    let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder(1)));
    assert!(lock(&a, row(1)).is_none() && lock(&c, row(2)).is_none());
    let (first, second) = (lock(&b, row(1)).unwrap(), lock(&c, row(1)).unwrap());
    a.release();
    assert!(is_granted(&first));
    assert!(matches!(b.lock([update(row(2))]), Err(Error::Deadlock)), "the other one waits behind it");
    b.release();
    assert!(is_granted(&second));
}

#[test]
fn holders_lock_a_bounded_number_of_rows() {
    let (locks, _) = locks();
    let rows = |tree: u32| (0..ROWS_MAX as u32 + 10).map(move |key| (tree, key));
    let holder = Arc::new(locks.holder(1));
    let row = |(tree, key): (u32, u32)| locks.row(TreeId::new(tree), &key.to_be_bytes());
    assert!(holder.lock(rows(1).map(row).map(update)).unwrap().is_none());
    holder.lock_free(rows(2).map(row).map(update));
    assert_eq!(locks.state.lock().rows.len(), ROWS_MAX);
    drop(holder);
    assert!(is_empty(&locks));
}

#[test]
fn free_rows_are_locked_without_waiting() {
    let (locks, row) = locks();
    let [a, b] = [(); 2].map(|()| Arc::new(locks.holder(1)));
    assert!(lock(&a, row(1)).is_none());
    b.lock_free([row(1), row(2)].map(update));
    assert!(lock(&a, row(2)).is_some());
}

#[test]
fn modes_conflict_as_in_postgresql() {
    use LockMode::{KeyShare, NoKeyUpdate, Share, Update};
    let (locks, row) = locks();
    let conflicting = [
        (KeyShare, [false, false, false, true]),
        (Share, [false, false, true, true]),
        (NoKeyUpdate, [false, true, true, true]),
    ];
    for (held, expected) in conflicting.into_iter().chain([(Update, [true; 4])]) {
        for (wanted, expected) in [KeyShare, Share, NoKeyUpdate, Update].into_iter().zip(expected) {
            let (a, b) = (locks.holder(1), locks.holder(2));
            assert!(a.try_lock(row(1), held) && a.try_lock(row(1), held));
            assert_eq!(!b.try_lock(row(1), wanted), expected, "{wanted:?} beside {held:?}");
        }
    }
    assert!(is_empty(&locks));
}

#[test]
fn shared_rows_are_handed_over_with_their_last_holder() {
    let (locks, row) = locks();
    let holders: Vec<_> = (0..5).map(|session| Arc::new(locks.holder(session))).collect();
    let share = |holder: &Arc<LockHolder>| holder.lock([(row(1), LockMode::Share)]).unwrap();
    assert!(share(&holders[0]).is_none() && share(&holders[1]).is_none());
    let exclusive = lock(&holders[2], row(1)).unwrap();
    let shared = [share(&holders[3]).unwrap(), share(&holders[4]).unwrap()];
    holders[0].release();
    assert!(!is_granted(&exclusive) && !shared.iter().any(is_granted), "the later requests do not overtake the first");
    holders[1].release();
    assert!(is_granted(&exclusive) && !shared.iter().any(is_granted));
    holders[2].release();
    assert!(shared.iter().all(is_granted), "both at once");
    drop((exclusive, shared, holders));
    assert!(is_empty(&locks));
}

#[test]
fn a_request_that_leaves_lets_later_ones_pass() {
    let (locks, row) = locks();
    let [a, b, c] = [1, 2, 3].map(|session| Arc::new(locks.holder(session)));
    assert!(a.try_lock(row(1), LockMode::Share));
    let exclusive = lock(&b, row(1)).unwrap();
    let shared = c.lock([(row(1), LockMode::Share)]).unwrap().unwrap();
    assert!(!is_granted(&shared));
    drop(exclusive);
    assert!(is_granted(&shared));
}

#[test]
fn stronger_modes_do_not_queue_behind_others() {
    let (locks, row) = locks();
    let [a, b, c] = [1, 2, 3].map(|session| Arc::new(locks.holder(session)));
    assert!(a.try_lock(row(1), LockMode::Share));
    let exclusive = lock(&b, row(1)).unwrap();
    assert!(lock(&a, row(1)).is_none(), "the only holder");
    a.release();
    assert!(is_granted(&exclusive));
    b.release();
    // Two holders that both want more wait for each other.
    assert!(a.try_lock(row(1), LockMode::Share) && c.try_lock(row(1), LockMode::Share));
    let first = lock(&a, row(1)).unwrap();
    assert!(matches!(c.lock([update(row(1))]), Err(Error::Deadlock)));
    c.release();
    assert!(is_granted(&first));
    let modes: Vec<_> = locks.list().into_iter().map(|lock| (lock.session, lock.mode, lock.is_granted)).collect();
    assert_eq!(modes, [(1, LockMode::Update, true)]);
    assert_eq!(a.len(), 1);
}

#[test]
fn deadlocks_through_several_holders_of_a_row_are_found() {
    let (locks, row) = locks();
    let [a, b, c] = [1, 2, 3].map(|session| Arc::new(locks.holder(session)));
    assert!(a.try_lock(row(1), LockMode::Share) && b.try_lock(row(1), LockMode::Share));
    assert!(c.try_lock(row(2), LockMode::Update));
    let _waits = lock(&c, row(1)).unwrap();
    assert!(matches!(b.lock([update(row(2))]), Err(Error::Deadlock)), "the second holder of the row");
    assert_eq!((locks.blocking(3), locks.waiting()), ([1, 2].into(), [3].into()));
    assert!(locks.blocking(2).is_empty(), "the request that failed has left the queue");
}

#[test]
fn rows_behind_a_mark_are_released() {
    let (locks, row) = locks();
    let [a, b] = [1, 2].map(|session| Arc::new(locks.holder(session)));
    assert!(lock(&a, row(1)).is_none());
    let kept = a.len();
    assert!(a.lock([row(1), row(2), row(3)].map(update)).unwrap().is_none());
    let wait = lock(&b, row(3)).unwrap();
    a.release_after(kept);
    assert!(is_granted(&wait) && b.try_lock(row(2), LockMode::Update) && !b.try_lock(row(1), LockMode::KeyShare));
    a.release_after(7);
    assert_eq!(a.len(), 1);
}
