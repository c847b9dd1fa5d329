//! A cluster's key from the command line: one file on both hosts, and what happens without.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Ended, Target, finish, polyrail, run};

/// A configuration that names a new key, and what people tell the key by.
fn member(folder: &Path, name: &str) -> (String, String) {
    let key = folder.join(format!("{name}.key"));
    let made = run(&format!("keygen {}", key.display())).expect(0).stdout;
    let words: Vec<_> = made.split_whitespace().collect();
    assert_eq!(
        (words[0], words[2]),
        ("key", key.to_str().unwrap()),
        "{made}"
    );
    let config = folder.join(format!("{name}.json"));
    let text = format!(r#"{{ "security": {{ "key_file": "{}" }} }}"#, key.display());
    fs::write(&config, text).unwrap();
    (
        format!("--config {}", config.display()),
        words[1].to_owned(),
    )
}

const BENCH: &str = "bench --seconds 1 --block 64KiB --batch 4 --threads 1 --verify";

fn bench(target: &Target, flags: &str) -> Ended {
    let start = Instant::now();
    let ended = run(&format!("{BENCH} --target {} {flags}", target.address()));
    if ended.code == Some(3) {
        assert!(start.elapsed() < Duration::from_secs(8), "{ended:?}");
    }
    ended
}

#[test]
fn one_key_on_both_hosts_is_all_that_members_need() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, key) = member(folder.path(), "ours");
    let (theirs, other) = member(folder.path(), "theirs");
    assert_ne!(key, other);
    let (mut log, writer) = std::io::pipe().unwrap();
    let target = Target::start_with(&format!("--memory 8MiB {ours}"), writer.into(), "debug");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    bench(&target, &ours).expect(0);
    // Bytes go over TCP as well, whose lanes are told of by who is in.
    let tcp = folder.path().join("tcp.json");
    let text = fs::read_to_string(folder.path().join("ours.json")).unwrap();
    let text = text.replacen('{', r#"{ "transports": { "shm": { "enable": false } },"#, 1);
    fs::write(&tcp, text).unwrap();
    bench(&target, &format!("--config {}", tcp.display())).expect(0);
    bench(&target, &theirs)
        .expect(3)
        .names(&[&key, &other, "security/key_file"]);
    bench(&target, "")
        .expect(3)
        .names(&["cluster key", "security/key_file"]);
    bench(&target, &ours).expect(0);
    target.end(Signal::TERM).expect(0);
    // Both refusals are said here as well, and no secret is.
    let log = reader.join().unwrap();
    for part in ["it speaks in clear", "it holds another cluster key"] {
        assert!(log.contains(part), "\"{part}\" in {log}");
    }
    for name in ["ours.key", "theirs.key"] {
        let line = fs::read_to_string(folder.path().join(name)).unwrap();
        let secret = line.split_whitespace().nth(1).unwrap();
        assert_eq!(secret.len(), 64);
        assert!(!log.contains(&secret[..12]), "{log}");
    }
}

#[test]
fn a_key_at_one_end_only_is_said_at_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (member, _) = member(folder.path(), "ours");
    let (mut log, writer) = std::io::pipe().unwrap();
    let target = Target::start_with("--memory 8MiB", writer.into(), "warn");
    bench(&target, &member)
        .expect(3)
        .names(&["in clear", "security/key_file"]);
    bench(&target, "").expect(0);
    target.end(Signal::TERM).expect(0);
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    assert!(
        said.contains("it speaks TLS") && said.contains("security/key_file"),
        "{said}"
    );
}

