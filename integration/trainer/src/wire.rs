//! The messages between processes. A frame is its length (u32, little endian, of what follows) and a [`Frame`] in
//! postcard. Numbers arrive as they were sent, to the bit.

use serde::{Deserialize, Serialize};

use crate::{chunks::Portion, holder::State, id::Id, tally::Tally};

/// Names the program and the version of its messages. Both sides must have the same.
pub(crate) const PROTOCOL: u32 = 0x544d_0004;
/// Maximum frame before the other side has identified itself, in bytes.
pub(crate) const HELLO_LIMIT: usize = 128;

/// Bytes that this program would not have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not our protocol")]
pub(crate) struct Malformed;

/// Identification of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`PROTOCOL`].
    pub(crate) protocol: u32,
    /// The job's number.
    pub(crate) job: u64,
    /// Processes of different incarnations don't connect to each other.
    pub(crate) incarnation: u32,
    /// The caller's slot.
    pub(crate) id: Id,
    /// Proof that the caller knows the job's token.
    pub(crate) proof: [u8; 32],
}

/// The end of the job, or of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FinalOrder {
    /// The process's exit code.
    pub(crate) code: u8,
    pub(crate) checkpoint_step: u64,
    pub(crate) checkpoint_ms: f32,
}

/// Gradients that a holder has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Collected {
    pub(crate) step: u64,
    pub(crate) attempt: u64,
    pub(crate) tally: Tally,
    /// Milliseconds of each worker.
    pub(crate) times: Vec<(u32, f32)>,
}

/// Stands for the attempt of parameters that a worker asked for.
pub(crate) const ASKED: u64 = 0;

/// All messages between processes of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// First message of both sides on every connection.
    Hello(Hello),
    /// An emulated transfer of `bytes` bytes starts now. Its payload follows when the sender's interface is through.
    Begin { transfer: u32, bytes: u64 },
    /// Node to chief: it can take part in steps. It joined the job in this revision.
    Ready { revision: u32 },
    /// Node to chief: it can't any more.
    Unready,
    /// Node to chief: it has to stop and asks to leave; `all`: the whole job stops.
    Leaving { all: bool },
    /// Node to chief: it lost a peer that this attempt needs.
    Broken { attempt: u64 },
    /// Node to chief: it can't continue, and the job must end with this exit code.
    Failed { code: u8, reason: String },
    /// Node to chief: it has the data of this chunk.
    Stored { chunk: u32 },
    /// Chief to all: train this step with these workers. The sums of the previous step become final. `portions`: the
    /// mini-batch of each worker; empty without chunks.
    Step { step: u64, attempt: u64, revision: u32, workers: Vec<u32>, portions: Vec<Portion> },
    /// Chief to one worker (async): train this batch.
    Ticket { step: u64, attempt: u64, portion: Option<Portion> },
    /// Chief to a holder of parameters: its part of the state.
    Load(State),
    /// Chief to the holders: make `version` final, and send your part of it.
    Gather { version: u64 },
    /// Holder to chief: the answer.
    Shard(State),
    /// Chief to the holders: make `version` final, and send your part of the parameters. Training continues.
    Show { version: u64 },
    /// Holder to chief: the answer.
    Shown { version: u64, parameters: Vec<f32> },
    /// Holder to chief: all gradients of the step are here.
    Collected(Collected),
    /// Chief to all: acknowledge, and end.
    Finish(FinalOrder),
    /// Worker to parameter server (async): send your parameters.
    Pull,
    /// Parameter server to worker.
    Params { attempt: u64, values: Vec<f32> },
    /// Worker to parameter server: sums over its share, in fixed-point units.
    Grad { step: u64, attempt: u64, tally: Tally, sums: Vec<i64> },
    /// Worker to the next one in the ring.
    Chunk { attempt: u64, round: u32, sums: Vec<i64> },
    /// Partition to the next one: its outputs for a micro-batch.
    Activations { attempt: u64, number: u32, values: Vec<f32> },
    /// Partition to the previous one: the loss's derivative by each of its inputs.
    Deltas { attempt: u64, number: u32, values: Vec<f32> },
}

/// What is sent: a message, and 0 or the emulated transfer (announced by `Begin`) whose payload it is.
#[derive(Serialize, Deserialize)]
struct Frame<M> {
    transfer: u32,
    message: M,
}

