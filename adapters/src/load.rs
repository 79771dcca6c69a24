//! The loads of servers as a manager reports them: without the slots' parts, and noisy.

use std::{collections::BTreeMap, sync::Arc};

use trainmaster_proto::v1;

/// Smallest difference that is reported, as a part of what a server has.
const GRAIN: f64 = 0.05;
const WHOLE: f64 = 1000.0;

/// The used parts of a server's resources, from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// By the core's name.
    pub(crate) resources: BTreeMap<&'static str, f64>,
    /// By index.
    pub(crate) devices: BTreeMap<u32, f64>,
}

/// The part of a whole that is in use. `None` if the figures make no sense. More than the whole counts as the whole.
pub(crate) fn part(used: f64, whole: f64) -> Option<f64> {
    let part = used / whole;
    (part >= 0.0 && whole > 0.0).then(|| part.min(1.0))
}

impl Load {
    fn has(&self) -> bool {
        !self.resources.is_empty() || !self.devices.is_empty()
    }

    /// Without devices, unless each device of the server is known.
    fn of(mut self, server: &v1::Server) -> Self {
        let count = server.devices.len() as u32;
        if !self.devices.keys().copied().eq(0..count) {
            self.devices.clear();
        }
        self.resources.retain(|name, _| server.capacity.contains_key(*name));
        self
    }

    fn differs(&self, other: &Self) -> bool {
        let far = |(a, b): (&f64, &f64)| (a - b).abs() >= GRAIN;
        !self.resources.keys().eq(other.resources.keys())
            || !self.devices.keys().eq(other.devices.keys())
            || self.resources.values().zip(other.resources.values()).any(far)
            || self.devices.values().zip(other.devices.values()).any(far)
    }

    fn to_wire(&self, server: &v1::Server) -> v1::ServerUse {
        let of = |name: &str, part: f64| (server.capacity[name] as f64 * part) as i64;
        let used = self.resources.iter().map(|(name, part)| ((*name).to_owned(), of(name, *part)));
        let share = |(device, part): (&u32, &f64)| v1::DeviceShare { device: *device, milli: (part * WHOLE) as u32 };
        let devices = self.devices.iter().map(share).filter(|share| share.milli > 0);
        let (server, slots) = (server.name.clone(), Vec::new());
        v1::ServerUse { server, used: used.collect(), devices: devices.collect(), slots }
    }
}

/// The loads that the daemon knows.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// The servers that it knows.
    servers: Arc<BTreeMap<String, v1::Server>>,
    told: BTreeMap<String, Load>,
}

impl Meter {
    /// The daemon knows these servers. As it does, forgets the loads of servers that left or are others now.
    pub(crate) fn know(&mut self, servers: &Arc<BTreeMap<String, v1::Server>>) {
        let before = std::mem::replace(&mut self.servers, servers.clone());
        if Arc::ptr_eq(&before, servers) {
            return;
        }
        let same = |old: &v1::Server, new: &v1::Server| old.devices == new.devices && old.capacity == new.capacity;
        self.told.retain(|name, _| before.get(name).zip(servers.get(name)).is_some_and(|(old, new)| same(old, new)));
    }

    /// The daemon knows no loads.
    pub(crate) fn forget(&mut self) {
        self.told.clear();
    }

