package io.trainmaster.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Application;
import io.trainmaster.yarn.v1.ApplicationState;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.ContainerState;
import io.trainmaster.yarn.v1.Node;
import io.trainmaster.yarn.v1.NodeState;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Request;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeType;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceUtilization;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.api.protocolrecords.NMContainerStatus;
import org.apache.hadoop.yarn.server.resourcemanager.MockAM;
import org.apache.hadoop.yarn.server.resourcemanager.MockNM;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.MemoryRMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The contents of snapshots. */
class SnapshotTest {
    @TempDir
    private Path folder;

    /** The adapter refuses a snapshot that is too long. Then no job gets a plan. */
    @Test
    void noJobMakesTheSnapshotTooLong() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 8192);
            MockAM greedy = lab.job(a);
            List<ResourceRequest> asks = new ArrayList<>();
            for (int request = 0; request < Snapshot.MOST_REQUESTS + 1000; request++) {
                asks.addAll(greedy.createReq(null, 8192, 1, 1, request));
            }
            greedy.allocate(asks, List.of());
            ApplicationSubmissionContext longest = lab.submission(Jobs.TYPE, "#".repeat(30 << 20));
            longest.setApplicationName("n".repeat(10 << 20));
            lab.submit(longest);
            lab.round();

            Cluster cluster = lab.sidecar.lastSnapshot();
            Map<String, Application> found =
                    cluster.getApplicationsList().stream().collect(Collectors.toMap(Application::getId, app -> app));
            Application second = found.get(longest.getApplicationId().toString());
            assertEquals(Jobs.LONGEST + 1, second.getJob().length(), "its length shows that it is too long");
            assertEquals(Snapshot.LONGEST_TEXT, second.getName().length());
            assertEquals(Snapshot.MOST_REQUESTS, found.get(lab.id(greedy).toString()).getRequestsCount());
            assertTrue(cluster.getSerializedSize() < 4 << 20, cluster.getSerializedSize() + " bytes");
            assertEquals(Jobs.LONGEST + 1, lab.sidecar.submissions.get(1).getJob().length());
        }
    }

    @Test
    void theJobFilesOfOneUserLeaveRoomForOthers() throws Exception {
        try (Lab lab = new Lab()) {
            List<String> ids = new ArrayList<>();
            for (int job = 0; job < 30; job++) {
                ApplicationSubmissionContext long_ = lab.submission(Jobs.TYPE, "#".repeat(Jobs.LONGEST));
                ids.add(lab.submit(long_).getApplicationId().toString());
            }
            lab.round();
            Map<String, Application> found = lab.sidecar.lastSnapshot().getApplicationsList().stream()
                    .collect(Collectors.toMap(Application::getId, app -> app));
            int fit = Snapshot.MOST_OF_USER / Jobs.LONGEST;
            for (int job = 0; job < ids.size(); job++) {
                Application row = found.get(ids.get(job));
                assertEquals(job >= fit, row.getUntold(), "the oldest are first: " + job);
                assertEquals(job < fit ? Jobs.LONGEST : 0, row.getJob().length());
            }
        }
    }

    @Test
    void longJobFilesOfManyUsersLeaveRoomForOneMore() throws Exception {
        try (Lab lab = new Lab()) {
            RMApp longest = lab.submit(lab.submission(Jobs.TYPE, "#".repeat(Jobs.LONGEST)));
            Map<ApplicationId, RMApp> apps = lab.rm.getRMContext().getRMApps();
            for (int job = 0; job < 200; job++) {
                String user = "user" + job % 8;
                RMApp app = Odd.like(RMApp.class, longest, Map.of("getUser", () -> user));
                apps.put(ApplicationId.newInstance(1, job + 1), app);
            }
            ApplicationId last = ApplicationId.newInstance(9_999_999_999_999L, 1);
            apps.put(last, Odd.like(RMApp.class, longest, Map.of("getUser", () -> "modest")));
            lab.round();
            List<Application> found = lab.sidecar.lastSnapshot().getApplicationsList();
            assertEquals(202, found.size());
            int length = found.stream().mapToInt(app -> app.getJob().length()).sum();
            assertTrue(length <= Snapshot.MOST_OF_ALL && length > Snapshot.MOST_OF_ALL - Jobs.LONGEST, "" + length);
            assertTrue(found.stream().anyMatch(Application::getUntold));
            assertTrue(found.stream().anyMatch(app -> app.getId().equals(last.toString()) && !app.getUntold()));
        }
    }

    @Test
    void nodesAndApplications() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 1024);
            MockNM b = lab.node("b", 4096);
            MockNM c = lab.node("c", 4096);
            MockAM job = lab.job(a);
            lab.other(a);
            lab.ask(job, 1, 1024, 1);
            lab.beat(b);
            job.allocate(job.createReq(new String[] {"127.0.0.9"}, 2048, 1, 2, 7), List.of());
            lab.rm.sendNodeLost(c);
            lab.round();

            Cluster cluster = lab.sidecar.lastSnapshot();
            assertEquals(ResourceManager.getClusterTimeStamp(), cluster.getStartedMs());
            Map<String, Node> nodes =
                    cluster.getNodesList().stream().collect(Collectors.toMap(Node::getId, node -> node));
            assertEquals(3, nodes.size());
            Node first = nodes.get("127.0.0.1:1");
            assertEquals("127.0.0.1", first.getName());
            assertEquals(Map.of("memory-mb", 1024L, "vcores", 16L), first.getCapacityMap());
            assertEquals(512, first.getAllocatedOrThrow("memory-mb"), "the masters of both applications");
            assertEquals(1024, nodes.get("127.0.0.2:1").getAllocatedOrThrow("memory-mb"));
            assertEquals(NodeState.NODE_STATE_GONE, nodes.get("127.0.0.3:1").getState());

            assertEquals(1, cluster.getApplicationsCount(), "other applications are not listed");
            Application application = cluster.getApplications(0);
            assertEquals(ApplicationState.APPLICATION_STATE_RUNNING, application.getState());
            assertEquals("name = \"job\"", application.getJob());
            assertEquals(
                    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                    application.getSecretHash(),
                    "SHA-256 of abc");
            assertEquals(1, application.getAttempt());
            assertEquals("127.0.0.1:1", application.getMasterNode());
            assertEquals(256, application.getMasterOrThrow("memory-mb"));
            assertEquals(1, application.getContainersCount());
            assertEquals(1, application.getContainers(0).getAllocationRequest());
            assertEquals("127.0.0.2:1", application.getContainers(0).getNode());
            assertEquals(ContainerState.CONTAINER_STATE_ALLOCATED, application.getContainers(0).getState());
            Request request = application.getRequests(0);
            assertEquals(7, request.getAllocationRequest());
            assertEquals("127.0.0.9", request.getNode());
            assertEquals(2, request.getCount());
            assertEquals(2048, request.getResourceOrThrow("memory-mb"));
        }
    }

    @Test
    void configurationAndAttributes() throws Exception {
        try (Lab lab = new Lab(Map.of(
                YarnConfiguration.RM_NM_EXPIRY_INTERVAL_MS, "12345",
                YarnConfiguration.RM_SCHEDULER_MAXIMUM_ALLOCATION_MB, "3000",
                YarnConfiguration.FS_NODE_ATTRIBUTE_STORE_ROOT_DIR, folder.toUri().toString()))) {
            lab.node("a", 1024);
            NodeAttribute rack = NodeAttribute.newInstance("rack.example", "switch", NodeAttributeType.STRING, "7");
            lab.rm.getRMContext().getNodeAttributesManager().addNodeAttributes(Map.of("127.0.0.1", Set.of(rack)));
            lab.rm.drainEvents();
            lab.round();
            Cluster cluster = lab.sidecar.lastSnapshot();
            assertEquals(12345, cluster.getNodeExpiryMs());
            assertEquals(Map.of("memory-mb", 3000L, "vcores", 4L), cluster.getLargestContainerMap());
            assertEquals(Map.of("rack.example/switch", "7"), cluster.getNodes(0).getAttributesMap());
        }
    }

    @Test
    void missedApplicationsAreListedAtAnyTimeAfterTheirEnd() throws Exception {
        try (Lab lab = new Lab()) {
            MockAM job = lab.job(lab.node("a", 1024));
            lab.rm.killApp(lab.id(job));
            lab.rm.waitForState(lab.id(job), RMAppState.KILLED);
            lab.rm.getRMContext()
                    .getRMApps()
                    .compute(lab.id(job), (id, app) -> Odd.like(RMApp.class, app, Map.of("getFinishTime", () -> 1L)));
            lab.round();
            assertEquals(0, lab.sidecar.lastSnapshot().getApplicationsCount());
            Plan missing = Plan.newBuilder()
                    .setTtlMs(Lab.TTL)
                    .addMissed("application_1_0001")
                    .addMissed(lab.id(job).toString())
                    .build();
            lab.sidecar.planner = cluster -> missing;
            lab.round();
            lab.sidecar.planner = cluster -> Odd.fail();
            lab.round();
            lab.round();
            Cluster found = lab.sidecar.lastSnapshot();
            assertEquals(1, found.getApplicationsCount(), "until the next valid answer");
            assertEquals(
                    ApplicationState.APPLICATION_STATE_KILLED, found.getApplications(0).getState());
            lab.plan(Lab.TTL);
            lab.round();
            lab.round();
            assertEquals(0, lab.sidecar.lastSnapshot().getApplicationsCount());
        }
    }

    @Test
    void aReturningNodeIsListedWithItsContainersAfterARestart() throws Exception {
        YarnConfiguration configuration = new YarnConfiguration();
        configuration.setBoolean(YarnConfiguration.RECOVERY_ENABLED, true);
        MemoryRMStateStore store = new MemoryRMStateStore();
        store.init(configuration);
        Map<String, String> recovery = Map.of(YarnConfiguration.RECOVERY_ENABLED, "true");
        try (Lab first = new Lab(recovery, store)) {
            first.node("a", 256);
            MockAM job = first.job(first.node("b", 1024));
            first.obtain(job, 5, 512, 1);
            RMContainer container = first.container(job);
            Thread.sleep(2);
            try (Lab second = new Lab(recovery, store)) {
                second.round();
                assertEquals(0, second.sidecar.lastSnapshot().getNodesCount());
                assertEquals(1, second.sidecar.lastSnapshot().getApplicationsCount());
                NMContainerStatus status = NMContainerStatus.newInstance(
                        container.getContainerId(),
                        0,
                        org.apache.hadoop.yarn.api.records.ContainerState.RUNNING,
                        container.getAllocatedResource(),
                        "",
                        0,
                        Priority.newInstance(1),
                        1);
                status.setAllocationRequestId(5);
                MockNM back = new MockNM("127.0.0.2:1", 1024, 16, second.rm.getResourceTrackerService());
                back.registerNode(List.of(status), List.of(second.id(job)));
                MockNM empty = second.node("a", 256);
                second.rm.drainEvents();
                second.round();
                Cluster soon = second.sidecar.lastSnapshot();
                assertEquals(1, soon.getNodesCount(), "the scheduler may not know its containers yet");
                assertEquals(empty.getNodeId().toString(), soon.getNodes(0).getId());
                second.round();
                assertEquals(1, second.sidecar.lastSnapshot().getNodesCount(), "still no heartbeat of the node");
                second.beat(back);
                second.round();
                Cluster found = second.sidecar.lastSnapshot();
                assertEquals(2, found.getNodesCount());
                assertEquals(5, found.getApplications(0).getContainers(0).getAllocationRequest());
            }
        }
    }

    @Test
    void faultyRowsAreListedInPart() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 1024);
            MockNM b = lab.node("b", 4096);
            MockAM odd = lab.job(a);
            MockAM sound = lab.job(a);
            lab.enforce(Lab.run(odd, Lab.slot(1, b)));
            lab.obtain(odd, 1, 512, 1);
            RMContext context = lab.rm.getRMContext();
            context.getRMNodes().compute(a.getNodeId(), (id, node) ->
                    Odd.like(RMNode.class, node, Map.of("getAllNodeAttributes", Odd::fail)));
            context.getRMApps().compute(lab.id(odd), (id, app) ->
                    Odd.like(
                            RMApp.class,
                            app,
                            Map.of("getQueue", Odd::fail, "getApplicationSubmissionContext", Odd::fail)));
            long before = BridgeMetrics.get().stepsFailed.value();
            lab.enforce(Lab.run(sound, Lab.slot(1, b)));
            assertEquals(before + 4, BridgeMetrics.get().stepsFailed.value());
            Cluster found = lab.sidecar.lastSnapshot();
            Map<String, Application> applications = found.getApplicationsList().stream()
                    .collect(Collectors.toMap(Application::getId, application -> application));
            assertEquals(2, applications.size());
            Application partly = applications.get(lab.id(odd).toString());
            assertEquals(ApplicationState.APPLICATION_STATE_RUNNING, partly.getState());
            assertEquals(1, partly.getContainersCount());
            assertEquals("root.default", applications.get(lab.id(sound).toString()).getQueue());
            assertEquals(2, found.getNodesCount());
            assertTrue(found.getNodesList().stream().allMatch(node -> node.getCapacityMap().containsKey("memory-mb")));
            lab.obtain(sound, 1, 512, 1);
            assertEquals(Map.of(1L, List.of("b")), lab.placed(sound), "the round continued");
        }
    }

    @Test
    void containersUseWhatTheirNodeMeasures() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 1024);
            MockNM b = lab.node("b", 1024);
            ResourceUtilization used = ResourceUtilization.newInstance(300, 900, 1.5f);
            measures(lab, a, () -> used);
            measures(lab, b, () -> null);
            lab.round();
            Map<String, Map<String, Double>> found = lab.sidecar.lastSnapshot().getNodesList().stream()
                    .collect(Collectors.toMap(Node::getId, Node::getUsedMap));
            Map<String, Double> ofA = Map.of("memory-mb", 300.0, "vcores", 1.5);
            assertEquals(
                    Map.of(a.getNodeId().toString(), ofA, b.getNodeId().toString(), Map.of()), found);
        }
    }

    private static void measures(Lab lab, MockNM node, Callable<?> use) {
        lab.rm.getRMContext().getRMNodes().compute(node.getNodeId(), (id, known) ->
                Odd.like(RMNode.class, known, Map.of("getAggregatedContainersUtilization", use)));
    }

    @Test
    void reservationsCountAsAllocated() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 4096);
            MockNM b = lab.node("b", 4096);
            MockAM other = lab.other(b);
            lab.ask(other, 9, 3584, 1);
            lab.beat(b);
            MockAM job = lab.job(a);
            lab.enforce(Lab.run(job, Lab.slot(1, b)));
            lab.obtain(job, 1, 1024, 1);
            lab.round();
            Cluster cluster = lab.sidecar.lastSnapshot();
            Node full = cluster.getNodesList().stream()
                    .filter(node -> node.getId().equals(b.getNodeId().toString()))
                    .findFirst()
                    .orElseThrow();
            assertEquals(256 + 3584 + 1024, full.getAllocatedOrThrow("memory-mb"));
            assertEquals(
                    ContainerState.CONTAINER_STATE_RESERVED,
                    cluster.getApplications(0).getContainers(0).getState());
        }
    }

    @Test
    void waitingAndEndedApplications() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 1024);
            MockAM job = lab.job(a);
            lab.rm.killApp(lab.id(job));
            lab.rm.waitForState(lab.id(job), RMAppState.KILLED);
            lab.submit(lab.submission(Jobs.TYPE, "name = \"next\""));
            lab.round();
            Map<ApplicationState, Application> applications =
                    lab.sidecar.lastSnapshot().getApplicationsList().stream()
                            .collect(Collectors.toMap(Application::getState, application -> application));
            assertTrue(applications
                    .get(ApplicationState.APPLICATION_STATE_KILLED)
                    .getDiagnostics()
                    .contains("killed"));
            assertEquals("", applications.get(ApplicationState.APPLICATION_STATE_KILLED).getJob());
            Application waiting = applications.get(ApplicationState.APPLICATION_STATE_PENDING);
            assertEquals("name = \"next\"", waiting.getJob());
            assertEquals(0, waiting.getRequestsCount(), "without the ApplicationMaster's own request");
        }
    }
}
