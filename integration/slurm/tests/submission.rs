//! `job_submit/trainmaster` in a real slurmctld: accepted, refused and unaffected jobs.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::cluster::{Cluster, Plugins, available, until};
use trainmaster_adapters::slurm::comment::{Part, Tag, spec};

const SLEEP: &str = "#!/bin/sh\nsleep 600\n";
const LEASE: i64 = 600;

#[test]
fn a_real_slurm_accepts_refuses_and_ignores_jobs() {
    if !available() {
        return;
    }
    let before = ordinary_jobs(&Cluster::start(3, "", None, |_| {}));
    let plugins = Plugins::Product.build();
    let prepare = |folder: &std::path::Path| {
        fs::create_dir_all(folder.join("etc")).unwrap();
        fs::write(folder.join("etc/trainmaster.toml"), "[slurm]\nlease = \"10m\"\nfeed = \"http://127.0.0.1:7\"\n")
            .unwrap();
    };
    let cluster = Cluster::start(3, "JobSubmitPlugins=trainmaster", Some(&plugins), prepare);
    assert_eq!(ordinary_jobs(&cluster), before, "jobs that aren't ours are as without the plugin");
    good_jobs_are_held(&cluster);
    components_are_held_as_one_job(&cluster);
    owners_begin_stands(&cluster);
    mistakes_are_refused(&cluster);
    the_environment_is_right(&cluster);
}

