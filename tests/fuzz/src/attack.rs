//! The attacks.

use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;

use polyrail_control::codec::{FRAME_BYTES_MAX, Frame, Purpose};
use polyrail_transport::memory::RegionKey;

use crate::attacker::Attacker;
use crate::inside;
use crate::mutate::{Chance, broken};
use crate::speech::{self, Request, is_fair};
use crate::wire::{Member, Wire};

/// Connections of one flood.
const FLOOD: usize = 60;

/// Between two bytes that drip.
const DRIP: Duration = Duration::from_millis(3);

/// One kind of attack.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    name: &'static str,
    /// Whether a session may be left behind.
    pub(crate) may_desert: bool,
    pub(crate) run: fn(&mut Attacker<'_>) -> io::Result<()>,
}

const fn stranger(name: &'static str, run: fn(&mut Attacker<'_>) -> io::Result<()>) -> Attack {
    Attack {
        name,
        may_desert: false,
        run,
    }
}

const fn member(name: &'static str, run: fn(&mut Attacker<'_>) -> io::Result<()>) -> Attack {
    Attack {
        name,
        may_desert: true,
        run,
    }
}

/// All there are.
pub(crate) const ALL: [Attack; 19] = [
    stranger("noise", noise),
    stranger("half open", half_open),
    stranger("flood", flood),
    stranger("huge length", huge_length),
    stranger("drip", drip),
    stranger("wrong join", wrong_join),
    member("broken handshake", broken_handshake),
    member("broken frames", broken_frames),
    member("odd frames", odd_frames),
    member("lane noise", lane_noise),
    member("lane requests", lane_requests),
    member("lanes against fences", lanes_against_fences),
    stranger("sessions", sessions),
    stranger("half a hello", half_a_hello),
    member("fences", fences),
    member("parcels", parcels),
    member("lanes held", lanes_held),
    member("mailboxes", inside::mailboxes),
    member("silence inside", inside::silence),
];

/// How often each was run, and how often to its end.
#[derive(Default)]
pub(crate) struct Tally([(u64, u64); ALL.len()]);

impl Tally {
    pub(crate) fn count(&mut self, index: usize, whole: bool) {
        self.0[index].0 += 1;
        self.0[index].1 += u64::from(whole);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, other) in self.0.iter_mut().zip(other.0) {
            sum.0 += other.0;
            sum.1 += other.1;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.0.iter().map(|(runs, _)| runs).sum();
        write!(f, "{total}")?;
        for (attack, (runs, whole)) in ALL.iter().zip(self.0) {
            write!(f, "; {} {runs} ({whole} to their end)", attack.name)?;
        }
        Ok(())
    }
}

/// Random bytes.
fn noise(it: &mut Attacker<'_>) -> io::Result<()> {
    let mut wire = Wire::open(it.port())?;
    let length = it.chance.below(4096) << it.chance.below(5);
    let mut bytes = it.chance.bytes(length);
    if it.chance.one_in(2) {
        // So that it is read beyond its first bytes.
        bytes.splice(0..0, speech::greeting(Purpose::Control));
    }
    wire.say(&bytes)?;
    wire.listen();
    it.leave(wire);
    Ok(())
}

/// Nothing, or the beginning of something.
fn half_open(it: &mut Attacker<'_>) -> io::Result<()> {
    let mut wire = Wire::open(it.port())?;
    let greeting = speech::greeting(Purpose::Lane);
    let length = it.chance.below(greeting.len() + 1);
    wire.say(&greeting[..length])?;
    it.hold(wire);
    Ok(())
}

/// Many connections at once.
fn flood(it: &mut Attacker<'_>) -> io::Result<()> {
    let wires: io::Result<Vec<Wire>> = (0..FLOOD).map(|_| Wire::open(it.port())).collect();
    let reset = it.chance.one_in(2);
    for wire in wires? {
        if reset { wire.reset() } else { drop(wire) }
    }
    Ok(())
}

/// A frame's length that is none, and less than it promises.
fn huge_length(it: &mut Attacker<'_>) -> io::Result<()> {
    let purpose = *it.chance.choose(&[Purpose::Control, Purpose::Lane]);
    let mut wire = Wire::open(it.port())?;
    let length = match it.chance.below(3) {
        0 => FRAME_BYTES_MAX as u32,
        1 => FRAME_BYTES_MAX as u32 + 1,
        _ => it.chance.awkward() as u32,
    };
    wire.say(&speech::greeting(purpose))?;
    wire.say(&length.to_le_bytes())?;
    let sent = it.chance.below(FRAME_BYTES_MAX);
    let body = it.chance.bytes(sent);
    wire.say(&body)?;
    wire.listen();
    it.leave(wire);
    Ok(())
}

