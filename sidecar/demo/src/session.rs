//! One engine's run over the workload: a separate daemon, with jobs that are submitted at their arrivals and watched to
//! their end.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow};
use tokio::time::{Instant, sleep, sleep_until};
use trainmaster_core::{JobSpec, Settings};
use trainmaster_daemon::{AdapterChoice, Config, Daemon};
use trainmaster_manager::Adapters;
use trainmaster_proto::{
    job_from_spec,
    v1::{ListRequest, SubmitRequest, jobs_client::JobsClient},
};
use trainmaster_terminal::{
    client::{self, ServerArgs},
    stop::Stop,
};

use super::{
    progress::INTERRUPTED,
    record::{Run, Watch},
    view::View,
};

/// Interval of the samples.
const LOOK: Duration = Duration::from_millis(200);

/// If the demo is killed, its training programs lose the daemon and end after this time.
pub(super) const ORPHAN_GRACE: Duration = Duration::from_secs(10);

/// The plan of a run.
pub(super) struct Plan<'a> {
    pub(super) engine: &'a str,
    pub(super) seed: u64,
    pub(super) adapters: Adapters,
    /// File of the virtual cluster.
    pub(super) cluster: &'a str,
    /// Settings of the daemon.
    pub(super) settings: String,
    /// Arrivals of the jobs in seconds, and their files.
    pub(super) jobs: Vec<(f64, String)>,
    pub(super) trainer: &'a Path,
    pub(super) state_dir: PathBuf,
    pub(super) limit: Duration,
    pub(super) stop: &'a Stop,
}

/// A participant outside the run, called after each sample of the jobs.
pub(super) type Bystander<'a> = &'a mut dyn FnMut(&Watch) -> Result<()>;

/// Runs the plan. The daemon and all its processes have ended when this returns.
pub(super) async fn run(plan: &Plan<'_>, bystander: Bystander<'_>) -> Result<Run> {
    std::fs::create_dir_all(&plan.state_dir)?;
    let cluster = plan.state_dir.join("cluster.toml");
    std::fs::write(&cluster, plan.cluster)?;
    let daemon = Daemon::start(config(plan, cluster)?).await?;
    let run = tokio::select! {
        run = drive(plan, ServerArgs::of(daemon.url(), daemon.admin_token()), bystander) => run,
        () = plan.stop.asked() => Err(anyhow!(INTERRUPTED)),
    };
    // Whatever the result, no process remains.
    daemon.stop().await;
    run
}

async fn drive(plan: &Plan<'_>, server: ServerArgs, bystander: Bystander<'_>) -> Result<Run> {
    let mut client = client::Daemon::connect(&server).await?.jobs();
    let mut arriving: Vec<&(f64, String)> = plan.jobs.iter().collect();
    arriving.sort_by(|mine, theirs| mine.0.total_cmp(&theirs.0));
    let mut arriving = arriving.into_iter().peekable();
    let began = Instant::now();
    let mut watch = Watch::new(now_ms());
    let mut view = View::new(&format!("{}, seed {}: {} jobs arrive", plan.engine, plan.seed, plan.jobs.len()));
    loop {
        while let Some((_, file)) = arriving.next_if(|(time, _)| began.elapsed().as_secs_f64() >= *time) {
            submit(&mut client, file).await?;
        }
        let jobs = client
            .list(ListRequest { all: true, specs: false, ..ListRequest::default() })
            .await
            .context("the daemon doesn't answer")?
            .into_inner()
            .jobs;
        watch.look(now_ms(), jobs);
        bystander(&watch)?;
        view.show(began.elapsed().as_secs_f64(), watch.latest());
        if watch.ended() == plan.jobs.len() || began.elapsed() > plan.limit {
            break;
        }
        let next = began.elapsed() + LOOK;
        let arrival = arriving.peek().map(|(time, _)| Duration::from_secs_f64(*time));
        sleep_until(began + arrival.map_or(next, |arrival| arrival.min(next))).await;
    }
    view.close();
    // The last processes end before the daemon does.
    sleep(LOOK).await;
    Ok(watch.finish(plan.engine, plan.seed, plan.jobs.len(), now_ms()))
}

async fn submit(client: &mut JobsClient<client::Called>, file: &str) -> Result<()> {
    let spec = JobSpec::from_toml(file).with_context(|| format!("the job file {file}"))?;
    let request = SubmitRequest { job: Some(job_from_spec(&spec)), external: None };
    client.submit(request).await.with_context(|| format!("{} was refused", spec.name))?;
    Ok(())
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

fn config(plan: &Plan<'_>, cluster: PathBuf) -> Result<Config> {
    let mut config = Config::new(plan.state_dir.join("daemon"));
    config.listen = ([127, 0, 0, 1], 0).into();
    config.settings = Settings::from_toml(&plan.settings)?;
    config.available = plan.adapters;
    config.adapters = Some(vec![AdapterChoice { name: "local".into(), config: Some(cluster) }]);
    config.end_jobs = true;
    config.orphan_grace = ORPHAN_GRACE;
    config.trainer = Some(plan.trainer.to_owned());
    Ok(config)
}
