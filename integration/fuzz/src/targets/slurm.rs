//! Input that any user of Slurm can send to slurmctld.

use std::ffi::{CStr, CString, c_char};

use trainmaster::text::{trainmaster_c_string, trainmaster_message};
use trainmaster_adapters::slurm::{
    comment::{Given, Part, Tag, spec, written},
    gres::{parse_gres, parse_tres, total},
    hostlist::expand,
};
use trainmaster_slurm_submit::{
    CHeld, CRandom, CSubmission, Outcome, TRAINMASTER_MESSAGE, trainmaster_is_ours, trainmaster_is_reserved,
    trainmaster_submit,
};

use super::seeds::{text, texts};
use crate::target::Target;

const WORDS: &[&str] = &[
    "#TRAINMASTER ",
    "#!/bin/sh\n",
    "trainmaster;",
    ";@token=",
    ";@begin=",
    ";@asked=",
    ";@note=",
    ";@part=servers",
    "worker.",
    "server.",
    "mode=allreduce",
    "a.",
    "%3B",
    "gres:gpu:",
    "gpu:a100:2",
    "worker.max=8",
    "constraints.labels.",
    "={a=",
    "=[",
    "utility",
    "profile=",
    "separate_roles=true",
    "hetjob",
    "abababababababababababababababababababababababababababababababab",
];

/// A whole submission through the plugin's C ABI.
pub(super) const SUBMISSION: Target = Target { name: "submission", run: submission, seeds: submissions, words: WORDS };

fn submissions() -> Vec<Vec<u8>> {
    let of = |numbers: [u8; 8], texts: &[&str]| [&numbers[..], texts.join("\0").as_bytes()].concat();
    vec![
        of([0; 8], &["name", "trainmaster;mode=allreduce;worker.gpu=1", "#!/bin/sh\nsrun x\n"]),
        of(
            [3, 1, 2, 4, 2, 3, 0, 9],
            &["7", "note", "#!/bin/sh\n#TRAINMASTER worker.max = 8\n#TRAINMASTER server.cpu = 1\n"],
        ),
        of(
            [1; 8],
            &["a", "trainmaster;server.cpu=2;model=resnet50", "#!/bin/sh\n", "", "low", "gres:gpu:2", "", "gpu:4"],
        ),
        of(
            [2; 8],
            &["a", "trainmaster;mode=sync;worker={cpu=1};server={cpu=1}", "#!/bin/sh\n", "1-3", "high", "", "gpu:1"],
        ),
    ]
}

fn submission(bytes: &[u8]) {
    let (numbers, rest) = bytes.split_at(bytes.len().min(8));
    let mut texts: Vec<CString> =
        rest.split(|byte| *byte == 0).map(|part| CString::new(part).expect("no zero")).collect();
    texts.resize(texts.len().max(9), CString::default());
    let pointer = |at: usize| match &texts[at] {
        empty if empty.is_empty() => trainmaster_c_string::NULL,
        text => trainmaster_c_string::new(text),
    };
    // Each range once: unset, small, and at its ends.
    let number = |at: usize| match numbers.get(at).copied().unwrap_or(0) {
        0 => -1,
        small @ 1..=200 => i64::from(small),
        201..=220 => i64::from(u32::MAX) - 2,
        221..=240 => i64::from(u16::MAX),
        _ => i64::MAX,
    };
    let job = CSubmission {
        name: pointer(0),
        comment: pointer(1),
        script: pointer(2),
        array: pointer(3),
        partition: pointer(4),
        tres_per_node: pointer(5),
        tres_per_task: pointer(6),
        tres_per_job: pointer(7),
        unsupported_option: pointer(8),
        unsupported_value: pointer(8),
        component: number(0).min(2) - 1,
        begin: number(1),
        requeue: number(2),
        min_nodes: number(3),
        max_nodes: number(4),
        tasks: number(5),
        tasks_per_node: number(6),
        cpus_per_task: number(7),
        memory: u64::from_le_bytes(numbers.try_into().unwrap_or_default()),
    };
    let ours = trainmaster_is_ours(job.comment, job.script, job.component);
    let (mut held, mut text) = (CHeld::NONE, [0 as c_char; TRAINMASTER_MESSAGE]);
    let mut message = trainmaster_message::new(&mut text);
    let outcome = trainmaster_submit(&job, 1000, &CRandom { bytes: [7; 16] }, &mut held, Some(&mut message));
    assert!(outcome != Outcome::Failed, "{}", shown(&text).to_string_lossy());
    assert!(ours || outcome != Outcome::Held, "it was held and isn't ours");
    if outcome == Outcome::Held {
        let comment = shown(&held.comment);
        assert!(trainmaster_is_reserved(trainmaster_c_string::new(&comment)));
        let comment = comment.to_str().expect("UTF-8");
        let own = *blake3::hash("07".repeat(16).as_bytes()).as_bytes();
        let leads = Tag::read(comment).map(|tag| tag.token);
        assert!(leads == Some(own) || Part::read(comment).is_some(), "whose token: {comment}");
    }
}

