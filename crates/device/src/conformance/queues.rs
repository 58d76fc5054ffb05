//! Tests of queues and wakers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{Fixture, assert_blocks, pattern};
use crate::interface::{Completion, File, Op, Queue, Request, Wait};
use crate::memory::{BLOCK, Buffer};

fn read(file: &Arc<dyn File>, queue: &mut dyn Queue, block: u64, blocks: usize, tag: u64) -> Request {
    let buffer = queue.buffer(blocks * BLOCK);
    Request { file: file.clone(), offset: block * BLOCK as u64, op: Op::Read(buffer), tag }
}

fn collect(queue: &mut dyn Queue, count: usize) -> HashMap<u64, Completion> {
    let mut completed = Vec::new();
    while completed.len() < count {
        queue.complete(Wait::Until(None), &mut completed).unwrap();
    }
    assert_eq!(completed.len(), count);
    completed.into_iter().map(|completion| (completion.tag, completion)).collect()
}

pub(crate) fn queue_round_trip(fixture: &Fixture) {
    let file = fixture.file("file", 0);
    let mut queue = fixture.device.queue(8).unwrap();
    for i in 0..8_u64 {
        let mut buffer = queue.buffer(2 * BLOCK);
        for (j, block) in buffer.chunks_exact_mut(BLOCK).enumerate() {
            pattern(i * 2 + j as u64, block);
        }
        queue.push(Request { file: file.clone(), offset: i * 2 * BLOCK as u64, op: Op::Write(buffer), tag: i });
    }
    assert_eq!(queue.in_flight(), 8);
    queue.submit().unwrap();
    let completed = collect(queue.as_mut(), 8);
    assert_eq!(queue.in_flight(), 0);
    assert!(completed.values().all(|completion| completion.result.is_ok() && completion.buffer.is_some()));
    for i in 0..16 {
        let request = read(&file, queue.as_mut(), i, 1, i);
        queue.push(request);
    }
    for (tag, completion) in collect(queue.as_mut(), 16) {
        completion.result.unwrap();
        assert_blocks(tag, &completion.buffer.unwrap());
    }
}

pub(crate) fn short_reads(fixture: &Fixture) {
    let file = fixture.file("file", 3);
    let mut queue = fixture.device.queue(4).unwrap();
    for (tag, (block, blocks)) in [(2, 2), (3, 1), (50, 4), (0, 3)].into_iter().enumerate() {
        let request = read(&file, queue.as_mut(), block, blocks, tag as u64);
        queue.push(request);
    }
    let completed = collect(queue.as_mut(), 4);
    for tag in 0..3 {
        assert!(completed[&tag].result.as_ref().unwrap_err().is_end_of_file());
        assert!(completed[&tag].buffer.is_some());
    }
    assert!(completed[&3].result.is_ok());
}

pub(crate) fn backlog(fixture: &Fixture) {
    let file = fixture.file("file", 64);
    for depth in [1, 3] {
        let mut queue = fixture.device.queue(depth).unwrap();
        for i in 0..1000 {
            let request = read(&file, queue.as_mut(), i % 64, 1, i);
            queue.push(request);
        }
        assert_eq!(queue.in_flight(), 1000);
        for (tag, completion) in collect(queue.as_mut(), 1000) {
            completion.result.unwrap();
            assert_blocks(tag % 64, &completion.buffer.unwrap());
        }
    }
}

pub(crate) fn invalid_requests(fixture: &Fixture) {
    let file = fixture.file("file", 4);
    let mut queue = fixture.device.queue(4).unwrap();
    let mut push = |offset, blocks: usize, tag| {
        let op = Op::Read(Buffer::zeroed(blocks * BLOCK));
        queue.push(Request { file: file.clone(), offset, op, tag });
    };
    push(100, 1, 0);
    push(0, 0, 1);
    push(u64::MAX - 4095, 2, 2);
    push(BLOCK as u64, 1, 3);
    let completed = collect(queue.as_mut(), 4);
    assert!(completed[&0].result.is_err());
    assert!(completed[&1].result.is_ok(), "an empty read succeeds");
    assert!(completed[&2].result.is_err());
    assert_blocks(1, completed[&3].buffer.as_ref().unwrap());
}

