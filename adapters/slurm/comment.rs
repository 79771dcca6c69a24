//! The comments of Trainmaster's jobs. A user marks and describes a job by
//! `--comment='trainmaster;model=resnet50;worker.max=8'` or by `#TRAINMASTER worker.max = 8` at the head of the batch
//! script. Once the job is accepted, both become its comment.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use trainmaster_core::{
    DecisionId, JobId, JobSpec, ObservedSlot, Role, Shape,
    text::{from_hex, hex, is_unseen, shown},
};
use trainmaster_manager::{Order, Run};

use super::seen::Memory;

/// The first word of a comment.
pub const MARK: &str = "trainmaster";
/// The first word of a line in a script.
pub const LINE: &str = "#TRAINMASTER";
/// Maximum number of examined bytes of a script.
pub const HEAD: usize = 64 << 10;
/// Maximum length in bytes of a comment that isn't accepted yet. Slurm keeps less.
const LONGEST: usize = 4096;
/// Maximum number of settings of a job.
const MOST_PAIRS: usize = 256;
/// Maximum number of characters of a text in a refusal.
const SHOWN: usize = 80;
/// Maximum number of slots of a job.
const MOST_SLOTS: u32 = 100_000;

/// The separator of an accepted comment's parts, and the other characters that are escaped in them.
const PART: &AsciiSet = &CONTROLS.add(b';').add(b'%');
/// A key ends at the first `=`, and Trainmaster's own keys begin with `@`.
const KEY: &AsciiSet = &PART.add(b'=').add(b'@');
/// The same for the options of sbatch, whose separator is `/`.
const FIELD: &AsciiSet = &PART.add(b'/');

/// Keys with values, in their original order.
pub type Pairs = Vec<(String, String)>;

/// Whether a job is Trainmaster's. The check is cheap, because it is made for every submitted job.
///
/// ```
/// use trainmaster_adapters::slurm::comment::is_ours;
/// assert!(is_ours("trainmaster;mode=allreduce", ""));
/// assert!(is_ours("", "#!/bin/sh\n#TRAINMASTER mode = allreduce\nsrun ./train\n"));
/// assert!(!is_ours("trainmasters of old", "#!/bin/sh\n#SBATCH -n 2\nsrun ./train\n#TRAINMASTER mode = sync\n"));
/// ```
pub fn is_ours(comment: &str, script: &str) -> bool {
    body(comment).is_some() || lines(script).next().is_some()
}

/// The text after the mark.
fn body(comment: &str) -> Option<&str> {
    let rest = comment.trim_start().strip_prefix(MARK)?;
    if rest.trim().is_empty() { Some("") } else { rest.trim_start().strip_prefix(';') }
}

/// The `#TRAINMASTER` lines before the script's first command, in the same part in which sbatch reads `#SBATCH` lines.
fn lines(script: &str) -> impl Iterator<Item = &str> {
    let end = (0..=HEAD.min(script.len())).rev().find(|at| script.is_char_boundary(*at)).unwrap_or(0);
    let head = script[..end].lines().map(str::trim_start);
    let head = head.take_while(|line| line.is_empty() || line.starts_with('#'));
    head.filter_map(|line| line.strip_prefix(LINE).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t'])))
}

/// Returns the settings of a job's owner: the script's lines, then the comment. The comment has precedence for keys
/// that are in both.
///
/// # Errors
/// A part isn't `key=value` or has invisible characters, or there are too many parts.
pub fn written(comment: &str, script: &str) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    if comment.len() > LONGEST {
        return Err(format!("comment: {} bytes must be at most {LONGEST}", comment.len()));
    }
    let in_comment = body(comment).unwrap_or_default();
    let parts =
        lines(script).map(|line| (LINE, line)).chain(split(in_comment).into_iter().map(|part| ("comment", part)));
    for (place, part) in parts.filter(|(_, part)| !part.trim().is_empty()) {
        let Some((key, value)) = part.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
            let part = shown(part, SHOWN);
            return Err(format!("{place}: {part:?} is no setting; write key=value, such as worker.max=8"));
        };
        let (seen, given) = (shown(key, SHOWN), shown(value, SHOWN));
        if key.starts_with('@') {
            return Err(format!("{seen}: {given:?} can't be given; keys with @ are Trainmaster's own"));
        }
        if part.trim().chars().any(is_unseen) {
            return Err(format!("{seen}: {given} has control characters; leave them out"));
        }
        if place == "comment" {
            pairs.retain(|(known, _)| known != key || known.is_empty());
        }
        if pairs.len() == MOST_PAIRS {
            return Err(format!("{seen}: is the {}th setting; a job may have {MOST_PAIRS}", MOST_PAIRS + 1));
        }
        pairs.push((key.into(), value.into()));
    }
    Ok(pairs)
}

