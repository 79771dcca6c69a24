//! Commands for the owner.

use tokio::sync::oneshot;
use trainmaster_core::{Incarnation, JobId, Mode, Role};
use trainmaster_host::Answers;
use trainmaster_proto::{Observed, Progress};

use super::{
    answers::{Reply, Submission, Submitted, Turn, Unwritten},
    view::View,
};
use crate::{access::Who, session::Outbox};

/// A command for the owner.
pub(crate) enum Command {
    Submit {
        job: Submission,
        who: Who,
        reply: Reply<Submitted>,
    },
    Cancel {
        job: String,
        who: Who,
        reply: Reply<Unwritten>,
    },
    Hold {
        job: String,
        held: bool,
        who: Who,
        reply: Reply<Unwritten>,
    },
    SetMode {
        mode: Mode,
        who: Who,
        reply: Reply<(Mode, Unwritten)>,
    },
    /// Access was changed. The audit records it.
    Note {
        who: Who,
        what: String,
    },
    Report {
        job: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
        reply: Reply<Answers>,
    },
    Attach {
        stream: u64,
        outbox: Outbox,
        observed: Observed,
        who: Who,
        turn: Turn,
    },
    Observe {
        stream: u64,
        observed: Observed,
        turn: Turn,
    },
    Detach {
        manager: String,
        stream: u64,
    },
    Read(Box<dyn FnOnce(View<'_>) + Send>),
    Stop(oneshot::Sender<()>),
}
