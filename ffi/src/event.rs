//! Events as C tells them.

use trainmaster_core::{
    DecisionId, Enactment, End, Event, Incarnation, JobId, JobSpec, Mode, ObservedSlot, Policy, Report, Role, Settings,
    SlotUse, Term, Time, job::Phase,
};

use crate::{
    borrow::{self, Array, grows, plain},
    error::{Failure, trainmaster_error as Code},
    job::{Submission, span, time, trainmaster_job},
    server::{amounts, devices, flag, pick, trainmaster_amounts, trainmaster_devices, trainmaster_server},
    text::trainmaster_string,
};

/// What happened. Behind each kind: the fields of struct trainmaster_event that it reads beside `size`, `kind` and `at`;
/// others are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_event_kind {
    /// Other settings. `text`: TOML, as for trainmaster_scheduler_new().
    Configured = 1,
    /// `value`: one of TRAINMASTER_MODE_*.
    ModeSet = 2,
    /// Another host took over. `number`: its term, which grows; decisions of older ones are void.
    TermBegan = 3,
    /// A server came or changed. `manager`, `server`.
    ServerSet = 4,
    /// A server is gone, with all that ran there. `name`.
    ServerLeft = 5,
    /// All that other work uses of a server. `name`, `amounts`, `devices`.
    ForeignUse = 6,
    /// A job was submitted. `submitted`, or where that is NULL `text`: a job file (TOML). Find its number with
    /// trainmaster_scheduler_find_job().
    JobSubmitted = 7,
    /// A job is over. `job`, `value`: one of TRAINMASTER_END_*.
    JobEnded = 8,
    /// A person holds a job (`value` 1) or lets it go on (0). `job`.
    JobHeld = 9,
    /// A training program reports. `job`, `incarnation`, `report`.
    Reported = 10,
    /// All slots of a job that the manager sees. `job`, `incarnation`, `slots` (none: all are released), `value`: one of
    /// TRAINMASTER_PHASE_*.
    Observed = 11,
    /// What became of what the manager was told. `job`, `number`: the `decision` of the plan that told it,
    /// `value`: one of TRAINMASTER_ENACTED_*; if refused also `text`: why, and `retry_ms`.
    Enacted = 12,
    /// A manager begins to tell everything that it has. `manager`. Nothing is due before its end.
    SyncBegin = 13,
    /// It has; what it didn't mention is gone. `manager`, `value` 1: so are jobs of that cluster it didn't mention (else
    /// only their slots).
    SyncEnd = 14,
    /// What was measured on a server, in place of what was measured before. `name`, `amounts`: all that is in use, without
    /// devices; `devices`: how busy they are, the others are idle; `uses`: the part of it that slots use.
    Utilisation = 15,
    /// What an engine learnt elsewhere. `name`: the engine; `text`: a policy file; without one the engine decides by its
    /// heuristic again.
    PolicySet = 16,
}

/// Who is in charge.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_mode {
    /// The engine decides, and the manager is told.
    Active = 0,
    /// The engine decides from what is observed; the manager is told that every job is its own.
    Shadow = 1,
    /// Nothing is decided; every job is the manager's own, as it was given last or requested.
    Paused = 2,
}

/// How a job ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_end {
    /// Converged, or through all its epochs.
    Completed = 0,
    /// Given up.
    Failed = 1,
    /// By a person.
    Cancelled = 2,
    /// By the scheduler.
    Stopped = 3,
}

/// What a job's slots do.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_phase {
    /// There are none.
    Stopped = 0,
    /// Not all run yet.
    Starting = 1,
    /// All run.
    Running = 2,
    /// They leave, with a checkpoint.
    Stopping = 3,
}

/// What became of a change.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_enacted {
    /// It is being carried out.
    Accepted = 0,
    /// A part of it is; observations say which.
    Partial = 1,
    /// It isn't.
    Refused = 2,
}

/// What a slot does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_slot_role {
    /// Computes gradients.
    Worker = 0,
    /// Keeps parameters.
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
    /// Unique among the job's slots of a role, and kept for as long as the slot stays as it is.
    pub index: u32,
    /// 1 where all its work waits: it keeps memory and disk, and its devices are another job's for now. What a manager sees to
    /// be so it reports so.
    pub idle: u32,
    /// The server's name.
    pub server: trainmaster_string,
    /// Its devices; empty where the manager picks them.
    pub devices: trainmaster_devices,
}

/// An array of slots: in results workers first, each role by index.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slots {
    /// The first.
    pub data: *const trainmaster_slot,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

/// A worker's step time. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slot_time {
    /// The worker's index.
    pub worker: u32,
    /// 0.
    pub reserved: u32,
    /// Mean time from one of its gradients to the next, in milliseconds.
    pub ms: f64,
}

