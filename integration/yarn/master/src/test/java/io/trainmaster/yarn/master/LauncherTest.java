package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class LauncherTest {
    private static final SlotOrder SERVER =
            SlotOrder.newBuilder().setServer(true).setIndex(2).setNodeName("n1:45454").build();
    private static final SlotOrder WORKER = SlotOrder.newBuilder().setIndex(3).build();

    private final Launcher launcher = new Launcher("trainmaster-trainer", "/shared/application_1_1");

    private static Orders orders(String worker, String server) {
        return Orders.newBuilder()
                .setWorkerCommand(worker)
                .setServerCommand(server)
                .putEnvironment("TRAINMASTER_FEED", "http://127.0.0.1:7070")
                .build();
    }

    private String command(Orders orders, SlotOrder slot) {
        return launcher.context(orders, slot, "127.0.0.1").getCommands().get(0);
    }

    @Test
    void wordsAreSplitAsAShellDoes() {
        assertEquals(List.of(), ShellWords.split("  \n"));
        List<String> words = ShellWords.split("a 'b c'  d\\\"e '' $f 'g\\h' i\"j\"");
        assertEquals(List.of("a", "b c", "d\"e", "", "$f", "g\\h", "ij"), words);
        assertEquals(List.of("a\\b\"$"), ShellWords.split("\"a\\b\\\"\\$\""));
        assertThrows(IllegalArgumentException.class, () -> ShellWords.split("a 'b"));
    }

    @Test
    void eachRoleHasItsCommand() {
        String redirect = " 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr </dev/null";
        assertEquals("exec 'work' '-v'" + redirect, command(orders("work -v", "serve"), WORKER));
        assertEquals("exec 'serve'" + redirect, command(orders("work -v", "serve"), SERVER));
        assertEquals("exec 'work'" + redirect, command(orders("work", ""), SERVER));
        assertEquals("exec 'trainmaster-trainer'" + redirect, command(orders("", ""), SERVER));
    }

    @Test
    void theEnvironmentIdentifiesTheSlot() {
        assertEquals(
                Map.of(
                        "TRAINMASTER_FEED", "http://127.0.0.1:7070",
                        "TRAINMASTER_ROLE", "server",
                        "TRAINMASTER_INDEX", "2",
                        "TRAINMASTER_SERVER", "n1:45454",
                        "TRAINMASTER_CHECKPOINT_DIR", "/shared/application_1_1"),
                launcher.environment(orders("", ""), SERVER, "127.0.0.1"));
        Orders chunks = orders("", "").toBuilder().putEnvironment("TRAINMASTER_CHUNKS", "4").build();
        Map<String, String> worker = new Launcher("t", "").environment(chunks, WORKER, "192.0.2.7");
        assertEquals("worker", worker.get("TRAINMASTER_ROLE"));
        assertEquals("192.0.2.7", worker.get("TRAINMASTER_SERVER"), "without a node: its host");
        assertEquals("192.0.2.7", worker.get("TRAINMASTER_ADVERTISE"));
        assertEquals("0.0.0.0:0", worker.get("TRAINMASTER_BIND"));
        assertEquals("data", worker.get("TRAINMASTER_DATA_DIR"));
        assertFalse(worker.containsKey("TRAINMASTER_CHECKPOINT_DIR"));
    }

    /** Runs the command from a script like a NodeManager's. */
    @Test
    void specialCharactersReachTheProgramsUnchanged(@TempDir Path folder) throws Exception {
        String nasty = "a \"b\" 'c' $HOME `id` \\n \\ ! 100% {{HOME}} }}} {{{{ <CPS><LOG_DIR> <ADD_OPENS> {\"{";
        Path printer = Files.writeString(folder.resolve("it's"), "printf '%s|' \"$NASTY\" \"$@\"");
        String command = "/bin/sh " + ShellWords.quote(printer.toString()) + " " + ShellWords.quote(nasty);
        Orders orders = orders(command, "").toBuilder()
                .putEnvironment("NASTY", nasty)
                .build();
        ContainerLaunchContext context = launcher.context(orders, WORKER, "127.0.0.1");
        String script = "export NASTY=\"" + expand(context.getEnvironment().get("NASTY"), folder)
                + "\"\nexec /bin/bash -c \"" + expand(context.getCommands().get(0), folder) + "\"\n";
        Path file = Files.writeString(folder.resolve("launch"), script);
        assertEquals(0, new ProcessBuilder("bash", file.toString()).start().waitFor());
        assertEquals(nasty + "|" + nasty + "|", Files.readString(folder.resolve("stdout"), StandardCharsets.UTF_8));
    }

    /** Does the same as {@code ContainerLaunch.expandEnvironment}. */
    private static String expand(String text, Path folder) {
        return text.replace("<LOG_DIR>", folder.toString())
                .replace("<CPS>", ":")
                .replace("<ADD_OPENS>", "--add-opens")
                .replace("{{", "$")
                .replace("}}", "");
    }

    @Test
    void invalidVariablesAreNamed() {
        Orders orders = orders("", "").toBuilder().putEnvironment("A B", "").build();
        assertTrue(refused(orders).contains("\"A B\""));
        orders = orders("", "").toBuilder().putEnvironment("WORD", "x\0y").build();
        assertEquals("\"x\\0y\" has a NUL character", refused(orders));
    }

    private String refused(Orders orders) {
        return assertThrows(IllegalArgumentException.class, () -> launcher.context(orders, WORKER, "127.0.0.1"))
                .getMessage();
    }

    @Test
    void aGangHasItsPeersAndNoFeed() {
        Orders standalone = orders("", "").toBuilder()
                .setIncarnation((int) Standalone.INCARNATION)
                .putEnvironment("TRAINMASTER_TOKEN", "t")
                .build();
        Peers peers = Peers.choose(Map.of(SERVER, "192.0.2.7", WORKER, "localhost"), new Random(1));
        int port = peers.port(SERVER);
        assertEquals("server2=192.0.2.7:" + port + ",worker3=127.0.0.1:" + peers.port(WORKER), peers.list());
        Map<String, String> server = launcher.environment(standalone, SERVER, "192.0.2.7", peers);
        assertEquals(peers.list(), server.get("TRAINMASTER_PEERS"));
        assertEquals("0.0.0.0:" + port, server.get("TRAINMASTER_BIND"));
        assertEquals("192.0.2.7", server.get("TRAINMASTER_ADVERTISE"));
        assertEquals("2147483647", server.get("TRAINMASTER_INCARNATION"));
        assertFalse(server.containsKey("TRAINMASTER_FEED") || server.containsKey("TRAINMASTER_TOKEN"));
        Map<String, String> worker = launcher.environment(standalone, WORKER, "localhost", peers);
        assertEquals("127.0.0.1:" + peers.port(WORKER), worker.get("TRAINMASTER_BIND"));
    }

    @Test
    void portsDifferOnAHost() {
        Map<SlotOrder, String> hosts = new HashMap<>();
        for (int index = 0; index < 2000; index++) {
            hosts.put(SlotOrder.newBuilder().setIndex(index).build(), "192.0.2.7");
        }
        Set<Integer> ports = new HashSet<>(Peers.choose(hosts, new Random(1)).ports().values());
        assertEquals(2000, ports.size());
        assertTrue(ports.stream().allMatch(port -> port >= Peers.LOWEST_PORT && port <= Peers.HIGHEST_PORT));
    }
}
