//! How a job's processes start, and what a change of their number does to them.

use std::collections::BTreeMap;

use crate::text::shown;

/// Maximum number of times that `torchrun` starts its training processes again. Trainmaster counts failures itself.
const RESTARTS: &str = "1000000";

/// The program that starts a worker's training processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// The worker's command is the training program.
    Program,
    /// PyTorch's `torchrun`: each worker is one of its agents. The environment tells the agents that Trainmaster's
    /// Python package says with whom they train, so that the training script stays as it is.
    Torchrun,
}

/// The part of a job's specification about its start.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The workers' command.
    pub command: &'a str,
    /// Whether it has no parameter servers, and its workers exchange gradients with each other.
    pub allreduce: bool,
    /// The largest number of its workers.
    pub most: u32,
    /// Whole GPUs of a worker, at least 1.
    pub gpus: u32,
}

/// What happens to a running job when its number of workers changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Elastic {
    /// Its workers are told the new number, and those that stay go on.
    #[default]
    InPlace,
    /// Its workers stay, but all start their training processes again, from the last checkpoint. As a restart, it has a
    /// price and counts.
    Regroup,
    /// It stops, and starts again from its last checkpoint.
    Restart,
}

impl Launcher {
    /// The label in which a job has it: `torchrun` or `none`. In a job file, `launcher`.
    pub const LABEL: &str = "launcher";

    /// That of a job: by its label, or else by its workers' command, `torchrun …` or `python -m torch.distributed.run`.
    /// A job with one worker at most may use the options with which `torchrun` trains alone, and has no launcher then.
    ///
    /// # Errors
    /// Names the key whose value isn't allowed, and says what is.
    pub fn of(job: &Start<'_>) -> Result<Self, (&'static str, String)> {
        let words: Vec<&str> = job.command.split_ascii_whitespace().collect();
        let launched = launched(&words);
        let torchrun = match job.labels.get(Self::LABEL).map(String::as_str) {
            None => launched.is_some(),
            Some("none") => false,
            Some("torchrun") => true,
            Some(other) => {
                let problem = format!("{:?} must be \"torchrun\" or \"none\"", shown(other, 64));
                return Err((Self::LABEL, problem));
            }
        };
        if !torchrun {
            return Ok(Self::Program);
        }
        if !job.allreduce {
            let problem = "torchrun's processes have no parameter servers; write mode = \"allreduce\"";
            return Err((Self::LABEL, problem.into()));
        }
        match launched.and_then(own_option) {
            None => Ok(Self::Torchrun),
            Some(_) if job.most == 1 => Ok(Self::Program),
            Some(name) => Err((
                "worker.command",
                format!(
                    "--{name} would make torchrun's agents choose their peers themselves; leave it out, so that they \
                     follow the plan. A job may have it with one worker at most, or with launcher = \"none\" in its \
                     file"
                ),
            )),
        }
    }

    /// Whether a label says how the job starts or changes, and not what a server must have.
    pub(crate) fn is_label(label: &str) -> bool {
        [Self::LABEL, Self::PROCESSES, Elastic::LABEL].contains(&label)
    }

    /// The label with the number of training processes of a worker: by default one for each GPU. In a job file,
    /// `nproc_per_node`.
    pub(super) const PROCESSES: &str = "nproc_per_node";

    /// The largest number of training processes of a worker.
    const MOST_PROCESSES: u32 = 1024;

    /// The number of training processes of a worker.
    ///
    /// # Errors
    /// The label's value isn't allowed.
    pub(super) fn processes(job: &Start<'_>) -> Result<u32, (&'static str, String)> {
        let Some(text) = job.labels.get(Self::PROCESSES) else { return Ok(job.gpus) };
        let number = text.parse().ok().filter(|number| (1..=Self::MOST_PROCESSES).contains(number));
        let allowed = format!("{:?} must be a whole number from 1 to {}", shown(text, 64), Self::MOST_PROCESSES);
        number.ok_or((Self::PROCESSES, allowed))
    }

    /// The variables by which `torchrun` is configured, for a job with this name and these numbers of workers.
    pub(super) fn variables(job: &Start<'_>, name: &str, workers: (u32, u32)) -> Vec<(&'static str, String)> {
        if job.labels.get(Self::LABEL).is_none_or(|launcher| launcher != "torchrun") {
            return Vec::new();
        }
        vec![
            ("PET_RDZV_BACKEND", "trainmaster".to_owned()),
            // Unused, but without one torchrun warns of a master address that nobody gave.
            ("PET_RDZV_ENDPOINT", "trainmaster".to_owned()),
            ("PET_RDZV_ID", name.to_owned()),
            ("PET_NNODES", format!("{}:{}", workers.0, workers.1)),
            ("PET_NPROC_PER_NODE", Self::processes(job).unwrap_or(1).to_string()),
            ("PET_MAX_RESTARTS", RESTARTS.to_owned()),
        ]
    }
}

