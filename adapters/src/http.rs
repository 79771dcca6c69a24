//! HTTP and HTTPS requests to a manager, whose answers have a largest size.

use std::{
    error::Error,
    fmt,
    io::Read as _,
    iter::successors,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use reqwest::{Body, Method, RequestBuilder, StatusCode, redirect, retry};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

use trainmaster_net::secret;

use crate::file::{Wrong, quoted};

/// Maximum bytes of a file with certificate authorities. Those of a whole system have a quarter of that.
const MOST_CA: u64 = 1 << 20;

/// Maximum age of kept connections. The file of the certificate authority may have been replaced meanwhile.
const KEPT: Duration = Duration::from_secs(60);

/// Why there is no answer.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The address of a manager's HTTP server: `http://host:port` or `https://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    is_https: bool,
    /// `host:port`.
    address: String,
}

impl Url {
    /// An address that isn't encrypted.
    pub(crate) fn plain(address: impl Into<String>) -> Self {
        Self { is_https: false, address: address.into() }
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// It isn't one of a host and its port.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let (is_https, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => (false, ""),
        };
        let address = rest.strip_suffix('/').unwrap_or(rest);
        if is_address(address) && reqwest::Url::parse(url).is_ok() {
            Ok(Self { is_https, address: address.to_owned() })
        } else {
            Err("write http://host:port or https://host:port".into())
        }
    }

    /// Checks that there is an authority for https, and only for that. `key`: the configuration's, of the URL.
    pub(crate) fn check(&self, key: &str, ca: Option<&PathBuf>) -> Result<(), Wrong> {
        match (self.is_https, ca) {
            (true, None) => {
                let problem = "https needs ca, the file of its certificate authority";
                Err((key.into(), quoted(&self.to_string()), problem.into()))
            }
            (false, Some(ca)) => {
                let problem = format!("it is for https, but {key} is {self}");
                Err(("ca".into(), quoted(&ca.display().to_string()), problem))
            }
            _ => Ok(()),
        }
    }
}

/// Whether this is `host:port`, with brackets around an IPv6 address.
pub(crate) fn is_address(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let plain = bare.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':'));
        !bare.is_empty()
            && plain
            && (bare == host) != host.contains(':')
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_https { "https" } else { "http" }, self.address)
    }
}

impl<'de> Deserialize<'de> for Url {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let url = String::deserialize(from)?;
        Self::parse(&url).map_err(|problem| D::Error::custom(format!("{url:?}: {problem}")))
    }
}

impl Serialize for Url {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A manager's HTTP server, with its certificate authority if it has TLS.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) url: Url,
    pub(crate) ca: Option<PathBuf>,
}

impl Site {
    #[cfg(test)]
    pub(crate) fn plain(address: impl Into<String>) -> Self {
        Self { url: Url::plain(address), ca: None }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

/// Sends requests to a site, one after the other. It keeps connections for a while, until a request fails, for requests
/// that only read.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) site: Site,
    kept: Option<(reqwest::Client, Instant)>,
}

impl Client {
    pub(crate) fn new(site: Site) -> Self {
        Self { site, kept: None }
    }

    /// Sends a request that `fill` gives its headers and body. Returns the answer's status and body. The caller limits
    /// the time. If a GET request fails on a kept connection, it is sent once more on a new one, because the server may
    /// have closed the kept one. All others have a new connection, so they are sent at most once.
    ///
    /// # Errors
    /// Nothing listens there, it doesn't speak HTTP, its certificate isn't one of the authority's for this host, or the
    /// body has more than `most` bytes.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        fill: impl Fn(RequestBuilder) -> RequestBuilder,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let url = format!("{}{path}", self.site);
        let kept = self.kept.take().filter(|(_, since)| method == Method::GET && since.elapsed() < KEPT);
        if let Some((client, since)) = kept
            && let Ok(answer) = exchange(fill(client.request(method.clone(), &url)), most).await
        {
            self.kept = Some((client, since));
            return Ok(answer);
        }
        let client = connect(&self.site)?;
        let answer = exchange(fill(client.request(method, &url)), most).await?;
        self.kept = Some((client, Instant::now()));
        Ok(answer)
    }
}