/// What makes sense, byte by byte.
fn drip(it: &mut Attacker<'_>) -> io::Result<()> {
    let session = it.chance.key();
    let mut bytes = speech::greeting(Purpose::Lane);
    bytes.extend(speech::encoded(&speech::join(&mut it.chance, session)));
    let mut wire = Wire::open(it.port())?;
    for byte in bytes {
        wire.say(&[byte])?;
        thread::sleep(DRIP);
    }
    it.leave(wire);
    Ok(())
}

/// A lane of a session that is not there.
fn wrong_join(it: &mut Attacker<'_>) -> io::Result<()> {
    let mut wire = Wire::open(it.port())?;
    let session = it.chance.key();
    wire.say(&speech::greeting(Purpose::Lane))?;
    wire.say_frame(&speech::join(&mut it.chance, session))?;
    let length = it.chance.below(4096);
    let after = it.chance.bytes(length);
    wire.say(&after)?;
    wire.listen();
    it.leave(wire);
    Ok(())
}

/// A greeting and a first frame, spoilt.
fn broken_handshake(it: &mut Attacker<'_>) -> io::Result<()> {
    let purpose = *it.chance.choose(&[Purpose::Control, Purpose::Lane]);
    let session = it.chance.one_in(2).then(|| it.chance.key());
    let first = speech::hello(&mut it.chance, session);
    let pieces = vec![speech::greeting(purpose), speech::encoded(&first)];
    let bytes = broken(&mut it.chance, pieces);
    let mut wire = Wire::open(it.port())?;
    wire.say(&bytes)?;
    wire.listen();
    it.leave(wire);
    Ok(())
}

/// A conversation, spoilt.
fn broken_frames(it: &mut Attacker<'_>) -> io::Result<()> {
    let first = speech::hello(&mut it.chance, None);
    let mut pieces = vec![speech::greeting(Purpose::Control), speech::encoded(&first)];
    for _ in 0..it.chance.below(12) {
        let frame = speech::frame(&mut it.chance);
        pieces.push(speech::encoded(&frame));
    }
    // The beginning is good more often than not, so that what follows is read.
    let start = if it.chance.one_in(4) {
        Vec::new()
    } else {
        pieces.drain(..2).collect::<Vec<_>>().concat()
    };
    let bytes = [start, broken(&mut it.chance, pieces)].concat();
    if !is_fair(&bytes) {
        return Ok(());
    }
    let mut wire = Wire::open(it.port())?;
    for part in bytes.chunks(1 + it.chance.below(bytes.len().max(1))) {
        wire.say(part)?;
    }
    wire.listen();
    it.leave(wire);
    Ok(())
}

/// Frames that are whole, but not what anybody would say then.
fn odd_frames(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let mut member = Member::open(&mut it.chance, port)?;
    for number in 0..it.chance.below(300) as u64 {
        let frame = if it.chance.one_in(2) {
            // In order, so that they are taken until there is no room.
            let length = it.chance.below(1024);
            Frame::Notify {
                number: number + 1,
                body: it.chance.bytes(length),
            }
        } else {
            speech::frame(&mut it.chance)
        };
        member.wire.say_frame(&frame)?;
    }
    if it.chance.one_in(2) {
        member.wire.say_frame(&Frame::Goodbye)?;
    }
    it.leave(member.wire);
    Ok(())
}

/// A lane that is served, and then speaks nonsense.
fn lane_noise(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let member = Member::open(&mut it.chance, port)?;
    let port = it.port();
    let mut lane = member.lane(port, it.chance.awkward() as u32, 1)?;
    let requests = (0..1 + it.chance.below(8)).map(|_| request(&mut it.chance, &member).encode());
    let requests = requests.collect();
    let mut bytes = broken(&mut it.chance, requests);
    let length = it.chance.below(70_000);
    bytes.extend(it.chance.bytes(length));
    let said = lane.say(&bytes);
    it.leave(lane);
    it.leave(member.wire);
    said
}

/// Requests beyond what is there, too many of them, or with less behind them than they say.
fn lane_requests(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let member = Member::open(&mut it.chance, port)?;
    let port = it.port();
    let mut lane = member.lane(port, it.chance.below(4) as u32, 1)?;
    let greedy = it.chance.one_in(3);
    let mut said = Ok(());
    for sequence in 0..it.chance.below(600) as u32 {
        let request = Request {
            sequence,
            ..if greedy {
                whole_read(&member)
            } else {
                request(&mut it.chance, &member)
            }
        };
        let body = if request.read || request.length > 1 << 16 {
            Vec::new()
        } else {
            vec![7; request.length as usize]
        };
        said = lane.say(&[request.encode(), body].concat());
        if said.is_err() {
            break;
        }
    }
    it.leave(lane);
    it.leave(member.wire);
    said
}

