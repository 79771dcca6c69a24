package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
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
        assertEquals(List.of(), Words.split("  \n"));
        List<String> words = Words.split("a 'b c'  d\\\"e '' $f 'g\\h' i\"j\"");
        assertEquals(List.of("a", "b c", "d\"e", "", "$f", "g\\h", "ij"), words);
        assertEquals(List.of("a\\b\"$"), Words.split("\"a\\b\\\"\\$\""));
        assertThrows(IllegalArgumentException.class, () -> Words.split("a 'b"));
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
    void theEnvironmentSaysWhichSlotItIs() {
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
        assertEquals("192.0.2.7", worker.get("TRAINMASTER_SERVER"), "anywhere: where it is");
        assertEquals("192.0.2.7", worker.get("TRAINMASTER_ADVERTISE"));
        assertEquals("0.0.0.0:0", worker.get("TRAINMASTER_BIND"));
        assertEquals("data", worker.get("TRAINMASTER_DATA_DIR"));
        assertFalse(worker.containsKey("TRAINMASTER_CHECKPOINT_DIR"));
    }

    /** As a NodeManager writes it into a script. */
    @Test
    void whateverTheyContainReachesThePrograms(@TempDir Path folder) throws Exception {
        String nasty = "a \"b\" 'c' $HOME `id` \\n \\ ! 100%";
        Path printer = Files.writeString(folder.resolve("it's"), "printf '%s|' \"$NASTY\" \"$@\"");
        Orders orders = orders("/bin/sh " + Words.quote(printer.toString()) + " " + Words.quote(nasty), "").toBuilder()
                .putEnvironment("NASTY", nasty)
                .build();
        ContainerLaunchContext context = launcher.context(orders, WORKER, "127.0.0.1");
        String script = "export NASTY=\"" + context.getEnvironment().get("NASTY") + "\"\nexec /bin/bash -c \""
                + context.getCommands().get(0).replace("<LOG_DIR>", folder.toString()) + "\"\n";
        Path file = Files.writeString(folder.resolve("launch"), script);
        assertEquals(0, new ProcessBuilder("bash", file.toString()).start().waitFor());
        assertEquals(nasty + "|" + nasty + "|", Files.readString(folder.resolve("stdout"), StandardCharsets.UTF_8));
    }
}
