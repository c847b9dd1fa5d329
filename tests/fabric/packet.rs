//! What a TUN device hands over: an IPv4 packet behind a `virtio_net_hdr`, of one or many TCP segments.

use std::ops::Range;

/// The longest: a header of the device, and what IPv4 can say.
pub(crate) const PACKET_BYTES_MAX: usize = DEVICE_HEADER + 65_535;

/// A `virtio_net_hdr` of ten bytes: flags, kind, length of the headers, bytes of a segment, and two for the checksum.
const DEVICE_HEADER: usize = 10;
const KIND: usize = 1;
const SEGMENT_BYTES: Range<usize> = 4..6;

/// Kinds of packets: of one segment, and TCP over IPv4 of many.
const SINGLE: u8 = 0;
const TCP_IPV4: u8 = 1;

const PROTOCOL_TCP: u8 = 6;
const FIN: u8 = 1;
const RST: u8 = 4;
const PSH: u8 = 8;

/// Packets that carry so many bytes are of a transfer, not of a conversation.
const TRANSFER_BYTES_MIN: usize = 4096;

/// Where things are in a TCP packet.
struct Layout {
    tcp: usize,
    payload: usize,
}

fn layout(packet: &[u8]) -> Option<Layout> {
    let ip = packet.get(DEVICE_HEADER..)?;
    if *ip.first()? >> 4 != 4 || *ip.get(9)? != PROTOCOL_TCP {
        return None;
    }
    let tcp = DEVICE_HEADER + usize::from(ip[0] & 15) * 4;
    let payload = tcp + usize::from(*packet.get(tcp + 12)? >> 4) * 4;
    (payload <= packet.len()).then_some(Layout { tcp, payload })
}

/// How many packets it is on the wire.
pub(crate) fn segments(packet: &[u8]) -> usize {
    match (packet.get(KIND), layout(packet)) {
        (Some(&TCP_IPV4), Some(layout)) => {
            let bytes = segment_bytes(packet);
            (packet.len() - layout.payload).div_ceil(bytes).max(1)
        }
        _ => 1,
    }
}

fn segment_bytes(packet: &[u8]) -> usize {
    let [low, high] = [packet[SEGMENT_BYTES.start], packet[SEGMENT_BYTES.start + 1]];
    usize::from(u16::from_le_bytes([low, high])).max(1)
}

/// Bytes that the device's header adds to what is on the wire.
pub(crate) const fn wire_bytes(length: usize) -> usize {
    length.saturating_sub(DEVICE_HEADER)
}

/// The same packet with these of its segments only. `None`: nothing is left.
pub(crate) fn part(packet: &[u8], segments: Range<usize>) -> Option<Vec<u8>> {
    if segments.is_empty() {
        return None;
    }
    let Some(layout) = layout(packet) else {
        return Some(packet.to_vec());
    };
    let payload = &packet[layout.payload..];
    let bytes = segment_bytes(packet);
    let start = (segments.start * bytes).min(payload.len());
    let end = (segments.end * bytes).min(payload.len());
    let mut part = packet[..layout.payload].to_vec();
    part.extend_from_slice(&payload[start..end]);
    if segments.len() == 1 {
        part[KIND] = SINGLE;
        part[SEGMENT_BYTES].fill(0);
    }
    let sequence = layout.tcp + 4..layout.tcp + 8;
    let first = u32_at(&part, sequence.start).wrapping_add(start as u32);
    part[sequence].copy_from_slice(&first.to_be_bytes());
    if end < payload.len() {
        part[layout.tcp + 13] &= !(FIN | PSH);
    }
    finish(&mut part);
    Some(part)
}

/// What ends the connection of a packet that carries much, as a host in between would that has forgotten it. `None`
/// of any other packet.
pub(crate) fn reset(packet: &[u8]) -> Option<Vec<u8>> {
    let layout = layout(packet)?;
    if packet.len() - layout.payload < TRANSFER_BYTES_MIN {
        return None;
    }
    let mut reset = packet[..layout.payload].to_vec();
    reset[KIND] = SINGLE;
    reset[SEGMENT_BYTES].fill(0);
    reset[layout.tcp + 13] |= RST;
    reset[layout.tcp + 13] &= !PSH;
    finish(&mut reset);
    Some(reset)
}

