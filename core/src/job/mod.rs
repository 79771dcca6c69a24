//! Jobs: their specification ([`JobSpec`]) and the state of active ones ([`Job`]).

mod active;
mod batches;
mod checks;
mod file;
mod issued;
mod launcher;
mod learnt;
mod pairs;
mod seen;
mod sizes;
mod spec;
mod stop;
mod surroundings;
mod training;
mod utility;

pub use self::{
    active::{Demand, ExternalId, Job},
    batches::Batching,
    file::{JobFileError, LONGEST_FILE},
    issued::{Issued, Service},
    launcher::{Elastic, Launcher, Start},
    learnt::{Fits, Learnt, Progress, Stragglers},
    seen::{Phase, Seen},
    sizes::{Parallel, Sizes},
    spec::{
        Bounds, Convergence, Dataset, JobSpec, JobSpecError, Partition, ProfiledSpeed, Resize, RoleSpec, StopChoice,
        TrainingMode,
    },
    training::{Slots, Training, TrainingError},
    utility::{Utility, UtilityKind},
};
