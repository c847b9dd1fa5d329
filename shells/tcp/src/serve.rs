//! An inbound lane, seen from the target: requests in, answers out.

use std::collections::VecDeque;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use polyrail_core::work::Op;
use polyrail_transport::memory::{Region, RegionTable, TrustDomain};
use rustix::event::epoll::EventFlags;

use crate::inbox::Inbox;
use crate::sys::{self, Halt, MESSAGES_MAX, Message, Range};
use crate::wire::{ANSWER_BYTES, Answer, BadField, REQUEST_BYTES, Request, Status};
use crate::{LOOKS_SPINNING, WORK_BYTES_MAX, WORKS_MAX, turn_bytes};

/// Why an inbound lane is served no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The connection ended.
    Over,
    /// A header made no sense.
    Protocol(BadField),
    /// Memory was withdrawn in the middle of a read, when there is no way left to say so.
    Withdrawn,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over => write!(f, "connection over"),
            Self::Protocol(field) => write!(f, "request makes no sense: {field}"),
            Self::Withdrawn => write!(f, "memory withdrawn while it was being read"),
        }
    }
}

/// A write whose bytes are arriving.
#[derive(Debug)]
struct Incoming {
    region: Arc<Region>,
    request: Request,
    arrived: u32,
}

/// An answer that the socket has not taken whole; for a read that is carried out, with its source.
#[derive(Debug)]
struct Outgoing {
    answer: Answer,
    source: Option<(Arc<Region>, u64)>,
}

impl Outgoing {
    fn bytes(&self) -> usize {
        match self.source {
            Some(_) => ANSWER_BYTES + self.answer.length as usize,
            None => ANSWER_BYTES,
        }
    }
}

/// An inbound lane that is served.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// Whose regions it reaches.
    domain: TrustDomain,
    inbox: Inbox,
    incoming: Option<Incoming>,
    outgoing: VecDeque<Outgoing>,
    /// How much of the first one the socket took.
    sent_bytes: usize,
    /// Works received whole, which is the next one's sequence number.
    received: u32,
    /// A work was refused. What still comes is thrown away until the initiator hangs up, because closing
    /// first could overtake the answer.
    refused: bool,
    /// The initiator spins, says its last request.
    spinning: bool,
}