impl Elastic {
    /// The label in which a job has it: `in_place` or `restart`. In a job file, `elastic`.
    pub const LABEL: &str = "elastic";

    /// That of a job with these labels. Without the label, workers stay.
    pub fn of(labels: &BTreeMap<String, String>) -> Self {
        let is = |label: &str, value: &str| labels.get(label).is_some_and(|found| found == value);
        match (is(Self::LABEL, "restart"), is(Launcher::LABEL, "torchrun")) {
            (true, _) => Self::Restart,
            (false, true) => Self::Regroup,
            (false, false) => Self::InPlace,
        }
    }

    /// The label's value for a new job that doesn't say it. A program of an all-reduce job that nobody knows is started
    /// again, because most don't survive a change: peers that leave break their connections. `torchrun` and
    /// `trainmaster-trainer` do, and so does a program that the manager starts or that uses parameter servers, since it
    /// is written for Trainmaster.
    pub(super) fn inferred(job: &Start<'_>) -> Option<&'static str> {
        let program = job.command.split_ascii_whitespace().next()?;
        let known = file_name(program) == "trainmaster-trainer" || Launcher::of(job) == Ok(Launcher::Torchrun);
        (job.allreduce && !known).then_some("restart")
    }

    /// Checks the label.
    pub(super) fn check(labels: &BTreeMap<String, String>) -> Result<(), (&'static str, String)> {
        match labels.get(Self::LABEL).map(String::as_str) {
            None | Some("in_place" | "restart") => Ok(()),
            Some(other) => {
                let problem = format!("{:?} must be \"in_place\", \"restart\" or \"fixed\"", shown(other, 64));
                Err((Self::LABEL, problem))
            }
        }
    }
}

/// The words after `torchrun`, if a command starts it.
fn launched<'a, 'w>(words: &'w [&'a str]) -> Option<&'w [&'a str]> {
    let (first, rest) = words.split_first()?;
    if file_name(first) == "torchrun" {
        return Some(rest);
    }
    let module = words.windows(2).position(|pair| pair == ["-m", "torch.distributed.run"])?;
    file_name(first).starts_with("python").then(|| &words[module + 2..])
}

