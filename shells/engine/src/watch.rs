//! The addresses of rails and the devices of transports, as they come and go.
//!
//! A thread hears from the kernel that there may be other addresses, looks at all of them, and tells the workers which of the
//! engine's are gone and which are there again. It decides nothing: core pauses rails and looks at them anew. Of devices the kernel
//! tells not everybody, so the thread has transports look for them once a second.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_control::plane::Rails;
use polyrail_core::plan::PLAN_RAILS_MAX;
use polyrail_transport::complain;
use rustix::event::{EventfdFlags, eventfd};

use crate::engine::Engine;
use crate::lock::lock;
use crate::machine::{Changes, Machine, Seen};
use crate::post::Command;
use crate::thread::Thread;

/// How often transports look for devices that have come.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The thread that follows addresses and devices, if there is one.
#[derive(Default)]
pub(crate) struct Watch {
    thread: Mutex<Option<(Thread, Arc<OwnedFd>)>>,
}

impl Watch {
    /// Follows no more.
    pub(crate) fn stop(&self) {
        if let Some((_, stop)) = &*lock(&self.thread) {
            // It fails only if the counter is full, and then it is readable anyway.
            let _ = rustix::io::write(&**stop, &1_u64.to_ne_bytes());
        }
    }

    /// Waits for the thread.
    pub(crate) fn join(&self) {
        if let Some((thread, _)) = lock(&self.thread).take() {
            thread.join();
        }
    }
}

