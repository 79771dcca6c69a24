//! Jobs that can't run, and calls that can't be made: what is wrong, and what would be right.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    thread::sleep,
    time::Duration,
};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::cli_serve::{Served, refuses, trainmaster};

/// A daemon with two virtual servers with labels.
fn daemon(folder: &Path) -> Served {
    let cluster = folder.join("cluster.toml");
    let server = |name: &str, zone: &str| {
        format!("[[server]]\nname = \"{name}\"\ncpu = 4\nmemory = \"1GiB\"\nlabels = {{ zone = \"{zone}\" }}\n")
    };
    fs::write(&cluster, server("a", "north") + &server("b", "south")).unwrap();
    Served::at("127.0.0.1:0", &format!("local={}", cluster.display()), &folder.join("state"), &["--engine", "fifo"])
}

#[test]
fn jobs_that_can_never_run_are_refused_with_what_there_is_and_hold_nothing() {
    let folder = TempDir::new().unwrap();
    let daemon = daemon(folder.path());
    // The manager tells its servers a moment after the start.
    while daemon.json(&["nodes"])["nodes"].as_array().is_none_or(|nodes| nodes.len() < 2) {
        sleep(Duration::from_millis(50));
    }
    let submit = |text: &str| {
        let path = folder.path().join("job.toml");
        let mode = if text.contains("server =") { "sync" } else { "allreduce" };
        fs::write(&path, format!("name = \"net\"\nmode = \"{mode}\"\n{text}\n")).unwrap();
        daemon.ask(&["submit", path.to_str().unwrap()])
    };
    for (text, words) in [
        ("worker = { cpu = 1, command = \"no-such-program x\" }", &["worker.command", "no-such-program", "PATH"][..]),
        ("worker = { cpu = 1, command = \"/etc/passwd\" }", &["worker.command", "/etc/passwd", "can't be run"]),
        ("worker = { cpu = 1, command = \"python 'x\" }", &["worker.command", "missing closing quote"]),
        (
            "worker = { cpu = 1, command = \"true\" }\nconstraints = { labels = { zone = \"west\" } }",
            &["no server has zone = west; there are north, south"],
        ),
        (
            "worker = { cpu = 1, command = \"true\" }\nconstraints = { labels = { disk = \"ssd\" } }",
            &["no server has a label disk"],
        ),
        (
            "worker = { cpu = 1, command = \"true\" }\nserver = { cpu = 1, command = \"no-such\" }",
            &["server.command", "no-such"],
        ),
        ("worker = { cpu = 9, command = \"true\" }", &["needs 9 cpu on one server; the largest has 4"]),
    ] {
        refuses(&submit(text), 1, words);
    }
    assert_eq!(daemon.json(&["jobs", "--all"])["jobs"].as_array().unwrap().len(), 0);
    // The server's program is the worker's.
    assert!(submit("worker = { cpu = 1, command = \"true\" }\nserver = { cpu = 1 }").status.success());
    daemon.works(&["cancel", "net"]);
    assert!(
        submit("worker = { cpu = 1, command = \"true\" }\nconstraints = { labels = { zone = \"south\" } }")
            .status
            .success()
    );
}

#[test]
fn the_build_is_told() {
    let output = Command::new(env!("CARGO_BIN_EXE_trainmaster")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("trainmaster {} (", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains(std::env::consts::ARCH) && text.contains("train)"), "{text}");
}

#[test]
fn a_daemon_that_does_not_answer_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let ask = |args: &[&str]| trainmaster(&[&["--server", &address], args].concat()).output().unwrap();
    let late = ["Timeout expired", "--answer-timeout gives it more"];
    refuses(&ask(&["--answer-timeout", "300ms", "jobs"]), 3, &late);
    refuses(&ask(&["wait", "net", "--timeout", "300ms"]), 1, &["timed out; not ended: net"]);
    refuses_usage(&ask(&["jobs", "--answer-timeout", "0s"]), "0ms must be at least 1ms");
    let by_variable = |value: &str, args: &[&str]| {
        let mut command = trainmaster(&[&["--server", &address], args].concat());
        command.env("TRAINMASTER_ANSWER_TIMEOUT", value).output().unwrap()
    };
    refuses_usage(&by_variable("soon", &["status"]), "soon");
    refuses(&by_variable("300ms", &["wait", "net", "--timeout", "10m"]), 3, &late);
}

/// Refuses a command line, with the usage.
#[track_caller]
fn refuses_usage(output: &Output, word: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains(word), "{text}");
}

#[test]
fn https_to_a_port_without_tls_is_named() {
    let folder = TempDir::new().unwrap();
    let daemon = Served::start(&folder.path().join("state"), &[]);
    let url = daemon.url.replace("http://", "https://");
    refuses(&trainmaster(&["--server", &url, "jobs"]).output().unwrap(), 3, &["it speaks without TLS; write http://"]);
}

#[test]
fn certificates_that_have_run_out_or_are_for_others_are_named() {
    let folder = TempDir::new().unwrap();
    for (name, host, years, hint) in [
        ("old", "localhost", [2000, 2001], None),
        ("new", "localhost", [2900, 2901], Some("its certificate isn't valid yet")),
        ("other", "other.example.org", [2000, 2900], Some("call it by a name in its certificate")),
    ] {
        let [cert, key, state] = ["pem", "key", "state"].map(|end| folder.path().join(format!("{name}.{end}")));
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
        let pair = KeyPair::generate().unwrap();
        fs::write(&cert, params.self_signed(&pair).unwrap().pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let [cert, key] = [&cert, &key].map(|path| path.to_str().unwrap());
        let files = ["--tls-cert", cert, "--tls-key", key];
        let Some(hint) = hint else {
            let refused = Served::command("127.0.0.1:0", "none", &state, &files).output().unwrap();
            refuses(&refused, 1, &[cert, "it has expired"]);
            continue;
        };
        let daemon = Served::start(&state, &files);
        let url = daemon.url.replace("127.0.0.1", "localhost");
        refuses(&trainmaster(&["--server", &url, "--ca", cert, "jobs"]).output().unwrap(), 3, &[hint]);
    }
}
