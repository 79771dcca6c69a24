//! `trainmaster certs`: a small certificate authority in a folder, for sites without their own.

use std::{
    fs, io,
    path::{Path, PathBuf, absolute},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};
use serde::{Deserialize, Serialize};
use trainmaster_core::text::hex;
use trainmaster_daemon::{Role, is_name};
use trainmaster_net::{is_host, secret};
use trainmaster_proto::v1::TokenRole;
use trainmaster_terminal::{
    Answered, Failure, Output, Paper, Show,
    client::without_daemon,
    sheet::{Column, Entry, Sheet},
};

/// Lifetime of the authority, and of its revocation list.
const AUTHORITY_DAYS: u32 = 3650;
/// Maximum lifetime of certificates. A longer one is a security risk.
const LONGEST_DAYS: u32 = 825;
const DAY: i64 = 86_400;

/// The commands of the authority.
#[derive(Subcommand, Debug)]
pub(crate) enum CertsCommand {
    /// Make the authority, if it doesn't exist, and a new certificate for the daemon
    #[command(args(without_daemon()))]
    Init(Answered<InitArgs>),
    /// Make a certificate with a role: for an administrator, a manager, a tenant's submitter, a reader
    #[command(args(without_daemon()))]
    Client(Answered<ClientArgs>),
    /// Make the daemon refuse a certificate from now on
    #[command(args(without_daemon()))]
    Revoke(Answered<RevokeArgs>),
    /// List the certificates
    #[command(args(without_daemon()))]
    List(Answered<Folder>),
}

/// The folder of the authority.
#[derive(Args, Clone, Debug)]
pub(crate) struct Folder {
    /// The authority's folder; by default `certs` in the daemon's default state folder
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    folder: Folder,
    /// A name or address under which the daemon is called, beside localhost and this machine's name; may be repeated
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Lifetime of the daemon's certificate
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    days: u32,
}

#[derive(Args, Debug)]
pub(crate) struct ClientArgs {
    /// Name of the holder; for a manager the manager's name
    name: String,
    /// Role of the holder
    #[arg(long, value_enum)]
    role: RoleName,
    /// Tenant whose jobs it may submit, with the role submit; may be repeated
    #[arg(long, value_name = "TENANT")]
    tenant: Vec<String>,
    /// Lifetime of the certificate
    #[arg(long, value_name = "DAYS", default_value_t = 90)]
    days: u32,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// Name of the holder
    name: String,
    #[command(flatten)]
    folder: Folder,
}

/// A role on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RoleName {
    /// Everything
    Admin,
    /// Submit jobs, and read and change the jobs of its tenants
    Submit,
    /// Act as one cluster manager's adapter
    Manager,
    /// Read everything and change nothing
    Read,
    /// Read the metrics
    Metrics,
}

impl RoleName {
    /// The role as it is typed.
    fn shown(self) -> String {
        self.to_possible_value().expect("every role can be typed").get_name().to_owned()
    }
}

impl From<RoleName> for TokenRole {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Admin => Self::Admin,
            RoleName::Submit => Self::Submit,
            RoleName::Manager => Self::Manager,
            RoleName::Read => Self::Read,
            RoleName::Metrics => Self::Metrics,
        }
    }
}

/// The authority's index file.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    /// Distinguishes it from other authorities of this kind.
    id: String,
    made: Vec<Made>,
}

/// A certificate of the authority.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Made {
    name: String,
    /// `None`: the daemon's own certificate.
    role: Option<RoleName>,
    #[serde(default)]
    tenants: Vec<String>,
    /// Names of the daemon, beside this machine's own.
    #[serde(default)]
    hosts: Vec<String>,
    serial: String,
    until: i64,
    revoked: Option<i64>,
}

/// The authority with its folder.
struct Authority {
    folder: PathBuf,
    index: Index,
    issuer: Issuer<'static, KeyPair>,
}

/// Runs the command.
///
/// # Errors
/// A name is invalid, or the folder can't be read or written.
pub(crate) fn run(command: &CertsCommand, output: impl Fn(bool) -> Output) -> Result<(), Failure> {
    match command {
        CertsCommand::Init(Answered { args, json }) => {
            if args.folder.dir.is_none() {
                // The daemon's own folder is private, whichever command creates it.
                secret::make_folder(&secret::default_state_dir())?;
            }
            let mut authority = Authority::open_or_make(&args.folder.path())?;
            output(*json).show(&authority.server(&args.host, args.days)?)
        }
        CertsCommand::Client(Answered { args, json }) => {
            let mut authority = Authority::open(&args.folder.path())?;
            output(*json).show(&authority.client(&args.name, args.role, &args.tenant, args.days)?)
        }
        CertsCommand::Revoke(Answered { args, json }) => {
            let mut authority = Authority::open(&args.folder.path())?;
            output(*json).show(&authority.revoke(&args.name)?)
        }
        CertsCommand::List(Answered { args, json }) => {
            output(*json).show(&List(Authority::open(&args.path())?.index.made))
        }
    }
}

