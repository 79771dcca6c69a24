//! Checks whether this machine can do what the cluster file states.

use rustix::process::{Pid, PidfdFlags, Resource, getpid, getrlimit, pidfd_open};

use super::{
    Options,
    cluster::{Cluster, gpus_here, machine_memory},
    command::{DEFAULT_PROGRAM, Programs},
    gpus::Reader,
    user::User,
};
use trainmaster_manager::{Check, Health};

/// File descriptors for the daemon itself. A slot needs a process descriptor, and briefly its log twice.
const SPARE_FILES: u64 = 128;
/// Processes per slot. Threads count as processes, and a training program has several.
const THREADS_PER_SLOT: u64 = 16;

/// Checks the state folder, the trainer, this process's limits and the stated capacity. Starts and creates nothing.
pub fn doctor(cluster: &Cluster, options: &Options) -> Vec<Check> {
    vec![
        Check::folder("state folder", &options.state_dir),
        trainer(options),
        user(cluster),
        descriptors(getpid()),
        limit("open files", Resource::Nofile, SPARE_FILES + slots(cluster)),
        limit("processes", Resource::Nproc, THREADS_PER_SLOT * slots(cluster)),
        memory(cluster),
        gpus(cluster, gpus_here(), Reader::start),
    ]
}

/// The expected number of slots of a full cluster: one for each stated CPU.
fn slots(cluster: &Cluster) -> u64 {
    let cpus = cluster.servers().iter().filter_map(|server| server.capacity().get("cpu")).map(|milli| milli / 1000);
    cpus.sum::<i64>().unsigned_abs().max(1)
}

fn trainer(options: &Options) -> Check {
    match Programs::new(options.trainer_path.clone()).resolve("") {
        Ok(command) => Check::new("trainer", Health::Good, command.program.display().to_string()),
        // Jobs can have their own commands.
        Err(cause) => Check::new(
            "trainer",
            Health::Doubtful,
            format!("{cause}; jobs without a command ({DEFAULT_PROGRAM}) will be refused"),
        ),
    }
}

/// Checks whether jobs can read the daemon's files.
fn user(cluster: &Cluster) -> Check {
    let found = |verdict, detail| Check::new("jobs' user", verdict, detail);
    match cluster.run_as() {
        None => {
            let detail = "jobs run as the daemon's own user and can read its tokens; for people who don't trust each \
                          other name another one (user)";
            found(Health::Doubtful, detail.into())
        }
        Some(run_as) => match User::find(&run_as.user) {
            Ok(user) if user.uid == 0 => found(Health::Doubtful, "jobs run as root and can do anything".into()),
            Ok(user) => match user.stopped_at(&run_as.folder) {
                None => found(Health::Good, format!("jobs run as {}, in {}", user.name, run_as.folder.display())),
                Some(folder) => {
                    let (name, folder) = (&user.name, folder.display());
                    let detail = format!(
                        "{name} can't get into {folder}: let everybody pass (chmod o+x), or name another folder"
                    );
                    found(Health::Bad, detail)
                }
            },
            Err(problem) => found(Health::Bad, problem),
        },
    }
}

fn descriptors(me: Pid) -> Check {
    match pidfd_open(me, PidfdFlags::empty()) {
        Ok(_) => Check::new("process descriptors", Health::Good, "the kernel has them".into()),
        Err(error) => {
            let detail = format!("{error}; Linux 5.3 or newer is needed to watch processes");
            Check::new("process descriptors", Health::Bad, detail)
        }
    }
}

fn limit(name: &'static str, resource: Resource, wanted: u64) -> Check {
    match getrlimit(resource).current {
        Some(allowed) if allowed < wanted => {
            let detail =
                format!("{allowed} allowed, about {wanted} wanted by a full cluster; raise the limit (ulimit)");
            Check::new(name, Health::Doubtful, detail)
        }
        Some(allowed) => Check::new(name, Health::Good, format!("{allowed} allowed, about {wanted} wanted")),
        None => Check::new(name, Health::Good, "no limit".into()),
    }
}

