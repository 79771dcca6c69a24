//! `trainmaster replay`, run like by a user: on journals of daemons and of simulations, whole and damaged.

use std::{fs, path::Path, process::Command};

use redb::{Database, TableDefinition};
use serde_json::Value;
use trainmaster_core::{
    Event, JobSpec, Scheduler, ServerSpec, Settings, Span, Time,
    job::Dataset,
    journal::{Record, VERSION},
    settings::Stability,
};
use trainmaster_daemon::{Daemon, JournalFile};
use trainmaster_proto::v1;
use trainmaster_sim::{Host, Options, Request, play, workload};

use crate::support::{Clients, FakeManager, Trainer, config, servers, spec};

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn replay(journal: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster"));
    let output = command.arg("replay").arg(journal).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

impl Ran {
    #[track_caller]
    fn json(&self, code: i32) -> Value {
        assert_eq!(self.code, code, "{}", self.err);
        serde_json::from_str(&self.out).expect("one JSON document")
    }

    /// Asserts exit code 1 and a message of one line with all of these words.
    #[track_caller]
    fn fails(&self, words: &[&str]) {
        assert_eq!(self.code, 1, "{}{}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} isn't in: {}", self.err);
        }
    }
}

/// Two jobs that train and end, one that is cancelled and one that continues, under two daemons in succession.
async fn lives(folder: &Path) {
    let daemon = Daemon::start(config(folder)).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(2, 4)).await;
    for name in ["one", "two"] {
        let job = clients.submit(&spec(name)).await.unwrap().job;
        let plan = manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
        let mut trainer = Trainer::new(&clients, &plan);
        for _ in 0..15 {
            // The shape may change at any time, and reports of an old incarnation are ignored.
            trainer.follow(&manager.look(|world| world.plans[&job].clone()));
            let epoch = trainer.epoch();
            let _ = trainer.send(vec![epoch]).await;
        }
        clients.until_job(name, |job| job.predicted_epochs.is_some()).await;
        loop {
            trainer.follow(&manager.look(|world| world.plans[&job].clone()));
            if trainer.finish().await.accepted {
                break;
            }
        }
        clients.until_job(name, |job| job.state == "completed").await;
    }
    clients.submit(&spec("three")).await.unwrap();
    clients.cancel("three").await.unwrap();
    clients.submit(&spec("four")).await.unwrap();
    clients.until_job("four", |job| job.state == "running").await;
    // The daemon still has the journal open.
    let shown = replay(folder, &[]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(shown.out.contains("A daemon is using this journal") && shown.out.contains("optimus"), "{}", shown.out);
    let live = replay(folder, &["--verify", "--json"]).json(0);
    assert!(live["decisions"]["agree"].as_u64() > Some(1), "{live}");
    let world = manager.world.clone();
    daemon.stop().await;
    let daemon = Daemon::start(config(folder)).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let _manager = FakeManager::attach_with(&clients, "fake", servers(2, 4), world).await;
    clients.until_job("four", |job| job.state == "running").await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemons_journal_is_shown_comes_out_again_and_can_be_tried_on_other_engines() {
    let folder = tempfile::tempdir().unwrap();
    lives(folder.path()).await;
    let contents = replay(folder.path(), &["--json"]).json(0);
    assert_eq!(contents["jobs"]["submitted"], 4);
    assert_eq!((&contents["jobs"]["completed"], &contents["jobs"]["cancelled"]), (&2.into(), &1.into()));
    assert_eq!((&contents["terms"], &contents["in_use"]), (&2.into(), &false.into()));
    assert!(contents["events"]["reported"].as_u64() >= Some(20), "{contents}");
    assert!(contents["version"].is_string() && contents["engines"][0]["engine"] == "optimus");

    let verified = replay(folder.path(), &["--verify", "--json"]).json(0);
    assert_eq!(verified["decisions"]["agree"], contents["decisions"]["committed"], "{verified}");
    assert_eq!((&verified["decisions"]["differ"], &verified["first_difference"]), (&0.into(), &Value::Null));
    // At the end of one daemon, and at the start and the end of the next.
    assert_eq!((&verified["snapshots"]["follow"], &verified["snapshots"]["differ"]), (&3.into(), &0.into()));

    let args = ["--what-if", "drf,fifo", "--draws", "3", "--no-timing", "--json", "--set", "drf.interval=1s"];
    let what_if = replay(folder.path(), &args).json(0);
    let engines: Vec<&String> = what_if["engines"].as_object().unwrap().keys().collect();
    assert_eq!(engines, ["drf", "fifo", "own (optimus)"]);
    assert_eq!((&what_if["recorded"]["jobs"], &what_if["trust"]["jobs"]), (&2.into(), &2.into()));
    let rests = &what_if["rests_on"];
    // The fourth job has no report, so its number of steps is unknown.
    assert_eq!((&rests["jobs"], &rests["simulated"]), (&4.into(), &2.into()));
    assert_eq!((&rests["speed"]["reports"], &rests["epochs"]["completed"]), (&2.into(), &2.into()));
    assert_eq!(rests["left_out"], serde_json::json!({"unknown_work": 1, "never_trained": 1}));
    assert!(what_if["ratios"]["fifo vs own (optimus)"]["intervals"]["average_jct"].is_number(), "{what_if}");
    assert_eq!(replay(folder.path(), &args).json(0), what_if);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_and_a_changed_record_in_the_store_are_named() {
    let folder = tempfile::tempdir().unwrap();
    lives(folder.path()).await;
    let path = folder.path().join("journal.redb");
    let whole = fs::read(&path).unwrap();
    let records = JournalFile::read(&path).unwrap().records;
    let find = |wanted: fn(&Event) -> bool| {
        let is = |frame: &[u8]| matches!(Record::decode(frame), Ok(Record::Event { event, .. }) if wanted(&event));
        records.iter().find(|(_, frame)| is(frame)).cloned().unwrap()
    };
    let (number, frame) = find(|event| matches!(event, Event::Reported { .. }));
    // The store may still have pages from before it moved the record, so all copies are changed.
    let copies = whole.windows(frame.len()).enumerate().filter(|(_, window)| *window == frame);
    let copies: Vec<usize> = copies.map(|(at, _)| at).collect();
    assert!(!copies.is_empty(), "a record lies in one piece");
    let mut flipped = whole.clone();
    copies.iter().for_each(|at| flipped[at + frame.len() / 2] ^= 4);
    fs::write(&path, &flipped).unwrap();
    let name = format!("record {number} is unreadable");
    replay(folder.path(), &[]).fails(&[&name, "checksum"]);
    let verified = replay(folder.path(), &["--verify", "--json"]);
    verified.fails(&[&name]);
    let verified = verified.json(1);
    assert_eq!(verified["unreadable"][0]["record"], number);
    assert!(verified["decisions"]["not_compared"].as_u64() > Some(0), "{verified}");
    // The comparison continues at the next snapshot.
    assert!(verified["decisions"]["agree"].as_u64() > Some(0), "{verified}");
    fs::write(&path, &whole).unwrap();

    let (number, frame) = find(|event| matches!(event, Event::ServerSet { .. }));
    let Record::Event { at, event: Event::ServerSet { manager, mut server } } = Record::decode(&frame).unwrap() else {
        panic!("a server")
    };
    server.devices.clear();
    let changed = Record::Event { at, event: Event::ServerSet { manager, server } }.encode();
    let database = Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let table: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
    transaction.open_table(table).unwrap().insert(number, changed.as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    assert_eq!(replay(folder.path(), &[]).code, 0, "it can be read");
    let verified = replay(folder.path(), &["--verify"]);
    verified.fails(&["the decision of ticket", "comes out differently"]);
    assert!(verified.out.contains("The first that differs: record"), "{}", verified.out);
    let found = replay(folder.path(), &["--verify", "--json"]).json(1)["first_difference"].clone();
    assert!(found["record"].as_u64() > Some(number) && found["recorded"] != found["replayed"], "{found}");
    assert!(found["differences"][0]["what"].as_str().unwrap().contains("job"), "{found}");
}

/// The records of a simulation's journal, concatenated.
fn simulated(engine: &str) -> Vec<Vec<u8>> {
    struct Keeper(Vec<Vec<u8>>);
    impl Host for Keeper {
        fn records(&mut self, records: Vec<Vec<u8>>) {
            self.0.extend(records);
        }
    }
    let entry = workload::find("optimus").unwrap();
    let workload = entry.build(&Request { seed: 1, jobs: Some(9), servers: None }).unwrap();
    let stability = Stability { enabled: false, ..Stability::default() };
    let settings = Settings { engine: engine.into(), stability, ..Settings::default() };
    let mut keeper = Keeper(Vec::new());
    play(&workload, &Options { settings, journal: true, ..Options::default() }, &mut keeper).unwrap();
    keeper.0
}

#[test]
fn a_truncated_file_of_records_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    let file = simulated("optimus").concat();
    fs::write(&path, &file).unwrap();
    assert_eq!(replay(&path, &["--verify", "--json"]).json(0)["decisions"]["differ"], 0);
    let shown = replay(&path, &["--what-if", "fifo", "--draws", "2", "--threads", "1"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    for words in ["recorded", "own (optimus)", "PAIRED BY DRAW", "It rests on 9 of 9 jobs", "How far to trust it: the"]
    {
        assert!(shown.out.contains(words), "{words:?} isn't in: {}", shown.out);
    }
    fs::write(&path, &file[..file.len() / 2]).unwrap();
    let cut = replay(&path, &["--verify", "--json"]);
    cut.fails(&["record", "is unreadable: it"]);
    assert!(cut.json(1)["decisions"]["agree"].as_u64() > Some(3));
    let contents = replay(&path, &["--json"]);
    contents.fails(&["is unreadable"]);
    let submitted = contents.json(1)["jobs"]["submitted"].as_u64().unwrap();
    assert!((2..=9).contains(&submitted), "{submitted}");
    let rests = replay(&path, &["--what-if", "fifo", "--draws", "1", "--json"]).json(1)["rests_on"].clone();
    assert_eq!(rests["jobs"], submitted, "{rests}");
}

#[test]
fn other_formats_and_other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    replay(&path, &[]).fails(&["records"]);
    fs::write(&path, "name = \"a\"").unwrap();
    replay(&path, &[]).fails(&["neither a daemon's journal nor a file of records"]);
    let mut frames = simulated("fifo");
    for frame in &mut frames {
        frame[8] = 13;
        let check = blake3::hash(&frame[8..]);
        frame[4..8].copy_from_slice(&check.as_bytes()[..4]);
    }
    fs::write(&path, frames.concat()).unwrap();
    let problem = format!("it is of version 13; this program reads versions 14 to {VERSION}");
    replay(&path, &["--verify"]).fails(&[&problem]);
    // A journal without its beginning has no snapshot.
    let tail: Vec<u8> = simulated("fifo")[1..].concat();
    fs::write(&path, tail).unwrap();
    replay(&path, &["--verify"]).fails(&["no snapshot to start from"]);
}

#[test]
fn declared_values_have_no_interval() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
    scheduler.start_journal();
    let server = ServerSpec {
        name: "node1".into(),
        capacity: [("cpu".to_owned(), 8_000)].into(),
        devices: vec!["gpu".into(); 8],
        ..ServerSpec::default()
    };
    scheduler.apply(Time(0), Event::ServerSet { manager: "m".into(), server }).unwrap();
    for number in 1..=3 {
        let dataset = Dataset {
            chunks: 10,
            batches_per_chunk: 5,
            epochs: 4,
            batch_time: Some(Span::seconds(2)),
            ..Dataset::default()
        };
        let spec = JobSpec { dataset: Some(dataset), ..JobSpec::minimal(&format!("job-{number}")) };
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        scheduler.apply(Time(number), event).unwrap();
    }
    scheduler.decide(Time(10));
    fs::write(&path, scheduler.drain_journal().concat()).unwrap();
    let args = ["--what-if", "drf", "--draws", "3", "--no-timing"];
    let shown = replay(&path, &args);
    for words in ["taken at its word", "no intervals"] {
        assert!(shown.out.contains(words), "{words:?} isn't in: {}", shown.out);
    }
    assert!(!shown.out.lines().take(8).any(|line| line.contains('±')), "{}", shown.out);
    let answer = replay(&path, &[&args[..], &["--json"]].concat()).json(0);
    assert!(answer["engines"]["drf"]["average_jct_s"].as_f64() > Some(0.0), "{answer}");
    assert!(answer["engines"]["drf"]["intervals"]["average_jct_s"].is_null(), "{answer}");
    assert!(answer["ratios"]["drf vs own (fifo)"]["intervals"]["average_jct"].is_null(), "{answer}");
    // No job had ended.
    let recorded = &answer["recorded"];
    assert!(recorded["average_jct_s"].is_null() && recorded["makespan_s"].is_null(), "{recorded}");
    assert_eq!(recorded["utility"].to_string(), "0.0");
}

#[test]
fn wrong_usage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    fs::write(&path, simulated("fifo").concat()).unwrap();
    for (args, words) in [
        (&["--verify", "--what-if", "drf"][..], "cannot be used with"),
        (&["--set", "drf.interval=1s"], "--what-if"),
        (&["--draws", "3"], "--what-if"),
        (&["--what-if", "best"], "best"),
        (&["--what-if", "=drf"], "can't be a name"),
        (&["--what-if", "drf,drf"], "twice"),
        (&["--what-if", "drf", "--set", "fifo.interval=1s"], "none of the engines compared"),
        (&["--what-if", "drf", "--set", "drf.nonsense=1"], "nonsense"),
        (&["--what-if", "drf", "--draws", "0"], "0"),
    ] {
        let ran = replay(&path, args);
        assert!(ran.code == 2 && ran.err.contains(words), "{args:?}: {} {}", ran.code, ran.err);
    }
    // oasis schedules chunks, and these jobs have none.
    let shown = replay(&path, &["--what-if", "oasis", "--draws", "1"]);
    assert!(shown.code == 0 && shown.out.contains("oasis refuses some of these jobs"), "{}{}", shown.out, shown.err);
}
