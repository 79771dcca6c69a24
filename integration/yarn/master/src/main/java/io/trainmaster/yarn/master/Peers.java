package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.SlotOrder;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.random.RandomGenerator;
import java.util.stream.Collectors;

/**
 * Where the programs of a gang find each other without a feed.
 *
 * @param ports of each slot, by its name
 * @param list of all, for {@code TRAINMASTER_PEERS}
 */
record Peers(Map<String, Integer> ports, String list) {
    /** Below the ports that Linux gives out by itself. */
    static final int LOWEST_PORT = 20_000;

    static final int HIGHEST_PORT = 32_767;

    /**
     * Chooses a port for each, no two of them the same on one host. Whether it is free there shows when it is used.
     *
     * @param hosts of each slot
     */
    static Peers choose(Map<SlotOrder, String> hosts, RandomGenerator random) {
        Map<String, Set<Integer>> taken = new HashMap<>();
        Map<String, Integer> ports = new LinkedHashMap<>();
        Map<String, String> addresses = new TreeMap<>();
        hosts.forEach((slot, host) -> {
            int port;
            do {
                port = random.nextInt(LOWEST_PORT, HIGHEST_PORT + 1);
            } while (!taken.computeIfAbsent(host, any -> new HashSet<>()).add(port));
            ports.put(name(slot), port);
            addresses.put(name(slot), (isLoopback(host) ? "127.0.0.1" : host) + ":" + port);
        });
        String list = addresses.entrySet().stream()
                .map(peer -> peer.getKey() + "=" + peer.getValue())
                .collect(Collectors.joining(","));
        return new Peers(ports, list);
    }

    int port(SlotOrder slot) {
        return ports.get(name(slot));
    }

    private static String name(SlotOrder slot) {
        return (slot.getServer() ? "server" : "worker") + Integer.toUnsignedString(slot.getIndex());
    }

    /** Whether only this machine reaches it. */
    static boolean isLoopback(String host) {
        try {
            return InetAddress.getByName(host).isLoopbackAddress();
        } catch (UnknownHostException unknown) {
            return false;
        }
    }
}