impl Folder {
    fn path(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| secret::default_state_dir().join("certs"))
    }
}

fn now() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(passed.as_secs()).unwrap_or(i64::MAX)
}

/// A time in the form of certificates.
macro_rules! moment {
    ($seconds:expr) => {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from($seconds).unwrap_or(0))
    };
}

fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random bits: {error}"))?;
    // A serial number is positive, and its first byte isn't zero.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(bytes)
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The authority's parameters. They depend on its number only, so nothing has to be read from its certificate.
fn authority_params(id: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, format!("Trainmaster authority {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    fn open_or_make(folder: &Path) -> Result<Self> {
        if folder.join("index.json").exists() {
            return Self::open(folder);
        }
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let key = KeyPair::generate()?;
        let id = hex(&random()?[..4]);
        let mut params = authority_params(&id);
        params.not_before = moment!(now() - DAY);
        params.not_after = moment!(now() + i64::from(AUTHORITY_DAYS) * DAY);
        let cert = params.self_signed(&key)?;
        let put = |name: &str, text: &str| {
            let path = folder.join(name);
            secret::write(&path, text).with_context(|| path.display().to_string())
        };
        put("ca-key.pem", &key.serialize_pem())?;
        open_to_all(&folder.join("ca.pem"), &cert.pem())?;
        let authority = Self {
            folder: folder.to_owned(),
            issuer: Issuer::new(authority_params(&id), key),
            index: Index { id, made: Vec::new() },
        };
        authority.write_list()?;
        authority.write_index()?;
        Ok(authority)
    }

    fn open(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let index = folder.join("index.json");
        if !index.exists() {
            bail!("{}: there is no authority; make one with `trainmaster certs init`", folder.display());
        }
        let index: Index = serde_json::from_str(&read("index.json")?).with_context(|| index.display().to_string())?;
        let path = folder.join("ca-key.pem");
        let key = secret::read_text(&path).map_err(|problem| anyhow!("{}: {problem}", path.display()))?;
        let key = KeyPair::from_pem(&key).with_context(|| path.display().to_string())?;
        let issuer = Issuer::new(authority_params(&index.id), key);
        Ok(Self { folder: folder.to_owned(), index, issuer })
    }

    fn write_index(&self) -> Result<()> {
        let path = self.folder.join("index.json");
        secret::write(&path, &serde_json::to_string_pretty(&self.index)?).with_context(|| path.display().to_string())
    }

    /// Writes the revocation list for the daemon.
    fn write_list(&self) -> Result<()> {
        let revoked = self.index.made.iter().filter_map(|made| Some((made, made.revoked?)));
        let revoked = revoked.map(|(made, at)| RevokedCertParams {
            serial_number: SerialNumber::from(unhex(&made.serial)),
            revocation_time: moment!(at),
            reason_code: Some(RevocationReason::Unspecified),
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: moment!(now() - DAY),
            next_update: moment!(now() + i64::from(AUTHORITY_DAYS) * DAY),
            crl_number: SerialNumber::from(now().to_be_bytes().to_vec()),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        open_to_all(&self.folder.join("crl.pem"), &params.signed_by(&self.issuer)?.pem()?)
    }

    /// Makes a certificate with its key, and adds it to the index.
    fn make(&mut self, mut params: CertificateParams, made: Made, days: u32) -> Result<Certified> {
        if !(1..=LONGEST_DAYS).contains(&days) {
            bail!("--days {days} must be from 1 to {LONGEST_DAYS}");
        }
        let (key, serial) = (KeyPair::generate()?, random()?);
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, made.name.clone());
        let names = match made.role {
            None => params.subject_alt_names.iter().map(shown_name).collect(),
            Some(_) => Vec::new(),
        };
        params.serial_number = Some(SerialNumber::from(serial.to_vec()));
        params.not_before = moment!(now() - DAY);
        let until = now() + i64::from(days) * DAY;
        params.not_after = moment!(until);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let cert = params.signed_by(&key, &self.issuer)?;
        let made = Made { serial: hex(&serial), until, ..made };
        let (cert_file, key_file) =
            (self.folder.join(format!("{}.pem", made.name)), self.folder.join(format!("{}-key.pem", made.name)));
        // The index comes first, because an unknown certificate couldn't be revoked.
        self.index.made.push(made.clone());
        self.write_index()?;
        secret::write(&key_file, &key.serialize_pem()).with_context(|| key_file.display().to_string())?;
        open_to_all(&cert_file, &cert.pem())?;
        Ok(Certified {
            names,
            cert: cert_file,
            key: key_file,
            ca: self.folder.join("ca.pem"),
            crl: self.folder.join("crl.pem"),
            role: made.role,
            days,
            earlier: 0,
        })
    }

    fn server(&mut self, hosts: &[String], days: u32) -> Result<Certified> {
        // The name may be a wildcard for a domain.
        if let Some(wrong) = hosts.iter().find(|host| !is_host(host.strip_prefix("*.").unwrap_or(host))) {
            bail!("--host {wrong:.128?} must be a name such as scheduler.example.org, or an address such as 10.0.0.3");
        }
        // A renewed certificate has the names of the last one, unless others are given.
        let last = self.index.made.iter().rev().find(|made| made.role.is_none());
        let hosts = match (hosts, last) {
            ([], Some(last)) => last.hosts.clone(),
            _ => hosts.to_vec(),
        };
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        names.extend([own].into_iter().filter(|own| !own.is_empty()).chain(hosts.iter().cloned()));
        names.sort();
        names.dedup();
        let mut params = CertificateParams::new(names).map_err(|error| anyhow!("--host: {error}"))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.make(params, Made { hosts, ..Made::of("server", None, &[]) }, days)
    }

    fn client(&mut self, name: &str, role: RoleName, tenants: &[String], days: u32) -> Result<Certified> {
        // Its files are in the authority's folder.
        if !is_name(name) || matches!(name, "ca" | "server" | "crl" | "index") || name.ends_with("-key") {
            bail!(
                "{name:.128?} must be 1 to 128 letters, digits, '.', '_' or '-', not end with \"-key\", and not be \
                 \"ca\", \"server\", \"crl\" or \"index\""
            );
        }
        let mut tenants = tenants.to_vec();
        tenants.sort();
        tenants.dedup();
        let manager = if role == RoleName::Manager { name.to_owned() } else { String::new() };
        let known = Role::of(role.into(), tenants.clone(), manager).map_err(|problem| anyhow!("{problem}"))?;
        let now = now();
        let valid = |made: &&Made| made.name == name && made.revoked.is_none() && made.until > now;
        let earlier: Vec<_> = self.index.made.iter().filter(valid).collect();
        if let Some(other) = earlier.iter().find(|made| made.role != Some(role) || made.tenants != tenants) {
            bail!(
                "{name}: a certificate of this name is valid for {}; choose another name, or revoke it first with \
                 `trainmaster certs revoke {name}`",
                other.allowed()
            );
        }
        let earlier = earlier.len();
        let uri = known.uri(name).try_into().map_err(|error| anyhow!("{error}"))?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let made = self.make(params, Made::of(name, Some(role), &tenants), days)?;
        Ok(Certified { earlier, ..made })
    }

    /// All certificates of a name, including replaced ones.
    fn revoke(&mut self, name: &str) -> Result<Revoked> {
        let now = now();
        let theirs = self.index.made.iter_mut().filter(|made| made.name == name && made.role.is_some());
        let mut count = 0;
        for made in theirs {
            made.revoked.get_or_insert(now);
            count += 1;
        }
        if count == 0 {
            bail!("{name:.128?}: no certificate of a client's was made under this name");
        }
        self.write_index()?;
        self.write_list()?;
        Ok(Revoked { name: name.to_owned(), crl: self.folder.join("crl.pem") })
    }
}

impl Made {
    fn of(name: &str, role: Option<RoleName>, tenants: &[String]) -> Self {
        let (name, tenants) = (name.to_owned(), tenants.to_vec());
        Self { name, role, tenants, hosts: Vec::new(), serial: String::new(), until: 0, revoked: None }
    }

    /// Permissions of the holder, in words.
    fn allowed(&self) -> String {
        let role = self.role.map_or("the daemon".to_owned(), |role| format!("the role {}", role.shown()));
        if self.tenants.is_empty() { role } else { format!("{role} of {}", self.tenants.join(", ")) }
    }
}

fn shown_name(name: &SanType) -> String {
    match name {
        SanType::DnsName(name) => name.to_string(),
        SanType::IpAddress(address) => address.to_string(),
        other => format!("{other:?}"),
    }
}

/// Writes a file that all users may read.
fn open_to_all(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let written = || -> io::Result<()> {
        secret::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o644))
    };
    written().with_context(|| path.display().to_string())
}

