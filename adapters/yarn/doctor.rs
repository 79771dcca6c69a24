//! Checks whether a YARN cluster can be used.

use std::{
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
};

use tokio::runtime;
use trainmaster_net::secret;

use super::{
    client,
    config::{Api, Config},
    rest::{self, Found},
    server,
};
use crate::http::Site;
use trainmaster_manager::{Check, Health, Launch};

/// The required settings of the ResourceManager: each with the class that it has to contain.
const PLUG_INS: [(&str, &str); 3] = [
    ("yarn.resourcemanager.scheduler.monitor.policies", "io.trainmaster.yarn.SidecarBridge"),
    ("yarn.scheduler.app-placement-allocator.class", "io.trainmaster.yarn.PlanAllocator"),
    ("yarn.scheduler.queue-placement-rules", "io.trainmaster.yarn.AdmissionRule"),
];
const MONITOR: &str = "yarn.resourcemanager.scheduler.monitor.enable";
const SCHEDULER: &str = "yarn.resourcemanager.scheduler.class";
const PRIORITIES: &str = "yarn.cluster.max-application-priority";
/// Settings of plug-ins and ApplicationMasters: this adapter's address, …
const ADDRESS: &str = "trainmaster.yarn.address";
/// … its certificate authority, and the file with the token.
const CA: &str = "trainmaster.yarn.ca";
const TOKEN: &str = "trainmaster.yarn.token-file";
const DEFAULT_ADDRESS: &str = "127.0.0.1:7071";
const AUTHENTICATION: &str = "hadoop.http.authentication.type";
const RULES: &str = "yarn.acl.enable";
const ADMINS: &str = "yarn.admin.acl";
const LARGEST: [&str; 2] = ["yarn.scheduler.maximum-allocation-mb", "yarn.scheduler.maximum-allocation-vcores"];

/// Checks this adapter's address, certificate and token. If the ResourceManager is configured, also checks its version,
/// its scheduler, and whether its settings include the plug-ins. Changes nothing.
pub fn doctor(config: &Config, launch: &Launch) -> Vec<Check> {
    let mut checks = vec![listen(config, &launch.state_dir), feed(launch)];
    let Some(site) = config.site() else {
        let detail = "not looked at; say where its REST API is (resourcemanager)";
        checks.push(Check::new("resourcemanager", Health::Doubtful, detail.into()));
        return checks;
    };
    // The call runs in its own thread, because hosts may be inside another runtime.
    let looked = thread::scope(|scope| scope.spawn(|| look(site.clone())).join());
    match looked.expect("looking doesn't panic") {
        Ok(found) => {
            let own = secret::read(&server::token_file(config, &launch.state_dir)).ok();
            checks.extend(judge(&site, config, own.as_deref(), &found));
        }
        Err(error) => {
            let detail = format!("{error}; start it, or say where it is (resourcemanager) and who certifies it (ca)");
            checks.push(Check::new("resourcemanager", Health::Bad, detail));
        }
    }
    checks
}

fn look(site: Site) -> Result<Found, String> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime of one thread");
    runtime.block_on(rest::look(site))
}

fn listen(config: &Config, state_dir: &Path) -> Check {
    let address = config.listen;
    let found = |verdict, detail: String| Check::new("listen", verdict, detail);
    // A token file that isn't configured is created at the first start.
    let is_there = config.token_file.is_some() || server::token_file(config, state_dir).exists();
    let token = if is_there { server::token(config, state_dir).map(drop) } else { Ok(()) };
    if let Err(error) = token.and_then(|()| config.tls.as_ref().map(server::tls).transpose()) {
        return found(Health::Bad, error.to_string());
    }
    match TcpListener::bind(address) {
        Ok(_) if address.ip().is_loopback() => {
            let plain = if config.tls.is_none() {
                "; without TLS, whoever listens there while the daemon is down gets the plug-ins' token and plans"
            } else {
                ""
            };
            let detail = format!(
                "{address}: for a ResourceManager and ApplicationMasters on this machine alone; others need another \
                 address and TLS{plain}"
            );
            found(Health::Doubtful, detail)
        }
        Ok(_) => found(Health::Good, format!("{address}, with TLS")),
        // Perhaps by the running daemon.
        Err(_) if TcpStream::connect(address).is_ok() => found(Health::Good, format!("{address} is being served")),
        Err(error) => found(Health::Bad, format!("{address}: {error}; choose another address (listen)")),
    }
}