async fn exchange(request: RequestBuilder, most: usize) -> Result<(StatusCode, Bytes), Failure> {
    let answer = request.send().await.map_err(|error| causes(&error))?;
    let status = answer.status();
    let body = Limited::new(Body::from(answer), most).collect().await.map_err(|error| causes(&*error))?;
    Ok((status, body.to_bytes()))
}

/// The causes of an error, without the first text: it repeats the URL.
fn causes(error: &(dyn Error + 'static)) -> Failure {
    let causes =
        successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source()).map(ToString::to_string);
    let text = causes.collect::<Vec<_>>().join(": ");
    if text.is_empty() { error.to_string().into() } else { text.into() }
}

/// A client for this site only. The authority's file is read for each, since it may have been replaced.
fn connect(site: &Site) -> Result<reqwest::Client, Failure> {
    let roots = match (site.url.is_https, &site.ca) {
        (true, Some(ca)) => authority(ca)?,
        (true, None) => return Err("https needs ca, the file of its certificate authority".into()),
        (false, _) => RootCertStore::empty(),
    };
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // What a request has is for this server only: no redirections, no proxy.
    let client = reqwest::Client::builder().redirect(redirect::Policy::none()).no_proxy().retry(retry::never());
    // Older dashboards of Ray fail without a user agent.
    Ok(client.tls_backend_preconfigured(tls).user_agent("trainmaster").build()?)
}

