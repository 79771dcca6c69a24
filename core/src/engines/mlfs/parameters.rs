//! The parameters of `mlfs`, `mlf-h` and `rl`.

use crate::{
    engine::{Parameters, round},
    settings::SettingsError,
    time::Span,
};

/// The engine. See the [module](super).
#[derive(Clone, Debug)]
pub struct Mlfs {
    pub(super) interval: Span,
    pub(super) alpha: f64,
    pub(super) gamma: f64,
    pub(super) gamma_deadline: f64,
    pub(super) gamma_remaining: f64,
    pub(super) gamma_waited: f64,
    pub(super) overload: f64,
    pub(super) cluster_overload: f64,
    pub(super) movable: f64,
    pub(super) urgency: bool,
    pub(super) bandwidth: bool,
    pub(super) migrate: bool,
    pub(super) weighed: bool,
    pub(super) stop: bool,
    pub(super) policy: bool,
    pub(super) scaled: bool,
    /// Name of the engine whose policy is used.
    pub(super) learnt_by: &'static str,
    /// Whether goals other than the completion time count.
    pub(super) goals: bool,
}

/// An engine whose only goal is early completion, with the waiting time as its heuristic.
pub(in crate::engines) fn for_completion(
    learnt_by: &'static str,
    parameters: &mut Parameters<'_>,
) -> Result<Mlfs, SettingsError> {
    Ok(Mlfs {
        interval: round::minute(parameters)?,
        alpha: 0.0,
        gamma: 0.0,
        gamma_deadline: 0.0,
        gamma_remaining: 0.0,
        gamma_waited: 1.0,
        overload: overload(parameters)?,
        cluster_overload: 1.0,
        movable: 0.0,
        urgency: false,
        bandwidth: true,
        migrate: false,
        weighed: true,
        stop: false,
        policy: policy(parameters, true)?,
        scaled: true,
        learnt_by,
        goals: false,
    })
}

fn overload(parameters: &mut Parameters<'_>) -> Result<f64, SettingsError> {
    let meaning = "a server that uses more of a resource than this part is overloaded (h_r)";
    parameters.number("overload", 0.9, 0.1..=1.0, meaning)
}

fn policy(parameters: &mut Parameters<'_>, default: bool) -> Result<bool, SettingsError> {
    let meaning = "tasks go where a learnt policy says, if one is set (MLF-RL); off: by the heuristic (MLF-H)";
    parameters.flag("policy", default, meaning)
}

impl Mlfs {
    /// With or without its early stops and policy as the default.
    pub(super) fn read(
        learnt_by: &'static str,
        parameters: &mut Parameters<'_>,
        full: bool,
    ) -> Result<Self, SettingsError> {
        let alpha = "weight of the ML features beside deadline, remaining and waiting time (Eq. 6)";
        let cluster = "so is a cluster whose servers on average use more of everything (h_s)";
        let movable = "part of an overloaded GPU's tasks, those of the lowest priority, that may leave (p_s)";
        let stop = "jobs stop as their owners chose, under load as far as they consent (MLF-C)";
        let weighed =
            "a task leaves once the jobs there have lost the time of its job's restart; off: at once, as in the paper";
        let scaled = "ML and computation features are scaled before they are mixed; off: as in the paper";
        Ok(Self {
            interval: round::minute(parameters)?,
            alpha: parameters.number("alpha", 0.3, 0.0..=1.0, alpha)?,
            gamma: parameters.number(
                "gamma",
                0.8,
                0.0..=1.0,
                "what of a child's priority its parents get (Eq. 3 and 5)",
            )?,
            gamma_deadline: parameters.number("gamma_deadline", 0.3, 0.0..=1e6, "weight of the deadline (Eq. 4)")?,
            gamma_remaining: parameters.number("gamma_remaining", 0.3, 0.0..=1e6, "weight of the remaining time")?,
            gamma_waited: parameters.number("gamma_waited", 0.35, 0.0..=1e6, "weight of the waiting time")?,
            overload: overload(parameters)?,
            cluster_overload: parameters.number("cluster_overload", 0.9, 0.1..=1.0, cluster)?,
            movable: parameters.number("movable", 0.1, 0.0..=1.0, movable)?,
            urgency: parameters.flag("urgency", true, "urgency counts")?,
            bandwidth: parameters.flag("bandwidth", true, "tasks are placed near their peers")?,
            migrate: parameters.flag("migrate", true, "tasks leave overloaded servers")?,
            weighed: parameters.flag("weighed", true, weighed)?,
            stop: parameters.flag("stop", full, stop)?,
            policy: policy(parameters, full)?,
            scaled: parameters.flag("scaled", true, scaled)?,
            learnt_by,
            goals: true,
        })
    }
}
