package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.trainmaster.yarn.RealCluster;
import io.trainmaster.yarn.Waiting;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** All of it: the daemon, the plug-ins, the ApplicationMaster and the training program, in a real YARN. */
@Timeout(300)
class JobIT {
    private static final Path CLUSTER = Path.of(System.getenv("TRAINMASTER_YARN_CLUSTER"));
    private static final Path DAEMON = Path.of(Optional.ofNullable(System.getenv("TRAINMASTER_BIN"))
            .orElse(CLUSTER.resolve("../../../target/debug/trainmaster").toString()));
    private static final Path TRAINER = DAEMON.resolveSibling("trainmaster-trainer");

    private static final String JOB =
            """
            name = "digits"
            batch = 64
            convergence = { delta = 0.01, patience = 3, max_epochs = 5 }
            worker = { cpu = 1, memory = "64MiB", max = 2, requested = 2 }
            server = { cpu = 1, memory = "64MiB", max = 1, requested = 1 }
            """;

    @TempDir
    Path folder;

    @Test
    void aJobIsSubmittedTrainsAndSucceeds() throws Exception {
        boolean built = Files.isExecutable(DAEMON) && Files.isExecutable(TRAINER);
        assumeTrue(built, "no trainmaster and trainmaster-trainer at " + DAEMON);
        String adapter = "127.0.0.1:" + freePort();
        String properties = "trainmaster.yarn.checkpoints=%s\ntrainmaster.yarn.trainer=%s"
                .formatted(folder, TRAINER.toRealPath());
        Map<String, String> environment = Map.of("NODES", "2048:8:0 2048:8:0", "PROPERTIES", properties);
        try (RealCluster cluster = new RealCluster(adapter, environment)) {
            String classpath = System.getenv("TRAINMASTER_YARN_MASTER") + ":" + cluster.classpath();
            Path settings = Files.writeString(
                    folder.resolve("yarn.toml"),
                    """
                    listen = "%s"
                    resourcemanager = "%s"
                    [master]
                    classpath = "%s"
                    memory = "256MiB"
                    """
                            .formatted(adapter, cluster.web(), classpath));
            Process daemon = trainmaster(
                    settings,
                    "serve",
                    "--listen=127.0.0.1:" + freePort(),
                    "--state-dir=" + folder.resolve("state"),
                    "--adapter=yarn=" + settings,
                    "--set=interval=2s");
            try {
                trainsIn(cluster, settings);
            } finally {
                daemon.destroy();
                daemon.waitFor(30, TimeUnit.SECONDS);
                daemon.destroyForcibly();
            }
        }
    }

    private void trainsIn(RealCluster cluster, Path settings) throws Exception {
        Path job = Files.writeString(folder.resolve("job.toml"), JOB);
        Process submit = trainmaster(settings, "yarn", "submit", "--json", job.toString());
        assertTrue(submit.waitFor(30, TimeUnit.SECONDS));
        String said = Files.readString(folder.resolve("yarn.log"));
        assertEquals(0, submit.exitValue(), said);
        String application = new ObjectMapper().readTree(said).get("application").asText();
        String path = "/ws/v1/cluster/apps/" + application;
        Waiting.until(() -> cluster.get(path).at("/app/state").asText().equals("FINISHED"));
        JsonNode report = cluster.get(path).get("app");
        assertEquals("SUCCEEDED", report.get("finalStatus").asText(), report.toString());
        try (Stream<Path> checkpoints = Files.list(folder.resolve(application))) {
            assertTrue(checkpoints.findAny().isPresent());
        }
    }

    /** Writes what it prints into a file that is called as its command. */
    private Process trainmaster(Path settings, String... arguments) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(
                Stream.concat(Stream.of(DAEMON.toString()), Stream.of(arguments)).toList());
        builder.environment().put("TRAINMASTER_YARN", settings.toString());
        builder.environment().putIfAbsent("USER", "tester");
        return builder.redirectErrorStream(true)
                .redirectOutput(folder.resolve(arguments[0] + ".log").toFile())
                .start();
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        }
    }
}