    /// Returns the loads that differ from what the daemon knows. A server of which nothing is known any more is
    /// reported once, as idle: so its reservations count alone, as on a server that was never measured.
    pub(crate) fn changed(&mut self, mut loads: BTreeMap<String, Load>) -> Vec<v1::ServerUse> {
        let mut changed = Vec::new();
        for (name, server) in &*self.servers {
            let load = loads.remove(name).unwrap_or_default().of(server);
            if self.told.get(name).map_or(load.has(), |told| load.differs(told)) {
                changed.push(load.to_wire(server));
                self.told.insert(name.clone(), load);
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(gpus: usize) -> Arc<BTreeMap<String, v1::Server>> {
        let devices = vec![v1::Device { kind: "gpu".into() }; gpus];
        let capacity = [("cpu".to_owned(), 8000), ("memory".to_owned(), 1_000_000_000_000)].into();
        let server = v1::Server { name: "a".into(), capacity, devices, ..v1::Server::default() };
        Arc::new([("a".to_owned(), server)].into())
    }

    fn meter() -> Meter {
        Meter { servers: server(2), told: BTreeMap::new() }
    }

    fn load(cpu: f64, devices: &[f64]) -> BTreeMap<String, Load> {
        let devices = (0..).zip(devices.iter().copied()).collect();
        [("a".to_owned(), Load { resources: [("cpu", cpu)].into(), devices })].into()
    }

    /// CPUs and devices.
    type Told = (Option<i64>, Vec<(u32, u32)>);

    fn told(uses: &[v1::ServerUse]) -> Vec<Told> {
        let shares = |used: &v1::ServerUse| used.devices.iter().map(|share| (share.device, share.milli)).collect();
        uses.iter().map(|used| (used.used.get("cpu").copied(), shares(used))).collect()
    }

    #[test]
    fn what_changes_little_is_not_reported() {
        let mut meter = meter();
        let mut say = |cpu, devices: &[f64]| told(&meter.changed(load(cpu, devices)));
        assert_eq!(say(0.5, &[0.0, 0.25]), [(Some(4000), vec![(1, 250)])]);
        assert_eq!(say(0.54, &[0.04, 0.21]), []);
        assert_eq!(say(0.5625, &[0.04, 0.21]), [(Some(4500), vec![(0, 40), (1, 210)])], "since the last report");
        assert_eq!(say(0.5625, &[0.04, 1.0]), [(Some(4500), vec![(0, 40), (1, 1000)])]);
        // The manager sees other GPUs than the server has.
        assert_eq!(say(0.5625, &[0.5]), [(Some(4500), vec![])]);
        assert_eq!(say(0.5625, &[0.5; 3]), []);
    }

    #[test]
    fn the_daemon_is_told_what_it_does_not_know() {
        let mut meter = meter();
        assert_eq!(meter.changed(BTreeMap::new()), [], "nothing was ever known");
        assert_eq!(meter.changed(load(1.0, &[])).len(), 1);
        assert_eq!(told(&meter.changed(BTreeMap::new())), [(None, vec![])], "nothing is known any more");
        assert_eq!(meter.changed(BTreeMap::new()), []);
        assert_eq!(meter.changed(load(1.0, &[])).len(), 1);
        meter.know(&meter.servers.clone());
        meter.know(&server(2));
        assert_eq!(meter.changed(load(1.0, &[])), [], "the server is the same");
        for servers in [server(1), server(2)] {
            meter.know(&servers);
            assert_eq!(meter.changed(load(1.0, &[])).len(), 1, "it is another one");
        }
        meter.know(&Arc::default());
        assert_eq!(meter.changed(load(1.0, &[])), [], "no such server");
        meter.know(&server(2));
        assert_eq!(meter.changed(load(1.0, &[])).len(), 1, "it came back");
        meter.forget();
        assert_eq!(meter.changed(load(1.0, &[])).len(), 1);
    }

    #[test]
    fn the_worst_figures_stay_within_what_there_is() {
        for (used, whole) in [(f64::NAN, 1.0), (-0.1, 1.0), (0.0, 0.0), (1.0, 0.0), (1.0, -1.0), (1.0, f64::NAN)] {
            assert_eq!(part(used, whole), None, "{used} of {whole}");
        }
        assert_eq!(part(f64::INFINITY, f64::INFINITY), None);
        assert_eq!(
            [part(f64::INFINITY, 1.0), part(1e300, 100.0), part(25.0, 100.0)],
            [Some(1.0), Some(1.0), Some(0.25)]
        );
        let mut most = load(1.0, &[1.0, 1.0]);
        most.get_mut("a").unwrap().resources.extend([("memory", 1.0), ("unknown", 1.0)]);
        let used = meter().changed(most).remove(0);
        assert_eq!(used.used, server(2)["a"].capacity);
        assert!(used.devices.iter().all(|share| share.milli == 1000));
    }
}
