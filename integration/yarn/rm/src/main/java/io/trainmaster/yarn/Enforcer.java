package io.trainmaster.yarn;

import java.io.IOException;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.protocolrecords.UpdateApplicationPriorityRequest;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.event.Event;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppEvent;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppEventType;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.ContainerPreemptEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEventType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Preempts unplanned containers, drops unplanned reservations, kills applications and sets priorities. Used by one
 * thread.
 */
final class Enforcer {
    private static final Logger LOG = LoggerFactory.getLogger(Enforcer.class);
    private static final Set<RMAppState> ENDING = EnumSet.of(
            RMAppState.KILLING,
            RMAppState.FINAL_SAVING,
            RMAppState.FINISHING,
            RMAppState.FINISHED,
            RMAppState.FAILED,
            RMAppState.KILLED);
    /** States in which YARN allows a change of the priority. */
    private static final Set<RMAppState> ORDERED = EnumSet.of(RMAppState.ACCEPTED, RMAppState.RUNNING);

    private final RMContext context;
    private final BridgeMetrics metrics;
    private final Faults faults;
    private final LongSupplier nanoTime;
    private final Map<ContainerId, Mark> marks = new HashMap<>();
    /** Applications whose new priority YARN refused. Each is logged once. */
    private final Set<ApplicationId> refusals = new HashSet<>();

    private boolean unordered;

    /**
     * A container's mark for preemption.
     *
     * @param since time of the mark
     * @param killed whether the container was killed since
     */
    private record Mark(long since, boolean killed) {}

    Enforcer(RMContext context, BridgeMetrics metrics, Faults faults, LongSupplier nanoTime) {
        this.context = context;
        this.metrics = metrics;
        this.faults = faults;
        this.nanoTime = nanoTime;
    }

    void enforce(EnforceablePlan plan, Review review) {
        refusals.retainAll(plan.jobs().keySet());
        marks.keySet().retainAll(review.surplus().stream()
                .map(surplus -> surplus.container().getContainerId())
                .collect(Collectors.toSet()));
        review.surplus().forEach(surplus -> faults.guard(
                "preempting " + surplus.container().getContainerId(), () -> preempt(surplus)));
        review.reservations().forEach(container -> faults.guard(
                "dropping the reservation of " + container.getContainerId(), () -> drop(container)));
        plan.jobs().forEach((id, job) -> faults.guard("ending or ordering " + id, () -> {
            RMApp app = context.getRMApps().get(id);
            if (app != null && job instanceof EnforceablePlan.Kill kill) {
                kill(app, kill.reason());
            } else if (app != null && job.priority().isPresent()) {
                order(app, job.priority().getAsInt());
            }
        }));
    }

    /** Forgets all marks when no plan is in force. A later plan gives a full grace time. */
    void forget() {
        marks.clear();
    }

    private void preempt(Review.Surplus surplus) {
        ContainerId id = surplus.container().getContainerId();
        long now = nanoTime.getAsLong();
        Mark mark = marks.get(id);
        if (mark == null) {
            LOG.info("{} isn't in the plan, and is killed after {} ms", id, surplus.graceMs());
            mark = new Mark(now, false);
            marks.put(id, mark);
            send(surplus.container(), SchedulerEventType.MARK_CONTAINER_FOR_PREEMPTION);
            metrics.containersMarked.incr();
        }
        if (!mark.killed() && now - mark.since() >= TimeUnit.MILLISECONDS.toNanos(surplus.graceMs())) {
            LOG.info("Killing {} after its grace time", id);
            marks.put(id, new Mark(mark.since(), true));
            send(surplus.container(), SchedulerEventType.MARK_CONTAINER_FOR_KILLABLE);
            metrics.containersKilled.incr();
        }
    }

    private void drop(RMContainer reservation) {
        send(reservation, SchedulerEventType.KILL_RESERVED_CONTAINER);
        metrics.reservationsDropped.incr();
    }

    private void kill(RMApp app, String reason) {
        if (!ENDING.contains(app.getState())) {
            LOG.info("Killing {} as planned: {}", app.getApplicationId(), reason);
            send(new RMAppEvent(app.getApplicationId(), RMAppEventType.KILL, reason));
            metrics.applicationsKilled.incr();
        }
    }

    private void order(RMApp app, int priority) {
        // YARN would clamp a higher priority, so that each round would set it again.
        int most = context.getScheduler().getMaxClusterLevelAppPriority().getPriority();
        if (most == 0 && priority > 0 && !unordered) {
            unordered = true;
            LOG.warn(
                    "{} is 0, so that waiting jobs start in the order of their submission, not in the planned order",
                    YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY);
        }
        Priority wanted = Priority.newInstance(Math.min(priority, most));
        if (!ORDERED.contains(app.getState()) || app.getApplicationPriority().equals(wanted)) {
            return;
        }
        ApplicationId id = app.getApplicationId();
        try {
            context.getClientRMService()
                    .updateApplicationPriority(UpdateApplicationPriorityRequest.newInstance(id, wanted));
            metrics.prioritiesSet.incr();
        } catch (YarnException | IOException refused) {
            metrics.partsIgnored.incr();
            if (refusals.add(id)) {
                LOG.warn("{} keeps its priority: {}", id, refused.getMessage());
            }
        }
    }

    private void send(RMContainer container, SchedulerEventType type) {
        send(new ContainerPreemptEvent(container.getApplicationAttemptId(), container, type));
    }

    @SuppressWarnings("unchecked")
    private void send(Event<?> event) {
        context.getDispatcher().getEventHandler().handle(event);
    }
}
