//! The wire format between processes: length-prefixed binary frames, little endian, with exact numbers.
//!
//! ```text
//! frame   = length u32 (of what follows) · kind u8 · transfer u32 · body
//! numbers = f32 and i64 arrays are a u32 count, then the values
//! ```
//! `transfer` is 0, or the emulated transfer (announced by `Begin`) whose payload the frame is.

use crate::{
    chunks::Portion,
    codec::{Fields, Malformed, Put},
    id::{Id, Role},
    tally::Tally,
};

/// First bytes of every connection.
pub(crate) const MAGIC: u32 = 0x5254_4d54;
/// Version of the format. Both sides must have the same.
pub(crate) const VERSION: u16 = 3;
/// Maximum frame before the other side has identified itself, in bytes.
pub(crate) const HELLO_LIMIT: usize = 128;

/// Identification of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The job's number.
    pub(crate) job: u64,
    /// Processes of different incarnations don't connect to each other.
    pub(crate) incarnation: u32,
    /// The caller's slot.
    pub(crate) id: Id,
    /// Proof that the caller knows the job's token.
    pub(crate) proof: [u8; 32],
}

/// Stands for the attempt of parameters that a worker asked for.
pub(crate) const ASKED: u64 = 0;

/// All messages between processes of a job.
#[derive(Clone, Debug, PartialEq)]
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
    /// Chief to a holder of parameters: the state at `version` (applied steps).
    Load { version: u64, parameters: Vec<f32>, velocity: Vec<f32> },
    /// Chief to the holders: make `version` final, and send your part of it.
    Gather { version: u64 },
    /// Holder to chief: the answer.
    Shard { version: u64, parameters: Vec<f32>, velocity: Vec<f32> },
    /// Chief to the holders: make `version` final, and send your part of the parameters. Training continues.
    Show { version: u64 },
    /// Holder to chief: the answer.
    Shown { version: u64, parameters: Vec<f32> },
    /// Holder to chief: all gradients of the step are here. `times`: milliseconds of each worker.
    Collected { step: u64, attempt: u64, tally: Tally, times: Vec<(u32, f32)> },
    /// Chief to all: acknowledge, and end with this exit code.
    Finish { code: u8, checkpoint_step: u64, checkpoint_ms: f32 },
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