impl Served {
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr, domain: TrustDomain) -> Self {
        Self {
            stream,
            peer,
            domain,
            inbox: Inbox::new(),
            incoming: None,
            outgoing: VecDeque::new(),
            sent_bytes: 0,
            received: 0,
            refused: false,
            spinning: false,
        }
    }

    /// Works that have come whole, in order from the first: writes are in memory. Whether a read has come back, its
    /// initiator knows; behind one that was refused nothing counts.
    pub(crate) fn delivered(&self) -> u32 {
        self.received
    }

    /// Whether its initiator spins while it waits, so that more is to be expected soon.
    pub(crate) fn is_spinning(&self) -> bool {
        self.spinning
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> EventFlags {
        match (self.is_full(), self.outgoing.is_empty()) {
            (true, _) => EventFlags::OUT,
            (false, true) => EventFlags::IN,
            (false, false) => EventFlags::IN | EventFlags::OUT,
        }
    }

    /// Carries out what has arrived and answers it, as far as the socket lets it and not much more than
    /// [`turn_bytes`] each way. Whether anything moved.
    pub(crate) fn turn(&mut self, regions: &dyn RegionTable) -> Result<bool, End> {
        let most = turn_bytes(self.spinning);
        let mut budget = most;
        let mut moved = false;
        let all_sent = self.outgoing.is_empty();
        let mut looks = if self.spinning && all_sent {
            LOOKS_SPINNING
        } else {
            1
        };
        loop {
            self.receive(regions, &mut budget, &mut looks)?;
            let full = self.is_full();
            moved |= self.send(most)?;
            // Requests may have waited in the inbox for room, where epoll does not see them.
            if !full || self.is_full() {
                return Ok(moved || budget < most);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.outgoing.len() >= WORKS_MAX.into()
    }

    fn receive(
        &mut self,
        regions: &dyn RegionTable,
        budget: &mut usize,
        looks: &mut u32,
    ) -> Result<(), End> {
        let most = *budget;
        while !self.is_full() {
            let halted = if self.refused {
                self.inbox.discard(&self.stream, budget).err()
            } else if let Some(incoming) = self.incoming.take() {
                self.write(incoming, budget).err()
            } else if let Some(header) = self.inbox.header::<REQUEST_BYTES>() {
                let request = Request::decode(&header).map_err(End::Protocol)?;
                self.handle_request(request, regions)?;
                None
            } else {
                self.inbox.fill(&self.stream, budget).err()
            };
            match halted {
                None => {}
                Some(Halt::WouldBlock) => {
                    *looks = looks.saturating_sub(1);
                    if *looks == 0 || *budget < most {
                        return Ok(());
                    }
                }
                Some(Halt::Over | Halt::Memory) => return Err(End::Over),
            }
        }
        Ok(())
    }

    fn handle_request(&mut self, request: Request, regions: &dyn RegionTable) -> Result<(), End> {
        self.spinning = request.spinning;
        let bad = |name, value: u32| {
            let value = value.into();
            Err(End::Protocol(BadField { name, value }))
        };
        if request.length == 0 || request.length > WORK_BYTES_MAX {
            return bad("length", request.length);
        }
        if request.sequence != self.received {
            return bad("sequence", request.sequence);
        }
        let found = regions.find(&request.key, self.domain);
        let Some(region) = found.filter(|region| allows(region, &request)) else {
            self.refuse(request);
            return Ok(());
        };
        match request.op {
            Op::Write => {
                self.incoming = Some(Incoming {
                    region,
                    request,
                    arrived: 0,
                });
            }
            Op::Read => self.finish(request, Some((region, request.offset))),
        }
        Ok(())
    }

    /// Receives bytes of a write. Memory that was withdrawn is refused, even in the middle.
    fn write(&mut self, mut incoming: Incoming, budget: &mut usize) -> Result<(), Halt> {
        let Incoming {
            region,
            request,
            arrived,
        } = &mut incoming;
        let range = Range {
            region,
            offset: request.offset + u64::from(*arrived),
            length: request.length - *arrived,
        };
        match self.inbox.payload(&self.stream, range, budget) {
            Ok(bytes) => *arrived += bytes,
            Err(Halt::Memory) => {
                self.refuse(*request);
                return Ok(());
            }
            Err(halt) => {
                self.incoming = Some(incoming);
                return Err(halt);
            }
        }
        if *arrived == request.length {
            self.finish(*request, None);
        } else {
            self.incoming = Some(incoming);
        }
        Ok(())
    }

    fn finish(&mut self, request: Request, source: Option<(Arc<Region>, u64)>) {
        self.answer(request, Status::Done, source);
        self.received = self.received.wrapping_add(1);
    }

    fn refuse(&mut self, request: Request) {
        self.answer(request, Status::NotAllowed, None);
        self.refused = true;
    }

    fn answer(&mut self, request: Request, status: Status, source: Option<(Arc<Region>, u64)>) {
        let answer = Answer {
            op: request.op,
            status,
            length: request.length,
            sequence: request.sequence,
        };
        self.outgoing.push_back(Outgoing { answer, source });
    }

    /// Hands answers to the socket, not much more than `most` bytes. Whether it took any.
    fn send(&mut self, most: usize) -> Result<bool, End> {
        let mut sent = 0;
        while !self.outgoing.is_empty() && sent < most {
            let mut messages = heapless::Vec::<Message<'_, ANSWER_BYTES>, MESSAGES_MAX>::new();
            for Outgoing { answer, source } in &self.outgoing {
                let message = Message {
                    header: answer.encode(),
                    payload: source.as_ref().map(|(region, offset)| Range {
                        region,
                        offset: *offset,
                        length: answer.length,
                    }),
                };
                if messages.push(message).is_err() {
                    break;
                }
            }
            let moved = sys::send(&self.stream, &messages, self.sent_bytes);
            drop(messages);
            let bytes = match moved {
                Ok(bytes) => bytes,
                Err(Halt::WouldBlock) => break,
                Err(Halt::Over) => return Err(End::Over),
                Err(Halt::Memory) => return self.withdraw().map(|()| true),
            };
            self.handle_sent(bytes);
            sent += bytes;
        }
        Ok(sent > 0)
    }

    fn handle_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        while let Some(first) = self.outgoing.front()
            && self.sent_bytes >= first.bytes()
        {
            self.sent_bytes -= first.bytes();
            self.outgoing.pop_front();
        }
    }

    /// The source of the first answer was withdrawn. If nothing of that answer is out, it can still say so;
    /// those after it are forgotten.
    fn withdraw(&mut self) -> Result<(), End> {
        let first = self.outgoing.front().filter(|_| self.sent_bytes == 0);
        let answer = first.ok_or(End::Withdrawn)?.answer;
        self.outgoing.clear();
        self.incoming = None;
        self.received = answer.sequence;
        self.refused = true;
        self.outgoing.push_back(Outgoing {
            answer: Answer {
                status: Status::NotAllowed,
                ..answer
            },
            source: None,
        });
        Ok(())
    }
}

fn allows(region: &Region, request: &Request) -> bool {
    region.access().allows(request.op) && region.contains(request.offset, request.length.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use polyrail_transport::memory::{Access, RegionKey};

    use super::*;

    struct One(Arc<Region>);

    impl RegionTable for One {
        fn find(&self, _: &RegionKey, _: TrustDomain) -> Option<Arc<Region>> {
            Some(self.0.clone())
        }
    }

    #[test]
    fn the_count_of_works_comes_round_like_their_numbers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut initiator = TcpStream::connect(address).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let table = One(Arc::new(
            Region::allocate(4096, Access::RemoteReadWrite).unwrap(),
        ));
        let mut served = Served::new(stream, peer, TrustDomain::COMMON);
        served.received = u32::MAX - 1;
        for (number, delivered) in [(u32::MAX - 1, u32::MAX), (u32::MAX, 0), (0, 1), (1, 2)] {
            let request = Request {
                op: Op::Write,
                spinning: false,
                length: 10,
                sequence: number,
                key: table.0.key(),
                offset: 0,
            };
            initiator.write_all(&request.encode()).unwrap();
            // Whatever was sent is there, and of the work a part.
            initiator.write_all(&[1; 9]).unwrap();
            while served.incoming.as_ref().is_none_or(|work| work.arrived < 9) {
                served.turn(&table).unwrap();
            }
            assert_eq!(served.delivered(), number, "not whole");
            initiator.write_all(&[1]).unwrap();
            while served.delivered() == number {
                served.turn(&table).unwrap();
            }
            assert_eq!(served.delivered(), delivered);
            let mut answer = [0; ANSWER_BYTES];
            initiator.read_exact(&mut answer).unwrap();
            assert_eq!(Answer::decode(&answer).unwrap().sequence, number);
        }
    }
}
