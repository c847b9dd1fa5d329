//! `include/polyrail_transport.h` is what cbindgen makes of `src/abi.rs`. To make it anew:
//!
//! ```text
//! POLYRAIL_BLESS=1 cargo test -p polyrail-load --test header
//! ```

use std::path::PathBuf;

#[test]
fn the_header_is_what_the_source_makes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_src(folder.join("src/abi.rs"))
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = folder.join("include/polyrail_transport.h");
    if std::env::var_os("POLYRAIL_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "include/polyrail_transport.h is not what the source makes: see the top of this file"
    );
}

/// The numbers of causes in the header are core's.
#[test]
fn causes_have_cores_numbers() {
    use polyrail_core::work::Cause;
    use polyrail_load::abi::*;
    let known = [
        (POLYRAIL_TRANSPORT_CAUSE_RESET, Cause::Reset),
        (
            POLYRAIL_TRANSPORT_CAUSE_RETRY_EXCEEDED,
            Cause::RetryExceeded,
        ),
        (POLYRAIL_TRANSPORT_CAUSE_FATAL, Cause::Fatal),
        (POLYRAIL_TRANSPORT_CAUSE_DEVICE_DOWN, Cause::DeviceDown),
        (POLYRAIL_TRANSPORT_CAUSE_REFUSED, Cause::Refused),
        (
            POLYRAIL_TRANSPORT_CAUSE_LOCAL_PROTECTION,
            Cause::LocalProtection,
        ),
        (
            POLYRAIL_TRANSPORT_CAUSE_LOCAL_OPERATION,
            Cause::LocalOperation,
        ),
        (POLYRAIL_TRANSPORT_CAUSE_REMOTE_ACCESS, Cause::RemoteAccess),
        (
            POLYRAIL_TRANSPORT_CAUSE_REMOTE_INVALID_REQUEST,
            Cause::RemoteInvalidRequest,
        ),
        (
            POLYRAIL_TRANSPORT_CAUSE_REMOTE_OPERATION,
            Cause::RemoteOperation,
        ),
        (POLYRAIL_TRANSPORT_CAUSE_FLUSHED, Cause::Flushed),
    ];
    for (number, cause) in known {
        assert_eq!(Cause::from_number(number), Some(cause));
    }
}
