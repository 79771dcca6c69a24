//! Which engines there are.

use trainmaster_core::{engine::DefaultValue, engines::REGISTRY};

use crate::{
    borrow::{self, grows},
    guard,
    owned::{self, Keep},
    plan::stride,
    text::{trainmaster_message, trainmaster_string},
};

/// A parameter of an engine: a key of the settings' table `parameters`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_parameter {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// As in the settings.
    pub name: trainmaster_string,
    /// What it is without being set, as in the settings.
    pub standard: trainmaster_string,
    /// What it does, with its unit.
    pub meaning: trainmaster_string,
}

/// An engine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_engine {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// As in the settings.
    pub name: trainmaster_string,
    /// What it does, in a line.
    pub summary: trainmaster_string,
    /// Where it comes from.
    pub paper: trainmaster_string,
    /// The first of its parameters.
    pub parameters: *const trainmaster_parameter,
    /// How many.
    pub parameters_count: u64,
    /// Bytes from one to the next.
    pub parameters_stride: u64,
}

/// All engines. Yours; free it with trainmaster_engines_free().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_engines {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The first.
    pub data: *const trainmaster_engine,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

grows!(trainmaster_parameter: 56, trainmaster_engine: 80, trainmaster_engines: 32);

/// Lists the engines. Any thread.
///
/// Errors: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_engines_list(
    engines: *mut *const trainmaster_engines,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        borrow::settable(engines, "engines")?;
        let mut keep = Keep::default();
        let mut all = Vec::with_capacity(REGISTRY.len());
        for entry in REGISTRY {
            let known = entry.parameters();
            let mut parameters = Vec::with_capacity(known.len());
            for parameter in known {
                let standard = match parameter.default {
                    DefaultValue::Number(number) => number.to_string(),
                    DefaultValue::Flag(flag) => flag.to_string(),
                    DefaultValue::Text(text) => format!("{text:?}"),
                };
                parameters.push(trainmaster_parameter {
                    size: size_of::<trainmaster_parameter>() as u32,
                    reserved: 0,
                    name: trainmaster_string::of(parameter.name),
                    standard: keep.text(standard),
                    meaning: trainmaster_string::of(parameter.meaning),
                });
            }
            let (parameters, parameters_count) = keep.array(parameters);
            all.push(trainmaster_engine {
                size: size_of::<trainmaster_engine>() as u32,
                reserved: 0,
                name: trainmaster_string::of(entry.name),
                summary: trainmaster_string::of(entry.summary),
                paper: trainmaster_string::of(entry.paper),
                parameters,
                parameters_count,
                parameters_stride: stride::<trainmaster_parameter>(),
            });
        }
        let (data, count) = keep.array(all);
        let size = size_of::<trainmaster_engines>() as u32;
        let view = trainmaster_engines { size, reserved: 0, data, count, stride: stride::<trainmaster_engine>() };
        owned::hand_result(engines, view, keep, "engines")
    })
}

/// Frees a list of engines. NULL is nothing. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_engines_free(engines: *const trainmaster_engines) {
    guard::quiet(|| owned::free_result(engines));
}
