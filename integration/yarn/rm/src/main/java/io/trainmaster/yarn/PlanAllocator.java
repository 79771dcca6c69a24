package io.trainmaster.yarn;

import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.NodeType;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.activities.DiagnosticsCollector;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ContainerRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Restricts the allocations of TRAINMASTER applications to the plan in force: one container per slot, on its node.
 *
 * <p>For {@code yarn.scheduler.app-placement-allocator.class}. {@link LocalityAppPlacementAllocator} places all other
 * containers: those of ApplicationMasters and other applications, and all while no plan is in force. The same holds
 * after an exception in this class, because an uncaught one would end a thread of the scheduler.
 *
 * @param <N> the scheduler's type of nodes
 */
public class PlanAllocator<N extends SchedulerNode> extends LocalityAppPlacementAllocator<N> {
    private static final String HELD = "Trainmaster's plan has no such slot on this node";

    private static final Logger LOG = LoggerFactory.getLogger(PlanAllocator.class);
    private static final AtomicBoolean FAULT_LOGGED = new AtomicBoolean();

    private PlanHolder plans;
    private boolean job;

    @Override
    public void initialize(AppSchedulingInfo info, SchedulerRequestKey key, RMContext context) {
        super.initialize(info, key, context);
        job = guarded(false, () -> {
            plans = PlanHolder.of(context);
            RMApp app = context.getRMApps().get(info.getApplicationId());
            return app != null && Jobs.isJob(app.getApplicationType());
        });
    }

    @Override
    public boolean precheckNode(SchedulerNode node, SchedulingMode mode, Optional<DiagnosticsCollector> diagnostics) {
        if (!super.precheckNode(node, mode, diagnostics)) {
            return false;
        }
        boolean allowed = isPlanned(node);
        if (!allowed) {
            diagnostics.ifPresent(collector -> collector.collect(HELD, schedulerRequestKey.toString()));
        }
        return allowed;
    }

    /**
     * Checks the commit. Fulfilled reservations aren't prechecked again, and asynchronous proposals can be out of date.
     */
    @Override
    public boolean canAllocate(NodeType type, SchedulerNode node) {
        return super.canAllocate(type, node) && isPlanned(node);
    }

    @Override
    public ContainerRequest allocate(SchedulerRequestKey key, NodeType type, SchedulerNode node) {
        if (job) {
            guarded(true, () -> {
                PlanInForce plan = plans.current();
                if (plan != null && !isForMaster()) {
                    plan.allocated(appSchedulingInfo.getApplicationId(), key.getAllocationRequestId());
                }
                return true;
            });
        }
        return super.allocate(key, type, node);
    }

    private boolean isPlanned(SchedulerNode node) {
        return !job || guarded(true, () -> {
            PlanInForce plan = plans.current();
            return plan == null
                    || plan.allows(
                            appSchedulingInfo.getApplicationId(),
                            schedulerRequestKey.getAllocationRequestId(),
                            node.getNodeID())
                    || isForMaster();
        });
    }

    private static boolean guarded(boolean stock, BooleanSupplier answer) {
        try {
            return answer.getAsBoolean();
        } catch (RuntimeException fault) {
            BridgeMetrics.get().stepsFailed.incr();
            if (!FAULT_LOGGED.getAndSet(true)) {
                LOG.error("A placement continues without Trainmaster (logged only once)", fault);
            }
            return stock;
        }
    }

    /**
     * Whether a request is for the ApplicationMaster. Its priority 0 isn't unique, but it is the only request until its
     * container runs.
     */
    private boolean isForMaster() {
        SchedulerApplicationAttempt attempt = ((AbstractYarnScheduler<?, ?>) rmContext.getScheduler())
                .getApplicationAttempt(appSchedulingInfo.getApplicationAttemptId());
        return attempt == null || attempt.isWaitingForAMContainer();
    }
}
