//! Records of an encrypted lane that somebody changes on the way. Only the virtual machine's kernel has TLS.

use std::io::{IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use polyrail_tcp::ktls;

/// Bytes of a work, behind a header, as an endpoint receives them: in one call that scatters them.
const HEADER: usize = 64;
const BYTES: usize = 8000;

/// What is in memory before.
const BEFORE: u8 = 0xee;

/// What was changed is nowhere in memory, nor is anything else of its record.
pub(crate) fn changed_records() {
    // (whether somebody changes a bit)
    for changes in [false, true] {
        let (mut sender, mut on_the_way) = connected();
        let (mut beyond, mut receiver) = connected();
        let (one, other) = ((&[7; 16][..], &[8; 12][..]), (&[9; 16][..], &[10; 12][..]));
        ktls::encrypt(&sender, one, other).expect("the kernel can");
        ktls::encrypt(&receiver, other, one).expect("the kernel can");
        let sent: Vec<u8> = (0..HEADER + BYTES).map(|at| (at % 251) as u8).collect();
        sender.write_all(&sent).expect("it is sent");
        let mut record = vec![0; 5];
        on_the_way.read_exact(&mut record).expect("a record comes");
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        assert!(length > HEADER + BYTES, "one record has all of it");
        record.resize(5 + length, 0);
        on_the_way.read_exact(&mut record[5..]).expect("all of it");
        if changes {
            record[5 + HEADER + BYTES / 2] ^= 0x20;
        }
        beyond.write_all(&record).expect("it is passed on");
        let (mut header, mut memory, mut rest) = ([0; HEADER], [BEFORE; BYTES], [0; 4096]);
        let slots = &mut [
            IoSliceMut::new(&mut header),
            IoSliceMut::new(&mut memory),
            IoSliceMut::new(&mut rest),
        ];
        match (receiver.read_vectored(slots), changes) {
            (Ok(bytes), false) => {
                assert_eq!(bytes, sent.len());
                assert!(memory == sent[HEADER..]);
            }
            (Err(_), true) => assert!(
                memory.iter().all(|byte| *byte == BEFORE),
                "{} bytes of a record that was changed are in memory",
                memory.iter().filter(|byte| **byte != BEFORE).count()
            ),
            (heard, _) => panic!("changed: {changes}, heard: {heard:?}"),
        }
    }
}

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("an address");
    let address = listener.local_addr().expect("it is bound");
    let from = TcpStream::connect(address).expect("it listens");
    (from, listener.accept().expect("it was connected to").0)
}
