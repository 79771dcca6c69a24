//! The checks of a job's specification that need no cluster.

use smallvec::SmallVec;

use super::{
    launcher::{Elastic, Launcher},
    sizes::{MOST_WORKERS, Parallel, Sizes},
    spec::{Convergence, JobSpec, JobSpecError, Resize, RoleSpec, StopChoice, TrainingMode},
    utility::Utility,
};
use crate::{
    batch::BatchRange,
    resources::{GpuTypes, is_gpu},
    text::{is_unseen, shown},
    time::Span,
    topology::{Level, Topology},
};

/// Maximum bytes of a command, with the variables before it.
const LONGEST_COMMAND: usize = 16 << 10;
/// Maximum number of parts of a model.
const MOST_PARTITIONS: usize = 256;
/// Maximum number of resources of one role, and maximum bytes of their names.
const MOST_RESOURCES: usize = 16;
const LONGEST_RESOURCE: usize = 64;
/// Maximum number of GPU types in one demand.
const MOST_TYPES: usize = 8;
/// Maximum number of required labels, and maximum bytes of a label and of its value.
const MOST_LABELS: usize = 64;
const LONGEST_LABEL: usize = 128;
const LONGEST_LABEL_VALUE: usize = 256;
/// Maximum number of profiled speeds. It exceeds the number of (p, w) pairs that are kept of a job's own measurements.
const MOST_PROFILED: usize = 256;
/// Maximum bytes of the upload source.
const LONGEST_UPLOAD: usize = 128;

impl JobSpec {
    /// Makes the checks of a new job: [`validate`](Self::validate), and rules that jobs in old journals may break.
    ///
    /// # Errors
    /// The first key that is wrong, its value and what is allowed.
    pub fn validate_new(&self) -> Result<(), JobSpecError> {
        self.validate()?;
        for (key, time) in [("time_limit", self.time_limit), ("deadline", self.deadline)] {
            if time == Some(Span::ZERO) {
                return Err(JobSpecError { key: key.into(), problem: "\"0s\" must be above zero".into() });
            }
        }
        for (role, key) in [(Some(&self.worker), "worker.command"), (self.server.as_ref(), "server.command")] {
            if let Some(Err(error)) = role.map(|role| shell_words::split(&role.command)) {
                // More people may read the error than the command.
                let problem = format!("{error}; write it as for a shell, with each quote closed");
                return Err(JobSpecError { key: key.into(), problem });
            }
        }
        let start = self.start();
        let checks =
            [Launcher::of(&start).err(), Launcher::processes(&start).err(), Elastic::check(&self.labels).err()];
        if let Some((key, problem)) = checks.into_iter().flatten().next() {
            return Err(JobSpecError { key: key.into(), problem });
        }
        let names = [("name", &self.name), ("model", &self.model), ("tenant", &self.tenant), ("queue", &self.queue)];
        match names.into_iter().find(|(_, name)| name.starts_with('-')) {
            None => Ok(()),
            // Commands would read it as an option.
            Some((key, name)) => {
                Err(JobSpecError { key: key.into(), problem: format!("{name:?} must not start with '-'") })
            }
        }
    }