/// Splits at semicolons outside quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut quote) = (Vec::new(), 0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, ';') => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// The options of sbatch at submission. They restore the job when it is handed back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `--nodes`: minimum and maximum; 0 if not given.
    pub nodes: (u32, u32),
    /// Tasks.
    pub tasks: u32,
    /// `--ntasks-per-node`; 0 if not given.
    pub tasks_per_node: u32,
    /// `--cpus-per-task`.
    pub cpus_per_task: u32,
    /// `--mem` or `--mem-per-cpu`.
    pub memory: Memory,
    /// GPUs on each node; empty for none.
    pub tres_per_node: String,
    /// The total number of GPUs, if the number of nodes wasn't given.
    pub tres_per_job: String,
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { nodes: (least, most), tasks, tasks_per_node, cpus_per_task, memory, tres_per_node, tres_per_job } =
            self;
        write!(
            f,
            "{least}/{most}/{tasks}/{tasks_per_node}/{cpus_per_task}/{}/{}/{}",
            memory.raw(),
            utf8_percent_encode(tres_per_node, FIELD),
            utf8_percent_encode(tres_per_job, FIELD),
        )
    }
}

impl Asked {
    fn read(text: &str) -> Option<Self> {
        let [least, most, tasks, tasks_per_node, cpus_per_task, memory, tres_per_node, tres_per_job] =
            text.split('/').collect::<Vec<_>>()[..]
        else {
            return None;
        };
        Some(Self {
            nodes: (least.parse().ok()?, most.parse().ok()?),
            tasks: tasks.parse().ok()?,
            tasks_per_node: tasks_per_node.parse().ok()?,
            cpus_per_task: cpus_per_task.parse().ok()?,
            memory: Memory::of(memory.parse().ok()?),
            tres_per_node: plain(tres_per_node)?.into_owned(),
            tres_per_job: plain(tres_per_job)?.into_owned(),
        })
    }
}

/// Decodes an escaped text.
fn plain(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

/// Writes the head of an accepted comment: the job's description.
fn write_pairs(f: &mut std::fmt::Formatter<'_>, pairs: &Pairs) -> std::fmt::Result {
    f.write_str(MARK)?;
    pairs.iter().try_for_each(|(key, value)| {
        write!(f, ";{}={}", utf8_percent_encode(key, KEY), utf8_percent_encode(value, PART))
    })
}

/// The comment of an accepted job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The description, including defaults from sbatch's options.
    pub pairs: Pairs,
    /// Hash of the token in its environment.
    pub token: [u8; 32],
    /// The owner's `--begin`, in Unix seconds; 0: at once.
    pub begin: i64,
    /// The options of sbatch.
    pub asked: Asked,
    /// A previous comment that isn't Trainmaster's.
    pub note: String,
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_pairs(f, &self.pairs)?;
        f.write_str(";@token=")?;
        f.write_str(&hex(&self.token))?;
        write!(f, ";@begin={};@asked={}", self.begin, self.asked)?;
        if !self.note.is_empty() {
            write!(f, ";@note={}", self.note)?;
        }
        Ok(())
    }
}

impl Tag {
    /// Reads the comment of an accepted job. Returns `None` for every other comment.
    pub fn read(comment: &str) -> Option<Self> {
        let (pairs, own, note) = accepted(comment)?;
        let token = from_hex(own.get("@token")?)?;
        let begin = own.get("@begin").map_or(Some(0), |begin| begin.parse().ok())?;
        Some(Self { pairs, token, begin, asked: Asked::read(own.get("@asked")?)?, note: note.into() })
    }
}

/// The comment of the second component of an accepted heterogeneous job, which has the parameter servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Additions to the leader's description.
    pub pairs: Pairs,
    /// The options of sbatch.
    pub asked: Asked,
    /// A previous comment that isn't Trainmaster's.
    pub note: String,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_pairs(f, &self.pairs)?;
        write!(f, ";@part=servers;@asked={}", self.asked)?;
        if !self.note.is_empty() {
            write!(f, ";@note={}", self.note)?;
        }
        Ok(())
    }
}

