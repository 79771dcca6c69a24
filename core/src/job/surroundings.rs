//! Where a job's commands run: their folder and their variables.

use std::collections::BTreeMap;

use crate::text::{quoted, shown};

/// Maximum characters of a value in error messages.
const SHOWN: usize = 100;

/// Where a job's commands run: what stands before them, as `env` takes it, because all managers can start that.
#[derive(Default, PartialEq)]
pub(super) struct Surroundings {
    pub(super) folder: Option<String>,
    pub(super) checkpoints: Option<String>,
    pub(super) variables: BTreeMap<String, String>,
}

impl Surroundings {
    /// The words before a command. Empty if nothing is said.
    ///
    /// # Errors
    /// Names the key whose value isn't allowed, and says what is.
    pub(super) fn words(&self) -> Result<String, (&'static str, String)> {
        if *self == Self::default() {
            return Ok(String::new());
        }
        let absolute = |key: &'static str, path: &str| match path.starts_with('/') {
            true => Ok(()),
            false => Err((key, format!("{:?} must begin with /, and be there on every server", shown(path, SHOWN)))),
        };
        let mut words = vec!["env".to_owned()];
        if let Some(folder) = &self.folder {
            absolute("workdir", folder)?;
            words.push(format!("--chdir={}", quoted(folder)));
        }
        // A command that runs in a folder of its owner writes them there.
        let there = self.folder.as_ref().map(|_| "checkpoints");
        if let Some(path) = self.checkpoints.as_deref().or(there) {
            let path = match &self.folder {
                Some(folder) if !path.starts_with('/') => format!("{folder}/{path}"),
                _ => path.to_owned(),
            };
            absolute("checkpoints", &path)?;
            words.push(format!("TRAINMASTER_CHECKPOINT_DIR={}", quoted(&path)));
        }
        for (name, value) in &self.variables {
            let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
            if !name.starts_with(is_first) || !name.chars().all(|c| is_first(c) || c.is_ascii_digit()) {
                let problem = "a variable's name has letters, digits and _, and doesn't start with a digit";
                return Err(("env", format!("{:?}: {problem}", shown(name, SHOWN))));
            }
            if is_given(name) {
                return Err(("env", format!("{}: Trainmaster or the manager sets it", shown(name, SHOWN))));
            }
            words.push(format!("{name}={}", quoted(value)));
        }
        Ok(words.join(" "))
    }
}

/// Whether a process gets a variable of this name from Trainmaster, its manager or its launcher: about its devices, or
/// about its place among the others.
fn is_given(name: &str) -> bool {
    const STARTS: [&str; 9] =
        ["TRAINMASTER_", "PET_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "SLURM_", "NVIDIA_VISIBLE_"];
    const NAMES: [&str; 8] = [
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "RANK",
        "WORLD_SIZE",
        "NODE_RANK",
        "CONTAINER_ID",
    ];
    NAMES.contains(&name) || STARTS.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use crate::job::{JobFileError, JobSpec, Resize};

    #[test]
    fn commands_run_where_the_file_says() {
        let command = |rest: &str, command: &str| -> Result<JobSpec, JobFileError> {
            let text =
                format!("name = \"a\"\nmode = \"allreduce\"\nworker = {{ cpu = 1, max = 2, command = \"{command}\" }}");
            JobSpec::from_toml(&format!("{text}\n{rest}"))
        };
        let found =
            command("workdir = \"/a b\"\ncheckpoints = \"out\"\nenv = { B = \"it's\", A = \"1\" }", "torchrun t.py");
        let found = found.unwrap();
        assert_eq!(
            found.worker.command,
            r"env --chdir='/a b' TRAINMASTER_CHECKPOINT_DIR='/a b/out' A=1 B='it'\''s' torchrun t.py"
        );
        assert_eq!((found.labels["launcher"].as_str(), found.labels["elastic"].as_str()), ("torchrun", "in_place"));
        let folder = command("workdir = \"/a\"", "python t.py").unwrap().worker.command;
        assert_eq!(folder, "env --chdir=/a TRAINMASTER_CHECKPOINT_DIR=/a/checkpoints python t.py");
        let plain = command("env = { A = \"\" }", "python t.py").unwrap();
        assert_eq!(
            (plain.worker.command.as_str(), plain.labels["elastic"].as_str()),
            ("env A='' python t.py", "restart")
        );
        let fixed = command("elastic = \"fixed\"\nlauncher = \"none\"\nnproc_per_node = 2", "torchrun t.py").unwrap();
        assert_eq!((fixed.resize, fixed.labels["launcher"].as_str()), (Resize::Fixed, "none"));
        for (rest, expected) in [
            ("workdir = \"net\"", "workdir: \"net\" must begin with /"),
            ("checkpoints = \"net\"", "checkpoints: \"net\" must begin with /"),
            ("env = { \"A-B\" = \"1\" }", "env: \"A-B\": a variable's name"),
            ("env = { \"1A\" = \"1\" }", "env: \"1A\""),
            ("env = { TRAINMASTER_JOB = \"1\" }", "env: TRAINMASTER_JOB: Trainmaster or the manager sets it"),
            ("env = { CUDA_VISIBLE_DEVICES = \"0\" }", "env: CUDA_VISIBLE_DEVICES: Trainmaster or the manager sets it"),
            ("env = { MASTER_PORT = \"1\" }", "env: MASTER_PORT: Trainmaster or the manager sets it"),
            ("env = { A = 1 }", "A = 1"),
            ("launcher = \"mpi\"", "launcher: \"mpi\" must be \"torchrun\" or \"none\""),
            ("elastic = \"maybe\"", "elastic: \"maybe\" must be"),
            ("nproc_per_node = 0", "nproc_per_node: \"0\" must be a whole number from 1 to 1024"),
        ] {
            let error = command(rest, "torchrun t.py").unwrap_err().to_string();
            assert!(error.contains(expected), "{rest}: {error}");
        }
        assert!(command("env = { A = \"1\" }", "").unwrap_err().to_string().contains("worker.command: is missing"));
        let long = format!("env = {{ A = \"{}\" }}", "x".repeat(17_000));
        assert!(command(&long, "a").unwrap_err().to_string().contains("worker.command: 1"));
    }
}
