//! Events from C.

use trainmaster_core::{
    DecisionId, Enactment, End, Event, Incarnation, JobId, JobSpec, Mode, ObservedSlot, Policy, Report, Role, Settings,
    SlotUse, Term, Time, batch::GradientNoise, job::Phase,
};

use crate::{
    borrow::{self, Array, grows, plain},
    error::{Failure, trainmaster_error as Code},
    job::{Submission, span, time, trainmaster_job},
    server::{amounts, devices, flag, pick, trainmaster_amounts, trainmaster_devices, trainmaster_server},
    text::trainmaster_string,
};

/// A time that never comes.
pub const TRAINMASTER_NEVER: i64 = i64::MAX;

/// The kinds of events. Each kind lists the fields of struct trainmaster_event that it reads in addition to `size`,
/// `kind` and `at`. Other fields are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_event_kind {
    /// New settings. `text`: TOML, as for trainmaster_scheduler_new().
    Configured = 1,
    /// `value`: one of TRAINMASTER_MODE_*.
    ModeSet = 2,
    /// Another host took over. `number`: its term, which increases. Decisions of older terms are void.
    TermBegan = 3,
    /// A server arrived or changed. `manager`, `server`.
    ServerSet = 4,
    /// A server left, with all its slots. `name`.
    ServerLeft = 5,
    /// The total foreign use of a server. `name`, `amounts`, `devices`.
    ForeignUse = 6,
    /// A job was submitted. `submitted`, or if that is NULL `text`: a job file (TOML). trainmaster_scheduler_find_job()
    /// returns its number.
    JobSubmitted = 7,
    /// A job ended. `job`, `value`: one of TRAINMASTER_END_*.
    JobEnded = 8,
    /// A user holds a job (`value` 1) or resumes it (0). `job`.
    JobHeld = 9,
    /// A training program reports. `job`, `incarnation`, `report`.
    Reported = 10,
    /// All slots of a job that the manager observes. `job`, `incarnation`, `slots` (empty: all are released), `value`:
    /// one of TRAINMASTER_PHASE_*.
    Observed = 11,
    /// The manager's result for an issue. `job`, `number`: the `decision` of the plan that contained it, `value`: one
    /// of TRAINMASTER_ENACTED_*. If refused also `text`: the cause, and `retry_ms`.
    Enacted = 12,
    /// A manager begins a resync. `manager`. No decision is due before its end.
    SyncBegin = 13,
    /// The resync is complete. Servers and jobs' slots that it didn't mention are gone. `manager`, `value` 1: so are
    /// unmentioned jobs of that cluster.
    SyncEnd = 14,
    /// New measurements of a server, which replace the previous ones. `name`, `amounts`: total use without devices;
    /// `devices`: their use, others are idle; `uses`: the part of each slot.
    Utilisation = 15,
    /// A learnt policy. `name`: the engine; `text`: a policy file. Without a text the engine uses its heuristic again.
    PolicySet = 16,
    /// The batch and the gradients of a report, before its TRAINMASTER_EVENT_KIND_REPORTED. For jobs with a range of
    /// batches, others ignore it. `job`, `incarnation`, `report`: the same report.
    BatchReported = 17,
}

/// The scheduling mode.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_mode {
    /// The engine decides, and the manager receives plans.
    Active = 0,
    /// The engine decides from observations. All jobs are handed back to the manager.
    Shadow = 1,
    /// Nothing is decided. All jobs are handed back to the manager, in their last or requested shape.
    Paused = 2,
}

/// Kind of a job's end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_end {
    /// It converged, or reached its maximum of epochs.
    Completed = 0,
    /// It failed.
    Failed = 1,
    /// A user cancelled it.
    Cancelled = 2,
    /// The scheduler stopped it.
    Stopped = 3,
}

/// Phase of a job's slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_phase {
    /// There are none.
    Stopped = 0,
    /// Some don't run yet.
    Starting = 1,
    /// All run.
    Running = 2,
    /// They stop with a checkpoint.
    Stopping = 3,
}

/// The manager's result for a change.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_enacted {
    /// The change is being enacted.
    Accepted = 0,
    /// A part of it is. Observations show which.
    Partial = 1,
    /// The change is refused.
    Refused = 2,
}

/// Role of a slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_slot_role {
    /// Computes gradients.
    Worker = 0,
    /// Stores parameters.
    Server = 1,
}

