//! What the plug-ins enforce, and what ApplicationMasters do.

use std::{collections::BTreeMap, time::Duration};

use trainmaster_core::Role;

use super::{
    super::{
        amounts,
        slots::{AllocationRequest, SlotId},
        wire::{self, Standing},
    },
    Action, App, Link, NoPlan, Translator,
};

const ASKING: &str = "the scheduler is being asked to take it";
const UNDECIDED: &str = "the scheduler hasn't decided about it yet";

impl Translator {
    /// The plan for the plug-ins, which stands until the daemon's does at most.
    ///
    /// # Errors
    /// There is none, or not any longer.
    pub(crate) fn bridge_plan(&mut self, now: Duration, clock_ms: i64) -> Result<wire::Plan, NoPlan> {
        let ttl = self.time_left(now)?.map_or(self.config.ttl, |left| left.min(self.config.ttl));
        let live = self.apps.iter().filter(|(_, app)| app.end.is_none() && app.row.is_some());
        let applications: Vec<_> = live.map(|(id, app)| self.application_plan(now, id, app)).collect();
        let (last, number) = &self.told;
        if *number == 0 || *last != applications || self.enforced > *number {
            // Later than any that an earlier run gave out.
            let number = clock_ms.unsigned_abs().max(number + 1).max(self.enforced.saturating_add(1));
            self.told = (applications, number);
        }
        let (applications, number) = self.told.clone();
        let term = self.stamp.map_or(0, |(term, _)| term);
        let missed = self.apps.iter().filter(|(_, app)| app.is_missed()).map(|(id, _)| id.clone()).collect();
        Ok(wire::Plan { term, number, ttl_ms: ttl.as_millis() as i64, applications, missed })
    }

    /// For how long the daemon's plan still stands; `None`: for good.
    fn time_left(&self, now: Duration) -> Result<Option<Duration>, NoPlan> {
        match self.stale_at {
            _ if self.stamp.is_none() => Err(NoPlan),
            Some(at) if at <= now => Err(NoPlan),
            at => Ok(at.map(|at| at - now)),
        }
    }

    fn application_plan(&self, now: Duration, id: &str, app: &App) -> wire::ApplicationPlan {
        let grace_ms = app.order.as_ref().map_or(0, |order| order.grace_ms);
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
            (Link::None | Link::Asked, _) => return hold(ASKING),
            (Link::Job(_), None) => return hold(UNDECIDED),
            (Link::Job(_), Some(order)) => order,
        };
        match order.action {
            Action::Run => {
                let slots = self.slots(order.incarnation, app.wanted(&self.nodes));
                match &app.refused {
                    Some(why) if slots.is_empty() => hold(why),
                    _ => plan(wire::Action::Run, slots, &order.reason),
                }
            }
            Action::Wait => hold(&order.reason),
            Action::Release => plan(wire::Action::Release, Vec::new(), &order.reason),
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

    /// What an application's ApplicationMaster is to do. `None`: there is no such application.
    ///
    /// # Errors
    /// There is no plan to follow yet.
    pub(crate) fn orders(&self, now: Duration, application: &str) -> Result<Option<wire::Orders>, NoPlan> {
        let Some(app) = self.apps.get(application) else { return Ok(None) };
        let is_stale = self.time_left(now).is_err();
        if self.stamp.is_none() {
            return Err(NoPlan);
        }
        let mut orders = wire::Orders { job: app.job().unwrap_or_default(), ..wire::Orders::default() };
        let stand = |orders: &mut wire::Orders, standing: Standing, reason: &str| {
            orders.set_standing(standing);
            reason.clone_into(&mut orders.reason);
        };
        if let Some(order) = &app.order {
            orders.name.clone_from(&order.name);
            orders.incarnation = order.incarnation;
            orders.revision = order.revision;
            orders.grace_ms = order.grace_ms;
        }
        match (&app.link, app.order.as_ref().map(|order| (order.action, order))) {
            (Link::Refused(why), _) => stand(&mut orders, Standing::Over, why),
            (_, Some((Action::Stop { completed }, order))) => {
                stand(&mut orders, Standing::Over, &order.reason);
                orders.completed = completed;
            }
            (_, Some((Action::Reject, order))) => stand(&mut orders, Standing::Over, &order.reason),
            (_, Some((Action::Release, order))) => stand(&mut orders, Standing::Released, &order.reason),
            _ if is_stale => stand(&mut orders, Standing::Released, "the scheduler is away"),
            (Link::Job(_), None) => stand(&mut orders, Standing::Wait, UNDECIDED),
            (_, None) => stand(&mut orders, Standing::Wait, ASKING),
            (_, Some((Action::Wait, order))) => stand(&mut orders, Standing::Wait, &order.reason),
            (_, Some((Action::Run, order))) => {
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
        let orders = wanted.iter().filter_map(|(&(role, index), server)| {
            let node = self.nodes.node(server)?;
            Some(wire::SlotOrder {
                server: role == Role::Server,
                index,
                node: node.id.clone(),
                node_name: node.name.clone(),
                allocation_request: AllocationRequest::new(incarnation, (role, index)).ok()?.id(),
                resource: app.demand(role).map(amounts::request).unwrap_or_default(),
            })
        });
        orders.collect()
    }

    /// What processes are started with.
    fn start(&self, orders: &mut wire::Orders, app: &App) {
        let Some(spec) = &app.spec else { return };
        orders.worker_command.clone_from(&spec.worker.command);
        orders.server_command = spec.server.as_ref().map(|role| role.command.clone()).unwrap_or_default();
        let own = spec.environment().into_iter().map(|(key, value)| (key.to_owned(), value));
        let environment = &mut orders.environment;
        environment.extend(self.environment.clone());
        environment.extend(own);
        environment.insert("TRAINMASTER_INCARNATION".into(), orders.incarnation.to_string());
        environment.insert("TRAINMASTER_REVISION".into(), orders.revision.to_string());
        // Until the daemon knows it there is nobody that its programs could report to.
        if let Some(order) = &app.order {
            environment.insert("TRAINMASTER_JOB".into(), orders.job.to_string());
            environment.insert("TRAINMASTER_JOB_NAME".into(), order.name.clone());
            if !order.token.is_empty() {
                environment.insert("TRAINMASTER_TOKEN".into(), order.token.clone());
            }
        }
    }
}
