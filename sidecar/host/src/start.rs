//! The first events of a host.

use trainmaster_core::{Event, EventError, Scheduler, Settings, Term, Time};

/// Begins a new term, later than that of the scheduler and than `last`, under the settings of the configuration.
/// Returns the term.
///
/// # Errors
/// The scheduler rejects the settings.
pub fn begin(scheduler: &mut Scheduler, now: Time, last: Term, settings: &Settings) -> Result<Term, EventError> {
    let term = Term(last.max(scheduler.state().term).0 + 1);
    scheduler.apply(now, Event::TermBegan(term))?;
    if *scheduler.state().settings != *settings {
        scheduler.apply(now, Event::Configured(Box::new(settings.clone())))?;
    }
    Ok(term)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_later_than_all_before_it_and_has_the_settings_of_now() {
        let settings = |engine: &str| Settings { engine: engine.into(), ..Settings::default() };
        let mut scheduler = Scheduler::new(settings("fifo")).unwrap();
        assert_eq!(begin(&mut scheduler, Time(1), Term(7), &settings("drf")), Ok(Term(8)));
        assert_eq!(scheduler.engine_name(), "drf");
        assert_eq!(begin(&mut scheduler, Time(1), Term(0), &settings("drf")), Ok(Term(9)));
        begin(&mut scheduler, Time(2), Term(0), &settings("none")).unwrap_err();
    }
}