impl Message {
    /// The frame with its length.
    #[must_use]
    pub(crate) fn encode(&self, transfer: u32) -> Vec<u8> {
        let frame = Frame { transfer, message: self };
        let mut out = postcard::to_extend(&frame, vec![0; 4]).expect("messages are plain data");
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// Decodes a frame without its length: its transfer, and the message.
    ///
    /// # Errors
    ///
    /// [`Malformed`] for bytes that [`Message::encode`] doesn't write.
    pub(crate) fn decode(frame: &[u8]) -> Result<(u32, Self), Malformed> {
        match postcard::take_from_bytes(frame) {
            Ok((Frame { message: Self::Hello(hello), .. }, _)) if hello.protocol != PROTOCOL => Err(Malformed),
            Ok((Frame { transfer, message }, [])) => Ok((transfer, message)),
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Role;

    fn all() -> Vec<Message> {
        let id = Id { role: Role::Worker, index: 7 };
        let tally = Tally { loss: -5, correct: 2, examples: 9 };
        let portion = Portion { chunk: 4, batch: 1 << 33 };
        let state = State { version: 6, parameters: vec![1.5, -0.0], velocity: vec![f32::MIN] };
        vec![
            Message::Hello(Hello { protocol: PROTOCOL, job: 3, incarnation: 4, id, proof: [9; 32] }),
            Message::Begin { transfer: 8, bytes: 1 << 40 },
            Message::Ready { revision: 5 },
            Message::Unready,
            Message::Leaving { all: true },
            Message::Failed { code: 44, reason: "é".into() },
            Message::Stored { chunk: 8 },
            Message::Step { step: 1, attempt: 2, revision: 3, workers: vec![0, 5], portions: vec![] },
            Message::Step { step: 1, attempt: 2, revision: 3, workers: vec![5], portions: vec![portion] },
            Message::Ticket { step: 1, attempt: 2, portion: None },
            Message::Ticket { step: 1, attempt: 2, portion: Some(portion) },
            Message::Load(state.clone()),
            Message::Gather { version: 6 },
            Message::Shard(state),
            Message::Collected(Collected { step: 1, attempt: 2, tally, times: vec![(4, 2.5)] }),
            Message::Finish(FinalOrder { code: 40, checkpoint_step: 5, checkpoint_ms: 0.5 }),
            Message::Pull,
            Message::Params { attempt: 2, values: vec![] },
            Message::Grad { step: 1, attempt: 2, tally, sums: vec![i64::MIN, 1] },
            Message::Chunk { attempt: 2, round: 3, sums: vec![7] },
            Message::Broken { attempt: 2 },
            Message::Show { version: 6 },
            Message::Shown { version: 6, parameters: vec![0.25] },
            Message::Activations { attempt: 2, number: 3, values: vec![0.0, 4.5] },
            Message::Deltas { attempt: 2, number: 3, values: vec![-1.0] },
        ]
    }

    #[test]
    fn every_message_survives_the_wire() {
        for message in all() {
            let frame = message.encode(77);
            assert_eq!(u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize, frame.len() - 4);
            assert_eq!(Message::decode(&frame[4..]), Ok((77, message)));
        }
        let hello = all()[0].encode(0);
        assert!(hello.len() <= HELLO_LIMIT);
    }

    #[test]
    fn cut_or_lengthened_frames_are_refused() {
        for message in all() {
            let frame = message.encode(0);
            for end in 4..frame.len() {
                assert!(Message::decode(&frame[4..end]).is_err(), "{message:?} cut at {end}");
            }
            let mut longer = frame;
            longer.push(0);
            assert!(Message::decode(&longer[4..]).is_err());
        }
    }

    #[test]
    fn another_protocol_is_refused() {
        let id = Id { role: Role::Worker, index: 7 };
        let hello = Hello { protocol: PROTOCOL - 1, job: 3, incarnation: 4, id, proof: [9; 32] };
        assert_eq!(Message::decode(&Message::Hello(hello).encode(0)[4..]), Err(Malformed));
    }

    #[test]
    fn a_count_beyond_the_frame_is_refused() {
        let mut frame = Message::Params { attempt: 0, values: vec![] }.encode(0);
        assert_eq!(frame.pop(), Some(0), "the count");
        // As many as a u64 can say.
        frame.extend([0xff; 9]);
        frame.push(1);
        assert_eq!(Message::decode(&frame[4..]), Err(Malformed));
    }
}
