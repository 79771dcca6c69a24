package io.trainmaster.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Application;
import io.trainmaster.yarn.v1.ApplicationState;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.ContainerState;
import io.trainmaster.yarn.v1.Node;
import io.trainmaster.yarn.v1.NodeState;
import io.trainmaster.yarn.v1.Request;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.server.resourcemanager.MockAM;
import org.apache.hadoop.yarn.server.resourcemanager.MockNM;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.junit.jupiter.api.Test;

/** What the sidecar is told. */
class SnapshotTest {
    @Test
    void allThereIs() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 1024);
            MockNM b = lab.node("b", 4096);
            MockNM c = lab.node("c", 4096);
            MockAM job = lab.job(a);
            lab.other(a);
            lab.ask(job, 1, 1024, 1);
            b.nodeHeartbeat(true);
            lab.rm.drainEvents();
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

            assertEquals(1, cluster.getApplicationsCount(), "others aren't told of");
            Application application = cluster.getApplications(0);
            assertEquals(ApplicationState.APPLICATION_STATE_RUNNING, application.getState());
            assertEquals("name = \"job\"", application.getJob());
            assertEquals(
                    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                    application.getSecretHash(),
                    "of abc, as sha256sum has it");
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
    void reservationsCountAsHeld() throws Exception {
        try (Lab lab = new Lab()) {
            MockNM a = lab.node("a", 4096);
            MockNM b = lab.node("b", 4096);
            MockAM other = lab.other(b);
            lab.ask(other, 9, 3584, 1);
            b.nodeHeartbeat(true);
            lab.rm.drainEvents();
            MockAM job = lab.job(a);
            lab.plan(10_000, Lab.run(job, Lab.slot(1, b)).build());
            lab.round();
            lab.ask(job, 1, 1024, 1);
            lab.beat();
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
    void applicationsThatWaitOrEnded() throws Exception {
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
            assertEquals(0, waiting.getRequestsCount(), "the master's own isn't one");
        }
    }
}
