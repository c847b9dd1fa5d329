//! What has arrived on a lane and was not yet understood.

use std::net::TcpStream;

use crate::sys::{self, Halt, Range};

/// A small work fits into it with its header, so it takes one call.
const INBOX_BYTES: usize = 8 << 10;

/// What is received of what follows a payload: small enough that few bytes of the next payload take the
/// detour through here, large enough for dozens of answers.
const AFTER_BYTES: usize = 512;

/// How much [`Inbox::discard`] throws away at a time.
const DISCARD_BYTES: usize = 16 << 10;

/// Receives headers, several at once, and payloads, straight into memory as far as they did not arrive
/// together with a header.
///
/// Calls that receive take a budget of bytes and lower it. A short receive means that the socket is empty,
/// which ends the turn too: it lowers the budget to 0 instead of asking again.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Of no length until something has come: a lane that never says anything costs nothing.
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Box::default(),
            start: 0,
            end: 0,
        }
    }

    /// Takes a header, once it is whole.
    pub(crate) fn header<const HEADER: usize>(&mut self) -> Option<[u8; HEADER]> {
        let header = *self.bytes[self.start..self.end].first_chunk::<HEADER>()?;
        self.start += HEADER;
        Some(header)
    }

    fn make_room(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; INBOX_BYTES].into_boxed_slice();
        }
    }

    /// Receives towards a header.
    pub(crate) fn fill(&mut self, stream: &TcpStream, budget: &mut usize) -> Result<(), Halt> {
        if *budget == 0 {
            return Err(Halt::WouldBlock);
        }
        self.make_room();
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let asked = INBOX_BYTES - self.end;
        let received = sys::receive_own(stream, &mut self.bytes[self.end..])?;
        self.end += received;
        *budget = rest(*budget, asked, received);
        Ok(())
    }

    /// Whether nothing waits to be understood.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Receives towards a header, and the payload that most likely follows it to where that belongs. Gives
    /// the bytes of payload that came. Only for an empty inbox.
    pub(crate) fn fill_ahead<const HEADER: usize>(
        &mut self,
        stream: &TcpStream,
        range: Range<'_>,
        budget: &mut usize,
    ) -> Result<u32, Halt> {
        if *budget == 0 {
            return Err(Halt::WouldBlock);
        }
        let length = range.length.min(*budget as u32);
        let after = if length == range.length {
            AFTER_BYTES
        } else {
            0
        };
        self.make_room();
        let (before, rest) = self.bytes.split_at_mut(HEADER);
        let range = Range { length, ..range };
        let received = sys::receive(stream, before, range, &mut rest[..after])?;
        *budget = self::rest(*budget, HEADER + length as usize + after, received);
        let payload = received.saturating_sub(HEADER).min(length as usize);
        (self.start, self.end) = (0, received - payload);
        Ok(payload as u32)
    }

    /// Moves payload to where it belongs. Gives the bytes moved, at least 1.
    pub(crate) fn payload(
        &mut self,
        stream: &TcpStream,
        range: Range<'_>,
        budget: &mut usize,
    ) -> Result<u32, Halt> {
        let buffered = &self.bytes[self.start..self.end];
        if !buffered.is_empty() {
            let here = buffered.len().min(range.length as usize);
            sys::copy(&buffered[..here], range.region, range.offset)?;
            self.start += here;
            return Ok(here as u32);
        }
        if *budget == 0 {
            return Err(Halt::WouldBlock);
        }
        self.make_room();
        // What follows a payload that is received whole is the next header.
        let length = range.length.min(*budget as u32);
        let whole = length == range.length;
        let after = if whole { AFTER_BYTES } else { 0 };
        let received = sys::receive(
            stream,
            &mut [],
            Range { length, ..range },
            &mut self.bytes[..after],
        )?;
        *budget = rest(*budget, length as usize + after, received);
        let here = received.min(length as usize);
        (self.start, self.end) = (0, received - here);
        Ok(here as u32)
    }

    /// Throws away what has arrived and what arrives.
    pub(crate) fn discard(&mut self, stream: &TcpStream, budget: &mut usize) -> Result<(), Halt> {
        (self.start, self.end) = (0, 0);
        if *budget == 0 {
            return Err(Halt::WouldBlock);
        }
        let mut bytes = [0; DISCARD_BYTES];
        let received = sys::receive_own(stream, &mut bytes)?;
        *budget = rest(*budget, DISCARD_BYTES, received);
        Ok(())
    }
}

fn rest(budget: usize, asked: usize, received: usize) -> usize {
    if received < asked {
        0
    } else {
        budget.saturating_sub(received)
    }
}
