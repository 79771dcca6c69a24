package io.trainmaster.yarn;

import java.time.Duration;
import java.util.concurrent.Callable;
import org.junit.jupiter.api.Assertions;

/** Waits for other threads and processes. */
public final class Waiting {
    private static final Duration PATIENCE = Duration.ofSeconds(600);

    private Waiting() {}

    /** Waits until a condition is true. */
    public static void until(Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > end) {
                Assertions.fail("the condition was not true within " + PATIENCE);
            }
            Thread.sleep(20);
        }
    }
}
