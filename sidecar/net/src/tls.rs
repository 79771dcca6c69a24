//! TLS from PEM files, which are read again when they change.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use thiserror::Error;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::{
            CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject,
        },
        server::{NoServerSessionStorage, WebPkiClientVerifier},
    },
};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::secret::{self, Seen};

/// Minimum interval between checks of the files.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
/// Maximum number of URI names of one certificate that are read, and bytes of one.
const MOST_NAMES: usize = 16;
const LONGEST_NAME: usize = 512;

/// Paths of certificates and keys in PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The port's certificate, with the intermediate ones.
    pub cert: PathBuf,
    /// The port's key.
    pub key: PathBuf,
    /// Authorities of client certificates. Without them, client certificates aren't requested.
    pub client_ca: Option<PathBuf>,
    /// List of revoked client certificates.
    pub client_crl: Option<PathBuf>,
}

/// An unusable file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("tls: {path}: {problem}", path = path.display())]
pub struct TlsError {
    path: PathBuf,
    problem: String,
}

/// TLS with the current content of the files.
pub struct Tls {
    files: TlsFiles,
    own: Own,
    acceptor: TlsAcceptor,
    seen: Vec<Option<Seen>>,
    looked: Instant,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsFiles {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let more = [self.client_ca.as_deref(), self.client_crl.as_deref()];
        [&*self.cert, &*self.key].into_iter().chain(more.into_iter().flatten())
    }

    fn seen(&self) -> Vec<Option<Seen>> {
        self.paths().map(secret::seen).collect()
    }
}

impl Tls {
    /// Reads the files. TLS offers HTTP/2 for gRPC and HTTP/1.1 for the rest.
    ///
    /// # Errors
    /// The unusable file and the reason.
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let (seen, own) = (files.seen(), Own::read(&files)?);
        let acceptor = acceptor(&own, &files)?;
        Ok(Self { files, own, acceptor, seen, looked: Instant::now() })
    }

    /// Earliest expiry of the certificates for connections, in Unix seconds: the daemon's, or an intermediate one.
    pub(crate) fn ends(&self) -> i64 {
        self.own.ends
    }

    /// TLS for the next connection. Changed files are read again. If they are unusable, the last content stays valid.
    /// Revocations apply even if the daemon's own certificate and key are unusable.
    pub(crate) fn acceptor(&mut self) -> TlsAcceptor {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            let seen = self.files.seen();
            if seen != self.seen {
                self.seen = seen;
                let read = Own::read(&self.files).and_then(|own| Ok((acceptor(&own, &self.files)?, own)));
                match read {
                    Ok((acceptor, own)) => {
                        tracing::info!(cert = %self.files.cert.display(), "certificates were read anew");
                        (self.acceptor, self.own) = (acceptor, own);
                    }
                    Err(error) => {
                        tracing::error!(%error, "the certificates that were read before stand");
                        if let Ok(acceptor) = acceptor(&self.own, &self.files) {
                            self.acceptor = acceptor;
                        }
                    }
                }
            }
        }
        self.acceptor.clone()
    }
}

/// Whether a daemon can be called by this name or address of a certificate.
pub fn is_host(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

fn fail(path: &Path, problem: impl ToString) -> TlsError {
    TlsError { path: path.to_owned(), problem: problem.to_string() }
}

fn open(path: &Path) -> Result<BufReader<File>, TlsError> {
    secret::open_file(path).map(BufReader::new).map_err(|error| fail(path, error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(open(path)?).collect();
    match read {
        Ok(read) if read.is_empty() => Err(fail(path, "it holds no certificate")),
        Ok(read) => Ok(read),
        Err(error) => Err(fail(path, error)),
    }
}

/// The daemon's certificate with the intermediate ones, and its key.
struct Own {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// Earliest expiry of them, in Unix seconds.
    ends: i64,
}

impl Own {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let chain = certificates(&files.cert)?;
        check_use(&files.cert, &chain[0])?;
        let key = secret::read_text(&files.key).map_err(|problem| fail(&files.key, problem))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| fail(&files.key, error))?;
        let ends = chain.iter().filter_map(ends).min().unwrap_or(i64::MAX);
        Ok(Self { chain, key, ends })
    }
}

/// TLS for connections, with this certificate and the files of clients' authorities.
fn acceptor(own: &Own, files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(&files.cert, error))?;
    if let (None, Some(list)) = (&files.client_ca, &files.client_crl) {
        return Err(fail(list, "client_crl says what the authorities of client_ca revoked; name that too"));
    }
    let config = match &files.client_ca {
        None => config.with_no_client_auth(),
        Some(path) => config.with_client_cert_verifier(clients(files, path, provider)?),
    };
    let mut config = config
        .with_single_cert(own.chain.clone(), own.key.clone_key())
        .map_err(|error| fail(&files.key, format!("it doesn't go with {}: {error}", files.cert.display())))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if files.client_ca.is_some() {
        // A resumed session would skip the check of a certificate that has expired meanwhile.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Clients without a certificate may still have a token.
fn clients(
    files: &TlsFiles,
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn tokio_rustls::rustls::server::danger::ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| fail(path, error))?;
    }
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).allow_unauthenticated();
    if let Some(path) = &files.client_crl {
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_reader_iter(open(path)?).collect();
        let lists = lists.map_err(|error| fail(path, error))?;
        if lists.is_empty() {
            return Err(fail(path, "it holds no revocation list"));
        }
        // A client is refused if its revocation status is unknown because the list comes from another authority.
        verifier = verifier.with_crls(lists).only_check_end_entity_revocation();
    }
    verifier.build().map_err(|error| fail(path, error))
}

