package io.trainmaster.yarn;

import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Plan;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.function.LongSupplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.monitor.SchedulingEditPolicy;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends a snapshot to the sidecar about every second, and enforces the plan in the answer.
 *
 * <p>For {@code yarn.resourcemanager.scheduler.monitor.policies}. It runs in its own thread, holds no lock during the
 * call, and throws no exception. Without a plan in force, scheduling is stock.
 */
public final class SidecarBridge implements SchedulingEditPolicy {
    private static final Logger LOG = LoggerFactory.getLogger(SidecarBridge.class);

    private final LongSupplier nanoTime;
    private final BridgeMetrics metrics = BridgeMetrics.get();
    private final Faults faults = new Faults(metrics.stepsFailed);
    private Settings settings;
    private Sidecar sidecar;
    private RMContext context;
    private CapacityScheduler scheduler;
    private PlanHolder plans;
    private Snapshot snapshot;
    private Enforcer enforcer;

    private Failure lastFailure;
    private boolean wasInForce;
    private List<String> lastIgnored = List.of();
    /** Applications that the last plan asked for. */
    private Set<String> missed = Set.of();

    /** The constructor for YARN. */
    public SidecarBridge() {
        this(System::nanoTime);
    }

    SidecarBridge(LongSupplier nanoTime) {
        this.nanoTime = nanoTime;
    }

    @Override
    public void init(Configuration configuration, RMContext context, ResourceScheduler scheduler) {
        settings = Settings.of(configuration);
        try {
            start(configuration, context, scheduler);
        } catch (RuntimeException fault) {
            // An exception would keep the ResourceManager from starting.
            LOG.error("Trainmaster failed to start, and does nothing", fault);
            this.scheduler = null;
        }
    }

    private void start(Configuration configuration, RMContext context, ResourceScheduler scheduler) {
        metrics.settingsIgnored.incr(settings.complaints().size());
        plans = PlanHolder.of(context);
        metrics.register(plans);
        if (!(scheduler instanceof CapacityScheduler capacity)) {
            LOG.error(
                    "yarn.resourcemanager.scheduler.class is {}. Trainmaster needs CapacityScheduler, and is idle",
                    scheduler.getClass().getName());
            return;
        }
        String allocator = configuration.get(YarnConfiguration.APPLICATION_PLACEMENT_TYPE_CLASS);
        if (!PlanAllocator.class.getName().equals(allocator)) {
            // YARN logs nothing if it doesn't find the class.
            LOG.error(
                    "{} is {}. Without {}, slots don't bind, and containers on other nodes are preempted",
                    YarnConfiguration.APPLICATION_PLACEMENT_TYPE_CLASS,
                    allocator,
                    PlanAllocator.class.getName());
        }
        this.context = context;
        sidecar = Sidecar.at(settings.endpoint());
        snapshot = new Snapshot(context, capacity, faults);
        enforcer = new Enforcer(context, metrics, faults, nanoTime);
        this.scheduler = capacity;
        LOG.info("Calling Trainmaster's sidecar at {} every {} ms", settings.endpoint(), settings.intervalMs());
    }

    @Override
    public long getMonitoringInterval() {
        return settings.intervalMs();
    }

    @Override
    public String getPolicyName() {
        return "Trainmaster";
    }

    @Override
    public void editSchedule() {
        if (scheduler == null) {
            return;
        }
        faults.beginRound();
        PlanInForce plan = plans.current();
        Exception fault = null;
        try {
            plan = exchange(plan);
        } catch (SidecarException | RuntimeException failed) {
            fault = failed;
        }
        try {
            enforce(plan);
        } catch (RuntimeException failed) {
            fault = failed;
        }
        report(fault);
    }

    private PlanInForce exchange(PlanInForce current) throws SidecarException {
        Cluster cluster = snapshot.take(current == null ? 0 : current.plan().number(), missed);
        metrics.exchanges.incr();
        Plan answer = sidecar.exchange(cluster, settings.deadlineMs());
        List<String> ignored = new ArrayList<>();
        EnforceablePlan next = PlanReader.read(answer, cluster, ignored);
        if (current != null && !current.isOver() && next.isOlderThan(current.plan())) {
            throw new SidecarException(
                    Failure.OUTDATED, next.name() + ", while " + current.plan().name() + " is in force", null);
        }
        report(ignored);
        missed = Set.copyOf(answer.getMissedList());
        return new PlanInForce(next, nanoTime);
    }

    private void enforce(PlanInForce plan) {
        boolean inForce = plan != null && !plan.isOver();
        if (inForce != wasInForce) {
            wasInForce = inForce;
            LOG.info(inForce ? "A plan of Trainmaster is in force" : "No plan of Trainmaster is in force any more");
        }
        if (!inForce) {
            enforcer.forget();
            return;
        }
        Review review = Review.of(plan.plan(), context, scheduler, faults);
        // Before the plan binds allocations, it must have the slots with a container.
        plans.publish(plan.with(review.taken()));
        enforcer.enforce(plan.plan(), review);
    }

    private void report(Exception fault) {
        Failure failure = null;
        if (fault != null) {
            failure = fault instanceof SidecarException known ? known.failure() : Failure.INTERNAL;
        }
        if (failure != null) {
            metrics.failed(failure).incr();
        }
        if (failure == lastFailure) {
            return;
        }
        lastFailure = failure;
        if (failure == null) {
            LOG.info("Trainmaster's sidecar at {} answers again", settings.endpoint());
        } else if (failure == Failure.INTERNAL) {
            LOG.error("A round with Trainmaster's sidecar failed: {}", failure, fault);
        } else {
            LOG.warn("No new plan from Trainmaster's sidecar at {}: {}", settings.endpoint(), fault.getMessage());
        }
    }

    private void report(List<String> ignored) {
        metrics.partsIgnored.incr(ignored.size());
        if (!ignored.equals(lastIgnored)) {
            ignored.forEach(part -> LOG.warn("Ignoring a part of Trainmaster's plan: {}", part));
            lastIgnored = ignored;
        }
    }
}
