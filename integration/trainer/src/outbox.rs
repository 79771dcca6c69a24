//! Messages for the feed: bounded, in order, and kept until they are answered.

use std::collections::VecDeque;

use trainmaster_proto::v1::{AcknowledgeRequest, Progress};

/// Maximum number of reports without the feed. The oldest are dropped first.
const REPORTS: usize = 1024;
/// Maximum number of reports in one call.
const AT_ONCE: usize = 64;

/// Reports and acknowledgements to send.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    reports: VecDeque<Progress>,
    acknowledgements: VecDeque<AcknowledgeRequest>,
    dropped: u64,
}

/// The next call.
#[derive(Debug, PartialEq)]
pub(crate) enum Call {
    Report(Vec<Progress>),
    Acknowledge(AcknowledgeRequest),
}

impl Outbox {
    pub(crate) fn report(&mut self, progress: Progress) {
        if self.reports.len() == REPORTS {
            self.reports.pop_front();
            self.dropped += 1;
        }
        self.reports.push_back(progress);
    }

    pub(crate) fn acknowledge(&mut self, request: AcknowledgeRequest) {
        self.acknowledgements.push_back(request);
    }

    /// Number of reports that were dropped because the feed was away too long.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.acknowledgements.is_empty()
    }

    /// The next call. It stays in the outbox until [`Outbox::answered`]. Reports go first, so that "finished" comes
    /// before "leaving".
    pub(crate) fn next(&self) -> Option<Call> {
        if !self.reports.is_empty() {
            return Some(Call::Report(self.reports.iter().take(AT_ONCE).cloned().collect()));
        }
        self.acknowledgements.front().cloned().map(Call::Acknowledge)
    }

    /// The feed has answered a call, whether it accepted it or not.
    pub(crate) fn answered(&mut self, call: &Call) {
        match call {
            // By number, not by count, because the oldest may have been dropped during the call.
            Call::Report(sent) => {
                let last = sent.last().map_or(0, |progress| progress.seq);
                while self.reports.front().is_some_and(|progress| progress.seq <= last) {
                    self.reports.pop_front();
                }
            }
            Call::Acknowledge(_) => {
                self.acknowledgements.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(seq: u64) -> Progress {
        Progress { seq, ..Progress::default() }
    }

    #[test]
    fn the_oldest_reports_go_when_there_are_too_many() {
        let mut outbox = Outbox::default();
        (1..=REPORTS as u64 + 5).for_each(|seq| outbox.report(progress(seq)));
        assert_eq!(outbox.dropped(), 5);
        assert_eq!(outbox.reports.front().unwrap().seq, 6);
    }

    #[test]
    fn only_sent_reports_are_answered() {
        let mut outbox = Outbox::default();
        (1..=3).for_each(|seq| outbox.report(progress(seq)));
        let call = outbox.next().unwrap();
        outbox.report(progress(4));
        outbox.reports.pop_front(); // dropped meanwhile
        outbox.answered(&call);
        assert_eq!(outbox.next(), Some(Call::Report(vec![progress(4)])));
    }

    #[test]
    fn reports_go_before_acknowledgements() {
        let mut outbox = Outbox::default();
        outbox.acknowledge(AcknowledgeRequest { leaving: true, ..AcknowledgeRequest::default() });
        outbox.report(progress(1));
        let first = outbox.next().unwrap();
        assert!(matches!(first, Call::Report(_)));
        outbox.answered(&first);
        let second = outbox.next().unwrap();
        assert!(matches!(second, Call::Acknowledge(_)));
        outbox.answered(&second);
        assert!(outbox.is_empty());
    }
}
