//! The embedder's guide and its example: what the guide quotes is in the example, and the example does what the
//! guide says.

use polyrail_core::report::Status;
use polyrail_embedded::device::Device;
use polyrail_embedded::{RATES, TOTAL_BYTES, Tables, boot, run};

const GUIDE: &str = include_str!("../../../../docs/embedding.md");
const SOURCES: [&str; 2] = [
    include_str!("../src/lib.rs"),
    include_str!("../src/contract.rs"),
];

/// The contents of the guide's blocks of this language.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let fence = format!("```{language}\n");
    let parts: Vec<&str> = GUIDE.split(&fence).skip(1).collect();
    parts
        .into_iter()
        .map(|part| part.split("```").next().unwrap_or_default())
}

#[test]
fn the_guide_quotes_the_example_word_for_word() {
    assert!(blocks("rust").count() > 4);
    for block in blocks("rust") {
        let is_quoted = SOURCES.iter().any(|source| source.contains(block));
        assert!(is_quoted, "not in the example:\n{block}");
    }
}

#[test]
fn the_example_says_what_the_guide_shows() {
    let mut ours = vec![7; TOTAL_BYTES];
    let mut theirs = vec![0; TOTAL_BYTES];
    let mut said = String::new();
    let mut device = Device::new(&mut ours, &mut theirs, RATES);
    let status = boot(&mut Tables::new(), |shared, mut core| {
        run(shared, &mut core, &mut device, &mut said)
    });
    assert_eq!(status, Some(Status::Completed));
    assert!(ours == theirs, "every byte is where it should be");
    let shown = blocks("text").next().expect("the example's output");
    assert!(
        shown.contains(said.as_str()),
        "the guide should show\n{said}"
    );
}
