package io.trainmaster.yarn;

import java.util.Collections;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;

/**
 * Passes the plan from the bridge to the allocators of the same ResourceManager, which creates each by its class name.
 */
final class PlanHolder {
    private static final Map<RMContext, PlanHolder> BY_CONTEXT = Collections.synchronizedMap(new WeakHashMap<>());

    private volatile PlanInForce plan;

    static PlanHolder of(RMContext context) {
        return BY_CONTEXT.computeIfAbsent(context, key -> new PlanHolder());
    }

    void publish(PlanInForce next) {
        plan = next;
    }

    /** The plan in force. Null without one: then scheduling is stock. */
    PlanInForce current() {
        PlanInForce latest = plan;
        return latest == null || latest.isOver() ? null : latest;
    }
}