    /// Makes all checks that need no cluster.
    ///
    /// # Errors
    /// The first key that is wrong, its value and what is allowed.
    pub fn validate(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: String| Err(JobSpecError { key: key.into(), problem });
        for (key, name) in
            [("name", &self.name), ("model", &self.model), ("tenant", &self.tenant), ("queue", &self.queue)]
        {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(allowed) {
                let name = shown(name, 128);
                return fail(
                    key,
                    format!("\"{name}\" must be 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'"),
                );
            }
        }
        if self.name.bytes().all(|byte| byte.is_ascii_digit()) {
            return fail("name", format!("{:?} reads as a job's number; put a letter into it", self.name));
        }
        if self.batch == 0 {
            return fail("batch", "0 must be at least 1".into());
        }
        let Convergence { delta, patience, max_epochs } = self.convergence;
        if !(0.0..1.0).contains(&delta) {
            return fail("convergence.delta", format!("{delta} must be from 0 up to 1, a fraction of the first loss"));
        }
        if patience == 0 || max_epochs == 0 {
            let key = if patience == 0 { "convergence.patience" } else { "convergence.max_epochs" };
            return fail(key, "0 must be at least 1".into());
        }
        match (self.mode, &self.server) {
            (TrainingMode::AllReduce, Some(_)) => {
                return fail(
                    "server",
                    "an allreduce job has no parameter servers; leave it out or change the mode".into(),
                );
            }
            (TrainingMode::Sync | TrainingMode::Async, None) => {
                return fail(
                    "server",
                    "is missing: a sync or async job needs parameter servers (mode = \"allreduce\" needs none)".into(),
                );
            }
            _ => {}
        }
        // If it were ignored, the key would promise something that an all-reduce job can't have.
        if self.separate_roles && self.server.is_none() {
            return fail(
                "separate_roles",
                "true needs parameter servers to keep apart, which an allreduce job hasn't; leave it out".into(),
            );
        }
        for (key, role) in [("worker", Some(&self.worker)), ("server", self.server.as_ref())] {
            let Some(role) = role else { continue };
            role.validate(key)?;
            let list = role.demand.keys().find(|name| matches!(GpuTypes::of(name), Some(GpuTypes::OneOf(_))));
            if let Some(name) = list.filter(|_| key == "server") {
                return fail("server.gpu", format!("{name:?}: only workers may have one of several types; name one"));
            }
        }
        if let Some(accuracy) = self.accuracy.filter(|accuracy| !(0.0..=1.0).contains(accuracy)) {
            return fail("accuracy", format!("{accuracy} must be from 0 to 1"));
        }
        self.validate_sizes()?;
        BatchRange::of(self).map_err(|(key, problem)| JobSpecError { key: key.into(), problem })?;
        self.validate_labels()?;
        self.validate_stop()?;
        self.validate_partitions()?;
        if self.profile.len() > MOST_PROFILED {
            return fail("profile", format!("{} measurements must be at most {MOST_PROFILED}", self.profile.len()));
        }
        for (at, sample) in self.profile.iter().enumerate() {
            let no_servers = self.server.is_none();
            if sample.workers == 0 || (sample.servers == 0) != no_servers || !(sample.speed > 0.0 && sample.speed < 1e9)
            {
                return fail(
                    &format!("profile[{at}]"),
                    format!(
                        "p = {}, w = {}, speed = {} must have w ≥ 1, {} and a speed above 0",
                        sample.servers,
                        sample.workers,
                        sample.speed,
                        if no_servers { "p = 0" } else { "p ≥ 1" }
                    ),
                );
            }
        }
        if let Some(Err((key, problem))) = self.utility.as_ref().map(Utility::check) {
            return fail(key, problem);
        }
        if let Some(data) = &self.dataset {
            for (field, count) in
                [("chunks", data.chunks), ("batches_per_chunk", data.batches_per_chunk), ("epochs", data.epochs)]
            {
                if count == 0 {
                    return fail(&format!("dataset.{field}"), "0 must be at least 1".into());
                }
            }
            if data.upload.len() > LONGEST_UPLOAD || data.upload.chars().any(is_unseen) {
                let text = shown(&data.upload, LONGEST_UPLOAD);
                return fail(
                    "dataset.upload",
                    format!("\"{text}\" must be at most {LONGEST_UPLOAD} bytes without control characters"),
                );
            }
            if !(0..=1 << 40).contains(&data.chunk_size) {
                return fail("dataset.chunk_size", format!("{} MiB must be from 0 to 2^40", data.chunk_size));
            }
            if data.batch_time.is_some_and(|time| time <= Span::ZERO) {
                return fail("dataset.batch_time", "must be above 0, such as \"250ms\"".into());
            }
        }
        Ok(())
    }

