//! A control connection with or without TLS around it, without I/O.
//!
//! The shell hands in what came and writes what [`Channel::transmit`] has, as it would with the [`Connection`] itself, which it
//! reaches by [`Channel::connection`]. Nothing of what came gets there before the peer has proved that it holds the key, except
//! a greeting in clear, which is answered with a refusal or is a lane's.

use std::io::{self, Read, Write};
use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_transport::ticket::{EXPORTED_BYTES, Nonce};
use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConnection, PeerIncompatible, ServerConnection,
};
use zeroize::Zeroizing;

use super::certificate::{self, explain};
use super::distrust::Distrust;
use super::identity::{ClusterKey, Fingerprint, Membership, OtherKey, PROTOCOL};
use super::keyring::Keyring;
use crate::connection::{Connection, ConnectionConfig, Hello, Surroundings};

/// The longest first message of somebody who begins TLS. Ours has about 200 bytes.
const CLIENT_HELLO_BYTES_MAX: usize = 2048;

/// Bytes that somebody may send until he has proved that he holds the key. Ours are about 600.
const HANDSHAKE_BYTES_MAX: usize = 16 * 1024;

/// What a handshake under way counts for in memory: as much as an allocator was seen to give.
const HANDSHAKE_HOLDS: usize = 9 * 1024;

/// Bytes that are encrypted ahead of the socket.
const AHEAD_BYTES_MAX: usize = 16 * 1024;

/// What a record of TLS begins with: its kind, and two bytes of a length behind two of a version.
const RECORD_HEADER_BYTES: usize = 5;

/// The longest record, encrypted (RFC 8446, 5.2).
const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// The kind of a record that begins TLS.
const HANDSHAKE: u8 = 0x16;

/// The kind of the message that a client begins with (RFC 8446, 4).
const CLIENT_HELLO: u8 = 1;

/// A greeting in clear begins so.
const CLEAR: u8 = b'p';

/// What sets the bytes of a session apart from others that come of the same connection (RFC 8446, 7.5).
const SESSION: &[u8] = b"EXPORTER-polyrail-session";

/// Any name: whoever has the key has proved all that there is to prove.
const ANYBODY: &str = "polyrail";

/// Characters that are kept of what is wrong with TLS.
const TEXT_CHARS_MAX: usize = 200;

/// One control connection as it goes over a socket.
pub struct Channel {
    connection: Connection,
    layer: Layer,
}

enum Layer {
    /// Nothing is around it.
    Clear,
    /// Inbound, to an engine with a key: what has come does not say yet whether it is TLS.
    Opening {
        keyring: Keyring,
        first: Vec<u8>,
    },
    Tls(Box<Tls>),
}

impl Channel {
    /// A connection that somebody made to us. TLS begins with the key that is on the keyring then.
    pub fn inbound(now: Instant, config: ConnectionConfig, keyring: &Keyring) -> Self {
        let connection = Connection::inbound(now, config);
        let layer = match keyring.get() {
            None => Layer::Clear,
            Some(_) => Layer::Opening {
                keyring: keyring.clone(),
                first: Vec::new(),
            },
        };
        Self { connection, layer }
    }

    /// A connection that we made, with what we say once the peer has proved itself.
    pub fn outbound(
        now: Instant,
        config: ConnectionConfig,
        hello: Hello,
        key: Option<&Arc<ClusterKey>>,
    ) -> Self {
        let mut connection = Connection::outbound(now, config, hello);
        let layer = match key.map(|key| Tls::client(key)) {
            None => Layer::Clear,
            Some(Ok(tls)) => {
                connection.set_surroundings(Surroundings::Tls);
                Layer::Tls(Box::new(tls))
            }
            Some(Err(why)) => {
                connection.distrust(now, why);
                Layer::Clear
            }
        };
        Self { connection, layer }
    }