/// Makes the header of IPv4 true again. TCP's checksum is not computed yet, and who receives from a device of its own
/// host does not ask for it.
fn finish(packet: &mut [u8]) {
    let total = (packet.len() - DEVICE_HEADER) as u16;
    let ip = &mut packet[DEVICE_HEADER..];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[10..12].fill(0);
    let header = usize::from(ip[0] & 15) * 4;
    let words = ip[..header].chunks_exact(2);
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of TCP over IPv4 with options in both headers, of `length` bytes in segments of `segment`.
    fn packet(length: usize, segment: u16) -> Vec<u8> {
        let mut packet = vec![0; DEVICE_HEADER + 24 + 32];
        packet[KIND] = if length > usize::from(segment) {
            TCP_IPV4
        } else {
            SINGLE
        };
        packet[SEGMENT_BYTES].copy_from_slice(&segment.to_le_bytes());
        packet[DEVICE_HEADER] = 0x46;
        packet[DEVICE_HEADER + 9] = PROTOCOL_TCP;
        let tcp = DEVICE_HEADER + 24;
        packet[tcp + 4..tcp + 8].copy_from_slice(&0xffff_fff0_u32.to_be_bytes());
        packet[tcp + 12] = 0x80;
        packet[tcp + 13] = PSH | FIN;
        packet.extend((0..length).map(|at| at as u8));
        packet
    }

    fn payload(packet: &[u8]) -> &[u8] {
        &packet[layout(packet).unwrap().payload..]
    }

    #[test]
    fn parts_of_a_packet_are_what_their_segments_would_have_been() {
        let whole = packet(2500, 1000);
        assert_eq!(segments(&whole), 3);
        let tcp = layout(&whole).unwrap().tcp;
        // (segments, where they start, how many bytes, kind, flags)
        let cases = [
            (0..3, 0, 2500, TCP_IPV4, PSH | FIN),
            (0..1, 0, 1000, SINGLE, 0),
            (0..2, 0, 2000, TCP_IPV4, 0),
            (1..3, 1000, 1500, TCP_IPV4, PSH | FIN),
            (2..3, 2000, 500, SINGLE, PSH | FIN),
        ];
        for (of, start, length, kind, flags) in cases {
            let part = part(&whole, of.clone()).unwrap();
            assert_eq!(
                payload(&part),
                &payload(&whole)[start..start + length],
                "{of:?}"
            );
            assert_eq!(
                u32_at(&part, tcp + 4),
                0xffff_fff0_u32.wrapping_add(start as u32)
            );
            assert_eq!((part[KIND], part[tcp + 13]), (kind, flags), "{of:?}");
            let total = u16::from_be_bytes([part[DEVICE_HEADER + 2], part[DEVICE_HEADER + 3]]);
            assert_eq!(usize::from(total), part.len() - DEVICE_HEADER);
            let words = part[DEVICE_HEADER..DEVICE_HEADER + 24].chunks(2);
            let sum: u32 = words
                .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
                .sum();
            assert_eq!(
                (sum & 0xffff) + (sum >> 16),
                0xffff,
                "the header's checksum"
            );
        }
        assert_eq!(part(&whole, 1..1), None);
    }

    #[test]
    fn only_a_transfer_is_reset() {
        assert_eq!(reset(&packet(100, 1000)), None);
        let last = reset(&packet(8000, 1000)).unwrap();
        let layout = layout(&last).unwrap();
        assert_eq!(last.len(), layout.payload);
        assert_eq!(last[layout.tcp + 13] & RST, RST);
        assert_eq!(segments(&last), 1);
    }

    #[test]
    fn what_is_not_tcp_is_one_packet_and_stays_whole() {
        let mut ping = packet(3000, 1000);
        ping[DEVICE_HEADER + 9] = 1;
        assert_eq!((segments(&ping), reset(&ping)), (1, None));
        assert_eq!(part(&ping, 0..1), Some(ping));
        assert_eq!(segments(&[0; 5]), 1);
    }
}