/// The certificates of an authority's file.
fn authority(ca: &Path) -> Result<RootCertStore, Failure> {
    let failed = |problem: &dyn fmt::Display| Failure::from(format!("ca {}: {problem}", ca.display()));
    let mut text = Vec::new();
    let file = secret::open_file(ca).map_err(|error| failed(&error))?;
    file.take(MOST_CA + 1).read_to_end(&mut text).map_err(|error| failed(&error))?;
    if text.len() as u64 > MOST_CA {
        return Err(failed(&format!("it has more than {MOST_CA} bytes")));
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        roots.add(certificate.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() {
        return Err(failed(&"it has no certificate in PEM"));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn an_answer_that_never_ends_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
            // Until the client hangs up.
            while stream.write_all(b"a\r\n0123456789\r\n").await.is_ok() {}
        });
        let mut client = Client::new(Site::plain(address));
        let error = client.send(Method::GET, "/", |request| request, 1 << 20).await.unwrap_err();
        assert!(error.to_string().contains("length limit exceeded"), "{error}");
    }

    /// A server that answers the first request of a connection with `yes`, and then closes it, or at the second request
    /// if `closes_late`. `none`: it answers no request. Returns its address, and counts requests.
    async fn brief(closes_late: bool, none: bool) -> (String, Arc<AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, count) = (listener.local_addr().unwrap().to_string(), Arc::new(AtomicU32::new(0)));
        let counts = count.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                for _ in 0..=u32::from(closes_late) {
                    if stream.read(&mut [0; 1024]).await.unwrap() == 0 {
                        break;
                    }
                    if counts.fetch_add(1, Ordering::SeqCst) % 2 == 0 && !none {
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes").await.unwrap();
                    }
                }
            }
        });
        (address, count)
    }

    #[tokio::test]
    async fn only_requests_on_kept_connections_are_sent_again() {
        let send = async |client: &mut Client, method: Method| client.send(method, "/", |request| request, 100).await;
        let (address, count) = brief(false, true).await;
        assert!(send(&mut Client::new(Site::plain(address)), Method::GET).await.is_err());
        assert_eq!(count.load(Ordering::SeqCst), 1);

        // The server reads the second request of a connection and closes it.
        let (address, count) = brief(true, false).await;
        let mut client = Client::new(Site::plain(address));
        for sent in [1, 3] {
            assert_eq!(send(&mut client, Method::GET).await.unwrap().1, "yes");
            assert_eq!(count.load(Ordering::SeqCst), sent);
        }
    }

    #[tokio::test]
    async fn a_request_that_changes_something_has_a_connection_of_its_own() {
        let (address, count) = brief(false, false).await;
        let mut client = Client::new(Site::plain(address));
        for (sent, method) in [(1, Method::GET), (2, Method::PUT)] {
            let answer = client.send(method, "/", |request| request, 100).await;
            // The server answers every other request.
            assert_eq!((answer.is_ok(), count.load(Ordering::SeqCst)), (sent == 1, sent));
        }
    }

    #[tokio::test]
    async fn an_abandoned_request_leaves_nothing_behind() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = Client::new(Site::plain(listener.local_addr().unwrap().to_string()));
        let waits = client.send(Method::GET, "/", |request| request, 100);
        let abandoned = tokio::time::timeout(Duration::from_millis(100), waits).await;
        assert!(abandoned.is_err());
        let (mut first, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes").await.unwrap();
        });
        assert_eq!(client.send(Method::GET, "/", |request| request, 100).await.unwrap().1, "yes");
        first.read_to_end(&mut Vec::new()).await.unwrap();
    }

    #[test]
    fn a_url_has_a_host_and_a_port() {
        for url in ["http://a:1", "https://rm.example:8090", "http://[::1]:8088"] {
            assert_eq!(Url::parse(url).unwrap().to_string(), url);
        }
        assert_eq!(Url::parse("https://a:1/").unwrap().to_string(), "https://a:1");
        for url in [
            "",
            "a:1",
            "ftp://a:1",
            "http://",
            "http://a",
            "http://a:0",
            "https://a:1/b",
            "http://u@a:1",
            "http://::1:2",
            // Who reads it as a URL takes the last part for an address in numbers.
            "http://rack.7:1",
        ] {
            assert!(Url::parse(url).is_err(), "{url}");
        }
    }

    /// A server with TLS that answers one request of each connection with `yes`. Returns its port.
    async fn secure(certificate: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
        let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::try_from(certificate.signing_key.serialize_der());
        let config = tokio_rustls::rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.cert.der().clone()], key.unwrap())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes").await;
            }
        });
        port
    }

    #[tokio::test]
    async fn an_https_server_needs_a_certificate_of_the_authority_for_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            Some(folder.path().join(name))
        };
        let own = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (own_ca, other_ca) = (file("own.pem", &own.cert.pem()), file("other.pem", &other.cert.pem()));
        let (none, absent) = (file("none.pem", "nothing"), Some(folder.path().join("absent.pem")));
        let port = secure(&own).await;
        let ask = async |url: String, ca: Option<PathBuf>| {
            let mut client = Client::new(Site { url: Url::parse(&url).unwrap(), ca });
            client.send(Method::GET, "/", |request| request, 100).await
        };
        let here = format!("https://localhost:{port}");
        assert_eq!(ask(here.clone(), own_ca.clone()).await.unwrap().1, "yes");
        for (url, ca, problem) in [
            (here.clone(), other_ca, "invalid peer certificate"),
            (format!("https://127.0.0.1:{port}"), own_ca.clone(), "not valid for name"),
            (here.clone(), none, "none.pem: it has no certificate"),
            (here.clone(), absent, "absent.pem: "),
            (here.clone(), Some("/dev/zero".into()), "/dev/zero: it is no file"),
            (here.clone(), file("long.pem", &" ".repeat(1 << 21)), "long.pem: it has more than 1048576 bytes"),
            (here, None, "https needs ca"),
        ] {
            let error = ask(url, ca).await.unwrap_err().to_string();
            assert!(error.contains(problem), "{problem}: {error}");
        }
        // Plain HTTP to it is no answer.
        assert!(ask(format!("http://localhost:{port}"), None).await.is_err());
    }
}
