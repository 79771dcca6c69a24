//! Following jobs with `watch`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::Value;
use tempfile::TempDir;

use super::cli_serve::{Served, trainmaster};

#[test]
fn a_watch_goes_on_when_the_daemon_is_back() {
    let folder = TempDir::new().unwrap();
    let listen = format!("127.0.0.1:{}", trainmaster_conformance::free_port());
    let daemon = || Served::at(&listen, "none", &folder.path().join("state"), &["--engine", "fifo"]);
    let first = daemon();
    for name in ["one", "two"] {
        let job = folder.path().join(name);
        fs::write(&job, format!("name = \"{name}\"\nmode = \"allreduce\"\nworker = {{ cpu = 1 }}\n")).unwrap();
        first.works(&["submit", job.to_str().unwrap()]);
    }
    let watch = |args: &[&str]| {
        let mut command = trainmaster(&[&["--server", &first.url, "watch"], args].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut watches = [watch(&["one", "--json"]), watch(&["--until-idle"])];
    let mut outputs = watches.each_mut().map(|watch| BufReader::new(watch.stdout.take().unwrap()).lines());
    let mut said = watches.each_mut().map(|watch| BufReader::new(watch.stderr.take().unwrap()).lines());
    let begun = outputs.each_mut().map(|output| output.next().unwrap().unwrap());
    let list: Value = serde_json::from_str(&begun[0]).unwrap();
    assert_eq!((list["jobs"].as_array().unwrap().len(), &list["jobs"][0]["name"]), (1, &"one".into()), "{list}");
    assert!(begun[1].starts_with("job 1 (one): waiting"), "{}", begun[1]);
    drop(first);
    for said in &mut said {
        assert!(said.next().unwrap().unwrap().contains("the daemon is away; the jobs go on"));
    }
    let second = daemon();
    second.works(&["cancel", "one", "two"]);
    let rest = outputs.map(|output| output.map(Result::unwrap).collect::<Vec<_>>());
    assert!(watches.iter_mut().all(|watch| watch.wait().unwrap().success()));
    let last: Value = serde_json::from_str(rest[0].last().unwrap()).unwrap();
    assert_eq!((&last["jobs"][0]["state"], last["jobs"].as_array().unwrap().len()), (&"cancelled".into(), 1));
    assert!(rest[1].last().unwrap().ends_with("has left the list"), "{:?}", rest[1]);
}
