package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;

/**
 * The launch contexts of containers.
 *
 * @param trainer the program of a job without a command
 * @param checkpoints the job's folder. Empty: none
 */
record Launcher(String trainer, String checkpoints) {
    private static final String LOG = ApplicationConstants.LOG_DIR_EXPANSION_VAR;

    /** Variables that only serve to reach the feed. */
    private static final Set<String> OF_FEED = Set.of("TRAINMASTER_FEED", "TRAINMASTER_FEED_CA", "TRAINMASTER_TOKEN");

    /**
     * The context of a slot's program on a node of that host. The program receives its peers from the feed.
     *
     * @throws IllegalArgumentException if the command or the environment is invalid
     */
    ContainerLaunchContext context(Orders orders, SlotOrder slot, String host) {
        return context(orders, slot, environment(orders, slot, host));
    }

    /** The context of a program that gets its peers at its start. */
    ContainerLaunchContext context(Orders orders, SlotOrder slot, String host, Peers peers) {
        return context(orders, slot, environment(orders, slot, host, peers));
    }

    private ContainerLaunchContext context(Orders orders, SlotOrder slot, Map<String, String> variables) {
        Map<String, String> environment = new HashMap<>();
        variables.forEach((key, value) -> environment.put(ShellWords.variable(key), ShellWords.escape(value)));
        return ContainerLaunchContext.newInstance(
                null, environment, List.of(ShellWords.escape(command(orders, slot)) + redirect()), null, null, null);
    }

    private static String redirect() {
        return " 1>" + LOG + "/stdout 2>" + LOG + "/stderr </dev/null";
    }

    /** NodeManagers run all commands with a shell. This command only replaces it with the program. */
    private String command(Orders orders, SlotOrder slot) {
        String own = slot.getServer() ? orders.getServerCommand() : "";
        List<String> words = ShellWords.split(own.isBlank() ? orders.getWorkerCommand() : own);
        List<String> program = words.isEmpty() ? List.of(trainer) : words;
        return program.stream().map(ShellWords::quote).collect(Collectors.joining(" ", "exec ", ""));
    }

    /** The variables of the job and of the slot. */
    Map<String, String> environment(Orders orders, SlotOrder slot, String host) {
        Map<String, String> environment = new HashMap<>(orders.getEnvironmentMap());
        environment.put("TRAINMASTER_ROLE", slot.getServer() ? "server" : "worker");
        environment.put("TRAINMASTER_INDEX", Integer.toUnsignedString(slot.getIndex()));
        environment.put("TRAINMASTER_SERVER", slot.getNodeName().isEmpty() ? host : slot.getNodeName());
        if (!checkpoints.isEmpty()) {
            environment.put("TRAINMASTER_CHECKPOINT_DIR", checkpoints);
        }
        if (environment.containsKey("TRAINMASTER_CHUNKS")) {
            // Relative to the container's own folder.
            environment.put("TRAINMASTER_DATA_DIR", "data");
        }
        if (!Peers.isLoopback(host)) {
            environment.put("TRAINMASTER_BIND", "0.0.0.0:0");
            environment.put("TRAINMASTER_ADVERTISE", host);
        }
        return environment;
    }

    /** The variables of a program without a feed. */
    Map<String, String> environment(Orders orders, SlotOrder slot, String host, Peers peers) {
        Map<String, String> environment = environment(orders, slot, host);
        environment.keySet().removeAll(OF_FEED);
        environment.put("TRAINMASTER_INCARNATION", Integer.toUnsignedString(orders.getIncarnation()));
        environment.put("TRAINMASTER_PEERS", peers.list());
        String on = Peers.isLoopback(host) ? "127.0.0.1:" : "0.0.0.0:";
        environment.put("TRAINMASTER_BIND", on + peers.port(slot));
        return environment;
    }
}
