mod keys;
mod splus;
use keyaki_vast::*;
use std::time::Instant;

fn run<K: Key + TryFrom<u64> + Into<u64>>(d: &str, n: usize, greatest: K) {
    let keys: Vec<K> = keys::sorted(d, n).unwrap();
    let q = keys::wanted(&keys, 1 << 20);
    let s = splus::SPlus::new(&keys, greatest);
    let lines = splus::lines_of(&keys, greatest);
    let plain: &[K] = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), n) };
    let right: Vec<usize> = q.iter().map(|k| keys.partition_point(|o| o < k)).collect();
    let mut rows = vec![0; q.len()];
    let mut best = |f: &mut dyn FnMut(&mut [usize])| {
        let mut b = f64::MAX;
        for _ in 0..3 { let t = Instant::now(); f(&mut rows); b = b.min(t.elapsed().as_nanos() as f64 / q.len() as f64); }
        assert!(rows == right);
        b
    };
    let a = best(&mut |r| s.lower_bound_many(&q, r));
    let b = best(&mut |r| for (r, &k) in r.iter_mut().zip(&q) { *r = s.lower_bound(k) });
    println!("{d} {n} {} bytes: S+ {:.3} bits: many {a:.1} single {b:.1}", K::BYTES, s.bytes() as f64 * 8.0 / n as f64);
    for goal in [Goal::Fastest, Goal::Smallest, Goal::Bounded { rows: 1000 }] {
        let t = Instant::now();
        let tree = Tree::build(plain, &Settings::new(goal)).unwrap();
        let build = t.elapsed().as_secs_f64();
        let a = best(&mut |r| tree.lower_bound_many(plain, &q, r));
        let b = best(&mut |r| for (r, &k) in r.iter_mut().zip(&q) { *r = tree.lower_bound(plain, k) });
        let p = tree.plan();
        let w: Vec<String> = p.shapes.iter().map(|s| (s.width * 8).to_string()).collect();
        println!("   {goal:?} {:.3} bits: many {a:.1} single {b:.1}; build {build:.2} s, slot {} [{}] disp max {} mean {:.1} past {:.3}", tree.bits_per_row(), p.slot_rows, w.join(" "), tree.displacement().max, tree.displacement().mean, tree.displacement().regions.last().map_or(0.0, |r| r.share));
    }
}

fn prof(n: usize) {
    let keys: Vec<u32> = keys::sorted("poisson8", n).unwrap();
    let q = keys::wanted(&keys, 1 << 20);
    let lines = splus::lines_of(&keys, u32::MAX);
    let plain: &[u32] = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), n) };
    let s = splus::SPlus::new(&keys, u32::MAX);
    let l = Shape::line;
    let mut rows = vec![0; q.len()];
    for rep in 0..3 {
    let t = Instant::now();
    for _ in 0..4 { s.lower_bound_many(&q, &mut rows); }
    println!("S+ {:.1}", t.elapsed().as_nanos() as f64 / q.len() as f64 / 4.0);
    for (slot, shapes) in [(16, vec![l(4),l(4),l(4),l(4),l(4),l(4)]), (16, vec![l(2), l(2), l(2), l(2), l(1)]), (16, vec![l(4), l(4), l(4), l(2), l(1)]), (16, vec![l(2), l(2), l(2), l(2), l(2), Shape::part(1,32)]), (16, vec![l(2), l(2), l(2), l(2),l(2), Shape::part(1,16)])] {
        let tree = Tree::build_with(plain, &Plan { slot_rows: slot, shapes }).unwrap();
        let t = Instant::now();
        for _ in 0..4 { tree.lower_bound_many(plain, &q, &mut rows); }
        let a = t.elapsed().as_nanos() as f64 / q.len() as f64 / 4.0;
        let t = Instant::now();
        let mut w = vec![];
        for _ in 0..4 { tree.window_many(&q, &mut w); }
        println!("{:?} {:?}: {a:.1}, window {:.1}", slot, tree.plan().shapes.iter().map(|s| s.width).collect::<Vec<_>>(), t.elapsed().as_nanos() as f64 / q.len() as f64 / 4.0);
    }
    if rep == 2 { break; }
    }
}

fn main() {
    if std::env::args().nth(2).as_deref() == Some("prof") { return prof(1 << std::env::args().nth(1).unwrap().parse::<u32>().unwrap()); }
    let a: Vec<String> = std::env::args().collect();
    let n = 1usize << a[1].parse::<u32>().unwrap();
    for d in keys::DISTRIBUTIONS {
        if a.len() > 2 && a[2] != d { continue; }
        run::<u32>(d, n, u32::MAX);
        run::<u64>(d, n, u64::MAX);
    }
}