/// One worker or parameter server on one server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slot {
    /// sizeof(struct trainmaster_slot).
    pub size: u32,
    /// One of TRAINMASTER_SLOT_ROLE_*.
    pub role: u32,
    /// Unique among the job's slots of a role. Kept while the slot doesn't change.
    pub index: u32,
    /// 1: all its work waits. It keeps its memory and disk, and other jobs may use its devices. Managers report idle
    /// slots that they observe.
    pub idle: u32,
    /// Name of the server.
    pub server: trainmaster_string,
    /// Its devices. Empty if the manager picks them.
    pub devices: trainmaster_devices,
}

/// An array of slots. In results, workers come first, each role by index.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slots {
    /// The first element.
    pub data: *const trainmaster_slot,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// A worker's step time. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slot_time {
    /// Index of the worker.
    pub worker: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// Mean time between its gradients, in milliseconds.
    pub ms: f64,
}

/// The optional fields of a report. `has` is the sum of those that are set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_report_has {
    /// `loss`.
    Loss = 1,
    /// `accuracy`.
    Accuracy = 2,
    /// `restart_ms`.
    Restart = 4,
    /// `batch`.
    Batch = 8,
    /// `grad_sqr` and `grad_var`.
    Noise = 16,
}

/// Progress of a training program since its last report.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_report {
    /// sizeof(struct trainmaster_report).
    pub size: u32,
    /// Sum of TRAINMASTER_REPORT_HAS_*.
    pub has: u32,
    /// Role of the reporting slot: one of TRAINMASTER_SLOT_ROLE_* ...
    pub role: u32,
    /// ... and its index.
    pub index: u32,
    /// Increases with each report of a slot in one incarnation.
    pub seq: u64,
    /// Steps since the job's start, over all incarnations.
    pub step: u64,
    /// Steps per epoch in this shape. 0: unknown.
    pub steps_per_epoch: u64,
    /// Completed epochs.
    pub epoch: u32,
    /// Number of steps in `duration_ms`.
    pub steps: u32,
    /// Their duration in a constant shape. 0: not measured.
    pub duration_ms: i64,
    /// Number of workers.
    pub workers: u32,
    /// Number of parameter servers.
    pub servers: u32,
    /// Mean training loss.
    pub loss: f64,
    /// Validation accuracy, from 0 to 1.
    pub accuracy: f64,
    /// Time from the start to the first step, once per incarnation.
    pub restart_ms: i64,
    /// The first of the workers' step times, for the detection of stragglers.
    pub slot_times: *const trainmaster_slot_time,
    /// Number of elements.
    pub slot_times_count: u64,
    /// Bytes from one element to the next.
    pub slot_times_stride: u64,
    /// The first of the completed data chunks (indices in the dataset): at least those since the last report.
    pub chunks: *const u32,
    /// Number of elements.
    pub chunks_count: u64,
    /// Bytes from one element to the next.
    pub chunks_stride: u64,
    /// Examples per step of the whole job, of a job with a range of batches.
    pub batch: u64,
    /// Squared norm of its true gradient ...
    pub grad_sqr: f64,
    /// ... and the variance of one example's gradient, summed over the parameters.
    pub grad_var: f64,
}

/// An event. Fields that its kind doesn't read may have any value; zero is recommended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_event {
    /// sizeof(struct trainmaster_event).
    pub size: u32,
    /// One of TRAINMASTER_EVENT_KIND_*, which lists the fields that are read.
    pub kind: u32,
    /// Time in milliseconds since an origin that you chose once, from 0 to 10^15. Not before an earlier event or call.
    pub at: i64,
    /// Number of a job.
    pub job: u64,
    /// Number of a term or decision.
    pub number: u64,
    /// Incarnation of a job.
    pub incarnation: u32,
    /// A choice.
    pub value: u32,
    /// Wait before another attempt of a refused change, in milliseconds. 0: a wait that doubles each time.
    pub retry_ms: i64,
    /// Name of a server.
    pub name: trainmaster_string,
    /// Name of a cluster manager. Servers belong to the manager that reports them.
    pub manager: trainmaster_string,
    /// A message, or TOML.
    pub text: trainmaster_string,
    /// A server.
    pub server: *const trainmaster_server,
    /// A job.
    pub submitted: *const trainmaster_job,
    /// A report.
    pub report: *const trainmaster_report,
    /// Slots.
    pub slots: trainmaster_slots,
    /// Amounts.
    pub amounts: trainmaster_amounts,
    /// Shares of devices.
    pub devices: trainmaster_devices,
    /// Use by slots.
    pub uses: trainmaster_slot_uses,
}

