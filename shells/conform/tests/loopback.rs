//! A transport in C: it keeps every promise, engines move bytes over it, and where it is broken, the promise is named.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use polyrail::{Access, Config, Engine, Op, Request, Status};
use polyrail_conform::{PROMISES, Subject, check};
use polyrail_load::Library;

/// Builds a transport of `tests/transports`; where its library is.
fn build(folder: &Path, source: &Path, defines: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let library = folder.join("transport.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut build = Command::new(compiler);
    build
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-g",
        ])
        .args(["-shared", "-fPIC", "-I"])
        .arg(root.join("shells/load/include"))
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(source)
        .args(["-lpthread", "-o"])
        .arg(&library);
    let built = build.output().unwrap();
    let words = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{build:?}: {words}");
    library
}

fn loopback() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/transports/loopback.c")
}

fn subject(library: &Path) -> Subject {
    let library = Library::open(library).unwrap();
    Subject::new(Arc::new(move |regions| library.make(regions)))
}

#[test]
fn a_transport_in_c_keeps_every_promise() {
    let folder = tempfile::tempdir().unwrap();
    let subject = subject(&build(folder.path(), &loopback(), &[]));
    let broken: Vec<_> = PROMISES
        .iter()
        .filter_map(|promise| Some((promise.name, check(promise, &subject).err()?)))
        .collect();
    assert_eq!(broken, []);
}

#[test]
fn a_broken_promise_is_named() {
    // (what is broken in it, the promise that this breaks, what is said of it)
    let cases = [
        (
            "BREAK_SHORT",
            "writes",
            "is wrong after 1 bytes from 0 on were moved",
        ),
        (
            "BREAK_TICKETS",
            "tickets",
            "a lane without a ticket was answered",
        ),
        ("BREAK_TWICE", "once", "completed twice"),
        (
            "BREAK_DESCRIPTOR",
            "descriptor",
            "nothing called whoever slept on the descriptor",
        ),
        (
            "BREAK_EPOCH",
            "epochs",
            "works of an epoch that never began",
        ),
        (
            "BREAK_ACCESS",
            "access",
            "a work that writes what peers may not write ended well",
        ),
        (
            "BREAK_LOCAL_FENCE",
            "local-fence",
            "here after a local fence",
        ),
        (
            "BREAK_FENCE",
            "remote-fence",
            "at the peer after the target had answered the fence",
        ),
        (
            "BREAK_ANSWER",
            "remote-fence",
            "the target's answer to a fence did not come",
        ),
    ];
    for (define, name, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let subject = subject(&build(folder.path(), &loopback(), &[define]));
        let promise = PROMISES
            .iter()
            .find(|promise| promise.name == name)
            .unwrap();
        let said = check(promise, &subject).expect_err(define);
        assert!(said.contains(words), "{define}: {said}");
    }
}

