//! Secrets in files. They are created for their owner alone, and refused if others can read them.

use std::{
    env,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use rustix::fs::OFlags;

/// Minimum number of characters of a token.
const SHORTEST: usize = 16;
/// Maximum bytes of a file.
const LONGEST: u64 = 64 << 10;
/// Minimum interval between checks of a file.
const LOOK: Duration = Duration::from_secs(1);

/// The folder of a user's own data: `$XDG_STATE_HOME/trainmaster`, or `.local/state/trainmaster` in the home folder.
pub fn default_state_dir() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
    // A relative path isn't allowed there.
    let base = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home);
    base.unwrap_or_else(|| "/var/lib".into()).join("trainmaster")
}

/// A file with a token. It is read again when it changes. If it can't be read, the last token stays valid.
pub struct TokenFile {
    path: PathBuf,
    token: String,
    read: SystemTime,
    seen: Option<Seen>,
    looked: Instant,
}

impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl TokenFile {
    /// Opens an existing file.
    ///
    /// # Errors
    /// As [`read`].
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let seen = seen(&path);
        let token = read(&path)?;
        Ok(Self { path, token, read: SystemTime::now(), seen, looked: Instant::now() })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The token that was read last.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Time of the last read.
    pub fn read_at(&self) -> SystemTime {
        self.read
    }

    /// Reads the file again if it changed, at most once a second. Returns whether the token changed.
    pub fn look(&mut self) -> bool {
        if self.looked.elapsed() < LOOK {
            return false;
        }
        self.looked = Instant::now();
        let seen = seen(&self.path);
        if seen == self.seen {
            return false;
        }
        self.seen = seen;
        match read(&self.path) {
            Ok(token) => {
                tracing::info!(file = %self.path.display(), "the token was read anew");
                (self.token, self.read) = (token, SystemTime::now());
                true
            }
            Err(error) => {
                tracing::error!(error, "the token that was read before stands");
                false
            }
        }
    }

    /// Takes a token that was just written to the file.
    pub fn written(&mut self, token: &str) {
        (self.token, self.seen, self.read) = (token.to_owned(), seen(&self.path), SystemTime::now());
    }
}

/// Identity of a file's version, including its mode: inode, change time, length.
pub(crate) type Seen = (u64, i64, i64, u64);

pub(crate) fn seen(path: &Path) -> Option<Seen> {
    let data = fs::metadata(path).ok()?;
    Some((data.ino(), data.ctime(), data.ctime_nsec(), data.len()))
}

/// Creates a random token, with a word that names its purpose.
///
/// # Errors
/// The system has no random bits.
pub fn draw(word: &str) -> Result<String, String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| format!("no random bits for a token: {error}"))?;
    Ok(format!("trainmaster-{word}-{}", random.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

/// Ensures that a file has a token. If it doesn't exist, it is created with its folders.
///
/// # Errors
/// The file can't be created.
pub fn make(path: &Path, word: &str) -> Result<(), String> {
    if path.exists() {
        return Ok(());
    }
    let fail = |error: io::Error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        make_folder(folder).map_err(fail)?;
    }
    write(path, &format!("{}\n", draw(word)?)).map_err(fail)
}

/// Creates a folder and its parents, readable by the owner alone. An existing folder stays unchanged.
///
/// # Errors
/// The folder can't be created.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Opens a regular file for reading. A pipe isn't waited for.
///
/// # Errors
/// It can't be opened, or is no regular file.
pub fn open_file(path: &Path) -> io::Result<fs::File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
    }
}

/// Reads a secret from a file, without the line's end.
///
/// # Errors
/// The file can't be read, others can read or change it, or its content isn't a token.
pub fn read(path: &Path) -> Result<String, String> {
    let read = || {
        let text = read_text(path)?;
        let secret = text.trim();
        check(secret)?;
        Ok(secret.to_owned())
    };
    read().map_err(|problem: String| format!("{}: {problem}", path.display()))
}

