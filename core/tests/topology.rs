//! Jobs whose slots must be, or should be, close to each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{
    build::{
        amounts, cluster, gpus, job, plain, plain_with, ring, running, runs, seen, set, shape, submit, trained,
        verdict, wp,
    },
    config,
    journal::verify,
};
use proptest::{collection::vec, prelude::*, sample::select};
use trainmaster_core::{
    DeviceShare, End, Event, Incarnation, JobId, JobSpec, Phase, Scheduler, ServerSpec, Settings, Slot, Time, Verdict,
    engine::Budget,
    engines,
    event::EventError,
    journal::{self, JournalError, Record},
    reason::{Reason, ReasonKind},
    replay::Replay,
    settings::Parameter,
    topology::{Level, Topology},
};

/// A server with GPUs, in a rack of a block.
fn at(name: &str, count: usize, block: &str, rack: &str) -> ServerSpec {
    let path = [("block", block), ("rack", rack)].into_iter().filter(|(_, value)| !value.is_empty());
    let labels = path.map(|(level, value)| (level.to_owned(), value.to_owned())).collect();
    ServerSpec { labels, ..gpus(name, count) }
}

fn near(mut spec: JobSpec, label: &str, level: &str) -> JobSpec {
    spec.labels.insert(label.into(), level.into());
    spec
}

fn require(spec: JobSpec, level: &str) -> JobSpec {
    near(spec, Topology::REQUIRE, level)
}

fn prefer(spec: JobSpec, level: &str) -> JobSpec {
    near(spec, Topology::PREFER, level)
}

