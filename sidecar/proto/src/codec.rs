//! A codec that estimates the size of messages before it decodes them. A few bytes on the wire can be a hundred times
//! as many in memory.

use std::{collections::HashMap, marker::PhantomData, sync::OnceLock};

use prost::{
    Message, Name,
    bytes::Buf,
    encoding::{WireType, decode_key, decode_varint},
};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Maximum memory of requests by name. Others have [`SMALL`]. A daemon's answers have no limit, because its clients
/// trust it.
const MOST: [(&str, usize); 5] = [
    ("trainmaster.v1.ListRequest", 256 << 10),
    ("trainmaster.v1.ReportRequest", 2 << 20),
    ("trainmaster.v1.SubmitRequest", 1 << 20),
    ("trainmaster.v1.AdmitRequest", 1 << 20),
    ("trainmaster.v1.Observation", 512 << 20),
];
const SMALL: usize = 64 << 10;
const ANSWERS: [&str; 3] = ["Reply", "Plan", "Assignment"];
/// Bytes of a string, a list or a table without its content, and of a number.
const STRING: usize = 24;
const TABLE: usize = 48;
const NUMBER: usize = 8;
/// Growth factor of lists and tables: they double, so their memory can be a multiple of their content.
const GROWTH: usize = 2;

/// Encodes and decodes messages as [`ProstCodec`](tonic_prost::ProstCodec) does. Messages that would need more memory
/// than their kind may are refused before they are decoded.
#[derive(Clone, Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        // Most answers are short, and slow readers make the daemon keep their buffers.
        ProstEncoder::new(BufferSettings::new(512, 32 << 10))
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstDecoder::default())
    }
}

/// The decoder.
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let most = most(&U::full_name());
        if most < usize::MAX {
            // The transport delivers a message in one piece.
            let weight = weigh(&U::full_name(), source.chunk());
            if source.chunk().len() < source.remaining() || weight > most {
                let problem = format!("{}: it would take {weight} bytes in memory, and may take {most}", U::NAME);
                return Err(Status::resource_exhausted(problem));
            }
        }
        self.0.decode(source)
    }
}

fn most(name: &str) -> usize {
    let is_answer = ANSWERS.iter().any(|end| name.ends_with(end));
    let known = MOST.iter().find(|(known, _)| *known == name).map(|(_, most)| *most);
    if is_answer { usize::MAX } else { known.unwrap_or(SMALL) }
}

/// Upper estimate of a message's memory after decoding. O(its bytes), without allocation. An invalid message counts up
/// to its first error.
///
/// ```
/// use prost::{Message, Name};
/// use trainmaster_proto::{v1, weigh};
///
/// let empty = vec![v1::Progress::default(); 1000];
/// let report = v1::ReportRequest { progress: empty, ..v1::ReportRequest::default() };
/// let weight = weigh(&v1::ReportRequest::full_name(), &report.encode_to_vec());
/// assert!(weight > 50 * report.encoded_len());
/// ```
pub fn weigh(name: &str, bytes: &[u8]) -> usize {
    let Some((known, at)) = Layouts::get().find(name) else { return usize::MAX };
    known.all[at].size.saturating_add(known.weigh(at, bytes).0)
}

/// The layouts of all messages.
struct Layouts {
    all: Vec<Layout>,
    by_name: HashMap<String, usize>,
}

struct Layout {
    /// Bytes of the message itself, without strings, lists and tables.
    size: usize,
    fields: HashMap<u32, Field>,
}

struct Field {
    content: Content,
    repeated: bool,
}

/// Content of a field.
#[derive(Clone, Copy)]
enum Content {
    Number,
    Text,
    Message(usize),
}

