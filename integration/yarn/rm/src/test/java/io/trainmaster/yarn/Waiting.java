package io.trainmaster.yarn;

import java.time.Duration;
import java.util.concurrent.Callable;
import org.junit.jupiter.api.Assertions;

/** For what another thread or process is about to do. */
public final class Waiting {
    private static final Duration PATIENCE = Duration.ofSeconds(90);

    private Waiting() {}

    /** Until it is so. */
    public static void until(Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > end) {
                Assertions.fail("it didn't come about within " + PATIENCE);
            }
            Thread.sleep(20);
        }
    }
}
