//! Validation of the model after each epoch, on examples that are never trained.
//!
//! The holders send their parameters of the epoch's end before they receive the next step, and training continues
//! meanwhile. In asynchronous training the parameters are those at the time of the request.

use std::collections::BTreeMap;

use tracing::{info, warn};

use super::{Chief, phase::Look};
use crate::{feed::Feed, id::Id, net::Net, wire::Message};

impl Chief {
    /// Requests the parameters if an epoch has just ended. A pending validation is abandoned.
    pub(super) fn look(&mut self, net: &mut Net) {
        // If the job is done, the last report contains the final accuracy.
        let Some(training_accuracy) = self.ledger.unseen().filter(|_| self.ledger.done.is_none()) else { return };
        let (version, Some(sources)) = (self.ledger.step, self.sources()) else { return };
        sources.iter().for_each(|id| net.send(*id, Message::Show { version }));
        self.look = Some(Look { version, sources, parts: BTreeMap::new(), training_accuracy });
    }

    /// Receives a holder's parameters.
    pub(super) fn shown(&mut self, from: Id, version: u64, parameters: Vec<f32>, feed: &Feed) {
        let Some(look) = self.look.as_mut().filter(|look| look.version == version) else { return };
        look.parts.insert(from, parameters);
        if !look.sources.iter().all(|id| look.parts.contains_key(id)) {
            return;
        }
        let Some(Look { sources, parts, training_accuracy, .. }) = self.look.take() else { return };
        let Some(parameters) = self.layout.join(sources.iter().map(|id| parts[id].as_slice())) else {
            return warn!("the parts of the model don't fit together; its accuracy isn't known");
        };
        let accuracy = self.validation.accuracy(&parameters);
        let epoch = self.ledger.epochs();
        info!("epoch {epoch}: accuracy {accuracy:.3} on held-out examples, {training_accuracy:.3} in training");
        let progress = self.ledger.validated(accuracy);
        feed.report(progress);
    }
}