/// Records of foreign jobs in Slurm, without numbers and times that differ between runs.
fn ordinary_jobs(cluster: &Cluster) -> Vec<String> {
    let jobs: [&[&str]; 8] = [
        &["-n4"],
        &["--comment=trainmasters of old"],
        &["--comment=about;trainmaster;mode=sync"],
        &["-N2", "--ntasks-per-node=2", "--gres=gpu:2", "--mem=100"],
        &["--array=1-3", "-n1", "--gpus-per-task=1"],
        &["--exclusive", "-w", "node1", "--no-requeue", "--begin=2037-01-01"],
        &["-n2", "--gpus=2", ":", "-n1"],
        &["-c2", "--export=NONE", "--dependency=singleton", "--time=5"],
    ];
    let mut shown = Vec::new();
    for arguments in jobs {
        let id = cluster.sbatch(&[&["--hold"], arguments].concat(), "#!/bin/sh\n# trainmaster\nsleep 600\n").unwrap();
        let id = id.split(';').next().unwrap().to_owned();
        let folder = cluster.folder().to_str().unwrap();
        let changing = [
            "SubmitTime=",
            "EligibleTime=",
            "AccrueTime=",
            "LastSchedEval=",
            "AllocNode:Sid=",
            "StartTime=",
            "Priority=",
        ];
        for record in cluster.show(&id).replace(folder, "FOLDER").lines() {
            let fields = record.split(' ').filter(|field| !changing.iter().any(|name| field.starts_with(name)));
            shown.push(fields.collect::<Vec<_>>().join(" "));
        }
        cluster.run("scancel", &[&id]);
    }
    assert!(shown.len() >= jobs.len(), "{shown:#?}");
    shown
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// Start time of a job in Unix seconds.
fn start_of(cluster: &Cluster, id: &str) -> i64 {
    seconds(&cluster.field(id, "StartTime"))
}

fn seconds(shown: &str) -> i64 {
    let date = std::process::Command::new("date").args(["-d", shown, "+%s"]).output().unwrap();
    String::from_utf8_lossy(&date.stdout).trim().parse().unwrap_or_else(|_| panic!("{shown:?} is no time"))
}

fn tag_of(cluster: &Cluster, id: &str) -> Tag {
    let shown = cluster.show(id);
    let comment = shown.split_once(" Comment=").unwrap().1;
    let comment = comment.split(" StdErr=").next().unwrap().trim();
    Tag::read(comment).unwrap_or_else(|| panic!("{comment:?}"))
}

fn good_jobs_are_held(cluster: &Cluster) {
    let socket = UnixDatagram::bind(cluster.folder().join("state/trainmaster.socket")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let before = now();
    let comment =
        "--comment=trainmaster;model=resnet50;mode=sync;worker.max=8;server.cpu=2;server.requested=2;server.max=2";
    let sized = ["-N2", "--ntasks-per-node=2", "--gres=gpu:2", "--mem-per-cpu=100", "-c3"];
    let id = cluster.sbatch(&[&[comment], &sized[..]].concat(), SLEEP).unwrap();
    socket.recv(&mut [0; 16]).expect("the agent is woken");
    let start = start_of(cluster, &id);
    assert!((before + LEASE..=now() + LEASE).contains(&start), "{start} isn't a lease ahead of {before}");
    assert_eq!(cluster.field(&id, "JobState"), "PENDING");
    assert_eq!(cluster.field(&id, "Reason"), "BeginTime");
    assert_eq!(cluster.field(&id, "Requeue"), "1");
    let tag = tag_of(cluster, &id);
    let spec = spec(&tag.pairs, "x").unwrap();
    assert_eq!((spec.worker.requested, spec.worker.max, spec.worker.demand["gpu"]), (2, 8, 2000));
    assert_eq!((spec.worker.demand["cpu"], spec.worker.demand["memory"]), (3000, 300));
    let server = spec.server.unwrap();
    assert_eq!((server.requested, server.demand["cpu"], server.demand["memory"]), (2, 2000, 300));
    assert_eq!((tag.asked.nodes, tag.asked.tasks, &*tag.asked.tres_per_node), ((2, 2), 4, "gres:gpu:2"));

    // "Per task" can't be changed later, so it is converted to a form that can.
    let id =
        cluster.sbatch(&["-n4", "--gpus-per-task=1"], "#!/bin/sh\n#TRAINMASTER mode = allreduce\nsleep 600\n").unwrap();
    assert_eq!(
        (cluster.field(&id, "TresPerJob"), cluster.field(&id, "TresPerTask")),
        ("gres:gpu:4".into(), String::new())
    );
    assert_eq!(tag_of(cluster, &id).pairs[0], ("mode".to_owned(), "allreduce".to_owned()));
}

/// Workers with GPUs, and the bounds of the other component.
const PAIR: &str = "--comment=trainmaster;model=resnet50;worker.max=8;server.max=4";

fn components_are_held_as_one_job(cluster: &Cluster) {
    let of_workers = [PAIR, "-N1", "-n2", "--gpus-per-node=2", "--begin=now+2hours"];
    let of_servers = [":", "-N1", "-n3", "-c2", "--mem-per-cpu=200"];
    let line = "#!/bin/sh\n#TRAINMASTER worker.max = 8\n#TRAINMASTER mode = sync\nsleep 600\n";
    // Also if only the script, which belongs to the first component, identifies the job.
    for arguments in [[&of_workers[..], &of_servers].concat(), [&of_workers[1..], &of_servers].concat()] {
        let begin = now() + 7200;
        let id = cluster.sbatch(&arguments, line).unwrap();
        let records: Vec<String> = cluster.show(&id).lines().map(str::to_owned).collect();
        assert_eq!(records.len(), 2, "{records:#?}");
        for record in &records {
            assert!(record.contains("JobState=PENDING") && record.contains("Requeue=1"), "{record}");
            let start = record.split(" StartTime=").nth(1).unwrap().split(' ').next().unwrap();
            assert!((begin - 2..begin + 30).contains(&seconds(start)), "{record}");
        }
        let comment = |at: usize| {
            let text = records[at].split_once(" Comment=").unwrap().1;
            text.split(" StdErr=").next().unwrap().trim().to_owned()
        };
        let (tag, part) = (Tag::read(&comment(0)).unwrap(), Part::read(&comment(1)).unwrap());
        let whole: Vec<_> = tag.pairs.iter().chain(&part.pairs).cloned().collect();
        let spec = spec(&whole, "x").unwrap();
        assert!(spec.separate_roles);
        assert_eq!((spec.worker.requested, spec.worker.max, spec.worker.demand["gpu"]), (2, 8, 1000));
        let server = spec.server.unwrap();
        assert_eq!((server.requested, server.demand["cpu"], server.demand["memory"]), (3, 2000, 400));
        assert_eq!((part.asked.tasks, part.asked.cpus_per_task), (3, 2));
        cluster.run("scancel", &[&id]);
    }
}

fn owners_begin_stands(cluster: &Cluster) {
    let begin = now() + 7200;
    let comment = "--comment=trainmaster;mode=allreduce;worker.gpu=1";
    let id = cluster.sbatch(&[comment, "--begin=now+2hours"], SLEEP).unwrap();
    let start = start_of(cluster, &id);
    assert!((begin - 2..begin + 30).contains(&start), "{start} isn't the owner's {begin}");
    assert!((begin - 2..begin + 30).contains(&tag_of(cluster, &id).begin));
}

fn mistakes_are_refused(cluster: &Cluster) {
    let ring = "--comment=trainmaster;mode=allreduce;worker.gpu=1";
    let cases: [(&[&str], &[&str]); 20] = [
        (&["--comment=trainmaster;mode=allreduce;wroker.max=8"], &["wroker.max", "8", "worker"]),
        (&["--comment=trainmaster;mode=snyc"], &["mode", "snyc", "allreduce"]),
        (&["--comment=trainmaster;mode=allreduce;worker.memory=10"], &["worker.memory", "10", "10GiB"]),
        (&["--comment=trainmaster;mode=allreduce;worker.gpu=0.5"], &["worker.gpu", "0.5", "whole"]),
        (&["--comment=trainmaster;mode=allreduce;worker.gpu:a100|v100=1"], &["gpu:a100|v100", "name one type"]),
        (&["--comment=trainmaster;mode=sync"], &["server", "missing"]),
        (&["--comment=trainmaster;mode=allreduce;tenant=vip"], &["tenant", "vip", "--account"]),
        (&["--comment=trainmaster;mode=allreduce;@token=1"], &["@token"]),
        (&[ring, "--array=1-3"], &["--array", "1-3"]),
        (&[ring, "--exclusive"], &["--exclusive"]),
        (&[ring, "--nodelist=node1"], &["--nodelist", "node1"]),
        (&[ring, "--no-requeue"], &["--no-requeue"]),
        (&["--comment=trainmaster;mode=allreduce", "-N1", "-n2", "--gres=gpu:3"], &["--gres", "3", "2 tasks"]),
        (&[ring, ":", "-n1"], &["hetjob", "allreduce"]),
        (&[PAIR, ":", "-n1", ":", "-n1"], &["hetjob", "two"]),
        (&[PAIR, ":", "-n1", "--gres=gpu:1"], &["--gres", "gpu:1", "second component"]),
        (&[PAIR, "-plow", ":", "-n1", "-phigh"], &["--partition", "low", "high", "both"]),
        (&["--comment=trainmaster;separate_roles=false", ":", "-n1"], &["separate_roles", "false"]),
        (&["--comment=trainmaster;server.cpu=1;separate_roles=true"], &["separate_roles", "component"]),
        (&["--comment=trainmaster;server.gpu=1", ":", "-n1"], &["server.gpu", "second component"]),
    ];
    for (arguments, parts) in cases {
        let complaint = cluster.sbatch(arguments, SLEEP).unwrap_err();
        for part in parts {
            assert!(complaint.contains("trainmaster: ") && complaint.contains(part), "{arguments:?}: {complaint}");
        }
    }
}

fn the_environment_is_right(cluster: &Cluster) {
    let script = "#!/bin/sh\n#TRAINMASTER mode = allreduce\nenv > env.$SLURM_JOB_ID.part\n\
                  mv env.$SLURM_JOB_ID.part env.$SLURM_JOB_ID\n";
    let id = cluster.sbatch(&["-n2", "--ntasks-per-node=2"], script).unwrap();
    let hash = tag_of(cluster, &id).token;
    // It starts as it was submitted. Options of sbatch would be wrong after a resize, and are removed.
    assert!(cluster.run("scontrol", &["update", &format!("JobId={id}"), "StartTime=now"]).status.success());
    let file = cluster.folder().join(format!("env.{id}"));
    until("the job has run", || file.exists());
    let environment = fs::read_to_string(file).unwrap();
    let value = |name: &str| environment.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let token = value("TRAINMASTER_TOKEN").unwrap();
    assert_eq!((token.len(), *blake3::hash(token.as_bytes()).as_bytes()), (32, hash));
    assert_eq!((value("TRAINMASTER_FEED"), value("TRAINMASTER_MODE")), (Some("http://127.0.0.1:7"), Some("allreduce")));
    assert_eq!(value("SLURM_NTASKS_PER_NODE"), None, "what sbatch set is taken away");
    // After many submissions, slurmctld has released each environment correctly.
    for _ in 0..30 {
        let id = cluster.sbatch(&["-n2", "--ntasks-per-node=2"], script).unwrap();
        cluster.run("scancel", &[&id]);
    }
    assert!(cluster.run("scontrol", &["ping"]).status.success());
}
