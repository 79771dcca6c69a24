//! The connection to a daemon.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::{Arg, ArgMatches, Args, FromArgMatches as _, value_parser};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri},
};
use trainmaster_core::{Span, amount::parse_span};
use trainmaster_host::bounded;
use trainmaster_net::secret;
use trainmaster_proto::v1::{admin_client::AdminClient, jobs_client::JobsClient};

use crate::{Failure, failure::innermost, found::Note};

/// Maximum time for a connection, and for an answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
/// Maximum size of an answer. Lists of many jobs with many slots are long.
const LARGEST_ANSWER: usize = 256 << 20;
/// Maximum bytes of a file with certificates.
const LONGEST_PEM: u64 = 1 << 20;

/// The variable with the path of the token file.
pub const TOKEN_FILE: &str = "TRAINMASTER_TOKEN_FILE";

/// Address and credentials of the daemon, for all commands.
#[derive(Args, Debug)]
#[command(next_help_heading = "Daemon")]
pub struct ServerArgs {
    /// Address of the daemon
    #[arg(long, global = true, env = "TRAINMASTER_SERVER", value_name = "ADDRESS", default_value = DEFAULT)]
    server: String,
    /// File with a token for the daemon [default: that of a daemon of this user on this machine]
    #[arg(long, global = true, env = TOKEN_FILE, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificate authority of an https daemon, in PEM
    #[arg(long, global = true, env = "TRAINMASTER_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// This client's certificate, in PEM, if the daemon uses client certificates
    #[arg(long, global = true, env = "TRAINMASTER_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, global = true, env = "TRAINMASTER_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Give up if the daemon doesn't answer a call within this time [default: 60s]
    #[arg(long, global = true, env = "TRAINMASTER_ANSWER_TIMEOUT", value_name = "DURATION", value_parser = duration)]
    answer_timeout: Option<Duration>,
}

/// A time to wait, such as `20s`: at least a millisecond.
///
/// # Errors
/// It isn't a time, or it is 0.
pub fn duration(text: &str) -> Result<Duration, String> {
    match parse_span(text).map_err(|error| error.to_string())? {
        Span(ms) if ms > 0 => Ok(Duration::from_millis(ms.unsigned_abs())),
        span => Err(format!("{span} must be at least 1ms")),
    }
}

/// The options of [`ServerArgs`] for commands without a daemon. They are accepted but hidden, so that an alias with
/// them works for all commands.
pub fn without_daemon() -> [Arg; 6] {
    let [server, ca, cert, key, timeout] = without_address();
    [server, ca, cert, key, timeout, unused("token_file", "token-file").value_parser(value_parser!(PathBuf))]
}

/// The same for a command that uses the token only.
pub fn without_address() -> [Arg; 5] {
    let file = |id, long| unused(id, long).value_parser(value_parser!(PathBuf));
    let timeout = unused("answer_timeout", "answer-timeout").value_parser(duration);
    [unused("server", "server"), file("ca", "ca"), file("cert", "cert"), file("key", "key"), timeout]
}

fn unused(id: &'static str, long: &'static str) -> Arg {
    Arg::new(id).long(long).hide(true)
}

const DEFAULT: &str = "http://127.0.0.1:7070";

impl ServerArgs {
    /// A daemon whose token is in a file.
    pub fn of(server: &str, token_file: &Path) -> Self {
        let token_file = Some(token_file.into());
        Self { server: server.into(), token_file, ca: None, cert: None, key: None, answer_timeout: None }
    }

    /// The daemon's arguments, as parsed from the command line.
    pub fn of_matches(matches: &ArgMatches) -> Self {
        Self::from_arg_matches(matches).expect("they are the program's own arguments, and checked")
    }

    /// The address with its scheme.
    pub fn address(&self) -> String {
        let given = self.server.trim_end_matches('/');
        if given.contains("://") { given.to_owned() } else { format!("http://{given}") }
    }

