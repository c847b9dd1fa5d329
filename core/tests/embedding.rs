//! The embedder's guide and its example: what the guide quotes is in the example, and the example does what the
//! guide says.

#[path = "../examples/embedded/device.rs"]
mod device;
#[path = "../examples/embedded/runtime.rs"]
mod runtime;

use polyrail_core::report::Status;

const GUIDE: &str = include_str!("../../docs/embedding.md");
const RUNTIME: &str = include_str!("../examples/embedded/runtime.rs");

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
        assert!(RUNTIME.contains(block), "not in runtime.rs:\n{block}");
    }
}

#[test]
fn the_example_says_what_the_guide_shows() {
    let mut ours = vec![7; runtime::TOTAL_BYTES];
    let mut theirs = vec![0; runtime::TOTAL_BYTES];
    let mut said = String::new();
    let mut device = device::Device::new(&mut ours, &mut theirs, runtime::RATES);
    let status = runtime::run(&mut runtime::Tables::new(), &mut device, &mut said);
    assert_eq!(status, Some(Status::Completed));
    assert!(ours == theirs, "every byte is where it should be");
    let shown = blocks("text").next().expect("the example's output");
    assert!(
        shown.contains(said.as_str()),
        "the guide should show\n{said}"
    );
}
