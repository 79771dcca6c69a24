package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.trainmaster.yarn.RealCluster;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.io.TempDir;

/** The whole system in a real YARN: daemon, plug-ins, ApplicationMaster and training program. */
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class JobIT {
    private static final Path CLUSTER = Path.of(System.getenv("TRAINMASTER_YARN_CLUSTER"));
    private static final Path DAEMON = Path.of(Optional.ofNullable(System.getenv("TRAINMASTER_BIN"))
            .orElse(CLUSTER.resolve("../../../target/debug/trainmaster").toString()));
    private static final Path TRAINER = DAEMON.resolveSibling("trainmaster-trainer");

    /** Programs that start less than five seconds before their adapter ends may not know each other. */
    private static final Duration KNOWS_PEERS = Duration.ofSeconds(8);

    /** GPUs limit the jobs' workers. ApplicationMasters and other applications need none. */
    private static final String NODES = "2048:12:2 2048:12:2";

    /** Trains until a test ends it: then the program's next start finds its checkpoint beyond the last epoch. */
    private static final String PROGRAM =
            """
            [ -e "%1$s/$TRAINMASTER_JOB_NAME.end" ] && set -- --max-epochs=1
            exec '%2$s' --checkpoint-epochs=1 --checkpoint-ms=1000 --device-example-ms=1 "$@"
            """;

    private static final String ENDLESS =
            """
            name = "%1$s"
            batch = 64
            convergence = { delta = 0.0, patience = 3, max_epochs = 100000 }
            worker = { gpu = %2$d, cpu = 1, memory = "64MiB", max = %3$d, requested = 1, command = "/bin/sh %4$s" }
            server = { cpu = 1, memory = "64MiB", max = %3$d, requested = 1, command = "/bin/sh %4$s" }
            """;

    private static final String CONVERGING =
            """
            name = "digits"
            batch = 64
            convergence = { delta = 0.01, patience = 3, max_epochs = 5 }
            worker = { cpu = 1, memory = "64MiB", max = 2, requested = 2 }
            server = { cpu = 1, memory = "64MiB", max = 1, requested = 1 }
            """;

    /**
     * A job with this number of chunks and this worth. Each chunk takes one worker a time slot of OASiS (twenty
     * minutes).
     */
    private static final String CHUNKS =
            """
            name = "%1$s"
            mode = "async"
            worker = { cpu = 1, memory = "64MiB", bandwidth = "1Gbit", max = 16, command = "sleep 1000" }
            server = { cpu = 1, memory = "64MiB", bandwidth = "16Gbit", max = 1, command = "sleep 1000" }
            dataset = { chunks = %2$d, batches_per_chunk = 100, epochs = %3$d, batch_time = "12s" }
            utility = { kind = "constant", value = %4$s }
            """;

    @TempDir
    static Path folder;

    private static RealCluster cluster;
    private static Path settings;
    private static String listen;
    private static Process daemon;
    private static Await await;

    @BeforeAll
    static void start() throws Exception {
        boolean built = Files.isExecutable(DAEMON) && Files.isExecutable(TRAINER);
        assumeTrue(built, "no trainmaster and trainmaster-trainer at " + DAEMON);
        String adapter = "127.0.0.1:" + freePort();
        listen = "127.0.0.1:" + freePort();
        String properties =
                """
                trainmaster.yarn.checkpoints=%s
                trainmaster.yarn.trainer=%s
                yarn.nm.liveness-monitor.expiry-interval-ms=20000
                """
                        .formatted(folder, TRAINER.toRealPath());
        cluster = new RealCluster(
                adapter,
                Map.of(
                        "NODES", NODES,
                        "PROPERTIES", properties,
                        "NM_PROPERTIES", "yarn.nodemanager.sleep-delay-before-sigkill.ms=3000"));
        String classpath = System.getenv("TRAINMASTER_YARN_MASTER") + ":" + cluster.classpath();
        settings = Files.writeString(
                folder.resolve("yarn.toml"),
                """
                listen = "%s"
                resourcemanager = "%s"
                token_file = "%s"
                ttl = "3s"
                bandwidth = "100Gbit"
                [master]
                classpath = "%s"
                memory = "256MiB"
                """
                        .formatted(adapter, cluster.web(), cluster.token(), classpath));
        Files.writeString(folder.resolve("program"), PROGRAM.formatted(folder, TRAINER.toRealPath()));
        await = new Await(folder.resolve("serve.log"), root());
        serve();
    }

    @AfterAll
    static void stop() throws Exception {
        if (daemon != null) {
            daemon.destroy();
            daemon.waitFor(30, TimeUnit.SECONDS);
            daemon.destroyForcibly();
        }
        if (cluster != null) {
            cluster.close();
        }
    }

    /** Starts the daemon, for the first time or again. */
    private static void serve() throws IOException {
        serve("state", "--engine=drf", "--set=interval=2s", "--set=on_change=true");
    }

    private static void serve(String state, String... engine) throws IOException {
        daemon = trainmaster(Stream.concat(
                        Stream.of(
                                "serve",
                                "--listen=" + listen,
                                "--state-dir=" + folder.resolve(state),
                                "--adapter=yarn=" + settings),
                        Stream.of(engine))
                .toArray(String[]::new));
    }

    private static void killDaemon() throws InterruptedException {
        daemon.destroyForcibly().waitFor();
    }

    /** Runs trainmaster, with its output in a file that is named after the command. */
    private static Process trainmaster(String... arguments) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(
                Stream.concat(Stream.of(DAEMON.toString()), Stream.of(arguments)).toList());
        builder.environment().put("TRAINMASTER_YARN", settings.toString());
        builder.environment().put("TRAINMASTER_SERVER", "http://" + listen);
        builder.environment().putIfAbsent("USER", "tester");
        Path log = folder.resolve(arguments[0] + ".log");
        return builder.redirectErrorStream(true)
                .redirectOutput(
                        arguments[0].equals("serve")
                                ? ProcessBuilder.Redirect.appendTo(log.toFile())
                                : ProcessBuilder.Redirect.to(log.toFile()))
                .start();
    }

    private static String output(String... arguments) throws Exception {
        Process process = trainmaster(arguments);
        assertTrue(process.waitFor(600, TimeUnit.SECONDS), () -> String.join(" ", arguments) + await.tails());
        String output = Files.readString(folder.resolve(arguments[0] + ".log"));
        if (process.exitValue() != 0) {
            throw new IOException(output);
        }
        return output;
    }

    private static JsonNode json(String... arguments) throws Exception {
        return new ObjectMapper().readTree(output(arguments));
    }

    /** None of the ports that the system gives to connections: one could take it before the daemon listens. */
    private static int freePort() {
        while (true) {
            int port = ThreadLocalRandom.current().nextInt(10_000, 20_000);
            try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
                return socket.getLocalPort();
            } catch (IOException taken) {
                continue;
            }
        }
    }

    private static String submit(String job) throws Exception {
        Path file = Files.writeString(folder.resolve("job.toml"), job);
        return json("yarn", "submit", "--json", file.toString()).get("application").asText();
    }

    /** Submits a job that can use all GPUs, with a parameter server for each, so that the engine gives it all. */
    private static String endless(String name) throws Exception {
        return submit(ENDLESS.formatted(name, 1, 4, folder.resolve("program")));
    }

    /** The daemon's status of a job. */
    private static JsonNode job(String name) throws Exception {
        for (JsonNode job : json("jobs", "--all", "--json").get("jobs")) {
            if (job.get("name").asText().equals(name)) {
                return job;
            }
        }
        throw new IOException("no job " + name);
    }

    /** A job's incarnation, revision and shape, which change with each resize. */
    private static String shape(String name) throws Exception {
        JsonNode job = job(name);
        return Stream.of("incarnation", "revision", "workers", "servers")
                .map(key -> job.get(key).asText())
                .collect(Collectors.joining("/"));
    }

    private static JsonNode report(String application) throws IOException {
        return cluster.get("/ws/v1/cluster/apps/" + application).get("app");
    }

    private static JsonNode attempt(String application) throws IOException {
        JsonNode attempts =
                cluster.get("/ws/v1/cluster/apps/" + application + "/appattempts").at("/appAttempts/appAttempt");
        JsonNode latest = attempts.get(0);
        for (JsonNode attempt : attempts) {
            latest = attempt.get("id").asInt() > latest.get("id").asInt() ? attempt : latest;
        }
        return latest;
    }

    /** The containers of an application, without the ApplicationMaster's. */
    private static Set<String> containers(String application) throws IOException {
        JsonNode attempt = attempt(application);
        String path = "/ws/v1/cluster/apps/" + application + "/appattempts/"
                + attempt.get("appAttemptId").asText() + "/containers";
        Set<String> containers = new TreeSet<>();
        cluster.get(path).at("/container").forEach(one -> containers.add(one.get("containerId").asText()));
        containers.remove(attempt.get("containerId").asText());
        return containers;
    }

    /** The step of an application's last checkpoint. */
    private static long step(String application) throws IOException {
        try (Stream<Path> files = Files.list(folder.resolve(application))) {
            return files.map(file -> file.getFileName().toString())
                    .filter(file -> file.matches("step-[0-9]+\\.ckpt"))
                    .mapToLong(file -> Long.parseLong(file.replaceAll("\\D", "")))
                    .max()
                    .orElse(0);
        }
    }

    /** Whether there is one program for each slot and container, all of the same incarnation. */
    private static boolean isWhole(String application) throws IOException {
        List<Program> programs = Program.of(application);
        Set<String> slots = programs.stream().map(Program::slot).collect(Collectors.toSet());
        Set<String> held = programs.stream().map(Program::container).collect(Collectors.toSet());
        return slots.size() == programs.size()
                && slots.containsAll(Set.of("server0", "worker0"))
                && programs.stream().map(Program::incarnation).distinct().count() == 1
                && held.equals(containers(application));
    }

    private static Set<Long> pids(String application) throws IOException {
        return Program.of(application).stream().map(Program::pid).collect(Collectors.toSet());
    }

    /**
     * Waits until an application's programs have run long enough to know each other, so that they train on without the
     * feed.
     */
    private static Set<Long> knowingPeers(String application) throws Exception {
        Set<Long> before = pids(application);
        Instant[] since = {Instant.now()};
        await.until(application + " keeps its programs", () -> {
            Set<Long> now = pids(application);
            if (!now.equals(before)) {
                before.clear();
                before.addAll(now);
                since[0] = Instant.now();
            }
            return Duration.between(since[0], Instant.now()).compareTo(KNOWS_PEERS) > 0;
        });
        return before;
    }

    private static boolean isStandalone(String application) throws IOException {
        List<Program> programs = Program.of(application);
        return !programs.isEmpty()
                && programs.stream().allMatch(program -> program.incarnation() == Standalone.INCARNATION);
    }

    /** Checks that a job is whole again and trains, after an event. */
    private static void checkTrains(String application, String after) throws Exception {
        String state = after + ": " + application;
        await.until(state + " has a program for each slot and container", () -> isWhole(application));
        long before = step(application);
        await.until(state + " trains beyond step " + before, () -> step(application) > before);
        assertEquals("RUNNING", report(application).get("state").asText(), state);
    }

    /** Ends a job by a failure: the programs that start afterwards have nothing left to do. */
    private static void checkSucceeds(String name, String application) throws Exception {
        Files.createFile(folder.resolve(name + ".end"));
        await.until(application + " has a server", () -> {
            for (Program program : Program.of(application)) {
                if (program.slot().equals("server0")) {
                    Program.kill(program.pid());
                    return true;
                }
            }
            return false;
        });
        await.until(application + " ends", () -> report(application).get("state").asText().equals("FINISHED"));
        assertEquals("SUCCEEDED", report(application).get("finalStatus").asText(), () -> await.tails());
        await.until("no program of " + application + " is left", () -> Program.of(application).isEmpty());
        await.until(
                "the daemon knows that " + name + " is done",
                () -> job(name).get("state").asText().equals("completed"));
    }

    @Test
    @Order(1)
    void aJobIsSubmittedTrainsAndSucceeds() throws Exception {
        String application = submit(CONVERGING);
        await.until(application + " ends", () -> report(application).get("state").asText().equals("FINISHED"));
        JsonNode report = report(application);
        assertEquals("SUCCEEDED", report.get("finalStatus").asText(), report.toString());
        assertTrue(step(application) > 0);
    }

    @Test
    @Order(2)
    void aJobSurvivesTheLossOfEachComponent() throws Exception {
        String application = endless("whole");
        checkTrains(application, "submitted");

        cluster.kill("rm");
        cluster.start("rm");
        await.until("the ResourceManager is back", () -> report(application).get("state").asText().equals("RUNNING"));
        checkTrains(application, "the ResourceManager died");

        String node = nodeWithout(attempt(application).get("nodeId").asText());
        lose("whole", node);
        long lost = step(application);
        await.until("it trains on without " + node, () -> step(application) > lost);
        cluster.start(node);
        await.until(node + " is back", () -> nodes("activeNodes") == 2);
        checkTrains(application, "a NodeManager died and came back");

        // It grows to the node that is back, perhaps only now.
        await.until("it has all of the cluster", () -> shape("whole").endsWith("/4/4"));
        Set<Long> before = knowingPeers(application);
        Program.kill(Program.master(attempt(application).get("containerId").asText()));
        await.until("a second attempt", () -> attempt(application).get("id").asInt() == 2
                && attempt(application).get("appAttemptState").asText().equals("RUNNING"));
        checkTrains(application, "the ApplicationMaster died");
        assertTrue(overlap(before, pids(application)), () -> "the successor adopted its programs" + await.tails());

        Set<Long> then = knowingPeers(application);
        killDaemon();
        Thread.sleep(4000);
        assertEquals(then, pids(application), "the programs train on");
        serve();
        checkTrains(application, "the daemon died");
        assertTrue(overlap(then, pids(application)), "the daemon recognises its job");

        checkSucceeds("whole", application);
        Set<String> names = new HashSet<>();
        json("jobs", "--all", "--json")
                .get("jobs")
                .forEach(job -> assertTrue(names.add(job.get("name").asText()), "listed once"));
    }

    private static boolean overlap(Set<Long> one, Set<Long> other) {
        return one.stream().anyMatch(other::contains);
    }

    /** The cluster's name of the node without this id. */
    private static String nodeWithout(String id) throws IOException {
        String address = "nodemanager.address</name><value>127.0.0.1" + id.substring(id.indexOf(':')) + "<";
        boolean isFirst = Files.readString(root().resolve("nm1/conf/yarn-site.xml")).contains(address);
        return isFirst ? "nm2" : "nm1";
    }

    /**
     * Kills a node, which resizes a job on the whole cluster. Returns when its ApplicationMaster has the new orders. If
     * the daemon told the programs and died before, the job would wait for it: see StandaloneTest.
     */
    private static void lose(String job, String node) throws Exception {
        // If a node returned to the ResourceManager after the time at which it counts as lost, it has shrunk the
        // job.
        await.until(job + " has all of the cluster", () -> shape(job).endsWith("/4/4"));
        String shape = shape(job);
        Set<String> before = new HashSet<>();
        await.until(job + " has orders", () -> before.addAll(ordersOf(job)));
        cluster.kill(node);
        await.until(node + " is lost", () -> nodes("lostNodes") == 1);
        await.until(job + " is resized from " + shape, () -> !shape(job).equals(shape));
        await.until(job + " has new orders", () -> !before.containsAll(ordersOf(job)));
    }

    /** The orders to run that a job's ApplicationMasters have logged, each with its incarnation and revision. */
    private static Set<String> ordersOf(String job) throws IOException {
        Pattern pattern = Pattern.compile("STANDING_RUN of " + job + ", (incarnation [0-9]+, revision [0-9]+)");
        Set<String> orders = new HashSet<>();
        try (Stream<Path> files = Files.walk(root())) {
            for (Path log : files.filter(file -> file.endsWith("stdout")).toList()) {
                pattern.matcher(read(log)).results().forEach(found -> orders.add(found.group(1)));
            }
        } catch (UncheckedIOException gone) {
            return Set.of();
        }
        return orders;
    }

    /** The text of a file, which may be gone by now. */
    private static String read(Path file) {
        try {
            return Files.readString(file, StandardCharsets.ISO_8859_1);
        } catch (IOException gone) {
            return "";
        }
    }

    private static Path root() throws IOException {
        return Path.of(cluster.classpath().split(":")[0]).getParent();
    }

    private static int nodes(String state) throws IOException {
        return cluster.get("/ws/v1/cluster/metrics").at("/clusterMetrics/" + state).asInt();
    }

    @Test
    @Order(3)
    void jobsContinueWithoutTheSidecar() throws Exception {
        String trains = endless("trains");
        checkTrains(trains, "submitted");
        String waits = submit(ENDLESS.formatted("waits", 0, 1, folder.resolve("program")));
        await.until("the daemon knows the other", () -> job("waits") != null);
        output("pause", "waits");
        await.until(
                "it waits", () -> Program.of(waits).isEmpty() && report(waits).get("state").asText().equals("RUNNING"));
        checkTrains(trains, "another one waits");

        Set<Long> before = knowingPeers(trains);
        killDaemon();
        checkOtherStarts("ordinary");
        await.until("it trains in standalone mode", () -> isStandalone(waits));
        checkTrains(waits, "the sidecar died");
        assertTrue(isStandalone(waits));
        assertEquals(before, pids(trains), "the training job continues");

        serve();
        await.until("it waits again", () -> Program.of(waits).isEmpty() && containers(waits).isEmpty());
        assertEquals("RUNNING", report(waits).get("state").asText());
        checkTrains(trains, "the sidecar is back");
        assertTrue(overlap(before, pids(trains)));

        output("resume", "waits");
        checkTrains(waits, "resumed");
        String node = nodeWithout(attempt(trains).get("nodeId").asText());
        lose("trains", node);
        killDaemon();
        checkTrains(waits, "the sidecar died during a resize");
        checkTrains(trains, "the sidecar died during a resize");

        cluster.start(node);
        serve();
        await.until("orders end standalone mode", () -> !isStandalone(waits) && !isStandalone(trains));
        checkTrains(waits, "the sidecar is back");
        checkTrains(trains, "the sidecar is back");
        checkSucceeds("waits", waits);
        checkSucceeds("trains", trains);
        Set<String> names = new HashSet<>();
        json("jobs", "--all", "--json")
                .get("jobs")
                .forEach(job -> assertTrue(names.add(job.get("name").asText()), "listed once"));
        assertFalse(names.isEmpty());
    }

    /** OASiS decides at arrivals, so that its decision is the answer to a submission. */
    @Test
    @Order(4)
    void aRejectedJobIsRefusedAtSubmission() throws Exception {
        killDaemon();
        serve("priced", "--engine=oasis", "--set=horizon=4");
        String fits = submit(CHUNKS.formatted("fits", 4, 1, 100));
        await.until("it is booked", () -> {
            JsonNode job = job("fits");
            return job.get("state").asText().equals("running") || job.get("reason").asText().contains("scheduled");
        });
        String endless = CHUNKS.formatted("endless", 16, 100, 100);
        // A late answer admits the job, which is killed then.
        await.until("one that can't be done in time is refused", () -> refusal(endless)
                        .matches("(?s).*Refused by Trainmaster: until the horizon in .* there is room for"
                                + " .* of the 1600 chunks.*"));
        output("yarn", "kill", fits);
        await.until("it ends", () -> report(fits).get("state").asText().equals("KILLED"));
    }

    /** The reason for a job's refusal. Empty if it is accepted. */
    private static String refusal(String job) throws Exception {
        try {
            submit(job);
            return "";
        } catch (IOException refused) {
            return refused.getMessage();
        }
    }

    /** Checks that another application gets a container soon. */
    private static void checkOtherStarts(String name) throws Exception {
        Path sign = folder.resolve(name + ".ran");
        try (YarnClient client = YarnClient.createYarnClient()) {
            client.init(cluster.configuration());
            client.start();
            ApplicationSubmissionContext submission = client.createApplication().getApplicationSubmissionContext();
            submission.setApplicationName(name);
            submission.setApplicationType("SPARK");
            submission.setMaxAppAttempts(1);
            submission.setResource(Resource.newInstance(64, 1));
            // The client would report an application that ends before its next poll as failed at submission.
            submission.setAMContainerSpec(ContainerLaunchContext.newInstance(
                    null, Map.of(), List.of("touch '" + sign + "'; exec sleep 600"), null, null, null));
            ApplicationId id = client.submitApplication(submission);
            try {
                await.until(name + " ordinary application starts", () -> Files.exists(sign));
            } finally {
                client.killApplication(id);
            }
        }
    }
}
