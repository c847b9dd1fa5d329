//! Attacks from the same host: over the socket at which shared memory is handed out, whose name a Welcome tells.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::ticket::{Entry, Nonce};
use polyrail_transport::{SessionId, packets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

use crate::attacker::Attacker;
use crate::mutate::Chance;
use crate::wire::Member;

/// The version of the messages, as `shells/shm/src/wire.rs` has it.
const VERSION: u8 = 7;

/// Mailboxes of one attack.
const MAILBOXES: usize = 8;

/// Messages of one lane.
const MESSAGES: usize = 40;

/// A number, as postcard writes it.
fn number(mut value: u64, to: &mut Vec<u8>) {
    while value > 0x7f {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// A lane's greeting. Behind a challenge it has a ticket, most of the time for just that lane.
fn hello(chance: &mut Chance, member: &Member, challenge: Option<Nonce>) -> Vec<u8> {
    let mut bytes = vec![if challenge.is_some() { 5 } else { 0 }, VERSION];
    bytes.extend(member.session);
    number(chance.awkward(), &mut bytes);
    bytes.extend(chance.key());
    let mut lane = None;
    if chance.one_in(8) {
        bytes.push(0);
    } else {
        let (name, epoch) = (chance.below(16) as u32, 1 + chance.below(8) as u32);
        bytes.push(1);
        number(name.into(), &mut bytes);
        number(epoch.into(), &mut bytes);
        lane = Some((LaneId(name), Epoch(epoch)));
    }
    if let (Some(challenge), Some(secret)) = (challenge, &member.secret) {
        let entry = Entry {
            transport: "shm",
            session: SessionId(member.session),
            lane,
        };
        if let Ok(mut ticket) = secret.ticket(&entry, challenge) {
            if chance.one_in(8) {
                ticket.proof.0[chance.below(32)] ^= 1;
            }
            bytes.extend(ticket.to_bytes());
        }
    }
    bytes
}

/// What a lane is to prove itself with, where there is a key.
fn challenge(member: &Member, socket: &OwnedFd) -> io::Result<Option<Nonce>> {
    if member.secret.is_none() {
        return Ok(None);
    }
    say(socket, &[4], None)?;
    let longest = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&longest))?;
    let mut bytes = [0; 64];
    let (_, length) = recv(socket, &mut bytes, RecvFlags::DONTWAIT)?;
    match bytes[..length] {
        [7, ref nonce @ ..] => Ok(nonce.try_into().map(Nonce).ok()),
        _ => Ok(None),
    }
}

/// What a lane says: maps what is there, or not, unmaps, offers, or makes no sense.
fn message(chance: &mut Chance, member: &Member) -> Vec<u8> {
    let mut bytes = Vec::new();
    match chance.below(8) {
        0..4 => {
            bytes.push(1);
            let unknown = chance.one_in(4);
            bytes.extend(if unknown {
                chance.key()
            } else {
                member.victim.0
            });
            number(chance.below(5_000) as u64, &mut bytes);
        }
        4 => {
            bytes.push(2);
            number(chance.below(5_000) as u64, &mut bytes);
        }
        5 | 6 => bytes.push(3),
        _ => {
            let length = chance.below(300);
            bytes = chance.bytes(length);
        }
    }
    bytes
}

/// A mailbox: whole or not, sealed or not, on huge pages, or with holes; or what is none at all.
fn mailbox(chance: &mut Chance) -> io::Result<OwnedFd> {
    if chance.one_in(8) {
        let (read, _) = io::pipe()?;
        return Ok(read.into());
    }
    let huge = match chance.one_in(4) {
        true => MemfdFlags::HUGETLB,
        false => MemfdFlags::empty(),
    };
    let file = rustix::fs::memfd_create("fuzz", huge | MemfdFlags::ALLOW_SEALING)?;
    let bytes = *chance.choose(&[0, 4096, 64 << 10, 2 << 20, 1 << 30]);
    rustix::fs::ftruncate(&file, bytes)?;
    if !chance.one_in(4) {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    }
    if huge.is_empty() && bytes > 0 && chance.one_in(2) {
        scribble(chance, &file)?;
    }
    Ok(file)
}

/// Anything in the first pages, so that offers and grants are what nobody would write.
fn scribble(chance: &mut Chance, file: &OwnedFd) -> io::Result<()> {
    let length = chance.below(4096);
    let bytes = chance.bytes(length);
    std::fs::File::from(file.try_clone()?).write_all(&bytes)
}

/// Takes pages away, or all of it.
fn spoil(chance: &mut Chance, file: &OwnedFd) {
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Whatever the seals forbid fails, and that is as good.
    let _ = match chance.one_in(2) {
        true => rustix::fs::fallocate(file, holes, 0, 64 << 10),
        false => rustix::fs::ftruncate(file, 0),
    };
    let _ = scribble(chance, file);
}

fn say(socket: &OwnedFd, bytes: &[u8], file: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Lanes over mailboxes that are no mailboxes, or that are spoilt while they are used.
pub(crate) fn mailboxes(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let member = Member::open(&mut it.chance, port)?;
    let name = member.inside.clone().ok_or(io::ErrorKind::NotFound)?;
    for _ in 0..MAILBOXES {
        let socket = packets::connect_to(&name)?;
        // A machine may have no huge pages to give.
        let Ok(mailbox) = mailbox(&mut it.chance) else {
            continue;
        };
        let challenge = challenge(&member, &socket)?;
        let hello = hello(&mut it.chance, &member, challenge);
        if say(&socket, &hello, Some(&mailbox)).is_err() {
            continue;
        }
        for _ in 0..it.chance.below(MESSAGES) {
            if it.chance.one_in(4) {
                spoil(&mut it.chance, &mailbox);
            }
            let message = message(&mut it.chance, &member);
            let surplus = it.chance.one_in(8).then_some(&mailbox);
            if say(&socket, &message, surplus).is_err() {
                break;
            }
        }
    }
    it.leave(member.wire);
    Ok(())
}

/// Connections that never greet, or only half.
pub(crate) fn silence(it: &mut Attacker<'_>) -> io::Result<()> {
    let port = it.port();
    let member = Member::open(&mut it.chance, port)?;
    let name = member.inside.clone().ok_or(io::ErrorKind::NotFound)?;
    for _ in 0..MAILBOXES {
        let socket = packets::connect_to(&name)?;
        let hello = hello(&mut it.chance, &member, None);
        let length = it.chance.below(hello.len());
        say(&socket, &hello[..length], None)?;
        it.hold_inside(socket);
    }
    it.leave(member.wire);
    Ok(())
}
