//! The plug-ins' plan, and ApplicationMasters' orders.

use std::{collections::BTreeMap, time::Duration};

use trainmaster_core::{JobSpec, Role};
use trainmaster_manager::{Action, Order, SlotId};

use super::{
    super::{
        amounts,
        slots::{ALONE, AllocationRequest},
        wire::{self, Standing},
    },
    App, Link, NoPlan, Translator,
};

/// Time for a program to stop if there is no plan for it.
const GRACE: Duration = Duration::from_secs(30);
const ASKING: &str = "the scheduler is being asked to take it";
const UNTOLD: &str = "the job files of its user's applications, or of everybody's, are too long together: it waits \
    for older ones to end";
const JOBLESS: &str = "the scheduler has no job of this application";
const UNDECIDED: &str = "the scheduler hasn't decided about it yet";

fn grace_ms(order: &Order) -> i64 {
    order.grace.map_or(0, |grace| grace.as_millis() as i64)
}

impl Translator {
    /// The plan for the plug-ins. It expires no later than the daemon's.
    ///
    /// # Errors
    /// There is no plan, or it has expired.
    pub(crate) fn bridge_plan(&mut self, now: Duration, clock_ms: i64) -> Result<wire::Plan, NoPlan> {
        let ttl = self.time_left(now)?.map_or(self.config.ttl, |left| left.min(self.config.ttl));
        let live = self.apps.iter().filter(|(_, app)| app.end.is_none() && app.row.is_some());
        let applications: Vec<_> = live.map(|(id, app)| self.application_plan(now, id, app)).collect();
        let (last, number) = &self.told;
        if *number == 0 || *last != applications || self.enforced > *number {
            // The number is higher than any of an earlier run.
            let number = clock_ms.unsigned_abs().max(number + 1).max(self.enforced.saturating_add(1));
            self.told = (applications, number);
        }
        let (applications, number) = self.told.clone();
        let term = self.follower.stamp().map_or(0, |(term, _)| term);
        let missed = self.apps.iter().filter(|(_, app)| app.is_missed()).map(|(id, _)| id.clone()).collect();
        Ok(wire::Plan { term, number, ttl_ms: ttl.as_millis() as i64, applications, missed })
    }

    /// The time until the daemon's plan expires; `None`: never.
    pub(super) fn time_left(&self, now: Duration) -> Result<Option<Duration>, NoPlan> {
        if !self.follower.stands(now) {
            return Err(NoPlan);
        }
        Ok(self.follower.expires().map(|at| at - now))
    }

    fn application_plan(&self, now: Duration, id: &str, app: &App) -> wire::ApplicationPlan {
        let grace_ms = app.order.as_ref().map_or(GRACE.as_millis() as i64, grace_ms);
        let plan = |action: wire::Action, slots, reason: &str| wire::ApplicationPlan {
            id: id.to_owned(),
            action: action.into(),
            slots,
            grace_ms,
            priority: None,
            reason: reason.to_owned(),
        };
        let hold = |reason: &str| plan(wire::Action::Hold, Vec::new(), reason);
        let order = match (&app.link, &app.order) {
            (Link::Refused(why), _) => return plan(wire::Action::Kill, Vec::new(), why),
            (Link::Job(_), Some(order)) => order,
            _ => {
                let reason = undecided(app);
                // A job that began in standalone mode continues until there is a decision.
                let begun = !app.held(&self.nodes).is_empty();
                return if begun { plan(wire::Action::Release, Vec::new(), reason) } else { hold(reason) };
            }
        };
        match order.action {
            Action::Run(_) => {
                let slots = self.slots(order.incarnation, app.wanted(&self.nodes));
                match &app.refused {
                    Some(why) if slots.is_empty() => hold(why),
                    _ => wire::ApplicationPlan {
                        priority: app.priority(),
                        ..plan(wire::Action::Run, slots, &order.reason)
                    },
                }
            }
            Action::Wait => hold(&order.reason),
            Action::Release(_) => plan(wire::Action::Release, Vec::new(), &order.reason),
            Action::Reject => plan(wire::Action::Kill, Vec::new(), &order.reason),
            Action::Stop { .. } if app.lingers(now, &self.config) => {
                plan(wire::Action::Kill, Vec::new(), &order.reason)
            }
            // Its programs end by themselves.
            Action::Stop { completed: true } => {
                let held = app.held(&self.nodes).into_iter().filter(|(_, held)| held.incarnation == order.incarnation);
                let held = held.map(|(slot, held)| (slot, held.server.to_owned())).collect();
                plan(wire::Action::Run, self.slots(order.incarnation, held), &order.reason)
            }
            Action::Stop { completed: false } => hold(&order.reason),
        }
    }

    fn slots(&self, incarnation: u32, wanted: BTreeMap<SlotId, String>) -> Vec<wire::Slot> {
        let slots = wanted.into_iter().filter_map(|(slot, server)| {
            let allocation_request = AllocationRequest::new(incarnation, slot).ok()?.id();
            Some(wire::Slot { allocation_request, node: self.nodes.node(&server)?.id.clone() })
        });
        slots.collect()
    }

