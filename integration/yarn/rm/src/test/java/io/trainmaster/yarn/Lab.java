package io.trainmaster.yarn;

import io.trainmaster.yarn.v1.Action;
import io.trainmaster.yarn.v1.ApplicationPlan;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Slot;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.yarn.api.protocolrecords.SubmitApplicationRequest;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.MockAM;
import org.apache.hadoop.yarn.server.resourcemanager.MockNM;
import org.apache.hadoop.yarn.server.resourcemanager.MockRM;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.RMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.util.Records;

/** A ResourceManager with the plug-ins and a fake sidecar. The test controls rounds, heartbeats and time. */
final class Lab implements AutoCloseable {
    /** The TTL of plans that do not expire in a test. */
    static final long TTL = 10_000;

    final FakeSidecar sidecar;
    final AtomicLong nanos = new AtomicLong(1);
    final MockRM rm;
    private final Sidecar client;
    private final SidecarBridge bridge = new SidecarBridge(nanos::get);
    private final List<MockNM> nodes = new ArrayList<>();
    private final Map<NodeId, String> names = new HashMap<>();
    private long number;

    Lab() throws Exception {
        this(Map.of());
    }

    Lab(Map<String, String> settings) throws Exception {
        this(settings, null);
    }

    Lab(Map<String, String> settings, RMStateStore store) throws Exception {
        this(settings, store, new FakeSidecar());
    }

    Lab(Map<String, String> settings, RMStateStore store, FakeSidecar sidecar) throws Exception {
        this.sidecar = sidecar;
        DefaultMetricsSystem.setMiniClusterMode(true);
        YarnConfiguration configuration = new YarnConfiguration();
        configuration.setClass(YarnConfiguration.RM_SCHEDULER, CapacityScheduler.class, Object.class);
        configuration.set("yarn.scheduler.app-placement-allocator.class", PlanAllocator.class.getName());
        configuration.set(YarnConfiguration.QUEUE_PLACEMENT_RULES, AdmissionRule.class.getName() + ",user-group");
        configuration.setInt(YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY, 10);
        configuration.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
        configuration.set("yarn.scheduler.capacity.root.queues", "default");
        configuration.set("yarn.scheduler.capacity.root.default.capacity", "100");
        configuration.set("yarn.scheduler.capacity.root.default.user-limit-factor", "10");
        configuration.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
        configuration.set("yarn.scheduler.capacity.node-locality-delay", "-1");
        // The default folder is shared by all tests of the machine.
        configuration.set(
                YarnConfiguration.FS_NODE_ATTRIBUTE_STORE_ROOT_DIR,
                Path.of("target/attributes", String.valueOf(System.nanoTime())).toUri().toString());
        configuration.set(Settings.ADDRESS.key(), sidecar.address());
        // Long deadlines, because a loaded machine must not look like a slow sidecar. Tests of slow sidecars set their
        // own.
        configuration.setInt(Settings.DEADLINE.key(), 60_000);
        configuration.setInt(Settings.ADMISSION_DEADLINE.key(), 10_000);
        settings.forEach(configuration::set);
        client = Sidecar.at(Settings.of(configuration).endpoint());
        rm = store == null ? new MockRM(configuration) : new MockRM(configuration, store);
        rm.start();
        bridge.init(configuration, rm.getRMContext(), rm.getResourceScheduler());
    }

    /** Registers a node. Its address must resolve, so that it is another loopback address of this machine. */
    MockNM node(String name, int memory) throws Exception {
        MockNM node = rm.registerNode("127.0.0." + (nodes.size() + 1) + ":1", memory, 16);
        nodes.add(node);
        names.put(node.getNodeId(), name);
        return node;
    }

    ApplicationSubmissionContext submission(String type, String job) throws Exception {
        ApplicationSubmissionContext submission = Records.newRecord(ApplicationSubmissionContext.class);
        submission.setApplicationId(rm.getNewAppId().getApplicationId());
        submission.setApplicationName("name of it");
        submission.setApplicationType(type);
        submission.setQueue("default");
        submission.setPriority(Priority.newInstance(0));
        submission.setResource(Resource.newInstance(256, 1));
        Map<String, String> environment = Map.of(Jobs.VARIABLE, job, Jobs.SECRET, "abc");
        submission.setAMContainerSpec(
                ContainerLaunchContext.newInstance(Map.of(), environment, List.of(), null, null, null));
        return submission;
    }

    RMApp submit(ApplicationSubmissionContext submission) throws Exception {
        rm.getClientRMService().submitApplication(SubmitApplicationRequest.newInstance(submission));
        rm.waitForState(submission.getApplicationId(), RMAppState.ACCEPTED);
        return rm.getRMContext().getRMApps().get(submission.getApplicationId());
    }