    fn validate_labels(&self) -> Result<(), JobSpecError> {
        let fail = |problem: String| Err(JobSpecError { key: "constraints.labels".into(), problem });
        if self.labels.len() > MOST_LABELS {
            return fail(format!("{} labels must be at most {MOST_LABELS}", self.labels.len()));
        }
        for (text, most) in
            self.labels.iter().flat_map(|(label, value)| [(label, LONGEST_LABEL), (value, LONGEST_LABEL_VALUE)])
        {
            if text.len() > most || text.chars().any(is_unseen) {
                return fail(format!(
                    "\"{}\" must be at most {most} bytes without control characters",
                    shown(text, most)
                ));
            }
        }
        for label in [Topology::REQUIRE, Topology::PREFER] {
            if let Some(Err(allowed)) = self.labels.get(label).map(|level| level.parse::<Level>()) {
                let level = shown(&self.labels[label], LONGEST_LABEL_VALUE);
                return Err(JobSpecError { key: label.into(), problem: format!("\"{level}\" {allowed}") });
            }
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: String| Err(JobSpecError { key: key.into(), problem });
        if let Some(text) = self.labels.get(Sizes::LABEL) {
            if text.len() > LONGEST_LABEL_VALUE {
                let problem = format!(
                    "a list of {} characters must have at most {LONGEST_LABEL_VALUE}; a rule is shorter, such as \
                     \"multiples of 4\"",
                    text.len()
                );
                return fail(Sizes::LABEL, problem);
            }
            text.parse::<Sizes>().or_else(|problem| fail(Sizes::LABEL, problem).map(|()| Sizes::Any))?;
        }
        let parallel =
            Parallel::of(&self.labels).map_err(|(key, problem)| JobSpecError { key: key.into(), problem })?;
        let key = match parallel {
            Some(_) => "parallel",
            None if self.labels.contains_key(Sizes::LABEL) => Sizes::LABEL,
            None => return Ok(()),
        };
        if self.dataset.is_some() {
            return fail(key, "can't be used with a dataset, whose engines choose any number of workers".into());
        }
        let (min, max) = (self.worker.min, self.worker.max);
        let gpus = self.worker.whole_gpus();
        if let Some(parallel) = parallel
            && parallel.group(gpus) > u64::from(max)
        {
            let Parallel { tensor, pipeline, expert } = parallel;
            let problem = format!(
                "tp = {tensor}, pp = {pipeline}, ep = {expert} need a multiple of {} workers with {gpus} GPUs each, \
                 and worker.max is {max}",
                parallel.group(gpus)
            );
            return fail(key, problem);
        }
        let sizes = self.sizes();
        if sizes == Sizes::Listed(SmallVec::new()) {
            let group = parallel.map_or(1, |parallel| parallel.group(gpus));
            let problem = format!("{} has no multiple of {group}, as parallel needs", self.labels[Sizes::LABEL]);
            return fail(Sizes::LABEL, problem);
        }
        if sizes.at_least(min).is_none_or(|least| least > max) {
            return fail(key, format!("{sizes}: none is from worker.min = {min} to worker.max = {max}"));
        }
        let requested = self.worker.requested;
        if !sizes.has(requested) {
            let near = [sizes.at_most(requested), sizes.at_least(requested)].into_iter().flatten();
            let near: Vec<_> = near.filter(|size| (min..=max).contains(size)).map(|size| size.to_string()).collect();
            let sizes = sizes.within(min, max);
            let problem = format!("{requested} isn't one of the job's sizes ({sizes}); ask for {}", near.join(" or "));
            return fail("worker.requested", problem);
        }
        Ok(())
    }

    fn validate_stop(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: &str| Err(JobSpecError { key: key.into(), problem: problem.into() });
        if self.stop == StopChoice::Accuracy && self.accuracy.is_none() {
            return fail("stop", "\"accuracy\" needs the accuracy that suffices; give it as accuracy = 0.9");
        }
        if self.stop_under_load < self.stop {
            return fail(
                "stop_under_load",
                "must not be later than stop: \"epochs\", \"optimal\", \"accuracy\" in this order",
            );
        }
        Ok(())
    }

    fn validate_partitions(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: String| Err(JobSpecError { key: key.into(), problem });
        let count = self.partitions.len();
        if count == 0 {
            return Ok(());
        }
        if count > MOST_PARTITIONS {
            return fail("partitions", format!("{count} parts must be at most {MOST_PARTITIONS}"));
        }
        if self.resize != Resize::Fixed {
            return fail(
                "partitions",
                "a model that is cut into parts runs as requested; add resize = \"fixed\"".into(),
            );
        }
        if !(self.worker.requested as usize).is_multiple_of(count) {
            let problem = format!("{} must be a multiple of the {count} partitions", self.worker.requested);
            return fail("worker.requested", problem);
        }
        for (at, part) in self.partitions.iter().enumerate() {
            if let Some(later) = part.after.iter().find(|other| **other as usize >= at) {
                return fail(
                    &format!("partitions[{at}].after"),
                    format!("{later} must be the place of an earlier part, below {at}"),
                );
            }
            let mut needed = part.after.clone();
            needed.sort_unstable();
            if let Some(pair) = needed.windows(2).find(|pair| pair[0] == pair[1]) {
                return fail(&format!("partitions[{at}].after"), format!("{} is named twice", pair[0]));
            }
        }
        Ok(())
    }
}

impl RoleSpec {
    fn validate(&self, key: &str) -> Result<(), JobSpecError> {
        let fail = |field: &str, problem: String| Err(JobSpecError { key: format!("{key}.{field}"), problem });
        if self.demand.len() > MOST_RESOURCES {
            return fail("resources", format!("{} resources must be at most {MOST_RESOURCES}", self.demand.len()));
        }
        for (name, &value) in &self.demand {
            if let Some(types @ GpuTypes::OneOf(_)) = GpuTypes::of(name) {
                validate_types(name, types).map_err(|problem| JobSpecError { key: format!("{key}.gpu"), problem })?;
            } else if name.is_empty()
                || name.len() > LONGEST_RESOURCE
                || name.chars().any(|c| is_unseen(c) || c.is_whitespace())
            {
                let name = shown(name, LONGEST_RESOURCE);
                return fail(
                    "resources",
                    format!("\"{name}\" must be a name of 1 to {LONGEST_RESOURCE} bytes without spaces"),
                );
            }
            if !(0..=1_000_000_000_000).contains(&value) {
                return fail(name, format!("{value} must be from 0 to 10^12 sub-units"));
            }
            if is_gpu(name) && value > 1000 && value % 1000 != 0 {
                return fail(
                    name,
                    format!("{} must be a whole number or a fraction of one device", value as f64 / 1000.0),
                );
            }
        }
        let kinds: Vec<_> = self.demand.iter().filter(|(name, value)| name.starts_with("gpu") && **value > 0).collect();
        if kinds.len() > 1 {
            return fail("gpu", format!("name one kind of GPU, not both {:?} and {:?}", kinds[0].0, kinds[1].0));
        }
        if self.demand.values().all(|value| *value == 0) {
            return fail("cpu", "a demand of nothing can't be scheduled; give at least one resource".into());
        }
        if self.min == 0 || self.min > self.max || self.max > MOST_WORKERS {
            let problem = format!("min = {}, max = {} must be 1 ≤ min ≤ max ≤ {MOST_WORKERS}", self.min, self.max);
            return fail("max", problem);
        }
        if !(self.min..=self.max).contains(&self.requested) {
            return fail(
                "requested",
                format!("{} must be from min = {} to max = {}", self.requested, self.min, self.max),
            );
        }
        if self.command.len() > LONGEST_COMMAND || self.command.contains('\0') {
            let problem =
                format!("{} characters must be at most {LONGEST_COMMAND}, none of them NUL", self.command.len());
            return fail("command", problem);
        }
        Ok(())
    }
}

/// Checks a list of GPU types, such as `gpu:a100|v100`.
fn validate_types(name: &str, types: GpuTypes<'_>) -> Result<(), String> {
    let wrong = |problem: String| Err(format!("\"{}\" {problem}", shown(name, LONGEST_RESOURCE)));
    if name.len() > LONGEST_RESOURCE * MOST_TYPES {
        return wrong(format!("must have at most {} bytes", LONGEST_RESOURCE * MOST_TYPES));
    }
    let mut listed: Vec<String> = types.listed().collect();
    if listed.len() > MOST_TYPES || listed.len() != name.split('|').count() {
        return wrong(format!("must list 2 to {MOST_TYPES} types, such as \"gpu:a100|v100\""));
    }
    let strange = |c: char| is_unseen(c) || c.is_whitespace() || c == '*';
    if let Some(kind) = listed.iter().find(|kind| kind.len() > LONGEST_RESOURCE || kind.chars().any(strange)) {
        let kind = shown(kind, LONGEST_RESOURCE);
        return wrong(format!(
            "lists \"{kind}\", which must have at most {LONGEST_RESOURCE} bytes without spaces or *"
        ));
    }
    listed.sort_unstable();
    match listed.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => wrong(format!("lists {} twice", pair[0])),
        None => Ok(()),
    }
}
