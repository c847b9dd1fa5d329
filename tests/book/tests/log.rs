//! Whoever can reach a transport cannot fill the log: what its code says goes through `complain!` or `remark!`, which have a
//! limit, but for what is listed here.

use polyrail_tests_book::{root, sources};

const FOLDERS: [&str; 7] = ["shm", "cuda", "verbs", "tcp", "uring", "load", "transport"];

/// (file, words of the line, why nobody else decides how often it is written)
const WITHOUT_LIMIT: [(&str, &str, &str); 32] = [
    ("shm/src/copy_threads.rs", "one thread fewer", "once"),
    (
        "shm/src/copy_threads.rs",
        "panicked",
        "at the end, for each thread",
    ),
    ("shm/src/process.rs", "from its forks", "once, at the start"),
    ("shm/src/server.rs", "peers may still touch", "at the end"),
    (
        "cuda/src/endpoint.rs",
        "{error}",
        "once for each device and worker",
    ),
    (
        "cuda/src/gpus.rs",
        "cannot pin it",
        "for each region of the program's own",
    ),
    (
        "cuda/src/gpus.rs",
        "is not freed",
        "for each region of the program's own",
    ),
    (
        "cuda/src/ipc/server.rs",
        "a peer may still touch",
        "at the end",
    ),
    (
        "verbs/src/ffi/mod.rs",
        "if this process forks",
        "at the start",
    ),
    (
        "verbs/src/server.rs",
        "never tried on hardware",
        "at the start",
    ),
    (
        "verbs/src/services.rs",
        "it is not used",
        "once for each port, until it has been there again",
    ),
    (
        "verbs/src/services.rs",
        "is used from now on",
        "a device has come",
    ),
    ("verbs/src/service.rs", "panicked", "at the end"),
    (
        "verbs/src/service.rs",
        "the port is down",
        "somebody has pulled the cable",
    ),
    ("verbs/src/service.rs", "the port is active", "the same"),
    (
        "verbs/src/service.rs",
        "table of GIDs",
        "the administrator has changed an address",
    ),
    (
        "verbs/src/service.rs",
        "the device has failed",
        "once, until it is there again",
    ),
    (
        "verbs/src/service.rs",
        "the device is there again",
        "once, until it fails",
    ),
    (
        "uring/src/file.rs",
        "refuses direct reads",
        "once for each file of the program's own",
    ),
    (
        "uring/src/ring.rs",
        "keeps its memory and file until",
        "at the end of a worker",
    ),
    (
        "uring/src/ring.rs",
        "are kept for good",
        "at the end of a worker",
    ),
    (
        "uring/src/ring.rs",
        "has answered at last",
        "at the end of a worker",
    ),
    (
        "uring/src/threads.rs",
        "cannot start a thread",
        "once for each worker",
    ),
    (
        "uring/src/threads.rs",
        "keeps its memory and file\"",
        "at the end of a worker",
    ),
    (
        "load/src/host.rs",
        "{text}\"",
        "what is for who looks for a bug",
    ),
    ("load/src/host.rs", "were left out", "behind the limit"),
    (
        "transport/src/complaint.rs",
        "{left_out} lines",
        "this is the limit",
    ),
    (
        "transport/src/complaint.rs",
        "$($arg)+",
        "this is the limit",
    ),
    ("transport/src/mapping.rs", "is not shared with", "once"),
    ("transport/src/mapping.rs", "may only read", "once"),
    (
        "transport/src/service.rs",
        "no inbound lane is served",
        "at the end",
    ),
    ("transport/src/service.rs", "panicked", "at the end"),
];

/// Lines that go to the log at once, of all but tests: the macro and what is written.
fn lines(text: &str) -> Vec<&str> {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
    let macros = ["log::error!(", "log::warn!(", "log::info!(", "log::log!("];
    let starts = macros.iter().flat_map(|of| text.match_indices(of));
    let whole = |at: usize| text[at..].split_inclusive([';', '\n']);
    starts
        .filter(|(at, _)| {
            let before = text[..*at].rsplit('\n').next().unwrap();
            !before.trim_start().starts_with("//")
        })
        .map(|(at, _)| {
            let bytes: usize = whole(at).take(3).map(str::len).sum();
            &text[at..at + bytes]
        })
        .collect()
}

#[test]
fn who_reaches_a_transport_cannot_fill_the_log() {
    let shells = root().join("shells");
    let mut used = [0; WITHOUT_LIMIT.len()];
    let mut wrong = Vec::new();
    for folder in FOLDERS {
        for (path, text) in sources(&shells.join(folder).join("src")) {
            let name = path.strip_prefix(&shells).unwrap().to_str().unwrap();
            if name.contains("/tests") || name.contains("/stub") {
                continue;
            }
            for line in lines(&text) {
                let is_it =
                    |(file, words, _): &(&str, &str, &str)| *file == name && line.contains(words);
                match WITHOUT_LIMIT.iter().position(is_it) {
                    Some(at) => used[at] += 1,
                    None => wrong.push(format!("{name} writes without a limit: {line}")),
                }
            }
        }
    }
    let unused = WITHOUT_LIMIT
        .iter()
        .zip(used)
        .filter(|(_, used)| *used == 0);
    wrong.extend(unused.map(|((file, words, _), _)| format!("{file} has no {words:?} any more")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
