//! Unmodified PyTorch scripts under torchrun.

use std::{fs, path::PathBuf};

use super::{
    cluster::{available, root, skipped, until},
    site::{DRF, PATIENT, Setup, Site},
};

/// Jobs run `ddp.py`, a script of PyTorch alone. They note where each process began: rank, world size, step.
fn job(site: &Site, name: &str, command: &str) -> String {
    let (python, steps) = (root().join("target/python-venv/bin"), root().join("integration/slurm"));
    let script = root().join("integration/python/tests/ddp.py");
    format!(
        "#!/bin/bash\n#SBATCH -n 2 --gpus-per-node=2 -N 1 --open-mode=append\n#TRAINMASTER mode = allreduce\n\
         #TRAINMASTER worker.requested = 2\n#TRAINMASTER worker.max = 2\n#TRAINMASTER worker.min = 2\n\
         #TRAINMASTER worker.cpu = 1\n#TRAINMASTER worker.gpu = 1\n#TRAINMASTER epochs = 1\n\
         export PATH={}:{}:$PATH STEPS=30 OMP_NUM_THREADS=1\nmkdir -p {folder} && cd {folder} || exit 1\n\
         trainmaster-step -- {command} {}\n",
        python.display(),
        steps.display(),
        script.display(),
        folder = folder(site, name).display(),
    )
}

fn folder(site: &Site, name: &str) -> PathBuf {
    site.folder().join("jobs").join(name)
}

fn began(site: &Site, name: &str) -> Vec<String> {
    let path = folder(site, name).join("began");
    let mut lines: Vec<String> = fs::read_to_string(path).unwrap_or_default().lines().map(Into::into).collect();
    lines.sort();
    lines
}

#[test]
fn torchrun_and_plain_ranks_train_together_with_and_without_decisions() {
    if !available() {
        return;
    }
    if !root().join("target/python-venv/bin/torchrun").exists() {
        return skipped("no PyTorch in target/python-venv: scripts/install python");
    }
    let site = Setup { nodes: 2, ..Setup::default() }.start();
    let run = |name: &str, command: &str| {
        let launcher = format!("#TRAINMASTER launcher = {}\n", if command == "torchrun" { command } else { "none" });
        let script =
            job(&site, name, command).replace("#TRAINMASTER epochs", &format!("{launcher}#TRAINMASTER epochs"));
        let id = site.submit(name, &script);
        site.completes(&id);
        assert_eq!(began(&site, name), ["0 2 0", "1 2 0"], "{}", site.output(name));
    };
    run("planned", "torchrun");
    run("plain", "python");
    // The off switch: Slurm runs the jobs as submitted, and torchrun's agents find each other as they do without us.
    assert_eq!(site.ask(r#"{"command":"mode","mode":"paused"}"#)["mode"], "paused");
    run("paused", "torchrun");
    run("plain-paused", "python");
}

#[test]
fn agents_of_torchrun_leave_a_node_before_it_is_taken() {
    if !available() {
        return;
    }
    if !root().join("target/python-venv/bin/torchrun").exists() {
        return skipped("no PyTorch in target/python-venv: scripts/install python");
    }
    let env = &[("GPUS", "2")];
    let site = Setup { nodes: 2, env, scheduler: DRF, slurm: PATIENT, ..Setup::default() }.start();
    let submit = |name: &str, most: u32, steps: u32| {
        let bounds = format!("worker.max = {most}\n#TRAINMASTER launcher = torchrun");
        let script = job(&site, name, "torchrun")
            .replace("worker.max = 2\n#TRAINMASTER worker.min = 2", &bounds)
            .replace("STEPS=30", &format!("STEPS={steps}"));
        site.submit(name, &script)
    };
    let large = submit("large", 4, 2500);
    until("it trains on both nodes", || began(&site, "large").contains(&"0 4 0".to_owned()));
    let small = submit("small", 2, 100_000);
    until("it gives up a node", || site.nodes(&large, "NodeList").len() == 1);
    site.completes(&large);
    site.run("scancel", &[&small]);
    assert_eq!(site.field(&large, "Restarts"), "0", "it changed in place: {}", site.show(&large));
    let steps = fs::read_to_string(folder(&site, "large").join("steps")).unwrap();
    assert!(steps.ends_with("2500 2\n"), "{steps}");
}