    /// Whether the daemon runs on this machine.
    pub fn is_local(&self) -> bool {
        let address = self.address();
        let host = address.parse::<Uri>().ok().and_then(|uri| uri.host().map(ToOwned::to_owned)).unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Path of the token file, if one was given.
    pub fn token_file(&self) -> Option<&PathBuf> {
        self.token_file.as_ref()
    }

    /// Path of the token file: the given one, or that of this user's own daemon at the address. In a job's program, the
    /// latter isn't used, because the program has the job's token. It isn't used with a certificate either, which
    /// identifies the caller.
    pub fn find_token_file(&self) -> Option<PathBuf> {
        let own = || Note::find(&self.address()).map(|note| note.token_file);
        self.token_file.clone().or_else(|| if job_token().is_some() || self.cert.is_some() { None } else { own() })
    }

    /// Path of the certificate authority: the given one, or that of this user's own daemon at the address.
    pub fn find_ca(&self) -> Option<PathBuf> {
        let own = || Note::find(&self.address()).and_then(|note| note.ca);
        self.ca.clone().or_else(own)
    }

    /// Whether the token or the certificate authority is that of a running daemon, found by its discovery file.
    pub fn is_found(&self) -> bool {
        self.find_token_file() != self.token_file || self.find_ca() != self.ca
    }

    /// The token for calls.
    ///
    /// # Errors
    /// The file can't be read, others can read it, or it is empty.
    pub fn token(&self) -> anyhow::Result<Option<String>> {
        match self.find_token_file() {
            Some(path) => secret::read(&path).map(Some).map_err(|problem| anyhow!("--token-file {problem}")),
            None if self.cert.is_some() => Ok(None),
            None => Ok(job_token()),
        }
    }

    /// The source of the token, in words.
    fn shown(&self) -> Option<String> {
        let job = || (self.cert.is_none() && job_token().is_some()).then(|| "TRAINMASTER_TOKEN".into());
        self.find_token_file().map(|path| path.display().to_string()).or_else(job)
    }

    /// Paths of the client certificate and its key.
    pub fn certificate(&self) -> Option<(PathBuf, PathBuf)> {
        self.cert.clone().zip(self.key.clone())
    }

    /// The client certificate.
    fn identity(&self) -> anyhow::Result<Option<Identity>> {
        let Some((cert, key)) = &self.certificate() else { return Ok(None) };
        let shown =
            bounded::read(cert, LONGEST_PEM).with_context(|| format!("--cert {} can't be read", cert.display()))?;
        let key = secret::read_text(key).map_err(|problem| anyhow!("--key {}: {problem}", key.display()))?;
        Ok(Some(Identity::from_pem(shown, key)))
    }
}

/// The job's token, if this is a job's program.
fn job_token() -> Option<String> {
    env::var_os("TRAINMASTER_JOB")?;
    env::var("TRAINMASTER_TOKEN").ok().filter(|token| !token.is_empty())
}

/// A connected daemon.
pub struct Daemon {
    address: String,
    channel: Channel,
    bearer: Bearer,
    /// The source of the token, in words.
    shown: Option<String>,
}

/// Adds the token to each call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// A connection that adds its token to each call.
pub type Called = InterceptedService<Channel, Bearer>;

impl Daemon {
    /// Connects to the daemon.
    ///
    /// # Errors
    /// Nothing listens at the address, or address, token or certificate are invalid.
    pub async fn connect(args: &ServerArgs) -> Result<Self, Failure> {
        let address = args.address();
        let wrong = |problem: &str| Failure::Usage(format!("--server {address:?}: {problem}; write http://host:port"));
        let uri: Uri = address.parse().map_err(|_| wrong("not an address"))?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("neither http nor https")),
        };
        let bearer = match args.token()? {
            Some(token) => {
                let value = format!("Bearer {token}").parse();
                Some(value.map_err(|_| anyhow!("the token has characters that can't be sent; use ASCII"))?)
            }
            None => None,
        };
        let mut endpoint = Endpoint::from(uri);
        let timeout = args.answer_timeout.unwrap_or(ANSWER);
        endpoint = endpoint.connect_timeout(timeout.min(CONNECT)).timeout(timeout);
        if https {
            let mut tls = ClientTlsConfig::new();
            if let Some(path) = args.find_ca() {
                let pem = bounded::read(&path, LONGEST_PEM)
                    .with_context(|| format!("--ca {} can't be read", path.display()))?;
                tls = tls.ca_certificate(Certificate::from_pem(pem));
            }
            if let Some(identity) = args.identity()? {
                tls = tls.identity(identity);
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| {
                let cause = innermost(&error);
                let about_key = ["KeyMismatch", "private key"].iter().any(|word| cause.contains(word));
                anyhow!("{}: {cause}", if about_key { "--cert and --key" } else { "--ca" })
            })?;
        }
        match endpoint.connect().await {
            Ok(channel) => Ok(Self { address, channel, shown: args.shown(), bearer: Bearer(bearer) }),
            Err(error) => Err(Failure::unreachable(&address, &error)),
        }
    }

    /// Client for jobs.
    pub fn jobs(&self) -> JobsClient<Called> {
        JobsClient::with_interceptor(self.channel.clone(), self.bearer.clone())
            .max_decoding_message_size(LARGEST_ANSWER)
    }

    /// Client for administration.
    pub fn admin(&self) -> AdminClient<Called> {
        AdminClient::with_interceptor(self.channel.clone(), self.bearer.clone())
            .max_decoding_message_size(LARGEST_ANSWER)
    }

    /// Converts a refusal by this daemon.
    pub fn failure(&self, status: &Status) -> Failure {
        Failure::answered(&self.address, self.shown.as_deref(), status)
    }
}

/// Runs a command that talks to a daemon. Another thread answers the daemon's pings while standard output is full.
///
/// # Errors
/// The command's.
pub fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: &str) -> ServerArgs {
        ServerArgs::of(server, Path::new("/a/token"))
    }

    #[test]
    fn a_missing_scheme_is_added() {
        assert_eq!(at("host:1").address(), "http://host:1");
        assert_eq!(at("https://host:1/").address(), "https://host:1");
    }

    #[test]
    fn a_time_is_more_than_nothing() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0s"), Err("0ms must be at least 1ms".into()));
        assert!(duration("5").unwrap_err().contains("20s"));
    }

    #[test]
    fn loopback_is_this_machine() {
        assert!(
            ["127.0.0.1:7070", "http://localhost:1", "http://[::1]:7070"].iter().all(|server| at(server).is_local())
        );
        assert!(!at("http://example.org:7070").is_local());
    }
}
