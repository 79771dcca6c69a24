//! The benchmark's fixed cluster and jobs: ranges of the paper's experiment (§V-A), drawn by an own generator.

use std::collections::BTreeMap;

use trainmaster_core::{
    JobSpec, ServerSpec, Span, TrainingMode,
    job::{Dataset, RoleSpec, Utility, UtilityKind},
};

/// T, H = K, and N and E of the measured job.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) slots: u32,
    pub(crate) servers: u32,
    pub(crate) chunks: u32,
    pub(crate) epochs: u32,
}

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn count(&mut self, from: i64, to: i64) -> i64 {
        from + (self.next() % (to - from + 1) as u64) as i64
    }

    fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn table(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
    pairs.iter().filter(|(_, value)| *value > 0).map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Workers on servers like EC2's p2.8xlarge and g3.16xlarge, parameter servers on c4.8xlarge; 20 to 50 Gbit/s each.
pub(crate) fn servers(size: Size) -> Vec<ServerSpec> {
    let mut draws = Draws(1);
    let mut server = |name: String, hosts: &str, gpus: usize, cpus: i64, gib: i64| ServerSpec {
        name,
        capacity: table(&[
            ("cpu", cpus * 1000),
            ("memory", gib << 10),
            ("disk", 1 << 20),
            ("bandwidth", draws.count(20, 50) * 1000),
        ]),
        devices: vec!["gpu".into(); gpus],
        labels: [("hosts".to_owned(), hosts.to_owned())].into(),
        ..ServerSpec::default()
    };
    let mut servers = Vec::new();
    for at in 0..size.servers {
        let (gpus, cpus) = if at % 2 == 0 { (8, 32) } else { (4, 64) };
        servers.push(server(format!("h{at}"), "workers", gpus, cpus, 488));
        servers.push(server(format!("k{at}"), "servers", 0, 36, 60));
    }
    servers
}

/// Job `number`, drawn as in the paper. Its mini-batch time lets it end within a twentieth of the horizon with all
/// its workers, so that bookings differ between slots. The measured job has the maximum of N and E, the others have
/// less. It takes up to a fifth of the horizon, its demands can be met, and its utility always decreases, so that each
/// end slot is a candidate.
pub(crate) fn arrival(size: Size, number: u32, full: bool) -> JobSpec {
    let mut draws = Draws(u64::from(number) + 2);
    let mut upto = |most: u32| if full { most } else { draws.count((most / 4).max(1).into(), most.into()) as u32 };
    let (chunks, epochs) = (upto(size.chunks), upto(size.epochs));
    let role = |demand: &[(&str, i64)]| RoleSpec::of(demand, 1..=10_000, 1);
    let most = |most: i64| if full { most / 2 } else { most };
    let gpus = if full { 1 } else { draws.count(0, 4) };
    let worker = role(&[
        ("gpu", gpus * 1000),
        ("cpu", draws.count(1, most(10)) * 1000),
        ("memory", draws.count(2, most(32)) << 10),
        ("disk", draws.count(5, 10) << 10),
        ("bandwidth", draws.count(100, most(5000))),
    ]);
    let server = role(&[
        ("cpu", draws.count(1, most(10)) * 1000),
        ("memory", draws.count(2, most(32)) << 10),
        ("disk", draws.count(5, 10) << 10),
        ("bandwidth", draws.count(5000, 20_000)),
    ]);
    let batches = draws.count(10, 100) as u32;
    let horizon = f64::from(size.slots);
    // E·m: the number of slots of the shortest run.
    let shortest = horizon * if full { draws.between(0.05, 0.2) } else { draws.between(0.005, 0.05) };
    let batch_ms = shortest / f64::from(epochs) / f64::from(batches) * 3_600_000.0;
    let hours = |hours: f64| Span::from_seconds(hours * 3600.0);
    let decay = match draws.count(1, 100) {
        ..=10 => 0.0,
        11..=65 => draws.between(0.01, 1.0),
        _ => draws.between(4.0, 6.0),
    };
    let utility = if full {
        Utility {
            value: 100.0,
            decay: 10.0 / horizon,
            target: hours(horizon / 2.0),
            ..Utility::new(UtilityKind::Sigmoid)
        }
    } else {
        let target = hours(draws.between(shortest, horizon));
        Utility { value: draws.between(1.0, 100.0), decay, target, ..Utility::new(UtilityKind::Sigmoid) }
    };
    JobSpec {
        mode: TrainingMode::Async,
        worker,
        server: Some(server),
        dataset: Some(Dataset {
            chunks,
            batches_per_chunk: batches,
            epochs,
            batch_time: Some(Span((batch_ms as i64).max(1))),
            ..Dataset::default()
        }),
        utility: Some(utility),
        ..JobSpec::minimal(&format!("job{number}"))
    }
}
