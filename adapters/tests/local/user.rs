//! Jobs of a user other than the daemon's.

use std::{
    env, fs,
    io::Write as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
};

use trainmaster_adapters::local::run;
use trainmaster_proto::v1::ObservedPhase;

use super::support::*;

#[tokio::test]
async fn a_job_of_another_user_cannot_read_what_is_the_daemons() {
    // Only root can start processes as another user.
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        let problem = "adapters/local: jobs of another user: this isn't root";
        assert!(env::var("CI").as_deref() != Ok("true"), "{problem}");
        if let Some(skips) = env::var_os("TRAINMASTER_SKIPS") {
            let mut skips = fs::OpenOptions::new().append(true).create(true).open(skips).unwrap();
            writeln!(skips, "{problem}").unwrap();
        }
        return;
    }
    let state = State::new();
    let daemon = Daemon::start().await;
    let secret = state.path().join("admin.token");
    fs::write(&secret, "the daemon's\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let work = place.path().join("work");
    let adapter = Adapter::on(
        cluster_with(&format!("user = \"nobody\"\nfolder = {work:?}")),
        &daemon.url(),
        options(state.path()),
    );
    let script = format!(
        "set -e; {{ id -un; id -Gn; cat {secret:?} || echo denied; echo $HOME; ls {:?}/jobs || echo hidden; \
         [ $(cut -d' ' -f6 /proc/$$/stat) = $$ ] && echo apart; }} > said 2>/dev/null; \
         echo 1 > $TRAINMASTER_CHECKPOINT_DIR/1; mkdir -p $TRAINMASTER_DEVICE_DIR/0; \
         mkfifo $TRAINMASTER_DEVICE_DIR/0/until; \
         ln -s /dev/zero $TRAINMASTER_DEVICE_DIR/0/more; sleep 0.3; mv said done",
        work
    );
    daemon.plan(1, true, vec![job(7, 1, &script).worker(0)]).await;
    let folder = work.join("jobs/7-job-7");
    let said = read(folder.join("done")).await;
    let group = said.lines().nth(1).unwrap();
    assert_eq!(said, format!("nobody\n{group}\ndenied\n{}\nhidden\napart", folder.display()));
    assert_ne!(group, "root");
    let booked = work.join("devices/a/0");
    let kinds = ["until", "more"].map(|name| booked.join(name).symlink_metadata().unwrap().file_type());
    assert!(kinds[0].is_fifo() && kinds[1].is_symlink(), "the adapter measures on beside these");
    // A second start uses the existing folder, and gives the user nothing that the job may have put there.
    fs::remove_dir_all(folder.join("checkpoints")).unwrap();
    std::os::unix::fs::symlink(state.path(), folder.join("checkpoints")).unwrap();
    daemon.until("completion", |view| view.phase(7) == Some(ObservedPhase::Completed)).await;
    daemon.plan(2, true, vec![job(7, 2, "echo again > again").worker(0)]).await;
    read(folder.join("again")).await;
    assert_eq!(fs::metadata(&secret).unwrap().uid(), 0);
    assert_eq!(fs::metadata(state.path()).unwrap().uid(), 0);
    adapter.end().await;
    state.has_nothing_left();

    // In a folder that the user could replace, root creates and removes nothing.
    std::os::unix::fs::chown(&work, Some(65534), None).unwrap();
    let settings = format!("user = \"nobody\"\nfolder = {work:?}");
    let refused =
        run(cluster_with(&settings), options(state.path()), remote(&daemon.url()), std::future::pending()).await;
    assert!(refused.unwrap_err().to_string().contains("a folder of root's"));
}
