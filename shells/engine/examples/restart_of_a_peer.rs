//! A target is killed and started again, and the program that writes to it goes on.
//!
//! ```sh
//! cargo run --release -p polyrail --example restart_of_a_peer
//! ```

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use polyrail::{
    Access, Config, Engine, Hooks, Op, OpenTerms, PeerEvent, Request, Status, SubmitError,
};

const BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1) {
        Some(listen) => serve(listen.parse()?),
        None => write_to_one_that_is_killed(),
    }
}

/// The process that has the memory, until its standard input ends.
fn serve(listen: SocketAddr) -> Result<(), Box<dyn Error>> {
    let config = Config {
        listen: Some(listen),
        ..Config::named("target")
    };
    // Whoever is let in finds the segment.
    let hooks = Hooks {
        lets_in_later: true,
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks)?;
    engine.allocate("mem", BYTES, Access::RemoteReadWrite)?;
    engine.let_in();
    println!("{}", engine.listening().expect("it listens"));
    io::stdout().flush()?;
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn write_to_one_that_is_killed() -> Result<(), Box<dyn Error>> {
    let (mut target, at) = start("127.0.0.1:0")?;
    let engine = Engine::new(Config::named("initiator"))?;
    let local = engine.allocate("here", BYTES, Access::Local)?;
    // It follows its name, and waits for the peer if that is not there yet.
    let terms = OpenTerms {
        within: Some(PATIENCE),
        standing: true,
    };
    let remote = engine.open_segment_with(&format!("{at}/mem"), &terms)?;
    let mut transfer = engine.prepare_transfer(&[Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    }])?;
    println!("before: {:?}", transfer.post()?.wait(PATIENCE)?.status);

    target.kill()?;
    target.wait()?;
    // Either the post is refused, or the batch ends so, whichever comes first.
    let lost = match transfer.post() {
        Ok(batch) => batch.wait(PATIENCE)?.status,
        Err(SubmitError::PeerLost { .. }) => Status::PeerLost,
        Err(error) => return Err(error.into()),
    };
    println!("killed: {lost:?}");

    // Somebody starts it again, a little later. The new process has new memory, which the same segment leads to.
    let again = thread::spawn(move || start(&at.to_string()).map_err(|error| error.to_string()));
    let events = engine.peer_events();
    loop {
        match events.wait(PATIENCE)? {
            PeerEvent::Lost(peer) => println!("lost: {}", peer.name),
            PeerEvent::Changed(peer) => break println!("changed: {}", peer.name),
            other => return Err(format!("{other:?}").into()),
        }
    }
    println!("again: {:?}", transfer.post()?.wait(PATIENCE)?.status);

    let (mut target, _) = again.join().expect("it did not panic")?;
    target.kill()?;
    target.wait()?;
    Ok(())
}

/// A target in a process of its own, and where it listens.
fn start(listen: &str) -> Result<(Child, SocketAddr), Box<dyn Error>> {
    let mut child = Command::new(env::current_exe()?)
        .arg(listen)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
    Ok((child, line.trim().parse()?))
}
