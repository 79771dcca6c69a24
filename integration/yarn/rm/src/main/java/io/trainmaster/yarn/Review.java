package io.trainmaster.yarn;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;

/**
 * The differences between existing and planned containers.
 *
 * @param taken slots with their container
 * @param surplus unplanned containers
 * @param reservations unplanned reservations
 */
record Review(Set<PlanInForce.Slot> taken, List<Surplus> surplus, List<RMContainer> reservations) {

    /**
     * An unplanned container.
     *
     * @param container the container to preempt
     * @param graceMs time from its mark to its end
     */
    record Surplus(RMContainer container, long graceMs) {}

    static Review of(EnforceablePlan plan, RMContext context, CapacityScheduler scheduler, Faults faults) {
        Review review = new Review(new HashSet<>(), new ArrayList<>(), new ArrayList<>());
        plan.jobs().forEach((id, job) -> {
            if (job instanceof EnforceablePlan.Run run
                    && !faults.guard("reviewing " + id, () -> review.compare(id, run, context, scheduler))) {
                // The application's slots count as taken, so that none gets a second container.
                run.slots().keySet().forEach(slot -> review.taken.add(new PlanInForce.Slot(id, slot)));
            }
        });
        return review;
    }

    private void compare(ApplicationId id, EnforceablePlan.Run run, RMContext context, CapacityScheduler scheduler) {
        RMApp app = context.getRMApps().get(id);
        RMAppAttempt attempt = app == null ? null : app.getCurrentAppAttempt();
        SchedulerApplicationAttempt scheduled =
                attempt == null ? null : scheduler.getApplicationAttempt(attempt.getAppAttemptId());
        if (scheduled != null) {
            compare(id, run, scheduled);
        }
    }

    private void compare(ApplicationId id, EnforceablePlan.Run run, SchedulerApplicationAttempt attempt) {
        // Of two containers for one slot, the older one stays.
        attempt.getLiveContainers().stream()
                .filter(container -> !container.isAMContainer())
                .sorted(Comparator.comparing(RMContainer::getContainerId))
                .forEach(container -> {
                    long slot = container.getAllocatedSchedulerKey().getAllocationRequestId();
                    if (!takes(id, run, slot, container.getAllocatedNode()) && !run.left().contains(slot)) {
                        surplus.add(new Surplus(container, run.graceMs()));
                    }
                });
        if (attempt.isWaitingForAMContainer()) {
            return;
        }
        for (RMContainer container : attempt.getReservedContainers()) {
            long slot = container.getReservedSchedulerKey().getAllocationRequestId();
            if (!container.getReservedNode().equals(run.slots().get(slot))
                    || taken.contains(new PlanInForce.Slot(id, slot))) {
                reservations.add(container);
            }
        }
    }

    private boolean takes(ApplicationId id, EnforceablePlan.Run run, long slot, NodeId node) {
        return node.equals(run.slots().get(slot)) && taken.add(new PlanInForce.Slot(id, slot));
    }
}
