//! Medians and quartiles, because measurements on shared machines have outliers.

use serde::{Deserialize, Serialize};

/// The quartiles of a series of measurements, rounded to three decimals.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Quartiles {
    /// First quartile.
    pub low: f64,
    /// Second quartile.
    pub median: f64,
    /// Third quartile.
    pub high: f64,
}

impl Quartiles {
    /// The quartiles of measurements in any order, interpolated linearly; all zero if there are none.
    pub fn of(measurements: &[f64]) -> Self {
        let mut sorted = measurements.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = share * sorted.len().saturating_sub(1) as f64;
            let (below, above) = (sorted.get(rank as usize), sorted.get(rank.ceil() as usize));
            let (below, above) = (below.copied().unwrap_or(0.0), above.copied().unwrap_or(0.0));
            rounded(below + (above - below) * rank.fract())
        };
        Quartiles { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

/// Rounds to three decimals, which exceeds the precision of measurements and survives JSON exactly.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl std::fmt::Display for Quartiles {
    /// `13.1 (12.8-14.0)`, with the formatter's precision (one decimal by default).
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = out.precision().unwrap_or(1);
        write!(out, "{:.digits$} ({:.digits$}-{:.digits$})", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles() {
        assert_eq!(Quartiles::of(&[]), Quartiles::default());
        assert_eq!(Quartiles::of(&[3.0]).to_string(), "3.0 (3.0-3.0)");
        let five = Quartiles::of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((five.low, five.median, five.high), (2.0, 3.0, 4.0));
        assert_eq!(Quartiles::of(&[1.0, 2.0]).median, 1.5);
        assert_eq!(format!("{five:.0}"), "3 (2-4)");
    }
}
