//! All tokens: the administrator's in its own file, the others as hashes.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use trainmaster_core::{
    Span,
    text::{from_hex, hex},
};
use trainmaster_feed::hash_of;
use trainmaster_host::bounded::take_text;
use trainmaster_net::{
    TokenFile,
    secret::{self, open_file},
};

use super::{Role, is_name};

/// The file of the administrator's token in the state folder. The configuration may name another file.
pub const ADMIN_TOKEN: &str = "admin.token";
/// The file with the other tokens' names, roles and hashes.
const FILE: &str = "tokens.json";
/// Maximum number of tokens.
const MOST: usize = 10_000;
/// Maximum bytes of their file.
const LONGEST: u64 = 16 << 20;
/// The name of the administrator's own token.
const ADMIN: &str = "admin";
/// Maximum lifetime of a token in milliseconds.
const LONGEST_LIFE: i64 = 10 * 365 * 86_400_000;

/// The stored form of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    name: String,
    #[serde(flatten)]
    role: Role,
    hash: String,
    created_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_ms: Option<i64>,
    /// The previous secret, and its end in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<(String, i64)>,
}

/// The information about a token for callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) created_ms: i64,
    pub(crate) expires_ms: Option<i64>,
    pub(crate) used_ms: Option<i64>,
}

/// Errors of a change of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// The request is invalid.
    Wrong(String),
    /// The token doesn't exist.
    Missing(String),
    /// A token with this name exists.
    Exists(String),
    /// The file can't be written.
    Disk(String),
}

/// All tokens. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Tokens(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The table that every call reads. Its lock isn't held during disk writes.
    table: Mutex<Table>,
    /// The lock of a change of tokens.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Table {
    file: PathBuf,
    admin: TokenFile,
    admin_hash: [u8; 32],
    entries: BTreeMap<String, Entry>,
    /// The name and the end in time for each hash.
    by_hash: HashMap<[u8; 32], (String, Option<i64>)>,
    used: HashMap<String, i64>,
}