pub(crate) fn buffers(fixture: &Fixture) {
    let file = fixture.file("file", 300);
    let mut queue = fixture.device.queue(16).unwrap();
    let mut other = fixture.device.queue(16).unwrap();
    for blocks in [1, 2, 3, 4, 16, 64, 256, 300] {
        // Buffers of this queue, of another queue, and of no queue.
        let sources = [queue.buffer(blocks * BLOCK), other.buffer(blocks * BLOCK), Buffer::zeroed(blocks * BLOCK)];
        for (tag, buffer) in sources.into_iter().enumerate() {
            assert_eq!(buffer.len(), blocks * BLOCK);
            queue.push(Request { file: file.clone(), offset: 0, op: Op::Read(buffer), tag: tag as u64 });
        }
        for completion in collect(queue.as_mut(), 3).into_values() {
            completion.result.unwrap();
            assert_blocks(0, &completion.buffer.unwrap());
        }
    }
    let mut survivor = queue.buffer(BLOCK);
    drop(queue);
    file.read_at(7 * BLOCK as u64, &mut survivor).unwrap();
    assert_blocks(7, &survivor);
}

pub(crate) fn wakers(fixture: &Fixture) {
    let mut queue = fixture.device.queue(2).unwrap();
    let mut completed = Vec::new();
    // Wake-ups before a wait end it at once. Several count as one.
    queue.waker().wake();
    queue.waker().wake();
    assert_eq!(queue.complete(Wait::Until(None), &mut completed).unwrap(), 0);
    assert_eq!(queue.complete(Wait::Until(Some(Duration::from_millis(1))), &mut completed).unwrap(), 0);
    // A call that does not wait keeps the wake-up pending.
    queue.waker().wake();
    assert_eq!(queue.complete(Wait::No, &mut completed).unwrap(), 0);
    assert_eq!(queue.complete(Wait::Until(None), &mut completed).unwrap(), 0);
    // A waker may outlive its queue.
    let waker = queue.waker();
    drop(queue);
    waker.wake();
}

/// Two threads pass a token back and forth. A lost wake-up would hang the test.
pub(crate) fn wake_storm(fixture: &Fixture) {
    const ROUNDS: u64 = 2000;
    let file = fixture.file("file", 16);
    let token = Arc::new(AtomicU64::new(0));
    let queues: Vec<_> = (0..2).map(|_| fixture.device.queue(4).unwrap()).collect();
    let wakers: Vec<_> = queues.iter().map(|queue| queue.waker()).collect();
    std::thread::scope(|scope| {
        for (me, mut queue) in queues.into_iter().enumerate() {
            let (token, file) = (token.clone(), file.clone());
            let waker = wakers[1 - me].clone();
            scope.spawn(move || {
                let mut completed = Vec::new();
                loop {
                    let now = token.load(Ordering::Acquire);
                    if now >= ROUNDS {
                        waker.wake();
                        break;
                    }
                    if now % 2 == me as u64 {
                        token.store(now + 1, Ordering::Release);
                        waker.wake();
                        if now % 7 == 0 {
                            let request = read(&file, queue.as_mut(), now % 16, 1, now);
                            queue.push(request);
                        }
                    } else {
                        queue.complete(Wait::Until(None), &mut completed).unwrap();
                    }
                }
            });
        }
    });
}