impl Engine {
    /// Follows addresses and devices from now on. Has told the workers how addresses stand when it returns.
    pub(crate) fn watch(&self, mut changes: Changes) -> io::Result<()> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = stop.clone();
        let mut gone = BTreeSet::new();
        if self.look_at_addresses(&mut changes, &mut gone)? {
            self.tell_of_rails();
        }
        let engine = self.downgrade();
        // Not the engine: whoever drops that waits for its end, and that is not to be this thread.
        let catalog = self.inner.transports.clone();
        let longest = catalog.has_devices().then_some(LOOK_INTERVAL);
        let follow = move || {
            loop {
                let has_changed = match changes.wait(stopped.as_fd(), longest)? {
                    Seen::Changes => true,
                    Seen::Nothing => false,
                    Seen::Stop => return Ok(()),
                };
                let more = catalog.look_for_devices(has_changed);
                if !has_changed && !more {
                    continue;
                }
                let Some(engine) = engine.upgrade().map(Self::from_inner) else {
                    return Ok::<_, io::Error>(());
                };
                engine.follow(has_changed, more, &mut changes, &mut gone);
            }
        };
        let thread = Thread::start("polyrail-watch".into(), move || {
            let why = match catch_unwind(AssertUnwindSafe(follow)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "its thread has panicked".into(),
            };
            log::error!("addresses that come and go are not seen any more: {why}");
        })?;
        *lock(&self.inner.watch.thread) = Some((thread, stop));
        Ok(())
    }

    /// Looks at addresses, if they have changed; `more`: transports run at more of them.
    fn follow(
        &self,
        has_changed: bool,
        mut more: bool,
        changes: &mut Changes,
        gone: &mut BTreeSet<IpAddr>,
    ) {
        if has_changed {
            match self.look_at_addresses(changes, gone) {
                Ok(has_come) => more |= has_come,
                Err(error) => log::warn!("cannot list this machine's addresses: {error}"),
            }
        }
        if more {
            self.tell_of_rails();
        }
    }

    /// Takes those of these addresses for rails that the configuration asks for, as far as there is room. Whether there are
    /// such.
    fn find_rails(&self, usable: &BTreeSet<IpAddr>) -> bool {
        let inner = &self.inner;
        let mut peers = lock(&inner.sessions.peers);
        let locals = peers.locals();
        let is_new =
            |address: &&IpAddr| inner.config.finds_rail(address) && !locals.contains(address);
        let room = PLAN_RAILS_MAX.saturating_sub(locals.len());
        let new: Vec<_> = usable.iter().filter(is_new).take(room).copied().collect();
        peers.add_locals(&new);
        drop(peers);
        for address in &new {
            log::info!("{address} has come: it is a rail from now on");
        }
        !new.is_empty()
    }

    /// Tells peers what the rails of this engine are now, and looks whether there are more to them.
    pub(crate) fn tell_of_rails(&self) {
        let inner = &self.inner;
        let locals = lock(&inner.sessions.peers).locals().to_vec();
        let machine = Machine::with(locals.clone());
        let facts = locals.iter().map(|local| machine.rail_fact(*local));
        let facts = facts.collect();
        if let Some(listening) = inner.sessions.listening {
            let port = listening.port();
            let addresses = locals.iter().map(|local| SocketAddr::new(*local, port));
            inner.sessions.plane.announce(Rails {
                addresses: addresses.collect(),
                facts,
                transports: inner.transports.offers(&locals),
            });
        }
        let mut peers = lock(&inner.sessions.peers);
        peers.set_machine(machine);
        let ids = peers.ids();
        drop(peers);
        ids.into_iter().for_each(|id| self.look_at_rails(id));
    }

    /// Tells the workers of the rails' addresses that are `gone` now, and those that were and are there again. Whether some have
    /// come.
    fn look_at_addresses(
        &self,
        changes: &mut Changes,
        gone: &mut BTreeSet<IpAddr>,
    ) -> io::Result<bool> {
        let named = lock(&self.inner.sessions.peers).locals().to_vec();
        let usable = (changes.usable)(&named)?;
        let mut has_come = self.find_rails(&usable);
        let locals = lock(&self.inner.sessions.peers).locals().to_vec();
        for address in locals {
            let is_there = usable.contains(&address);
            let is_news = match is_there {
                true => gone.remove(&address),
                false => gone.insert(address),
            };
            if !is_news {
                continue;
            }
            match is_there {
                true => complain!("{address} is there: rails from it are used"),
                false => complain!(
                    "{address} is not there: no interface that is up has it; rails from it are paused until one has"
                ),
            }
            has_come |= is_there;
            self.inner
                .workers
                .tell(|| Command::Address(address, is_there));
        }
        Ok(has_come)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Instant;

    use polyrail_core::rail::health::RailState;
    use polyrail_core::report::Status;
    use polyrail_core::work::Op;
    use polyrail_transport::memory::Access;

    use polyrail_core::topology::RailMap;

    use crate::config::Config;
    use crate::engine::RailStatus;
    use crate::request::Request;
    use crate::segments::SegmentId;

    const BYTES: u64 = 32 << 20;

    /// A machine whose addresses a test says.
    #[derive(Clone)]
    struct Said {
        usable: Arc<Mutex<BTreeSet<IpAddr>>>,
        told: Arc<OwnedFd>,
    }

    impl Said {
        fn new(hosts: &[u8]) -> Self {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let usable = hosts.iter().map(|host| address(*host)).collect();
            Self {
                usable: Arc::new(Mutex::new(usable)),
                told: Arc::new(eventfd(0, flags).unwrap()),
            }
        }

        fn say(&self, hosts: &[u8]) {
            *lock(&self.usable) = hosts.iter().map(|host| address(*host)).collect();
            rustix::io::write(&*self.told, &1_u64.to_ne_bytes()).unwrap();
        }

        fn changes(&self) -> Changes {
            let usable = self.usable.clone();
            Changes {
                told: self.told.try_clone().unwrap(),
                usable: Box::new(move |_| Ok(lock(&usable).clone())),
            }
        }
    }

    fn address(host: u8) -> IpAddr {
        [127, 0, 0, host].into()
    }

    #[track_caller]
    fn until(what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
            std::thread::yield_now();
        }
    }

    #[track_caller]
    fn write(engine: &Engine, local: SegmentId, remote: SegmentId) {
        let request = Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: BYTES,
        };
        let batch = engine.submit(&[request]).unwrap();
        let report = batch.wait(Duration::from_secs(20)).unwrap();
        assert_eq!(report.status, Status::Completed);
    }

    #[test]
    fn rails_from_an_address_that_is_gone_are_paused_until_it_is_there() {
        paused_until_it_is_there(Config::named("one of two").without("shm"));
        // Where TCP is the only transport it was not told.
        let only = ["shm", "uring", "pread", "verbs"].into_iter();
        let only = only.fold(Config::named("one of two"), Config::without);
        paused_until_it_is_there(only);
    }

    #[track_caller]
    fn paused_until_it_is_there(like: Config) {
        let config = || Config {
            rails: vec![address(1), address(2)],
            workers: 1,
            ..like.clone()
        };
        let target = Engine::with_hooks(
            Config {
                listen: Some((address(1), 0).into()),
                ..config()
            },
            Default::default(),
        );
        let target = target.unwrap();
        target
            .allocate("mem", BYTES, Access::RemoteReadWrite)
            .unwrap();
        let machine = crate::machine::Machine::this(&config());
        let engine = Engine::on(machine, config(), Default::default()).unwrap();
        let said = Said::new(&[1]);
        engine.watch(said.changes()).unwrap();
        let at = target.listening().unwrap();
        let local = engine.allocate("here", BYTES, Access::Local).unwrap();
        let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
        let write = || write(&engine, local, remote);
        let second = || -> RailStatus { engine.rails()[1].clone() };
        let is_out = || second().state != RailState::Healthy;
        // It is not there when the engine starts; then it comes, goes, and comes back.
        for _ in 0..2 {
            let before = second().bytes;
            write();
            until("the rail is out", is_out);
            write();
            assert_eq!(second().bytes, before, "{:?}", engine.rails());
            said.say(&[1, 2]);
            until("the rail is back", || !is_out());
            until("it carries its part", || {
                write();
                second().bytes > before
            });
            said.say(&[1]);
            until("the rail is out again", is_out);
            // What it had at that moment has ended.
            write();
        }
    }

    #[test]
    fn addresses_that_come_later_are_rails_at_both_ends() {
        let config = |name: &str| Config {
            rails_within: vec!["127.0.0.0/8".parse().unwrap()],
            rail_map: RailMap::Nearest,
            insecure: true,
            workers: 1,
            ..Config::named(name).without("shm")
        };
        let start = |config: Config, said: &Said| {
            let machine = Machine::this(&config);
            let engine = Engine::on(machine, config, Default::default()).unwrap();
            engine.watch(said.changes()).unwrap();
            engine
        };
        let there = Said::new(&[1]);
        let target = Config {
            listen: Some("0.0.0.0:0".parse().unwrap()),
            ..config("target")
        };
        let target = start(target, &there);
        let access = Access::RemoteReadWrite;
        target.allocate("mem", BYTES, access).unwrap();
        let port = target.listening().unwrap().port();
        let here = Said::new(&[1]);
        let engine = start(config("initiator"), &here);
        let open = |engine: &Engine| {
            let local = engine.allocate("here", BYTES, Access::Local).unwrap();
            let remote = engine
                .open_segment(&format!("127.0.0.1:{port}/mem"))
                .unwrap();
            (local, remote)
        };
        let (local, remote) = open(&engine);
        let carries = |name: &str| {
            write(&engine, local, remote);
            let mut rails = engine.rails().into_iter();
            rails.any(|rail| rail.name == name && !rail.is_spare && rail.bytes > 0)
        };
        assert!(carries("tcp:127.0.0.1>127.0.0.1"));
        assert_eq!(engine.rails().len(), 1);
        there.say(&[1, 3]);
        until("the peer's is used", || carries("tcp:127.0.0.1>127.0.0.3"));
        here.say(&[1, 2]);
        until("ours is used", || {
            carries("tcp:127.0.0.2>127.0.0.1") || carries("tcp:127.0.0.2>127.0.0.3")
        });
        // Who comes now finds all of them.
        let late = start(config("late"), &here);
        let (local, remote) = open(&late);
        write(&late, local, remote);
        assert!(late.rails().len() >= 2, "{:?}", late.rails());
        drop(late);
        // Those that have come and go are paused like others.
        here.say(&[1]);
        let of_ours = || {
            let rails = engine.rails().into_iter();
            rails.filter(|rail| rail.name.starts_with("tcp:127.0.0.2>") && !rail.is_spare)
        };
        until("they are out", || {
            of_ours().all(|rail| rail.state != RailState::Healthy)
        });
    }
}
