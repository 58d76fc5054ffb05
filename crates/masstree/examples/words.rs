//! Counts the words of a text with several threads: `cargo run --release --example words -- FILE`.

use std::thread;

use keyaki_masstree::{Masstree, pin};

fn main() -> Result<(), std::io::Error> {
    let text = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => include_str!("../README.md").to_string(),
    };
    let counts = Masstree::<u64>::new();
    let lines: Vec<&str> = text.lines().collect();
    thread::scope(|scope| {
        for part in lines.chunks(lines.len().div_ceil(4).max(1)) {
            let counts = &counts;
            scope.spawn(move || {
                for word in part.iter().flat_map(|line| line.split(|c: char| !c.is_alphanumeric())) {
                    if !word.is_empty() {
                        let guard = pin();
                        counts.update_with(&word.to_lowercase(), |count| Some(count.unwrap_or(0) + 1), &guard);
                    }
                }
            });
        }
    });
    let guard = pin();
    let mut frequent: Vec<_> = counts.iter(&guard).collect();
    // The sort is stable: words with equal counts stay in alphabetical order.
    frequent.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    println!("{} different words; the most frequent:", counts.len());
    for (word, count) in frequent.iter().take(10) {
        println!("{count:7} {}", String::from_utf8_lossy(word));
    }
    Ok(())
}
