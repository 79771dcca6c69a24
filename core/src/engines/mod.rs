//! The engines, a file or folder each, and their list; C ABI, gRPC, CLI and simulator find them by name.

use crate::{
    engine::Entry,
    policy::{Inputs, PolicyError},
    settings::SettingsError,
};

/// The modules of engines, and the registry of what each of them builds.
macro_rules! engines {
    ($($module:ident: $($engine:ident)+,)*) => {
        $(pub mod $module;)*

        /// All engines.
        pub const REGISTRY: &[Entry] = &[$($(Entry::of::<$module::$engine>(),)+)*];
    };
}

// In the order in which people are told of them. `scripts/check` formats these files: `cargo fmt` doesn't look into
// macros.
engines! {
    optimus: Optimus OptimusPaper,
    goodput: Goodput,
    pollux: Pollux,
    sia: Sia,
    oasis: Oasis,
    fifo: Fifo,
    drf: Drf,
    tetris: Tetris,
    rrh: Rrh,
    dorm: Dorm,
    edge: Edge,
    srtf: Srtf,
    tiresias: Tiresias,
    las: Las,
    batch: Batch,
    mlfs: Mlfs MlfH,
    slaq: Slaq,
    gandiva: Gandiva,
    graphene: Graphene,
    hypersched: Hypersched,
    fair: Fair,
    rl: Rl,
    random: Random,
}

/// The entry of a name.
///
/// # Errors
/// There is none; the error lists those there are.
pub fn find(name: &str) -> Result<&'static Entry, SettingsError> {
    REGISTRY.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<_> = REGISTRY.iter().map(|entry| entry.name).collect();
        SettingsError::new("engine", format!("{name:?} is not an engine; there are {}", known.join(", ")))
    })
}

/// The inputs of an engine's policy.
///
/// # Errors
/// It follows none; the error lists the engines that do.
pub fn policy_inputs(engine: &str) -> Result<&'static Inputs, PolicyError> {
    REGISTRY.iter().find(|entry| entry.name == engine).and_then(|entry| entry.inputs).ok_or_else(|| {
        let known: Vec<_> = REGISTRY.iter().filter(|entry| entry.inputs.is_some()).map(|entry| entry.name).collect();
        PolicyError::Engine { engine: engine.into(), known: known.join(", ") }
    })
}
