//! A process that runs out of descriptors: a new segment is what fails first, in words, and never a connection.
//!
//! The limit is the process's, so this test has one of its own.

use std::time::{Duration, Instant};

use polyrail::{
    Access, Config, Engine, FileError, FileTerms, LimitsConfig, Op, RegisterError, Request, Status,
};
use rustix::process::{Resource, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(60);

fn soft() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap()
}

fn set_soft(most: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(most);
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn config(name: &str, descriptors: usize) -> Config {
    Config {
        workers: 1,
        limits: LimitsConfig {
            descriptors,
            ..LimitsConfig::default()
        },
        ..Config::named(name)
    }
}

#[test]
fn a_segment_is_what_finds_no_descriptor_and_connections_still_do() {
    // The soft limit is raised as far as is asked for, and as it may be; it is never lowered.
    set_soft(300);
    drop(Engine::new(config("raises", 700)).unwrap());
    assert_eq!(soft(), 700);
    drop(Engine::new(config("keeps", 0)).unwrap());
    assert_eq!(soft(), 700);

    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..config("target", 0)
    });
    let target = target.unwrap();
    let access = Access::RemoteReadWrite;
    let mut names = (0..).map(|number: u32| number.to_string());
    let full = names
        .find_map(|name| target.allocate(&name, 4096, access).err())
        .unwrap();
    let text = full.to_string();
    assert!(matches!(full, RegisterError::Full(_)), "{text}");
    let words = ["700 descriptors", "limits/descriptors", "ulimit -Hn", "87"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    let opened = target.open_file(file.path(), &FileTerms::default());
    assert!(matches!(opened, Err(FileError::Full(_))), "{opened:?}");

    // Others still come, over both transports, and memory of their own needs no descriptor.
    for transport in ["tcp", "shm"] {
        let engine = Engine::new(config("initiator", 0).without(transport)).unwrap();
        let local = engine.allocate("here", 4096, Access::Local).unwrap();
        let address = format!("{}/7", target.listening().unwrap());
        let remote = engine.open_segment(&address).unwrap();
        let batch = engine.submit(&[Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: 4096,
        }]);
        let ended = batch.unwrap().wait(PATIENCE).unwrap();
        assert_eq!(ended.status, Status::Completed, "without {transport}");
    }
    target
        .unregister(target.local_segment("7").unwrap())
        .unwrap();
    // Its descriptor is closed once the worker has let go of it.
    let until = Instant::now() + PATIENCE;
    while target.allocate("7", 4096, access).is_err() {
        assert!(Instant::now() < until, "there is room again");
        std::thread::yield_now();
    }
}
