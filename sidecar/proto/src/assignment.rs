//! Assignments that are encoded once for all watchers of a job. For 10,000 workers, one has half a megabyte.

use std::ops::Range;

use prost::{
    DecodeError, Message,
    bytes::{Buf, BufMut, Bytes},
    encoding::{DecodeContext, WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};

use crate::v1;

/// Field number of `Assignment.peers`.
const PEERS: u32 = 4;

/// An encoded [`v1::Assignment`] that watchers share, without `last_seq`, which differs between watchers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedAssignment {
    bytes: Bytes,
    /// Position of each peer's field, by role and index.
    peers: Vec<((i32, u32), Range<usize>)>,
}

impl SharedAssignment {
    /// Encodes `frame` with these slots and their addresses as its peers. O(bytes).
    pub fn new<'a>(frame: &v1::Assignment, slots: impl Iterator<Item = (&'a v1::Slot, &'a str)>) -> Self {
        let mut bytes = Vec::with_capacity(frame.encoded_len());
        frame.encode_raw(&mut bytes);
        let mut peers = Vec::with_capacity(slots.size_hint().0);
        for (slot, address) in slots {
            let from = bytes.len();
            encode_peer(slot, address, &mut bytes);
            peers.push(((slot.role, slot.index), from..bytes.len()));
        }
        peers.sort_unstable_by_key(|(slot, _)| *slot);
        Self { bytes: bytes.into(), peers }
    }

    /// Bytes of the assignment.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the assignment is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The assignment for one watcher: with the number of its last accepted report, and its own address in its slot
    /// (role and index). O(log slots). Only its own slot is copied.
    pub fn told(&self, last_seq: u64, own: Option<((i32, u32), &str)>) -> EncodedAssignment {
        let last = v1::Assignment { last_seq, ..v1::Assignment::default() }.encode_to_vec().into();
        let place = own.and_then(|(slot, address)| {
            let at = self.peers.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
            Some((self.peers[at].1.clone(), address))
        });
        let Some((place, address)) = place else {
            return EncodedAssignment([self.bytes.clone(), last, Bytes::new(), Bytes::new()]);
        };
        // A message with this field alone is also an assignment.
        let alone = v1::Assignment::decode(self.bytes.slice(place.clone())).unwrap_or_default();
        let mut own = Vec::with_capacity(place.len() + address.len());
        if let Some(slot) = alone.peers.first().and_then(|peer| peer.slot.as_ref()) {
            encode_peer(slot, address, &mut own);
        }
        EncodedAssignment([self.bytes.slice(..place.start), own.into(), self.bytes.slice(place.end..), last])
    }
}

fn encode_peer(slot: &v1::Slot, address: &str, bytes: &mut Vec<u8>) {
    let field = |len: usize| key_len(1) + encoded_len_varint(len as u64) + len;
    let with_address = if address.is_empty() { 0 } else { field(address.len()) };
    encode_key(PEERS, WireType::LengthDelimited, bytes);
    encode_varint((field(slot.encoded_len()) + with_address) as u64, bytes);
    prost::encoding::message::encode(1, slot, bytes);
    if !address.is_empty() {
        encode_key(2, WireType::LengthDelimited, bytes);
        encode_varint(address.len() as u64, bytes);
        bytes.put_slice(address.as_bytes());
    }
}

/// A [`v1::Assignment`] in its encoded form.
#[derive(Clone, Debug)]
pub struct EncodedAssignment([Bytes; 4]);

impl Message for EncodedAssignment {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        self.0.iter().for_each(|part| buffer.put_slice(part));
    }

    fn encoded_len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn merge_field(&mut self, _: u32, _: WireType, _: &mut impl Buf, _: DecodeContext) -> Result<(), DecodeError> {
        unreachable!("it is only ever encoded")
    }

    fn clear(&mut self) {
        self.0 = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_decode_the_assignment_with_their_own_parts() {
        let slots: Vec<v1::Slot> = (0..300)
            .map(|at| v1::Slot { role: at % 2, index: at as u32 / 2, server: format!("s{at}"), ..v1::Slot::default() })
            .collect();
        let frame = v1::Assignment { job: 7, incarnation: 2, grace_ms: 500, ..v1::Assignment::default() };
        let address = |slot: &v1::Slot| if slot.index == 3 { "host:3" } else { "" };
        let shared = SharedAssignment::new(&frame, slots.iter().map(|slot| (slot, address(slot))));
        let peers = |own: Option<(usize, &str)>| {
            let peer = |(at, slot): (usize, &v1::Slot)| {
                let address = own.filter(|(own, _)| *own == at).map_or_else(|| address(slot), |(_, address)| address);
                v1::Peer { slot: Some(slot.clone()), address: address.into() }
            };
            slots.iter().enumerate().map(peer).collect()
        };
        let read = |told: EncodedAssignment| v1::Assignment::decode(&*told.encode_to_vec()).unwrap();
        let told = read(shared.told(0, None));
        assert_eq!(told, v1::Assignment { peers: peers(None), ..frame.clone() });
        for (at, address) in [(0, "a:1"), (6, ""), (299, "b:2"), (150, &*"c".repeat(255))] {
            let own = (slots[at].role, slots[at].index);
            let told = read(shared.told(9, Some((own, address))));
            let expected = v1::Assignment { peers: peers(Some((at, address))), last_seq: 9, ..frame.clone() };
            assert_eq!(told, expected, "{at}");
        }
        let stranger = read(shared.told(1, Some(((0, 999), "x:1"))));
        assert_eq!(stranger, v1::Assignment { peers: peers(None), last_seq: 1, ..frame });
    }
}