impl Part {
    /// Reads the comment of an accepted second component. Returns `None` for every other comment.
    pub fn read(comment: &str) -> Option<Self> {
        let (pairs, own, note) = accepted(comment)?;
        own.get("@part").filter(|part| **part == "servers")?;
        Some(Self { pairs, asked: Asked::read(own.get("@asked")?)?, note: note.into() })
    }
}

/// An accepted comment's description, Trainmaster's own keys, and the note.
fn accepted(comment: &str) -> Option<(Pairs, BTreeMap<&str, &str>, &str)> {
    let body = body(comment)?;
    let (body, note) = body.split_once(";@note=").unwrap_or((body, ""));
    let (mut pairs, mut own) = (Pairs::new(), BTreeMap::new());
    for part in body.split(';').skip_while(|part| part.is_empty()) {
        let (key, value) = part.split_once('=')?;
        if key.starts_with('@') {
            own.insert(key, value);
        } else {
            pairs.push((plain(key)?.into_owned(), plain(value)?.into_owned()));
        }
    }
    Some((pairs, own, note))
}

/// A job's last allocation, as stored in its admin comment. It is sufficient for a new agent, for people and for the
/// script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The job's number in the core.
    pub job: u64,
    /// The decision.
    pub decision: u64,
    /// The number of restarts so far.
    pub incarnation: u32,
    /// The number of changes in place.
    pub revision: u32,
    /// Its slots, by node, role and index.
    pub slots: Vec<ObservedSlot>,
}

impl std::fmt::Display for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { job, decision, incarnation, revision, slots } = self;
        let Shape { workers, servers } = self.shape();
        write!(f, "{MARK};job={job};workers={workers};servers={servers};incarnation={incarnation};")?;
        write!(f, "revision={revision};decision={decision};slots=")?;
        let follows = |a: &ObservedSlot, b: &ObservedSlot| {
            (&a.server, a.role) == (&b.server, b.role) && a.index.checked_add(1) == Some(b.index)
        };
        let mut node = None;
        for run in slots.chunk_by(follows) {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            match node.replace(&first.server) {
                Some(same) if *same == first.server => f.write_char('+')?,
                before => write!(f, "{}{}:", if before.is_some() { "," } else { "" }, first.server)?,
            }
            write!(f, "{}{}", letter(first.role), first.index)?;
            if first.index != last.index {
                write!(f, "-{}", last.index)?;
            }
        }
        Ok(())
    }
}

fn letter(role: Role) -> char {
    match role {
        Role::Worker => 'w',
        Role::Server => 's',
    }
}

impl Given {
    /// Reads an admin comment. Returns `None` for other texts.
    pub fn read(text: &str) -> Option<Self> {
        let mut given = Self::default();
        let (mut said, mut seen) = (Shape::default(), 0);
        let body = body(text)?;
        // The rest is for people.
        for part in body.split_once(";why=").map_or(body, |(given, _)| given).split(';') {
            let (key, value) = part.split_once('=')?;
            seen += 1;
            match key {
                "job" => given.job = value.parse().ok()?,
                "workers" => said.workers = value.parse().ok()?,
                "servers" => said.servers = value.parse().ok()?,
                "incarnation" => given.incarnation = value.parse().ok()?,
                "revision" => given.revision = value.parse().ok()?,
                "decision" => given.decision = value.parse().ok()?,
                "slots" => given.slots = read_slots(value, said)?,
                _ => seen -= 1,
            }
        }
        (seen == 7 && given.shape() == said).then_some(given)
    }

    /// The slots that an order gives to a job.
    pub fn of(job: JobId, decision: DecisionId, order: &Order, run: &Run) -> Self {
        let slots = run.slots.iter().map(|(slot, placement)| ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: placement.server.clone(),
            devices: Vec::new(),
        });
        let mut slots: Vec<_> = slots.collect();
        slots.sort_unstable_by(|a, b| (&a.server, a.role, a.index).cmp(&(&b.server, b.role, b.index)));
        Self { job: job.0, decision: decision.0, incarnation: order.incarnation, revision: order.revision, slots }
    }

    /// Whether both give the same, whichever decision it was.
    pub fn gives_as(&self, other: &Self) -> bool {
        let what = |given: &Self| (given.job, given.incarnation, given.revision);
        what(self) == what(other) && self.slots == other.slots
    }

    /// The total numbers of workers and parameter servers.
    pub fn shape(&self) -> Shape {
        let count = |role| self.slots.iter().filter(|slot| slot.role == role).count() as u32;
        Shape { workers: count(Role::Worker), servers: count(Role::Server) }
    }
}

