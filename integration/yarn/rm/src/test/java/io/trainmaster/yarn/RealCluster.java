package io.trainmaster.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** A cluster of {@code cluster/start} for tests. */
public final class RealCluster implements AutoCloseable {
    private static final Path SCRIPTS = Path.of(System.getenv("TRAINMASTER_YARN_CLUSTER"));
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Path folder;
    private final String web;

    /**
     * Starts a cluster.
     *
     * @param sidecar the sidecar's address. Empty: without plug-ins
     * @param environment variables for {@code cluster/start}
     */
    public RealCluster(String sidecar, Map<String, String> environment) throws Exception {
        folder = Files.createTempDirectory("trainmaster-yarn");
        script(environment, "start", folder.toString(), sidecar);
        web = variable("TRAINMASTER_YARN_WEB");
    }

    private String variable(String name) throws IOException {
        return Files.readAllLines(folder.resolve("env")).stream()
                .filter(line -> line.startsWith("export " + name + "="))
                .map(line -> line.substring(line.indexOf('=') + 1).replace("\"", ""))
                .findFirst()
                .orElseThrow();
    }

    /** Its configuration and Hadoop, for programs on its nodes. */
    public String classpath() throws IOException {
        return variable("HADOOP_CONF_DIR") + ":" + variable("TRAINMASTER_YARN_CLASSPATH");
    }

    /** The file with the plug-ins' token. */
    public Path token() {
        return folder.resolve("plug-ins.token");
    }

    /** The address of its web pages. */
    public String web() {
        return web;
    }

    private static void script(Map<String, String> environment, String name, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(SCRIPTS.resolve(name).toString()));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command).inheritIO();
        builder.environment().putAll(environment);
        Process process = builder.start();
        if (!process.waitFor(900, TimeUnit.SECONDS) || process.exitValue() != 0) {
            process.destroyForcibly();
            throw new IllegalStateException(name + " failed");
        }
    }

    /** The configuration of clients. */
    public YarnConfiguration configuration() {
        YarnConfiguration configuration = new YarnConfiguration();
        for (String file : List.of("core-site.xml", "yarn-site.xml", "resource-types.xml")) {
            configuration.addResource(new org.apache.hadoop.fs.Path(folder.resolve("conf").resolve(file).toUri()));
        }
        return configuration;
    }

    /** Kills a daemon, like {@code kill -9}. */
    public void kill(String daemon) throws Exception {
        String line = Files.readAllLines(folder.resolve("run/pids")).stream()
                .filter(pid -> pid.endsWith(" " + daemon))
                .reduce((earlier, later) -> later)
                .orElseThrow();
        ProcessHandle process =
                ProcessHandle.of(Long.parseLong(line.split(" ")[0])).orElseThrow();
        process.destroyForcibly();
        process.onExit().get(600, TimeUnit.SECONDS);
    }

    /** Starts a daemon again. */
    public void start(String daemon) throws Exception {
        script(Map.of(), "daemon", folder.toString(), daemon);
    }

    /** An answer of the REST API. */
    public JsonNode get(String path) throws IOException {
        return JSON.readTree(URI.create(web + path).toURL());
    }

    JsonNode metrics() throws IOException {
        String name = "Hadoop:service=ResourceManager,name=" + BridgeMetrics.NAME;
        String bean = URLEncoder.encode(name, StandardCharsets.UTF_8);
        return get("/jmx?qry=" + bean).get("beans").get(0);
    }

    /** The ids of its nodes, by their memory in MiB. */
    public Map<Integer, String> nodes() throws IOException {
        Map<Integer, String> nodes = new TreeMap<>();
        for (JsonNode node : get("/ws/v1/cluster/nodes").at("/nodes/node")) {
            nodes.put(
                    node.get("usedMemoryMB").asInt() + node.get("availMemoryMB").asInt(),
                    node.get("id").asText());
        }
        return nodes;
    }

    /** The nodes of an attempt's containers, by their memory in MiB, which identifies a container in a test. */
    public Map<Integer, String> containers(ApplicationAttemptId attempt) throws IOException {
        Map<Integer, String> containers = new TreeMap<>();
        JsonNode answer =
                get("/ws/v1/cluster/apps/" + attempt.getApplicationId() + "/appattempts/" + attempt + "/containers");
        for (JsonNode container : answer.at("/container")) {
            containers.put(
                    container.get("allocatedMB").asInt(),
                    container.get("assignedNodeId").asText());
        }
        return containers;
    }

    @Override
    public void close() throws Exception {
        script(Map.of(), "stop", folder.toString());
        try (var files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(file);
            }
        }
    }
}
