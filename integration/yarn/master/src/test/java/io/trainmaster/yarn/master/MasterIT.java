package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.trainmaster.yarn.RealCluster;
import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import io.trainmaster.yarn.v1.Standing;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.YarnApplicationAttemptState;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The shipped ApplicationMaster in a real YARN, with a fake adapter. */
class MasterIT {
    private static final int SMALL = 1024;
    private static final int LARGE = 2048;

    /** Characters that shells and NodeManagers could change. */
    private static final String NASTY = "a \"$b\" {{HOME}} }}} <CPS> <LOG_DIR>/x";

    /** Records its start, and ends with the status that the test writes. */
    private static final String PROGRAM =
            """
            me=$TRAINMASTER_ROLE$TRAINMASTER_INDEX
            echo "$TRAINMASTER_FEED $TRAINMASTER_PEERS" > "$1/$me.knows"
            echo "$me $TRAINMASTER_INCARNATION $TRAINMASTER_SERVER $WORD $2" >> "$1/began"
            while [ ! -e "$1/$me.exit" ] && [ ! -e "$1/exit" ]; do sleep 0.05; done
            status=$(cat "$1/$me.exit" "$1/exit" 2>/dev/null | head -n 1)
            rm -f "$1/$me.exit"
            touch "$TRAINMASTER_CHECKPOINT_DIR/$me"
            echo "bye from $me" >&2
            exit "$status"
            """;

    @TempDir
    static Path checkpoints;

    private static FakeAdapter adapter;
    private static RealCluster cluster;
    private static YarnClient client;
    private static Map<Integer, String> nodes;
    private static Await await;

    @TempDir
    Path folder;

    private ApplicationId application;

    @BeforeAll
    static void start() throws Exception {
        adapter = new FakeAdapter();
        String properties = "trainmaster.yarn.address=127.0.0.1:%d\ntrainmaster.yarn.checkpoints=%s"
                .formatted(adapter.port(), checkpoints);
        cluster = new RealCluster("", Map.of("NODES", SMALL + ":8:0 " + LARGE + ":8:2", "PROPERTIES", properties));
        client = YarnClient.createYarnClient();
        client.init(cluster.configuration());
        client.start();
        nodes = cluster.nodes();
        await = new Await(Path.of(cluster.classpath().split(":")[0]).getParent());
    }

    @AfterAll
    static void stop() throws Exception {
        if (client != null) {
            client.stop();
        }
        if (cluster != null) {
            cluster.close();
        }
        adapter.close();
    }

    @BeforeEach
    void submit() throws Exception {
        Files.writeString(folder.resolve("program"), PROGRAM);
        application = submit(Map.of(Standalone.VARIABLE, ""));
    }

    private static ApplicationId submit(Map<String, String> variables) throws Exception {
        ApplicationSubmissionContext submission = client.createApplication().getApplicationSubmissionContext();
        submission.setApplicationName("mnist");
        submission.setApplicationType("TRAINMASTER");
        submission.setResource(Resource.newInstance(256, 1));
        submission.setMaxAppAttempts(2);
        submission.setKeepContainersAcrossApplicationAttempts(true);
        String classpath = System.getenv("TRAINMASTER_YARN_MASTER") + ":" + cluster.classpath();
        String command = "java -Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp " + classpath + " "
                + Main.class.getName() + " 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr";
        Map<String, String> environment = new HashMap<>(variables);
        environment.put("TRAINMASTER_SECRET", FakeAdapter.SECRET);
        submission.setAMContainerSpec(
                ContainerLaunchContext.newInstance(null, environment, List.of(command), null, null, null));
        return client.submitApplication(submission);
    }

    private static SlotOrder slot(int incarnation, boolean server, int index, int memoryOfNode) {
        String node = nodes.get(memoryOfNode);
        return SlotOrder.newBuilder()
                .setServer(server)
                .setIndex(index)
                .setNode(node)
                .setNodeName(node)
                .setAllocationRequest((long) incarnation << 32 | (server ? 0x8000_0000L : 0) | index)
                .putResource("memory-mb", 64)
                .putResource("vcores", 1)
                .build();
    }