/// A new certificate, with instructions for its use.
#[derive(Serialize)]
struct Certified {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    crl: PathBuf,
    role: Option<RoleName>,
    days: u32,
    /// Number of other valid certificates of the same name.
    #[serde(skip)]
    earlier: usize,
    /// Names of the daemon.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
}

impl Show for Certified {
    fn text(&self, _: &Paper) -> String {
        let Self { cert, key, ca, crl, role, days, earlier, names } = self;
        // The configuration's own relative paths start at its folder.
        let whole = |path: &PathBuf| absolute(path).unwrap_or_else(|_| path.clone());
        let paths = [cert, key, ca, crl].map(whole);
        let [cert, key, ca, crl] = paths.each_ref().map(|path| path.display());
        match role {
            None => format!(
                "made for {days} days, for a daemon that is called {}. In its configuration:\n\n[tls]\n\
                 cert = \"{cert}\"\nkey = \"{key}\"\nca = \"{ca}\"\nclient_ca = \"{ca}\"\nclient_crl = \"{crl}\"\n\n\
                 Clients are given --ca {ca}, and a token or a certificate of their own (trainmaster certs client).",
                names.join(", ")
            ),
            Some(_) => {
                let earlier = match earlier {
                    0 => String::new(),
                    1 => ", beside one of this name that stays valid until it expires or the name is revoked".into(),
                    more => {
                        format!(", beside {more} of this name that stay valid until they expire or the name is revoked")
                    }
                };
                format!("made for {days} days{earlier}. Its holder calls with\n\n--cert {cert} --key {key} --ca {ca}")
            }
        }
    }
}

