package io.trainmaster.yarn.master;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.hadoop.yarn.api.records.ContainerId;

/**
 * A training program on this machine, in one of YARN's containers.
 *
 * @param slot its slot, such as {@code worker0}
 */
record Program(long pid, String container, String slot, long incarnation) {
    /** The programs of an application. */
    static List<Program> of(String application) throws IOException {
        try (Stream<Path> processes = Files.list(Path.of("/proc"))) {
            return processes
                    .filter(process -> process.getFileName().toString().matches("[0-9]+"))
                    .map(process -> read(process, application))
                    .filter(Objects::nonNull)
                    .toList();
        }
    }

    private static Program read(Path process, String application) {
        Map<String, String> environment = new HashMap<>();
        try {
            for (String entry : Files.readString(process.resolve("environ")).split("\0")) {
                int at = entry.indexOf('=');
                if (at > 0) {
                    environment.put(entry.substring(0, at), entry.substring(at + 1));
                }
            }
            String container = environment.get("CONTAINER_ID");
            boolean isTrainer = container != null
                    && environment.containsKey("TRAINMASTER_ROLE")
                    && Files.readString(process.resolve("comm")).startsWith("trainmaster-tra")
                    && ContainerId.fromString(container)
                            .getApplicationAttemptId()
                            .getApplicationId()
                            .toString()
                            .equals(application);
            return isTrainer
                    ? new Program(
                            Long.parseLong(process.getFileName().toString()),
                            container,
                            environment.get("TRAINMASTER_ROLE") + environment.get("TRAINMASTER_INDEX"),
                            Long.parseLong(environment.get("TRAINMASTER_INCARNATION")))
                    : null;
        } catch (IOException gone) {
            return null;
        }
    }

    /** The process id of an ApplicationMaster. */
    static long master(String container) throws IOException {
        try (Stream<Path> processes = Files.list(Path.of("/proc"))) {
            return processes
                    .filter(process -> process.getFileName().toString().matches("[0-9]+"))
                    .filter(process -> isMaster(process, container))
                    .mapToLong(process -> Long.parseLong(process.getFileName().toString()))
                    .findFirst()
                    .orElseThrow();
        }
    }

    private static boolean isMaster(Path process, String container) {
        try {
            return Files.readString(process.resolve("environ")).contains("CONTAINER_ID=" + container + "\0")
                    && Files.readString(process.resolve("comm")).equals("java\n");
        } catch (IOException gone) {
            return false;
        }
    }

    /** Kills a process, like {@code kill -9}. */
    static void kill(long pid) throws Exception {
        ProcessHandle process = ProcessHandle.of(pid).orElseThrow();
        process.destroyForcibly();
        process.onExit().get(600, java.util.concurrent.TimeUnit.SECONDS);
    }
}
