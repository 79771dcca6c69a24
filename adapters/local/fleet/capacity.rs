//! The adapter's own count of the devices. A plan that exceeds a device's limit in the cluster file is refused before
//! any process is stopped for it.

use std::collections::BTreeMap;

use super::{
    super::cluster::Cluster,
    job::Job,
    plan::{Run, Wanted},
};

/// Removes jobs from `changed` until no device exceeds its limit. Returns each removed job with its name and the cause.
/// Only changed jobs are removed, the last named first.
pub(super) fn prune(
    cluster: &Cluster,
    jobs: &BTreeMap<u64, Job>,
    changed: &mut Vec<(u64, Wanted)>,
) -> Vec<(u64, String, String)> {
    let most = cluster.device_milli();
    let mut refused = Vec::new();
    loop {
        let unchanged = jobs.iter().filter(|(id, _)| !changed.iter().any(|(new, _)| new == *id));
        let runs = unchanged.filter_map(|(_, job)| job.run());
        let runs = runs.chain(changed.iter().filter_map(|(_, wanted)| wanted.run()));
        let mut used: BTreeMap<(&str, u32), u64> = BTreeMap::new();
        for (server, device, milli) in runs.flat_map(shares) {
            *used.entry((server, device)).or_default() += u64::from(milli);
        }
        // If only unchanged jobs exceed a device's limit, that was accepted before, and nothing here can resolve it.
        let giving_way = used.iter().filter(|(_, milli)| **milli > most).find_map(|(&(server, device), &milli)| {
            let uses = |wanted: &Wanted| {
                wanted.run().is_some_and(|run| shares(run).any(|(s, d, _)| (s, d) == (server, device)))
            };
            let index = changed.iter().rposition(|(_, wanted)| uses(wanted))?;
            Some((index, server.to_owned(), device, milli))
        });
        let Some((index, server, device, milli)) = giving_way else { return refused };
        let kind = cluster.server(&server).and_then(|s| s.devices().get(device as usize)).cloned().unwrap_or_default();
        let (id, wanted) = changed.remove(index);
        refused.push((
            id,
            wanted.name,
            format!("device {device} ({kind}) of {server:?} would be planned for {milli} thousandths; it has {most}"),
        ));
    }
}

fn shares(run: &Run) -> impl Iterator<Item = (&str, u32, u32)> {
    let busy = run.slots.iter().filter(|(slot, _)| !run.idle.contains(slot));
    busy.flat_map(|(_, placement)| {
        placement.devices.iter().map(|share| (placement.server.as_str(), share.device, share.milli))
    })
}