    /// The orders for an application's ApplicationMaster. `None`: there is no such application.
    ///
    /// # Errors
    /// There is no plan to follow yet.
    pub(crate) fn orders(&self, now: Duration, application: &str) -> Result<Option<wire::Orders>, NoPlan> {
        let Some(app) = self.apps.get(application) else { return Ok(None) };
        let is_stale = self.time_left(now).is_err();
        if self.follower.stamp().is_none() {
            return Err(NoPlan);
        }
        let mut orders = wire::Orders {
            job: app.job().unwrap_or_default(),
            grace_ms: GRACE.as_millis() as i64,
            ttl_ms: self.config.ttl.as_millis() as i64,
            ..wire::Orders::default()
        };
        let stand = |orders: &mut wire::Orders, standing: Standing, reason: &str| {
            orders.set_standing(standing);
            reason.clone_into(&mut orders.reason);
        };
        if let Some(order) = &app.order {
            orders.name.clone_from(&order.name);
            orders.incarnation = order.incarnation;
            orders.revision = order.revision;
            orders.grace_ms = grace_ms(order);
        }
        match (&app.link, app.order.as_ref().map(|order| (&order.action, order))) {
            (Link::Refused(why), _) => stand(&mut orders, Standing::Over, why),
            (_, Some((Action::Stop { completed }, order))) => {
                stand(&mut orders, Standing::Over, &order.reason);
                orders.completed = *completed;
            }
            (_, Some((Action::Reject, order))) => stand(&mut orders, Standing::Over, &order.reason),
            (_, Some((Action::Release(_), order))) => stand(&mut orders, Standing::Released, &order.reason),
            _ if is_stale => stand(&mut orders, Standing::Released, "the scheduler is away"),
            (_, None) if app.is_left_alone() => stand(&mut orders, Standing::Released, JOBLESS),
            (_, None) => {
                let begun = !app.held(&self.nodes).is_empty();
                stand(&mut orders, if begun { Standing::Released } else { Standing::Wait }, undecided(app));
            }
            (_, Some((Action::Wait, order))) => stand(&mut orders, Standing::Wait, &order.reason),
            (_, Some((Action::Run(_), order))) => {
                let wanted = app.wanted(&self.nodes);
                if wanted.is_empty() {
                    stand(&mut orders, Standing::Wait, app.refused.as_deref().unwrap_or_default());
                } else {
                    orders.slots = self.slot_orders(app, order.incarnation, &wanted);
                }
            }
        }
        self.start(&mut orders, app);
        Ok(Some(orders))
    }

    fn slot_orders(&self, app: &App, incarnation: u32, wanted: &BTreeMap<SlotId, String>) -> Vec<wire::SlotOrder> {
        let orders = wanted.iter().filter_map(|(&slot, server)| {
            let node = self.nodes.node(server)?;
            Some(wire::SlotOrder {
                server: slot.role == Role::Server,
                index: slot.index,
                node: node.id.clone(),
                node_name: node.name.clone(),
                allocation_request: AllocationRequest::new(incarnation, slot).ok()?.id(),
                resource: app.demand(slot.role).map(amounts::request).unwrap_or_default(),
            })
        });
        orders.collect()
    }

    /// Sets the programs and environment of processes.
    fn start(&self, orders: &mut wire::Orders, app: &App) {
        let Some(spec) = &app.spec else { return };
        program(orders, spec);
        let environment = &mut orders.environment;
        if let Some(Action::Run(run)) = app.order.as_ref().map(|order| &order.action) {
            // The batch that was chosen.
            environment.extend(run.environment.clone());
        }
        environment.extend(self.environment.clone());
        // Before the daemon knows the job, its programs can't report.
        if let Some(order) = &app.order {
            environment.insert("TRAINMASTER_JOB".into(), orders.job.to_string());
            environment.insert("TRAINMASTER_JOB_NAME".into(), order.name.clone());
            if !order.token.0.is_empty() {
                environment.insert("TRAINMASTER_TOKEN".into(), order.token.0.clone());
            }
        }
    }
}

/// Why there is no order yet.
fn undecided(app: &App) -> &'static str {
    match app.link {
        Link::Job(_) => UNDECIDED,
        _ if app.is_untold() => UNTOLD,
        _ => ASKING,
    }
}

/// Sets a job's programs, which don't depend on the plan.
fn program(orders: &mut wire::Orders, spec: &JobSpec) {
    orders.worker_command.clone_from(&spec.worker.command);
    orders.server_command = spec.server.as_ref().map(|role| role.command.clone()).unwrap_or_default();
    let own = spec.environment().into_iter().map(|(key, value)| (key.to_owned(), value));
    orders.environment.extend(own);
    orders.environment.insert("TRAINMASTER_INCARNATION".into(), orders.incarnation.to_string());
    orders.environment.insert("TRAINMASTER_REVISION".into(), orders.revision.to_string());
}

/// The orders for an ApplicationMaster that can't reach the adapter: the requested shape, on any nodes.
pub(crate) fn alone(spec: &JobSpec, ttl: Duration) -> wire::Orders {
    let shape = spec.requested();
    let slots =
        [(Role::Worker, shape.workers, Some(&spec.worker)), (Role::Server, shape.servers, spec.server.as_ref())];
    let slots = slots.into_iter().flat_map(|(role, count, of)| {
        let resource = of.map(|of| amounts::request(&of.demand)).unwrap_or_default();
        (0..count).filter_map(move |index| {
            Some(wire::SlotOrder {
                server: role == Role::Server,
                index,
                allocation_request: AllocationRequest::new(ALONE, SlotId::new(role, index)).ok()?.id(),
                resource: resource.clone(),
                ..wire::SlotOrder::default()
            })
        })
    });
    let mut orders = wire::Orders {
        name: spec.name.clone(),
        standing: Standing::Released.into(),
        incarnation: ALONE,
        slots: slots.collect(),
        reason: "the scheduler is away".into(),
        grace_ms: GRACE.as_millis() as i64,
        ttl_ms: ttl.as_millis() as i64,
        ..wire::Orders::default()
    };
    program(&mut orders, spec);
    orders.environment.insert("TRAINMASTER_JOB".into(), "0".into());
    orders.environment.insert("TRAINMASTER_JOB_NAME".into(), spec.name.clone());
    orders
}