fn feed(launch: &Launch) -> Check {
    let feed = &launch.feed;
    let host = feed.split("://").nth(1).unwrap_or(feed);
    let is_loopback = ["127.", "localhost", "[::1]"].iter().any(|start| host.starts_with(start));
    if is_loopback {
        let detail = format!("{feed} is this machine only; programs on other nodes need another (advertise)");
        return Check::new("feed", Health::Doubtful, detail);
    }
    Check::new("feed", Health::Good, format!("programs report to {feed}"))
}

/// `own` is the token that this adapter accepts, if it can be read.
fn judge(site: &Site, config: &Config, own: Option<&str>, found: &Found) -> Vec<Check> {
    let mut checks = vec![match found.state.as_str() {
        "STARTED" => Check::new("resourcemanager", Health::Good, format!("{} answers at {site}", found.version)),
        state => Check::new("resourcemanager", Health::Bad, format!("{site}: it is {state}, not STARTED")),
    }];
    if found.settings.is_empty() {
        let detail = format!("{site}/conf doesn't tell them; look at {} yourself", PLUG_INS[0].0);
        checks.push(Check::new("settings", Health::Doubtful, detail));
        return checks;
    }
    let setting = |name: &str| found.setting(name).unwrap_or_default();
    match config.api {
        Api::PlugIns => checks.extend(with_plug_ins(config, own, &setting)),
        Api::Rest => checks.extend(without_plug_ins(config, &setting)),
    }
    let [memory, vcores] = LARGEST.map(setting);
    let detail = format!("{memory} MiB, {vcores} cores at most; jobs that need more of either are refused");
    checks.push(Check::new("containers", Health::Good, detail));
    checks.push(match setting(PRIORITIES).parse::<u32>() {
        Ok(most) if most > 0 => Check::new("priorities", Health::Good, format!("up to {most}")),
        _ => {
            let detail = format!(
                "{PRIORITIES} = {:?}: jobs that are to run may get their ApplicationMasters after those that wait",
                setting(PRIORITIES)
            );
            Check::new("priorities", Health::Doubtful, detail)
        }
    });
    checks
}

/// Checks the scheduler, its plug-ins, and whether they reach this adapter.
fn with_plug_ins<'a>(config: &Config, own: Option<&str>, setting: &impl Fn(&'a str) -> &'a str) -> Vec<Check> {
    let scheduler = setting(SCHEDULER);
    let mut checks = vec![if scheduler.ends_with(".CapacityScheduler") {
        Check::new("scheduler", Health::Good, scheduler.into())
    } else {
        let detail = format!("{SCHEDULER} = {scheduler:?}; the plug-ins need the CapacityScheduler");
        Check::new("scheduler", Health::Bad, detail)
    }];
    let missing: Vec<_> = PLUG_INS
        .into_iter()
        .filter(|(name, class)| !has_class(setting(name), class))
        .map(|(name, class)| format!("{name} = {:?} lacks {class}", setting(name)))
        .chain((setting(MONITOR) != "true").then(|| format!("{MONITOR} = {:?} isn't true", setting(MONITOR))))
        .collect();
    checks.push(if missing.is_empty() {
        Check::new("plug-ins", Health::Good, "all three are in the ResourceManager's settings".into())
    } else {
        let detail = format!(
            "{}; set it and start the ResourceManager anew, or do without them (api = \"rest\")",
            missing.join("; ")
        );
        Check::new("plug-ins", Health::Bad, detail)
    });
    checks.push(reach(config, setting(ADDRESS), !setting(CA).is_empty(), own, setting(TOKEN)));
    checks
}

