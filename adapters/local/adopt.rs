//! Adopting or ending the processes that an earlier run of the adapter left.

use std::{collections::BTreeMap, thread, time::Duration};

use super::{
    process::{self, Handle, Watch},
    scan,
    slot::ProcessId,
    state::{Record, StateDir},
};

/// A living process of an earlier run, with its record.
pub(crate) struct Found {
    pub(crate) record: Record,
    pub(crate) handle: Handle,
    pub(crate) watch: Watch,
}

/// Wait for processes that an earlier run was just starting when it was killed. Such a child's environment appears only
/// when it executes its program.
const IN_MID_START: Duration = Duration::from_millis(50);

/// Adopts every living recorded process. Ends all other processes of the state folder's jobs.
pub(crate) fn find(state: &StateDir) -> Vec<Found> {
    let records = state.records();
    let mut leaders = leaders(state);
    if records.iter().any(|record| record.pid.is_none() && !leaders.contains_key(&record.id)) {
        thread::sleep(IN_MID_START);
        leaders = self::leaders(state);
    }
    let mut found: Vec<Found> = Vec::new();
    for mut record in records {
        let handle = match (record.pid, record.start) {
            (Some(pid), Some(start)) if record.boot == state.boot() && scan::is_alive(pid, start) => {
                Some(Handle { pid, start })
            }
            (Some(_), _) => None,
            // The adapter died between intent and record. The process, if it was started, carries the marker.
            (None, _) => leaders.get(&record.id).copied(),
        };
        let watch = handle.and_then(|handle| Some((handle, process::adopt(handle, record.id, state.id()).ok()?)));
        let Some((handle, watch)) = watch else {
            state.remove(record.id);
            continue;
        };
        record.pid = Some(handle.pid);
        record.start = Some(handle.start);
        if let Err(error) = state.write(&record) {
            tracing::warn!(slot = %record.id, %error, "can't complete a record");
        }
        tracing::info!(slot = %record.id, pid = handle.pid, "took over a running process");
        found.push(Found { record, handle, watch });
    }
    // Every other process with the marker has lost its slot: the rest of a group whose leader died while no adapter
    // ran, or a process without a record.
    process::end_marked(state.id(), |process| found.iter().any(|found| found.record.id == process.id));
    found
}

/// The first process of each slot, found by the marker.
fn leaders(state: &StateDir) -> BTreeMap<ProcessId, Handle> {
    let mut leaders: BTreeMap<ProcessId, Handle> = BTreeMap::new();
    for process in scan::marked(state.id()).into_iter().filter(|process| process.pid == process.stat.group) {
        let handle = Handle { pid: process.pid, start: process.stat.start };
        // A program may have put descendants into their own groups. The slot's own process is the oldest.
        let oldest = leaders.entry(process.id).or_insert(handle);
        if handle.start < oldest.start {
            *oldest = handle;
        }
    }
    leaders
}