impl Tokens {
    /// Reads the tokens. The administrator's token is in the named file, or in the state folder, where it is made if it
    /// is missing.
    ///
    /// # Errors
    /// A file can't be read or made, is readable by others, or is invalid.
    pub(crate) fn open(state_dir: &Path, admin: Option<&Path>) -> Result<Self, String> {
        let own = state_dir.join(ADMIN_TOKEN);
        if admin.is_none() {
            secret::make(&own, "admin")?;
        }
        let admin = TokenFile::open(admin.map_or(own, Path::to_owned))?;
        let file = state_dir.join(FILE);
        let mut table = Table {
            entries: load(&file)?,
            file,
            admin_hash: hash_of(admin.token()),
            admin,
            by_hash: HashMap::new(),
            used: HashMap::new(),
        };
        table.index();
        Ok(Self(Arc::new(Shared { table: Mutex::new(table), turn: Mutex::default() })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change leaves it consistent.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of the administrator's token.
    pub(crate) fn admin_file(&self) -> PathBuf {
        self.table().admin.path().to_owned()
    }

    /// The role and the name of a token. O(1).
    pub(crate) fn find(&self, token: &str) -> Option<(Role, String)> {
        self.find_hash(hash_of(token))
    }

    /// The role and the name of the token with this hash.
    pub(crate) fn find_hash(&self, hash: [u8; 32]) -> Option<(Role, String)> {
        self.look(hash, true)
    }

    /// Whether the token with this hash is valid. It isn't recorded as a use.
    pub(crate) fn counts(&self, hash: [u8; 32]) -> bool {
        self.look(hash, false).is_some()
    }

    fn look(&self, hash: [u8; 32], is_use: bool) -> Option<(Role, String)> {
        let mut table = self.table();
        if table.admin.look() {
            table.admin_hash = hash_of(table.admin.token());
        }
        if hash == table.admin_hash {
            if is_use {
                table.note(ADMIN);
            }
            return Some((Role::Admin, "the admin token".into()));
        }
        let (name, until) = table.by_hash.get(&hash)?.clone();
        let entry = table.entries.get(&name)?;
        let now = now_ms();
        if [until, entry.expires_ms].into_iter().flatten().any(|until| until <= now) {
            return None;
        }
        let role = entry.role.clone();
        if is_use {
            table.note(&name);
        }
        Some((role, format!("token {name}")))
    }

    /// All tokens, the administrator's first.
    pub(crate) fn list(&self) -> Vec<Known> {
        let table = self.table();
        let since = table.admin.read_at().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let admin = Known {
            name: ADMIN.into(),
            role: Role::Admin,
            created_ms: i64::try_from(since).unwrap_or(i64::MAX),
            expires_ms: None,
            used_ms: table.used.get(ADMIN).copied(),
        };
        let known = |entry: &Entry| entry.known(&table.used);
        std::iter::once(admin).chain(table.entries.values().map(known)).collect()
    }

    /// Makes a token and returns it with its secret.
    ///
    /// # Errors
    /// See [`TokenError`]. Nothing changes after an error.
    pub(crate) fn create(
        &self,
        name: &str,
        role: Role,
        lasts_ms: i64,
        given: &str,
    ) -> Result<(Known, String), TokenError> {
        if !is_name(name) || name == ADMIN {
            let problem =
                format!("name: {name:.128?} must be 1 to 128 letters, digits, '.', '_' or '-', and not {ADMIN:?}");
            return Err(TokenError::Wrong(problem));
        }
        if !(0..=LONGEST_LIFE).contains(&lasts_ms) {
            return Err(TokenError::Wrong(format!("lasts: {} must be from 0 (for good) to ten years", Span(lasts_ms))));
        }
        let turn = self.turn();
        let secret = self.secret(role.kind().word(), given)?;
        let (known, count) = {
            let table = self.table();
            (table.entries.contains_key(name), table.entries.len())
        };
        if known {
            let problem = format!("there is a token {name:?}; rotate it, or revoke it first");
            return Err(TokenError::Exists(problem));
        }
        if count >= MOST {
            return Err(TokenError::Wrong(format!("there are {MOST} tokens, and that is the most")));
        }
        let created_ms = now_ms();
        let expires_ms = (lasts_ms > 0).then(|| created_ms.saturating_add(lasts_ms));
        let hash = hex(&hash_of(&secret));
        let entry = Entry { name: name.to_owned(), role, hash, created_ms, expires_ms, before: None };
        Ok((self.put(&turn, entry)?, secret))
    }

    /// Replaces the secret of a token. The old one stays valid for a while.
    ///
    /// # Errors
    /// See [`TokenError`]. Nothing changes after an error.
    pub(crate) fn rotate(&self, name: &str, overlap_ms: i64, given: &str) -> Result<(Known, String), TokenError> {
        if !(0..=LONGEST_LIFE).contains(&overlap_ms) {
            return Err(TokenError::Wrong(format!("overlap: {} must be from 0 to ten years", Span(overlap_ms))));
        }
        if name == ADMIN {
            if overlap_ms > 0 {
                let problem = "overlap: the administrator's token is in one file, which can't hold two; leave it out";
                return Err(TokenError::Wrong(problem.into()));
            }
            let _turn = self.turn();
            let secret = self.secret(ADMIN, given)?;
            let path = self.admin_file();
            let written = secret::write(&path, &format!("{secret}\n"));
            written.map_err(|error| TokenError::Disk(format!("{}: {error}", path.display())))?;
            let mut table = self.table();
            table.admin.written(&secret);
            table.admin_hash = hash_of(&secret);
            drop(table);
            let known = self.list().swap_remove(0);
            return Ok((known, secret));
        }
        let turn = self.turn();
        let Some(old) = self.table().entries.get(name).cloned() else { return Err(missing(name)) };
        let secret = self.secret(old.role.kind().word(), given)?;
        let before = (overlap_ms > 0).then(|| (old.hash.clone(), now_ms().saturating_add(overlap_ms)));
        let known = self.put(&turn, Entry { hash: hex(&hash_of(&secret)), before, ..old })?;
        Ok((known, secret))
    }

    /// Revokes a token at once, even if the file can't be written. Returns the reason why it can't.
    ///
    /// # Errors
    /// No token has this name.
    pub(crate) fn revoke(&self, name: &str) -> Result<Option<String>, TokenError> {
        if name == ADMIN {
            return Err(TokenError::Wrong("the administrator's token can be rotated, not revoked".into()));
        }
        let Some(taken) = self.table().take(name) else { return Err(missing(name)) };
        let turn = self.turn();
        let (entries, file) = {
            let mut table = self.table();
            // The previous holder of the lock may have rotated it, or made another token.
            if table.entries.get(name).is_some_and(|entry| entry.created_ms == taken.created_ms) {
                table.take(name);
            }
            (table.entries.clone(), table.file.clone())
        };
        match write(&turn, &file, &entries) {
            Err(TokenError::Disk(problem)) => Ok(Some(problem)),
            written => written.map(|()| None),
        }
    }

    /// Adds an entry to the file, then to the table.
    fn put(&self, turn: &MutexGuard<'_, ()>, entry: Entry) -> Result<Known, TokenError> {
        let (mut entries, file) = {
            let table = self.table();
            (table.entries.clone(), table.file.clone())
        };
        entries.insert(entry.name.clone(), entry.clone());
        write(turn, &file, &entries)?;
        let mut table = self.table();
        let known = entry.known(&table.used);
        table.entries.insert(entry.name.clone(), entry);
        table.index();
        Ok(known)
    }

    /// The given secret, or a new one.
    fn secret(&self, word: &str, given: &str) -> Result<String, TokenError> {
        if given.is_empty() {
            return secret::draw(word).map_err(TokenError::Disk);
        }
        secret::check(given).map_err(|problem| TokenError::Wrong(format!("secret: {problem}")))?;
        let table = self.table();
        let hash = hash_of(given);
        if hash == table.admin_hash || table.by_hash.contains_key(&hash) {
            return Err(TokenError::Wrong("secret: another token has it".into()));
        }
        Ok(given.to_owned())
    }
}

/// Writes all entries. The caller holds the lock of changes.
fn write(_: &MutexGuard<'_, ()>, file: &Path, entries: &BTreeMap<String, Entry>) -> Result<(), TokenError> {
    let text = serde_json::to_string_pretty(&entries.values().collect::<Vec<_>>()).expect("they are plain data");
    if text.len() as u64 >= LONGEST {
        let problem = format!("the file of all tokens would have more than {LONGEST} bytes; revoke some first");
        return Err(TokenError::Wrong(problem));
    }
    let written = secret::write(file, &format!("{text}\n"));
    written.map_err(|error| TokenError::Disk(format!("{}: {error}", file.display())))
}

impl Table {
    /// Removes a token, if it exists.
    fn take(&mut self, name: &str) -> Option<Entry> {
        let taken = self.entries.remove(name)?;
        self.index();
        Some(taken)
    }

    fn index(&mut self) {
        self.by_hash.clear();
        for entry in self.entries.values() {
            let hashes = [Some((&entry.hash, None)), entry.before.as_ref().map(|(hash, until)| (hash, Some(*until)))];
            for (hash, until) in hashes.into_iter().flatten() {
                if let Some(hash) = from_hex(hash) {
                    self.by_hash.insert(hash, (entry.name.clone(), until));
                }
            }
        }
        let entries = &self.entries;
        self.used.retain(|name, _| name == ADMIN || entries.contains_key(name));
    }

    /// Minutes are precise enough for display.
    fn note(&mut self, name: &str) {
        let minute = now_ms() / 60_000 * 60_000;
        match self.used.get_mut(name) {
            Some(used) => *used = minute,
            None => _ = self.used.insert(name.to_owned(), minute),
        }
    }
}

impl Entry {
    fn known(&self, used: &HashMap<String, i64>) -> Known {
        Known {
            name: self.name.clone(),
            role: self.role.clone(),
            created_ms: self.created_ms,
            expires_ms: self.expires_ms,
            used_ms: used.get(&self.name).copied(),
        }
    }
}

/// Number of tokens in the file of a state folder, beside the administrator's. `None`: this user can't read the folder.
///
/// # Errors
/// The file is invalid, so that a daemon doesn't start with it.
pub fn check_tokens(state_dir: &Path) -> Result<Option<usize>, String> {
    let file = state_dir.join(FILE);
    match read_table(&file) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        read => parse(&file, read).map(|entries| Some(entries.len())),
    }
}

fn load(path: &Path) -> Result<BTreeMap<String, Entry>, String> {
    parse(path, read_table(path))
}

fn read_table(path: &Path) -> io::Result<String> {
    open_file(path).and_then(|file| take_text(file, LONGEST))
}

/// The entries of a file. A file that doesn't exist has none.
fn parse(path: &Path, read: io::Result<String>) -> Result<BTreeMap<String, Entry>, String> {
    let shown = path.display();
    let text = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read.map_err(|error| format!("{shown}: {error}"))?,
    };
    let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|error| format!("{shown}: {error}"))?;
    if let Some(entry) = entries.iter().find(|entry| from_hex::<32>(&entry.hash).is_none() || !is_name(&entry.name)) {
        return Err(format!("{shown}: token {:.100?} has no usable name or hash", entry.name));
    }
    Ok(entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect())
}

