//! Values whose form is read by hand, for the schema of job files.

#![expect(dead_code, reason = "only their schemas are used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;

use crate::amount::{BandwidthText, Quantity, SizeText};

#[derive(JsonSchema)]
#[schemars(untagged, inline)]
pub(super) enum Batch {
    Fixed(#[schemars(range(min = 1))] u64),
    Range(Range),
}

#[derive(JsonSchema)]
#[schemars(inline, deny_unknown_fields)]
pub(super) struct Range {
    /// The submitted batch, with which the job starts. Without the key: `min`.
    #[schemars(range(min = 1))]
    size: Option<u64>,
    /// The smallest batch.
    #[schemars(range(min = 1))]
    min: Option<u64>,
    /// The largest batch.
    #[schemars(range(min = 1))]
    max: Option<u64>,
    /// The examples that one replica of the model computes at once.
    #[schemars(range(min = 1))]
    local: Option<u64>,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
pub(super) enum Launchers {
    None,
    Torchrun,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
pub(super) enum Elasticity {
    InPlace,
    Restart,
    Fixed,
}

#[derive(JsonSchema)]
#[schemars(untagged, inline)]
pub(super) enum Sizes {
    One(u32),
    Text(String),
    List(Vec<u32>),
}

/// One role of a job.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("patternProperties" = { "^gpu:.+": { "type": ["number", "string"] } }))]
pub(super) struct Role {
    /// GPUs of any type.
    gpu: Option<Quantity>,
    /// Cores.
    cpu: Option<Quantity>,
    /// Memory.
    memory: Option<SizeText>,
    /// Disk.
    disk: Option<SizeText>,
    /// Network bandwidth.
    bandwidth: Option<BandwidthText>,
    /// Any other counted resources.
    resources: Option<BTreeMap<String, Quantity>>,
    /// The smallest number with which the job runs. Without the key: 1.
    min: Option<u32>,
    /// The largest number that the job can use. Without the key: `requested`.
    max: Option<u32>,
    /// The number from engines that don't choose. Without the key: the smallest allowed.
    requested: Option<u32>,
    /// The allowed numbers between `min` and `max`, only of workers: `"multiples of 4"`, `"powers of 2"` or a list.
    sizes: Option<Sizes>,
    /// The program to start, without a shell.
    command: Option<String>,
}