/// Measured use of one slot. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slot_use {
    /// Number of the job.
    pub job: u64,
    /// One of TRAINMASTER_SLOT_ROLE_*.
    pub role: u32,
    /// Index of the slot.
    pub index: u32,
    /// Amounts without devices.
    pub amounts: trainmaster_amounts,
    /// Its part of the devices' use.
    pub devices: trainmaster_devices,
}

/// An array of measured uses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slot_uses {
    /// The first element.
    pub data: *const trainmaster_slot_use,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

plain!(trainmaster_slot_time, trainmaster_slot_use);
grows!(trainmaster_slot: 56, trainmaster_report: 112, trainmaster_event: 192);

impl trainmaster_slot_use {
    fn convert(&self) -> Result<SlotUse, Failure> {
        Ok(SlotUse {
            job: JobId(self.job),
            slot: (role(self.role, "event.uses.role")?, self.index),
            used: amounts(self.amounts, "event.uses.amounts")?,
            devices: devices(self.devices, "event.uses.devices")?,
        })
    }
}

impl trainmaster_event {
    /// Converts the event and its time.
    pub(crate) fn convert(&self) -> Result<(Time, Event), Failure> {
        use trainmaster_event_kind as Kind;
        let kind = |kind: Kind| self.kind == kind as u32;
        let job = JobId(self.job);
        let incarnation = Incarnation(self.incarnation);
        let name = || borrow::text(self.name, "event.name");
        let manager = || borrow::text(self.manager, "event.manager");
        let value = |choices| pick(self.value, "event.value", choices);
        let event = if kind(Kind::Configured) {
            Event::Configured(Box::new(Settings::from_toml(&borrow::text(self.text, "event.text")?)?))
        } else if kind(Kind::ModeSet) {
            let modes = [("active", Mode::Active), ("shadow", Mode::Shadow), ("paused", Mode::Paused)];
            Event::ModeSet(pick(self.value, "event.value", &modes)?)
        } else if kind(Kind::TermBegan) {
            Event::TermBegan(Term(self.number))
        } else if kind(Kind::ServerSet) {
            let server = borrow::read(self.server, "event.server")?.convert()?;
            Event::ServerSet { manager: manager()?, server }
        } else if kind(Kind::ServerLeft) {
            Event::ServersLeft { names: vec![name()?] }
        } else if kind(Kind::ForeignUse) {
            let amounts = amounts(self.amounts, "event.amounts")?;
            Event::ForeignUse { server: name()?, amounts, devices: devices(self.devices, "event.devices")? }
        } else if kind(Kind::Utilisation) {
            let uses = borrow::copies(self.uses.data, self.uses.count, self.uses.stride, "event.uses")?;
            let slots = uses.iter().map(trainmaster_slot_use::convert).collect::<Result<_, _>>()?;
            let used = amounts(self.amounts, "event.amounts")?;
            Event::Utilisation { server: name()?, used, devices: devices(self.devices, "event.devices")?, slots }
        } else if kind(Kind::PolicySet) {
            let text = borrow::text(self.text, "event.text")?;
            let policy = (!text.is_empty()).then(|| Policy::from_toml(&text)).transpose();
            let policy = policy.map_err(|error| Failure::new(Code::Policy, format!("event.text: {error}")))?;
            Event::PolicySet { engine: name()?, policy: policy.map(Box::new) }
        } else if kind(Kind::JobSubmitted) {
            let Submission { spec, external, token_hash } = self.submission()?;
            Event::JobSubmitted { spec: Box::new(spec), external, token_hash }
        } else if kind(Kind::JobEnded) {
            let end = value(&[
                ("completed", End::Completed),
                ("failed", End::Failed),
                ("cancelled", End::Cancelled),
                ("stopped", End::Stopped),
            ])?;
            Event::JobEnded { job, end }
        } else if kind(Kind::JobHeld) {
            Event::JobHeld { job, held: flag(self.value, "event.value")? }
        } else if kind(Kind::Reported) {
            let report = borrow::read(self.report, "event.report")?;
            Event::Reported { job, incarnation, slot: report.slot()?, report: report.convert()? }
        } else if kind(Kind::BatchReported) {
            let report = borrow::read(self.report, "event.report")?;
            let (batch, noise) = report.batch()?;
            Event::BatchReported { job, incarnation, slot: report.slot()?, seq: report.seq, batch, noise }
        } else if kind(Kind::Observed) {
            let phases = [
                ("stopped", Phase::Stopped),
                ("starting", Phase::Starting),
                ("running", Phase::Running),
                ("stopping", Phase::Stopping),
            ];
            let phase = pick(self.value, "event.value", &phases)?;
            Event::Observed { job, incarnation, slots: observed(self.slots)?, phase }
        } else if kind(Kind::Enacted) {
            Event::Enacted { decision: DecisionId(self.number), job, result: self.enactment()? }
        } else if kind(Kind::SyncBegin) {
            Event::SyncBegin { manager: manager()? }
        } else if kind(Kind::SyncEnd) {
            Event::SyncEnd { manager: manager()?, owns_queue: flag(self.value, "event.value")? }
        } else {
            return Err(Failure::value(format!("event.kind: {} must be one of TRAINMASTER_EVENT_KIND_*", self.kind)));
        };
        Ok((time(self.at, "event.at")?, event))
    }

