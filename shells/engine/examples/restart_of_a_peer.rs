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
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Config, Engine, Op, OpenError, Request, SegmentId, Status, SubmitError,
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
    let engine = Engine::new(Config {
        listen: Some(listen),
        ..Config::named("target")
    })?;
    engine.allocate("mem", BYTES, Access::RemoteReadWrite)?;
    println!("{}", engine.listening().expect("it listens"));
    io::stdout().flush()?;
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn write_to_one_that_is_killed() -> Result<(), Box<dyn Error>> {
    let (mut target, at) = start("127.0.0.1:0")?;
    let address = format!("{at}/mem");
    let engine = Engine::new(Config::named("initiator"))?;
    let local = engine.allocate("here", BYTES, Access::Local)?;
    let mut remote = engine.open_segment(&address)?;

    let batch = write(&engine, local, remote)?;
    println!("before: {:?}", batch.wait(PATIENCE)?.status);

    target.kill()?;
    target.wait()?;
    // Either the submission is refused, or the batch ends so, whichever comes first.
    let lost = match write(&engine, local, remote) {
        Ok(batch) => batch.wait(PATIENCE)?.status,
        Err(SubmitError::PeerLost { .. }) => Status::PeerLost,
        Err(error) => return Err(error.into()),
    };
    println!("killed: {lost:?}");

    // Somebody starts it again, a little later.
    let again = thread::spawn(move || start(&at.to_string()).map_err(|error| error.to_string()));
    // What was opened before leads nowhere any more. The new process has new memory, which is opened anew.
    remote = open_when_it_is_back(&engine, &address)?;
    let batch = write(&engine, local, remote)?;
    println!("again: {:?}", batch.wait(PATIENCE)?.status);

    let (mut target, _) = again.join().expect("it did not panic")?;
    target.kill()?;
    target.wait()?;
    Ok(())
}

fn write(engine: &Engine, local: SegmentId, remote: SegmentId) -> Result<Batch, SubmitError> {
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    };
    engine.submit(&[request])
}

/// Opens a segment once its owner serves it, with a pause that grows between tries.
fn open_when_it_is_back(engine: &Engine, address: &str) -> Result<SegmentId, OpenError> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(10);
    loop {
        match engine.open_segment(address) {
            Ok(segment) => return Ok(segment),
            // The segment of a new process may come a moment after its port.
            Err(error @ OpenError::NoSuchSegment { .. }) if began.elapsed() > PATIENCE => {
                return Err(error);
            }
            Err(OpenError::NoSuchSegment { .. }) => {}
            Err(error) if error.is_usage() || began.elapsed() > PATIENCE => return Err(error),
            Err(_) => {}
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
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
