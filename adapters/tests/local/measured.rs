//! Measurements of real processes.

use std::process::Command;

use super::support::*;
use trainmaster_proto::v1::{DeviceShare, ServerUse, SlotRole, SlotUse};

/// Uses CPU, and books its device 0 fully.
const BUSY: &str = "tally=$TRAINMASTER_JOB-$TRAINMASTER_INCARNATION-$TRAINMASTER_ROLE-$TRAINMASTER_INDEX; n=0; \
    mkdir -p $TRAINMASTER_DEVICE_DIR/0; while :; do n=$((n + 60000000000)); \
    echo $n > $TRAINMASTER_CHECKPOINT_DIR/new; \
    mv $TRAINMASTER_CHECKPOINT_DIR/new $TRAINMASTER_DEVICE_DIR/0/$tally; done";

pub(crate) fn slot(used: &ServerUse, job: u64) -> Option<&SlotUse> {
    used.slots.iter().find(|slot| slot.job == job)
}

fn shares(devices: &[DeviceShare]) -> Vec<(u32, u32)> {
    devices.iter().map(|share| (share.device, share.milli)).collect()
}

#[tokio::test]
async fn use_is_credited_to_servers_slots_and_devices() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let mut busy = job(1, 3, BUSY).worker(0);
    busy.slots[0].devices = vec![DeviceShare { device: 0, milli: 500 }];
    // It books nothing on its device.
    let mut calm = job(2, 1, PATIENT).worker(0).server(0);
    calm.slots[0].devices = vec![DeviceShare { device: 1, milli: 400 }];
    daemon.plan(1, true, vec![busy, calm]).await;
    let told = |server: &str, jobs: &[u64]| {
        let (server, jobs) = (server.to_owned(), jobs.to_vec());
        move |view: &View| view.used.get(&server).is_some_and(|used| jobs.iter().all(|job| slot(used, *job).is_some()))
    };
    daemon.until("the slots of a", told("a", &[1, 2])).await;
    daemon.until("the slot of b", told("b", &[2])).await;
    let cpu = |slot: &SlotUse| slot.used["cpu"];
    daemon
        .until("more of the busy one", |view| {
            let a = &view.used["a"];
            slot(a, 1).zip(slot(a, 2)).is_some_and(|(busy, calm)| cpu(busy) > cpu(calm))
                && slot(a, 1).is_some_and(|busy| shares(&busy.devices) == [(0, 1000)])
        })
        .await;
    daemon.look(|view| {
        let (a, b) = (&view.used["a"], &view.used["b"]);
        assert_eq!(shares(&a.devices), [(0, 1000), (1, 400)]);
        let of = |used: &ServerUse| -> Vec<_> { used.slots.iter().map(|slot| (slot.job, slot.role())).collect() };
        assert_eq!(of(a), [(1, SlotRole::Worker), (2, SlotRole::Worker)]);
        assert_eq!(shares(&slot(a, 2).unwrap().devices), [(1, 400)]);
        assert_eq!((of(b), b.devices.len()), (vec![(2, SlotRole::Server)], 0));
        assert!(a.slots.iter().all(|slot| slot.used["memory"] > 0));
        assert!(a.used["cpu"] >= a.slots.iter().map(cpu).sum::<i64>());
    });

    // A process of no job counts for the server in its environment, and outlives the adapter.
    let id = read(state.path().join("id")).await;
    let mut stranger = Command::new("sh");
    stranger.args(["-c", "while :; do :; done"]).env("TRAINMASTER_STATE", id).env("TRAINMASTER_SERVER", "b");
    let mut stranger = stranger.spawn().unwrap();
    let others = |used: &ServerUse| used.used["cpu"] - used.slots.iter().map(cpu).sum::<i64>();
    daemon.until("the stranger", |view| others(&view.used["b"]) > 0 && others(&view.used["a"]) == 0).await;
    adapter.end().await;
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    state.has_nothing_left();
}