    /// The conversation.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The same, to go on with it. What it has to say is in [`Self::transmit`] after [`Self::seal`].
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Takes bytes that came, no more than a few records.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if self.connection.is_draining() || self.connection.is_closed() {
            return;
        }
        match &mut self.layer {
            Layer::Clear => self.connection.handle_bytes(now, bytes),
            Layer::Opening { first, .. } => {
                first.extend_from_slice(bytes);
                self.open(now);
            }
            Layer::Tls(tls) => match tls.open(bytes) {
                Ok(said) if said.is_empty() => {}
                Ok(said) => self.connection.handle_bytes(now, &said),
                Err(why) => self.connection.distrust(now, why),
            },
        }
    }

    /// The first bytes tell TLS from a greeting in clear.
    fn open(&mut self, now: Instant) {
        let Layer::Opening { first, .. } = &mut self.layer else {
            return;
        };
        match first.as_slice() {
            [] => {}
            [HANDSHAKE, _, _, high, low, ..] => {
                let bytes = usize::from(u16::from_be_bytes([*high, *low]));
                if bytes > CLIENT_HELLO_BYTES_MAX {
                    *first = Vec::new();
                    let text = format!(
                        "a first message of {bytes} bytes; {CLIENT_HELLO_BYTES_MAX} is the limit"
                    );
                    return self.connection.distrust(now, Distrust::Tls { text });
                }
                // What is in more would be answered outside the line.
                if is_whole(first) && !is_one_message(first) {
                    *first = Vec::new();
                    let text = "its first record is not one ClientHello".into();
                    return self.connection.distrust(now, Distrust::Tls { text });
                }
                // Whoever begins says no more until he is answered.
                if first.len() > RECORD_HEADER_BYTES + CLIENT_HELLO_BYTES_MAX {
                    let bytes = std::mem::take(first).len();
                    let text = format!("{bytes} bytes before an answer");
                    self.connection.distrust(now, Distrust::Tls { text });
                }
            }
            [HANDSHAKE, ..] => {}
            _ => {
                let first = std::mem::take(first);
                match Nonce::draw() {
                    Ok(challenge) => {
                        let surroundings = Surroundings::ClearThoughKeyed { challenge };
                        self.connection.set_surroundings(surroundings);
                        self.layer = Layer::Clear;
                        self.connection.handle_bytes(now, &first);
                    }
                    Err(error) => self.connection.handle_closed(Some(error.kind())),
                }
            }
        }
    }

    /// Whether a first message of TLS is whole. Nothing has been made of it before [`Self::begin`].
    pub fn waits(&self) -> bool {
        match &self.layer {
            Layer::Opening { first, .. } => is_whole(first),
            Layer::Clear | Layer::Tls(_) => false,
        }
    }

    /// Answers the first message of TLS, if it [waits](Self::waits): most of what a stranger can make us compute.
    pub fn begin(&mut self, now: Instant) {
        let Layer::Opening { keyring, first } = &mut self.layer else {
            return;
        };
        let Some(key) = keyring.get().filter(|_| is_whole(first)) else {
            return;
        };
        let first = std::mem::take(first);
        match Tls::server(&key) {
            Ok(tls) => {
                self.connection.set_surroundings(Surroundings::Tls);
                self.layer = Layer::Tls(Box::new(tls));
                self.handle_bytes(now, &first);
            }
            Err(why) => self.connection.distrust(now, why),
        }
    }

    /// Bytes that both ends of this connection have and nobody else, for a session. `None`: it is in clear.
    pub fn export(&self, session: &[u8]) -> io::Result<Option<Zeroizing<[u8; EXPORTED_BYTES]>>> {
        let Layer::Tls(tls) = &self.layer else {
            return Ok(None);
        };
        let bytes = Zeroizing::new([0; EXPORTED_BYTES]);
        let exported = tls
            .session
            .export_keying_material(bytes, SESSION, Some(session));
        exported.map(Some).map_err(io::Error::other)
    }

    /// What people tell the key of this end by that TLS began with; `None`: it has not, or it is in clear.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        match &self.layer {
            Layer::Tls(tls) => Some(tls.ours),
            Layer::Clear | Layer::Opening { .. } => None,
        }
    }

    /// Whom the certificate names that the other end has proved to have; `None`: it has shown none, or nothing is proved yet.
    pub fn member(&self) -> Option<String> {
        let Layer::Tls(tls) = &self.layer else {
            return None;
        };
        let shown = tls.session.peer_certificates()?;
        shown.first().and_then(certificate::name_of)
    }

    /// The socket broke, or (`None`) the peer closed it.
    pub fn handle_closed(&mut self, error: Option<io::ErrorKind>) {
        match &self.layer {
            Layer::Tls(tls) if tls.is_handshaking() => self.connection.handle_gone(),
            _ => self.connection.handle_closed(error),
        }
    }

    /// Makes [`Self::transmit`] of what the conversation has to say.
    pub fn seal(&mut self) {
        if let Layer::Tls(tls) = &mut self.layer {
            tls.seal(&mut self.connection);
        }
    }

    /// What to write next.
    pub fn transmit(&self) -> &[u8] {
        match &self.layer {
            Layer::Clear => self.connection.poll_transmit(),
            Layer::Opening { .. } => &[],
            Layer::Tls(tls) => tls.out.get(tls.sent..).unwrap_or_default(),
        }
    }

    /// So many bytes of [`Self::transmit`] were written.
    pub fn handle_transmitted(&mut self, bytes: usize) {
        match &mut self.layer {
            Layer::Clear => self.connection.handle_transmitted(bytes),
            Layer::Opening { .. } => {}
            Layer::Tls(tls) => {
                tls.sent = (tls.sent + bytes).min(tls.out.len());
                if tls.sent == tls.out.len() {
                    tls.out = Vec::new();
                    tls.sent = 0;
                    tls.seal(&mut self.connection);
                }
            }
        }
    }

    /// Bytes that came and are of no use yet.
    pub fn pending_bytes(&self) -> usize {
        let held = match &self.layer {
            Layer::Clear => 0,
            Layer::Opening { first, .. } => first.len(),
            Layer::Tls(tls) if tls.is_handshaking() => HANDSHAKE_HOLDS + tls.partial.len(),
            Layer::Tls(tls) => tls.partial.len(),
        };
        held + self.connection.pending_bytes()
    }

    /// Bytes that are to be written.
    pub fn outgoing_bytes(&self) -> usize {
        match &self.layer {
            Layer::Clear | Layer::Opening { .. } => self.connection.poll_transmit().len(),
            Layer::Tls(tls) => tls.out.len() - tls.sent + self.connection.poll_transmit().len(),
        }
    }
}

