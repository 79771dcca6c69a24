//! Explanations of a job's state.

use trainmaster_core::{JobId, explain::Topic};

use crate::{
    borrow::{self, grows},
    guard,
    handle::trainmaster_scheduler,
    job::time,
    owned::{self, Keep},
    plan::stride,
    reason,
    status::unknown,
    text::{trainmaster_message, trainmaster_string},
};

/// Topic of a finding.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_topic {
    /// The reason why the job doesn't run.
    Reason = 0,
    /// The difference between the plan and the issued part.
    Issue = 1,
    /// The scheduling mode.
    Mode = 2,
    /// The time of the next decision.
    Decision = 3,
    /// Bounds from the job file and the site.
    Bounds = 4,
    /// The stability rule that keeps its slots.
    Stability = 5,
    /// Predicted convergence.
    Convergence = 6,
    /// Predicted speed.
    Speed = 7,
    /// Slow workers.
    Straggler = 8,
    /// Past changes and their costs.
    History = 9,
    /// Ignored reports.
    Reports = 10,
    /// State of its data chunks.
    Work = 11,
}

/// One finding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_finding {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// One of TRAINMASTER_TOPIC_*.
    pub topic: u32,
    /// One of TRAINMASTER_REASON_KIND_* if the topic is TRAINMASTER_TOPIC_REASON.
    pub reason: u32,
    /// 1: it prevents the job from running, or from getting its planned slots.
    pub blocks: u32,
    /// Text with numbers.
    pub text: trainmaster_string,
}

/// Findings about a job, the most important first. Yours; free it with trainmaster_explanation_free(). It doesn't
/// change, and it outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_explanation {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// Number of the job.
    pub job: u64,
    /// Name of the job.
    pub name: trainmaster_string,
    /// The first finding.
    pub findings: *const trainmaster_finding,
    /// Number of elements.
    pub findings_count: u64,
    /// Bytes from one element to the next.
    pub findings_stride: u64,
}

grows!(trainmaster_finding: 32, trainmaster_explanation: 56);

/// Explains an active job at a time that is not before the last event.
///
/// Errors: NULL, VALUE, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_explain(
    scheduler: *const trainmaster_scheduler,
    at: i64,
    job: u64,
    explanation: *mut *const trainmaster_explanation,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(explanation, "explanation")?;
        let found = inner.core.explain(time(at, "at")?, JobId(job)).ok_or_else(|| unknown(job))?;
        let mut keep = Keep::default();
        let mut findings = Vec::with_capacity(found.findings.len());
        for finding in found.findings {
            let (topic, reason) = topic(finding.topic);
            findings.push(trainmaster_finding {
                size: size_of::<trainmaster_finding>() as u32,
                topic: topic as u32,
                reason,
                blocks: finding.blocks.into(),
                text: keep.text(finding.text),
            });
        }
        let (findings, findings_count) = keep.array(findings);
        let view = trainmaster_explanation {
            size: size_of::<trainmaster_explanation>() as u32,
            reserved: 0,
            job,
            name: keep.text(found.name),
            findings,
            findings_count,
            findings_stride: stride::<trainmaster_finding>(),
        };
        owned::hand_result(explanation, view, keep, "explanation")
    })
}

fn topic(topic: Topic) -> (trainmaster_topic, u32) {
    use trainmaster_topic as C;
    let none = reason::trainmaster_reason_kind::None as u32;
    match topic {
        Topic::Reason(kind) => (C::Reason, reason::kind(kind)),
        Topic::Issue => (C::Issue, none),
        Topic::Mode => (C::Mode, none),
        Topic::Decision => (C::Decision, none),
        Topic::Bounds => (C::Bounds, none),
        Topic::Stability => (C::Stability, none),
        Topic::Convergence => (C::Convergence, none),
        Topic::Speed => (C::Speed, none),
        Topic::Straggler => (C::Straggler, none),
        Topic::History => (C::History, none),
        Topic::Reports => (C::Reports, none),
        Topic::Work => (C::Work, none),
    }
}

/// Frees an explanation. NULL is ignored. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_explanation_free(explanation: *const trainmaster_explanation) {
    guard::quiet(|| owned::free_result(explanation));
}
