//! Training jobs of two components: workers on some nodes, parameter servers on others.

use std::fs;

use super::{
    cluster::{available, root, until},
    site::{Setup, Site, programs},
};

/// Rounds with enough time between them for a crash.
const OPTIMUS: &str = "engine = \"optimus\"\nstability = \"off\"\n[scheduler.parameters]\ninterval = \"10s\"\n\
                       rescale_cost = false\nexplore = false\n";

/// Two nodes with GPUs, and two without.
fn site() -> Site {
    Setup { nodes: 4, env: &[("CPU_NODES", "2")], scheduler: OPTIMUS, ..Setup::default() }.start()
}

/// Two workers and one parameter server, with their bounds.
fn submit(site: &Site, name: &str, epochs: u32) -> String {
    let (programs, steps) = (programs().display(), root().join("integration/slurm"));
    let script = format!(
        "#!/bin/bash\n#SBATCH --open-mode=append\n#TRAINMASTER mode = sync\n#TRAINMASTER batch = 240\n\
         #TRAINMASTER worker.max = 8\n#TRAINMASTER server.max = 4\n#TRAINMASTER convergence.delta = 0\n\
         #TRAINMASTER convergence.max_epochs = {epochs}\nexport PATH={programs}:{}:$PATH\n\
         trainmaster-step -- trainmaster-trainer --device-example-ms 0.5 --device-step-ms 10 --device-update-ms 5\n",
        steps.display()
    );
    let out = site.folder().join(format!("out-{name}"));
    let of_workers = ["-J", name, "-o", out.to_str().unwrap(), "-N1", "-n2", "--gpus-per-node=2"];
    site.sbatch(&[&of_workers[..], &[":", "-N1", "-n1"]].concat(), &script).unwrap()
}

/// A field of both components.
fn both(site: &Site, id: &str, field: &str) -> Vec<String> {
    let start = format!(" {field}=");
    let value =
        |record: &str| record.split_once(&start).map_or("", |(_, rest)| rest.split(' ').next().unwrap()).to_owned();
    site.show(id).lines().map(value).collect()
}

fn runs(site: &Site, id: &str) -> bool {
    both(site, id, "JobState") == ["RUNNING", "RUNNING"]
}

/// Trainmaster's decision, and the nodes of workers and of parameter servers.
fn given(site: &Site, id: &str) -> (String, Vec<Vec<String>>) {
    let hosts = |list: &String| {
        let shown = site.run("scontrol", &["show", "hostnames", list]);
        String::from_utf8_lossy(&shown.stdout).lines().map(str::to_owned).collect()
    };
    (site.field(id, "AdminComment"), both(site, id, "NodeList").iter().map(hosts).collect())
}

/// Numbers of workers and parameter servers from an admin comment.
fn shape(given: &str) -> (u32, u32) {
    let count = |key: &str| given.split(';').find_map(|part| part.strip_prefix(key)?.parse().ok()).unwrap_or(0);
    (count("workers="), count("servers="))
}

/// For each srun of the site's jobs, how many shells of trainmaster-step are above it.
fn shells_above_steps(site: &Site) -> Vec<usize> {
    let read = |pid: &str, name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let command = |pid: &str| String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ");
    let parent = |pid: &str| {
        let stat = String::from_utf8_lossy(&read(pid, "stat")).into_owned();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1).map(str::to_owned)).unwrap_or_default()
    };
    let own = format!("SLURM_CONF={}", site.folder().join("etc/slurm.conf").display());
    let pids = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let steps = pids.filter(|pid| {
        command(pid).starts_with("srun --exact")
            && String::from_utf8_lossy(&read(pid, "environ")).contains(&own)
            && !command(&parent(pid)).starts_with("srun")
    });
    let above = |pid: String| {
        let parents = std::iter::successors(Some(parent(&pid)), |pid| Some(parent(pid)).filter(|pid| pid.len() > 1));
        parents.take(20).filter(|pid| command(pid).contains("trainmaster-step")).count()
    };
    steps.map(above).collect()
}

#[test]
fn a_job_of_two_components_is_sized_resized_and_survives() {
    if !available() {
        return;
    }
    let site = site();
    let first = submit(&site, "first", 150);
    until("both components run", || runs(&site, &first));
    let (decided, nodes) = given(&site, &first);
    let (workers, servers) = shape(&decided);
    assert!(workers > 2, "alone it gets more than it was submitted with: {decided}");
    assert_eq!(both(&site, &first, "NumTasks"), [workers.to_string(), servers.to_string()]);
    assert!(nodes[0].iter().all(|node| ["node1", "node2"].contains(&node.as_str())), "{nodes:?}");
    assert!(nodes[1].iter().all(|node| ["node3", "node4"].contains(&node.as_str())), "{nodes:?}");
    until("it trains", || site.output("first").contains("step"));
    // A shell in between ends at Slurm's SIGTERM, and its srun then outlives the script.
    until("its steps are right below the script", || shells_above_steps(&site) == [1, 1]);

    // Other jobs take their share.
    let others =
        [submit(&site, "second", 100), site.submit("third", &super::site::training(60, "#TRAINMASTER worker.gpu = 1"))];
    until("it has another shape", || runs(&site, &first) && shape(&given(&site, &first).0) != (workers, servers));
    until("it goes on from its checkpoint", || site.output("first").contains("resuming from a checkpoint"));
    assert!(both(&site, &first, "Restarts").iter().all(|restarts| restarts != "0"), "{}", site.show(&first));

    site.saves();
    // The controller crashes. No job restarts for that, and decisions continue.
    site.restart("-KILL");
    until("the agent is back", || site.is_up());
    for id in &others {
        site.completes(id);
    }
    site.completes(&first);
    assert!(!site.log().contains("can't be read"), "{}", site.log());
}

#[test]
fn while_trainmaster_is_paused_components_start_as_submitted() {
    if !available() {
        return;
    }
    let site = site();
    assert_eq!(site.ask(r#"{"command":"mode","mode":"paused"}"#)["mode"], "paused");
    let id = submit(&site, "paused", 3);
    until("it starts", || both(&site, &id, "JobState") != ["PENDING", "PENDING"]);
    assert_eq!(both(&site, &id, "NumTasks"), ["2", "1"]);
    site.completes(&id);
    assert_eq!(site.ask(r#"{"command":"mode","mode":"active"}"#)["mode"], "active");
}
