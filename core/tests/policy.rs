//! Learnt policies: conditions of their use, their decisions, and the replay of these decisions.

use crate::common::journal::{Keeper, verify};
use trainmaster_core::{
    Event, EventError, Policy, Scheduler, Settings, Time,
    engines::policy_inputs,
    journal::Record,
    policy::{Network, PolicyError, Validation},
    settings::{Parameter, Stability},
};
use trainmaster_sim::{Draws, Options, Report, Request, Workload, play, workload};

/// Weights from a seed, with arbitrary preferences.
fn drawn(engine: &str, seed: u64) -> Policy {
    let inputs = policy_inputs(engine).unwrap();
    let draws = Draws::new(seed);
    let weights = (0..Network::size(inputs.names.len(), 8)).map(|at| draws.normal(at as u64) as f32).collect();
    Policy::new(engine, inputs.version, Network::new(inputs.names.len(), 8, weights).unwrap(), None)
}

fn workload(seed: u64) -> Workload {
    workload::find("mlfs").unwrap().build(&Request { seed, jobs: Some(24), servers: Some(2) }).unwrap()
}

fn settings(engine: &str, flags: &[(&str, bool)]) -> Settings {
    let parameters = flags.iter().map(|(name, on)| ((*name).to_owned(), Parameter::Flag(*on))).collect();
    let stability = Stability { enabled: false, ..Stability::default() };
    Settings { engine: engine.into(), parameters, stability, ..Settings::default() }
}

fn played(settings: Settings, policies: Vec<Policy>, seed: u64) -> (Report, Vec<Vec<u8>>) {
    let options = Options { settings, policies, seed, journal: true, ..Options::default() };
    let mut keeper = Keeper::default();
    let report = play(&workload(seed), &options, &mut keeper).unwrap();
    (report, keeper.0)
}

#[test]
fn without_a_policy_the_heuristic_decides() {
    let (learning, _) = played(settings("mlfs", &[("stop", false)]), Vec::new(), 1);
    let (heuristic, _) = played(settings("mlf-h", &[]), Vec::new(), 1);
    assert_eq!(learning, heuristic);
    // A policy that isn't enabled decides nothing, and neither does another engine's.
    let (unasked, _) = played(settings("mlf-h", &[]), vec![drawn("mlfs", 1)], 1);
    let (foreign, _) = played(settings("mlf-h", &[("policy", true)]), vec![drawn("rl", 1)], 1);
    assert_eq!((&unasked.jobs, &foreign.jobs), (&heuristic.jobs, &heuristic.jobs));
}

#[test]
fn any_policy_keeps_the_rules_and_replays() {
    for engine in ["mlfs", "rl"] {
        let (heuristic, _) = played(settings(engine, &[]), Vec::new(), 2);
        for seed in 0..3 {
            let (report, frames) = played(settings(engine, &[]), vec![drawn(engine, seed)], 2);
            assert_eq!((report.failed, report.overfull), (0, 0), "{engine}, {seed}: {:?}", report.failure);
            assert_ne!(report.digest, heuristic.digest, "{engine}, {seed}");
            let records: Vec<Record> = frames.iter().map(|frame| Record::decode(frame).unwrap()).collect();
            assert!(
                records.iter().any(|record| matches!(record, Record::Event { event: Event::PolicySet { .. }, .. }))
            );
            let (agree, differ, strange) = verify(&records);
            assert!(agree > 20 && (differ, strange) == (0, 0), "{engine}, {seed}: {agree}, {differ}, {strange}");
            let restored = Scheduler::restore(frames.iter().map(Vec::as_slice)).unwrap();
            assert_eq!(restored.state().policies[engine].hash(), drawn(engine, seed).hash());
        }
    }
}

#[test]
fn an_invalid_policy_is_refused_and_the_last_one_stays() {
    let mut scheduler = Scheduler::new(settings("mlfs", &[])).unwrap();
    let set = |scheduler: &mut Scheduler, engine: &str, policy: Option<Policy>| {
        scheduler.apply(Time(1), Event::PolicySet { engine: engine.into(), policy: policy.map(Box::new) })
    };
    let good = drawn("mlfs", 1);
    set(&mut scheduler, "mlfs", Some(good.clone())).unwrap();
    let inputs = policy_inputs("mlfs").unwrap();
    let network = good.network().clone();
    let worse = Validation { workload: "mlfs".into(), episodes: 9, policy: 1.0, heuristic: 1.6 };
    let old = Policy::new("mlfs", inputs.version + 1, network.clone(), None);
    let fewer = Policy::new("mlfs", inputs.version, Network::new(1, 1, vec![0.0; 4]).unwrap(), None);
    let cases = [
        ("mlfs", Policy::new("mlfs", inputs.version, network, Some(worse)), "1.0000, less than the heuristic's 1.6000"),
        ("mlfs", old, "made for inputs of version 2; this engine's are of version 1"),
        ("mlfs", fewer, "it has 1 inputs and the engine 30"),
        ("mlfs", drawn("rl", 1), "of engine \"rl\" and not of \"mlfs\""),
        ("fifo", good.clone(), "engine \"fifo\" follows no policy; those that do are mlfs, rl"),
    ];
    for (engine, policy, problem) in cases {
        let error = set(&mut scheduler, engine, Some(policy)).unwrap_err();
        assert!(matches!(error, EventError::Policy(_)) && error.to_string().contains(problem), "{error}");
        assert_eq!(scheduler.state().policies["mlfs"].hash(), good.hash());
    }
    // Corrupted content doesn't match its hash.
    let mut bytes = postcard::to_allocvec(&good).unwrap();
    let weight = good.network().weights()[0].to_le_bytes();
    let at = bytes.windows(4).position(|window| window == weight).unwrap();
    bytes[at] ^= 1;
    let spoilt: Policy = postcard::from_bytes(&bytes).unwrap();
    let error = set(&mut scheduler, "mlfs", Some(spoilt)).unwrap_err();
    assert!(matches!(error, EventError::Policy(PolicyError::Hash { .. })), "{error}");
    set(&mut scheduler, "mlfs", None).unwrap();
    assert!(scheduler.state().policies.is_empty());
}
