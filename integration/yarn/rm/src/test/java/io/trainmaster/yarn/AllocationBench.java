package io.trainmaster.yarn;

import com.sun.management.OperatingSystemMXBean;
import io.trainmaster.yarn.v1.Action;
import io.trainmaster.yarn.v1.Application;
import io.trainmaster.yarn.v1.ApplicationPlan;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Plan;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.ToDoubleFunction;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.util.Time;
import org.apache.hadoop.yarn.api.protocolrecords.GetNewApplicationRequest;
import org.apache.hadoop.yarn.api.protocolrecords.SubmitApplicationRequest;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.MockAM;
import org.apache.hadoop.yarn.server.resourcemanager.MockNM;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttemptState;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.util.Records;

/**
 * Measures the containers per second that a ResourceManager allocates, without the plug-ins and with them.
 *
 * <p>A whole ResourceManager runs in this process, with a sidecar on the loopback interface that answers each second.
 * Calls simulate nodes and ApplicationMasters. Half of the containers are slots of jobs that a plan pins, each
 * requested for its node only. The others belong to ordinary applications, for any place. Both modes have the same
 * requests. The clock runs from the first heartbeat to the last container.
 */
final class AllocationBench {
    private static final int WARM_UPS = 3;
    private static final int JOBS = 20;
    private static final int SLOTS = 50;
    private static final int OTHERS = 20;
    private static final int CONTAINERS = JOBS * SLOTS + OTHERS * SLOTS;
    private static final double CONFIDENCE = 0.95;
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final int nodes;

    /**
     * One measurement.
     *
     * @param rate containers per second
     * @param cpuUs CPU microseconds of the whole process per container; depends less on other load
     */
    private record Cost(double rate, double cpuUs) {}

    private AllocationBench(int nodes) {
        this.nodes = nodes;
    }

    /** Arguments: rounds and nodes. */
    public static void main(String[] arguments) {
        int status = 0;
        try {
            new AllocationBench(Integer.parseInt(arguments[1])).run(Integer.parseInt(arguments[0]));
        } catch (Exception failed) {
            failed.printStackTrace();
            status = 1;
        }
        // ResourceManagers leave threads running.
        System.exit(status);
    }

    private void run(int rounds) throws Exception {
        DefaultMetricsSystem.setMiniClusterMode(true);
        Cost[] stock = new Cost[rounds];
        Cost[] ours = new Cost[rounds];
        for (int round = -WARM_UPS; round < rounds; round++) {
            // The order alternates, because the second run has a warmer machine.
            boolean oursFirst = round % 2 != 0;
            Cost first = measure(oursFirst);
            Cost second = measure(!oursFirst);
            if (round >= 0) {
                stock[round] = oursFirst ? second : first;
                ours[round] = oursFirst ? first : second;
            }
            System.err.printf("%s %d: %s, %s%n", round < 0 ? "warm-up" : "round", round, first, second);
        }
        report(stock, ours, nodes);
    }

    private static void report(Cost[] stock, Cost[] ours, int nodes) {
        System.out.printf(
                "%d containers of %d jobs and %d other applications on %d nodes, %d alternations%n%n",
                CONTAINERS, JOBS, OTHERS, nodes, stock.length);
        System.out.println("| median (lowest to highest) | CapacityScheduler | with the plug-ins"
                + " | ratio of pairs, median (interval) |");
        System.out.println("|---|---|---|---|");
        row("containers allocated per second", stock, ours, Cost::rate);
        row("CPU per container, microseconds", stock, ours, Cost::cpuUs);
        double confidence = 100 * coverage(stock.length, rank(stock.length));
        System.out.printf("%nThe interval has %.1f %% confidence.%n", confidence);
    }

    private static void row(String name, Cost[] stock, Cost[] ours, ToDoubleFunction<Cost> value) {
        double[] ratios = new double[stock.length];
        Arrays.setAll(ratios, round -> value.applyAsDouble(ours[round]) / value.applyAsDouble(stock[round]));
        Arrays.sort(ratios);
        int rank = rank(ratios.length);
        System.out.printf(
                "| %s | %s | %s | %.3f (%.3f to %.3f) |%n",
                name,
                spread(stock, value),
                spread(ours, value),
                median(ratios),
                ratios[rank - 1],
                ratios[ratios.length - rank]);
    }

