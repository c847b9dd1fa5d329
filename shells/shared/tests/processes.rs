//! Processes that publish their load, one of which is killed. This program is all of them: with [`FOLDER`] in its
//! environment it is a publisher, which does what it is told line by line.

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use polyrail_core::rail::diffusion::{Column, Diffusion, DiffusionConfig, WEIGHT_ONE, Weight};
use polyrail_core::time;
use polyrail_shared::host_now;
use polyrail_shared::load::{bury, device_name, join};

const FOLDER: &str = "POLYRAIL_TEST_FOLDER";
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

fn joined(folder: &Path) -> Diffusion<'static> {
    let config = DiffusionConfig {
        weight: Weight::new(WEIGHT_ONE).unwrap(),
        stale_after: time::Duration::from_millis(200),
    };
    join(folder, config).unwrap()
}

fn column(of: &Diffusion<'_>) -> Column {
    of.column(device_name("mlx5_0")).unwrap()
}

fn others(of: &Diffusion<'_>) -> u64 {
    let mut bytes = [0; 4];
    of.others(host_now(), &mut bytes);
    assert_eq!(bytes.iter().sum::<u64>(), bytes[usize::from(column(of).0)]);
    bytes[usize::from(column(of).0)]
}

/// Publishes each number that it reads, and says so.
fn publish_as_told(folder: &Path) {
    let own = joined(folder);
    let column = column(&own);
    for line in stdin().lines() {
        let bytes = line.unwrap().parse().unwrap();
        assert!(own.publish(host_now(), column, bytes));
        println!("{bytes}");
    }
    own.leave();
}

struct Publisher {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Publisher {
    fn start(folder: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            orders: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    fn publish(&mut self, bytes: u64) {
        writeln!(self.orders, "{bytes}").unwrap();
        assert_eq!(self.answers.next().unwrap().unwrap(), bytes.to_string());
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::yield_now();
    }
}

fn main() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return publish_as_told(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let own = joined(folder.path());
    let [mut first, mut second] = [(); 2].map(|()| Publisher::start(folder.path()));
    until("both are seen", || {
        first.publish(1_000);
        second.publish(30);
        others(&own) == 1_030
    });
    assert_eq!(own.record().holders().count(), 3);

    // Killed with bytes in flight: for a moment they count, then nobody has seen it for too long.
    first.process.kill().unwrap();
    let pid = first.process.id();
    until("the dead cast no load", || {
        second.publish(31);
        others(&own) == 31
    });
    let has_row = || {
        own.record()
            .holders()
            .any(|holder| holder.process.pid() == pid)
    };
    assert!(has_row(), "nobody has freed its row");

    // Nobody has waited for it yet: it is a zombie, whose number is not another's.
    until("the dead are buried", || bury(own.record()) == 1);
    assert!(!has_row());
    first.process.wait().unwrap();

    // Its row is another's, and what it left there is nobody's.
    let mut third = Publisher::start(folder.path());
    until("its heir is seen", || {
        third.publish(5);
        second.publish(30);
        others(&own) == 35
    });
    assert_eq!((own.record().holders().count(), bury(own.record())), (3, 0));

    // Who leaves in good order is gone at once.
    drop((second.orders, third.orders));
    assert!(second.process.wait().unwrap().success() && third.process.wait().unwrap().success());
    assert_eq!((own.record().holders().count(), others(&own)), (1, 0));
    println!("two processes published, one was killed: ok");
}
