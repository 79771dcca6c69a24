//! The configuration's limits, and those of the components that they become.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trainmaster_core::{
    Budget, Span,
    amount::{bytes, duration},
};
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
    #[serde(with = "bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::BytesForm"))]
    pub snapshot_bytes: usize,
    /// Bytes of records that are kept for replay, in addition to those that a restart needs.
    #[serde(with = "bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::BytesForm"))]
    pub history_bytes: u64,
    /// Maximum bytes of records in memory while the disk can't be written.
    #[serde(with = "bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::BytesForm"))]
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
    #[serde(with = "bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::BytesForm"))]
    pub request_bytes: usize,
    /// Reports of one job per second.
    pub reports_per_second: u32,
    /// Bytes of one job's reports per second.
    #[serde(with = "bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::BytesForm"))]
    pub job_bytes_per_second: u32,
    /// Bytes of all reports of a tenant's jobs per second.
    #[serde(with = "bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::BytesForm"))]
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
    /// The first limit with which the daemon would answer no call, make no decision or take no report, or that is
    /// beyond any use, and what is allowed. Some limits of 0 have a use: `limits.jobs = 0` closes submission.
    pub(super) fn wrong_limit(&self) -> Option<(&'static str, String)> {
        const MANY: u64 = 1_000_000;
        const MOST_BYTES: u64 = 1 << 40;
        const HOUR: Duration = Duration::from_secs(3600);
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let Self { settings, decision, journal, limits, plan_ttl, grace, orphan_grace, .. } = self;
        let (some, none) = (Duration::from_nanos(1), Duration::ZERO);
        let [min_run, backoff] = [settings.stability.min_run, settings.refusal_backoff]
            .map(|span| Duration::from_millis(span.0.unsigned_abs()));
        let times = [
            ("plan_ttl", *plan_ttl, none, DAY),
            ("grace", *grace, none, DAY),
            ("orphan_grace", *orphan_grace, none, 365 * DAY),
            ("decision.limit", decision.limit, some, HOUR),
            ("decision.fits_wait", decision.fits_wait, none, HOUR),
            ("decision.fits_every", decision.fits_every, none, DAY),
            ("journal.write_limit", journal.write_limit, some, HOUR),
            ("scheduler.stability.min_run", min_run, none, 30 * DAY),
            ("scheduler.refusal_backoff", backoff, none, DAY),
        ];
        for (key, time, least, most) in times {
            let [shown, most_shown] =
                [time, most].map(|time| Span(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)));
            if time < least {
                return Some((key, "\"0s\" must be above zero".into()));
            }
            if time > most {
                return Some((key, format!("\"{shown}\" must be at most \"{most_shown}\"")));
            }
        }
        let counts = [
            ("decision.steps", decision.steps, 1000, MANY * MANY),
            ("journal.snapshot_records", journal.snapshot_records as u64, 1, 1000 * MANY),
            ("scheduler.stability.payback", settings.stability.payback.ceil() as u64, 0, 1000),
            ("journal.snapshot_bytes", journal.snapshot_bytes as u64, 1, MOST_BYTES),
            ("journal.history_bytes", journal.history_bytes, 0, MOST_BYTES),
            ("journal.waiting_bytes", journal.waiting_bytes as u64, 1, MOST_BYTES),
            ("journal.ended_jobs", journal.ended_jobs as u64, 0, MANY),
            ("limits.connections", limits.connections as u64, 1, MANY),
            ("limits.lists", limits.lists as u64, 1, MANY),
            ("limits.request_bytes", limits.request_bytes as u64, 1, MOST_BYTES),
            ("limits.reports_per_second", limits.reports_per_second.into(), 1, MANY),
            ("limits.job_bytes_per_second", limits.job_bytes_per_second.into(), 1, u32::MAX.into()),
            ("limits.tenant_bytes_per_second", limits.tenant_bytes_per_second.into(), 1, u32::MAX.into()),
            ("limits.watchers_per_job", limits.watchers_per_job as u64, 1, MANY),
            ("limits.jobs", limits.jobs as u64, 0, MANY),
            ("limits.jobs_per_tenant", limits.jobs_per_tenant as u64, 0, MANY),
        ];
        for (key, count, least, most) in counts {
            if count < least {
                return Some((key, format!("{count} must be at least {least}")));
            }
            if count > most {
                return Some((key, format!("{count} must be at most {most}")));
            }
        }
        None
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