#[derive(Serialize)]
struct Revoked {
    name: String,
    crl: PathBuf,
}

impl Show for Revoked {
    fn text(&self, _: &Paper) -> String {
        format!("{} is revoked: the daemon refuses it once it has read {} anew", self.name, self.crl.display())
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct List(Vec<Made>);

impl Show for List {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet =
            Sheet::new([Column::key("NAME"), Column::key("ROLE"), Column::spare("TENANTS", 1), Column::key("STATE")]);
        for made in &self.0 {
            let role = made.role.map_or_else(|| "server".to_owned(), RoleName::shown);
            let state = match (made.revoked, (made.until - now()) / DAY) {
                (Some(_), _) => "revoked".to_owned(),
                (None, left) if left < 0 => "expired".to_owned(),
                (None, left) => format!("{left} days left"),
            };
            sheet.row([
                Entry::from(&made.name),
                Entry::from(role),
                Entry::from(made.tenants.join(", ")),
                Entry::from(state),
            ]);
        }
        sheet.on(paper)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn an_authority_is_made_once_and_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("certs");
        assert!(Authority::open(&dir).err().unwrap().to_string().contains("certs init"));
        let mut authority = Authority::open_or_make(&dir).unwrap();
        let server = authority.server(&["scheduler.example.org".into()], 30).unwrap();
        let id = authority.index.id.clone();
        let mut again = Authority::open_or_make(&dir).unwrap();
        assert_eq!(again.index.id, id);
        let client = again.client("ci", RoleName::Submit, &["vision".into()], 1).unwrap();
        for secret in [&server.key, &client.key, &dir.join("ca-key.pem")] {
            assert_eq!(fs::metadata(secret).unwrap().mode() & 0o777, 0o600, "{}", secret.display());
        }
        for (name, role, tenants, days) in [
            ("../x", RoleName::Admin, vec![], 1),
            ("ca", RoleName::Admin, vec![], 1),
            ("ca-key", RoleName::Admin, vec![], 1),
            ("crl", RoleName::Admin, vec![], 1),
            ("index", RoleName::Admin, vec![], 1),
            ("a", RoleName::Submit, vec![], 1),
            ("a", RoleName::Admin, vec!["t".to_owned()], 1),
            ("a", RoleName::Admin, vec![], 0),
            ("a", RoleName::Admin, vec![], 10_000),
        ] {
            assert!(again.client(name, role, &tenants, days).is_err(), "{name} {role:?} {days}");
        }
        assert!(again.revoke("server").is_err() && again.revoke("nobody").is_err());
        // The answer to a renewal mentions that there are two. Another role isn't a renewal.
        assert!(!client.text(&Paper::default()).contains("beside"));
        let renewed = again.client("ci", RoleName::Submit, &["vision", "vision"].map(str::to_owned), 1).unwrap();
        assert!(renewed.text(&Paper::default()).contains("beside one of this name"));
        for (role, tenants) in [(RoleName::Admin, vec![]), (RoleName::Submit, vec!["speech".into()])] {
            let error = again.client("ci", role, &tenants, 1).err().unwrap().to_string();
            assert!(
                error.contains("valid for the role submit of vision") && error.contains("certs revoke ci"),
                "{error}"
            );
        }
        again.revoke("ci").unwrap();
        again.client("ci", RoleName::Admin, &[], 1).unwrap();
        let made = Authority::open(&dir).unwrap().index.made;
        assert_eq!(made.iter().map(|made| made.revoked.is_some()).collect::<Vec<_>>(), [false, true, true, false]);
        assert!(List(made).text(&Paper::default()).contains("revoked"));
    }
}