impl Message {
    /// The frame with its length.
    #[must_use]
    pub(crate) fn encode(&self, transfer: u32) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.push(self.kind());
        out.u32(transfer);
        match self {
            Self::Hello(hello) => {
                out.u32(MAGIC);
                out.u16(VERSION);
                out.u64(hello.job);
                out.u32(hello.incarnation);
                out.push(u8::from(hello.id.role == Role::Worker));
                out.u32(hello.id.index);
                out.extend_from_slice(&hello.proof);
            }
            Self::Begin { transfer, bytes } => {
                out.u32(*transfer);
                out.u64(*bytes);
            }
            Self::Ready { revision } => out.u32(*revision),
            Self::Pull | Self::Unready => {}
            Self::Leaving { all } => out.push(u8::from(*all)),
            Self::Failed { code, reason } => {
                out.push(*code);
                out.u32(reason.len() as u32);
                out.extend_from_slice(reason.as_bytes());
            }
            Self::Stored { chunk } => out.u32(*chunk),
            Self::Step { step, attempt, revision, workers, portions } => {
                out.u64(*step);
                out.u64(*attempt);
                out.u32(*revision);
                out.u32(workers.len() as u32);
                workers.iter().for_each(|worker| out.u32(*worker));
                put_portions(&mut out, portions);
            }
            Self::Ticket { step, attempt, portion } => {
                out.u64(*step);
                out.u64(*attempt);
                put_portions(&mut out, portion.as_slice());
            }
            Self::Load { version, parameters, velocity } | Self::Shard { version, parameters, velocity } => {
                out.u64(*version);
                out.f32s(parameters);
                out.f32s(velocity);
            }
            Self::Gather { version: number } | Self::Show { version: number } | Self::Broken { attempt: number } => {
                out.u64(*number);
            }
            Self::Collected { step, attempt, tally, times } => {
                out.u64(*step);
                out.u64(*attempt);
                put_tally(&mut out, tally);
                out.u32(times.len() as u32);
                for (worker, ms) in times {
                    out.u32(*worker);
                    out.f32(*ms);
                }
            }
            Self::Finish { code, checkpoint_step, checkpoint_ms } => {
                out.push(*code);
                out.u64(*checkpoint_step);
                out.f32(*checkpoint_ms);
            }
            Self::Params { attempt: number, values } | Self::Shown { version: number, parameters: values } => {
                out.u64(*number);
                out.f32s(values);
            }
            Self::Grad { step, attempt, tally, sums } => {
                out.u64(*step);
                out.u64(*attempt);
                put_tally(&mut out, tally);
                out.i64s(sums);
            }
            Self::Chunk { attempt, round, sums } => {
                out.u64(*attempt);
                out.u32(*round);
                out.i64s(sums);
            }
            Self::Activations { attempt, number, values } | Self::Deltas { attempt, number, values } => {
                out.u64(*attempt);
                out.u32(*number);
                out.f32s(values);
            }
        }
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
        let mut fields = Fields::new(frame);
        let kind = fields.u8()?;
        let transfer = fields.u32()?;
        let message = match kind {
            1 => {
                if fields.u32()? != MAGIC || fields.u16()? != VERSION {
                    return Err(Malformed);
                }
                let (job, incarnation) = (fields.u64()?, fields.u32()?);
                let role = if fields.flag()? { Role::Worker } else { Role::Server };
                let id = Id { role, index: fields.u32()? };
                Self::Hello(Hello { job, incarnation, id, proof: fields.array()? })
            }
            2 => Self::Begin { transfer: fields.u32()?, bytes: fields.u64()? },
            3 => Self::Ready { revision: fields.u32()? },
            4 => Self::Leaving { all: fields.flag()? },
            5 => Self::Failed { code: fields.u8()?, reason: fields.text()? },
            6 => Self::Step {
                step: fields.u64()?,
                attempt: fields.u64()?,
                revision: fields.u32()?,
                workers: fields.list(4, Fields::u32)?,
                portions: portions(&mut fields)?,
            },
            7 => Self::Ticket {
                step: fields.u64()?,
                attempt: fields.u64()?,
                portion: portions(&mut fields)?.first().copied(),
            },
            8 => Self::Load { version: fields.u64()?, parameters: fields.f32s()?, velocity: fields.f32s()? },
            9 => Self::Gather { version: fields.u64()? },
            10 => Self::Shard { version: fields.u64()?, parameters: fields.f32s()?, velocity: fields.f32s()? },
            11 => Self::Collected {
                step: fields.u64()?,
                attempt: fields.u64()?,
                tally: tally(&mut fields)?,
                times: fields.list(8, |fields| Ok((fields.u32()?, fields.f32()?)))?,
            },
            12 => Self::Finish { code: fields.u8()?, checkpoint_step: fields.u64()?, checkpoint_ms: fields.f32()? },
            13 => Self::Pull,
            14 => Self::Params { attempt: fields.u64()?, values: fields.f32s()? },
            15 => Self::Grad {
                step: fields.u64()?,
                attempt: fields.u64()?,
                tally: tally(&mut fields)?,
                sums: fields.i64s()?,
            },
            16 => Self::Chunk { attempt: fields.u64()?, round: fields.u32()?, sums: fields.i64s()? },
            17 => Self::Broken { attempt: fields.u64()? },
            18 => Self::Unready,
            19 => Self::Stored { chunk: fields.u32()? },
            20 => Self::Show { version: fields.u64()? },
            21 => Self::Shown { version: fields.u64()?, parameters: fields.f32s()? },
            22 => Self::Activations { attempt: fields.u64()?, number: fields.u32()?, values: fields.f32s()? },
            23 => Self::Deltas { attempt: fields.u64()?, number: fields.u32()?, values: fields.f32s()? },
            _ => return Err(Malformed),
        };
        fields.end()?;
        Ok((transfer, message))
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Begin { .. } => 2,
            Self::Ready { .. } => 3,
            Self::Leaving { .. } => 4,
            Self::Failed { .. } => 5,
            Self::Step { .. } => 6,
            Self::Ticket { .. } => 7,
            Self::Load { .. } => 8,
            Self::Gather { .. } => 9,
            Self::Shard { .. } => 10,
            Self::Collected { .. } => 11,
            Self::Finish { .. } => 12,
            Self::Pull => 13,
            Self::Params { .. } => 14,
            Self::Grad { .. } => 15,
            Self::Chunk { .. } => 16,
            Self::Broken { .. } => 17,
            Self::Unready => 18,
            Self::Stored { .. } => 19,
            Self::Show { .. } => 20,
            Self::Shown { .. } => 21,
            Self::Activations { .. } => 22,
            Self::Deltas { .. } => 23,
        }
    }
}

fn put_tally(out: &mut Vec<u8>, tally: &Tally) {
    out.i64(tally.loss);
    out.u64(tally.correct);
    out.u64(tally.examples);
}

fn tally(fields: &mut Fields<'_>) -> Result<Tally, Malformed> {
    Ok(Tally { loss: fields.i64()?, correct: fields.u64()?, examples: fields.u64()? })
}

fn put_portions(out: &mut Vec<u8>, portions: &[Portion]) {
    out.u32(portions.len() as u32);
    for portion in portions {
        out.u32(portion.chunk);
        out.u64(portion.batch);
    }
}

fn portions(fields: &mut Fields<'_>) -> Result<Vec<Portion>, Malformed> {
    fields.list(12, |fields| Ok(Portion { chunk: fields.u32()?, batch: fields.u64()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let id = Id { role: Role::Worker, index: 7 };
        let tally = Tally { loss: -5, correct: 2, examples: 9 };
        let portion = Portion { chunk: 4, batch: 1 << 33 };
        let (parameters, velocity) = (vec![1.5, -0.0], vec![f32::MIN]);
        vec![
            Message::Hello(Hello { job: 3, incarnation: 4, id, proof: [9; 32] }),
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
            Message::Load { version: 6, parameters: parameters.clone(), velocity: velocity.clone() },
            Message::Gather { version: 6 },
            Message::Shard { version: 6, parameters, velocity },
            Message::Collected { step: 1, attempt: 2, tally, times: vec![(4, 2.5)] },
            Message::Finish { code: 40, checkpoint_step: 5, checkpoint_ms: 0.5 },
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
    fn counts_are_checked_before_memory_is_taken() {
        let mut frame = Message::Params { attempt: 0, values: vec![] }.encode(0);
        let end = frame.len();
        frame[end - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Message::decode(&frame[4..]), Err(Malformed));
    }
}