    private Orders.Builder orders(Standing standing, int incarnation, int revision, SlotOrder... slots) {
        return Orders.newBuilder()
                .setStanding(standing)
                .setJob(1)
                .setName("mnist")
                .setIncarnation(incarnation)
                .setRevision(revision)
                .setGraceMs(1000)
                .setWorkerCommand("/bin/sh '" + folder.resolve("program") + "' '" + folder + "' '" + NASTY + "'")
                .putEnvironment("WORD", NASTY)
                .putEnvironment("TRAINMASTER_FEED", "http://127.0.0.1:1")
                .putEnvironment("TRAINMASTER_INCARNATION", Integer.toString(incarnation))
                .addAllSlots(List.of(slots));
    }

    private void order(Orders.Builder orders) {
        adapter.order(application.toString(), orders.build());
    }

    /** Checks the programs that have started since the last call, in any order. */
    private void began(String... lines) throws Exception {
        Set<String> wanted = new HashSet<>(List.of(lines));
        Path file = folder.resolve("began");
        await.until(
                "these begin: " + wanted,
                () -> Files.exists(file) && Files.readAllLines(file).size() >= wanted.size());
        assertEquals(wanted, new HashSet<>(Files.readAllLines(file)));
        Files.delete(file);
    }

    private static String line(String slot, long incarnation, int memoryOfNode) {
        return slot + " " + incarnation + " " + nodes.get(memoryOfNode) + " " + NASTY + " " + NASTY;
    }

    private void exit(String name, int status) throws IOException {
        Path written = Files.writeString(folder.resolve("new"), status + "\n");
        Files.move(written, folder.resolve(name));
    }

    private JsonNode ended() throws Exception {
        await.until("the application ends", () -> report().get("state").asText().equals("FINISHED"));
        return report();
    }

    private JsonNode report() throws IOException {
        return cluster.get("/ws/v1/cluster/apps/" + application).get("app");
    }

    /** The number of its containers, including the ApplicationMaster's. */
    private int containers() throws IOException {
        ApplicationAttemptId attempt = ApplicationAttemptId.newInstance(application, 1);
        String path = "/ws/v1/cluster/apps/" + application + "/appattempts/" + attempt + "/containers";
        return cluster.get(path).at("/container").size();
    }

    @Test
    void aJobGrowsShrinksRestartsAndCompletes() throws Exception {
        order(orders(Standing.STANDING_RUN, 1, 0, slot(1, true, 0, SMALL), slot(1, false, 0, LARGE)));
        began(line("server0", 1, SMALL), line("worker0", 1, LARGE));
        SlotOrder[] grown = {slot(1, true, 0, SMALL), slot(1, false, 0, LARGE), slot(1, false, 1, SMALL)};
        order(orders(Standing.STANDING_RUN, 1, 1, grown));
        began(line("worker1", 1, SMALL));
        order(orders(Standing.STANDING_RUN, 1, 2, slot(1, true, 0, SMALL), slot(1, false, 0, LARGE)));
        await.until("one of two workers leaves", () -> containers() == 3);
        exit("worker0.exit", 7);
        began(line("worker0", 1, LARGE));
        exit("server0.exit", 1);
        began(line("server0", 1, SMALL), line("worker0", 1, LARGE));
        order(orders(Standing.STANDING_RUN, 2, 0, slot(2, true, 0, LARGE), slot(2, false, 0, SMALL)));
        began(line("server0", 2, LARGE), line("worker0", 2, SMALL));
        exit("exit", 0);
        JsonNode report = ended();
        assertEquals("SUCCEEDED", report.get("finalStatus").asText());
        assertTrue(Files.exists(checkpoints.resolve(application.toString()).resolve("worker0")));
    }

    @Test
    void aJobThatCannotSucceedFailsWithTheLastLineOfItsProgram() throws Exception {
        order(orders(Standing.STANDING_RUN, 1, 0, slot(1, false, 0, LARGE), slot(1, false, 1, SMALL)));
        began(line("worker0", 1, LARGE), line("worker1", 1, SMALL));
        exit("worker1.exit", 44);
        JsonNode report = ended();
        assertEquals("FAILED", report.get("finalStatus").asText());
        String why = report.get("diagnostics").asText();
        assertTrue(why.contains("worker 1 ended with exit status 44 (bye from worker1)"), why);
    }

    @Test
    void aJobWithAnInvalidCommandFails() throws Exception {
        order(orders(Standing.STANDING_RUN, 1, 0, slot(1, false, 0, LARGE)).setWorkerCommand("train 'x"));
        JsonNode report = ended();
        assertEquals("FAILED", report.get("finalStatus").asText());
        String why = report.get("diagnostics").asText();
        assertTrue(why.contains("a quote isn't closed"), why);
    }