/// An engine with the library.
fn engine(name: &str, library: &Path, listen: bool) -> Engine {
    let mut config = format!(
        r#"{{ "name": "{name}", "workers": 1, "transports": {{ "loopback": {{ "library": {library:?} }} }}"#
    );
    if listen {
        config.push_str(r#", "listen": "127.0.0.1:0""#);
    }
    config.push('}');
    Engine::new(Config::from_json(&config).unwrap()).unwrap()
}

#[test]
fn engines_move_bytes_over_it() {
    let (bytes, engine) = exchange(&[]);
    let rails = engine.rails();
    assert_eq!(engine.stats().failovers_total(), 0);
    let carried: Vec<_> = rails.into_iter().filter(|rail| rail.bytes > 0).collect();
    assert_eq!(carried.len(), 1, "{carried:?}");
    assert!(carried[0].name.starts_with("loopback:*>"), "{carried:?}");
    assert!(carried[0].bytes >= 2 * bytes, "{carried:?}");
}

#[test]
fn a_transport_may_not_know_what_became_of_a_post() {
    let (bytes, engine) = exchange(&["UNKNOWN_POSTS"]);
    let rails = engine.rails();
    let carried: u64 = rails.iter().map(|rail| rail.bytes).sum();
    assert!(carried >= 2 * bytes, "{rails:?}");
    assert!(rails[0].bytes > 0, "{rails:?}");
}

#[test]
fn when_it_fails_or_says_what_cannot_be_requests_go_on_with_another() {
    for define in ["DIES", "LIES"] {
        let (bytes, engine) = exchange(&[define]);
        let failovers = engine.stats().failovers;
        let left = failovers.iter().find(|row| row.from == "loopback");
        assert!(
            left.is_some_and(|row| row.count > 0),
            "{define}: {failovers:?}"
        );
        let carried: u64 = engine
            .rails()
            .iter()
            .filter(|rail| !rail.name.starts_with("loopback"))
            .map(|rail| rail.bytes)
            .sum();
        assert!(carried > bytes / 2, "{define}: {:?}", engine.rails());
    }
}

/// Moves bytes to a target and back between two engines with the library: how many, and the engine that did.
fn exchange(defines: &[&str]) -> (u64, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let library = build(folder.path(), &loopback(), defines);
    let target = engine("target", &library, true);
    // Much more than it carries before it fails.
    let bytes = 24 << 20;
    target
        .allocate("mem", bytes, Access::RemoteReadWrite)
        .unwrap();
    let initiator = engine("initiator", &library, false);
    let names: Vec<_> = initiator.transports().iter().map(|t| t.name).collect();
    assert_eq!(names.first(), Some(&"loopback"), "{names:?}");
    let local = initiator.allocate("here", bytes, Access::Local).unwrap();
    let address = format!("{}/mem", target.listening().unwrap());
    let remote = initiator.open_segment(&address).unwrap();
    let here = initiator.region(local).unwrap();
    let there = target.region(target.local_segment("mem").unwrap()).unwrap();
    let pattern: Vec<u8> = (0..bytes).map(|place| (place % 251) as u8).collect();
    // SAFETY: inside the segment, which nothing uses yet.
    unsafe {
        here.base()
            .copy_from_nonoverlapping(std::ptr::NonNull::from(&pattern[..]).cast(), pattern.len())
    };
    for op in [Op::Write, Op::Read] {
        let request = Request {
            op,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: bytes,
        };
        let batch = initiator.submit(&[request]).unwrap();
        let report = batch.wait(Duration::from_secs(30)).unwrap();
        assert_eq!(report.status, Status::Completed);
    }
    let mut arrived = vec![0; pattern.len()];
    // SAFETY: inside the segment, which nothing writes any more.
    unsafe {
        there.base().copy_to_nonoverlapping(
            std::ptr::NonNull::from(&mut arrived[..]).cast(),
            arrived.len(),
        )
    };
    assert!(arrived == pattern);
    (bytes, initiator)
}

#[test]
fn what_is_no_transport_is_said_when_an_engine_starts() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("other.c");
    let start = |name: &str, library: &Path| {
        let config = format!(r#"{{ "transports": {{ "{name}": {{ "library": {library:?} }} }} }}"#);
        let loaded = Config::from_json(&config).map_err(|error| error.to_string());
        loaded.and_then(|config| {
            Engine::new(config)
                .map(drop)
                .map_err(|error| error.to_string())
        })
    };
    let said = |name: &str, text: &str| {
        std::fs::write(
            &source,
            format!("#include <polyrail_transport.h>\n{text}\n"),
        )
        .unwrap();
        // The loader knows a library by its file: each has one of its own.
        let own = tempfile::tempdir_in(folder.path()).unwrap().keep();
        start(name, &build(&own, &source, &[])).unwrap_err()
    };
    let entry = |fields: &str| {
        format!(
            "const polyrail_transport_table *polyrail_transport_entry(void);\n\
             const polyrail_transport_table *polyrail_transport_entry(void) {{\n\
             static const polyrail_transport_table table = {{ {fields} }}; return &table; }}"
        )
    };
    let whole = ".abi = POLYRAIL_TRANSPORT_ABI, .size = sizeof(polyrail_transport_table)";
    let error = said("mine", "int polyrail_nothing;");
    assert!(
        error.contains("transports/mine/library: ") && error.contains("is no transport"),
        "{error}"
    );
    let error = said("mine", &entry(".abi = 99"));
    assert!(
        error.contains("made for version 99 of the table"),
        "{error}"
    );
    let error = said("mine", &entry(".abi = POLYRAIL_TRANSPORT_ABI, .size = 8"));
    assert!(error.contains("its table says 8 bytes"), "{error}");
    let error = said("mine", &entry(&format!("{whole}, .name = \"a/b\"")));
    assert!(error.contains("\"a/b\" cannot name a transport"), "{error}");
    let error = said("mine", &entry(&format!("{whole}, .name = \"mine\"")));
    assert!(error.contains("its table has no create"), "{error}");
    let whole = build(folder.path(), &loopback(), &[]);
    let error = start("mine", &whole).unwrap_err();
    assert!(error.contains("is called loopback"), "{error}");
    let error = start("mine", Path::new("/no/such/library.so")).unwrap_err();
    assert!(error.contains("/no/such/library.so"), "{error}");
    let error = start("tcp", &whole).unwrap_err();
    assert!(
        error.contains("transports/tcp/library") && error.contains("is built in"),
        "{error}"
    );
    let error = start("a b", &whole).unwrap_err();
    assert!(error.contains("unknown key"), "{error}");
}
