//! Medians and quartiles: what is measured on machines that are shared has outliers.

use serde::{Deserialize, Serialize};

/// The middle half of some measurements, to three decimals.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Quartiles {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Quartiles {
    /// Of measurements in any order; all zero if there are none.
    pub fn of(measurements: &[f64]) -> Self {
        let mut sorted = measurements.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * sorted.len().saturating_sub(1) as f64;
            let (below, above) = (sorted.get(place as usize), sorted.get(place.ceil() as usize));
            let (below, above) = (below.copied().unwrap_or(0.0), above.copied().unwrap_or(0.0));
            tidy(below + (above - below) * place.fract())
        };
        Quartiles { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

/// Three decimals are more than anything measured is good for, and JSON gives them back exactly.
pub(crate) fn tidy(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl std::fmt::Display for Quartiles {
    /// `13.1 (12.8-14.0)`, with the precision asked for.
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