    /** A registered ApplicationMaster with its container on this node. */
    MockAM job(MockNM node) throws Exception {
        return MockRM.launchAndRegisterAM(submit(submission(Jobs.TYPE, "name = \"job\"")), rm, node);
    }

    MockAM other(MockNM node) throws Exception {
        return MockRM.launchAndRegisterAM(submit(submission("MAPREDUCE", "")), rm, node);
    }

    void ask(MockAM master, long request, int memory, int count) throws Exception {
        master.allocate(master.createReq(null, memory, 1, count, request), List.of());
    }

    /** Requests containers, and sends heartbeats so that nodes get them. */
    void obtain(MockAM master, long request, int memory, int count) throws Exception {
        ask(master, request, memory, count);
        beat();
    }

    /** Sets the sidecar's next plan. */
    void plan(long ttlMs, ApplicationPlan... applications) {
        number++;
        Plan plan = Plan.newBuilder()
                .setTerm(1)
                .setNumber(number)
                .setTtlMs(ttlMs)
                .addAllApplications(List.of(applications))
                .build();
        sidecar.planner = cluster -> plan;
    }

    /** Runs one round with a plan for only this application. */
    void enforce(ApplicationPlan.Builder application) {
        plan(TTL, application.build());
        round();
    }

    static ApplicationPlan.Builder run(MockAM master, Slot... slots) {
        return ApplicationPlan.newBuilder()
                .setId(master.getApplicationAttemptId().getApplicationId().toString())
                .setAction(Action.ACTION_RUN)
                .addAllSlots(List.of(slots));
    }

    static Slot slot(long request, MockNM node) {
        return slot(request, node.getNodeId().toString());
    }

    static Slot slot(long request, String node) {
        return Slot.newBuilder().setAllocationRequest(request).setNode(node).build();
    }

    void round() {
        bridge.editSchedule();
        rm.drainEvents();
    }

    /**
     * Starts the sidecar again after failed rounds, and runs rounds until one reaches it. gRPC gives up a failed
     * connection in a thread of its own, and at once makes a new one for a call that it still holds. So a single failed
     * round may not leave it idle.
     */
    void restart() throws Exception {
        Waiting.until(() -> {
            round();
            return client.isIdle();
        });
        sidecar.start();
        int before = sidecar.snapshots.size();
        Waiting.until(() -> {
            round();
            return sidecar.snapshots.size() > before;
        });
    }

    /** Sends three heartbeats of every node, because a heartbeat allocates at most one container per node. */
    void beat() throws Exception {
        for (int times = 0; times < 3; times++) {
            for (MockNM node : nodes) {
                node.nodeHeartbeat(true);
            }
            rm.drainEvents();
        }
    }

    /** Sends one heartbeat of one node. */
    void beat(MockNM node) throws Exception {
        node.nodeHeartbeat(true);
        rm.drainEvents();
    }

    void pass(long millis) {
        nanos.addAndGet(TimeUnit.MILLISECONDS.toNanos(millis));
    }

    SchedulerApplicationAttempt scheduled(MockAM master) {
        return ((CapacityScheduler) rm.getResourceScheduler()).getApplicationAttempt(master.getApplicationAttemptId());
    }

    RMApp app(MockAM master) {
        return rm.getRMContext().getRMApps().get(master.getApplicationAttemptId().getApplicationId());
    }

    /** The job's container besides the ApplicationMaster's. */
    RMContainer container(MockAM master) {
        return scheduled(master).getLiveContainers().stream()
                .filter(container -> !container.isAMContainer())
                .findFirst()
                .orElseThrow();
    }

    /** The nodes of the job's containers, by allocation request. */
    Map<Long, List<String>> placed(MockAM master) {
        Map<Long, List<String>> placed = new TreeMap<>();
        for (RMContainer container : scheduled(master).getLiveContainers()) {
            if (!container.isAMContainer()) {
                placed.computeIfAbsent(
                                container.getAllocatedSchedulerKey().getAllocationRequestId(), key -> new ArrayList<>())
                        .add(names.get(container.getAllocatedNode()));
            }
        }
        placed.values().forEach(where -> where.sort(null));
        return placed;
    }

    /** The exit statuses that an ApplicationMaster receives. */
    List<Integer> exits(MockAM master) throws Exception {
        return master.doHeartbeat().getCompletedContainersStatuses().stream()
                .map(ContainerStatus::getExitStatus)
                .toList();
    }

    ApplicationId id(MockAM master) {
        return master.getApplicationAttemptId().getApplicationId();
    }

    @Override
    public void close() throws Exception {
        rm.stop();
        sidecar.close();
    }
}
