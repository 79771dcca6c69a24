package io.trainmaster.yarn;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;

/**
 * The plan in force, until it expires, for the allocators.
 *
 * <p>The scheduler's threads call it with their locks held, so that calls never block. A call takes a few look-ups in
 * hash tables.
 */
final class PlanInForce {
    private final EnforceablePlan plan;
    private final LongSupplier nanoTime;
    private final long since;
    /** Slots with a container. Each round counts them again. Between rounds, allocations add themselves. */
    private final Set<Slot> taken;

    /**
     * A slot of an application.
     *
     * @param application the slot's application
     * @param request its allocation request
     */
    record Slot(ApplicationId application, long request) {}

    PlanInForce(EnforceablePlan plan, LongSupplier nanoTime) {
        this(plan, nanoTime, nanoTime.getAsLong(), ConcurrentHashMap.newKeySet());
    }

    private PlanInForce(EnforceablePlan plan, LongSupplier nanoTime, long since, Set<Slot> taken) {
        this.plan = plan;
        this.nanoTime = nanoTime;
        this.since = since;
        this.taken = taken;
    }

    /** The same plan with the same end, and with newly counted slots. */
    PlanInForce with(Set<Slot> counted) {
        Set<Slot> set = ConcurrentHashMap.newKeySet();
        set.addAll(counted);
        return new PlanInForce(plan, nanoTime, since, set);
    }

    EnforceablePlan plan() {
        return plan;
    }

    long ageMs() {
        return TimeUnit.NANOSECONDS.toMillis(nanoTime.getAsLong() - since);
    }

    boolean isOver() {
        return nanoTime.getAsLong() - since >= TimeUnit.MILLISECONDS.toNanos(plan.ttlMs());
    }

    boolean allows(ApplicationId application, long request, NodeId node) {
        if (isOver()) {
            return true;
        }
        EnforceablePlan.Job job = plan.jobs().get(application);
        if (job == null) {
            // Without a plan for it, an application in the snapshot is unrestricted. A newer application waits for the
            // next answer or the plan's end.
            return plan.asked().contains(application);
        }
        return !(job instanceof EnforceablePlan.Run run)
                || node.equals(run.slots().get(request)) && !taken.contains(new Slot(application, request));
    }

    void allocated(ApplicationId application, long request) {
        taken.add(new Slot(application, request));
    }
}
