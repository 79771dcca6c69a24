//! Measurements of a real NVIDIA GPU, by `make nvidia` on a machine that has one.

use std::process::{Child, Command};

use super::{measured::slot, support::*};
use trainmaster_adapters::local::Cluster;
use trainmaster_proto::v1::{DeviceShare, ServerUse};

const CLUSTER: &str = "
    real_gpus = true
    oversubscribe = 2.0
    measure = '2s'
    [[server]]
    name = 'a'
    gpu = 1";

/// A program that keeps the GPU busy for some milliseconds, idle for some, and so on.
fn spin(folder: &std::path::Path) -> String {
    let program = folder.join("spin");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program);
    compiler.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/local/spin.c")).arg("-ldl");
    assert!(compiler.status().expect("a C compiler").success());
    // Without a GPU, it says what is missing.
    assert!(Command::new(&program).args(["1", "once"]).status().unwrap().success(), "needs an NVIDIA GPU");
    program.display().to_string()
}

/// What all and one job use of the GPU, in thousandths.
fn busy(view: &View, job: u64) -> Option<(u32, u32)> {
    let of = |devices: &[DeviceShare]| devices.iter().map(|share| share.milli).sum();
    let a: &ServerUse = view.used.get("a")?;
    Some((of(&a.devices), of(&slot(a, job)?.devices)))
}

struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn a_real_gpus_busy_time_is_divided_among_jobs_and_strangers() {
    let (state, programs) = (State::new(), tempfile::tempdir().unwrap());
    let spin = spin(programs.path());
    let daemon = Daemon::start().await;
    let cluster = Cluster::parse(CLUSTER, "test").unwrap();
    let adapter = Adapter::on(cluster, &daemon.url(), options(state.path()));
    let using = |id: u64, busy: u32, idle: u32| {
        let mut job = job(id, 1, &format!("exec {spin} {busy} {idle}")).worker(0);
        job.slots[0].devices = vec![DeviceShare { device: 0, milli: 500 }];
        job
    };
    let quiet = |id: u64| {
        let mut job = job(id, 1, PATIENT).worker(0);
        job.slots[0].devices = vec![DeviceShare { device: 0, milli: 500 }];
        job
    };
    let see = |what: &str| daemon.look(|view| println!("{what}: {:?} {:?}", busy(view, 1), busy(view, 2)));

    daemon.plan(1, true, vec![using(1, 20, 60), quiet(2)]).await;
    // A process that computes nothing shows no use.
    let a_quarter = |view: &View| {
        let one = busy(view, 1).is_some_and(|(all, one)| (150..400).contains(&one) && all == one);
        one && busy(view, 2).is_some_and(|(_, two)| two == 0)
    };
    daemon.until("a quarter, by one job", a_quarter).await;
    see("one computes a quarter of its time");

    daemon.plan(2, true, vec![using(1, 20, 60), using(3, 20, 0)]).await;
    let more = |view: &View| {
        busy(view, 1).zip(busy(view, 3)).is_some_and(|((all, one), (_, three))| all > 800 && one > 0 && three > one)
    };
    daemon.until("more of the busier one", more).await;
    daemon.look(|view| println!("beside one without pauses: {:?} {:?}", busy(view, 1), busy(view, 3)));

    daemon.plan(3, true, vec![quiet(2)]).await;
    daemon.until("nobody", |view| busy(view, 2) == Some((0, 0))).await;
    let mut stranger = Command::new(&spin);
    stranger.args(["20", "20"]).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID").env("CUDA_VISIBLE_DEVICES", "0");
    let stranger = Stranger(stranger.spawn().unwrap());
    let foreign = |view: &View| busy(view, 2).is_some_and(|(all, two)| all > 250 && two == 0);
    daemon.until("a stranger", foreign).await;
    see("a stranger computes");
    drop(stranger);
    adapter.end().await;
    state.has_nothing_left();
}
