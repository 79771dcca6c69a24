//! What several targets share.

/// The bytes as text, for most parsers.
pub(super) fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Seeds from texts.
pub(super) fn texts(seeds: &[&str]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}

/// A job file with all keys.
pub(super) const JOB: &str = r#"
name = "resnet-50"
tenant = "vision"
queue = "gold"
priority = 3
model = "resnet50"
mode = "sync"
batch = 256
examples = 50000
separate_roles = true
model_size = "100MiB"
time_limit = "8h"
deadline = "2h"
accuracy = 0.93
urgency = 3
stop = "optimal"
restart_cost = "20s"
profile = [{ p = 1, w = 1, speed = 2.5 }]

[worker]
cpu = 4
memory = "8GiB"
"gpu:a100" = 1
bandwidth = "1Gbit"
min = 1
max = 16
requested = 2
command = "python train.py --lr 0.1"

[server]
cpu = 2
max = 8

[convergence]
delta = 0.01
patience = 3
max_epochs = 90

[utility]
kind = "sigmoid"
value = 10.0
decay = 0.1
target = "1h"

[constraints]
labels = { zone = "a", gpu = "true" }

[dataset]
chunks = 400
batches_per_chunk = 58
epochs = 40
batch_time = "250ms"
upload = "cloud"
chunk_size = "64MiB"
"#;

/// Keys and values of job files.
pub(super) const JOB_WORDS: &[&str] = &[
    "worker",
    "server",
    "worker.",
    "server.",
    ".resources.",
    "gpu:a100",
    "[[profile]]",
    "{ ",
    " }",
    "min = ",
    "max = ",
    "requested = ",
    "\"8GiB\"",
    "\"1h\"",
    "allreduce",
    "async",
    "labels.",
    "a.",
    "[",
    "{a=",
    "'''",
    "\"\"\"",
    "inf",
    "nan",
    "0x7fffffffffffffff",
    "2026-01-01T00:00:00Z",
    "dataset",
    "chunks = ",
    "partitions = [{ parameters = 1 }]",
    "after = [",
    "profile",
    "speed = ",
    "workers = ",
];