/// Reads `n1:w0-1+s0,n2:w2-3`, with at most as many slots as `shape`.
fn read_slots(text: &str, shape: Shape) -> Option<Vec<ObservedSlot>> {
    let mut slots = Vec::new();
    let mut left = shape.workers.checked_add(shape.servers).filter(|slots| *slots <= MOST_SLOTS)?;
    for node in text.split(',').filter(|node| !node.is_empty()) {
        let (server, runs) = node.split_once(':')?;
        for run in runs.split('+') {
            let role = [Role::Worker, Role::Server].into_iter().find(|role| run.starts_with(letter(*role)))?;
            let (first, last) = run[1..].split_once('-').unwrap_or((&run[1..], &run[1..]));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            left = left.checked_sub(last.checked_sub(first)?.checked_add(1)?)?;
            let slot = |index| ObservedSlot { role, index, server: server.into(), devices: Vec::new() };
            slots.extend((first..=last).map(slot));
        }
    }
    Some(slots)
}

/// The description from a tag's pairs. `name` is the job's name in Slurm.
///
/// # Errors
/// The error names the key, the value and the allowed values.
pub fn spec(pairs: &[(String, String)], name: &str) -> Result<JobSpec, String> {
    let named = pairs.iter().any(|(key, _)| key == "name");
    let name = plain_name(name);
    let default = (!named).then_some(("name", name.as_str()));
    let pairs = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    JobSpec::from_pairs(default.into_iter().chain(pairs)).map_err(|error| error.to_string())
}