/// Which of a report's optional fields are set; added up in `has`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_report_has {
    /// `loss`.
    Loss = 1,
    /// `accuracy`.
    Accuracy = 2,
    /// `restart_ms`.
    Restart = 4,
}

/// Progress of a training program since its last report.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_report {
    /// sizeof(struct trainmaster_report).
    pub size: u32,
    /// Sum of TRAINMASTER_REPORT_HAS_*.
    pub has: u32,
    /// Who reports: one of TRAINMASTER_SLOT_ROLE_* ...
    pub role: u32,
    /// ... and its index.
    pub index: u32,
    /// Grows with each report of a slot's incarnation.
    pub seq: u64,
    /// Steps since the job began, all incarnations.
    pub step: u64,
    /// Steps in an epoch at this shape; 0: not known.
    pub steps_per_epoch: u64,
    /// Whole epochs done.
    pub epoch: u32,
    /// Steps that `duration_ms` covers.
    pub steps: u32,
    /// How long they took at a steady shape; 0: not measured.
    pub duration_ms: i64,
    /// Workers they ran with.
    pub workers: u32,
    /// Parameter servers they ran with.
    pub servers: u32,
    /// Mean training loss.
    pub loss: f64,
    /// Validation accuracy, from 0 to 1.
    pub accuracy: f64,
    /// Time from start to first step, once for each incarnation.
    pub restart_ms: i64,
    /// The first of the workers' step times, for finding slow ones.
    pub slot_times: *const trainmaster_slot_time,
    /// How many.
    pub slot_times_count: u64,
    /// Bytes from one to the next.
    pub slot_times_stride: u64,
    /// The first of the data chunks (places in the dataset) that are trained to their end: at least those since the last
    /// report.
    pub chunks: *const u32,
    /// How many.
    pub chunks_count: u64,
    /// Bytes from one to the next.
    pub chunks_stride: u64,
}

/// Something that happened. What isn't read by its kind may be anything; zero is best.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_event {
    /// sizeof(struct trainmaster_event).
    pub size: u32,
    /// One of TRAINMASTER_EVENT_KIND_*, which say what else is read.
    pub kind: u32,
    /// When, in milliseconds since an origin that you chose once, from 0 to 10^15; never before an earlier event or call.
    pub at: i64,
    /// A job's number.
    pub job: u64,
    /// A term or decision.
    pub number: u64,
    /// A job's incarnation.
    pub incarnation: u32,
    /// A choice.
    pub value: u32,
    /// When a refused change may be tried again, in milliseconds from now; 0: after a wait that doubles.
    pub retry_ms: i64,
    /// A server's name.
    pub name: trainmaster_string,
    /// A cluster manager's name: servers belong to the manager that reports them.
    pub manager: trainmaster_string,
    /// Words, or TOML.
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
    /// Parts of devices.
    pub devices: trainmaster_devices,
    /// What slots use.
    pub uses: trainmaster_slot_uses,
}

/// What one slot was measured to use. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slot_use {
    /// Whose.
    pub job: u64,
    /// One of TRAINMASTER_SLOT_ROLE_*.
    pub role: u32,
    /// Its index.
    pub index: u32,
    /// Without devices.
    pub amounts: trainmaster_amounts,
    /// Its part of how busy the server's devices are.
    pub devices: trainmaster_devices,
}

/// An array of them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_slot_uses {
    /// The first.
    pub data: *const trainmaster_slot_use,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
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
    /// When and what.
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

    fn convert(&self) -> Result<Report, Failure> {
        use trainmaster_report_has as Has;
        let has = |what: Has| self.has & what as u32 != 0;
        if self.has >= 2 * Has::Restart as u32 {
            return Err(Failure::value(format!("report.has: {} must be a sum of 1, 2 and 4", self.has)));
        }
        let times =
            borrow::copies(self.slot_times, self.slot_times_count, self.slot_times_stride, "report.slot_times")?;
        Ok(Report {
            seq: self.seq,
            step: self.step,
            epoch: self.epoch,
            steps_per_epoch: self.steps_per_epoch,
            loss: has(Has::Loss).then_some(self.loss),
            accuracy: has(Has::Accuracy).then_some(self.accuracy),
            steps: self.steps,
            duration: span(self.duration_ms, "report.duration_ms")?,
            workers: self.workers,
            servers: self.servers,
            slot_times: times.iter().map(|time| (time.worker, time.ms)).collect(),
            chunks: borrow::copies(self.chunks, self.chunks_count, self.chunks_stride, "report.chunks")?,
            restart: has(Has::Restart).then(|| span(self.restart_ms, "report.restart_ms")).transpose()?,
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