    private static String spread(Cost[] costs, ToDoubleFunction<Cost> value) {
        double[] sorted = Arrays.stream(costs).mapToDouble(value).sorted().toArray();
        return "%.0f (%.0f to %.0f)".formatted(median(sorted), sorted[0], sorted[sorted.length - 1]);
    }

    private static double median(double[] sorted) {
        int half = sorted.length / 2;
        return sorted.length % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    }

    /**
     * The rank of the interval's bounds. The sample's value of this rank from below and that from above enclose the
     * median with at least the required confidence.
     */
    private static int rank(int size) {
        int rank = 1;
        while (coverage(size, rank + 1) >= CONFIDENCE) {
            rank++;
        }
        return rank;
    }

    private static double coverage(int size, int rank) {
        double below = 0;
        double ways = 1;
        for (int fewer = 0; fewer < rank; fewer++) {
            below += ways;
            ways = ways * (size - fewer) / (fewer + 1);
        }
        return 1 - 2 * below / Math.pow(2, size);
    }

    private static YarnConfiguration configuration(FakeSidecar sidecar) {
        YarnConfiguration configuration = new YarnConfiguration();
        for (String server : List.of(
                YarnConfiguration.RM_ADDRESS,
                YarnConfiguration.RM_SCHEDULER_ADDRESS,
                YarnConfiguration.RM_RESOURCE_TRACKER_ADDRESS,
                YarnConfiguration.RM_ADMIN_ADDRESS,
                YarnConfiguration.RM_WEBAPP_ADDRESS)) {
            configuration.set(server, "127.0.0.1:0");
        }
        // The default folder is shared by all tests of the machine.
        configuration.set(
                YarnConfiguration.FS_NODE_ATTRIBUTE_STORE_ROOT_DIR,
                Path.of("rm/target/bench", String.valueOf(System.nanoTime())).toUri().toString());
        configuration.setClass(YarnConfiguration.RM_SCHEDULER, CapacityScheduler.class, Object.class);
        configuration.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
        configuration.set("yarn.scheduler.capacity.root.queues", "default");
        configuration.set("yarn.scheduler.capacity.root.default.capacity", "100");
        configuration.set("yarn.scheduler.capacity.root.default.user-limit-factor", "100");
        configuration.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
        configuration.set("yarn.scheduler.capacity.node-locality-delay", "-1");
        if (sidecar != null) {
            configuration.setBoolean(YarnConfiguration.RM_SCHEDULER_ENABLE_MONITORS, true);
            configuration.set(YarnConfiguration.RM_SCHEDULER_MONITOR_POLICIES, SidecarBridge.class.getName());
            configuration.set(YarnConfiguration.APPLICATION_PLACEMENT_TYPE_CLASS, PlanAllocator.class.getName());
            configuration.set(YarnConfiguration.QUEUE_PLACEMENT_RULES, AdmissionRule.class.getName() + ",user-group");
            configuration.set(Settings.ADDRESS.key(), sidecar.address());
            configuration.setInt(Settings.DEADLINE.key(), 10_000);
            configuration.setInt(Settings.ADMISSION_DEADLINE.key(), 10_000);
        }
        return configuration;
    }

    /** A ResourceManager without web pages, whose start takes longer than a measurement. */
    private static final class Bare extends ResourceManager {
        @Override
        protected void startWepApp() {}
    }

    private Cost measure(boolean withPlugIns) throws Exception {
        try (FakeSidecar sidecar = withPlugIns ? new FakeSidecar() : null;
                ResourceManager rm = new Bare()) {
            rm.init(configuration(sidecar));
            rm.start();
            return measure(rm, sidecar);
        } finally {
            System.gc();
        }
    }

