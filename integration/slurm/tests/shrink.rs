//! Running jobs that give up nodes in place.

use super::{
    cluster::{available, root, until},
    site::{DRF, PATIENT, Setup, programs},
};

/// A job of at most so many workers, which reduce among themselves.
fn ring(epochs: u32, most: u32) -> String {
    let (programs, steps) = (programs().display(), root().join("integration/slurm"));
    format!(
        "#!/bin/bash\n#SBATCH --gpus-per-node=2 -N 1 -n 2 --open-mode=append\n#TRAINMASTER mode = allreduce\n\
         #TRAINMASTER elastic = in_place\n#TRAINMASTER batch = 240\n#TRAINMASTER convergence.delta = 0\n\
         #TRAINMASTER convergence.max_epochs = {epochs}\n#TRAINMASTER worker.gpu = 1\n#TRAINMASTER worker.cpu = 1\n\
         #TRAINMASTER worker.max = {most}\nexport PATH={programs}:{}:$PATH TRAINMASTER_MODE=allreduce \
         TRAINMASTER_BATCH=240 TRAINMASTER_DELTA=0 TRAINMASTER_MAX_EPOCHS={epochs}\n\
         trainmaster-step -- trainmaster-trainer --device-example-ms 0.5 --device-step-ms 10\n",
        steps.display()
    )
}

#[test]
fn workers_leave_before_their_node_is_taken_and_the_job_completes() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 2, scheduler: DRF, slurm: PATIENT, ..Setup::default() }.start();
    let large = site.submit("large", &ring(150, 8));
    until("it trains on both nodes", || site.output("large").contains("8 workers"));
    // Slurm kills what runs on a node that a job gives up, and a killed process would be the job's failure.
    let small = site.submit("small", &ring(1000, 4));
    until("it gives up a node", || site.nodes(&large, "NodeList").len() == 1);
    site.completes(&large);
    site.run("scancel", &[&small]);
    assert_eq!(site.field(&large, "Restarts"), "0", "it changed in place: {}", site.show(&large));
    let output = site.output("large");
    assert!(output.contains("4 workers") && output.contains("epoch 149,"), "{output}");
}
