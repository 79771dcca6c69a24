//! A job with a slow worker restarts without the slow worker's node.

use std::{fs, time::Instant};

use super::{
    cluster::{available, root, until},
    site::{OPTIMUS, Setup, Site, programs},
};

/// Four workers and a parameter server. The node of the first worker 1 slows that worker down to a quarter of the
/// others' speed; on any other node worker 1 is as fast as they are.
fn submit(site: &Site) -> String {
    let (programs, steps) = (programs().display(), root().join("integration/slurm"));
    let script = format!(
        "#!/bin/bash\n#SBATCH -n 5 --gpus-per-node=2 -N 2 --open-mode=append\n#TRAINMASTER mode = sync\n\
         #TRAINMASTER batch = 240\n#TRAINMASTER epochs = 100000\n#TRAINMASTER worker.requested = 4\n\
         #TRAINMASTER worker.min = 4\n#TRAINMASTER worker.max = 4\n#TRAINMASTER worker.gpu = 1\n\
         #TRAINMASTER worker.cpu = 1\n#TRAINMASTER server.requested = 1\n#TRAINMASTER server.max = 1\n\
         #TRAINMASTER server.cpu = 1\nexport PATH={programs}:{}:$PATH SLOW={}\n\
         trainmaster-step -- bash -c '\n\
         if [ $TRAINMASTER_ROLE = worker ] && [ $TRAINMASTER_INDEX = 1 ]; then\n\
         (set -C; echo $TRAINMASTER_SERVER > $SLOW) 2>/dev/null\n\
         [ $(cat $SLOW) != $TRAINMASTER_SERVER ] || set -- --device-straggler 1:4\n\
         fi\n\
         exec trainmaster-trainer --device-step-ms 50 \"$@\"' step\n",
        steps.display(),
        slow_file(site).display(),
    );
    site.submit("slow", &script)
}

fn slow_file(site: &Site) -> std::path::PathBuf {
    site.folder().join("slow")
}

#[test]
fn a_slow_workers_node_is_left() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 4, scheduler: OPTIMUS, ..Setup::default() }.start();
    let id = submit(&site);
    let nodes = || {
        let listed = site.run("scontrol", &["show", "hostnames", &site.field(&id, "NodeList")]);
        String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    until("worker 1 runs on a slow node", || {
        fs::read_to_string(slow_file(&site)).is_ok_and(|node| node.ends_with('\n'))
    });
    let began = Instant::now();
    let slow = fs::read_to_string(slow_file(&site)).unwrap().trim().to_owned();
    until("the job leaves that node", || site.state(&id) == "RUNNING" && !nodes().contains(&slow));
    let left = began.elapsed();
    let resumed = site.output("slow").len();
    until("it resumes from a checkpoint", || site.output("slow").contains("resuming from a checkpoint"));
    until("it trains on", || site.output("slow").len() > resumed);
    println!("left {slow} after {left:.1?}, trained on after {:.1?}", began.elapsed());
    let explained = site.ask(&format!("{{\"command\":\"explain\",\"job\":\"{id}\"}}")).to_string();
    assert!(!explained.contains("of the median speed"), "{explained}");
    site.run("scancel", &[&id]);
}