    private Cost measure(ResourceManager rm, FakeSidecar sidecar) throws Exception {
        List<MockNM> trackers = new ArrayList<>();
        for (int at = 1; at <= nodes; at++) {
            MockNM node = new MockNM("127.0.1." + at + ":1", 1 << 20, 10_000, rm.getResourceTrackerService());
            node.registerNode();
            trackers.add(node);
        }
        CapacityScheduler scheduler = (CapacityScheduler) rm.getResourceScheduler();
        Waiting.until(() -> scheduler.getNumClusterNodes() == nodes);
        List<MockAM> jobs = masters(rm, Jobs.TYPE, JOBS);
        List<MockAM> others = masters(rm, "OTHER", OTHERS);
        if (sidecar != null) {
            sidecar.planner = this::plan;
            PlanHolder plans = PlanHolder.of(rm.getRMContext());
            Waiting.until(() -> plans.current() != null && plans.current().plan().jobs().size() == JOBS);
        }
        for (int job = 0; job < JOBS; job++) {
            List<ResourceRequest> asks = new ArrayList<>();
            for (int slot = 1; slot <= SLOTS; slot++) {
                String host = trackers.get(where(job, slot)).getNodeId().getHost();
                for (String place : List.of(host, "/default-rack", "*")) {
                    asks.add(ask(place, slot, 1).relaxLocality(false).build());
                }
            }
            jobs.get(job).allocate(asks, List.of());
        }
        for (MockAM other : others) {
            other.allocate(List.of(ask("*", 0, SLOTS).build()), List.of());
        }
        SchedulerNode last = scheduler.getSchedulerNode(trackers.get(nodes - 1).getNodeId());
        // Metrics survive their ResourceManager.
        long all = scheduler.getRootQueueMetrics().getAggregateAllocatedContainers() + CONTAINERS;
        long cpu = PROCESS.getProcessCpuTime();
        long begun = System.nanoTime();
        while (scheduler.getRootQueueMetrics().getAggregateAllocatedContainers() < all) {
            long asked = Time.monotonicNow();
            for (MockNM tracker : trackers) {
                tracker.nodeHeartbeat(true);
            }
            // Events are handled in order. Without a pause, they would pile up.
            while (last.getLastHeartbeatMonotonicTime() < asked) {
                Thread.yield();
            }
            if (System.nanoTime() - begun > TimeUnit.MINUTES.toNanos(5)) {
                long missing = all - scheduler.getRootQueueMetrics().getAggregateAllocatedContainers();
                throw new IllegalStateException(missing + " containers are missing");
            }
        }
        return new Cost(
                CONTAINERS / ((System.nanoTime() - begun) / 1e9),
                (PROCESS.getProcessCpuTime() - cpu) / 1e3 / CONTAINERS);
    }

    private int where(int job, int slot) {
        return (job * SLOTS + slot) % nodes;
    }

    private static ResourceRequest.ResourceRequestBuilder ask(String place, long slot, int count) {
        return ResourceRequest.newBuilder()
                .priority(Priority.newInstance(20))
                .resourceName(place)
                .capability(Resource.newInstance(128, 1))
                .numContainers(count)
                .allocationRequestId(slot);
    }

    private Plan plan(Cluster cluster) {
        Plan.Builder plan = Plan.newBuilder().setTerm(1).setNumber(1).setTtlMs(60_000);
        for (Application application : cluster.getApplicationsList()) {
            int number = Integer.parseInt(application.getName());
            ApplicationPlan.Builder job =
                    plan.addApplicationsBuilder().setId(application.getId()).setAction(Action.ACTION_RUN);
            for (int slot = 1; slot <= SLOTS; slot++) {
                job.addSlots(Lab.slot(slot, "127.0.1." + (where(number, slot) + 1) + ":1"));
            }
        }
        return plan.build();
    }

    /** Unmanaged ApplicationMasters, which no node has to start. */
    private static List<MockAM> masters(ResourceManager rm, String type, int count) throws Exception {
        RMContext context = rm.getRMContext();
        List<MockAM> masters = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            ApplicationId id = context.getClientRMService()
                    .getNewApplication(GetNewApplicationRequest.newInstance())
                    .getApplicationId();
            ApplicationSubmissionContext submission = Records.newRecord(ApplicationSubmissionContext.class);
            submission.setApplicationId(id);
            submission.setApplicationName(String.valueOf(at));
            submission.setApplicationType(type);
            submission.setQueue("default");
            submission.setUnmanagedAM(true);
            submission.setResource(Resource.newInstance(128, 1));
            submission.setAMContainerSpec(
                    ContainerLaunchContext.newInstance(Map.of(), Map.of(), null, null, null, null));
            context.getClientRMService().submitApplication(SubmitApplicationRequest.newInstance(submission));
            masters.add(new MockAM(
                    context, rm.getApplicationMasterService(), ApplicationAttemptId.newInstance(id, 1)));
        }
        for (MockAM master : masters) {
            ApplicationAttemptId id = master.getApplicationAttemptId();
            Waiting.until(() -> {
                RMAppAttempt attempt = context.getRMApps().get(id.getApplicationId()).getCurrentAppAttempt();
                return attempt != null && attempt.getAppAttemptState() == RMAppAttemptState.LAUNCHED;
            });
            master.registerAppAttempt(false);
        }
        return masters;
    }
}
