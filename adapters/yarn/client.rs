//! `trainmaster yarn …`: applications, over the ResourceManager's REST API.

use std::{
    env, fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use prost::Message as _;
use reqwest::Method;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime;
use tonic::{Code, Status};
use trainmaster_core::{JobSpec, job::LONGEST_FILE, text::hex};
use trainmaster_manager::{AdapterCommand, CommandAnswer, Daemon as _, DaemonAddress, Remote};
use trainmaster_net::secret;

use super::{
    amounts,
    cluster_state::{Resource, SECRET_TAG},
    config::{Api, Config, Master},
    jobfile, rest,
    secret::SecretHash,
    translator::alone,
};

/// The variable with the configuration file's path.
const CONFIG: &str = "TRAINMASTER_YARN";
const MAIN: &str = "io.trainmaster.yarn.master.Main";
/// A lost ApplicationMaster is started again, unless this number was lost …
const ATTEMPTS: u32 = 2;
/// … within this time in milliseconds.
const FAILURES_COUNT_FOR: u32 = 600_000;

/// The commands' descriptions for hosts.
pub const COMMANDS: &[AdapterCommand] = &[
    AdapterCommand {
        name: "submit",
        arguments: "FILE",
        about: "submit a job file to YARN, as an application; the file that TRAINMASTER_YARN names says where and how",
        asks_daemon: true,
        run: |arguments, daemon| {
            let [file] = arguments else { bail!("submit takes one FILE") };
            let mut text = String::new();
            // With one byte beyond the limit, the job file's reader reports that the text is too long.
            let read = |file: fs::File| file.take(LONGEST_FILE as u64 + 1).read_to_string(&mut text);
            fs::File::open(file).and_then(read).with_context(|| format!("{file} can't be read"))?;
            submit(&config()?, &user()?, &text, daemon).with_context(|| file.clone())
        },
    },
    AdapterCommand {
        name: "kill",
        arguments: "APPLICATION",
        about: "kill an application on YARN, which cancels its job",
        asks_daemon: false,
        run: |arguments, _| {
            let [application] = arguments else { bail!("kill takes one APPLICATION") };
            kill(&config()?, &user()?, application)
        },
    },
];

fn config() -> Result<Config> {
    match env::var_os(CONFIG) {
        Some(file) => Ok(Config::load(Path::new(&file))?),
        None => bail!("{CONFIG} isn't set; name a yarn.toml with resourcemanager and [master]"),
    }
}

/// The user name for YARN, if it has no authentication.
pub(super) fn user() -> Result<String> {
    let named = ["HADOOP_USER_NAME", "USER"].iter().find_map(|name| env::var(name).ok());
    let user = match named {
        Some(user) => user,
        None => logged_in().context("neither HADOOP_USER_NAME nor USER says who you are, and id doesn't either")?,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    if user.is_empty() || !user.chars().all(plain) {
        bail!("user {user:?}: allowed are letters, digits, '.', '_', '-' and '@'");
    }
    Ok(user)
}

fn logged_in() -> Result<String> {
    let said = Command::new("id").arg("-un").output()?;
    Ok(String::from_utf8(said.stdout)?.trim_end().to_owned())
}

fn submit(config: &Config, user: &str, text: &str, daemon: &DaemonAddress) -> Result<CommandAnswer> {
    let spec = jobfile::read(text, user, "", config.accounts).map_err(|problem| anyhow!(problem))?;
    if config.master.classpath.is_empty() {
        bail!("master.classpath isn't set; say where the nodes have the ApplicationMaster");
    }
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random).map_err(|_| anyhow!("no random bits for a secret"))?;
    let secret = hex(&random);
    let created = call(config, Method::POST, &format!("apps/new-application?user.name={user}"), String::new())?;
    let New { application, largest } = serde_json::from_slice(&created).context("the ResourceManager's answer")?;
    let hand_in = |spec: &JobSpec| {
        let request = submission(config, &application, spec, text, &secret);
        call(config, Method::POST, &format!("apps?user.name={user}"), request.to_string()).map(drop)
    };
    let (name, job) = match config.api {
        Api::PlugIns => {
            hand_in(&spec)?;
            (spec.name, None)
        }
        // No plug-in asks the daemon, so the client does.
        Api::Rest => {
            amounts::check_size(&spec, &largest.into_wire()).map_err(|problem| anyhow!(problem))?;
            let scheduler = Scheduler::new(daemon)?;
            let (job, spec) = scheduler.register(&config.name, &application, spec)?;
            if let Err(error) = hand_in(&spec) {
                return Err(match scheduler.cancel(job) {
                    Ok(()) => error,
                    Err(left) => error.context(format!("job {job} is left at the scheduler ({left:#})")),
                });
            }
            (spec.name, Some(job))
        }
    };
    Ok(CommandAnswer {
        text: format!("{application} ({name}) submitted"),
        json: match job {
            None => json!({ "application": application, "name": name }),
            Some(job) => json!({ "application": application, "name": name, "job": job }),
        },
    })
}

/// The daemon from the command line.
struct Scheduler<'a> {
    daemon: &'a DaemonAddress,
    token: Option<String>,
}