/// Whether the cluster's GPUs are there, and how many of them their driver measures.
fn gpus(cluster: &Cluster, here: usize, reader: impl FnOnce() -> Reader) -> Check {
    let found = |verdict, detail| Check::new("GPUs", verdict, detail);
    let stated = cluster.real_gpus() as usize;
    match cluster.device_count() {
        0 if here == 0 => {
            found(Health::Good, "the cluster has none; this machine has no NVIDIA GPU (/dev/nvidia0)".into())
        }
        0 => found(Health::Good, format!("the cluster has none of this machine's {here}")),
        devices if stated == 0 => {
            found(Health::Good, format!("{devices} emulated; with real_gpus = true they are this machine's"))
        }
        devices if stated > here => {
            let short = format!("the cluster has {devices}, and this machine {here} (/dev/nvidia0, …)");
            found(Health::Bad, format!("{short}: jobs would get GPUs that don't exist"))
        }
        devices => match reader().read(devices).iter().flatten().count() {
            measured if measured == stated => {
                found(Health::Good, format!("the driver measures the use of all {stated}"))
            }
            measured => {
                let detail = format!(
                    "the driver measures the use of {measured} of {stated}; of the others, jobs count as using all \
                     that they were given"
                );
                found(Health::Doubtful, detail)
            }
        },
    }
}

/// The virtual servers' total may exceed the machine, because local jobs often use less than they request. The check is
/// only doubtful then.
fn memory(cluster: &Cluster) -> Check {
    let promised: i64 = cluster.servers().iter().filter_map(|server| server.capacity().get("memory")).sum();
    let there = machine_memory();
    if promised > there {
        let detail = format!("{promised} MiB promised, {there} MiB in the machine");
        return Check::new("memory", Health::Doubtful, detail);
    }
    Check::new("memory", Health::Good, format!("{promised} MiB promised of {there} MiB"))
}

#[cfg(test)]
mod tests {
    use super::{super::gpus::scripted, *};

    #[test]
    fn the_check_of_gpus_says_how_many_are_there_and_measured() {
        let folder = tempfile::tempdir().unwrap();
        let check = |text: &str, here| {
            let text = format!("{text}\n[[server]]\nname = \"a\"\ncpu = 2");
            let check = gpus(&Cluster::parse(&text, "test").unwrap(), here, || scripted(folder.path(), [1, 2], 0));
            (check.verdict, check.detail)
        };
        let server = |gpus: u32| format!("[[server]]\nname = \"g\"\ngpu = {gpus}");
        let real = |gpus, here| check(&format!("real_gpus = true\n{}", server(gpus)), here);
        let cases = [
            (check("real_gpus = true", 0), Health::Good, "this machine has no NVIDIA GPU"),
            (check("real_gpus = true", 2), Health::Good, "none of this machine's 2"),
            (check(&server(2), 0), Health::Good, "2 emulated; with real_gpus = true they are this machine's"),
            (real(2, 2), Health::Good, "the driver measures the use of all 2"),
            (real(4, 4), Health::Doubtful, "the driver measures the use of 2 of 4; "),
            (real(4, 2), Health::Bad, "the cluster has 4, and this machine 2"),
            (real(1, 0), Health::Bad, "the cluster has 1, and this machine 0"),
        ];
        for ((verdict, detail), expected, words) in cases {
            assert!(verdict == expected && detail.contains(words), "{words:?}: {verdict:?}, {detail}");
        }
    }

    #[test]
    fn gpus_of_a_driver_that_doesnt_answer_are_doubtful() {
        let cluster = Cluster::parse("real_gpus = true\n[[server]]\nname = \"a\"\ngpu = 1", "test").unwrap();
        let check = gpus(&cluster, 1, Reader::start);
        // A machine with a driver has an answer.
        let expected = if gpus_here() > 0 { Health::Good } else { Health::Doubtful };
        assert_eq!(check.verdict, expected, "{}", check.detail);
    }
}