/// Checks the requirements of the REST API without plug-ins.
fn without_plug_ins<'a>(config: &Config, setting: &impl Fn(&'a str) -> &'a str) -> Vec<Check> {
    let there: Vec<_> = PLUG_INS.into_iter().filter(|(name, class)| has_class(setting(name), class)).collect();
    let plug_ins = if there.is_empty() {
        let detail = "there are none, as api = \"rest\" says: where containers are is the ApplicationMasters' to ask \
            for, and nobody enforces it";
        Check::new("plug-ins", Health::Good, detail.into())
    } else {
        let named: Vec<_> = there.into_iter().map(|(name, class)| format!("{name} has {class}")).collect();
        let detail = format!(
            "{}, but api = \"rest\" doesn't answer it; leave api out, or take it from the ResourceManager's settings",
            named.join("; ")
        );
        Check::new("plug-ins", Health::Bad, detail)
    };
    let (port, told) = (config.listen.port(), setting(ADDRESS));
    let told = if told.is_empty() { DEFAULT_ADDRESS } else { told };
    let is_here = told.rsplit(':').next() == Some(port.to_string().as_str());
    // Only the nodes' own settings count, and they can't be queried.
    let masters = if is_here {
        Check::new("masters", Health::Good, format!("ApplicationMasters look for this adapter at {told}"))
    } else {
        let detail = format!(
            "{ADDRESS} = {told:?} in the ResourceManager's settings; this adapter listens at {}. Let the nodes' \
             yarn-site.xml say so",
            config.listen
        );
        Check::new("masters", Health::Doubtful, detail)
    };
    vec![plug_ins, masters, rights(setting)]
}

/// Checks whether this adapter can kill and move applications, and set priorities.
fn rights<'a>(setting: &impl Fn(&'a str) -> &'a str) -> Check {
    let user = match client::user() {
        Ok(user) => user,
        Err(problem) => return Check::new("rights", Health::Doubtful, format!("{problem:#}")),
    };
    if setting(AUTHENTICATION) == "kerberos" {
        let detail = format!("{AUTHENTICATION} = \"kerberos\", which this adapter doesn't speak");
        return Check::new("rights", Health::Bad, detail);
    }
    if setting(RULES) != "true" {
        let detail = format!("{RULES} isn't true: everybody may kill, move, and set priorities; here as {user:?}");
        return Check::new("rights", Health::Good, detail);
    }
    let admins = setting(ADMINS);
    let users = admins.split(' ').next().unwrap_or_default();
    if users == "*" || users.split(',').any(|admin| admin == user) {
        return Check::new("rights", Health::Good, format!("{user:?} is in {ADMINS}"));
    }
    let detail = format!(
        "{ADMINS} = {admins:?} doesn't name {user:?}: without the right to administer their queues, others' \
         applications are neither killed nor moved, and keep their priorities"
    );
    Check::new("rights", Health::Doubtful, detail)
}

/// Whether a list of classes contains this one.
fn has_class(list: &str, class: &str) -> bool {
    list.split(',').any(|named| named.trim() == class)
}

