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
 * The addresses of a gang's programs, without a feed.
 *
 * @param ports the port of each slot, by its name
 * @param list all addresses, for {@code TRAINMASTER_PEERS}
 */
record Peers(Map<String, Integer> ports, String list) {
    /** Below the ports that Linux assigns itself. */
    static final int LOWEST_PORT = 20_000;

    static final int HIGHEST_PORT = 32_767;

    /**
     * Chooses a port for each slot, different from others on the same host. Whether it is free shows only at its use.
     *
     * @param hosts the host of each slot
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

    /** Whether only this machine can reach a host. */
    static boolean isLoopback(String host) {
        try {
            return InetAddress.getByName(host).isLoopbackAddress();
        } catch (UnknownHostException unknown) {
            return false;
        }
    }
}
