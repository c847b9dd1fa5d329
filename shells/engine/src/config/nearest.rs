//! The known word that is nearest to an unknown one.

/// The word of `known` that takes the fewest edits to become `word`; the first of equals.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().min_by_key(|known| distance(word, known))
}

/// Edits between two words, whatever their case.
pub(super) fn distance(a: &str, b: &str) -> usize {
    strsim::damerau_levenshtein(&a.to_lowercase(), &b.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_takes_the_fewest_edits() {
        let known = ["policy", "workers", "rails", "rail_map"];
        // (word, nearest)
        let cases = [
            ("polcy", "policy"),
            ("Workers", "workers"),
            ("wrokers", "workers"),
            ("rail", "rails"),
            ("railmap", "rail_map"),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, known), Some(expected), "{word}");
        }
        assert_eq!(nearest("x", []), None);
    }
}
