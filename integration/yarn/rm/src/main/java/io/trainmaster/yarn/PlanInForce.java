package io.trainmaster.yarn;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;

/**
 * A plan from its answer to its end, and the one question that allocations ask it.
 *
 * <p>Threads of the scheduler ask under its locks: nothing here waits, and an answer takes a few look-ups in hash tables.
 */
final class PlanInForce {
    private final EnforceablePlan plan;
    private final LongSupplier nanoTime;
    private final long since;
    /** Slots with a container. They are counted anew at each round; in between, allocations add themselves. */
    private final Set<Slot> taken;

    /**
     * @param application whose slot it is
     * @param request the allocation request
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

    /** The same plan, until the same time, with slots counted anew. */
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
            // The sidecar knew of it and has no plan; or it wasn't asked yet, which the next answer or the plan's end
            // changes.
            return plan.asked().contains(application);
        }
        return !(job instanceof EnforceablePlan.Run run)
                || node.equals(run.slots().get(request)) && !taken.contains(new Slot(application, request));
    }

    void allocated(ApplicationId application, long request) {
        taken.add(new Slot(application, request));
    }
}