/// Checks that a certificate isn't an authority's. `openssl req -x509` makes such certificates by default, and most
/// clients refuse them for servers. The error is reported here, where it can be corrected.
fn check_use(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), TlsError> {
    let read = EndEntityCert::try_from(certificate).map_err(|error| fail(path, error))?;
    match verify(&read, certificate, UnixTime::now()) {
        Err(webpki::Error::CaUsedAsEndEntity) => Err(fail(
            path,
            "it is a certificate authority's (CA:TRUE), which clients refuse as a server's; make one with \
             `trainmaster certs init`, or with openssl req -x509 … -addext basicConstraints=critical,CA:FALSE",
        )),
        Err(webpki::Error::CertExpired { .. }) => Err(fail(path, "it has expired")),
        _ => Ok(()),
    }
}

/// Expiry in Unix seconds.
fn ends(certificate: &CertificateDer<'_>) -> Option<i64> {
    let read = EndEntityCert::try_from(certificate).ok()?;
    // For a time after any expiry, the error contains the expiry.
    match verify(&read, certificate, UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX))) {
        Err(webpki::Error::CertExpired { not_after, .. }) => i64::try_from(not_after.as_secs()).ok(),
        _ => None,
    }
}

/// Verifies a certificate for servers. Its issuer is checked last: validity and key usage come first, also for
/// self-signed ones.
fn verify(read: &EndEntityCert<'_>, certificate: &CertificateDer<'_>, at: UnixTime) -> Result<(), webpki::Error> {
    let anchor = anchor_from_trusted_cert(certificate)?;
    let (algorithms, usage) = (ring::default_provider().signature_verification_algorithms.all, KeyUsage::server_auth());
    read.verify_for_usage(algorithms, std::slice::from_ref(&anchor), &[], at, usage, None, None).map(drop)
}

