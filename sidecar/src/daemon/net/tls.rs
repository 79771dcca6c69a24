//! TLS from PEM files.

use std::{fs::File, io::BufReader, path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::daemon::{ServeError, config::Tls};

/// Reads certificate and key; offers HTTP/2 for gRPC and HTTP/1.1 for the rest.
///
/// # Errors
/// Names the file and what is wrong with it.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, ServeError> {
    let fail = |path: &Path, problem: String| ServeError::Config(format!("tls: {}: {problem}", path.display()));
    let open = |path: &Path| File::open(path).map(BufReader::new).map_err(|error| fail(path, error.to_string()));
    let chain: Vec<_> = CertificateDer::pem_reader_iter(open(&tls.cert)?)
        .collect::<Result<_, _>>()
        .map_err(|error| fail(&tls.cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(fail(&tls.cert, "it holds no certificate".into()));
    }
    let key = PrivateKeyDer::from_pem_reader(open(&tls.key)?).map_err(|error| fail(&tls.key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(&tls.cert, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key);
    let mut config = config.map_err(|error| fail(&tls.key, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