/// Writes under way, and at the same time fences, and the same lane once more.
fn lanes_against_fences(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let mut member = Member::open(&mut it.chance, port)?;
    for epoch in 1..2 + it.chance.below(20) as u32 {
        let port = it.port();
        let mut lane = member.lane(port, 1, epoch)?;
        let write = Request {
            read: false,
            length: 1 << 20,
            sequence: 0,
            key: member.victim,
            offset: 0,
        };
        lane.say(&write.encode())?;
        let length = it.chance.below(1 << 16);
        lane.say(&vec![3; length])?;
        for _ in 0..1 + it.chance.below(4) {
            let epoch = epoch
                .wrapping_add(it.chance.below(3) as u32)
                .wrapping_sub(2);
            member.wire.say_frame(&Frame::Fence { lane: 1, epoch })?;
        }
        it.leave(lane);
    }
    it.leave(member.wire);
    Ok(())
}

/// Sessions that are begun and left at once.
fn sessions(it: &mut Attacker<'_>) -> io::Result<()> {
    let hello = speech::hello(&mut it.chance, None);
    let bytes = [speech::greeting(Purpose::Control), speech::encoded(&hello)].concat();
    for _ in 0..FLOOD {
        let mut wire = Wire::open(it.port())?;
        wire.say(&bytes)?;
        if it.chance.one_in(4) {
            wire.reset();
        }
    }
    Ok(())
}

/// A hello that is never finished, or one whose answer nobody reads.
fn half_a_hello(it: &mut Attacker<'_>) -> io::Result<()> {
    let hello = speech::encoded(&speech::hello(&mut it.chance, None));
    for _ in 0..10 {
        let mut wire = Wire::open(it.port())?;
        let length = it.chance.below(hello.len());
        wire.say(&speech::greeting(Purpose::Control))?;
        wire.say(&hello[..length])?;
        it.hold(wire);
    }
    Ok(())
}

/// Fences of lanes that never were.
fn fences(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let mut member = Member::open(&mut it.chance, port)?;
    let mut fences = (0..2_000).map(|lane| {
        let epoch = it.chance.below(1 << 20) as u32;
        Frame::Fence { lane, epoch }
    });
    let said = fences.try_for_each(|fence| member.wire.say_frame(&fence));
    it.leave(member.wire);
    said
}

/// Parcels that go on and never began, begin and never go on, or lie about their length, and arrivals of many tags.
fn parcels(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let mut member = Member::open(&mut it.chance, port)?;
    let mut said = Ok(());
    for number in 1..1 + it.chance.below(400) as u64 {
        let kind = it.chance.below(6) as u8;
        let mut body = vec![kind];
        match kind {
            1 => {
                let length = match it.chance.one_in(2) {
                    true => 1 << 20,
                    false => it.chance.awkward() as u32,
                };
                body.extend(length.to_le_bytes());
                body.extend(vec![5; 1_019]);
            }
            3 if !it.chance.one_in(8) => body.extend(it.chance.number().to_le_bytes()),
            _ => {
                let length = it.chance.below(1_023);
                body.extend(it.chance.bytes(length));
            }
        }
        said = member.wire.say_frame(&Frame::Notify { number, body });
        if said.is_err() {
            break;
        }
    }
    it.leave(member.wire);
    said
}

/// Lanes that are opened and never say anything.
fn lanes_held(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let member = Member::open(&mut it.chance, port)?;
    for number in 0..FLOOD as u32 {
        let port = it.port();
        let lane = member.lane(port, number, 1)?;
        it.hold(lane);
    }
    it.hold(member.wire);
    Ok(())
}

/// A read of all that the victim has.
fn whole_read(member: &Member) -> Request {
    Request {
        read: true,
        length: member.victim_bytes as u32,
        sequence: 0,
        key: member.victim,
        offset: 0,
    }
}

/// A request that is allowed, or one that is not.
fn request(chance: &mut Chance, member: &Member) -> Request {
    let good = Request {
        read: chance.one_in(2),
        length: 1 + chance.below(4096) as u32,
        sequence: chance.below(4) as u32,
        key: member.victim,
        offset: chance.below(1 << 20) as u64,
    };
    match chance.below(8) {
        0 => Request {
            key: RegionKey(chance.key()),
            ..good
        },
        1 => Request {
            offset: member.victim_bytes - 1,
            ..good
        },
        2 => Request {
            offset: chance.awkward(),
            ..good
        },
        3 => Request {
            length: chance.awkward() as u32,
            ..good
        },
        4 => Request {
            sequence: chance.awkward() as u32,
            ..good
        },
        _ => good,
    }
}