#[test]
fn what_is_started_says_which_key_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let (member, key) = member(folder.path(), "ours");
    let line = |flags: &str| {
        let mut child = polyrail(&format!("serve --memory 1MiB --end-with-stdin {flags}"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdin.take());
        let said = finish(child, flags).expect(0).stdout;
        let lines: Vec<_> = said.lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with("listening "), "{said}");
        lines.last().unwrap().clone()
    };
    let with = format!("security key={key} control=tls lanes=clear, loopback only");
    let without = "security key=none control=clear lanes=clear, loopback only";
    assert_eq!(line(&member), with);
    assert_eq!(line(""), without);
    assert_eq!(
        line("--insecure"),
        "security key=none control=clear lanes=clear, insecure: anyone who reaches the port comes in"
    );
    assert!(
        run(&format!("topo {member}"))
            .expect(0)
            .stdout
            .contains(&with)
    );
    let json = run(&format!("topo --json {member}")).expect(0).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["security"], with);
    assert!(run("topo").expect(0).stdout.contains(without));
    // As the help of `keygen` and docs/security.md have it.
    let variable = "POLYRAIL_SECURITY__KEY_FILE";
    let child = polyrail("topo")
        .env(variable, folder.path().join("ours.key"))
        .spawn()
        .unwrap();
    assert!(finish(child, "topo").expect(0).stdout.contains(&with));
    let help = run("keygen --help").expect(0).stdout;
    assert!(help.contains(variable), "{help}");
    let page = include_str!("../../../../docs/security.md");
    assert!(page.contains(variable));
}

#[test]
fn who_has_read_the_first_line_may_hang_up() {
    let mut child = polyrail("serve --memory 1MiB --end-with-stdin")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    // Byte by byte: nothing behind the line is taken, and the pipe is closed at once.
    let mut last = [0];
    while last != *b"\n" {
        out.read_exact(&mut last).unwrap();
    }
    drop(out);
    drop(child.stdin.take());
    let ended = finish(child, "serve").expect(0);
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_key_file_that_cannot_be_trusted_is_an_error_that_says_what_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let (member, _) = member(folder.path(), "ours");
    let key = folder.path().join("ours.key");
    let before = fs::read_to_string(&key).unwrap();
    assert_eq!(
        fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );
    run(&format!("keygen {}", key.display()))
        .expect(2)
        .names(&["ours.key", "is not overwritten"]);
    assert_eq!(fs::read_to_string(&key).unwrap(), before);
    fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    run(&format!("serve --memory 1MiB {member}"))
        .expect(2)
        .names(&["ours.key", "0644", "0600", "chmod 600"]);
    let topo = run(&format!("topo {member}")).expect(0).stdout;
    assert!(topo.contains("0644") && topo.contains("0600"), "{topo}");
    fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&key, &before[..40]).unwrap();
    let ended = run(&format!("serve --memory 1MiB {member}"))
        .expect(2)
        .names(&["ours.key", "holds no key", "keygen"]);
    let secret = before.split_whitespace().nth(1).unwrap();
    assert!(!ended.stderr.contains(&secret[..8]), "{ended:?}");
    fs::remove_file(&key).unwrap();
    run(&format!("serve --memory 1MiB {member}"))
        .expect(3)
        .names(&["ours.key", "No such file"]);
}

#[test]
fn no_recording_has_the_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (member, _) = member(folder.path(), "ours");
    let target = Target::start(&format!("--memory 8MiB {member}"));
    let recordings = folder.path().join("recordings");
    bench(
        &target,
        &format!("{member} --record {}", recordings.display()),
    )
    .expect(0);
    let line = fs::read_to_string(folder.path().join("ours.key")).unwrap();
    let digits = line.split_whitespace().nth(1).unwrap().as_bytes();
    let value = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    let secret: Vec<_> = digits
        .chunks(2)
        .map(|pair| value(pair[0]) << 4 | value(pair[1]))
        .collect();
    let mut files = 0;
    for file in fs::read_dir(&recordings).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        assert!(bytes.len() > 100);
        for part in [&secret[..8], &digits[..16]] {
            assert!(!bytes.windows(part.len()).any(|window| window == part));
        }
        files += 1;
    }
    assert_eq!(files, 1);
}