impl<'a> Scheduler<'a> {
    fn new(daemon: &'a DaemonAddress) -> Result<Self> {
        let read = |path: &PathBuf| secret::read(path).map_err(|problem| anyhow!("token file {problem}"));
        Ok(Self { daemon, token: daemon.token_file.as_ref().map(read).transpose()? })
    }

    /// Needs a Tokio runtime.
    fn remote(&self) -> Result<Remote> {
        let DaemonAddress { address, ca, certificate, .. } = self.daemon;
        Ok(Remote::new(address, self.token.as_deref(), ca.as_deref(), certificate.as_ref())?)
    }

    fn said(&self, status: &Status) -> anyhow::Error {
        anyhow!("the scheduler at {}: {}", self.daemon.address, status.message())
    }

    /// Submits an application's job, if it would be admitted. Returns its number and the submitted specification, which
    /// has another name if the job's name was taken.
    fn register(&self, cluster: &str, application: &str, mut spec: JobSpec) -> Result<(u64, JobSpec)> {
        apart(async {
            let remote = self.remote()?;
            // A name that another job has is no reason to reject the job.
            let own = JobSpec { name: jobfile::numbered(&spec.name, application), ..spec.clone() };
            let verdict = remote.admit(&own).await.map_err(|status| self.said(&status))?;
            if !verdict.admitted {
                bail!("Refused by Trainmaster: {}", verdict.reason);
            }
            let mut asked = remote.submit(&spec, cluster, application).await;
            if asked.as_ref().is_err_and(|status| status.code() == Code::AlreadyExists) {
                spec = own;
                asked = remote.submit(&spec, cluster, application).await;
            }
            let job = asked.map_err(|status| self.said(&status))?;
            Ok((job, spec))
        })
    }

    fn cancel(&self, job: u64) -> Result<()> {
        apart(async { self.remote()?.cancel(job).await.map_err(|status| self.said(&status)) })
    }
}

/// Runs in a thread of its own, because hosts may be inside another runtime.
fn apart<T: Send>(calling: impl Future<Output = Result<T>> + Send) -> Result<T> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::scope(|scope| scope.spawn(|| runtime.block_on(calling)).join().expect("calling doesn't panic"))
}

#[derive(Deserialize)]
struct New {
    #[serde(rename = "application-id")]
    application: String,
    #[serde(rename = "maximum-resource-capability", default)]
    largest: Resource,
}

fn submission(config: &Config, application: &str, spec: &JobSpec, text: &str, secret: &str) -> Value {
    let Master { java, classpath, memory, vcores, .. } = &config.master;
    // By default, Java uses up to a quarter of the machine's memory, and NodeManagers would kill it.
    let heap = memory * 3 / 4;
    // It mostly waits, so that optimised code would cost more time and memory than it saves.
    let java = format!("{java} -Xmx{heap}m -XX:+UseSerialGC -XX:TieredStopAtLevel=1");
    let command = format!("{java} -cp {classpath} {MAIN} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr");
    let alone = BASE64.encode(alone(spec, config.ttl).encode_to_vec());
    let environment = [
        ("TRAINMASTER_JOB", jobfile::encode(text)),
        ("TRAINMASTER_SECRET", secret.to_owned()),
        ("TRAINMASTER_ALONE", alone),
    ];
    let environment = environment.map(|(key, value)| json!({ "key": key, "value": value }));
    // The REST API doesn't return environments.
    let tags = match config.api {
        Api::PlugIns => Vec::new(),
        Api::Rest => vec![format!("{SECRET_TAG}{}", SecretHash::of(secret).hex())],
    };
    json!({
        "application-id": application,
        "application-name": spec.name,
        "application-type": "TRAINMASTER",
        "application-tags": { "tag": tags },
        "queue": spec.queue,
        "max-app-attempts": ATTEMPTS,
        "attempt-failures-validity-interval": FAILURES_COUNT_FOR,
        "keep-containers-across-application-attempts": true,
        "resource": { "memory": memory, "vCores": vcores },
        "am-container-spec": {
            "commands": { "command": command },
            "environment": { "entry": environment },
        },
    })
}

