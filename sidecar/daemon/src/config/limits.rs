//! The configuration's limits, and those of the components that they become.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trainmaster_core::{Budget, Span, amount::duration};
use trainmaster_feed::Limits;
use trainmaster_host::{JournalLimits, TicketLimits};
use trainmaster_net::LoadLimits;

use super::{
    super::{
        access::KeeperLimits,
        host::{HostOptions, JobLimits},
    },
    Config,
};

/// Limits of engines and fits ([`TicketLimits`]).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DecisionConfig {
    /// Time until an engine's decision is abandoned.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::DurationText"))]
    pub limit: Duration,
    /// Maximum steps of an engine. A step is about one examined candidate.
    pub steps: u64,
    /// Maximum wait of a due decision for a round of fits.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::DurationText"))]
    pub fits_wait: Duration,
    /// Time between rounds of fits while reports come in.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::DurationText"))]
    pub fits_every: Duration,
}

/// Limits of the journal ([`JournalLimits`]), and what it keeps.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JournalConfig {
    /// Minimum records between snapshots.
    pub snapshot_records: usize,
    /// Minimum bytes of records between snapshots.
    pub snapshot_bytes: usize,
    /// Bytes of records that are kept for replay, in addition to those that a restart needs.
    pub history_bytes: u64,
    /// Maximum bytes of records in memory while the disk can't be written.
    pub waiting_bytes: usize,
    /// Time after which an unfinished write counts as failed.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::DurationText"))]
    pub write_limit: Duration,
    /// Number of ended jobs that are kept for display.
    pub ended_jobs: usize,
}

/// Limits of callers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitsConfig {
    /// Maximum number of connections. Further ones wait to be accepted.
    pub connections: usize,
    /// Maximum number of job lists that are read or watched at a time.
    pub lists: usize,
    /// Maximum bytes of requests without an answer.
    pub request_bytes: usize,
    /// Reports of one job per second.
    pub reports_per_second: u32,
    /// Bytes of one job's reports per second.
    pub job_bytes_per_second: u32,
    /// Bytes of all reports of a tenant's jobs per second.
    pub tenant_bytes_per_second: u32,
    /// Maximum number of streams that watch one job.
    pub watchers_per_job: usize,
    /// Maximum number of active jobs.
    pub jobs: usize,
    /// Maximum number of a tenant's active jobs.
    pub jobs_per_tenant: usize,
}

impl Default for DecisionConfig {
    fn default() -> Self {
        let TicketLimits { decision: limit, fits_wait, fits_every, .. } = TicketLimits::default();
        Self { limit, steps: 100_000_000, fits_wait, fits_every }
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        let JournalLimits { snapshot_records, snapshot_bytes, waiting_bytes, write_limit } = JournalLimits::default();
        let (history_bytes, ended_jobs) = (64 << 20, 1000);
        Self { snapshot_records, snapshot_bytes, history_bytes, waiting_bytes, write_limit, ended_jobs }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let (load, jobs, feed) = (LoadLimits::default(), JobLimits::default(), Limits::default());
        Self {
            connections: 10_000,
            lists: load.lists,
            request_bytes: load.request_bytes,
            reports_per_second: feed.reports_per_second,
            job_bytes_per_second: feed.job_bytes_per_second,
            tenant_bytes_per_second: feed.tenant_bytes_per_second,
            watchers_per_job: feed.watchers_per_job,
            jobs: jobs.all,
            jobs_per_tenant: jobs.tenant,
        }
    }
}

impl Config {
    /// The first limit of 0 with which the daemon would answer no call, make no decision or take no report, and what is
    /// allowed. Other limits of 0 have a use: `limits.jobs = 0` closes submission.
    pub(super) fn zero(&self) -> Option<(&'static str, &'static str)> {
        let Self { decision, journal, limits, .. } = self;
        const SOME: &str = "0 must be at least 1";
        const TIME: &str = "\"0s\" must be above zero";
        let all = [
            ("decision.limit", TIME, decision.limit.is_zero()),
            ("decision.steps", SOME, decision.steps == 0),
            ("journal.waiting_bytes", SOME, journal.waiting_bytes == 0),
            ("journal.write_limit", TIME, journal.write_limit.is_zero()),
            ("journal.snapshot_bytes", SOME, journal.snapshot_bytes == 0),
            ("journal.snapshot_records", SOME, journal.snapshot_records == 0),
            ("limits.connections", SOME, limits.connections == 0),
            ("limits.lists", SOME, limits.lists == 0),
            ("limits.request_bytes", SOME, limits.request_bytes == 0),
            ("limits.reports_per_second", SOME, limits.reports_per_second == 0),
            ("limits.job_bytes_per_second", SOME, limits.job_bytes_per_second == 0),
            ("limits.tenant_bytes_per_second", SOME, limits.tenant_bytes_per_second == 0),
            ("limits.watchers_per_job", SOME, limits.watchers_per_job == 0),
        ];
        all.into_iter().find(|(.., is_zero)| *is_zero).map(|(key, allowed, _)| (key, allowed))
    }

    pub(crate) fn load_limits(&self) -> LoadLimits {
        let LimitsConfig { lists, request_bytes, .. } = self.limits;
        LoadLimits { lists, request_bytes, ..LoadLimits::default() }
    }

    pub(crate) fn keeper_limits(&self) -> KeeperLimits {
        let LimitsConfig { connections, lists, .. } = self.limits;
        KeeperLimits { connections, lists, metrics_open: self.metrics_open }
    }

    pub(crate) fn feed_limits(&self) -> Limits {
        let LimitsConfig {
            reports_per_second, job_bytes_per_second, tenant_bytes_per_second, watchers_per_job, ..
        } = self.limits;
        Limits {
            reports_per_second,
            job_bytes_per_second,
            tenant_bytes_per_second,
            watchers_per_job,
            ended_jobs: self.journal.ended_jobs,
            ..Limits::default()
        }
    }

    /// The budget of steps of an engine.
    pub(crate) fn budget(&self) -> Budget {
        Budget::steps(self.decision.steps.max(1))
    }

    pub(crate) fn host_options(&self) -> HostOptions {
        let DecisionConfig { limit, fits_wait, fits_every, .. } = self.decision;
        let JournalConfig { snapshot_records, snapshot_bytes, waiting_bytes, write_limit, .. } = self.journal;
        HostOptions {
            tickets: TicketLimits { decision: limit, budget: self.budget(), fits_wait, fits_every },
            journal: JournalLimits { snapshot_records, snapshot_bytes, waiting_bytes, write_limit },
            grace: Span(i64::try_from(self.grace.as_millis()).unwrap_or(i64::MAX)),
            jobs: JobLimits { all: self.limits.jobs, tenant: self.limits.jobs_per_tenant },
        }
    }
}
