//! Types of GPUs, racks, feeds with TLS, modes, and the version check of the plugins.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::Value;

use super::{
    cluster::{Plugins, available, root, until},
    site::{Setup, programs, training},
};

#[test]
fn typed_gpus_go_to_jobs_that_request_them() {
    if !available() {
        return;
    }
    let gres = [("GRES", "gpu:a100 gpu:a100 gpu:v100 gpu:v100")];
    let site = Setup { nodes: 2, env: &gres, ..Setup::default() }.start();
    let job = |kind: &str, epochs| {
        training(epochs, &format!("#SBATCH --gpus-per-node={kind}:2\n#TRAINMASTER worker.gpu:{kind} = 1"))
    };
    let ids = ["a100", "v100"].map(|kind| (kind, site.submit(kind, &job(kind, 30))));
    for (kind, id) in &ids {
        until("it runs", || site.state(id) == "RUNNING");
        let shown = site.show(id);
        let workers: u32 = site
            .field(id, "AdminComment")
            .split(';')
            .find_map(|part| part.strip_prefix("workers=")?.parse().ok())
            .unwrap();
        assert!((1..=4).contains(&workers), "{shown}");
        assert!(shown.contains(&format!("JOB_GRES=gpu:{kind}:{workers} ")), "{shown}");
        let other = if *kind == "a100" { "v100" } else { "a100" };
        assert!(!shown.contains(&format!("gpu:{other}")), "{shown}");
    }
    ids.iter().for_each(|(_, id)| site.completes(id));
    // A type that no node has is refused with numbers.
    let never = site.submit(
        "never",
        &job("a100", 1).replace("worker.gpu:a100 = 1", "worker.gpu:a100 = 3").replace("a100:2", "a100:1"),
    );
    until("Slurm says why it waits", || site.show(&never).contains("why="));
    let shown = site.show(&never);
    assert!(shown.contains("needs 3 gpu:a100 on one server; the largest has 2"), "{shown}");
}

#[test]
fn jobs_stay_in_a_rack_of_topology_conf() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 3, ..Setup::default() }.start();
    // It is read as soon as it is there. Slurm itself doesn't use it.
    let racks = "SwitchName=r1 Nodes=node1\nSwitchName=r2 Nodes=node[2-3]\nSwitchName=b1 Switches=r[1-2]\n";
    fs::write(site.folder().join("etc/topology.conf"), racks).unwrap();
    until("it is read", || site.log().contains("the configuration was read anew"));
    let job = |workers: u32| {
        let counts = format!("worker.requested = {workers}\n#TRAINMASTER worker.min = {workers}");
        let job = training(30, "#TRAINMASTER worker.gpu = 1\n#TRAINMASTER topology.require = rack");
        let job = job.replace("worker.requested = 2", &counts);
        job.replace("worker.max = 8", &format!("worker.max = {workers}"))
    };
    // Two racks have room for two workers. The smaller one is left.
    let small = site.submit("small", &job(2));
    until("it runs", || site.state(&small) == "RUNNING");
    assert_eq!(site.nodes(&small, "NodeList"), ["node1"]);
    let wide = site.submit("wide", &job(6));
    until("it runs", || site.state(&wide) == "RUNNING");
    assert_eq!(site.nodes(&wide, "NodeList"), ["node2", "node3"]);
    // The cluster would have room for ten.
    let never = site.submit("never", &job(10));
    until("Slurm says why it waits", || site.show(&never).contains("why="));
    let words =
        "all slots must be in one rack, and the smallest shape needs 10 gpu; the largest rack has 8 (rack r2 of";
    assert!(site.show(&never).contains(words), "{}", site.show(&never));
    [small, wide].iter().for_each(|id| site.completes(id));
}

#[test]
fn a_cut_model_gets_whole_groups() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 2, ..Setup::default() }.start();
    // Three GPUs share each layer, so of at most five workers it gets three.
    let job = training(30, "#TRAINMASTER worker.gpu = 1\n#TRAINMASTER parallel.tp = 3")
        .replace("-n 3", "-n 4")
        .replace("worker.requested = 2", "worker.requested = 3")
        .replace("worker.max = 8", "worker.max = 5")
        .replace("\ntrainmaster-step", "\necho \"tp=$TRAINMASTER_TP pp=$TRAINMASTER_PP\"\ntrainmaster-step");
    let id = site.submit("cut", &job);
    until("it runs", || site.state(&id) == "RUNNING");
    until("it was told how it is cut", || site.output("cut").contains("tp=3 pp=1"));
    let given = site.field(&id, "AdminComment");
    assert!(given.contains(";workers=3;") || given.ends_with(";workers=3"), "{given}");
    site.completes(&id);
    let wrong = job.replace("worker.requested = 3", "worker.requested = 4").replace("-n 4", "-n 5");
    let refused = site.sbatch(&[], &wrong).unwrap_err();
    assert!(refused.contains("4 isn't one of the job's sizes (multiples of 3); ask for 3"), "{refused}");
}

