//! Reading a recording, call by call.

use std::io::{self, Read};

use serde::de::DeserializeOwned;

use crate::block::{self, BLOCK_BYTES_MAX, HEAD_BYTES, Kind, MAGIC, START_BYTES, VERSION};
use crate::call::{Answer, Step};
use crate::error::RecordingError;
use crate::header::Header;

/// Reads a recording. It holds one block at a time, and nothing from the file is used as a size before it has
/// been compared with a limit.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    /// Where the next block starts.
    offset: u64,
    /// The content of the block that is being read.
    content: Vec<u8>,
    /// Where that lies in the file.
    content_offset: u64,
    /// How much of it has been read.
    taken: usize,
    /// The number of the next call.
    calls: u64,
    ended: bool,
}

/// One call of a recording.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its number; the engine's first is 0.
    pub number: u64,
    /// Where it lies in the file.
    pub offset: u64,
    /// The call.
    pub step: Step<'static>,
    /// What it gave.
    pub answer: Answer<'static>,
    /// The same as it is written.
    pub answer_bytes: &'a [u8],
}

impl<R: Read> Reader<R> {
    /// Reads the start and the header.
    pub fn new(mut input: R) -> Result<Self, RecordingError> {
        let mut start = [0; START_BYTES];
        let got = fill(&mut input, &mut start, 0)?;
        let seen = got.min(MAGIC.len());
        if start[..seen] != MAGIC[..seen] {
            return Err(RecordingError::NotARecording);
        }
        if got < START_BYTES {
            return Err(RecordingError::Truncated { offset: 0 });
        }
        let found = u16::from_le_bytes([start[8], start[9]]);
        if found != VERSION {
            return Err(RecordingError::Version { found });
        }
        let mut reader = Self {
            input,
            header: Header::default(),
            offset: START_BYTES as u64,
            content: Vec::new(),
            content_offset: 0,
            taken: 0,
            calls: 0,
            ended: false,
        };
        if reader.next_block()? != Kind::Header {
            return Err(reader.malformed("header"));
        }
        reader.header = reader.take("header")?;
        reader.header.check().map_err(RecordingError::Header)?;
        if reader.taken < reader.content.len() {
            return Err(reader.malformed("end of the header"));
        }
        reader.calls = reader.header.before;
        Ok(reader)
    }

    /// What core was given at the start.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where the next block starts: after the last call, how long the recording is.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next call; `None`: that was all. After an error, there is no more.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, RecordingError> {
        while self.taken == self.content.len() {
            if self.ended {
                return Ok(None);
            }
            match self.next_block()? {
                Kind::Calls => self.go_on()?,
                Kind::End => self.end()?,
                Kind::Cut => return Err(self.cut()),
                Kind::Header => return Err(self.malformed("calls, but another header")),
            }
        }
        let offset = self.here();
        let step: Step<'static> = self.take("call")?;
        if let Step::Worker(worker, _) = step
            && usize::from(worker) >= self.header.workers.len()
        {
            return Err(RecordingError::Malformed {
                offset,
                expected: "worker of this number",
            });
        }
        let from = self.taken;
        let answer = self.take("answer")?;
        let number = self.calls;
        self.calls += 1;
        Ok(Some(Entry {
            number,
            offset,
            step,
            answer,
            answer_bytes: &self.content[from..self.taken],
        }))
    }

    /// Reads a whole block and says what it has.
    fn next_block(&mut self) -> Result<Kind, RecordingError> {
        let offset = self.offset;
        let mut head = [0; HEAD_BYTES];
        if fill(&mut self.input, &mut head, offset)? < HEAD_BYTES {
            return Err(RecordingError::Truncated { offset });
        }
        let Some((bytes, check)) = block::head(&head) else {
            return Err(RecordingError::Checksum { offset });
        };
        if bytes as usize > BLOCK_BYTES_MAX {
            return Err(RecordingError::TooLong { offset, bytes });
        }
        self.content_offset = offset + HEAD_BYTES as u64;
        self.content.resize(bytes as usize, 0);
        self.taken = 0;
        let got = fill(&mut self.input, &mut self.content, self.content_offset)?;
        if got < bytes as usize {
            // Nothing of it is given.
            self.content.clear();
            return Err(RecordingError::Truncated { offset });
        }
        if crc32fast::hash(&self.content) != check {
            self.content.clear();
            return Err(RecordingError::Checksum { offset });
        }
        self.offset = self.content_offset + u64::from(bytes);
        let kind = self.content.first().copied().and_then(Kind::from_byte);
        self.taken = 1;
        kind.ok_or(RecordingError::Malformed {
            offset: self.content_offset,
            expected: "known kind of block",
        })
    }

    /// A block of calls must begin with the next one.
    fn go_on(&mut self) -> Result<(), RecordingError> {
        let found = self.take_number()?;
        if found != self.calls {
            return Err(self.gap(found));
        }
        Ok(())
    }

    /// What a recording that was cut ends with.
    fn cut(&mut self) -> RecordingError {
        let offset = self.content_offset - HEAD_BYTES as u64;
        self.end().err().unwrap_or(RecordingError::Cut { offset })
    }

    fn end(&mut self) -> Result<(), RecordingError> {
        let found = self.take_number()?;
        if found != self.calls {
            return Err(self.gap(found));
        }
        if self.taken < self.content.len() || fill(&mut self.input, &mut [0], self.offset)? > 0 {
            return Err(self.malformed("end of the file"));
        }
        self.ended = true;
        Ok(())
    }

    fn take_number(&mut self) -> Result<u64, RecordingError> {
        let rest = self.content.get(self.taken..).unwrap_or_default();
        let Some((number, _)) = rest.split_first_chunk::<8>() else {
            return Err(self.malformed("number of a call"));
        };
        let number = u64::from_le_bytes(*number);
        self.taken += 8;
        Ok(number)
    }

    /// The next value of the block.
    fn take<T: DeserializeOwned>(&mut self, what: &'static str) -> Result<T, RecordingError> {
        let rest = self.content.get(self.taken..).unwrap_or_default();
        match postcard::take_from_bytes::<T>(rest) {
            Ok((value, left)) => {
                self.taken = self.content.len() - left.len();
                Ok(value)
            }
            Err(_) => Err(self.malformed(what)),
        }
    }

    fn here(&self) -> u64 {
        self.content_offset + self.taken as u64
    }

    fn malformed(&self, expected: &'static str) -> RecordingError {
        RecordingError::Malformed {
            offset: self.here(),
            expected,
        }
    }

    fn gap(&self, found: u64) -> RecordingError {
        RecordingError::Gap {
            offset: self.content_offset - HEAD_BYTES as u64,
            expected: self.calls,
            found,
        }
    }
}

/// Reads until `bytes` is full or there is no more. How much it was.
fn fill(input: &mut impl Read, bytes: &mut [u8], offset: u64) -> Result<usize, RecordingError> {
    let mut got = 0;
    while got < bytes.len() {
        match input.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                let offset = offset + got as u64;
                return Err(RecordingError::Read { offset, source });
            }
        }
    }
    Ok(got)
}