fn missing(name: &str) -> TokenError {
    TokenError::Missing(format!("there is no token {name:.128?}"))
}

fn now_ms() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

    use trainmaster_proto::v1::TokenRole;

    use super::*;

    fn kind(found: Option<(Role, String)>) -> Option<&'static str> {
        found.map(|(role, _)| role.kind().word())
    }

    #[test]
    fn a_first_start_makes_the_administrators_token_and_a_second_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let tokens = Tokens::open(&state, None).unwrap();
        let token = secret::read(&state.join(ADMIN_TOKEN)).unwrap();
        assert!(token.starts_with("trainmaster-admin-") && token.len() == 18 + 32, "{token}");
        assert_eq!(kind(tokens.find(&token)), Some("admin"));
        assert_eq!(kind(tokens.find("trainmaster-admin-")), None);
        let again = Tokens::open(&state, None).unwrap();
        assert_eq!(kind(again.find(&token)), Some("admin"));
        assert_eq!(again.admin_file(), state.join(ADMIN_TOKEN));
        fs::set_permissions(state.join(ADMIN_TOKEN), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Tokens::open(&state, None).unwrap_err().contains("chmod 600"));
    }

    #[test]
    fn tokens_are_made_rotated_revoked_and_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(folder.path(), None).unwrap();
        let submit = || Role::Submit { tenants: vec!["vision".into()] };
        let (known, secret) = tokens.create("ci", submit(), 0, "").unwrap();
        assert_eq!((known.name.as_str(), known.expires_ms), ("ci", None));
        assert!(secret.starts_with("trainmaster-submit-"));
        assert_eq!(tokens.find(&secret), Some((submit(), "token ci".into())));
        assert!(matches!(tokens.create("ci", submit(), 0, ""), Err(TokenError::Exists(_))));
        for (name, role, lasts, given) in [
            ("", submit(), 0, ""),
            ("a b", submit(), 0, ""),
            ("admin", submit(), 0, ""),
            ("x", submit(), -1, ""),
            ("x", submit(), i64::MAX, ""),
            ("x", submit(), 0, "short"),
            ("x", submit(), 0, &secret),
        ] {
            assert!(matches!(tokens.create(name, role, lasts, given), Err(TokenError::Wrong(_))), "{name} {lasts}");
        }
        let (_, own) = tokens.create("k8s", Role::Read, 60_000, "a-secret-from-elsewhere").unwrap();
        assert_eq!(kind(tokens.find(&own)), Some("read"));

        // The old secret is valid for a limited time.
        let (_, second) = tokens.rotate("ci", 3_600_000, "").unwrap();
        assert!(tokens.find(&secret).is_some() && tokens.find(&second).is_some());
        let (_, third) = tokens.rotate("ci", 0, "").unwrap();
        assert!(tokens.find(&second).is_none() && tokens.find(&secret).is_none() && tokens.find(&third).is_some());
        assert!(matches!(tokens.rotate("nobody", 0, ""), Err(TokenError::Missing(_))));

        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(!text.contains(&third) && !text.contains(&own), "only hashes are kept");
        let again = Tokens::open(folder.path(), None).unwrap();
        assert_eq!(again.find(&third), Some((submit(), "token ci".into())));
        assert_eq!(again.revoke("ci"), Ok(None));
        assert!(again.find(&third).is_none());
        assert!(matches!(again.revoke("ci"), Err(TokenError::Missing(_))));
        assert!(matches!(again.revoke("admin"), Err(TokenError::Wrong(_))));
        let names: Vec<_> =
            Tokens::open(folder.path(), None).unwrap().list().into_iter().map(|known| known.name).collect();
        assert_eq!(names, ["admin", "k8s"]);
    }

    #[test]
    fn a_token_ends_when_it_was_to() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(folder.path(), None).unwrap();
        let (_, secret) = tokens.create("brief", Role::Read, 1, "").unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(tokens.find(&secret).is_none());
    }

    #[test]
    fn a_full_disk_makes_no_token_and_still_revokes() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let tokens = Tokens::open(&state, None).unwrap();
        let (_, secret) = tokens.create("ci", Role::Read, 0, "").unwrap();
        // The disk behaves as if it were full: no new file can be made.
        fs::rename(&state, folder.path().join("away")).unwrap();
        assert!(matches!(tokens.create("more", Role::Read, 0, ""), Err(TokenError::Disk(_))));
        assert!(matches!(tokens.rotate("ci", 0, ""), Err(TokenError::Disk(_))));
        assert!(tokens.find(&secret).is_some());
        assert!(tokens.revoke("ci").unwrap().is_some_and(|problem| problem.contains(FILE)));
        assert!(tokens.find(&secret).is_none());
    }

    #[test]
    fn the_administrators_file_is_read_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine");
        secret::write(&file, "correct-horse-battery").unwrap();
        let tokens = Tokens::open(&folder.path().join("state"), Some(&file)).unwrap();
        assert!(!folder.path().join("state").join(ADMIN_TOKEN).exists());
        let (before, after) = ("correct-horse-battery", "another-horse-battery-2");
        assert!(tokens.find(before).is_some());
        secret::write(&file, after).unwrap();
        // The file is checked once a second.
        std::thread::sleep(Duration::from_millis(1100));
        assert!(tokens.find(before).is_none() && tokens.find(after).is_some());
        // An invalid file is ignored.
        secret::write(&file, "").unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        assert!(tokens.find(after).is_some());
        let (_, rotated) = tokens.rotate("admin", 0, "").unwrap();
        assert!(tokens.find(&rotated).is_some() && tokens.find(after).is_none());
        assert_eq!(secret::read(&file).unwrap(), rotated);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named() {
        let folder = tempfile::tempdir().unwrap();
        drop(Tokens::open(folder.path(), None).unwrap());
        for text in ["nonsense", "[{}]", r#"[{"name":"a","role":"read","hash":"xyz","created_ms":1}]"#] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert!(Tokens::open(folder.path(), None).unwrap_err().contains(FILE), "{text}");
        }
    }

    #[test]
    fn the_file_and_what_a_token_is_for_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let tenants = |count: usize| (0..count).map(|at| format!("{at:0128}")).collect::<Vec<_>>();
        let role = |count: usize| Role::of(TokenRole::Submit, tenants(count), String::new());
        let problem = role(257).unwrap_err();
        assert!(problem.contains("257 tenants must be at most 256"), "{problem}");
        let full = || role(256).unwrap();
        let tokens = Tokens::open(folder.path(), None).unwrap();
        tokens.create("first", full(), 0, "").unwrap();
        drop(tokens);
        // The file reaches its limit. A token that would exceed it is refused before the write.
        let mut entries: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let each = fs::metadata(&path).unwrap().len();
        for at in 1..LONGEST / each {
            let mut entry = entries[0].clone();
            entry["name"] = format!("n{at}").into();
            entry["hash"] = format!("{at:064x}").into();
            entries.push(entry);
        }
        fs::write(&path, serde_json::to_string_pretty(&entries).unwrap()).unwrap();
        let tokens = Tokens::open(folder.path(), None).unwrap();
        let before = fs::read(&path).unwrap();
        let created: Vec<_> = (0..2).map(|at| tokens.create(&format!("more{at}"), full(), 0, "")).collect();
        let Some(Err(TokenError::Wrong(problem))) = created.last() else { panic!("the file grew beyond its bound") };
        assert!(problem.contains("revoke some first"), "{problem}");
        assert!(fs::metadata(&path).unwrap().len() <= LONGEST && before.len() as u64 > LONGEST - 2 * each);
        drop(tokens);
        fs::File::options().write(true).open(&path).unwrap().set_len(LONGEST + 1).unwrap();
        let problem = Tokens::open(folder.path(), None).unwrap_err();
        assert!(problem.ends_with("tokens.json: it has more than 16777216 bytes"), "{problem}");
        assert_eq!(check_tokens(folder.path()).unwrap_err(), problem);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let problem = check_tokens(folder.path()).unwrap_err();
        assert!(problem.ends_with("tokens.json: it is no file"), "a file that never ends: {problem}");
    }
}
