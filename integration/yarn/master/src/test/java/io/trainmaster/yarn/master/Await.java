package io.trainmaster.yarn.master;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assertions;

/** Waits for other processes. A failure has the awaited condition, with the ends of the processes' logs. */
final class Await {
    /** Longer than the five minutes for which programs on a lost node train on while the sidecar is away. */
    private static final Duration PATIENCE = Duration.ofSeconds(600);
    private static final int LINES = 8;

    private final List<Path> logs;

    /** A condition, which may throw while it isn't true, for example if the daemon doesn't answer. */
    interface Condition {
        boolean holds() throws Exception;
    }

    /**
     * Makes an instance with these logs.
     *
     * @param logs files, and folders with log files at any depth
     */
    Await(Path... logs) {
        this.logs = List.of(logs);
    }

    void until(String what, Condition condition) throws InterruptedException {
        until(what, PATIENCE, condition);
    }

    void until(String what, Duration patience, Condition condition) throws InterruptedException {
        long end = System.nanoTime() + patience.toNanos();
        String why = "";
        while (true) {
            try {
                if (condition.holds()) {
                    return;
                }
                why = "";
            } catch (Exception error) {
                why = " (" + error + ")";
            }
            if (System.nanoTime() > end) {
                Assertions.fail("not within " + patience + ": " + what + why + tails());
            }
            Thread.sleep(50);
        }
    }

    /** The last lines of all logs. */
    String tails() {
        StringBuilder text = new StringBuilder();
        for (Path log : logs) {
            try (Stream<Path> files = Files.walk(log)) {
                files.filter(file -> Files.isRegularFile(file) && file.toString().matches(".*(\\.log|/stderr|/stdout)"))
                        .sorted()
                        .forEach(file -> text.append(tail(file)));
            } catch (IOException none) {
                text.append("\n== ").append(none);
            }
        }
        return text.toString();
    }

    private static String tail(Path file) {
        try {
            // YARN 3.5 repeats some lines every second.
            String[] lines = Files.readString(file, StandardCharsets.ISO_8859_1)
                    .lines()
                    .filter(line -> !line.contains("ResourceUtils: Adding resource type"))
                    .toArray(String[]::new);
            String last = String.join("\n", Arrays.copyOfRange(lines, Math.max(0, lines.length - LINES), lines.length));
            return last.isBlank() ? "" : "\n== " + file + "\n" + last;
        } catch (IOException none) {
            return "\n== " + none;
        }
    }
}