impl Layouts {
    fn get() -> &'static Self {
        static LAYOUTS: OnceLock<Layouts> = OnceLock::new();
        LAYOUTS.get_or_init(|| {
            let set = FileDescriptorSet::decode(crate::DESCRIPTORS).expect("the descriptors are compiled in");
            Self::of(&set)
        })
    }

    fn find(&'static self, name: &str) -> Option<(&'static Self, usize)> {
        Some((self, *self.by_name.get(name)?))
    }

    fn of(set: &FileDescriptorSet) -> Self {
        let mut messages: Vec<(String, &DescriptorProto)> = Vec::new();
        for file in &set.file {
            let outer =
                file.message_type.iter().map(|message| (format!("{}.{}", file.package(), message.name()), message));
            for (name, message) in outer {
                // Tables are lists of nested messages. No other types are nested.
                let inner = message.nested_type.iter().map(|inner| (format!("{name}.{}", inner.name()), inner));
                messages.extend(inner);
                messages.push((name, message));
            }
        }
        let by_name: HashMap<String, usize> =
            messages.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
        let content = |field: &FieldDescriptorProto| match field.r#type() {
            Type::String | Type::Bytes => Content::Text,
            Type::Message | Type::Group => Content::Message(by_name[field.type_name().trim_start_matches('.')]),
            _ => Content::Number,
        };
        let mut all: Vec<Layout> = messages
            .iter()
            .map(|(_, message)| {
                let field = |field: &FieldDescriptorProto| {
                    let repeated = field.label() == Label::Repeated;
                    (field.number() as u32, Field { content: content(field), repeated })
                };
                Layout { size: 0, fields: message.field.iter().map(field).collect() }
            })
            .collect();
        // A message contains its inner messages. Those without inner ones come first, and none contains itself.
        for _ in 0..all.len() {
            for at in 0..all.len() {
                let size = all[at].fields.values().map(|field| match field.content {
                    _ if field.repeated => TABLE,
                    Content::Number => 2 * NUMBER,
                    Content::Text => STRING,
                    Content::Message(inner) => all[inner].size + NUMBER,
                });
                all[at].size = size.sum();
            }
        }
        Self { all, by_name }
    }

    /// Memory of a message's content, and whether it could be read to its end.
    fn weigh(&self, at: usize, mut bytes: &[u8]) -> (usize, bool) {
        let mut weight = 0_usize;
        while !bytes.is_empty() {
            let Ok((tag, wire)) = decode_key(&mut bytes) else { return (weight, false) };
            let field = self.all[at].fields.get(&tag);
            let length = match wire {
                WireType::Varint => {
                    if decode_varint(&mut bytes).is_err() {
                        return (weight, false);
                    }
                    0
                }
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::LengthDelimited => match decode_varint(&mut bytes) {
                    Ok(length) => usize::try_from(length).unwrap_or(usize::MAX),
                    Err(_) => return (weight, false),
                },
                // No message here has groups. The decoder skips them recursively.
                WireType::StartGroup | WireType::EndGroup => return (usize::MAX, false),
            };
            if length > bytes.len() {
                return (weight, false);
            }
            let (content, rest) = bytes.split_at(length);
            bytes = rest;
            let Some(field) = field else { continue };
            let added = match field.content {
                // Several numbers in one field are packed, with at least one byte each.
                Content::Number if wire == WireType::LengthDelimited => length.saturating_mul(GROWTH * NUMBER),
                Content::Number if field.repeated => GROWTH * NUMBER,
                Content::Number => 0,
                Content::Text => length + if field.repeated { GROWTH * STRING } else { 0 },
                Content::Message(inner) => {
                    let (inside, whole) = self.weigh(inner, content);
                    let own = if field.repeated { GROWTH * self.all[inner].size } else { 0 };
                    if !whole {
                        return (weight.saturating_add(inside).saturating_add(own), false);
                    }
                    inside.saturating_add(own)
                }
            };
            weight = weight.saturating_add(added);
        }
        (weight, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn weight<M: Message + Name>(message: &M) -> usize {
        weigh(&M::full_name(), &message.encode_to_vec())
    }

    #[test]
    fn every_message_has_a_layout() {
        assert!(Layouts::get().all.iter().all(|layout| layout.fields.is_empty() || layout.size > 0));
        for name in MOST.map(|(name, _)| name) {
            assert!(Layouts::get().find(name).is_some(), "{name}");
        }
        assert!(weight(&v1::CancelRequest::default()) < 100);
    }

    #[test]
    fn no_message_weighs_less_than_its_memory() {
        let share = v1::DeviceShare { device: 1, milli: 1 };
        let server = v1::Server {
            name: "n".repeat(20),
            capacity: [("cpu".to_owned(), 1), ("gpu:a100".to_owned(), 4000)].into(),
            devices: vec![v1::Device { kind: "gpu:a100".into() }; 8],
            foreign_devices: vec![share; 8],
            ..v1::Server::default()
        };
        let own = size_of::<v1::Server>() + 20 + 8 * (size_of::<v1::Device>() + 8) + 8 * size_of::<v1::DeviceShare>();
        assert!(weight(&server) >= own, "{} of {own}", weight(&server));
        for (weight, size) in [
            (weight(&v1::Progress::default()), size_of::<v1::Progress>()),
            (weight(&v1::Job::default()), size_of::<v1::Job>() - 2 * size_of::<v1::Role>()),
            (weight(&v1::Slot::default()), size_of::<v1::Slot>()),
            (weight(&v1::ServerUse::default()), size_of::<v1::ServerUse>()),
            (weight(&v1::Observation::default()), 64),
        ] {
            assert!(weight >= size, "{weight} for {size} bytes");
        }
    }

    #[test]
    fn empty_messages_need_memory() {
        // Two bytes each on the wire.
        let report = |count: usize| {
            let request = v1::ReportRequest { progress: vec![v1::Progress::default(); count], ..Default::default() };
            weight(&request)
        };
        assert!(report(1000) < 2 << 20, "an honest request, were it full: {}", report(1000));
        assert!(report(100_000) > 2 << 20);
        let snapshot = v1::Snapshot { servers: vec![v1::Server::default(); 4_000_000], ..Default::default() };
        let observation =
            v1::Observation { manager: "m".into(), kind: Some(v1::observation::Kind::Snapshot(snapshot)) };
        assert!(weight(&observation) > 512 << 20);
        // Realistic messages of a large cluster.
        let server = v1::Server {
            name: "node-12345.cluster.example.org".into(),
            capacity: [("cpu", 1), ("memory", 1), ("bandwidth", 1)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            devices: vec![v1::Device { kind: "gpu:a100".into() }; 8],
            labels: (0..20).map(|at| (format!("label-{at}"), "some value".to_owned())).collect(),
            ..v1::Server::default()
        };
        let slot = v1::Slot { server: server.name.clone(), devices: vec![Default::default()], ..Default::default() };
        let job = v1::ObservedJob { slots: vec![slot; 25], ..Default::default() };
        let snapshot = v1::Snapshot {
            servers: vec![server; 16_000],
            jobs: vec![job; 4000],
            owns_queue: false,
            takes_submissions: false,
        };
        let kind = Some(v1::observation::Kind::Snapshot(snapshot));
        let all = weight(&v1::Observation { manager: "m".into(), kind });
        assert!(all < 512 << 20, "{all}");
    }

    #[test]
    fn any_bytes_are_weighed() {
        let whole = v1::ReportRequest {
            job: "a".into(),
            progress: vec![v1::Progress { chunks: vec![1, 2, 3], ..Default::default() }; 3],
            ..Default::default()
        };
        let name = v1::ReportRequest::full_name();
        let bytes = whole.encode_to_vec();
        for end in 0..bytes.len() {
            assert!(weigh(&name, &bytes[..end]) <= weigh(&name, &bytes) + 1000);
        }
        // Groups, lengths beyond the end, unknown fields, and too many bits in a number.
        assert_eq!(weigh(&name, &[0x0b]), usize::MAX);
        for odd in
            [&[0x2a, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0xff; 20], &[0x2a], &[0xf8, 0xff, 0x7f, 1], &[0x2a, 2, 0x62]]
        {
            assert!(weigh(&name, odd) < 2000, "{odd:?}");
        }
        assert_eq!(weigh("trainmaster.v1.Nothing", &[]), usize::MAX);
    }
}
