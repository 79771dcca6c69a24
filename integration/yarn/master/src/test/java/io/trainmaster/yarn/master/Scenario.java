package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import io.trainmaster.yarn.v1.Standing;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** A job with a clock that the test sets. Containers are named after their slots. */
abstract class Scenario {
    static final int GRACE = 2000;
    static final String A = "a:1";
    static final String B = "b:1";
    static final long SERVER = 0x8000_0000L;

    private final List<Action> performed = new ArrayList<>();
    long now = 1_000_000;
    final Fleet fleet;

    Scenario(Orders standalone) {
        fleet = new Fleet(Policy.DEFAULT, standalone, now);
    }

    static long request(long incarnation, long slot) {
        return incarnation << 32 | slot;
    }

    static SlotOrder slot(long request, String node) {
        return SlotOrder.newBuilder()
                .setServer((request & SERVER) != 0)
                .setIndex((int) (request & ~SERVER))
                .setAllocationRequest(request)
                .setNode(node)
                .setNodeName(node)
                .build();
    }

    static Orders.Builder orders(Standing standing, int incarnation, int revision, SlotOrder... slots) {
        return Orders.newBuilder()
                .setStanding(standing)
                .setIncarnation(incarnation)
                .setRevision(revision)
                .setGraceMs(GRACE)
                .addAllSlots(List.of(slots));
    }

    static Orders run(int incarnation, int revision, SlotOrder... slots) {
        return orders(Standing.STANDING_RUN, incarnation, revision, slots).build();
    }

    /** One server and this number of workers, on one node. */
    static SlotOrder[] shape(int incarnation, int workers) {
        return Stream.concat(
                        Stream.of(slot(request(incarnation, SERVER), A)),
                        Stream.iterate(0L, index -> index < workers, index -> index + 1)
                                .map(index -> slot(request(incarnation, index), A)))
                .toArray(SlotOrder[]::new);
    }

    String step() {
        List<Action> actions = fleet.step(now);
        performed.addAll(actions);
        return actions.stream()
                .filter(action -> !(action instanceof Action.Warn))
                .map(Scenario::format)
                .collect(Collectors.joining(", "));
    }

    static String format(Action action) {
        if (action instanceof Action.Ask ask) {
            String node = ask.slot().getNode();
            return "ask " + name(ask.slot().getAllocationRequest()) + (node.isEmpty() ? "" : "@" + node);
        } else if (action instanceof Action.Withdraw withdraw) {
            return "withdraw " + name(withdraw.request());
        } else if (action instanceof Action.Release release) {
            return "release " + release.container();
        } else if (action instanceof Action.Stop stop) {
            return "stop " + stop.container();
        } else if (action instanceof Action.Launch launch) {
            return "launch " + name(launch.slot().getAllocationRequest()) + " in " + launch.container();
        } else if (action instanceof Action.LaunchTogether together) {
            return together.launches().stream().map(Scenario::format).collect(Collectors.joining(" & "));
        } else if (action instanceof Action.Finish finish) {
            return (finish.succeeded() ? "succeed" : "fail") + ": " + finish.reason();
        }
        throw new AssertionError(action);
    }

    static String name(long request) {
        String incarnation = request >>> 32 == Standalone.INCARNATION ? "standalone" : Long.toString(request >>> 32);
        return incarnation + "/" + Slots.name(request).replace("server ", "s").replace("worker ", "w");
    }

    String follow(Orders orders) {
        fleet.follow(orders, now);
        return step();
    }

    String allocated(String id, long request, String node) {
        fleet.allocated(id, node, request);
        return step();
    }

    String exited(String id, int status) {
        fleet.completed(id, new Exit(status, "Exception\n\n  the last line \n"), now);
        return step();
    }

    String after(long ms) {
        now += ms;
        return step();
    }

    /** Adopts containers on one node, as a successor. */
    String adopted(Map<String, Long> requests) {
        fleet.adopted(
                requests.entrySet().stream()
                        .map(container -> new Held(container.getKey(), A, container.getValue()))
                        .toList(),
                now);
        return step();
    }

    String lost() {
        fleet.disconnected(now);
        return step();
    }

    /** Starts one server and two workers, in containers s, w0 and w1. */
    void running() {
        follow(run(1, 0, shape(1, 2)));
        allocated("s", request(1, SERVER), A);
        allocated("w0", request(1, 0), A);
        allocated("w1", request(1, 1), A);
    }

    String warned() {
        return performed.stream()
                .filter(Action.Warn.class::isInstance)
                .map(action -> ((Action.Warn) action).text())
                .reduce("", (earlier, later) -> later);
    }
}
