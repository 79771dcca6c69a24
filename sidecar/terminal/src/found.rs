//! Discovery files of this user's daemons. `serve` writes them, and the other commands find each daemon's token file
//! with them.
//!
//! A file is locked while its daemon runs. An unlocked file belongs to a daemon that was killed, and is ignored:
//! another user's program could listen at its address now, and would receive the token.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process,
};

use serde::{Deserialize, Serialize};
use tonic::transport::Uri;
use trainmaster_net::secret;

/// Content of a discovery file. It has no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Path of the administrator's token.
    pub token_file: PathBuf,
    /// Path of the certificate authority, for TLS.
    pub ca: Option<PathBuf>,
}

/// The discovery file of the daemon at an address. Dropping it removes the file.
#[derive(Debug)]
pub struct Noted {
    path: PathBuf,
    _lock: File,
}

impl Drop for Noted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Maximum bytes of a discovery file.
const LONGEST: u64 = 64 << 10;

impl Note {
    /// Writes the file, which exists until the result is dropped. Removes files of daemons that were killed.
    ///
    /// # Errors
    /// The folder can't be written. Then users have to name the token file.
    pub fn write(&self, address: &str) -> io::Result<Noted> {
        self.write_in(&folder(), address)
    }

    fn write_in(&self, folder: &Path, address: &str) -> io::Result<Noted> {
        let path = folder.join(key(address).ok_or(io::ErrorKind::InvalidInput)?);
        secret::make_folder(folder)?;
        for note in fs::read_dir(folder)?.flatten() {
            // A file in progress isn't locked yet.
            let is_whole = !note.file_name().as_encoded_bytes().starts_with(b".");
            if is_whole && open(&note.path()).is_some_and(|file| !is_held(&file)) {
                let _ = fs::remove_file(note.path());
            }
        }
        // The file gets its name after it is complete and locked.
        let fresh = folder.join(format!(".{}", process::id()));
        let mut file = File::create(&fresh)?;
        file.lock()?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&fresh, &path)?;
        Ok(Noted { path, _lock: file })
    }

    /// The discovery file of the daemon that runs at an address.
    pub fn find(address: &str) -> Option<Self> {
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
    secret::default_state_dir().join("daemons")
}

/// `127.0.0.1:7070` for `http://localhost:7070`.
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
        // The file of a killed daemon is ignored, and removed at the next start.
        let left = folder.path().join("127.0.0.1:7072");
        fs::write(&left, serde_json::to_vec(&note).unwrap()).unwrap();
        assert_eq!(Note::find_in(folder.path(), "http://127.0.0.1:7072"), None);
        let _noted = note.write_in(folder.path(), "http://127.0.0.1:7070").unwrap();
        assert!(!left.exists());
        assert_eq!(Note::find_in(folder.path(), "http://127.0.0.1:7070"), Some(note));
        assert_eq!(key("https://[::1]:7070").as_deref(), Some("::1:7070"));
    }
}