/// TLS around a connection, of either side.
struct Tls {
    session: rustls::Connection,
    ours: Fingerprint,
    way: Membership,
    /// Bytes that have come before the peer had proved itself.
    taken: usize,
    /// A record that is not whole: kept here rather than in `session`, so that it can be counted.
    partial: Vec<u8>,
    /// What is to be written, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// The peer has been told that no more comes.
    closed: bool,
}

impl Tls {
    fn client(key: &ClusterKey) -> Result<Self, Distrust> {
        let unable = |error: String| Distrust::Tls { text: error };
        let name = ServerName::try_from(ANYBODY).map_err(|error| unable(error.to_string()))?;
        let session = ClientConnection::new(key.client.clone(), name);
        let session = session.map_err(|error| unable(error.to_string()))?;
        Ok(Self::new(session.into(), key))
    }

    fn server(key: &ClusterKey) -> Result<Self, Distrust> {
        let session = ServerConnection::new(key.server.clone());
        let session = session.map_err(|error| Distrust::Tls {
            text: error.to_string(),
        })?;
        Ok(Self::new(session.into(), key))
    }

    fn new(session: rustls::Connection, key: &ClusterKey) -> Self {
        key.remind();
        Self {
            session,
            ours: key.fingerprint(),
            way: key.way,
            taken: 0,
            partial: Vec::new(),
            out: Vec::new(),
            sent: 0,
            closed: false,
        }
    }

