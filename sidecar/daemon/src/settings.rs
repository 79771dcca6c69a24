//! The scheduler's settings as text: the defaults and the current settings.

use toml::Table;
use trainmaster_core::Settings;

/// The default settings as a settings file, with a reason for each.
pub const DEFAULT_SETTINGS: &str = include_str!("default.toml");

/// The default settings.
pub(crate) fn defaults() -> Settings {
    Settings::from_toml(DEFAULT_SETTINGS).expect("the file is compiled in and tested")
}

/// All settings as a settings file. Parsing it gives the same settings.
///
/// ```
/// use trainmaster_daemon::settings_text;
/// use trainmaster_core::Settings;
///
/// let settings = Settings::from_toml("engine = \"drf\"\nqueues.batch.memory = \"64GiB\"").unwrap();
/// assert_eq!(Settings::from_toml(&settings_text(&settings)).unwrap(), settings);
/// ```
pub fn settings_text(settings: &Settings) -> String {
    if *settings == defaults() { DEFAULT_SETTINGS.into() } else { settings_table(settings).to_string() }
}

/// All settings as a table.
pub fn settings_table(settings: &Settings) -> Table {
    Table::try_from(settings).expect("settings are numbers and texts")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use trainmaster_core::{Scheduler, settings::Parameter};

    use super::*;

    #[test]
    fn without_settings_optimus_decides_with_what_the_paper_leaves_out() {
        let settings = defaults();
        assert_eq!(settings.engine, "optimus");
        assert!(
            ["between_rounds", "rescale_cost", "resize_in_place", "shrink_to_fit", "spare_gpus"]
                .iter()
                .all(|name| settings.parameters[*name] == Parameter::Flag(true))
        );
        assert_eq!(Settings { parameters: BTreeMap::new(), ..settings.clone() }, Settings::default());
        Scheduler::new(settings).expect("its engine knows these parameters");
    }

    #[test]
    fn what_is_printed_reads_back() {
        let text = r#"
            engine = "drf"
            fallback_after = 7
            refusal_backoff = "1500ms"
            seed = 9
            refusals = 2
            share_models = true
            [parameters]
            interval = "5s"
            a = 0.25
            b = true
            [shape]
            colocate = false
            [caps]
            utility = 7.5
            urgency = 3
            [stability]
            min_run = "10s"
            payback = 0.5
            [queues.batch]
            gpu = 4.5
            memory = "1025MiB"
            [tenants."a b"]
            bandwidth = "1001Mbit"
        "#;
        for settings in [
            Settings::from_toml(text).unwrap(),
            Settings::from_toml("stability = \"off\"").unwrap(),
            defaults(),
            Settings::default(),
        ] {
            let printed = settings_text(&settings);
            assert_eq!(Settings::from_toml(&printed).unwrap(), settings, "{printed}");
        }
        assert!(settings_text(&defaults()).starts_with("# What"));
    }
}
