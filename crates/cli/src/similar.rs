//! Suggestions for misspelt names.

use strsim::damerau_levenshtein;

/// The candidate that resembles a name most, if it has at most two other, missing, added or transposed letters.
pub fn similar<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let fits = |&(distance, candidate): &(usize, &str)| distance <= 2 && distance < candidate.chars().count();
    let distances = candidates.into_iter().map(|candidate| (damerau_levenshtein(candidate, name), candidate));
    distances.filter(fits).min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_resemble() {
        let names = ["customer", "orders", "t"];
        assert_eq!(similar("custmer", names), Some("customer"));
        assert_eq!(similar("oders", names), Some("orders"));
        assert_eq!(similar("order", names), Some("orders"));
        // Any two letters are two changes away from "t".
        assert_eq!(similar("ab", names), None);
        assert_eq!(similar("lineitem", names), None);
    }
}