    /// Whether the peer has not yet proved that it holds the key.
    fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Takes bytes that came; what they say.
    fn open(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Distrust> {
        if self.is_handshaking() {
            if self.taken == 0 && bytes.first() == Some(&CLEAR) {
                return Err(Distrust::Clear);
            }
            self.taken += bytes.len();
        }
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(bytes);
        let mut rest = partial.as_slice();
        let mut said = Vec::new();
        while let Some((record, behind)) = split_record(rest)? {
            self.open_record(record, &mut said)?;
            rest = behind;
        }
        self.partial = rest.to_vec();
        if self.is_handshaking() && self.taken > HANDSHAKE_BYTES_MAX {
            let taken = self.taken;
            return Err(tls(&format!(
                "{taken} bytes and no proof; {HANDSHAKE_BYTES_MAX} are the limit"
            )));
        }
        Ok(said)
    }

    /// Takes a whole record and appends what it says.
    fn open_record(&mut self, mut record: &[u8], said: &mut Vec<u8>) -> Result<(), Distrust> {
        while !record.is_empty() {
            let read = self.session.read_tls(&mut record);
            if read.map_err(|error| tls(&error.to_string()))? == 0 {
                // The peer has said that no more comes.
                return Ok(());
            }
            let state = self.session.process_new_packets();
            let state = state.map_err(|error| self.judge(&error))?;
            if !self.is_handshaking() && self.session.alpn_protocol() != Some(PROTOCOL) {
                return Err(tls("it does not say that it speaks polyrail (ALPN)"));
            }
            let start = said.len();
            said.resize(start + state.plaintext_bytes_to_read(), 0);
            let to = said.get_mut(start..).unwrap_or_default();
            let read = self.session.reader().read_exact(to);
            read.map_err(|error| tls(&error.to_string()))?;
        }
        Ok(())
    }

    /// What an error says of the peer.
    fn judge(&self, error: &rustls::Error) -> Distrust {
        if let Some(text) = explain(error) {
            let text = brief(&text);
            return Distrust::Certificate { text };
        }
        let other = |theirs| Distrust::OtherKey {
            ours: self.ours,
            theirs,
        };
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(why)) => {
                other(why.0.downcast_ref().map(|OtherKey(theirs)| *theirs))
            }
            // What its check of our key says when ours is another.
            rustls::Error::AlertReceived(AlertDescription::CertificateUnknown) => other(None),
            // One of the two shows a raw key and the other certificates.
            rustls::Error::PeerIncompatible(
                PeerIncompatible::IncorrectCertificateTypeExtension,
            ) => Distrust::OtherWay {
                ours: self.way,
                is_shown: true,
            },
            // What it says then before it has shown anything.
            rustls::Error::AlertReceived(AlertDescription::HandshakeFailure) => {
                Distrust::OtherWay {
                    ours: self.way,
                    is_shown: false,
                }
            }
            error => tls(&error.to_string()),
        }
    }

    /// Encrypts what the conversation has to say, a little ahead of the socket.
    fn seal(&mut self, connection: &mut Connection) {
        while !self.is_handshaking() && self.out.len() - self.sent < AHEAD_BYTES_MAX {
            let said = connection.poll_transmit();
            let said = said
                .get(..said.len().min(AHEAD_BYTES_MAX))
                .unwrap_or_default();
            if said.is_empty() {
                break;
            }
            match self.session.writer().write(said) {
                Ok(bytes) if bytes > 0 => connection.handle_transmitted(bytes),
                _ => return connection.handle_closed(Some(io::ErrorKind::Other)),
            }
            self.take_records();
        }
        let is_last = connection.is_draining()
            && (self.is_handshaking() || connection.poll_transmit().is_empty());
        if is_last && !std::mem::replace(&mut self.closed, true) && !self.is_handshaking() {
            self.session.send_close_notify();
        }
        self.take_records();
    }

    fn take_records(&mut self) {
        while self.session.wants_write() {
            // A vector takes everything.
            if !matches!(self.session.write_tls(&mut self.out), Ok(bytes) if bytes > 0) {
                return;
            }
        }
    }
}

