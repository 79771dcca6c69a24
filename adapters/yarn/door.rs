//! Access to this adapter's server. The plug-ins use their token, and ApplicationMasters their application's secret.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{extract::Request, http::HeaderMap};
use tonic::Status;
use trainmaster_net::{Caller, Doorkeeper, Kind, Share, TokenFile, bearer};

use super::{secret::SecretHash, shared::Shared};

/// The header with the application of an ApplicationMaster.
pub(super) const APPLICATION: &str = "trainmaster-application";
const BRIDGE: &str = "/trainmaster.yarn.v1.Bridge/";
const MASTER: &str = "/trainmaster.yarn.v1.Master/";
/// Maximum number of streams and connections of one application. An ApplicationMaster follows once, and its successor
/// may connect before it is gone.
const FOLLOWED: usize = 4;

/// A call's application, proven by its secret. Stored in the request's extensions.
#[derive(Clone)]
pub(super) struct Application(pub(super) String);

/// Checks the token or the secret.
pub(super) struct Door {
    pub(super) shared: Arc<Shared>,
    /// The plug-ins' token. `None` without plug-ins.
    pub(super) token: Option<Mutex<TokenFile>>,
}

impl Door {
    fn is_plug_in(&self, headers: &HeaderMap) -> Result<bool, Status> {
        let (Some(file), Some(given)) = (&self.token, bearer(headers)?) else { return Ok(false) };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.look();
        Ok(SecretHash::of(file.token()).matches(given))
    }

    /// An unknown application and a wrong secret give the same answer.
    fn application(&self, headers: &HeaderMap) -> Result<Option<String>, Status> {
        let named = headers.get(APPLICATION).and_then(|value| value.to_str().ok());
        let (Some(named), Some(given)) = (named, bearer(headers)?) else { return Ok(None) };
        let known = self.shared.look(|translator, _| translator.secret(named));
        Ok(known.is_some_and(|hash| hash.matches(given)).then(|| named.to_owned()))
    }
}

impl Doorkeeper for Door {
    fn kind(&self, path: &str) -> Kind {
        match path {
            path if path.starts_with(BRIDGE) => Kind::Call,
            path if path.starts_with(MASTER) => Kind::List,
            _ => Kind::Page,
        }
    }

    fn admit(&self, request: &mut Request) -> Result<Option<Caller>, Status> {
        let path = request.uri().path();
        if path.starts_with(BRIDGE) {
            if !self.is_plug_in(request.headers())? {
                return Err(Status::unauthenticated(
                    "the plug-ins need this adapter's token (token_file): authorization: Bearer <token>",
                ));
            }
            return Ok(Some(Caller { name: "plug-ins".into(), shares: Vec::new(), first: true, standing: None }));
        }
        if path.starts_with(MASTER) {
            let Some(application) = self.application(request.headers())? else {
                return Err(Status::unauthenticated(format!(
                    "the application in {APPLICATION} isn't known, or authorization has another secret than it was \
                     submitted with"
                )));
            };
            let key: Arc<str> = application.as_str().into();
            let share = Share { key: key.clone(), bytes: 64 << 10, lists: FOLLOWED, connections: FOLLOWED };
            request.extensions_mut().insert(Application(application));
            return Ok(Some(Caller { name: key, shares: vec![share], first: false, standing: None }));
        }
        Err(Status::not_found("nothing is served here"))
    }
}