    @Test
    void aWaitingJobHasNoContainersAndCanBeEnded() throws Exception {
        order(orders(Standing.STANDING_RUN, 1, 0, slot(1, false, 0, LARGE)));
        began(line("worker0", 1, LARGE));
        order(orders(Standing.STANDING_WAIT, 1, 0));
        await.until("only the ApplicationMaster is left", () -> containers() == 1);
        order(orders(Standing.STANDING_OVER, 1, 0).setReason("cancelled by alice"));
        JsonNode report = ended();
        assertEquals("FAILED", report.get("finalStatus").asText());
        assertTrue(report.get("diagnostics").asText().contains("cancelled by alice"));
    }

    @Test
    void aJobSurvivesTheAdapterAndItsApplicationMaster() throws Exception {
        order(orders(Standing.STANDING_RUN, 1, 0, slot(1, false, 0, LARGE), slot(1, false, 1, SMALL)));
        began(line("worker0", 1, LARGE), line("worker1", 1, SMALL));
        adapter.stop();
        exit("worker0.exit", 1);
        began(line("worker0", 1, LARGE));
        client.failApplicationAttempt(ApplicationAttemptId.newInstance(application, 1));
        ApplicationAttemptId second = ApplicationAttemptId.newInstance(application, 2);
        await.until("a second attempt", () -> client.getApplicationReport(application)
                        .getCurrentApplicationAttemptId()
                        .equals(second)
                && client.getApplicationAttemptReport(second).getYarnApplicationAttemptState()
                        == YarnApplicationAttemptState.RUNNING);
        adapter.start();
        await.until("it follows the adapter", () -> adapter.isFollowed(application.toString()));
        exit("exit", 0);
        assertEquals("SUCCEEDED", ended().get("finalStatus").asText());
        assertTrue(Files.notExists(folder.resolve("began")), "the successor did not restart them");
    }

    @Test
    void aSlotBeyondTheContainerLimitFailsTheJob() throws Exception {
        SlotOrder large = slot(1, false, 0, LARGE).toBuilder().putResource("memory-mb", 1 << 20).build();
        order(orders(Standing.STANDING_RUN, 1, 0, large));
        String why = ended().get("diagnostics").asText();
        assertTrue(why.contains("worker 0 needs 1048576 memory-mb; the ResourceManager's limit"), why);
    }

    @Test
    void anInvalidVariableFailsTheJob() throws Exception {
        client.killApplication(application);
        application = submit(Map.of(Standalone.VARIABLE, "%"));
        JsonNode report = ended();
        assertEquals("FAILED", report.get("finalStatus").asText());
        String why = report.get("diagnostics").asText();
        assertTrue(why.contains(Standalone.VARIABLE + " isn't base64"), why);
    }

    @Test
    void aJobWithoutOrdersRunsInStandaloneModeUntilItGetsSome() throws Exception {
        client.killApplication(application);
        Orders.Builder standalone = orders(Standing.STANDING_RELEASED, (int) Standalone.INCARNATION, 0).setTtlMs(1000);
        for (int index = 0; index < 2; index++) {
            SlotOrder.Builder slot = slot((int) Standalone.INCARNATION, index == 0, 0, LARGE).toBuilder();
            standalone.addSlots(slot.clearNode().clearNodeName().putResource("memory-mb", 700));
        }
        String text = Base64.getEncoder().encodeToString(standalone.build().toByteArray());
        application = submit(Map.of(Standalone.VARIABLE, text));
        Path began = folder.resolve("began");
        await.until("a gang begins", () -> Files.exists(began) && Files.readAllLines(began).size() == 2);
        String server = Files.readString(folder.resolve("server0.knows"));
        assertTrue(server.matches(" server0=127\\.0\\.0\\.1:\\d+,worker0=127\\.0\\.0\\.1:\\d+\n"), server);
        exit("worker0.exit", 1);
        await.until("it begins again", () -> Files.readAllLines(began).size() == 4);
        assertNotEquals(server, Files.readString(folder.resolve("server0.knows")), "with other ports");
        Files.delete(began);
        order(orders(Standing.STANDING_RUN, 1, 0, slot(1, false, 0, SMALL)));
        began(line("worker0", 1, SMALL));
        await.until("the gang is gone", () -> containers() == 2);
        exit("exit", 0);
        assertEquals("SUCCEEDED", ended().get("finalStatus").asText());
    }
}