/// Whether the first record, which is whole, has one message in it, and that is whole.
fn is_one_message(first: &[u8]) -> bool {
    let Ok(Some((record, _))) = split_record(first) else {
        return false;
    };
    match record.get(RECORD_HEADER_BYTES..) {
        Some([CLIENT_HELLO, high, middle, low, body @ ..]) => {
            body.len() == u32::from_be_bytes([0, *high, *middle, *low]) as usize
        }
        _ => false,
    }
}

/// Whether these bytes are a first message of TLS.
fn is_whole(first: &[u8]) -> bool {
    first.first() == Some(&HANDSHAKE) && matches!(split_record(first), Ok(Some(_)))
}

/// A record and the bytes behind it.
type Split<'a> = (&'a [u8], &'a [u8]);

/// The first record of bytes and what is behind it, if it is whole.
fn split_record(bytes: &[u8]) -> Result<Option<Split<'_>>, Distrust> {
    let [_, _, _, high, low, ..] = bytes else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if length > RECORD_BYTES_MAX {
        return Err(tls(&format!(
            "a record of {length} bytes; {RECORD_BYTES_MAX} is the limit"
        )));
    }
    Ok(bytes.split_at_checked(RECORD_HEADER_BYTES + length))
}

fn tls(text: &str) -> Distrust {
    Distrust::Tls { text: brief(text) }
}