/// Reads a file with a token or a private key.
///
/// # Errors
/// The file can't be read, others can read or change it, or it is longer than 64 KiB. The error doesn't name the file.
pub fn read_text(path: &Path) -> Result<String, String> {
    let fail = |error: io::Error| error.to_string();
    let file = open_file(path).map_err(fail)?;
    let data = file.metadata().map_err(fail)?;
    // A group may have read access, because an administrator has to set that up.
    if data.mode() & 0o027 != 0 {
        let (mode, shown) = (data.mode() & 0o777, path.display());
        return Err(format!("it has mode {mode:o}, so others can read or change it; run chmod 600 {shown}"));
    }
    if data.len() > LONGEST {
        return Err(format!("it has {} bytes; at most {LONGEST} are read", data.len()));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

/// Checks whether a text can be a token.
///
/// # Errors
/// The allowed form.
pub fn check(secret: &str) -> Result<(), String> {
    if secret.is_empty() {
        return Err("it is empty; it needs a token".into());
    }
    if !secret.chars().all(|c| c.is_ascii_graphic()) {
        return Err("a token must be one word of visible ASCII".into());
    }
    let length = secret.len();
    if !(SHORTEST..=1024).contains(&length) {
        return Err(format!("a token must have {SHORTEST} to 1024 characters, not {length}"));
    }
    Ok(())
}

/// Writes a file that only its owner can read. It replaces the old file atomically.
///
/// # Errors
/// The folder can't be written.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}.new"));
    let written = || -> io::Result<()> {
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(folder)?.sync_all()
    };
    written().inspect_err(|_| drop(fs::remove_file(&fresh)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "correct-horse-battery\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap(), "correct-horse-battery");
        for (mode, fine) in
            [(0o640, true), (0o400, true), (0o644, false), (0o604, false), (0o620, false), (0o602, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = read(&path);
            assert_eq!(read.is_ok(), fine, "{mode:o}: {read:?}");
            assert!(fine || read.unwrap_err().contains("chmod 600"));
        }
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&*pipe, folder.path(), Path::new("/dev/zero")] {
            assert_eq!(read_text(path).unwrap_err(), "it is no file", "{}", path.display());
        }
    }

    #[test]
    fn invalid_tokens_are_reported_without_their_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (text, problem) in [
            ("", "empty"),
            ("short", "16"),
            ("two words of a token here", "one word"),
            (&"x".repeat(2000), "1024"),
            ("caf\u{e9}-caf\u{e9}-caf\u{e9}-caf\u{e9}", "ASCII"),
        ] {
            write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains(problem) && (text.is_empty() || !error.contains(text)), "{error}");
        }
        assert!(read(folder.path()).unwrap_err().contains("is no file"));
        assert!(read(&folder.path().join("none")).unwrap_err().contains("none"));
    }

    #[test]
    fn a_token_is_created_once_and_read_again_after_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/token");
        make(&path, "test").unwrap();
        let mut file = TokenFile::open(path.clone()).unwrap();
        let first = file.token().to_owned();
        assert!(first.starts_with("trainmaster-test-") && first.len() > 40);
        assert!(!format!("{file:?}").contains(&first));
        make(&path, "test").unwrap();
        let later = |file: &mut TokenFile| {
            file.looked -= LOOK;
            file.look()
        };
        assert!(!later(&mut file), "it is as it was");
        write(&path, "correct-horse-battery-staple\n").unwrap();
        assert!(!file.look(), "it was looked at just now");
        assert!(later(&mut file));
        assert_eq!(file.token(), "correct-horse-battery-staple");
        write(&path, "bad").unwrap();
        assert!(!later(&mut file));
        assert_eq!(file.token(), "correct-horse-battery-staple");
        // A file that others can read is refused until its mode is right. That changes nothing but the mode.
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        write(&path, "another-horse-battery").unwrap();
        mode(0o644);
        assert!(!later(&mut file));
        mode(0o600);
        assert!(later(&mut file));
        assert_eq!(file.token(), "another-horse-battery");
        write(&path, "no-horse-no-battery\n").unwrap();
        file.written("no-horse-no-battery");
        assert!(!later(&mut file) && file.token() == "no-horse-no-battery");
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "first").unwrap();
        // A file that remained after a crash, or that another user created.
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join(".token.new")).unwrap();
        write(&path, "second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