/// The first of torchrun's own options by which its agents would choose their peers. What follows the script are the
/// script's.
fn own_option(words: &[&str]) -> Option<&'static str> {
    const OWN: [&str; 9] = [
        "standalone",
        "nnodes",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "node-rank",
        "master-addr",
        "master-port",
    ];
    // All others have a value, in the next word unless it follows a `=`.
    const FLAGS: [&str; 5] = ["standalone", "module", "no-python", "run-path", "use-env"];
    let mut words = words.iter();
    while let Some(option) = words.next().and_then(|word| word.strip_prefix('-')) {
        let Some(option) = option.strip_prefix('-') else {
            // `-m`, or `-r 3` and `-t 3`.
            if option != "m" {
                words.next();
            }
            continue;
        };
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let name = name.replace('_', "-");
        // Python's parser takes the beginning of a name for it.
        if let Some(own) = OWN.into_iter().find(|own| name.len() > 2 && own.starts_with(&name)) {
            return Some(own);
        }
        if value.is_none() && !FLAGS.contains(&name.as_str()) {
            words.next();
        }
    }
    None
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, Resize, Sizes, TrainingMode};

    fn job(command: &str, labels: &[(&str, &str)]) -> JobSpec {
        let mut spec = JobSpec::minimal("net");
        spec.mode = TrainingMode::AllReduce;
        spec.server = None;
        spec.worker.command = command.into();
        spec.worker.max = 4;
        spec.labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        spec
    }

    #[test]
    fn torchrun_is_known_by_its_command_or_label() {
        for command in [
            "torchrun train.py",
            "/opt/venv/bin/torchrun --nproc-per-node=2 train.py --nnodes 3",
            "python3 -m torch.distributed.run train.py",
            "/usr/bin/python3.11 -u -m torch.distributed.run -m pack.train",
        ] {
            assert_eq!(Launcher::of(&job(command, &[]).start()), Ok(Launcher::Torchrun), "{command}");
            let other = job(command, &[("launcher", "none")]);
            assert_eq!(Launcher::of(&other.start()), Ok(Launcher::Program), "{command}");
        }
        for command in
            ["", "python train.py", "bash -c torchrun", "my-torchrun train.py", "sh -m torch.distributed.run"]
        {
            assert_eq!(Launcher::of(&job(command, &[]).start()), Ok(Launcher::Program), "{command}");
            assert_eq!(
                Launcher::of(&job(command, &[("launcher", "torchrun")]).start()),
                Ok(Launcher::Torchrun),
                "{command}"
            );
        }
    }

    #[test]
    fn options_that_choose_peers_are_refused() {
        for option in ["--standalone", "--nnodes=1:3", "--rdzv_backend c10d", "--rdzv-endpoint=a:1", "--node_rank=1"] {
            let mut spec = job(&format!("torchrun {option} train.py"), &[]);
            let (key, problem) = Launcher::of(&spec.start()).unwrap_err();
            assert_eq!(key, "worker.command");
            let name = option.split(['=', ' ']).next().unwrap().replace('_', "-");
            assert!(problem.starts_with(&name), "{problem}");
            spec.worker.max = 1;
            assert_eq!(Launcher::of(&spec.start()), Ok(Launcher::Program), "alone it may");
        }
        for (option, own) in [("--nnode 1", "nnodes"), ("--nproc-per-node 2 --rdzv_back c10d", "rdzv-backend")] {
            let (_, problem) = Launcher::of(&job(&format!("torchrun {option} t.py"), &[]).start()).unwrap_err();
            assert!(problem.starts_with(&format!("--{own}")), "{option}: {problem}");
        }
        // After the script, options are the script's.
        for rest in [
            "-m pack.train --master-port 5",
            "--no-python ./run.sh --nnodes 3",
            "--nproc-per-node 2 -r 3 --log-dir=logs train.py --standalone",
            "--role a.py train.py --rdzv-id=1",
        ] {
            assert_eq!(Launcher::of(&job(&format!("torchrun {rest}"), &[]).start()), Ok(Launcher::Torchrun), "{rest}");
        }
        let (key, problem) = Launcher::of(&job("", &[("launcher", "mpirun")]).start()).unwrap_err();
        assert_eq!((key, problem.as_str()), ("launcher", "\"mpirun\" must be \"torchrun\" or \"none\""));
        let sync = JobSpec { mode: TrainingMode::Sync, ..job("torchrun train.py", &[]) };
        assert!(Launcher::of(&sync.start()).unwrap_err().1.contains("allreduce"));
    }

    #[test]
    fn only_programs_that_survive_a_change_get_one_in_place() {
        for (command, labels, expected) in [
            ("", &[][..], Elastic::InPlace),
            ("trainmaster-trainer --seed 1", &[], Elastic::InPlace),
            ("/opt/bin/trainmaster-trainer", &[], Elastic::InPlace),
            ("python train.py", &[], Elastic::Restart),
            ("python train.py", &[("elastic", "in_place")], Elastic::InPlace),
            ("torchrun train.py", &[], Elastic::Regroup),
            ("torchrun train.py", &[("elastic", "in_place")], Elastic::Regroup),
            ("torchrun train.py", &[("elastic", "restart")], Elastic::Restart),
            ("torchrun train.py", &[("launcher", "none")], Elastic::Restart),
        ] {
            let mut spec = job(command, labels);
            spec.infer_start();
            assert_eq!(Elastic::of(&spec.labels), expected, "{command} {labels:?}");
            spec.validate_new().unwrap();
        }
        // Jobs that an older build accepted keep its rules.
        let old = job("python train.py", &[]);
        assert_eq!(Elastic::of(&old.labels), Elastic::InPlace);
        let (key, problem) = Elastic::check(&job("", &[("elastic", "yes")]).labels).unwrap_err();
        assert_eq!((key, problem.as_str()), ("elastic", "\"yes\" must be \"in_place\", \"restart\" or \"fixed\""));
        let mut servers = JobSpec { mode: TrainingMode::Sync, ..job("python train.py", &[]) };
        servers.infer_start();
        assert_eq!(Elastic::of(&servers.labels), Elastic::InPlace);
    }

    #[test]
    fn agents_are_configured_by_their_environment() {
        let told = |spec: &JobSpec| {
            let mut spec = spec.clone();
            spec.infer_start();
            let told: BTreeMap<_, _> =
                spec.environment().into_iter().filter(|(key, _)| key.starts_with("PET_")).collect();
            told.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let mut spec = job("torchrun train.py", &[]);
        spec.worker.demand = [("gpu".to_owned(), 8000)].into();
        assert_eq!(
            told(&spec),
            "PET_MAX_RESTARTS=1000000 PET_NNODES=1:4 PET_NPROC_PER_NODE=8 PET_RDZV_BACKEND=trainmaster \
             PET_RDZV_ENDPOINT=trainmaster PET_RDZV_ID=net"
        );
        spec.resize = Resize::Fixed;
        spec.worker.demand = [("cpu".to_owned(), 500)].into();
        assert!(told(&spec).contains("PET_NNODES=1:1 PET_NPROC_PER_NODE=1"));
        let sized = job("torchrun train.py", &[(Sizes::LABEL, "2,3"), ("nproc_per_node", "4")]);
        assert!(told(&sized).contains("PET_NNODES=2:3 PET_NPROC_PER_NODE=4"));
        for wrong in ["0", "1025", "gpu", "-1"] {
            let (key, problem) = Launcher::processes(&job("", &[("nproc_per_node", wrong)]).start()).unwrap_err();
            assert!(
                key == "nproc_per_node" && problem.starts_with(&format!("{wrong:?} must be a whole number from 1"))
            );
        }
        assert_eq!(told(&job("python train.py", &[])), "");
    }
}