/// Converts a name of Slurm's to one that the core allows.
fn plain_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = name.chars().take(64).map(allowed).collect();
    let name = name.trim_start_matches(['.', '-']);
    match name.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("job{name}"),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_with_separators_read_back() {
        let pairs = [("=note//", "x;%"), ("a=b", "c=d"), ("@note", "e"), ("@token", "f")];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let tag = Tag { pairs, token: [7; 32], ..Tag::default() };
        assert_eq!(Tag::read(&tag.to_string()), Some(tag));
    }

    #[test]
    fn comment_and_script_become_pairs() {
        let script = "#!/bin/bash\n\n  #SBATCH -n 4\n#TRAINMASTER worker.max = 8\n#TRAINMASTER mode=sync\n# a note\n\
            #TRAINMASTERS no\nsrun x\n#TRAINMASTER late = 1\n";
        let pairs = written("trainmaster; mode=async ;worker.command=\"a;b\"", script).unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("worker.max", "8"), ("mode", "async"), ("worker.command", "\"a;b\"")]);
        assert!(written("trainmaster;modesync", "").unwrap_err().contains("modesync"));
        assert!(written("trainmaster;@token=1", "").unwrap_err().contains("@token"));
        assert!(is_ours("trainmaster", "") && is_ours(" trainmaster ;", ""));
        assert!(!is_ours("trainmaster2", "") && !is_ours("my trainmaster;a=1", "") && !is_ours("", ""));
        for hidden in ["labels.x=\u{1b}[2J", "labels.x=a\u{202e}b", "labels.\u{7}=1"] {
            let error = written(&format!("trainmaster;{hidden}"), "").unwrap_err();
            assert!(error.contains("control characters") && !error.contains(is_unseen), "{error:?}");
        }
        // The limit may be inside a character of the script.
        assert!(!is_ours("", &format!("#{}", "é".repeat(HEAD))));
    }

    proptest! {
        #[test]
        fn an_accepted_comment_reads_back(
            pairs in prop::collection::vec(("[a-z][a-z.;%]{0,8}", ".{0,12}"), 0..6),
            token in any::<[u8; 32]>(),
            begin in 0_i64..1 << 40,
            numbers in any::<[u32; 5]>(),
            memory in prop_oneof![
                Just(Memory::Unset),
                (1_u64..1 << 40).prop_map(Memory::PerNode),
                (1_u64..1 << 40).prop_map(Memory::PerCpu),
            ],
            gpus in "(gres:gpu(:[a-z0-9]{1,5})?:[1-9])?|[a-z;@=/%]{0,12}",
            note in ".{0,30}",
        ) {
            let [least, most, tasks, tasks_per_node, cpus_per_task] = numbers;
            let asked = Asked {
                nodes: (least, most), tasks, tasks_per_node, cpus_per_task,
                memory,
                tres_per_node: gpus.clone(), tres_per_job: gpus,
            };
            let part = Part { pairs: pairs.clone(), asked: asked.clone(), note: note.clone() };
            prop_assert_eq!(Tag::read(&part.to_string()), None);
            prop_assert_eq!(Part::read(&part.to_string()), Some(part));
            let tag = Tag { pairs, token, begin, asked, note };
            prop_assert_eq!(Part::read(&tag.to_string()), None);
            prop_assert_eq!(Tag::read(&tag.to_string()), Some(tag));
        }

        #[test]
        fn nothing_that_is_written_says_whose_token_it_is(
            parts in prop::collection::vec("[a-z.]{1,4}( ?=|;|@|token|asked|note|\"|'|%3B){0,6}", 1..6),
        ) {
            let line = format!("#TRAINMASTER labels.x = \
                {};@token={};@begin=0;@asked=0/0/1/0/1/0//;@note=", parts.concat(), "ab".repeat(32));
            let Ok(pairs) = written("", &line) else { return Ok(()) };
            let tag = Tag { pairs, token: [7; 32], ..Tag::default() };
            prop_assert_eq!(Tag::read(&tag.to_string()), Some(tag));
        }

        #[test]
        fn no_text_is_too_strange(comment in ".{0,200}", script in ".{0,200}") {
            let _ = (is_ours(&comment, &script), written(&comment, &script));
            let _ = (Tag::read(&comment), Given::read(&comment));
            let ours = format!("trainmaster;{comment}");
            let _ = (Tag::read(&ours), Part::read(&ours), Given::read(&ours));
            if let Ok(pairs) = written(&ours, &script) {
                let _ = spec(&pairs, &script);
            }
        }

        #[test]
        fn what_was_given_reads_back(
            job: u64, decision: u64, incarnation: u32, revision: u32,
            slots in prop::collection::btree_set(
                (0..4_u8, any::<bool>(), prop_oneof![0..12_u32, Just(u32::MAX)]),
                0..40,
            ),
        ) {
            let slot = |(node, worker, index)| ObservedSlot {
                role: if worker { Role::Worker } else { Role::Server },
                index,
                server: format!("gpu-{node}.a"),
                devices: Vec::new(),
            };
            let slots = slots.into_iter().map(slot).collect();
            let given = Given { job, decision, incarnation, revision, slots };
            prop_assert_eq!(Given::read(&given.to_string()), Some(given.clone()));
            prop_assert_eq!(Given::read(&format!("{given};why=needs 2 GPU; has none")), Some(given));
        }
    }

    #[test]
    fn there_is_an_end_to_what_is_read() {
        let lines = |count: usize| (0..count).map(|at| format!("#TRAINMASTER labels.a{at} = 1\n")).collect::<String>();
        assert_eq!(written("", &lines(256)).unwrap().len(), 256);
        assert!(written("", &lines(257)).unwrap_err().contains("257th"));
        assert!(written(&format!("trainmaster;labels.x={}", "y".repeat(5000)), "").unwrap_err().contains("4096"));
        let long = written(&format!("trainmaster;{}", "y".repeat(4000)), "").unwrap_err();
        assert!(long.len() < 300, "{long}");
    }

    #[test]
    fn more_slots_than_were_given_are_no_admin_comment_of_ours() {
        let said = |slots: &str| {
            format!("trainmaster;job=1;workers=2;servers=1;incarnation=1;revision=0;decision=1;slots={slots}")
        };
        let given = Given::read(&said("n1:w0-1+s0")).unwrap();
        assert_eq!((given.shape(), given.slots.len()), (Shape { workers: 2, servers: 1 }, 3));
        for wrong in ["n1:w0+s0", "n1:w0-4294967295+s0", "n1:w1-0", "n1:x0-1+s0", "n1w0-1+s0", "n1:+", ""] {
            assert_eq!(Given::read(&said(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn every_name_of_slurms_becomes_one_of_ours() {
        for name in ["17", "", "..", "a b/c", "résumé", &"x".repeat(300)] {
            let pairs = [("mode", "allreduce"), ("worker.gpu", "1")].map(|(k, v)| (k.to_owned(), v.to_owned()));
            assert!(spec(&pairs, name).is_ok(), "{name:?}: {:?}", spec(&pairs, name));
        }
    }
}