/// The URI names of a verified client certificate.
pub(crate) fn uri_names(chain: Option<&[CertificateDer<'_>]>) -> Arc<[String]> {
    let own = chain.and_then(<[_]>::first).and_then(|own| EndEntityCert::try_from(own).ok());
    own.map_or_else(
        || [].into(),
        |own| {
            own.valid_uri_names()
                .take(MOST_NAMES)
                .filter(|name| name.len() <= LONGEST_NAME)
                .map(str::to_owned)
                .collect()
        },
    )
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::{
        TlsConnector,
        rustls::{ClientConfig, HandshakeKind},
    };

    use super::*;

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = made(folder.path(), "a", IsCa::NoCa);
        for (mode, fine) in [(0o600, true), (0o640, true), (0o644, false), (0o620, false)] {
            fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).unwrap();
            match Tls::read(files.clone()) {
                Ok(_) => assert!(fine, "{mode:o}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(
                        !fine && error.contains("a-key.pem: it has mode") && error.contains("chmod 600"),
                        "{error}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_refused_key_is_read_when_its_mode_is_right_and_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let authority = made(folder.path(), "ca", IsCa::Ca(BasicConstraints::Unconstrained));
        let files = TlsFiles { client_ca: Some(authority.cert.clone()), ..made(folder.path(), "a", IsCa::NoCa) };
        let mut tls = Tls::read(files.clone()).unwrap();
        let mode = |mode| fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).unwrap();
        let mut look = || {
            tls.looked -= LOOK;
            let acceptor = tls.acceptor();
            (tls.own.chain.clone(), acceptor.config().clone())
        };
        let (first, config) = look();
        let other = made(folder.path(), "b", IsCa::NoCa);
        fs::copy(&other.cert, &files.cert).unwrap();
        fs::copy(&other.key, &files.key).unwrap();
        fs::copy(made(folder.path(), "c", IsCa::NoCa).cert, &authority.cert).unwrap();
        mode(0o644);
        let (own, with_authority) = look();
        assert!(own == first && !Arc::ptr_eq(&config, &with_authority), "authorities are followed all the same");
        mode(0o600);
        assert_eq!(look().0, certificates(&other.cert).unwrap());
    }

    fn made(folder: &Path, name: &str, is_ca: IsCa) -> TlsFiles {
        lasting(folder, name, is_ca, 4096)
    }

    /// A certificate that expires at the start of this year.
    fn lasting(folder: &Path, name: &str, is_ca: IsCa, year: i32) -> TlsFiles {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.is_ca = is_ca;
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        let path = |end: &str, text: String| {
            let path = folder.join(format!("{name}{end}.pem"));
            secret::write(&path, &text).unwrap();
            path
        };
        TlsFiles { cert: path("", cert.pem()), key: path("-key", key.serialize_pem()), ..TlsFiles::default() }
    }

    /// The kind of handshake of a client's second connection.
    async fn again(tls: &mut Tls) -> HandshakeKind {
        let mut roots = RootCertStore::empty();
        roots.add(certificates(&tls.files.cert).unwrap().remove(0)).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let connector = TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()));
        let mut kind = HandshakeKind::Full;
        for _ in 0..2 {
            let (theirs, ours) = tokio::io::duplex(1 << 16);
            let acceptor = tls.acceptor();
            let answering = tokio::spawn(async move {
                let mut stream = acceptor.accept(ours).await.unwrap();
                stream.write_all(b"hello").await.unwrap();
                stream.shutdown().await.unwrap();
            });
            let mut stream = connector.connect("localhost".try_into().unwrap(), theirs).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
            kind = stream.get_ref().1.handshake_kind().unwrap();
            answering.await.unwrap();
        }
        kind
    }

    #[tokio::test]
    async fn client_certificates_are_verified_on_each_connection() {
        let folder = tempfile::tempdir().unwrap();
        let files = made(folder.path(), "a", IsCa::NoCa);
        let authority = made(folder.path(), "ca", IsCa::Ca(BasicConstraints::Unconstrained));
        assert_eq!(again(&mut Tls::read(files.clone()).unwrap()).await, HandshakeKind::Resumed);
        let files = TlsFiles { client_ca: Some(authority.cert), ..files };
        assert_eq!(again(&mut Tls::read(files).unwrap()).await, HandshakeKind::Full);
    }

    #[test]
    fn an_authoritys_certificate_is_refused_for_servers() {
        let folder = tempfile::tempdir().unwrap();
        let openssl = made(folder.path(), "openssl", IsCa::Ca(BasicConstraints::Unconstrained));
        let error = Tls::read(openssl).unwrap_err().to_string();
        assert!(
            error.contains("openssl.pem") && error.contains("CA:FALSE") && error.contains("trainmaster certs"),
            "{error}"
        );
        for is_ca in [IsCa::ExplicitNoCa, IsCa::NoCa] {
            Tls::read(made(folder.path(), "fine", is_ca)).unwrap();
        }
    }

    #[test]
    fn changed_files_are_read_again_and_bad_ones_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let files = made(folder.path(), "a", IsCa::NoCa);
        let mut tls = Tls::read(files.clone()).unwrap();
        let before = tls.seen.clone();
        tls.looked -= LOOK;
        fs::write(&files.cert, "nonsense that is no certificate").unwrap();
        tls.acceptor();
        assert_ne!(tls.seen, before);
        let other = lasting(folder.path(), "b", IsCa::NoCa, 2031);
        fs::copy(&other.key, &files.key).unwrap();
        fs::copy(&other.cert, &files.cert).unwrap();
        tls.looked -= LOOK;
        tls.acceptor();
        assert_eq!(tls.ends(), 1_924_992_000);
        // An intermediate certificate may expire first.
        let between = lasting(folder.path(), "between", IsCa::Ca(BasicConstraints::Unconstrained), 2030);
        let chain = [&other.cert, &between.cert].map(|path| fs::read_to_string(path).unwrap()).concat();
        fs::write(&files.cert, chain).unwrap();
        assert_eq!(Tls::read(files.clone()).unwrap().ends(), 1_893_456_000);
        let missing = TlsFiles { cert: folder.path().join("none.pem"), ..files };
        assert!(Tls::read(missing).unwrap_err().to_string().contains("none.pem"));
    }
}
