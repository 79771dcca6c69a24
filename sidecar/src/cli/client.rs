//! The connection to a daemon.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow};
use clap::{Arg, Args, value_parser};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri},
};
use trainmaster_proto::v1::{admin_client::AdminClient, jobs_client::JobsClient};

use super::Failure;

/// How long to wait for a connection, and for an answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
/// Lists of many jobs with many slots are long.
const LARGEST_ANSWER: usize = 256 << 20;

/// Where the daemon is; the same for every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Daemon")]
pub(crate) struct ServerArgs {
    /// Address of the daemon
    #[arg(long, global = true, env = "TRAINMASTER_SERVER", value_name = "ADDRESS", default_value = DEFAULT)]
    server: String,
    /// File with the daemon's token: `serve` asks for it, the other commands show it
    #[arg(long, global = true, env = "TRAINMASTER_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificate authority of an https daemon, in PEM
    #[arg(long, global = true, env = "TRAINMASTER_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// The options of [`ServerArgs`] for a command that has no use for them: taken, so that an alias with them serves every
/// command, but not shown.
pub(crate) fn without_daemon() -> [Arg; 3] {
    let [server, ca] = without_address();
    [server, ca, unused("token_file", "token-file").value_parser(value_parser!(PathBuf))]
}

/// The same for a command that has a use for the token alone.
pub(crate) fn without_address() -> [Arg; 2] {
    [unused("server", "server"), unused("ca", "ca").value_parser(value_parser!(PathBuf))]
}

fn unused(id: &'static str, long: &'static str) -> Arg {
    Arg::new(id).long(long).hide(true)
}

const DEFAULT: &str = "http://127.0.0.1:7070";

impl ServerArgs {
    /// The address with its scheme.
    pub(crate) fn address(&self) -> String {
        let given = self.server.trim_end_matches('/');
        if given.contains("://") { given.to_owned() } else { format!("http://{given}") }
    }

    /// Whether the daemon runs on this machine.
    pub(crate) fn is_local(&self) -> bool {
        let address = self.address();
        let host = address.parse::<Uri>().ok().and_then(|uri| uri.host().map(ToOwned::to_owned)).unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The file that holds the token.
    pub(crate) fn token_file(&self) -> Option<&PathBuf> {
        self.token_file.as_ref()
    }

    /// The file that holds the certificate authority.
    pub(crate) fn ca(&self) -> Option<&PathBuf> {
        self.ca.as_ref()
    }

    /// The token in that file.
    ///
    /// # Errors
    /// The file can't be read or is empty.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let text =
            fs::read_to_string(path).with_context(|| format!("--token-file {} can't be read", path.display()))?;
        match text.trim() {
            "" => Err(anyhow!("--token-file {} is empty; it needs a token", path.display())),
            token => Ok(Some(token.to_owned())),
        }
    }
}

/// A daemon that answers.
pub(crate) struct Daemon {
    address: String,
    channel: Channel,
    bearer: Bearer,
}

/// Shows the token with every call.
#[derive(Clone)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

type Called = InterceptedService<Channel, Bearer>;

impl Daemon {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or address, token or certificate make no sense.
    pub(crate) async fn connect(args: &ServerArgs) -> Result<Self, Failure> {
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
        let mut endpoint = Endpoint::from(uri).connect_timeout(CONNECT).timeout(ANSWER);
        if https {
            let mut tls = ClientTlsConfig::new();
            if let Some(path) = &args.ca {
                let pem = fs::read(path).with_context(|| format!("--ca {} can't be read", path.display()))?;
                tls = tls.ca_certificate(Certificate::from_pem(pem));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| anyhow!("--ca: {}", innermost(&error)))?;
        }
        match endpoint.connect().await {
            Ok(channel) => Ok(Self { address, channel, bearer: Bearer(bearer) }),
            Err(error) => Err(Failure::Unreachable { address, cause: innermost(&error) }),
        }
    }

    /// Calls about jobs.
    pub(crate) fn jobs(&self) -> JobsClient<Called> {
        JobsClient::with_interceptor(self.channel.clone(), self.bearer.clone())
            .max_decoding_message_size(LARGEST_ANSWER)
    }

    /// Calls about the scheduler.
    pub(crate) fn admin(&self) -> AdminClient<Called> {
        AdminClient::with_interceptor(self.channel.clone(), self.bearer.clone())
            .max_decoding_message_size(LARGEST_ANSWER)
    }

    /// What a refusal by this daemon means.
    pub(crate) fn failure(&self, status: &Status) -> Failure {
        Failure::answered(&self.address, status)
    }
}

/// The cause that says most: transport errors wrap it several times in "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Runs a command that talks to a daemon.
///
/// # Errors
/// The command's.
pub(crate) fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: &str) -> ServerArgs {
        ServerArgs { server: server.into(), token_file: None, ca: None }
    }

    #[test]
    fn a_scheme_is_added_where_it_is_missing() {
        assert_eq!(at("host:1").address(), "http://host:1");
        assert_eq!(at("https://host:1/").address(), "https://host:1");
    }

    #[test]
    fn loopback_is_this_machine() {
        assert!(
            ["127.0.0.1:7070", "http://localhost:1", "http://[::1]:7070"].iter().all(|server| at(server).is_local())
        );
        assert!(!at("http://example.org:7070").is_local());
    }
}
