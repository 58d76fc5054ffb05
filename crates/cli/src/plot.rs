//! Text plots of the reads in flight over time.

use keyaki_exec::Sample;

use crate::terminal::significant;

/// Bars of 0 to 8 eighths of a character cell.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Mean reads in flight in each of `width` equal parts of `[0, elapsed_ns)`. A sample holds until the next one.
pub fn bins(timeline: &[Sample], elapsed_ns: u64, width: usize) -> Vec<f64> {
    let mut sums = vec![0.0; width];
    let bin_ns = elapsed_ns as f64 / width as f64;
    if bin_ns <= 0.0 {
        return sums;
    }
    for (i, sample) in timeline.iter().enumerate() {
        let end_ns = timeline.get(i + 1).map_or(elapsed_ns, |next| next.at_ns) as f64;
        let mut from_ns = sample.at_ns as f64;
        while from_ns < end_ns {
            let bin = ((from_ns / bin_ns) as usize).min(width - 1);
            let to_ns = if bin + 1 == width { end_ns } else { end_ns.min((bin + 1) as f64 * bin_ns) };
            sums[bin] += f64::from(sample.in_flight) * (to_ns - from_ns) / bin_ns;
            // Ensures progress if rounding gives an empty interval.
            from_ns = if to_ns > from_ns { to_ns } else { end_ns };
        }
    }
    sums
}

/// Reads completed per second in each of `width` equal parts of `[0, elapsed_ns)`. Reads between two samples are spread evenly.
pub fn rates(timeline: &[Sample], elapsed_ns: u64, width: usize) -> Vec<f64> {
    let mut rates = vec![0.0; width];
    let bin_ns = elapsed_ns as f64 / width as f64;
    if bin_ns <= 0.0 {
        return rates;
    }
    let mut before = Sample::default();
    for sample in timeline {
        let (mut from_ns, end_ns) = (before.at_ns as f64, sample.at_ns as f64);
        let per_ns = sample.reads.saturating_sub(before.reads) as f64 / (end_ns - from_ns).max(1.0);
        while from_ns < end_ns {
            let bin = ((from_ns / bin_ns) as usize).min(width - 1);
            let to_ns = if bin + 1 == width { end_ns } else { end_ns.min((bin + 1) as f64 * bin_ns) };
            rates[bin] += per_ns * (to_ns - from_ns) / bin_ns * 1e9;
            // Ensures progress if rounding gives an empty interval.
            from_ns = if to_ns > from_ns { to_ns } else { end_ns };
        }
        before = *sample;
    }
    rates
}

/// The highest mean in a plot of this width. Several plots share a scale by their common maximum.
pub fn peak(timeline: &[Sample], elapsed_ns: u64, width: usize) -> f64 {
    bins(timeline, elapsed_ns, width).into_iter().fold(0.0, f64::max)
}

/// One line of `width` characters in which a full block stands for `peak`.
pub fn sparkline(timeline: &[Sample], elapsed_ns: u64, width: usize, peak: f64) -> String {
    let eighths = |value: f64| if peak > 0.0 { (value / peak * 8.0).ceil().clamp(0.0, 8.0) as usize } else { 0 };
    bins(timeline, elapsed_ns, width).into_iter().map(|value| BLOCKS[eighths(value)]).collect()
}

/// The timeline of an operator in the time of its query: the operator starts at `start_ns` and runs for `elapsed_ns`.
pub fn shifted(timeline: &[Sample], start_ns: u64, elapsed_ns: u64) -> Vec<Sample> {
    let first = Sample { at_ns: start_ns, ..Sample::default() };
    let samples = timeline.iter().map(|sample| Sample { at_ns: sample.at_ns + start_ns, ..*sample });
    let reads = timeline.last().map_or(0, |sample| sample.reads);
    let last = Sample { at_ns: start_ns + elapsed_ns, in_flight: 0, reads };
    std::iter::once(first).chain(samples).chain([last]).collect()
}

/// A plot of `width` × `height` characters, plus axes.
pub fn plot(timeline: &[Sample], elapsed_ns: u64, width: usize, height: usize) -> String {
    draw(&bins(timeline, elapsed_ns, width), elapsed_ns, height)
}

/// A plot of one value in each column, of `height` lines, plus axes.
pub fn draw(values: &[f64], elapsed_ns: u64, height: usize) -> String {
    let width = values.len();
    let peak = values.iter().copied().fold(0.0, f64::max);
    let mut text = String::new();
    for line in (0..height).rev() {
        let label = if line + 1 == height { significant(peak) } else { String::new() };
        text.push_str(&format!("{label:>8} ┤"));
        for value in values {
            let eighths = if peak > 0.0 { (value / peak * height as f64 * 8.0).ceil() as usize } else { 0 };
            text.push(BLOCKS[eighths.saturating_sub(line * 8).min(8)]);
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    let end = format!("{} ms", significant(elapsed_ns as f64 / 1e6));
    text.push_str(&format!("{:>8} ┼{}\n{:>9} 0{end:>width$}\n", 0, "─".repeat(width), ""));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(points: &[(u64, u32)]) -> Vec<Sample> {
        points.iter().map(|&(at_ns, in_flight)| Sample { at_ns, in_flight, reads: 0 }).collect()
    }

    #[test]
    fn rates_count_each_read_once() {
        let sample = |at_ns, reads| Sample { at_ns, in_flight: 1, reads };
        let timeline = [sample(100, 10), sample(300, 10), sample(400, 40)];
        assert_eq!(rates(&timeline, 400, 4), [1e8, 0.0, 0.0, 3e8]);
        assert_eq!(rates(&timeline, 400, 1), [1e8]);
        assert_eq!(rates(&[], 400, 2), [0.0, 0.0]);
        assert_eq!(rates(&timeline, 0, 2), [0.0, 0.0]);
    }

    #[test]
    fn bins_are_weighted_by_time() {
        let timeline = samples(&[(0, 0), (25, 8), (50, 4), (150, 0)]);
        assert_eq!(bins(&timeline, 200, 2), [4.0, 2.0]);
        assert_eq!(bins(&timeline, 200, 4), [4.0, 4.0, 4.0, 0.0]);
        assert_eq!(bins(&[], 200, 2), [0.0, 0.0]);
        assert_eq!(bins(&timeline, 0, 2), [0.0, 0.0]);
        // A sample beyond the end neither panics nor is lost.
        assert!(bins(&samples(&[(0, 1), (300, 5)]), 200, 3)[2] > 0.0);
    }

    #[test]
    fn lines_have_the_given_width() {
        let timeline = samples(&[(0, 10), (70, 5), (90, 1)]);
        assert_eq!(sparkline(&timeline, 100, 10, 10.0), "███████▄▄▁");
        assert_eq!(sparkline(&timeline, 100, 3, 0.0), "   ");
        let plot = plot(&timeline, 100, 10, 2);
        assert_eq!(plot.lines().next(), Some("    10.0 ┤███████"));
        assert_eq!(plot.lines().nth(1), Some("         ┤█████████▂"));
    }
}
