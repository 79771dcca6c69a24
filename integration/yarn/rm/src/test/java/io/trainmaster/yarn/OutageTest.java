package io.trainmaster.yarn;

import static io.trainmaster.yarn.Lab.run;
import static io.trainmaster.yarn.Lab.slot;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import org.apache.hadoop.yarn.server.resourcemanager.MockAM;
import org.apache.hadoop.yarn.server.resourcemanager.MockNM;
import org.junit.jupiter.api.Test;

/**
 * A sidecar that is down, blocked, slow or faulty: rounds end, the plan stays in force to its end, then scheduling is
 * stock.
 */
class OutageTest {
    private static final Map<String, String> IMPATIENT = Map.of(Settings.DEADLINE.key(), "200");
    private static final Map<String, String> PATIENT = Map.of(Settings.DEADLINE.key(), "30000");

    @Test
    void down() throws Exception {
        try (Lab lab = new Lab()) {
            check(lab, Failure.UNREACHABLE, lab.sidecar::stop);
        }
    }

    @Test
    void slow() throws Exception {
        CountDownLatch release = new CountDownLatch(1);
        try (Lab lab = new Lab(IMPATIENT)) {
            check(lab, Failure.LATE, () -> lab.sidecar.planner = cluster -> {
                try {
                    release.await();
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                }
                throw new IllegalStateException("too late");
            });
            release.countDown();
        }
    }

    @Test
    void answersWithAnError() throws Exception {
        try (Lab lab = new Lab()) {
            check(lab, Failure.ERROR, () -> lab.sidecar.planner = cluster -> {
                throw new IllegalStateException("no plan today");
            });
        }
    }

    @Test
    void acceptsAndNeverAnswers() throws Exception {
        impostor(Failure.LATE, IMPATIENT, socket -> {});
    }

    @Test
    void answersWithAnotherProtocol() throws Exception {
        impostor(Failure.ERROR, PATIENT, socket -> {
            try (socket) {
                socket.getOutputStream().write("HTTP/1.1 200 OK\r\n\r\nhello".getBytes());
            } catch (IOException gone) {
                // The client has closed the connection after the invalid answer.
            }
        });
    }

    /** Runs another program on the sidecar's port. */
    private void impostor(Failure expected, Map<String, String> settings, Consumer<Socket> behaviour) throws Exception {
        try (Lab lab = new Lab(settings)) {
            int port = Settings.Address.parse(lab.sidecar.address()).port();
            check(lab, expected, () -> {
                lab.sidecar.stop();
                ServerSocket listener = listen(port);
                Thread thread = new Thread(() -> accept(listener, behaviour));
                thread.setDaemon(true);
                thread.start();
            });
        }
    }

    /** Listens on a port that another connection may still have for a moment. */
    private static ServerSocket listen(int port) throws Exception {
        AtomicReference<ServerSocket> listener = new AtomicReference<>();
        Waiting.until(() -> {
            try {
                listener.set(new ServerSocket(port, 50, InetAddress.getByName("127.0.0.1")));
                return true;
            } catch (BindException taken) {
                return false;
            }
        });
        return listener.get();
    }

    private static void accept(ServerSocket listener, Consumer<Socket> behaviour) {
        try (listener) {
            List<Socket> open = new ArrayList<>();
            while (true) {
                Socket socket = listener.accept();
                open.add(socket);
                behaviour.accept(socket);
            }
        } catch (IOException closed) {
            // The test has ended.
        }
    }

    private interface Fault {
        void begin() throws Exception;
    }

    private static void check(Lab lab, Failure expected, Fault fault) throws Exception {
        MockNM a = lab.node("a", 4096);
        MockNM b = lab.node("b", 4096);
        MockAM job = lab.job(a);
        lab.plan(5000, run(job, slot(1, b)).build());
        // The first connection takes time.
        Waiting.until(() -> {
            lab.round();
            return PlanHolder.of(lab.rm.getRMContext()).current() != null;
        });
        fault.begin();
        long before = BridgeMetrics.get().failed(expected).value();
        // Between the sidecar's end and the impostor's start nothing listens, which gRPC may notice first.
        Waiting.until(() -> {
            lab.round();
            return BridgeMetrics.get().failed(expected).value() == before + 1;
        });
        assertNotNull(PlanHolder.of(lab.rm.getRMContext()).current());
        lab.ask(job, 2, 512, 1);
        lab.beat();
        assertEquals(Map.of(), lab.placed(job), "the plan is in force");
        lab.pass(5000);
        lab.round();
        assertNull(PlanHolder.of(lab.rm.getRMContext()).current());
        lab.beat();
        assertEquals(1, lab.placed(job).get(2L).size(), "scheduling is stock");
    }

    @Test
    void plansWithAnInvalidTtl() throws Exception {
        try (Lab lab = new Lab()) {
            PlanHolder plans = PlanHolder.of(lab.rm.getRMContext());
            for (long ttl : List.of(0L, -1L, Long.MIN_VALUE)) {
                long before = BridgeMetrics.get().failed(Failure.ERROR).value();
                lab.plan(ttl);
                lab.round();
                assertEquals(before + 1, BridgeMetrics.get().failed(Failure.ERROR).value());
                assertNull(plans.current());
            }
            long before = BridgeMetrics.get().partsIgnored.value();
            lab.plan(Long.MAX_VALUE);
            lab.round();
            assertEquals(before + 1, BridgeMetrics.get().partsIgnored.value());
            lab.sidecar.stop();
            lab.pass(59_999);
            assertNotNull(plans.current());
            lab.pass(1);
            assertNull(plans.current());
        }
    }

    @Test
    void theSidecarIsCalledAgainSoonAfterItsRestart() throws Exception {
        try (Lab lab = new Lab()) {
            lab.plan(5000);
            lab.sidecar.stop();
            lab.restart();
            assertNotNull(PlanHolder.of(lab.rm.getRMContext()).current());
        }
    }
}
