//! A header that cbindgen makes of sources, for the tests of both.

use std::path::Path;

/// What it makes of these files of a crate's, in this order.
pub(crate) fn made(crate_folder: &Path, sources: &[&str]) -> String {
    let config = cbindgen::Config::from_file(crate_folder.join("cbindgen.toml")).unwrap();
    let builder = sources
        .iter()
        .fold(cbindgen::Builder::new(), |builder, source| {
            let file = crate_folder.join("src").join(source);
            builder.with_src(file.with_extension("rs"))
        });
    let mut header = Vec::new();
    builder
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut header);
    String::from_utf8(header).unwrap()
}

/// Whether the header that is kept is the one that is made. With `POLYRAIL_BLESS` in the environment it is from now on.
pub(crate) fn check(crate_folder: &Path, header: &str, sources: &[&str]) {
    let path = crate_folder.join(header);
    let made = made(crate_folder, sources);
    if std::env::var_os("POLYRAIL_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "{header} is not what the sources make: see the top of the test"
    );
}
