//! The scheduler's settings as text: the defaults and the current settings.

use std::collections::BTreeMap;

use toml::{Table, Value};
use trainmaster_core::{
    Settings, Span,
    amount::Unit,
    settings::{Caps, Parameter, ShapeRules, Stability},
};

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
    let Settings {
        engine,
        parameters,
        fallback,
        fallback_after,
        stability,
        shape,
        caps,
        queues,
        tenants,
        share_models,
        refusal_backoff,
        refusals,
        seed,
    } = settings;
    let ShapeRules { equal_per_server, colocate, grow_in_place, oversubscribe } = *shape;
    let parameters = parameters.iter().map(|(key, value)| (key.clone(), parameter(value)));
    let mut table = Table::from_iter([
        ("engine".to_owned(), Value::from(engine.as_str())),
        ("parameters".to_owned(), Value::Table(parameters.collect())),
        ("fallback".to_owned(), fallback.as_str().into()),
        ("fallback_after".to_owned(), (*fallback_after).into()),
        ("stability".to_owned(), stability_value(stability)),
        (
            "shape".to_owned(),
            Value::Table(Table::from_iter([
                ("equal_per_server".to_owned(), equal_per_server.into()),
                ("colocate".to_owned(), colocate.into()),
                ("grow_in_place".to_owned(), grow_in_place.into()),
                ("oversubscribe".to_owned(), (f64::from(oversubscribe) / 1000.0).into()),
            ])),
        ),
        ("caps".to_owned(), caps_value(caps)),
        ("share_models".to_owned(), (*share_models).into()),
        ("refusal_backoff".to_owned(), span(*refusal_backoff)),
        ("refusals".to_owned(), (*refusals).into()),
    ]);
    // TOML's integers are signed, so no file can have a larger seed.
    table.extend(i64::try_from(*seed).ok().map(|seed| ("seed".to_owned(), seed.into())));
    for (key, of) in [("queues", queues), ("tenants", tenants)] {
        if !of.is_empty() {
            table.insert(
                key.to_owned(),
                Value::Table(of.iter().map(|(name, most)| (name.clone(), limits(most))).collect()),
            );
        }
    }
    table
}

fn parameter(value: &Parameter) -> Value {
    match value {
        Parameter::Number(number) => (*number).into(),
        Parameter::Flag(flag) => (*flag).into(),
        Parameter::Text(text) => text.as_str().into(),
    }
}

fn stability_value(stability: &Stability) -> Value {
    let Stability { enabled, min_run, rescales_per_hour, payback } = *stability;
    if !enabled {
        return "off".into();
    }
    Value::Table(Table::from_iter([
        ("min_run".to_owned(), span(min_run)),
        ("rescales_per_hour".to_owned(), rescales_per_hour.into()),
        ("payback".to_owned(), payback.into()),
    ]))
}

fn caps_value(caps: &Caps) -> Value {
    let Caps { utility, urgency } = *caps;
    let mut table = Table::from_iter([("urgency".to_owned(), Value::from(urgency))]);
    // An absent cap has no line.
    table.extend((utility < f64::MAX).then(|| ("utility".to_owned(), utility.into())));
    Value::Table(table)
}

fn span(span: Span) -> Value {
    let ms = span.0;
    let (number, unit) = if ms % 1000 == 0 { (ms / 1000, "s") } else { (ms, "ms") };
    format!("{number}{unit}").into()
}

fn limits(most: &BTreeMap<String, i64>) -> Value {
    let limit = |(name, value): (&String, &i64)| {
        let unit = Unit::of(name);
        let short = unit.format(*value);
        // The form for display is rounded, so it may be another amount.
        let exact = unit.parse(&short) == Ok(*value);
        let text = match unit {
            _ if exact => short,
            Unit::Milli => format!("{}.{:03}", value / 1000, value % 1000),
            Unit::MiB => format!("{value}MiB"),
            Unit::Mbit => format!("{value}Mbit"),
        };
        (name.clone(), text.into())
    };
    Value::Table(most.iter().map(limit).collect())
}

#[cfg(test)]
mod tests {
    use trainmaster_core::Scheduler;

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
