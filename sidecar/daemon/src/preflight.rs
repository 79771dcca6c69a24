//! Checks of the files without which a daemon doesn't start, for `doctor`.

use std::{io, path::Path};

use trainmaster_net::{Tls, secret};

use super::{
    access::ADMIN_TOKEN,
    config::Config,
    store::{FILE, JournalFile},
};

/// A file with which a daemon with this configuration wouldn't start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableFile {
    /// `admin token`, `certificate` or `journal`.
    pub what: &'static str,
    /// The problem, with the file's name.
    pub problem: String,
}

/// The unusable ones of the administrator's token, the certificate and the journal. Files that only another user can
/// read are left out. The journal is read whole, unless a daemon is using it.
pub fn unusable_files(config: &Config, in_use: bool) -> Vec<UnusableFile> {
    let made = config.state_dir.join(ADMIN_TOKEN);
    let admin = match &config.admin_token_file {
        Some(file) if !is_hidden(file) => secret::read(file).map(drop),
        None if is_there(&made) => secret::read(&made).map(drop),
        Some(_) | None => Ok(()),
    };
    let certificate = match &config.tls {
        Some(tls) if !is_hidden(&tls.cert) && !is_hidden(&tls.key) => Tls::read(tls.files()).map(drop),
        Some(_) | None => Ok(()),
    };
    let journal = match !in_use && is_there(&config.state_dir.join(FILE)) {
        true => JournalFile::read(&config.state_dir).map(drop).map_err(|error| error.to_string()),
        false => Ok(()),
    };
    let checks =
        [("admin token", admin), ("certificate", certificate.map_err(|error| error.to_string())), ("journal", journal)];
    checks.into_iter().filter_map(|(what, check)| Some(UnusableFile { what, problem: check.err()? })).collect()
}

/// Whether only another user can read a file.
fn is_hidden(path: &Path) -> bool {
    secret::open_file(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && !is_hidden(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_daemon_refuses_is_found_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(folder.path());
        let found =
            |config: &Config| -> Vec<_> { unusable_files(config, false).into_iter().map(|found| found.what).collect() };
        assert_eq!(found(&config), Vec::<&str>::new());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let journal = folder.path().join(FILE);
        for broken in ["", "neither", "redb\u{1a}\n"] {
            fs::write(&journal, broken).unwrap();
            assert_eq!(found(&config), ["journal"], "{broken:?}");
        }
        fs::remove_file(&journal).unwrap();
        fs::create_dir(&journal).unwrap();
        assert_eq!(found(&config), ["journal"]);
        assert_eq!(unusable_files(&config, true), [], "the daemon that uses it has read it");
        fs::remove_dir(&journal).unwrap();
        fs::write(folder.path().join(ADMIN_TOKEN), "").unwrap();
        assert_eq!(found(&config), ["admin token"]);
        let mut config = Config::new(folder.path().join("other"));
        config.admin_token_file = Some("no-such-file".into());
        config.tls = Some(crate::Tls::new("no-such-file", "no-such-file"));
        assert_eq!(found(&config), ["admin token", "certificate"]);
    }
}