    fn submission(&self) -> Result<Submission, Failure> {
        if !self.submitted.is_null() {
            return borrow::read(self.submitted, "event.submitted")?.convert();
        }
        let text = borrow::text(self.text, "event.text")?;
        if text.is_empty() {
            return Err(Failure::new(Code::Null, "event.submitted is NULL, and event.text is empty"));
        }
        Ok(Submission { spec: JobSpec::from_toml(&text)?, external: None, token_hash: None })
    }

    fn enactment(&self) -> Result<Enactment, Failure> {
        let results = [
            ("accepted", Enactment::Accepted),
            ("partial", Enactment::Partial),
            ("refused", Enactment::Refused { cause: "".into(), retry_after: None }),
        ];
        let choices: Vec<_> = results.iter().map(|(word, result)| (*word, result)).collect();
        Ok(match pick(self.value, "event.value", &choices)? {
            Enactment::Refused { .. } => {
                let retry = span(self.retry_ms, "event.retry_ms")?;
                let cause = borrow::text(self.text, "event.text")?.into();
                Enactment::Refused { cause, retry_after: Some(retry).filter(|span| span.0 > 0) }
            }
            result => result.clone(),
        })
    }
}

impl trainmaster_report {
    fn slot(&self) -> Result<(Role, u32), Failure> {
        Ok((role(self.role, "report.role")?, self.index))
    }

    fn has(&self, what: trainmaster_report_has) -> Result<bool, Failure> {
        if self.has >= 2 * trainmaster_report_has::Noise as u32 {
            return Err(Failure::value(format!("report.has: {} must be a sum of 1, 2, 4, 8 and 16", self.has)));
        }
        Ok(self.has & what as u32 != 0)
    }

    fn batch(&self) -> Result<(Option<u64>, Option<GradientNoise>), Failure> {
        use trainmaster_report_has as Has;
        let noise = GradientNoise { sqr: self.grad_sqr, var: self.grad_var };
        Ok((self.has(Has::Batch)?.then_some(self.batch), self.has(Has::Noise)?.then_some(noise)))
    }

    fn convert(&self) -> Result<Report, Failure> {
        use trainmaster_report_has as Has;
        let times =
            borrow::copies(self.slot_times, self.slot_times_count, self.slot_times_stride, "report.slot_times")?;
        Ok(Report {
            seq: self.seq,
            step: self.step,
            epoch: self.epoch,
            steps_per_epoch: self.steps_per_epoch,
            loss: self.has(Has::Loss)?.then_some(self.loss),
            accuracy: self.has(Has::Accuracy)?.then_some(self.accuracy),
            steps: self.steps,
            duration: span(self.duration_ms, "report.duration_ms")?,
            workers: self.workers,
            servers: self.servers,
            slot_times: times.iter().map(|time| (time.worker, time.ms)).collect(),
            chunks: borrow::copies(self.chunks, self.chunks_count, self.chunks_stride, "report.chunks")?,
            restart: self.has(Has::Restart)?.then(|| span(self.restart_ms, "report.restart_ms")).transpose()?,
        })
    }
}

fn role(value: u32, name: &str) -> Result<Role, Failure> {
    pick(value, name, &[("worker", Role::Worker), ("server", Role::Server)])
}

fn observed(slots: trainmaster_slots) -> Result<Vec<ObservedSlot>, Failure> {
    let slots = Array::new(slots.data, slots.count, slots.stride, "event.slots")?.all("event.slots")?;
    let convert = |slot: &trainmaster_slot| {
        Ok(ObservedSlot {
            role: role(slot.role, "slot.role")?,
            index: slot.index,
            server: borrow::text(slot.server, "slot.server")?,
            devices: if slot.idle == 0 { devices(slot.devices, "slot.devices")? } else { Vec::new() },
        })
    };
    slots.iter().map(convert).collect()
}
