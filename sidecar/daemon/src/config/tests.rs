use std::fs;

use super::*;

#[test]
fn every_key_is_read() {
    let config = Config::from_toml(
        r#"
        listen = ":7071"
        state_dir = "/s"
        advertise = "http://node1:7071"
        adapters = ["local=a.toml", "other"]
        plan_ttl = "30s"
        grace = "5s"
        end_jobs = true
        orphan_grace = "1m"
        trainer = "/bin/train"
        policy = "none"
        admin_token_file = "/t"
        names = ["scheduler"]
        metrics = "open"
        tls = { cert = "/c", key = "/k", client_ca = "/a" }
        [scheduler]
        engine = "drf"
        stability = "off"
        [decision]
        limit = "500ms"
        steps = 1000
        fits_wait = "1s"
        fits_every = "2s"
        [journal]
        snapshot_records = 10
        snapshot_bytes = 20
        history_bytes = "25MiB"
        waiting_bytes = 30
        write_limit = "4s"
        ended_jobs = 40
        [limits]
        connections = 1
        lists = 5
        request_bytes = 6
        reports_per_second = 2
        watchers_per_job = 3
        job_bytes_per_second = 7
        tenant_bytes_per_second = 8
        jobs = 9
        jobs_per_tenant = 10
        "#,
    )
    .unwrap();
    assert_eq!(config.listen, "127.0.0.1:7071".parse().unwrap());
    assert_eq!(config.settings.engine, "drf");
    assert_eq!(config.policy, Choice::None);
    let adapters = config.adapters.as_ref().unwrap();
    assert_eq!(adapters[0], AdapterChoice { name: "local".into(), config: Some("a.toml".into()) });
    assert_eq!(adapters[1].config, None);
    assert_eq!((config.decision.limit, config.grace), (Duration::from_millis(500), Duration::from_secs(5)));
    let (options, feed, load) = (config.host_options(), config.feed_limits(), config.load_limits());
    assert_eq!(
        (options.tickets.fits_wait, options.tickets.fits_every),
        (Duration::from_secs(1), Duration::from_secs(2))
    );
    assert_eq!((feed.watchers_per_job, feed.ended_jobs, config.limits.connections), (3, 40, 1));
    assert_eq!((options.journal.waiting_bytes, config.journal.history_bytes), (30, 25 << 20));
    assert_eq!(options.journal.write_limit, Duration::from_secs(4));
    assert_eq!((load.lists, load.request_bytes), (5, 6));
    assert_eq!((feed.job_bytes_per_second, feed.tenant_bytes_per_second), (7, 8));
    assert_eq!((options.jobs.all, options.jobs.tenant), (9, 10));
    assert_eq!((config.admin_token_file.clone(), config.metrics_open), (Some("/t".into()), true));
    assert_eq!(config.tls.as_ref().unwrap().client_ca, Some("/a".into()));
    assert_eq!(config.open_doors().len(), 2);
    config.check().unwrap();
}

#[test]
fn settings_that_are_given_leave_the_others_at_their_defaults() {
    let read = |text: &str| Config::from_toml(text).unwrap().settings;
    assert_eq!(read("listen = \":1\""), Settings::default());
    assert_eq!(read("[scheduler]"), Settings::default());
    assert_eq!(read("[scheduler]\nengine = \"optimus\""), Settings::default());
    let given = read("[scheduler.parameters]\nshrink_to_fit = true");
    assert_eq!(given.parameters.len(), 1);
}

#[test]
fn mistakes_are_named() {
    for (text, expected) in [
        ("listen = \"here\"", "listen: \"here\""),
        ("scheduler = { engine = 1 }", "invalid type: integer `1`, expected a text in quotes"),
        ("plan_ttl = \"long\"", "plan_ttl"),
        ("metrics = \"shut\"", "\"shut\" must be"),
        ("[journal]\nrecords = 1", "records"),
    ] {
        let message = Config::from_toml(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_mistake_in_the_schedulers_file_is_named_with_that_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("daemon.toml"), "scheduler_file = \"engine.toml\"").unwrap();
    fs::write(folder.path().join("engine.toml"), "fallback_after = 0").unwrap();
    let message = Config::load(&folder.path().join("daemon.toml")).unwrap_err().to_string();
    for part in ["scheduler_file: ", "engine.toml: ", "line 1", "fallback_after", "0 must be at least 1"] {
        assert!(message.contains(part), "{message:?} should contain {part:?}");
    }
}

#[test]
fn an_open_address_needs_tls() {
    let mut config = Config::new("/s");
    config.listen = "0.0.0.0:7070".parse().unwrap();
    assert!(config.check().unwrap_err().to_string().contains("TLS (tls.cert and tls.key"));
    config.tls = Some(Tls::new("c", "k"));
    config.check().unwrap();
}

#[test]
fn a_port_without_tls_knows_its_names() {
    let mut config = Config::new("/s");
    config.names = vec!["scheduler".into()];
    config.advertise = Some("http://node1.example.org:7071".into());
    let names = config.door().names.unwrap();
    assert!(["scheduler", "node1.example.org"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
    config.tls = Some(Tls::new("c", "k"));
    assert_eq!(config.door().names, None);
}
