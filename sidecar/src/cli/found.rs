//! Daemons of this user's, as `serve` notes them and the other commands find them: where each one's token is.
//!
//! A note is locked as long as its daemon runs. One that isn't is of a daemon that was killed, and says nothing: who listens
//! at its address now may be somebody else, who would be shown the token.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process,
};

use serde::{Deserialize, Serialize};
use tonic::transport::Uri;
use trainmaster_net::secret;

use crate::daemon::default_state_dir;

/// What is noted of a daemon. No secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The file with its administrator's token.
    pub(super) token_file: PathBuf,
    /// What certifies it, where it speaks TLS.
    pub(super) ca: Option<PathBuf>,
}

/// The note about the daemon at an address, while it stands.
#[derive(Debug)]
pub(super) struct Noted {
    path: PathBuf,
    _lock: File,
}

impl Drop for Noted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Bytes of a note.
const LONGEST: u64 = 64 << 10;

impl Note {
    /// Notes it until what is returned is dropped, and forgets daemons that were killed.
    ///
    /// # Errors
    /// The folder can't be written; the daemon's token can still be named.
    pub(super) fn write(&self, address: &str) -> io::Result<Noted> {
        self.write_in(&folder(), address)
    }

    fn write_in(&self, folder: &Path, address: &str) -> io::Result<Noted> {
        let path = folder.join(key(address).ok_or(io::ErrorKind::InvalidInput)?);
        secret::make_folder(folder)?;
        for note in fs::read_dir(folder)?.flatten() {
            // One that is being written isn't locked yet.
            let is_whole = !note.file_name().as_encoded_bytes().starts_with(b".");
            if is_whole && open(&note.path()).is_some_and(|file| !is_held(&file)) {
                let _ = fs::remove_file(note.path());
            }
        }
        // It takes its name once it is whole and locked.
        let fresh = folder.join(format!(".{}", process::id()));
        let mut file = File::create(&fresh)?;
        file.lock()?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&fresh, &path)?;
        Ok(Noted { path, _lock: file })
    }

    /// What is noted of the daemon that runs at an address.
    pub(super) fn find(address: &str) -> Option<Self> {
        Self::find_in(&folder(), address)
    }

    fn find_in(folder: &Path, address: &str) -> Option<Self> {
        let file = open(&folder.join(key(address)?)).filter(is_held)?;
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

fn open(path: &Path) -> Option<File> {
    File::open(path).ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file()))
}

/// Whether its daemon runs.
fn is_held(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn folder() -> PathBuf {
    default_state_dir().join("daemons")
}

/// `127.0.0.1:7070` of `http://localhost:7070`.
fn key(address: &str) -> Option<String> {
    let uri: Uri = address.parse().ok()?;
    let (host, port) = (uri.host()?, uri.port_u16()?);
    let host = if host == "localhost" { "127.0.0.1" } else { host.trim_matches(['[', ']']) };
    (!host.contains('/') && !host.starts_with('.')).then(|| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_found_under_its_address_while_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let note = Note { token_file: "/s/admin.token".into(), ca: None };
        let noted = note.write_in(folder.path(), "http://127.0.0.1:7070").unwrap();
        assert_eq!(Note::find_in(folder.path(), "http://localhost:7070"), Some(note.clone()));
        assert_eq!(Note::find_in(folder.path(), "http://127.0.0.1:7071"), None);
        assert_eq!(Note::find_in(folder.path(), "http://../x:1"), None);
        drop(noted);
        assert_eq!(Note::find_in(folder.path(), "http://127.0.0.1:7070"), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // What is left of one that was killed is believed by nobody, and goes when the next one starts.
        let left = folder.path().join("127.0.0.1:7072");
        fs::write(&left, serde_json::to_vec(&note).unwrap()).unwrap();
        assert_eq!(Note::find_in(folder.path(), "http://127.0.0.1:7072"), None);
        let _noted = note.write_in(folder.path(), "http://127.0.0.1:7070").unwrap();
        assert!(!left.exists());
        assert_eq!(Note::find_in(folder.path(), "http://127.0.0.1:7070"), Some(note));
        assert_eq!(key("https://[::1]:7070").as_deref(), Some("::1:7070"));
    }
}