/// The text up to the first zero byte.
fn shown(text: &[c_char]) -> CString {
    let bytes: Vec<u8> = text.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).expect("it is terminated").to_owned()
}

/// The description of a job: its comment and the head of its script.
pub(super) const DESCRIPTION: Target =
    Target { name: "description", run: description, seeds: descriptions, words: WORDS };

fn descriptions() -> Vec<Vec<u8>> {
    texts(&[
        "trainmaster;mode=allreduce;worker.gpu=1\0",
        "\0#!/bin/sh\n#TRAINMASTER worker = { cpu = 1, max = 8 }\n#TRAINMASTER server.cpu = 1\n\
         #TRAINMASTER labels.a = x;y\n",
        "trainmaster;utility={kind=\"sigmoid\",value=1,decay=0.1,target=\"1h\"};worker.command=\"a;b\"\0#!/bin/sh\n",
    ])
}

fn description(bytes: &[u8]) {
    let text = text(bytes);
    let (comment, script) = text.split_once('\0').unwrap_or((&text, ""));
    let Ok(pairs) = written(comment, script) else { return };
    let _ = spec(&pairs, script);
    let tag = Tag { pairs, token: [7; 32], ..Tag::default() };
    assert_eq!(Tag::read(&tag.to_string()).as_ref(), Some(&tag));
}

/// Comments of other jobs.
pub(super) const COMMENT: Target = Target { name: "comment", run: comment, seeds: comments, words: WORDS };

fn comments() -> Vec<Vec<u8>> {
    let pairs = vec![("mode".to_owned(), "sync".to_owned()), ("labels.a".to_owned(), "x;%".to_owned())];
    let tag = Tag { pairs: pairs.clone(), note: "hello".into(), ..Tag::default() }.to_string();
    let given = "trainmaster;job=1;workers=2;servers=1;incarnation=1;revision=0;decision=1;slots=n1:w0-1+s0;why=x";
    texts(&[&tag, &Part { pairs, ..Part::default() }.to_string(), given])
}

fn comment(bytes: &[u8]) {
    let text = text(bytes);
    for text in [&*text, &format!("trainmaster;{text}")] {
        if let Some(tag) = Tag::read(text) {
            let _ = spec(&tag.pairs, "name");
            assert_eq!(Tag::read(&tag.to_string()), Some(tag));
        }
        if let Some(part) = Part::read(text) {
            assert_eq!(Part::read(&part.to_string()), Some(part));
        }
        let _ = Given::read(text);
    }
}

/// GRES and TRES.
pub(super) const RESOURCES: Target = Target {
    name: "resources",
    run: |bytes| {
        let text = text(bytes);
        let _ = (total(&parse_gres(&text)), parse_tres(&text));
    },
    seeds: || {
        texts(&[
            "gpu:a100:4(S:0-1),shard:8",
            "gres/gpu=2",
            "gpu:2(IDX:0,2-3)",
            "cpu=16,mem=62.50G,gres/gpu:a100=4",
            "N/A",
        ])
    },
    words: &["gpu:", "gres:", "gres/", "(IDX:", "(S:0-1)", "no_consume", "4G", "P", "(null):", "mem="],
};

/// Node lists.
pub(super) const NODES: Target = Target {
    name: "nodes",
    run: |bytes| {
        let names = expand(&text(bytes)).unwrap_or_default();
        assert!(names.len() <= 1 << 17 && names.iter().all(|name| name.len() < 1200));
    },
    seeds: || texts(&["node[1-3,7],gpu-[01-02]", "r[1-2]n[01-02]x", "a,b", "(null)"]),
    words: &["[0-9]", "[1-100000]", "0000", "node", "[", "]"],
};
