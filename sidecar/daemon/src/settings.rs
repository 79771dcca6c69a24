//! The scheduler's settings as text.

use toml::Table;
use trainmaster_core::Settings;

/// All settings as a table. Parsing its text gives the same settings.
///
/// ```
/// use trainmaster_daemon::settings_table;
/// use trainmaster_core::Settings;
///
/// let settings = Settings::from_toml("engine = \"drf\"\nqueues.batch.memory = \"64GiB\"").unwrap();
/// assert_eq!(Settings::from_toml(&settings_table(&settings).to_string()).unwrap(), settings);
/// ```
pub fn settings_table(settings: &Settings) -> Table {
    Table::try_from(settings).expect("settings are numbers and texts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back() {
        let text = r#"
            engine = "drf"
            fallback_after = 7
            refusal_backoff = "1500ms"
            seed = 9
            refusals = 2
            share_models = true
            early_stop = true
            [parameters]
            interval = "5s"
            a = 0.25
            b = true
            [shape]
            colocate = false
            [caps]
            utility = 7.5
            urgency = 3
            priority = 0
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
            Settings::default(),
        ] {
            let printed = settings_table(&settings).to_string();
            assert_eq!(Settings::from_toml(&printed).unwrap(), settings, "{printed}");
        }
    }
}