/// The names of a job's servers.
fn on(scheduler: &Scheduler, id: JobId) -> Vec<String> {
    let state = scheduler.state();
    let planned = state.job(id).unwrap().verdict.allocation().cloned();
    let servers = planned.iter().flat_map(|planned| planned.slots().iter().map(|slot| slot.server));
    let names: BTreeSet<&str> = servers.map(|server| state.server_name(server)).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Three racks in two blocks, with 2 + 2, 2 and 4 + 4 GPUs.
fn racks(engine: &str) -> Scheduler {
    racks_with(plain(engine))
}

fn racks_with(settings: Settings) -> Scheduler {
    let servers = [
        at("a1", 2, "b1", "r1"),
        at("a2", 2, "b1", "r1"),
        at("b1", 2, "b1", "r2"),
        at("c1", 4, "b2", "r1"),
        at("c2", 4, "b2", "r1"),
    ];
    cluster(settings, &servers)
}

#[test]
fn the_smallest_rack_that_suffices_is_taken_by_every_engine() {
    for engine in
        ["drf", "fifo", "srtf", "las", "tiresias", "optimus", "tetris", "gandiva", "graphene", "slaq", "random"]
    {
        let mut scheduler = racks(engine);
        let two = submit(&mut scheduler, 0, require(ring("two", (2, 2, 2)), "rack"));
        scheduler.decide(Time(1));
        assert_eq!(on(&scheduler, two), ["b1"], "{engine}");
        // Rack r1 of block b1 isn't rack r1 of block b2.
        let six = submit(&mut scheduler, 2, require(ring("six", (6, 6, 6)), "rack"));
        let three = submit(&mut scheduler, 3, require(ring("three", (3, 3, 3)), "rack"));
        scheduler.decide(Time(600_000));
        assert_eq!(on(&scheduler, six), ["c1", "c2"], "{engine}");
        assert_eq!(on(&scheduler, three), ["a1", "a2"], "{engine}");
    }
}

#[test]
fn a_job_waits_rather_than_cross_its_level() {
    let mut scheduler = racks("drf");
    let six = running(&mut scheduler, 0, require(ring("six", (6, 6, 6)), "rack"));
    // 2 GPUs are free in that rack, 4 in another and 2 in the third.
    let next = submit(&mut scheduler, 1, require(ring("next", (5, 5, 5)), "rack"));
    scheduler.decide(Time(2));
    assert_eq!(runs(&scheduler, &[six, next]), [true, false]);
    assert_eq!(verdict(&scheduler, next).reason().unwrap().kind(), ReasonKind::NoRoom);
    let explained = scheduler.explain(Time(3), next).unwrap();
    let texts: Vec<&str> = explained.findings.iter().map(|finding| finding.text.as_str()).collect();
    let wanted =
        "its slots may only be in rack r1 of block b2: it requires one rack; 2 gpu are free there, 5 are requested";
    assert!(texts.contains(&wanted), "{texts:#?}");
    // It starts where the other ends.
    scheduler.apply(Time(4), Event::JobEnded { job: six, end: End::Completed }).unwrap();
    let incarnation = Incarnation(1);
    let gone = Event::Observed { job: six, incarnation, slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(5), gone).unwrap();
    scheduler.decide(Time(6));
    assert_eq!(on(&scheduler, next), ["c1", "c2"]);
}

#[test]
fn a_job_that_waits_for_a_rack_does_not_hold_back_others() {
    for passes_over in [true, false] {
        let settings = plain_with("optimus", &[("pass_over", Parameter::Flag(passes_over))]);
        let mut scheduler = racks_with(settings);
        let six = running(&mut scheduler, 0, require(ring("six", (6, 6, 6)), "rack"));
        let seven = submit(&mut scheduler, 1, require(ring("seven", (7, 7, 7)), "rack"));
        let two = submit(&mut scheduler, 2, ring("two", (2, 2, 2)));
        scheduler.decide(Time(600_000));
        // 8 GPUs are free. The second job can't use them, but the cluster's total has room for it.
        assert_eq!(runs(&scheduler, &[six, seven, two]), [true, false, passes_over]);
        assert_eq!(verdict(&scheduler, seven).reason().unwrap().kind(), ReasonKind::NoRoom);
    }
}

#[test]
fn a_job_of_whole_groups_leaves_a_server_that_has_no_room_for_one_more() {
    let mut scheduler = cluster(plain("drf"), &[at("a", 5, "b1", "r1"), at("b", 4, "b1", "r1")]);
    let four = running(&mut scheduler, 0, prefer(ring("four", (4, 4, 4)), "server"));
    assert_eq!(on(&scheduler, four), ["b"]);
    let mut groups = prefer(ring("groups", (4, 8, 4)), "server");
    groups.labels.insert("worker.sizes".into(), "multiples of 4".into());
    let groups = running(&mut scheduler, 1, groups);
    scheduler.decide(Time(600_000));
    seen(&mut scheduler, 600_001, groups);
    assert_eq!(on(&scheduler, groups), ["a"]);
    let ended = Event::Observed { job: four, incarnation: Incarnation(1), slots: Vec::new(), phase: Phase::Stopped };
    scheduler.apply(Time(600_002), Event::JobEnded { job: four, end: End::Completed }).unwrap();
    scheduler.apply(Time(600_003), ended).unwrap();
    // One more GPU is free on its server, which is of no use to it.
    scheduler.decide(Time(1_200_000));
    assert_eq!(shape(&scheduler, groups), wp(8, 0));
}

#[test]
fn a_preferred_level_is_left_if_no_domain_has_room() {
    let mut scheduler = racks("drf");
    let four = running(&mut scheduler, 0, prefer(ring("four", (4, 4, 4)), "rack"));
    assert_eq!(on(&scheduler, four), ["a1", "a2"]);
    let ten = submit(&mut scheduler, 1, prefer(ring("ten", (10, 10, 10)), "rack"));
    scheduler.decide(Time(2));
    assert_eq!(on(&scheduler, ten), ["b1", "c1", "c2"]);
    assert_eq!(scheduler.state().job(ten).unwrap().domain, None);
    // With a block that it requires, it waits.
    let mut scheduler = racks("drf");
    let both = require(prefer(ring("both", (6, 6, 6)), "server"), "block");
    let both = submit(&mut scheduler, 1, both);
    scheduler.decide(Time(2));
    assert_eq!(on(&scheduler, both), ["c1", "c2"], "no server suffices, and this rack is smaller than a block");
    let explained = scheduler.explain(Time(3), both).unwrap();
    let says = |words: &str| explained.findings.iter().any(|finding| finding.text.contains(words));
    assert!(says("only be in rack r1 of block b2: it requires one block and prefers one server;"), "{explained:#?}");
}

#[test]
fn one_server_can_be_required() {
    let mut scheduler = racks("drf");
    let three = submit(&mut scheduler, 0, require(ring("three", (3, 3, 3)), "server"));
    let four = submit(&mut scheduler, 1, require(job("four", (2, 4, 4), (1, 1, 1)), "server"));
    scheduler.decide(Time(2));
    let (three, four) = (on(&scheduler, three), on(&scheduler, four));
    assert!(three.len() == 1 && four.len() == 1 && three != four, "{three:?} {four:?}");
}

#[test]
fn a_job_that_fits_in_no_domain_is_refused_with_the_largest() {
    let mut scheduler = racks("drf");
    let mut refused = |spec: JobSpec| {
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        match scheduler.apply(Time(1), event) {
            Err(EventError::NeverFits(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    let text = refused(require(ring("nine", (9, 9, 9)), "rack"));
    let wanted = "all slots must be in one rack, and the smallest shape needs 9 gpu; the largest rack has 8 \
                  (rack r1 of block b2)";
    assert_eq!(text, wanted);
    let text = refused(require(ring("five", (5, 5, 5)), "server"));
    assert_eq!(
        text,
        "all slots must be in one server, and the smallest shape needs 5 gpu; the largest server has 4 (c1)"
    );
    let text = refused(require(ring("zone", (1, 1, 1)), "zone"));
    assert_eq!(text, "all slots must be in one zone, but no server with the job's labels has a label zone");
    // The whole cluster can't hold it either.
    assert!(refused(require(ring("all", (15, 15, 15)), "rack")).contains("the servers it may use have 14 in all"));
}

#[test]
fn a_waiting_job_whose_domain_leaves_says_so() {
    let mut scheduler = racks("drf");
    let filler = running(&mut scheduler, 0, require(ring("filler", (8, 8, 8)), "rack"));
    let next = submit(&mut scheduler, 1, require(ring("next", (8, 8, 8)), "rack"));
    scheduler.decide(Time(2));
    assert_eq!(runs(&scheduler, &[filler, next]), [true, false]);
    scheduler.apply(Time(3), Event::ServersLeft { names: vec!["c2".into()] }).unwrap();
    scheduler.decide(Time(4));
    let explained = scheduler.explain(Time(5), next).unwrap();
    assert!(explained.findings.iter().any(|finding| finding.text.contains("one rack, and the smallest shape needs 8")));
    assert!(on(&scheduler, next).is_empty());
}

#[test]
fn a_running_job_grows_within_its_rack_or_into_its_block() {
    for (label, grown) in [(Topology::REQUIRE, 4), (Topology::PREFER, 6)] {
        let mut scheduler = racks("drf");
        // Rack r1 of block b1 is the smallest for 3; block b2 is full.
        let filler = running(&mut scheduler, 0, require(ring("filler", (8, 8, 8)), "rack"));
        let job = running(&mut scheduler, 1, near(ring("job", (1, 8, 3)), label, "rack"));
        assert_eq!(shape(&scheduler, filler), wp(8, 0));
        for round in 0..8 {
            scheduler.decide(Time(600_000 * (round + 1)));
            seen(&mut scheduler, 600_000 * (round + 1) + 1, job);
        }
        assert_eq!(shape(&scheduler, job), wp(grown, 0), "{label}");
    }
}

#[test]
fn a_server_that_moves_takes_nothing_with_it() {
    let mut scheduler = racks("drf");
    let four = running(&mut scheduler, 0, require(ring("four", (3, 4, 4)), "rack"));
    assert_eq!(on(&scheduler, four), ["a1", "a2"]);
    // Slots stay where they are.
    set(&mut scheduler, 1, at("a2", 2, "b2", "r1"));
    scheduler.decide(Time(2));
    assert_eq!(on(&scheduler, four), ["a1", "a2"]);
    // It doesn't grow across the racks, and shrinks within one.
    let explained = scheduler.explain(Time(3), four).unwrap();
    assert!(explained.findings.iter().any(|finding| finding.text.contains("may only be in its present servers")));
    // A ticket that was opened before doesn't place anything across the racks.
    let mut scheduler = racks("drf");
    let four = submit(&mut scheduler, 0, require(ring("four", (4, 4, 4)), "rack"));
    let outcome = scheduler.prepare(Time(1)).run(Budget::UNLIMITED);
    set(&mut scheduler, 2, at("a2", 2, "b2", "r1"));
    scheduler.commit(Time(3), outcome).unwrap();
    assert!(on(&scheduler, four).is_empty());
    scheduler.decide(Time(4));
    assert_eq!(on(&scheduler, four), ["c1", "c2"]);
}

#[test]
fn job_files_name_levels() {
    let file = "name = \"a\"\nmode = \"allreduce\"\nworker = { gpu = 1 }\n";
    let read = |topology: &str| JobSpec::from_toml(&format!("{file}{topology}"));
    let spec = read("topology = { require = \"block\", prefer = \"rack\" }").unwrap();
    let asked = Topology { require: Some(Level::Block), prefer: Some(Level::Rack) };
    assert_eq!(Topology::of(&spec.labels), asked);
    let pairs = [("name", "a"), ("mode", "allreduce"), ("worker.gpu", "1"), ("topology.require", "rack")];
    assert_eq!(Topology::of(&JobSpec::from_pairs(pairs).unwrap().labels).require, Some(Level::Rack));
    for (topology, words) in [
        ("topology = { require = \"row\" }", "topology.require: \"row\" must be zone, block, rack or server"),
        ("topology = { require = 1 }", "1"),
        ("topology = { within = \"rack\" }", "within"),
        ("constraints = { labels = { \"topology.prefer\" = \"x\" } }", "topology.prefer: \"x\" must be zone"),
        (
            "topology = { require = \"rack\" }\nconstraints = { labels = { \"topology.require\" = \"rack\" } }",
            "topology.require: stands in constraints.labels, too",
        ),
    ] {
        let error = read(topology).unwrap_err().to_string();
        assert!(error.contains(words), "{topology}: {error}");
    }
}

#[test]
fn a_restored_scheduler_has_the_same_domains() {
    let mut scheduler = racks("drf");
    scheduler.start_journal();
    let jobs = [("one", 4), ("two", 8), ("three", 2), ("four", 7)];
    for (name, workers) in jobs {
        submit(&mut scheduler, 0, require(ring(name, (workers, workers, workers)), "rack"));
    }
    scheduler.decide(Time(1));
    assert!(scheduler.snapshot());
    let frames = scheduler.drain_journal();
    let last = frames.last().unwrap();
    let Record::Snapshot(saved) = Record::decode(last).unwrap() else { panic!("the last is a snapshot") };
    let replay = Replay::new(*saved).unwrap();
    for (name, _) in jobs {
        let domain = |scheduler: &Scheduler| scheduler.state().find_job(name).unwrap().domain.clone();
        assert!(domain(&scheduler).is_some());
        assert_eq!(domain(replay.scheduler()), domain(&scheduler), "{name}");
    }
    let records: Vec<Record> = frames.iter().map(|frame| Record::decode(frame).unwrap()).collect();
    assert_eq!(verify(&records), (1, 0, 0));
    // Decisions from the snapshot on are the same.
    scheduler.apply(Time(2), Event::ServersLeft { names: vec!["a2".into()] }).unwrap();
    submit(&mut scheduler, 3, require(ring("five", (1, 4, 2)), "block"));
    scheduler.decide(Time(600_000));
    scheduler.decide(Time(1_200_000));
    let later: Vec<Record> = scheduler.drain_journal().iter().map(|frame| Record::decode(frame).unwrap()).collect();
    let from_there: Vec<Record> = records.last().into_iter().chain(&later).cloned().collect();
    assert_eq!(verify(&from_there), (2, 0, 0));
}

/// Journals of format 14, which knew no topology, and of 15, which had no tables of speeds, are read. `optimus` would
/// decide otherwise now after the last snapshot of the first, which the error says; up to there it is restored.
#[test]
fn journals_of_earlier_formats_are_read() {
    for (format, bytes) in
        [(14, &include_bytes!("data/journal-14.bin")[..]), (15, include_bytes!("data/journal-15.bin"))]
    {
        let frames: Vec<&[u8]> = journal::frames(bytes).collect();
        assert!(frames.iter().all(|frame| frame[8] == format) && journal::VERSION > format);
        let snapshots = frames.iter().filter(|frame| Record::is_snapshot(frame)).count();
        assert_eq!(snapshots, 2);
        assert!(frames.iter().all(|frame| Record::decode(frame).is_ok()));
        let last = frames.iter().rposition(|frame| Record::is_snapshot(frame)).unwrap();
        let restored = match Scheduler::restore(frames.iter().copied()) {
            Err(JournalError::Diverged { .. }) if format == 14 => Scheduler::restore(frames[..=last].iter().copied()),
            whole => whole,
        };
        let restored = restored.unwrap();
        let names: Vec<&str> = restored.state().jobs.values().map(|job| job.spec.name.as_str()).collect();
        let expected: &[&str] = if format == 14 { &["one", "two", "three"] } else { &["one", "two", "three", "four"] };
        assert_eq!(names, expected);
        assert!(restored.state().job(JobId(1)).is_some_and(|job| !job.shape().is_empty()));
        let domains = restored.state().jobs.values().filter(|job| job.domain.is_some()).count();
        assert_eq!(domains, if format == 14 { 0 } else { 2 });
    }
}

/// Theorem 1 needs an even spread, which the smallest rack's free GPUs may not have.
#[test]
fn a_domain_where_the_engine_finds_no_place_gives_way() {
    let servers = [at("a1", 3, "b1", "r1"), at("a2", 1, "b1", "r1"), at("a3", 2, "b1", "r1"), at("b1", 8, "b1", "r2")];
    let mut scheduler = cluster(plain("optimus"), &servers);
    let job = submit(&mut scheduler, 0, require(ring("job", (6, 6, 6)), "rack"));
    scheduler.decide(Time(1));
    assert!(on(&scheduler, job).is_empty());
    scheduler.decide(Time(600_000));
    assert_eq!(on(&scheduler, job), ["b1"]);
}

/// Free GPUs of each domain of a level, for servers given as (GPUs, block, rack).
fn free_by(level: Level, servers: &[(usize, u8, u8)]) -> BTreeMap<(u8, u8, usize), usize> {
    let mut free = BTreeMap::new();
    for (at, (gpus, block, rack)) in servers.iter().enumerate() {
        let domain = match level {
            Level::Server => (0, 0, at),
            Level::Rack => (*block, *rack, 0),
            _ => (*block, 0, 0),
        };
        *free.entry(domain).or_default() += gpus;
    }
    free
}

proptest! {
    #![proptest_config(config(64))]

    /// The smallest domain that suffices, of the innermost level that has one, and never more than the required level.
    #[test]
    fn the_smallest_sufficient_domain_is_taken(
        each in 1..=4_usize,
        paths in vec((1..=2_u8, 1..=3_u8), 1..=12),
        workers in 1..=10_u32,
        (label, level) in (select(vec![Topology::REQUIRE, Topology::PREFER]), select(vec!["server", "rack", "block"])),
        engine in select(vec!["drf", "fifo", "optimus", "srtf", "tiresias"]),
    ) {
        let servers: Vec<(usize, u8, u8)> = paths.iter().map(|(block, rack)| (each, *block, *rack)).collect();
        let specs: Vec<ServerSpec> = servers.iter().enumerate()
            .map(|(n, (gpus, block, rack))| at(&format!("s{n}"), *gpus, &format!("b{block}"), &format!("r{rack}")))
            .collect();
        let total: usize = servers.iter().map(|(gpus, ..)| gpus).sum();
        let mut scheduler = cluster(plain(engine), &specs);
        let spec = near(ring("job", (workers, workers, workers)), label, level);
        let asked: Level = level.parse().unwrap();
        let required = label == Topology::REQUIRE;
        // From racks (or what the job names) outwards, up to the required level.
        let outermost = if required { asked } else { Level::Block };
        let innermost = if required { asked.max(Level::Rack) } else { asked };
        let levels = [Level::Server, Level::Rack, Level::Block].into_iter();
        let levels = levels.filter(|level| (outermost..=innermost).contains(level));
        let best = levels.into_iter().find_map(|level| {
            let fitting = free_by(level, &servers).into_iter().filter(|(_, free)| *free >= workers as usize);
            fitting.map(|(_, free)| free).min().map(|free| (level, free))
        });
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        let accepted = scheduler.apply(Time(0), event).is_ok();
        let fits = best.is_some() || (!required && total >= workers as usize);
        prop_assert_eq!(accepted, fits, "{:?}", best);
        if !accepted {
            return Ok(());
        }
        scheduler.decide(Time(1));
        let state = scheduler.state();
        let job = state.find_job("job").unwrap();
        let Verdict::Run(planned) = &job.verdict else { panic!("{engine}: {:?}", job.verdict) };
        let Some((level, free)) = best else { return Ok(()) };
        let domains: BTreeSet<_> = planned.slots().iter().map(|slot| {
            let (_, block, rack) = servers[slot.server.index()];
            match level {
                Level::Server => (0, 0, slot.server.index()),
                Level::Rack => (block, rack, 0),
                _ => (block, 0, 0),
            }
        }).collect();
        prop_assert_eq!(domains.len(), 1);
        prop_assert_eq!(free_by(level, &servers)[domains.first().unwrap()], free);
    }
}

/// Every engine keeps a job that can't start out of the way of one that can.
#[test]
fn no_engine_stops_over_a_job_without_a_domain() {
    for entry in engines::REGISTRY.iter().filter(|entry| entry.name != "edge") {
        let mut scheduler = racks(entry.name);
        let lost = submit(&mut scheduler, 0, require(trained("lost", 8, 10), "rack"));
        scheduler.apply(Time(1), Event::ServersLeft { names: vec!["c2".into()] }).unwrap();
        scheduler.decide(Time(2));
        assert!(on(&scheduler, lost).is_empty(), "{}", entry.name);
        let job = scheduler.state().job(lost).unwrap();
        assert!(!matches!(job.verdict, Verdict::Run(_)), "{}: {:?}", entry.name, job.verdict);
        assert!(!matches!(job.verdict.reason(), Some(Reason::Held)), "{}", entry.name);
    }
}

/// A rack that belongs to no block is in none of a job's blocks.
#[test]
fn a_rack_outside_of_all_blocks_is_in_none() {
    let servers = [at("a", 2, "", "r1"), at("b", 4, "b1", "r1"), at("c", 3, "b1", "")];
    for prefer in [None, Some("server")] {
        let mut scheduler = cluster(plain("drf"), &servers);
        let mut spec = require(ring("job", (2, 2, 2)), "block");
        spec.labels.extend(prefer.map(|level| (Topology::PREFER.to_owned(), level.to_owned())));
        let job = submit(&mut scheduler, 0, spec);
        scheduler.decide(Time(1));
        let on = on(&scheduler, job);
        assert_eq!(
            on,
            [if prefer.is_some() { "c" } else { "b" }],
            "no rack but that of b, and no server smaller than c"
        );
    }
}

/// A job that waits for a whole rack keeps no room from one that fits now.
#[test]
fn a_waiting_job_keeps_no_rack_from_others() {
    let servers = [at("a", 8, "b1", "r1"), at("b", 8, "b1", "r2")];
    let mut scheduler = cluster(plain("srtf"), &servers);
    let of = |name: &str, workers: u32| require(ring(name, (workers, workers, workers)), "rack");
    let half = running(&mut scheduler, 0, of("half", 4));
    let whole = running(&mut scheduler, 1, of("whole", 8));
    let next = submit(&mut scheduler, 2, of("next", 8));
    scheduler.decide(Time(3));
    let small = submit(&mut scheduler, 4, of("small", 2));
    scheduler.decide(Time(5));
    scheduler.decide(Time(6));
    assert_eq!(runs(&scheduler, &[half, whole, next, small]), [true, true, false, true]);
    assert_eq!(on(&scheduler, small), on(&scheduler, half));
}

/// If the engine finds no place in the only rack with room, a job that only prefers a rack leaves it.
#[test]
fn a_preference_is_left_where_the_engine_finds_no_place() {
    let servers = [at("a1", 3, "b1", "r1"), at("a2", 1, "b1", "r1"), at("a3", 2, "b1", "r1"), at("b1", 8, "b1", "")];
    for wish in [prefer(ring("job", (6, 6, 6)), "rack"), require(ring("job", (6, 6, 6)), "block")] {
        let mut scheduler = cluster(plain("optimus"), &servers);
        let job = submit(&mut scheduler, 0, wish);
        for round in 0..4 {
            scheduler.decide(Time(1 + 600_000 * round));
        }
        assert_eq!(on(&scheduler, job), ["b1"]);
    }
}

/// A rack that becomes free is taken, also if the present one, where the engine found no place, has become full.
#[test]
fn a_free_rack_is_found_from_a_full_one() {
    let uneven = [at("a1", 3, "b1", "r1"), at("a2", 1, "b1", "r1"), at("a3", 2, "b1", "r1")];
    // By totals r0 fits first, but its servers hold five workers.
    let servers = [at("c1", 5, "b1", "r0"), at("c2", 2, "b1", "r0"), at("b1", 8, "b1", "r2")];
    for label in [Topology::PREFER, Topology::REQUIRE] {
        let mut scheduler = cluster(plain("optimus"), &[&uneven[..], &servers[..]].concat());
        let foreign = |scheduler: &mut Scheduler, at: i64, server: &str, gpus: i64, cpus: i64| {
            let (server, amounts) = (server.to_owned(), amounts(&[("gpu", gpus * 1000), ("cpu", cpus * 1000)]));
            let devices = (0..gpus as u16).map(|device| DeviceShare { device, milli: 1000 }).collect();
            scheduler.apply(Time(at), Event::ForeignUse { server, amounts, devices }).unwrap();
        };
        foreign(&mut scheduler, 0, "c1", 5, 0);
        foreign(&mut scheduler, 0, "b1", 8, 0);
        let job = submit(&mut scheduler, 1, near(ring("job", (6, 6, 6)), label, "rack"));
        scheduler.decide(Time(2));
        assert!(on(&scheduler, job).is_empty(), "Theorem 1 finds no place in r1");
        foreign(&mut scheduler, 3, "a1", 1, 0);
        foreign(&mut scheduler, 3, "c1", 0, 0);
        foreign(&mut scheduler, 3, "c2", 0, 64);
        foreign(&mut scheduler, 3, "b1", 0, 0);
        scheduler.decide(Time(600_000));
        assert_eq!(on(&scheduler, job), ["b1"], "{label}");
        let domain = scheduler.state().job(job).unwrap().domain.clone();
        assert_eq!(domain.map(|domain| domain.name.clone()).as_deref(), Some("rack r2 of block b1"), "{label}");
    }
}

/// Each tenant's searches are few, however many tenants and servers there are.
#[test]
fn many_tenants_each_get_a_server() {
    let servers: Vec<ServerSpec> = (0..2000).map(|n| at(&format!("s{n}"), 1, "b1", "r1")).collect();
    let mut scheduler = cluster(plain("fifo"), &servers);
    for tenant in 0..600 {
        let spec = JobSpec { tenant: format!("t{tenant}"), ..ring(&format!("job{tenant}"), (1, 1, 1)) };
        submit(&mut scheduler, 0, require(spec, "server"));
    }
    scheduler.decide(Time(1));
    assert!(scheduler.state().jobs.values().all(|job| !job.shape().is_empty()));
}

/// A dry run shows what the decision would be.
#[test]
fn a_dry_run_keeps_to_the_level() {
    let mut scheduler = racks("drf");
    scheduler.decide(Time(1));
    submit(&mut scheduler, 2, require(ring("six", (6, 6, 6)), "rack"));
    let proposal = scheduler.dry_run(None).unwrap();
    let (id, verdict) = &proposal.changes[0];
    let Verdict::Run(planned) = verdict else { panic!("{verdict:?}") };
    let name = |slot: &Slot| scheduler.state().server_name(slot.server).to_owned();
    let names: BTreeSet<String> = planned.slots().iter().map(name).collect();
    scheduler.decide(Time(600_000));
    assert_eq!(names.into_iter().collect::<Vec<_>>(), on(&scheduler, *id));
}

/// The free GPUs in all, and the most in one domain.
#[test]
fn fragmentation_is_measured() {
    let mut scheduler = racks("drf");
    let largest = [(Level::Block, 8000), (Level::Rack, 8000), (Level::Server, 4000)];
    assert_eq!(scheduler.state().free_gpus(), (14_000, largest.to_vec()));
    running(&mut scheduler, 0, require(ring("six", (6, 6, 6)), "rack"));
    let (all, by_level) = scheduler.state().free_gpus();
    assert_eq!((all, by_level[0], by_level[1]), (8000, (Level::Block, 6000), (Level::Rack, 4000)));
}