#[test]
fn a_range_of_batches_is_known_and_checked() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 1, ..Setup::default() }.start();
    let range = "#TRAINMASTER batch.size = 240\n#TRAINMASTER batch.max = 960\n#TRAINMASTER batch.local = 50";
    let job = training(30, "#TRAINMASTER worker.gpu = 1").replace("#TRAINMASTER batch = 240", range);
    let id = site.submit("free", &job);
    until("it runs", || site.state(&id) == "RUNNING");
    let known = || site.ask(&format!("{{\"command\":\"explain\",\"job\":\"{id}\"}}")).to_string();
    until("its batch is chosen", || known().contains("of 240 to 960"));
    until("its parts fit its replicas", || known().contains(" passes of "));
    site.completes(&id);
    let refused = site.sbatch(&[], &job.replace("batch.max = 960", "batch.max = 96")).unwrap_err();
    assert!(refused.contains("batch.max: 96 must be at least the submitted batch, 240"), "{refused}");
}

#[test]
fn reports_come_over_tls() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let tls = Some((cert.clone(), key));
    let site = Setup { nodes: 1, tls, ..Setup::default() }.start();
    let head = format!("#SBATCH --export=ALL,TRAINMASTER_FEED_CA={}\n#TRAINMASTER worker.gpu = 1", cert.display());
    let job = site.submit("secret", &training(20, &head));
    until("it reports", || site.job(&job).is_some_and(|job| job["epoch"].as_f64() > Some(0.0)));
    site.completes(&job);
    // Without TLS nothing is understood. The connection is closed, perhaps in the middle of a message.
    let plain = Command::new("bash")
        .arg("-c")
        .arg(format!(
            "trap '' PIPE; exec 3<>/dev/tcp/localhost/{0}; printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' \
             >&3; timeout 5 head -c 9 <&3 | grep -c TRAINMASTER",
            site.port()
        ))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&plain.stdout).trim(), "0");
    assert!(site.is_up());
}

#[test]
fn shadow_mode_reports_its_decisions() {
    if !available() {
        return;
    }
    let slurm = "lease = \"20s\"\nmeasure = true";
    let site = Setup { nodes: 2, keys: "mode = \"shadow\"", slurm, ..Setup::default() }.start();
    let job = site.submit("watched", &training(30, "#TRAINMASTER worker.gpu = 1"));
    until("Slurm starts it", || site.state(&job) == "RUNNING");
    assert_eq!(site.field(&job, "NumTasks"), "3", "as it was submitted");
    until("the agent says what it would have done", || site.log().contains("shadow: watched"));
    until("it sees what Slurm did", || site.job(&job).is_some_and(|job| job["observed"] == "2w+1p"));
    let told = site.job(&job).unwrap();
    assert_ne!(told["planned"], told["observed"], "alone it would have had more: {told}");
    site.completes(&job);
    assert_eq!(site.field(&job, "Restarts"), "0");
    // The nodes' loads were reported.
    until("the loads are in the journal", || {
        let mut replay = Command::new(programs().join("trainmaster"));
        let told = replay.args(["--json", "replay"]).arg(site.folder().join("state/trainmaster/journal")).output();
        let told: Value = serde_json::from_slice(&told.unwrap().stdout).unwrap_or_default();
        told["events"]["utilisation"].as_u64() >= Some(2)
    });
}

#[test]
fn settings_are_read_again_and_bad_ones_change_nothing() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 1, ..Setup::default() }.start();
    let file = site.folder().join("etc/trainmaster.toml");
    let good = fs::read_to_string(&file).unwrap();
    assert_eq!(site.status()["engine"], "optimus");
    fs::write(&file, good.replace("engine = \"optimus\"", "engine = \"optimum\"")).unwrap();
    until("it is refused", || site.log().contains("the last one stands"));
    assert!(site.log().contains("optimum"));
    assert_eq!(site.status()["engine"], "optimus");
    let drf = good.split("[scheduler]").next().unwrap().to_owned() + "[scheduler]\nengine = \"drf\"\n";
    fs::write(&file, drf).unwrap();
    until("it holds", || site.status()["engine"] == "drf");
    // A changed mode in the file is applied. A mode that a user set is kept until then.
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("mode = \"paused\"\n{text}")).unwrap();
    until("it pauses", || site.status()["mode"] == "paused");
}

#[test]
fn a_plugin_for_another_slurm_is_detected_before_slurmctld_loads_it() {
    if !available() {
        return;
    }
    let plugins = Plugins::Product.build();
    let check =
        |folder: &std::path::Path| Command::new(root().join("integration/slurm/check")).arg(folder).output().unwrap();
    let fits = check(&plugins);
    assert!(fits.status.success(), "{}", String::from_utf8_lossy(&fits.stderr));
    let folder = tempfile::tempdir().unwrap();
    let missing = check(folder.path());
    assert!(!missing.status.success() && String::from_utf8_lossy(&missing.stderr).contains("missing"));
    for name in ["slurmctld_trainmaster.so", "job_submit_trainmaster.so"] {
        let mut bytes = fs::read(plugins.join(name)).unwrap();
        let mark = b"trainmaster built for slurm 0x";
        let at = bytes.windows(mark.len()).position(|window| window == mark).expect("its version") + mark.len();
        bytes[at] = b'9';
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let other = check(folder.path());
    let words = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && words.contains("build it anew") && words.contains("0x9"), "{words}");
}
