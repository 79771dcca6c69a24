//! Hostile users: no submission or change stops slurmctld, or changes other users' jobs.

use std::{
    fs,
    process::{Command, Output},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use trainmaster_adapters::slurm::comment::Tag;

use super::{
    cluster::available,
    site::{Setup, Site},
};

/// Number of submissions, unless `TRAINMASTER_SUBMISSIONS` sets it. `make test-all` has 2,000. Several run at the same
/// time.
const SUBMISSIONS: usize = 400;
const AT_A_TIME: usize = 4;
/// A hash that belongs to no token.
const FORGED: &str = "abababababababababababababababababababababababababababababababab";

/// Runs a command as the user nobody.
fn nobody(site: &Site, program: &str, arguments: &[&str]) -> Output {
    Command::new("setpriv")
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", program])
        .args(arguments)
        .env("SLURM_CONF", site.folder().join("etc/slurm.conf"))
        .current_dir("/tmp")
        .output()
        .unwrap()
}

struct Random(ChaCha8Rng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// A word once, or thousands of times.
    fn repeated(&mut self, word: &str) -> String {
        let times = [1, 2, 10, 100, 5000, 30_000][self.below(6)];
        word.repeat(times)
    }

    /// A random setting of an attacker.
    fn setting(&mut self) -> String {
        let own = format!("a;@token={FORGED};@begin=0;@asked=0/0/1/0/1/0//;@note=");
        match self.below(14) {
            0 => format!("{}a = 1", self.repeated("a.")),
            1 => format!("labels.x = {own}"),
            2 => format!("worker = {}1{}", self.repeated("{a="), "}".repeat(3)),
            3 => format!("profile = {}", self.repeated("[")),
            4 => format!("utility = {}", self.repeated("{kind=")),
            5 => format!("{} = {}", self.repeated("k"), self.repeated("v")),
            6 => format!("labels.\u{1b}[2J = \u{1b}]0;owned\u{7}{}", self.repeated("\u{202e}")),
            7 => format!("worker.max = {}", self.repeated("9")),
            8 => format!(
                "labels.a{} = {}",
                self.below(1000),
                self.pick(&["'", "\"", "\"\"\"", "';@token=1", "%3B@token=1"])
            ),
            9 => {
                format!("worker.resources.r{} = {}", self.below(1000), self.pick(&["1", "-1", "1e308", "nan", "0x7f"]))
            }
            10 => format!("@token = {FORGED}"),
            11 => "constraints.labels.a = {a={a={a=1}}}".into(),
            12 => format!("{}{}", self.pick(&["worker.gpu = ", "server.cpu = "]), self.below(5)),
            _ => self.pick(&["mode = allreduce", "mode = sync", "worker.gpu = 1", "batch = 64", "tenant = vip"]).into(),
        }
    }

    fn script(&mut self) -> String {
        let lines: String = (0..self.below(6)).map(|_| format!("#TRAINMASTER {}\n", self.setting())).collect();
        let many = if self.below(20) == 0 { "#TRAINMASTER labels.a = 1\n".repeat(4000) } else { String::new() };
        format!("#!/bin/sh\n#TRAINMASTER mode = allreduce\n{lines}{many}exit 0\n")
    }

    fn arguments(&mut self) -> Vec<String> {
        let mut arguments = vec!["--parsable".to_owned(), "--output=/dev/null".into(), "--hold".into()];
        if self.below(3) == 0 {
            // A text on the command line ends at a zero, and Linux limits it to 128 KiB.
            let comment: String = (0..1 + self.below(4)).map(|_| format!(";{}", self.setting())).collect();
            arguments.push(format!("--comment=trainmaster{}", comment.chars().take(30_000).collect::<String>()));
        }
        let more: &[&[&str]] = &[
            &[],
            &["--gres=gpu:1"],
            &["-n", "4294967295"],
            &["-N1-100000"],
            &["-c", "65535", "-n", "65535"],
            &["--gpus-per-task=2147483647", "-n", "7"],
            &["--array=0-3"],
            &["-n2", ":", "-n1"],
            &["--mem-per-cpu=9000000000000"],
            &["-J", "\u{1b}[2J"],
            &["--begin=2099-01-01"],
        ];
        let at = self.below(more.len());
        arguments.extend(more[at].iter().map(|word| (*word).to_owned()));
        arguments
    }
}

#[test]
fn no_submission_ends_slurmctld() {
    if !available() {
        return;
    }
    let site = Setup::default().start();
    let submissions = std::env::var("TRAINMASTER_SUBMISSIONS").map_or(SUBMISSIONS, |many| many.parse().unwrap());
    let pid = || fs::read_to_string(site.folder().join("run/slurmctld.pid")).unwrap();
    let before = pid();
    let (taken, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for part in 0..AT_A_TIME {
            let (site, taken, refused) = (&site, &taken, &refused);
            scope.spawn(move || {
                let mut random = Random(ChaCha8Rng::seed_from_u64(part as u64));
                let folder = tempfile::tempdir().unwrap();
                let script = folder.path().join("job.sh");
                make_readable(folder.path());
                for _ in 0..submissions / AT_A_TIME {
                    fs::write(&script, random.script()).unwrap();
                    let mut arguments = random.arguments();
                    arguments.push(script.to_str().unwrap().into());
                    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                    let output = nobody(site, "sbatch", &arguments);
                    let said = String::from_utf8_lossy(&output.stderr);
                    assert!(!said.contains("Unable to contact") && !said.contains("mistake in the plugin"), "{said}");
                    match output.status.success() {
                        true => taken.fetch_add(1, Ordering::Relaxed),
                        false => refused.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
    });
    let (taken, refused) = (taken.into_inner(), refused.into_inner());
    println!("{taken} submissions were taken, {refused} refused");
    assert!(taken > submissions / 25 && refused > submissions / 2, "{taken} taken, {refused} refused");
    assert_eq!(pid(), before);
    assert!(fs::exists(format!("/proc/{}", before.trim())).unwrap());
    let log = site.log();
    assert!(!log.contains("panic") && !log.contains("mistake in the plugin"));
    assert!(!log.contains("Terminate signal") && log.matches("slurmctld version").count() == 1, "it was started again");
    // Whatever a comment contains, no job has a forged token.
    let shown = site.run("scontrol", &["--oneliner", "show", "job"]);
    let comments: Vec<String> = String::from_utf8_lossy(&shown.stdout)
        .lines()
        .filter_map(|line| Some(line.split_once(" Comment=")?.1.split(" StdErr=").next()?.trim().to_owned()))
        .collect();
    let tags: Vec<Tag> = comments.iter().filter_map(|comment| Tag::read(comment)).collect();
    assert!(tags.len() > submissions / 100, "{} of {} are the plugin's", tags.len(), comments.len());
    assert!(tags.iter().all(|tag| tag.token != [0xab; 32]));
    nobody(&site, "scancel", &["--user=nobody"]);
    // Other users' jobs train on.
    let job = site.submit("after", &super::site::training(2, ""));
    site.completes(&job);
}

#[test]
fn users_can_not_set_reserved_comments() {
    if !available() {
        return;
    }
    let site = Setup::default().start();
    let folder = tempfile::tempdir().unwrap();
    make_readable(folder.path());
    let script = folder.path().join("job.sh");
    fs::write(&script, "#!/bin/sh\nsleep 600\n").unwrap();
    let submit = |comment: &str| {
        let output =
            nobody(&site, "sbatch", &["--parsable", "--hold", "--output=/dev/null", comment, script.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let update = |id: &str, comment: &str| {
        let output = nobody(&site, "scontrol", &["update", &format!("JobId={id}"), &format!("Comment={comment}")]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let comment = |id: &str| site.field(id, "Comment");
    let forged =
        format!("trainmaster;mode=allreduce;worker.cpu=1;tenant=vip;@token={FORGED};@begin=0;@asked=0/0/1/0/1/0//");
    for own in ["--comment=trainmaster;mode=allreduce;worker.gpu=1", "--comment=mine"] {
        let id = submit(own);
        let before = comment(&id);
        for (at, forged) in [forged.as_str(), " trainmaster ;a=1", "trainmaster"].into_iter().enumerate() {
            let (changed, said) = update(&id, forged);
            assert!(!changed && said.contains("permission denied"), "{at}: {said}");
        }
        assert_eq!(comment(&id), before);
    }
    let id = submit("--comment=mine");
    assert!(update(&id, "still mine").0);
    assert!(site.log().contains("may not give job"));
    // An administrator may change it.
    assert!(site.run("scontrol", &["update", &format!("JobId={id}"), "Comment=trainmaster"]).status.success());
    nobody(&site, "scancel", &["--user=nobody"]);
}

/// For the other user.
fn make_readable(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}
