//! Jobs like those of Microsoft's Philly cluster, and [recorded ones](super::trace) from its trace.
//!
//! The generator uses the marginal distributions of the public trace (Jeon et al., *Analysis of Large-Scale
//! Multi-Tenant GPU Clusters for DNN Training Workloads*, USENIX ATC'19; 64,483 jobs from 2017-09-04 to 2017-11-14, as
//! shipped with `petuum/adaptdl`): GPUs, duration given the GPUs, and time between arrivals given its position among
//! all (from 2017-09-24 on, because there are few earlier arrivals). Each distribution is stored as quantiles, with
//! interpolation by ratio. The generator doesn't reproduce the jobs' owners, days and nights, or the similarity of jobs
//! that arrive together.
//!
//! A cluster with fewer servers than Philly's 550 gets the same number of jobs per server, so times between arrivals
//! grow in proportion.

use super::{
    Entry, Request,
    trace::{self, Recorded},
};
use crate::Draws;
use trainmaster_core::time::Span;

pub(super) const ENTRY: Entry = Entry {
    name: "philly",
    summary: "1,000 jobs with the sizes, durations and bursts of the Philly trace on a tenth of its servers",
    source: "Philly trace (Jeon et al., USENIX ATC'19), its marginals",
    build: |request| Ok(trace::recorded(jobs(request), request.servers.unwrap_or(SERVERS), trace::philly)),
};

const SERVERS: u32 = trace::SERVERS / 10;

/// Number of GPUs, number of the 64,483 jobs with it, and the quantiles of their durations in seconds.
type Size = (u32, u32, [(f64, f64); 11]);

const fn durations(seconds: [f64; 11]) -> [(f64, f64); 11] {
    const AT: [f64; 11] = [0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];
    let mut quantiles = [(0.0, 0.0); 11];
    let mut at = 0;
    while at < AT.len() {
        quantiles[at] = (AT[at], seconds[at]);
        at += 1;
    }
    quantiles
}

/// Jobs with 12 or more GPUs are few, and share their durations.
const MANY: [(f64, f64); 11] = durations([
    20.0,
    41.0,
    68.0,
    418.0,
    47_358.0,
    115_792.0,
    350_667.0,
    511_238.0,
    1_369_876.0,
    1_710_643.0,
    1_710_643.0,
]);

#[rustfmt::skip] // a table
const SIZES: [Size; 8] = [
    (1, 60_522, durations([
        1.0, 52.0, 63.0, 185.0, 1258.0, 2651.0, 6850.0, 15_566.0, 119_456.0, 1_021_124.0, 3_256_045.0,
    ])),
    (2, 1217, durations([
        2.0, 8.0, 10.0, 14.0, 19.0, 103.0, 135_547.0, 254_365.0, 686_106.0, 1_521_148.0, 2_582_803.0,
    ])),
    (4, 1461, durations([
        9.0, 84.0, 143.0, 666.0, 17_388.0, 89_581.0, 188_593.0, 386_982.0, 1_106_514.0, 2_641_566.0, 2_750_674.0,
    ])),
    (8, 1136, durations([
        17.0, 86.0, 186.0, 835.0, 29_834.0, 193_256.0, 403_361.0, 603_739.0, 1_780_406.0, 2_658_784.0, 4_628_226.0,
    ])),
    (12, 7, MANY),
    (16, 106, MANY),
    (24, 4, MANY),
    (32, 30, MANY),
];

/// Seconds between arrivals. 5 % arrive in the same second.
const GAPS: [(f64, f64); 14] = [
    (0.05, 0.5),
    (0.1, 1.0),
    (0.2, 2.0),
    (0.4, 4.0),
    (0.5, 7.0),
    (0.6, 10.0),
    (0.7, 18.0),
    (0.8, 45.0),
    (0.85, 115.0),
    (0.9, 257.0),
    (0.95, 539.0),
    (0.995, 601.0),
    (0.999, 1128.0),
    (1.0, 29_048.0),
];

/// The value at a fraction of all jobs, interpolated by ratio between the quantiles.
fn at(quantiles: &[(f64, f64)], share: f64) -> f64 {
    let above = quantiles.partition_point(|(at, _)| *at <= share);
    match (above.checked_sub(1).map(|below| quantiles[below]), quantiles.get(above)) {
        (Some((low, least)), Some(&(high, most))) => least * libm::pow(most / least, (share - low) / (high - low)),
        (Some((_, last)), None) => last,
        (None, _) => 0.0,
    }
}

fn jobs(request: &Request) -> impl Iterator<Item = Recorded> {
    let draws = Draws::new(request.seed);
    let servers = request.servers.unwrap_or(SERVERS);
    let slower = f64::from(trace::SERVERS) / f64::from(servers);
    let total: u32 = SIZES.iter().map(|(_, count, _)| count).sum();
    let mut arrival = 0.0;
    (0..request.jobs.unwrap_or(1000)).map(move |number| {
        let draws = draws.of(number.into());
        let mut left = draws.whole(0, 0, u64::from(total) - 1) as i64;
        let size = SIZES.iter().find(|(_, count, _)| {
            left -= i64::from(*count);
            left < 0
        });
        let (gpus, _, durations) = size.expect("below the total");
        if number > 0 {
            arrival += at(&GAPS, draws.unit(1)) * slower;
        }
        Recorded {
            name: format!("job-{number}"),
            arrival: Span::from_seconds(arrival),
            // Limited to the size of a small cluster.
            gpus: (*gpus).min(servers * 2),
            duration: Span::from_seconds(at(durations, draws.unit(2)).max(1.0)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_met_and_joined() {
        let quantiles = [(0.1, 1.0), (0.5, 100.0), (1.0, 100.0)];
        assert_eq!([0.0, 0.1, 0.5, 0.7, 1.0].map(|share| at(&quantiles, share)), [0.0, 1.0, 100.0, 100.0, 100.0]);
        assert!((at(&quantiles, 0.3) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn jobs_are_like_the_traces() {
        let jobs: Vec<Recorded> = jobs(&Request { seed: 5, jobs: Some(40_000), servers: Some(550) }).collect();
        let count = jobs.len() as f64;
        let one = jobs.iter().filter(|job| job.gpus == 1).count() as f64 / count;
        assert!((one - 60_522.0 / 64_483.0).abs() < 0.005, "{one}");
        let mut durations: Vec<f64> = jobs.iter().map(|job| job.duration.as_seconds()).collect();
        durations.sort_by(f64::total_cmp);
        // For all jobs of the trace: 1278 s and 33,200 s.
        let (median, high) = (durations[20_000], durations[38_000]);
        assert!((1100.0..1450.0).contains(&median) && (25_000.0..42_000.0).contains(&high), "{median} {high}");
        // One in 70 s, in the trace from 24 September on.
        let gap = jobs[39_999].arrival.as_seconds() / count;
        assert!((55.0..90.0).contains(&gap), "{gap}");
        assert!(jobs.windows(2).all(|pair| pair[0].arrival <= pair[1].arrival));
    }
}