fn kill(config: &Config, user: &str, application: &str) -> Result<CommandAnswer> {
    if !rest::is_application(application) {
        bail!("{application:?} is no application's id, such as application_1700000000000_0001");
    }
    let path = format!("apps/{application}/state?user.name={user}");
    call(config, Method::PUT, &path, json!({ "state": "KILLED" }).to_string())?;
    Ok(CommandAnswer { text: format!("{application} is being killed"), json: json!({ "application": application }) })
}

fn call(config: &Config, method: Method, path: &str, json: String) -> Result<Vec<u8>> {
    let site = config.site().ok_or_else(|| anyhow!("resourcemanager isn't set; say where its REST API is"))?;
    let path = format!("/ws/v1/cluster/{path}");
    let answer = apart(async { Ok(rest::call(site, method, &path, json).await) })?;
    Ok(answer.map_err(|problem| anyhow!(problem.to_string()))?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::super::config::Accounts;
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        sync::mpsc,
        thread,
    };

    use super::{super::wire, *};

    const JOB: &str = "name = \"mnist\"\nqueue = \"dl\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\n";

    /// A ResourceManager with these answers in sequence. Returns its configuration, and the requests that it gets.
    fn manager(answers: &'static [(&'static str, &'static str)]) -> (Config, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, asked) = mpsc::channel();
        thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut text, mut some) = (String::new(), [0; 4096]);
                loop {
                    let read = stream.read(&mut some).unwrap();
                    text += std::str::from_utf8(&some[..read]).unwrap();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                        break;
                    }
                }
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).unwrap();
                sender.send(text).unwrap();
            }
        });
        let text = format!("resourcemanager = {url:?}\nmaster = {{ classpath = \"/m.jar\" }}");
        (Config::parse(&text, "test").unwrap(), asked)
    }

    fn nowhere() -> DaemonAddress {
        DaemonAddress { address: "http://127.0.0.1:1".into(), token_file: None, ca: None, certificate: None }
    }

    const NEW: (&str, &str) =
        ("200 OK", r#"{"application-id": "application_1_0002", "maximum-resource-capability": {}}"#);

    #[test]
    fn a_job_is_submitted_as_an_application() {
        let (config, asked) = manager(&[NEW, ("202 Accepted", "")]);
        let answer = submit(&config, "alice", JOB, &nowhere()).unwrap();
        assert_eq!(answer.text, "application_1_0002 (mnist) submitted");
        assert!(asked.recv().unwrap().starts_with("POST /ws/v1/cluster/apps/new-application?user.name=alice HTTP/1.1"));
        let asked = asked.recv().unwrap();
        let (head, body) = asked.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /ws/v1/cluster/apps?user.name=alice "), "{head}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["application-type"], &body["queue"]), (&json!("TRAINMASTER"), &json!("dl")));
        let master = &body["am-container-spec"];
        let command = master["commands"]["command"].as_str().unwrap();
        let java = "java -Xmx768m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp /m.jar io.trainmaster.yarn.master.Main ";
        assert!(command.starts_with(java), "{command}");
        let entries = &master["environment"]["entry"];
        assert_eq!((&entries[0]["key"], &entries[1]["key"]), (&json!("TRAINMASTER_JOB"), &json!("TRAINMASTER_SECRET")));
        let job = jobfile::read(entries[0]["value"].as_str().unwrap(), "alice", "", Accounts::Yarn).unwrap();
        assert_eq!(job.name, "mnist");
        assert_eq!(entries[1]["value"].as_str().unwrap().len(), 32);
        assert_eq!(entries[2]["key"], json!("TRAINMASTER_ALONE"));
        let alone = BASE64.decode(entries[2]["value"].as_str().unwrap()).unwrap();
        let alone = wire::Orders::decode(&*alone).unwrap();
        assert_eq!((alone.name.as_str(), alone.slots.len(), alone.ttl_ms), ("mnist", 1, 15_000));
        assert_eq!(alone.environment["TRAINMASTER_MODE"], "allreduce");
        assert!(!alone.environment.contains_key("TRAINMASTER_FEED"));
        assert_eq!((alone.slots[0].allocation_request, &*alone.slots[0].node), (0x7fff_ffff_0000_0000, ""));
        assert_eq!(alone.slots[0].resource["vcores"], 1);
    }

    #[test]
    fn a_rejection_says_why() {
        const NO: &str = r#"{"RemoteException": {
            "exception": "BadRequestException", "message": "Refused by Trainmaster: too dear"}}"#;
        let (config, _asked) = manager(&[NEW, ("400 Bad Request", NO)]);
        assert_eq!(
            submit(&config, "alice", JOB, &nowhere()).unwrap_err().to_string(),
            "Refused by Trainmaster: too dear"
        );
        let (config, _asked) = manager(&[("403 Forbidden", "<html>")]);
        let error = submit(&config, "alice", JOB, &nowhere()).unwrap_err().to_string();
        assert!(error.contains("new-application") && error.contains("403"), "{error}");
        let error = submit(&config, "alice", "name = 1", &nowhere()).unwrap_err().to_string();
        assert!(error.contains("job file"), "{error}");
        let bare = Config::parse("", "test").unwrap();
        assert!(submit(&bare, "alice", JOB, &nowhere()).unwrap_err().to_string().contains("master.classpath"));
        assert!(kill(&bare, "alice", "application_1_1").unwrap_err().to_string().contains("resourcemanager"));
    }

    #[test]
    fn without_plug_ins_the_scheduler_is_asked_before_yarn_is() {
        let (config, asked) = manager(&[NEW]);
        let config = Config { api: Api::Rest, ..config };
        let error = submit(&config, "alice", JOB, &nowhere()).unwrap_err().to_string();
        assert!(error.starts_with("the scheduler at http://127.0.0.1:1: "), "{error}");
        assert_eq!(asked.iter().count(), 1, "YARN isn't told of it");
        // The response with the maximum container is sufficient to refuse a job that can't fit.
        const SMALL: (&str, &str) = (
            "200 OK",
            r#"{"application-id": "application_1_0002", "maximum-resource-capability": {"memory": 1, "vCores": 1,
            "resourceInformations": {"resourceInformation": [{"name": "vcores", "units": "", "value": 1}]}}}"#,
        );
        let (config, _asked) = manager(&[SMALL]);
        let config = Config { api: Api::Rest, ..config };
        let large = JOB.replace("cpu = 1", "cpu = 2");
        let error = submit(&config, "alice", &large, &nowhere()).unwrap_err().to_string();
        assert!(error.contains("vcores 2 in one container; the largest has 1"), "{error}");
        // The secret's hash is transferred in a tag.
        let spec = jobfile::read(JOB, "alice", "", Accounts::Yarn).unwrap();
        let tags = submission(&config, "application_1_0002", &spec, JOB, "abc")["application-tags"]["tag"].clone();
        let tag = tags[0].as_str().unwrap();
        assert!(tag.len() <= 100 && tag.to_lowercase() == tag, "{tag}");
        let hash = SecretHash::parse(tag.strip_prefix(SECRET_TAG).unwrap()).unwrap();
        assert!(hash.matches("abc"));
    }

    #[test]
    fn an_application_is_killed() {
        let (config, asked) = manager(&[("202 Accepted", r#"{"state": "ACCEPTED"}"#)]);
        kill(&config, "bob", "application_1_0002").unwrap();
        let asked = asked.recv().unwrap();
        assert!(asked.starts_with("PUT /ws/v1/cluster/apps/application_1_0002/state?user.name=bob "), "{asked}");
        assert!(asked.ends_with(r#"{"state":"KILLED"}"#), "{asked}");
        for wrong in ["", "mnist", "application_1", "application_1_2/../x", "application_é_1"] {
            assert!(kill(&config, "bob", wrong).unwrap_err().to_string().contains("no application's id"), "{wrong}");
        }
    }
}