/// Checks whether the plug-ins, with the ResourceManager's settings, reach this adapter and are admitted.
fn reach(config: &Config, address: &str, has_ca: bool, own: Option<&str>, token_file: &str) -> Check {
    let bad = |detail: String| Check::new("reach", Health::Bad, detail);
    let port = config.listen.port();
    let told = if address.is_empty() { DEFAULT_ADDRESS } else { address };
    if told.rsplit(':').next() != Some(port.to_string().as_str()) {
        return bad(format!("{ADDRESS} = {told:?}; this adapter listens at {}", config.listen));
    }
    match (has_ca, config.tls.is_some()) {
        (false, true) => return bad(format!("{CA} isn't set, though tls is here: the plug-ins are turned away")),
        (true, false) => {
            return bad(format!("{CA} is set, and tls isn't here: the plug-ins would speak TLS to plain text"));
        }
        _ => {}
    }
    if token_file.is_empty() {
        return bad(format!(
            "{TOKEN} isn't set: the plug-ins are turned away; let it name a copy of token_file that the \
             ResourceManager's user alone can read"
        ));
    }
    // The ResourceManager may be on another machine, or another user may own its file.
    match (secret::read(Path::new(token_file)), own) {
        (Ok(shown), Some(own)) if shown == own => Check::new("reach", Health::Good, told.to_owned()),
        (Ok(_), Some(_)) => bad(format!("{TOKEN} = {token_file:?} holds another token than token_file here: copy it")),
        _ => {
            let detail =
                format!("{told}; not known is whether {TOKEN} = {token_file:?} there has the token of token_file here");
            Check::new("reach", Health::Good, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl Fn(&mut Vec<(String, String)>)) -> Found {
        let mut settings: Vec<(String, String)> =
            PLUG_INS.iter().map(|(name, class)| ((*name).into(), format!("other, {class}"))).collect();
        settings.push((MONITOR.into(), "true".into()));
        settings.push((SCHEDULER.into(), "org.apache.CapacityScheduler".into()));
        settings.push((PRIORITIES.into(), "10".into()));
        settings.push((ADDRESS.into(), "rm:7071".into()));
        settings.push((TOKEN.into(), "/t".into()));
        change(&mut settings);
        Found { version: "3.5.0".into(), state: "STARTED".into(), settings }
    }

    fn worst(found: &Found) -> (Health, String) {
        let config = Config::parse("token_file = \"/t\"", "test").unwrap();
        let checks = judge(&Site::plain("rm:8088"), &config, Some("the-adapters-own-token"), found);
        let worst = checks.iter().max_by_key(|check| check.verdict).unwrap();
        (worst.verdict, if worst.verdict == Health::Good { String::new() } else { format!("{worst:?}") })
    }

    #[test]
    fn each_trouble_is_seen() {
        assert_eq!(worst(&found(|_| {})), (Health::Good, String::new()));
        let set = |name: &'static str, value: &'static str| {
            let change = |settings: &mut Vec<(String, String)>| {
                settings.iter_mut().find(|(known, _)| known == name).unwrap().1 = value.into();
            };
            worst(&found(change))
        };
        for (name, value, verdict) in [
            (PLUG_INS[1].0, "", Health::Bad),
            (PLUG_INS[0].0, "SidecarBridge", Health::Bad),
            (ADDRESS, "rm:7072", Health::Bad),
            (TOKEN, "", Health::Bad),
            (MONITOR, "false", Health::Bad),
            (SCHEDULER, "org.apache.FairScheduler", Health::Bad),
            (PRIORITIES, "0", Health::Doubtful),
        ] {
            let (seen, text) = set(name, value);
            assert!(seen == verdict && text.contains(name), "{text}");
        }
        // Both files are on this machine, so their contents are compared.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for (token, verdict) in [("the-adapters-own-token", Health::Good), ("the-token-before-that", Health::Bad)] {
            trainmaster_net::secret::write(&file, token).unwrap();
            let of_it = found(|settings| settings.last_mut().unwrap().1 = file.display().to_string());
            assert_eq!(worst(&of_it).0, verdict, "{token}");
        }
        // Without plug-ins, the expectations are reversed.
        let rest = |change: fn(&mut Vec<(String, String)>)| {
            let config = Config::parse("api = \"rest\"\nresourcemanager = \"http://rm:8088\"", "test").unwrap();
            let checks = judge(&Site::plain("rm:8088"), &config, None, &found(change));
            checks.into_iter().max_by_key(|check| check.verdict).unwrap()
        };
        let there = rest(|_| {});
        assert!(there.verdict == Health::Bad && there.detail.contains("SidecarBridge"), "{there:?}");
        let stock = |settings: &mut Vec<(String, String)>| {
            settings.retain(|(name, _)| PLUG_INS.iter().all(|(known, _)| known != name));
        };
        assert_eq!(rest(stock).verdict, Health::Good);
        let guarded = rest(|settings| {
            settings.retain(|(name, _)| PLUG_INS.iter().all(|(known, _)| known != name));
            settings.extend([(RULES.into(), "true".into()), (ADMINS.into(), "nobody-else wheel".into())]);
        });
        assert!(guarded.verdict == Health::Doubtful && guarded.detail.contains(ADMINS), "{guarded:?}");
        let standby = Found { state: "STANDBY".into(), ..found(|_| {}) };
        assert_eq!(worst(&standby).0, Health::Bad);
        assert_eq!(worst(&found(Vec::clear)).0, Health::Doubtful);
    }
}