/// So much of a text as goes into one line, whoever is quoted in it.
fn brief(text: &str) -> String {
    let mut line = String::new();
    for letter in text.chars().take(TEXT_CHARS_MAX) {
        match letter.is_control() {
            true => line.extend(letter.escape_debug()),
            false => line.push(letter),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    mod certified;

    use polyrail_core::time::Duration;
    use quickcheck::quickcheck;

    use super::*;
    use crate::codec::{Greeting, Purpose};
    use crate::connection::{Ended, Event};
    use crate::security::Secret;

    const CONFIG: ConnectionConfig = ConnectionConfig {
        heartbeat: Duration::from_millis(500),
        silence_max: Duration::from_millis(1500),
        handshake_max: Duration::from_millis(1000),
        encrypts: false,
    };

    fn now() -> Instant {
        Instant::ZERO
    }

    fn key() -> Arc<ClusterKey> {
        Arc::new(ClusterKey::new(&Secret::draw().unwrap()).unwrap())
    }

    fn hello() -> Hello {
        Hello {
            name: "alpha".into(),
            incarnation: 1,
            session: None,
            token: vec![],
        }
    }

    fn said(channel: &mut Channel) -> Vec<u8> {
        let mut said = Vec::new();
        channel.seal();
        while !channel.transmit().is_empty() {
            said.extend_from_slice(channel.transmit());
            channel.handle_transmitted(channel.transmit().len());
        }
        said
    }

    /// Bytes that have come without proof.
    fn taken(channel: &Channel) -> usize {
        match &channel.layer {
            Layer::Tls(tls) => tls.taken,
            Layer::Clear | Layer::Opening { .. } => 0,
        }
    }

    fn hear(channel: &mut Channel, bytes: &[u8], piece: usize, told: &mut Vec<Event>) {
        for piece in bytes.chunks(piece) {
            channel.handle_bytes(now(), piece);
            channel.begin(now());
            while let Some(event) = channel.connection_mut().poll_event(now()) {
                told.push(event);
            }
        }
    }

    /// Passes what both say on, in pieces of so many bytes, until neither has more; what each was told.
    fn meet(
        initiator: &mut Channel,
        target: &mut Channel,
        piece: usize,
    ) -> (Vec<Event>, Vec<Event>) {
        let mut told = (vec![], vec![]);
        loop {
            let (ours, theirs) = (said(initiator), said(target));
            if ours.is_empty() && theirs.is_empty() {
                return told;
            }
            hear(initiator, &theirs, piece, &mut told.0);
            hear(target, &ours, piece, &mut told.1);
        }
    }

    fn pair(
        ours: Option<&Arc<ClusterKey>>,
        theirs: Option<&Arc<ClusterKey>>,
    ) -> (Channel, Channel) {
        let initiator = Channel::outbound(now(), CONFIG, hello(), ours);
        (
            initiator,
            Channel::inbound(now(), CONFIG, &Keyring::new(theirs.cloned())),
        )
    }

    #[test]
    fn only_the_same_key_or_none_at_both_ends_lets_a_hello_through() {
        let (one, other) = (key(), key());
        // (name, the initiator's, the target's, whether it gets through, how the initiator's ends)
        let cases = [
            ("none", None, None, true, None),
            ("the same", Some(&one), Some(&one), true, None),
            (
                "another",
                Some(&one),
                Some(&other),
                false,
                Some("it holds cluster key"),
            ),
            (
                "none there",
                Some(&one),
                None,
                false,
                Some("it speaks in clear"),
            ),
            (
                "none here",
                None,
                Some(&one),
                false,
                Some("refused: cluster key"),
            ),
        ];
        for (name, ours, theirs, through, ending) in cases {
            for piece in [1, 100, 1 << 20] {
                let (mut initiator, mut target) = pair(ours, theirs);
                let (here, there) = meet(&mut initiator, &mut target, piece);
                assert_eq!(
                    there.contains(&Event::Hello(hello())),
                    through,
                    "{name}: {there:?}"
                );
                let ended = here.iter().find_map(|event| match event {
                    Event::Ended(why) => Some(why.to_string()),
                    _ => None,
                });
                match (ending, ended) {
                    (None, None) => {}
                    (Some(ending), Some(ended)) => {
                        assert!(ended.contains(ending), "{name}: {ended}")
                    }
                    (_, ended) => panic!("{name}: {ended:?}"),
                }
                // Whoever is not let in finds it said at the other end as well.
                let words = there.iter().any(|event| match event {
                    Event::Ended(why) => why.is_about_keys(),
                    _ => false,
                });
                assert_eq!(words, !through, "{name}: {there:?}");
            }
        }
    }

    #[test]
    fn whoever_sends_and_proves_nothing_is_sent_away() {
        let key = key();
        let (mut initiator, mut target) = pair(Some(&key), Some(&key));
        let mut told = vec![];
        hear(&mut target, &said(&mut initiator), 1 << 20, &mut told);
        assert!(target.pending_bytes() >= HANDSHAKE_HOLDS && told.is_empty());
        // A record that is as long as records may be, and nothing that could be read in it.
        let [high, low] = (RECORD_BYTES_MAX as u16).to_be_bytes();
        hear(&mut target, &[0x17, 3, 3, high, low], 5, &mut told);
        let rest = HANDSHAKE_BYTES_MAX - taken(&target);
        hear(&mut target, &vec![0; rest], 1000, &mut told);
        assert!(told.is_empty() && target.pending_bytes() > HANDSHAKE_HOLDS + rest);
        hear(&mut target, &[0], 1, &mut told);
        assert!(
            matches!(
                told[..],
                [Event::Ended(Ended::Distrusted(Distrust::Tls { .. }))]
            ),
            "{told:?}"
        );
        assert!(target.connection().is_draining());
        // A first message that is too long to be one is not waited for, one that is not whole is not looked at.
        for (length, ends) in [
            (CLIENT_HELLO_BYTES_MAX + 1, true),
            (CLIENT_HELLO_BYTES_MAX, false),
        ] {
            let mut target = Channel::inbound(now(), CONFIG, &Keyring::new(Some(key.clone())));
            let [high, low] = (length as u16).to_be_bytes();
            let mut told = vec![];
            hear(&mut target, &[0x16, 3, 1, high, low], 5, &mut told);
            hear(&mut target, &[0; 100], 100, &mut told);
            assert_eq!(!told.is_empty(), ends, "{length}: {told:?}");
            assert_eq!(target.pending_bytes() > 0, !ends);
        }
    }

    #[test]
    fn a_first_message_in_parts_is_not_answered() {
        let key = key();
        let (mut initiator, _) = pair(Some(&key), Some(&key));
        let hello = said(&mut initiator);
        let message = hello.get(RECORD_HEADER_BYTES..).unwrap();
        let record = |part: &[u8]| {
            let length = (part.len() as u16).to_be_bytes();
            [&[HANDSHAKE, 3, 1], &length[..], part].concat()
        };
        // (the first record's content, whether it is answered)
        for (content, answers) in [
            (message, true),
            (&message[..1], false),
            (&message[..message.len() - 1], false),
            (&[message, &[0]].concat()[..], false),
        ] {
            let (_, mut target) = pair(None, Some(&key));
            let mut told = vec![];
            hear(&mut target, &record(content), 1 << 14, &mut told);
            assert_eq!(!said(&mut target).is_empty(), answers, "{}", content.len());
            assert_eq!(told.is_empty(), answers, "{told:?}");
            assert!(!target.waits());
        }
    }

    #[test]
    fn who_does_not_say_that_he_speaks_polyrail_is_sent_away() {
        let key = key();
        let mut config = (*key.client).clone();
        config.alpn_protocols = vec![];
        let name = ServerName::try_from(ANYBODY).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let (_, mut target) = pair(None, Some(&key));
        let mut told = vec![];
        while told.is_empty() {
            let mut out = vec![];
            client.write_tls(&mut out).unwrap();
            hear(&mut target, &out, 1 << 14, &mut told);
            let back = said(&mut target);
            client.read_tls(&mut back.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
        assert!(format!("{told:?}").contains("ALPN"), "{told:?}");
    }

    #[test]
    fn nothing_is_encrypted_far_ahead_of_a_peer_that_does_not_read() {
        let key = key();
        let (mut initiator, mut target) = pair(Some(&key), Some(&key));
        let (_, there) = meet(&mut initiator, &mut target, 1 << 20);
        assert!(there.contains(&Event::Hello(hello())));
        target
            .connection_mut()
            .refuse(now(), crate::codec::Refusal::Full, "x".repeat(60_000));
        target.seal();
        assert!((AHEAD_BYTES_MAX..2 * AHEAD_BYTES_MAX + 1000).contains(&target.transmit().len()));
        assert!(target.outgoing_bytes() > 60_000);
        // And nothing is lost of it.
        let mut told = vec![];
        hear(&mut initiator, &said(&mut target), 1000, &mut told);
        assert!(
            matches!(told[..], [Event::Ended(Ended::Refused { .. })]),
            "{told:?}"
        );
        assert_eq!(target.outgoing_bytes(), 0);
    }

    #[test]
    fn what_a_member_holds_back_of_a_record_is_counted_and_bounded() {
        let key = key();
        let (mut initiator, mut target) = pair(Some(&key), Some(&key));
        meet(&mut initiator, &mut target, 1 << 20);
        assert_eq!(initiator.pending_bytes(), 0);
        let mut told = vec![];
        let [high, low] = (RECORD_BYTES_MAX as u16).to_be_bytes();
        hear(&mut initiator, &[0x17, 3, 3, high, low], 5, &mut told);
        hear(&mut initiator, &[0; 10_000], 1000, &mut told);
        assert_eq!((initiator.pending_bytes(), told.len()), (10_005, 0));
        let [high, low] = (RECORD_BYTES_MAX as u16 + 1).to_be_bytes();
        hear(&mut target, &[0x17, 3, 3, high, low], 5, &mut told);
        let text = format!("{told:?}");
        assert!(
            text.contains("a record of 16641 bytes; 16640 is the limit"),
            "{text}"
        );
        assert_eq!(target.pending_bytes(), 0);
    }

    #[test]
    fn what_was_said_before_and_what_comes_back_prove_nothing() {
        let key = key();
        let (mut initiator, mut target) = pair(Some(&key), Some(&key));
        let (mut recorded, mut told) = (vec![], vec![]);
        while let (ours, theirs) = (said(&mut initiator), said(&mut target))
            && !(ours.is_empty() && theirs.is_empty())
        {
            recorded.extend_from_slice(&ours);
            hear(&mut initiator, &theirs, 1 << 20, &mut told);
            hear(&mut target, &ours, 1 << 20, &mut told);
        }
        assert_eq!(told, [Event::Hello(hello())]);
        // All of it once more, to another connection of the same target, and to whoever says it.
        let (mut reflected, mut replayed) = pair(Some(&key), Some(&key));
        let first = said(&mut reflected);
        for (channel, bytes) in [(&mut replayed, &recorded), (&mut reflected, &first)] {
            let mut told = vec![];
            hear(channel, bytes, 1 << 20, &mut told);
            assert!(
                matches!(
                    told[..],
                    [Event::Ended(Ended::Distrusted(Distrust::Tls { .. }))]
                ),
                "{told:?}"
            );
        }
    }

    #[test]
    fn bytes_that_somebody_has_changed_end_it() {
        let key = key();
        let (mut initiator, mut target) = pair(Some(&key), Some(&key));
        meet(&mut initiator, &mut target, 1 << 20);
        target
            .connection_mut()
            .refuse(now(), crate::codec::Refusal::Full, "no".into());
        let mut bytes = said(&mut target);
        bytes[20] ^= 1;
        let mut told = vec![];
        hear(&mut initiator, &bytes, 1 << 20, &mut told);
        assert!(
            matches!(
                told[..],
                [Event::Ended(Ended::Distrusted(Distrust::Tls { .. }))]
            ),
            "{told:?}"
        );
    }

    /// Nanoseconds of a processor that this thread has had.
    fn processor_ns() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// Prints what it is; `docs/performance.md` has the figure of a release build. One that is not optimised, on a busy
    /// machine, may take ten times as long.
    #[test]
    fn a_handshake_costs_both_sides_less_than_3_ms_of_processor_time() {
        const HANDSHAKES: u64 = 100;
        let bound = if cfg!(debug_assertions) { 30_000 } else { 3000 };
        let key = key();
        let start = processor_ns();
        for _ in 0..HANDSHAKES {
            let (mut initiator, mut target) = pair(Some(&key), Some(&key));
            let (_, there) = meet(&mut initiator, &mut target, 1 << 20);
            assert_eq!(there, [Event::Hello(hello())]);
        }
        let each = (processor_ns() - start) / HANDSHAKES / 1000;
        eprintln!("a handshake, both sides: {each} µs of processor time");
        assert!(each < bound, "{each} µs");
    }

    #[test]
    fn nothing_shows_the_secret() {
        let secret = Secret::draw().unwrap();
        let key = Arc::new(ClusterKey::new(&secret).unwrap());
        let shown = format!("{key:?} {:?} {:?} {secret:?}", key.client, key.server);
        let digits = secret.bytes().map(|byte| format!("{byte:02x}")).concat();
        let numbers = secret.bytes()[..4].iter().map(u8::to_string);
        let numbers = numbers.collect::<Vec<_>>().join(", ");
        for secret in [&digits[..16], &numbers] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    quickcheck! {
        fn random_bytes_never_panic_and_never_pile_up(bytes: Vec<u8>, cuts: Vec<u8>, start: u8) -> bool {
            let key = key();
            let (mut initiator, mut target) = pair(Some(&key), Some(&key));
            let before = match start % 5 {
                0 => vec![],
                1 => vec![HANDSHAKE, 3, 1],
                2 => said(&mut initiator),
                3 => Greeting::ours(Purpose::Control).encode().to_vec(),
                _ => Greeting::ours(Purpose::Lane).encode().to_vec(),
            };
            let bytes = [before, bytes].concat();
            let mut told = vec![];
            for channel in [&mut initiator, &mut target] {
                for piece in crate::codec::tests::pieces(&bytes, &cuts) {
                    hear(channel, piece, 1 << 20, &mut told);
                    said(channel);
                    if channel.pending_bytes() > 2 * HANDSHAKE_HOLDS {
                        return false;
                    }
                }
            }
            !told.iter().any(|event| matches!(event, Event::Hello(_) | Event::Welcome(_)))
        }
    }
}
