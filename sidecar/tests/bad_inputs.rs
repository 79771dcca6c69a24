//! Mistakes in job files, configurations, adapters' files and flags. Each message names the thing, its value
//! if it has one, and what is allowed.

use std::{fs, process::Command};

use tempfile::TempDir;

/// Runs a command in a folder. Returns the exit code and all of standard error.
fn run(folder: &TempDir, args: &[&str]) -> (i32, String) {
    let program = env!("CARGO_BIN_EXE_trainmaster");
    let output = Command::new(program)
        .args(args)
        .current_dir(folder)
        .env_remove("TRAINMASTER_SERVER")
        .env_remove("TRAINMASTER_TOKEN_FILE")
        .env_remove("TRAINMASTER_CA")
        .env("XDG_STATE_HOME", folder.path())
        .env("TRAINMASTER_LOG", "error")
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Tries each text in a file, and looks for the words in its message.
fn refused(file: &str, args: &[&str], whole: impl Fn(&str) -> String, mistakes: &[(&str, &[&str])]) {
    let folder = TempDir::new().unwrap();
    for (text, words) in mistakes {
        fs::write(folder.path().join(file), whole(text)).unwrap();
        let (code, error) = run(&folder, args);
        assert_eq!(code, 1, "{text}: {error}");
        for word in [file].iter().chain(*words) {
            assert!(error.contains(word), "{text}: {word:?} isn't in: {error}");
        }
        assert!(error.len() < 1200, "{text}: {error}");
    }
}

const DURATION: &str = "write a number with ms, s, m, h or d, such as 20s";
const NAME: &str = "must be 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'";
const SIZE: &str = "write a number with MiB, GiB or TiB, such as 10GiB";
const TEXT: &str = "expected a text in quotes";
const WHOLE: &str = "expected a whole number of 0 or more";

/// Lines of a job file.
const JOBS: [(&str, &[&str]); 49] = [
    ("name = 5", &["line 1", "integer `5`", TEXT]),
    ("name = \"\"", &["name: \"\"", NAME]),
    ("name = \"-x\"", &["name: \"-x\"", "must not start with '-'"]),
    ("name = \"a b\"", &["name: \"a b\"", NAME]),
    ("name = \"17\"", &["name: \"17\"", "put a letter into it"]),
    ("tenant = \"a/b\"", &["tenant: \"a/b\"", NAME]),
    ("queue = \"\"", &["queue: \"\"", NAME]),
    ("colour = \"red\"", &["unknown field `colour`", "`name`, `model`, `tenant`"]),
    ("priority = \"high\"", &["priority", "\"high\"", "expected a whole number"]),
    ("priority = 3000000000", &["`3000000000`", "at most 2147483647"]),
    ("mode = \"ring\"", &["mode", "`ring`", "`sync`, `async`, `allreduce`"]),
    ("resize = \"maybe\"", &["resize", "`maybe`", "`any`, `workers`, `fixed`"]),
    ("batch = 0", &["batch: 0", "at least 1"]),
    ("batch = -1", &["batch: -1", "at least 1"]),
    ("batch = \"big\"", &["batch: \"big\"", "a number of examples, or a table such as"]),
    ("batch = { max = 4096 }", &["batch.size: is missing"]),
    ("batch = { size = 64, most = 3 }", &["batch.most", "allowed are size, min, max, local"]),
    ("batch = { size = 64, max = 8 }", &["batch.max: 8", "at least the submitted batch, 64"]),
    ("examples = -3", &["examples", "`-3`", WHOLE]),
    ("epochs = 0", &["epochs: 0", "at least 1"]),
    ("epochs = \"ten\"", &["epochs", "\"ten\"", WHOLE]),
    ("convergence = { delta = 2.0 }", &["convergence.delta: 2", "from 0 up to 1"]),
    ("convergence = { patience = 0 }", &["convergence.patience: 0", "at least 1"]),
    ("convergence = { max_epoch = 5 }", &["`max_epoch`", "`delta`, `patience`, `max_epochs`"]),
    ("model_size = \"10MBs\"", &["model_size", "\"10MBs\"", SIZE]),
    ("model_size = \"10MB\"", &["model_size", "\"10MB\"", "did you mean \"10MiB\"?"]),
    ("deadline = \"tomorrow\"", &["deadline", "\"tomorrow\"", DURATION]),
    ("deadline = \"-5s\"", &["deadline", "\"-5s\"", "negative", DURATION]),
    ("deadline = \"0s\"", &["deadline: \"0s\"", "above zero"]),
    ("time_limit = \"0s\"", &["time_limit: \"0s\"", "above zero"]),
    ("time_limit = 5", &["time_limit", "integer `5`", "a duration in quotes, such as \"20s\""]),
    ("restart_cost = \"fast\"", &["restart_cost", "\"fast\"", DURATION]),
    ("accuracy = 1.5", &["accuracy: 1.5", "from 0 to 1"]),
    ("accuracy = \"high\"", &["accuracy", "\"high\"", "expected a number"]),
    ("stop = \"never\"", &["stop", "`never`", "`epochs`, `optimal`, `accuracy`"]),
    ("launcher = \"mpirun\"", &["launcher: \"mpirun\"", "\"torchrun\" or \"none\""]),
    ("elastic = \"rubber\"", &["elastic: \"rubber\"", "\"in_place\", \"restart\" or \"fixed\""]),
    ("nproc_per_node = 0", &["nproc_per_node: \"0\"", "from 1 to 1024"]),
    ("workdir = 3", &["workdir", "integer `3`", TEXT]),
    ("env = { PATH = 5 }", &["PATH", "integer `5`", TEXT]),
    ("env = { \"A=B\" = \"x\" }", &["env: \"A=B\"", "letters, digits and _"]),
    ("env = { RANK = \"1\" }", &["env: RANK", "sets it"]),
    ("partitions = 0", &["partitions: 0", "at least 1"]),
    ("dataset = { chunks = 0, batches_per_chunk = 1, epochs = 1 }", &["dataset.chunks: 0", "at least 1"]),
    ("dataset = { chunks = 5 }", &["dataset", "missing field `batches_per_chunk`"]),
    ("utility = { kind = \"x\" }", &["utility", "`x`", "`sigmoid`, `constant`, `linear`, `step`, `table`"]),
    ("profile = [{ p = 1, w = 1, speed = -1.0 }]", &["profile[0]", "speed = -1", "a speed above 0"]),
    ("topology = { within = \"planet\" }", &["topology", "`within`", "`require` or `prefer`"]),
    ("parallel = { tensor = 0 }", &["parallel", "`tensor`", "`tp`, `pp`, `ep`"]),
];

/// Tables of a job's workers.
const WORKERS: [(&str, &[&str]); 18] = [
    ("5", &["worker = 5", "expected a table"]),
    ("{ cpu = 1, command = \"python 'x\" }", &["worker.command", "missing closing quote"]),
    ("{}", &["worker.cpu", "give at least one resource"]),
    ("{ cpu = 0 }", &["worker.cpu", "give at least one resource"]),
    ("{ cpu = -1 }", &["worker.cpu: \"-1\"", "negative", "write a number such as 2"]),
    ("{ cpu = \"many\" }", &["worker.cpu: \"many\"", "write a number such as 2"]),
    ("{ gpu = 1.5 }", &["worker.gpu: 1.5", "a whole number or a fraction of one device"]),
    ("{ \"gpu:\" = 1 }", &["worker.gpu:", "allowed are gpu, \"gpu:<type>\""]),
    ("{ \"gpu:a|\" = 1 }", &["worker.gpu: \"gpu:a|\"", "2 to 8 types, such as"]),
    ("{ memory = 5 }", &["worker.memory: \"5\"", "the unit is missing", SIZE]),
    ("{ memory = \"5XB\" }", &["worker.memory: \"5XB\"", "unknown unit", SIZE]),
    ("{ bandwidth = \"1GiB\" }", &["worker.bandwidth: \"1GiB\"", "Mbit or Gbit"]),
    ("{ cpu = 1, comand = \"x\" }", &["worker.comand", "requested, sizes and command"]),
    ("{ cpu = 1, command = 3 }", &["worker.command: 3", "must be a string"]),
    ("{ cpu = 1, min = 0 }", &["worker.max: min = 0", "1 ≤ min ≤ max ≤ 10000"]),
    ("{ cpu = 1, min = 5, max = 2 }", &["worker.max: min = 5, max = 2", "1 ≤ min ≤ max ≤ 10000"]),
    ("{ cpu = 1, max = 99999999 }", &["max = 99999999", "1 ≤ min ≤ max ≤ 10000"]),
    ("{ cpu = 1, requested = 9, max = 2 }", &["worker.requested: 9", "from min = 1 to max = 2"]),
];

/// Configurations.
const CONFIGURATIONS: [(&str, &[&str]); 33] = [
    ("[scheduler.parameters]\ninterval = \"1000d\"", &["parameters.interval: \"1000d\"", "at most \"365d\""]),
    ("[journal]\nhistory_bytes = \"64MB\"", &["history_bytes", "\"64MB\"", "did you mean \"64MiB\"?"]),
    ("[limits]\njob_bytes_per_second = -5", &["job_bytes_per_second", "`-5`", "such as \"64MiB\""]),
    ("listen = \"nowhere\"", &["listen: \"nowhere\"", "such as \"127.0.0.1:7070\""]),
    ("listen = 5", &["listen", "integer `5`", TEXT]),
    ("listen = ", &["line 1", "string values must be quoted"]),
    ("adapters = \"local\"", &["adapters", "\"local\"", "expected a list"]),
    ("grace = \"0\"", &["grace", "\"0\"", "the unit is missing", DURATION]),
    ("grace = \"soon\"", &["grace", "\"soon\"", DURATION]),
    ("orphan_grace = 5", &["orphan_grace", "integer `5`", "a duration in quotes"]),
    ("plan_ttl = \"forever\"", &["plan_ttl", "\"forever\"", DURATION]),
    ("state_dir = 5", &["state_dir", "integer `5`", TEXT]),
    ("end_jobs = \"yes\"", &["end_jobs", "\"yes\"", "expected true or false"]),
    ("metrics = \"shut\"", &["metrics", "\"shut\"", "\"token\" or \"open\""]),
    ("tls = { cert = \"a\" }", &["tls", "missing field `key`"]),
    ("scheduler_file = \"/nowhere.toml\"", &["scheduler_file", "/nowhere.toml", "No such file"]),
    ("colour = 1", &["unknown field `colour`", "`listen`, `state_dir`"]),
    ("[log]\nlevel = \"loud\"", &["unknown field `log`", "`listen`, `state_dir`"]),
    ("[scheduler]\nengine = \"best\"", &["[scheduler]", "engine \"best\"", "optimus, optimus-paper, goodput"]),
    ("[scheduler]\nparameters = { interval = \"0s\" }", &["parameters.interval: \"0s\"", "above zero such as"]),
    ("[scheduler]\nparameters = { interval = 5 }", &["parameters.interval: 5", "above zero such as"]),
    (
        "[scheduler]\nparameters = { intervall = \"5s\" }",
        &["parameters.intervall", "it has interval, min_interval, young_job_factor"],
    ),
    ("[scheduler.stability]\nmin_run = \"x\"", &["min_run", "\"x\"", DURATION]),
    ("[scheduler.stability]\nmin_runs = \"5s\"", &["`min_runs`", "`min_run`, `rescales_per_hour`, `payback`"]),
    ("[scheduler.tenants.vision]\ngpu = -1", &["vision: gpu: \"-1\"", "negative", "write a number such as 2"]),
    ("[scheduler.tenants.vision]\ngpu = \"all\"", &["vision: gpu: \"all\"", "write a number such as 2"]),
    ("[scheduler.queues.\"\"]\ngpu = 1", &["\"\": a queue or tenant has a name"]),
    ("[limits]\njobs = \"many\"", &["jobs", "\"many\"", WHOLE]),
    ("[limits]\nreports_per_second = 5000000000", &["`5000000000`", "at most 4294967295"]),
    ("[limits]\nconnection = 5", &["`connection`", "`connections`, `lists`"]),
    ("[decision]\nlimit = \"soon\"", &["limit", "\"soon\"", DURATION]),
    ("[journal]\nbatch = 5", &["`batch`", "`snapshot_records`, `snapshot_bytes`"]),
    ("[[[[[[[[[[", &["line 1", "at most 8 deep"]),
];

/// Configurations that are read, but not allowed.
const WRONG: [(&str, &[&str]); 22] = [
    ("[scheduler.stability]\nmin_run = \"1000d\"", &["scheduler.stability.min_run: \"1000d\"", "at most \"30d\""]),
    ("[scheduler.stability]\npayback = 1e300", &["scheduler.stability.payback: ", "at most 1000"]),
    ("[scheduler]\nrefusal_backoff = \"900d\"", &["scheduler.refusal_backoff: \"900d\"", "at most \"1d\""]),
    ("grace = \"2d\"", &["grace: \"2d\"", "at most \"1d\""]),
    ("orphan_grace = \"1000d\"", &["orphan_grace: \"1000d\"", "at most \"365d\""]),
    ("[journal]\nhistory_bytes = \"2000GiB\"", &["journal.history_bytes: 2147483648000", "at most 1099511627776"]),
    ("[limits]\nconnections = 5000000", &["limits.connections: 5000000", "at most 1000000"]),
    ("listen = \"0.0.0.0:7070\"", &["listen: 0.0.0.0:7070", "needs TLS"]),
    ("names = [\"a b\"]", &["names: \"a b\"", "a host's name, such as"]),
    ("advertise = \"nowhere\"", &["advertise: \"nowhere\"", "such as \"http://node1:7070\""]),
    ("names = [\"*.example.org\"]", &["names: \"*.example.org\"", "a host's name, such as"]),
    ("[limits]\nconnections = 0", &["limits.connections: 0", "at least 1"]),
    ("[limits]\nlists = 0", &["limits.lists: 0", "at least 1"]),
    ("[limits]\nrequest_bytes = 0", &["limits.request_bytes: 0", "at least 1"]),
    ("[limits]\nreports_per_second = 0", &["limits.reports_per_second: 0", "at least 1"]),
    ("[limits]\nwatchers_per_job = 0", &["limits.watchers_per_job: 0", "at least 1"]),
    ("[journal]\nsnapshot_records = 0", &["journal.snapshot_records: 0", "at least 1"]),
    ("otlp = \"collector:4317\"", &["otlp: \"collector:4317\"", "\"http://127.0.0.1:4317\""]),
    ("[journal]\nwaiting_bytes = 0", &["journal.waiting_bytes: 0", "at least 1"]),
    ("[journal]\nwrite_limit = \"0s\"", &["journal.write_limit: \"0s\"", "above zero"]),
    ("[decision]\nlimit = \"0s\"", &["decision.limit: \"0s\"", "above zero"]),
    ("[decision]\nsteps = 999", &["decision.steps: 999", "at least 1000"]),
];

/// Files of the adapter `local`.
const CLUSTERS: [(&str, &[&str]); 10] = [
    ("", &["server", "none"]),
    ("[[server]]\nname = 5", &["name", "integer `5`", TEXT]),
    ("[[server]]\nname = \"a\"\ngpu = -1", &["gpu = -1", "1024"]),
    ("[[server]]\nname = \"a\"\ngpu = 5000", &["gpu", "5000", "1024"]),
    ("[[server]]\nname = \"a\"\ncpu = \"x\"", &["cpu", "\"x\"", "write a number such as 2"]),
    ("[[server]]\nname = \"a\"\nmemory = 5", &["memory", "5", SIZE]),
    ("[[server]]\nname = \"a\"\ncount = 0", &["count", "0: allowed are 1 to"]),
    ("[[server]]\nname = \"a\"\ncolour = 1", &["`colour`", "`name`, `gpu`, `cpu`"]),
    ("grace = \"x\"\n[[server]]\nname = \"a\"", &["grace", "\"x\"", DURATION]),
    ("oversubscribe = 0.5\n[[server]]\nname = \"a\"", &["oversubscribe", "0.5"]),
];

/// Flags. Exit code 2 is wrong usage, 1 a file or value, 3 a daemon that isn't there.
const FLAGS: [(&[&str], i32, &[&str]); 25] = [
    (&["frobnicate"], 2, &["'frobnicate'", "--help"]),
    (&["jobs", "--frobnicate"], 2, &["'--frobnicate'", "--help"]),
    (&["jobs", "--state", "asleep"], 2, &["'asleep'", "--state", "waiting, paused, starting, running"]),
    (&["jobs", "--sort", "colour"], 2, &["'colour'", "--sort", "job, name, state"]),
    (&["jobs", "--json=5"], 2, &["'5'", "--json"]),
    (&["jobs", "--server", "ftp://x"], 2, &["--server", "\"ftp://x\"", "write http://host:port"]),
    (&["jobs", "--server", "http://127.0.0.1:1"], 3, &["http://127.0.0.1:1", "trainmaster serve", "--server"]),
    (
        &["jobs", "--token-file", "/nowhere", "--server", "http://127.0.0.1:1"],
        1,
        &["--token-file /nowhere", "No such file"],
    ),
    (&["jobs", "--ca", "/nowhere", "--server", "https://127.0.0.1:1"], 1, &["--ca /nowhere", "No such file"]),
    (&["wait", "a", "--timeout", "soon"], 2, &["--timeout", "\"soon\"", DURATION]),
    (&["wait"], 2, &["<JOB>", "--help"]),
    (&["submit"], 2, &["<FILE>", "--help"]),
    (&["submit", "missing.toml"], 1, &["missing.toml", "No such file"]),
    (&["submit", "."], 1, &[". can't be read", "Is a directory"]),
    (&["mode", "fast"], 2, &["'fast'", "active, shadow, paused"]),
    (&["serve", "--set", "interval"], 2, &["'interval'", "KEY=VALUE"]),
    (&["serve", "--set", "limitz.jobs=3"], 1, &["limitz: unknown key", "limits", "stability"]),
    (&["serve", "--set", "interval=fast", "--print-config"], 1, &["parameters.interval: \"fast\"", "such as \"30s\""]),
    (
        &["serve", "--set", "stability.min_runs=5s", "--print-config"],
        1,
        &["--set: scheduler.stability.min_runs: ", "`min_run`"],
    ),
    (&["serve", "--engine", "best", "--print-config"], 1, &["engine \"best\"", "optimus"]),
    (&["serve", "--listen", "x"], 1, &["listen: \"x\"", "such as \"127.0.0.1:7070\""]),
    (&["token", "create", "a", "--role", "god"], 2, &["'god'", "admin, submit, manager, read, metrics"]),
    (&["engines", "best"], 1, &["engine \"best\"", "optimus"]),
    (&["nodes", "--label", "x"], 2, &["'x'", "--label", "such as zone=a"]),
    (&["man", "/nowhere"], 1, &["/nowhere", "No such file"]),
];

#[test]
fn mistakes_in_job_files_are_named() {
    let submit = ["submit", "job.toml", "--server", "http://127.0.0.1:1"];
    let whole = |line: &str| {
        let name = if line.starts_with("name") { "" } else { "name = \"a\"\n" };
        let mode = if line.starts_with("mode") { "" } else { "mode = \"allreduce\"\n" };
        format!("{line}\n{name}{mode}worker = {{ cpu = 1, max = 2 }}\n")
    };
    refused("job.toml", &submit, whole, &JOBS);
    let worker = |table: &str| format!("name = \"a\"\nmode = \"allreduce\"\nworker = {table}\n");
    refused("job.toml", &submit, worker, &WORKERS);
}

#[test]
fn mistakes_in_configurations_are_named() {
    let print = ["serve", "--config", "trainmaster.toml", "--print-config"];
    refused("trainmaster.toml", &print, str::to_owned, &CONFIGURATIONS);
    for (text, words) in WRONG {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("trainmaster.toml"), text).unwrap();
        let (code, error) = run(&folder, &print);
        assert_eq!(code, 1, "{text}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    }
    let serve = ["serve", "--adapter", "local=cluster.toml", "--state-dir", "state", "--listen", "127.0.0.1:0"];
    refused("cluster.toml", &serve, str::to_owned, &CLUSTERS);
}

#[test]
fn mistakes_in_commands_are_named() {
    let folder = TempDir::new().unwrap();
    for (args, expected, words) in FLAGS {
        let (code, error) = run(&folder, args);
        assert_eq!(code, expected, "{args:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{args:?}: {error}");
    }
}
