//! An emulated network interface: the times at which payloads may be sent and delivered.
//!
//! It has no clock. Times are nanoseconds since any fixed time, the same for all calls.

use std::collections::BTreeMap;

use super::share::Share;
use crate::wire::Message;

/// A frame for a connection.
pub(crate) type Outgoing = (u64, Vec<u8>);
/// A message from a connection.
pub(crate) type Landed = (u64, Message);

/// Both directions of an interface. Connections and transfers have numbers.
pub(crate) struct Nic {
    egress: Share<Outgoing>,
    ingress: Share<(u64, u32)>,
    /// Incoming transfers: whether this side is through, and the payload, if it has arrived.
    incoming: BTreeMap<(u64, u32), (bool, Option<Message>)>,
    serial: u32,
}

impl Nic {
    pub(crate) fn new(mbit_per_s: f64) -> Self {
        Self { egress: Share::new(mbit_per_s), ingress: Share::new(mbit_per_s), incoming: BTreeMap::new(), serial: 0 }
    }

    /// Starts to send a payload as if it had `bytes` bytes. Returns the transfer's number, and the frames that are
    /// through by now.
    pub(crate) fn send(&mut self, now: u64, link: u64, bytes: u64, payload: &Message) -> (u32, Vec<Outgoing>) {
        self.serial = self.serial.wrapping_add(1).max(1);
        (self.serial, self.egress.start(now, bytes, (link, payload.encode(self.serial))))
    }

    /// The other side has started a transfer. Returns the messages that are through by now.
    pub(crate) fn begin(&mut self, now: u64, link: u64, transfer: u32, bytes: u64) -> Vec<Landed> {
        self.incoming.insert((link, transfer), (false, None));
        let through = self.ingress.start(now, bytes, (link, transfer));
        self.land(through)
    }

    /// A payload has arrived. Returns it if it can be delivered at once.
    pub(crate) fn arrive(&mut self, link: u64, transfer: u32, message: Message) -> Option<Message> {
        match self.incoming.get_mut(&(link, transfer)) {
            Some((false, payload)) => {
                *payload = Some(message);
                None
            }
            _ => {
                self.incoming.remove(&(link, transfer));
                Some(message)
            }
        }
    }

    /// Advances time. Returns sent frames and delivered messages.
    pub(crate) fn advance(&mut self, now: u64) -> (Vec<Outgoing>, Vec<Landed>) {
        let sent = self.egress.advance(now);
        let through = self.ingress.advance(now);
        (sent, self.land(through))
    }

    /// Time of the next send or delivery.
    pub(crate) fn due(&self) -> Option<u64> {
        [self.egress.due(), self.ingress.due()].into_iter().flatten().min()
    }

    /// Removes a closed connection.
    pub(crate) fn forget(&mut self, link: u64) {
        self.egress.retain(|(of, _)| *of != link);
        self.ingress.retain(|(of, _)| *of != link);
        self.incoming.retain(|(of, _), _| *of != link);
    }

    fn land(&mut self, through: Vec<(u64, u32)>) -> Vec<Landed> {
        let mut landed = Vec::new();
        for key in through {
            match self.incoming.remove(&key) {
                Some((_, Some(message))) => landed.push((key.0, message)),
                // Through on this side, but the other side's interface is slower.
                Some((_, None)) => _ = self.incoming.insert(key, (true, None)),
                None => {}
            }
        }
        landed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// 80 Mbit/s move 10,000 bytes in a millisecond.
    const RATE: f64 = 80.0;

    #[test]
    fn a_lone_transfer_takes_its_time_once() {
        let (mut here, mut there) = (Nic::new(RATE), Nic::new(RATE));
        let (transfer, _) = here.send(0, 1, 30_000, &Message::Pull);
        assert!(there.begin(0, 9, transfer, 30_000).is_empty());
        assert_eq!((here.due(), there.due()), (Some(3 * MS), Some(3 * MS)));
        let (sent, _) = here.advance(3 * MS);
        assert_eq!(sent, [(1, Message::Pull.encode(transfer))]);
        assert_eq!(there.arrive(9, transfer, Message::Pull), None, "its own interface has not moved on yet");
        assert_eq!(there.advance(3 * MS).1, [(9, Message::Pull)]);
    }

    #[test]
    fn the_slower_side_decides() {
        // Two senders share the receiver's interface: both payloads arrive at 1 ms and are delivered at 2 ms.
        let mut receiver = Nic::new(RATE);
        receiver.begin(0, 1, 7, 10_000);
        receiver.begin(0, 2, 7, 10_000);
        assert_eq!(receiver.arrive(1, 7, Message::Pull), None);
        assert_eq!(receiver.arrive(2, 7, Message::Unready), None);
        assert!(receiver.advance(2 * MS - 1).1.is_empty());
        assert_eq!(receiver.advance(2 * MS).1, [(1, Message::Pull), (2, Message::Unready)]);
        // A sender that serves two: the receiver is through at 1 ms, and the payload arrives at 2 ms and is delivered
        // at once.
        receiver.begin(10 * MS, 1, 8, 10_000);
        assert!(receiver.advance(11 * MS).1.is_empty());
        assert_eq!(receiver.arrive(1, 8, Message::Pull), Some(Message::Pull));
    }

    #[test]
    fn an_unannounced_payload_is_delivered_at_once() {
        assert_eq!(Nic::new(RATE).arrive(1, 0, Message::Pull), Some(Message::Pull));
    }

    #[test]
    fn a_lost_connection_ends_its_transfers() {
        let mut nic = Nic::new(RATE);
        nic.send(0, 1, 10_000, &Message::Pull);
        nic.begin(0, 1, 5, 10_000);
        nic.forget(1);
        assert_eq!(nic.due(), None);
        assert_eq!(nic.advance(9 * MS), (vec![], vec![]));
    }
}
