package io.trainmaster.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Action;
import io.trainmaster.yarn.v1.Application;
import io.trainmaster.yarn.v1.ApplicationPlan;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Container;
import io.trainmaster.yarn.v1.Node;
import io.trainmaster.yarn.v1.NodeState;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Slot;
import io.trainmaster.yarn.v1.Verdict;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.io.TempDir;

/** The shipped plug-ins in a real ResourceManager with real NodeManagers: the life of one job, step by step. */
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class ClusterIT {
    /** A plan that lapses early lets other containers start, also if a busy machine delays an answer. */
    private static final int LONG_TTL_MS = 60_000;

    private static final int SHORT_TTL_MS = 4000;
    private static final int SMALLEST = 2048;
    private static final int SMALL = 4096;

    @TempDir
    private static Path folder;

    private static FakeSidecar sidecar;
    private static RealCluster cluster;
    private static YarnClient client;
    private static RealMaster job;
    private static RealMaster other;
    private static Map<Integer, String> nodes;
    private static volatile List<Slot> slots = List.of();
    private static volatile int ttlMs = LONG_TTL_MS;
    private static long number;

    @BeforeAll
    static void start() throws Exception {
        Certificate certificate = Certificate.in(folder);
        sidecar = new FakeSidecar(certificate.identity());
        sidecar.token = "correct-horse-battery";
        sidecar.planner = ClusterIT::plan;
        String properties = String.join(
                "\n",
                "yarn.nm.liveness-monitor.expiry-interval-ms=4000",
                Settings.ADMISSION_DEADLINE.key() + "=10000",
                Settings.CA.key() + "=" + certificate.ca(),
                Settings.TOKEN_FILE.key() + "=" + Certificate.secret(folder.resolve("token"), sidecar.token));
        cluster = new RealCluster(sidecar.address(), Map.of("PROPERTIES", properties));
        YarnConfiguration configuration = cluster.configuration();
        client = YarnClient.createYarnClient();
        client.init(configuration);
        client.start();
        nodes = cluster.nodes().entrySet().stream().collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
        job = new RealMaster(configuration, client, Jobs.TYPE, "name = \"resnet\"");
        other = new RealMaster(configuration, client, "SPARK", "");
    }

    @AfterAll
    static void stop() throws Exception {
        if (client != null) {
            client.stop();
        }
        if (cluster != null) {
            cluster.close();
        }
        sidecar.close();
    }

    private static Plan plan(Cluster snapshot) {
        number++;
        Plan.Builder plan = Plan.newBuilder().setTerm(1).setNumber(number).setTtlMs(ttlMs);
        for (Application application : snapshot.getApplicationsList()) {
            plan.addApplications(ApplicationPlan.newBuilder()
                    .setId(application.getId())
                    .setAction(Action.ACTION_RUN)
                    .setGraceMs(1500)
                    .setPriority(1)
                    .addAllSlots(slots));
        }
        return plan.build();
    }

    private static Slot slot(long request, int memoryOfNode) {
        return Lab.slot(request, nodes.get(memoryOfNode));
    }

    private static boolean has(RealMaster master, Map<Integer, String> wanted) throws Exception {
        master.beat();
        return cluster.containers(master.attempt).equals(wanted);
    }

    private static int priority(RealMaster master) throws Exception {
        return cluster.get("/ws/v1/cluster/apps/" + master.attempt.getApplicationId())
                .at("/app/priority")
                .asInt();
    }

    private static Set<String> running(Cluster snapshot) {
        return snapshot.getApplicationsList().stream()
                .flatMap(application -> application.getContainersList().stream())
                .map(Container::getId)
                .collect(Collectors.toSet());
    }

    @Test
    @Order(1)
    void slotsAreOnTheirNodesAndOtherApplicationsAreUnrestricted() throws Exception {
        slots = List.of(slot(1, SMALLEST), slot(2, SMALL));
        Waiting.until(() -> cluster.metrics().get("PlanInForce").asInt() == 1);
        job.ask(1, 128);
        job.ask(2, 192);
        job.ask(3, 256);
        Map<Integer, String> planned = Map.of(128, nodes.get(SMALLEST), 192, nodes.get(SMALL));
        Waiting.until(() -> has(job, planned));
        List<Integer> sizes = new ArrayList<>(List.of(320, 384, 448));
        for (int size : sizes) {
            other.ask(size, size);
        }
        Waiting.until(() -> {
            other.beat();
            return cluster.containers(other.attempt).keySet().containsAll(sizes);
        });
        assertTrue(has(job, planned), "slot 3 gets no container");
        assertEquals(List.of(1, 0), List.of(priority(job), priority(other)));
        Waiting.until(() -> sidecar.lastSnapshot().getNodesList().stream()
                .filter(node -> Set.of(nodes.get(SMALLEST), nodes.get(SMALL)).contains(node.getId()))
                .allMatch(node ->
                        node.getUsedOrDefault("memory-mb", 0) >= 1 && node.getUsedOrDefault("vcores", -1) >= 0));
    }

    @Test
    @Order(2)
    void unplannedContainersAreMarkedAndThenKilled() throws Exception {
        slots = List.of(slot(1, SMALLEST));
        Waiting.until(() -> job.beat().getPreemptionMessage() != null);
        Waiting.until(() -> {
            job.beat();
            return job.exits.containsKey(192L);
        });
        assertEquals(ContainerExitStatus.PREEMPTED, job.exits.get(192L));
        assertEquals(Map.of(128, nodes.get(SMALLEST)), cluster.containers(job.attempt));
        // Hadoop's metrics can be out of date for a while.
        Waiting.until(() -> cluster.metrics().get("ContainersKilled").asInt() == 1);
    }

    @Test
    @Order(3)
    void aRefusalReachesTheClient() {
        sidecar.judge = submission ->
                Verdict.newBuilder().setReason("it would never converge").build();
        YarnException refusal = assertThrows(YarnException.class, () -> RealMaster.submit(client, Jobs.TYPE, ""));
        assertTrue(refusal.getMessage().contains("it would never converge"), refusal.getMessage());
    }

    @Test
    @Order(4)
    void withoutTheSidecarSchedulingIsStockAfterTheTtl() throws Exception {
        ttlMs = SHORT_TTL_MS;
        int answered = sidecar.snapshots.size();
        // The answer to the last one may still be on its way.
        Waiting.until(() -> sidecar.snapshots.size() > answered + 2);
        sidecar.stop();
        Waiting.until(() -> cluster.metrics().get("PlanInForce").asInt() == 0);
        Waiting.until(() -> {
            job.beat();
            return cluster.containers(job.attempt).containsKey(256);
        });
        assertEquals(nodes.get(SMALLEST), cluster.containers(job.attempt).get(128));
    }

    @Test
    @Order(5)
    void aRestartedResourceManagerReportsEverythingAgain() throws Exception {
        int asked = sidecar.submissions.size();
        String where = cluster.containers(job.attempt).get(256);
        slots = List.of(slot(1, SMALLEST), Lab.slot(3, where));
        ttlMs = LONG_TTL_MS;
        sidecar.start();
        Waiting.until(() -> cluster.metrics().get("PlanInForce").asInt() == 1);
        Cluster before = sidecar.lastSnapshot();
        assertEquals(2, running(before).size());
        assertEquals(4000, before.getNodeExpiryMs());
        cluster.kill("rm");
        cluster.start("rm");
        Waiting.until(() -> sidecar.lastSnapshot().getStartedMs() > before.getStartedMs()
                && sidecar.lastSnapshot().getNodesCount() == 4);
        List<Cluster> since = sidecar.snapshots.stream()
                .filter(snapshot -> snapshot.getStartedMs() > before.getStartedMs())
                .toList();
        for (Cluster snapshot : since) {
            assertEquals(
                    before.getApplicationsCount(), snapshot.getApplicationsCount(), "no application counts as gone");
            Set<String> listed = snapshot.getNodesList().stream().map(Node::getId).collect(Collectors.toSet());
            for (Container container : before.getApplications(0).getContainersList()) {
                assertTrue(
                        !listed.contains(container.getNode()) || running(snapshot).contains(container.getId()),
                        "a node returns with its containers, not before them: " + snapshot);
            }
        }
        assertEquals(running(before), running(sidecar.lastSnapshot()));
        Application recovered = sidecar.lastSnapshot().getApplications(0);
        assertEquals("name = \"resnet\"", recovered.getJob());
        assertEquals(1, recovered.getPriority());
        assertEquals(
                Set.of(1L, 3L),
                recovered.getContainersList().stream()
                        .map(Container::getAllocationRequest)
                        .collect(Collectors.toSet()));
        assertEquals(asked, sidecar.submissions.size(), "recovered applications are not checked again");
        Waiting.until(() -> has(job, Map.of(128, nodes.get(SMALLEST), 256, where)));
        assertFalse(job.exits.containsKey(128L) || job.exits.containsKey(256L));
    }

    @Test
    @Order(6)
    void aLostNodeIsGoneWithItsContainers() throws Exception {
        // cluster/start's last node is the smallest.
        cluster.kill("nm4");
        Waiting.until(() -> sidecar.lastSnapshot().getNodesList().stream()
                .filter(node -> node.getState() == NodeState.NODE_STATE_GONE)
                .map(Node::getId)
                .toList()
                .equals(List.of(nodes.get(SMALLEST))));
        Waiting.until(() -> sidecar.lastSnapshot().getApplications(0).getContainersList().stream()
                .noneMatch(container -> container.getAllocationRequest() == 1));
        job.ask(1, 128);
        slots = List.of(slot(1, SMALL), slots.get(1));
        Waiting.until(() -> {
            job.beat();
            return nodes.get(SMALL).equals(cluster.containers(job.attempt).get(128));
        });
        job.close();
        other.close();
    }
}