pub(crate) fn time_outs(fixture: &Fixture) {
    let mut queue = fixture.device.queue(2).unwrap();
    let mut completed = Vec::new();
    for timeout in [Duration::ZERO, Duration::from_micros(10), Duration::from_millis(3)] {
        let before = fixture.device.now_ns();
        assert_eq!(queue.complete(Wait::Until(Some(timeout)), &mut completed).unwrap(), 0);
        assert!(fixture.device.now_ns() - before >= timeout.as_nanos() as u64);
    }
    assert_eq!(queue.complete(Wait::No, &mut completed).unwrap(), 0);
}

pub(crate) fn drop_in_flight(fixture: &Fixture) {
    let file = fixture.file("file", 1024);
    for round in 0..20 {
        let mut queue = fixture.device.queue(32).unwrap();
        for i in 0..64 {
            let request = read(&file, queue.as_mut(), (i * 16) % 1024, 16, i);
            queue.push(request);
        }
        if round % 2 == 0 {
            queue.submit().unwrap();
        } else {
            queue.complete(Wait::Until(None), &mut Vec::new()).unwrap();
        }
        drop(queue);
    }
    // No request writes to the memory of its queue after the queue was dropped.
    let zeros: Vec<_> = (0..64).map(|_| Buffer::zeroed(16 * BLOCK)).collect();
    assert!(zeros.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
}

pub(crate) fn sync_requests(fixture: &Fixture) {
    let file = fixture.file("file", 4);
    let mut queue = fixture.device.queue(2).unwrap();
    queue.push(Request { file, offset: 0, op: Op::Sync, tag: 5 });
    let completed = collect(queue.as_mut(), 1);
    assert!(completed[&5].result.is_ok());
    assert!(completed[&5].buffer.is_none());
}

/// Thousands of random reads and writes in flight agree with a model of the file.
pub(crate) fn many_requests(fixture: &Fixture) {
    const BLOCKS: u64 = 512;
    let file = fixture.file("file", BLOCKS);
    let mut contents: Vec<u64> = (0..BLOCKS).collect();
    let mut queue = fixture.device.queue(128).unwrap();
    let mut random = keyaki_primitives::Random::new(7);
    let mut busy = vec![false; BLOCKS as usize];
    let mut expected = HashMap::new();
    let mut completed = Vec::new();
    for tag in 0..6000_u64 {
        let block = random.below(BLOCKS);
        if !std::mem::replace(&mut busy[block as usize], true) {
            let mut buffer = queue.buffer(BLOCK);
            let write = random.below(3) == 0;
            if write {
                contents[block as usize] = tag + BLOCKS;
                pattern(tag + BLOCKS, &mut buffer);
            }
            let op = if write { Op::Write(buffer) } else { Op::Read(buffer) };
            expected.insert(tag, block);
            queue.push(Request { file: file.clone(), offset: block * BLOCK as u64, op, tag });
        }
        if tag % 100 == 0 {
            queue.complete(if tag % 200 == 0 { Wait::No } else { Wait::Until(None) }, &mut completed).unwrap();
        }
        for completion in completed.drain(..) {
            let block = expected.remove(&completion.tag).unwrap();
            completion.result.unwrap();
            assert_blocks(contents[block as usize], &completion.buffer.unwrap());
            busy[block as usize] = false;
        }
    }
    let rest = expected.len();
    assert_eq!(queue.in_flight(), rest);
    for (tag, completion) in collect(queue.as_mut(), rest) {
        assert_blocks(contents[expected[&tag] as usize], &completion.buffer.unwrap());
    }
}

/// Thousands of requests in flight at once.
pub(crate) fn deep_queue(fixture: &Fixture) {
    let file = fixture.file("file", 256);
    let mut queue = fixture.device.queue(4096).unwrap();
    for tag in 0..6000 {
        let request = read(&file, queue.as_mut(), tag * 7 % 256, 1, tag);
        queue.push(request);
    }
    queue.submit().unwrap();
    assert_eq!(queue.in_flight(), 6000);
    for (tag, completion) in collect(queue.as_mut(), 6000) {
        assert_blocks(tag * 7 % 256, &completion.buffer.unwrap());
    }
}

/// Many threads leave messages and wake one worker, which sometimes has reads in flight. No message may be missed.
pub(crate) fn many_wakers(fixture: &Fixture) {
    const MESSAGES: u64 = 500;
    let file = fixture.file("file", 16);
    let sent = Arc::new(AtomicU64::new(0));
    let mut queue = fixture.device.queue(4).unwrap();
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let (sent, waker) = (sent.clone(), queue.waker());
            std::thread::spawn(move || {
                for i in 0..MESSAGES {
                    sent.fetch_add(1, Ordering::Release);
                    waker.wake();
                    if i % 64 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            })
        })
        .collect();
    let mut seen = 0;
    let mut completed = Vec::new();
    while seen < 4 * MESSAGES {
        let now = sent.load(Ordering::Acquire);
        if now == seen {
            queue.complete(Wait::Until(None), &mut completed).unwrap();
        } else if now.is_multiple_of(5) {
            let request = read(&file, queue.as_mut(), now % 16, 1, now);
            queue.push(request);
        }
        seen = now;
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

pub(crate) fn moved_queue(fixture: &Fixture) {
    let file = fixture.file("file", 8);
    let mut queue = fixture.device.queue(4).unwrap();
    let request = read(&file, queue.as_mut(), 1, 1, 1);
    queue.push(request);
    let use_queue = |mut queue: Box<dyn Queue>, file: &Arc<dyn File>, tags: u64| {
        let request = read(file, queue.as_mut(), tags, 1, tags);
        queue.push(request);
        let count = queue.in_flight();
        for (tag, completion) in collect(queue.as_mut(), count) {
            assert_blocks(tag, &completion.buffer.unwrap());
        }
        queue
    };
    let waker = queue.waker();
    // Moved with a request pushed but not submitted, then back again while idle.
    queue = std::thread::scope(|scope| scope.spawn(|| use_queue(queue, &file, 2)).join().unwrap());
    waker.wake();
    queue.complete(Wait::Until(None), &mut Vec::new()).unwrap();
    queue = use_queue(queue, &file, 3);
    // Dropped on another thread while idle.
    std::thread::spawn(move || drop(queue)).join().unwrap();
}

/// Threads take turns with a queue that has requests in flight, and the last one drops it with some.
pub(crate) fn movable_queue(fixture: &Fixture) {
    let file = fixture.file("file", 64);
    let mut queue = fixture.device.movable_queue(16).unwrap();
    let mut completed = Vec::new();
    for turn in 0..4 {
        for block in 0..16 {
            let request = read(&file, queue.as_mut(), turn * 16 + block, 1, turn * 16 + block);
            queue.push(request);
        }
        queue.submit().unwrap();
        let wanted = completed.len() + 8;
        (queue, completed) = std::thread::spawn(move || {
            while completed.len() < wanted {
                queue.complete(Wait::Until(None), &mut completed).unwrap();
            }
            (queue, completed)
        })
        .join()
        .unwrap();
    }
    assert_eq!(completed.len() + queue.in_flight(), 64);
    std::thread::spawn(move || drop(queue)).join().unwrap();
    for completion in completed {
        completion.result.unwrap();
        assert_blocks(completion.tag, &completion.buffer.unwrap());
    }
}

pub(crate) fn independent_queues(fixture: &Fixture) {
    let file = fixture.file("file", 256);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (file, stop) = (&file, &stop);
            let mut queue = fixture.device.queue(16).unwrap();
            scope.spawn(move || {
                for round in 0..20 {
                    for i in 0..24 {
                        let request = read(file, queue.as_mut(), (worker * 50 + round + i) % 256, 1, i);
                        queue.push(request);
                    }
                    for (tag, completion) in collect(queue.as_mut(), 24) {
                        assert_blocks((worker * 50 + round + tag) % 256, &completion.buffer.unwrap());
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
    assert!(stop.load(Ordering::Relaxed));
}
