package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SettingsTest {
    private final Configuration configuration = new Configuration(false);

    private String refused(String key, String value) {
        configuration.set(key, value);
        return assertThrows(IllegalArgumentException.class, () -> Settings.of(configuration))
                .getMessage();
    }

    @Test
    void everyKeyHasADefault() {
        Settings settings = Settings.of(configuration);
        assertEquals("127.0.0.1:7071", settings.address());
        assertNull(settings.ca());
        assertNull(settings.checkpoints());
        assertEquals("trainmaster-trainer", settings.trainer());
    }

    @Test
    void addressesAreHostAndPort() {
        for (String good : List.of("rm.example:7071", "[::1]:1", " 10.0.0.1:65535 ")) {
            configuration.set(Settings.ADDRESS, good);
            assertEquals(good.strip(), Settings.of(configuration).address());
        }
        for (String bad : List.of("rm.example", ":7071", "rm:0", "rm:65536", "::1:7071", "http://rm:7071", "rm:7071/x", "-:1")) {
            String said = Settings.ADDRESS + " is \"" + bad + "\"; allowed: HOST:PORT, an IPv6 address in brackets";
            assertEquals(said, refused(Settings.ADDRESS, bad));
        }
    }

    @Test
    void filesAreThereAndFoldersAbsolute(@TempDir Path folder) {
        String missing = folder.resolve("ca.pem").toString();
        assertTrue(refused(Settings.CA, missing).startsWith(Settings.CA + " is \"" + missing + "\"; allowed: a PEM file"));
        configuration.unset(Settings.CA);
        assertTrue(refused(Settings.CHECKPOINTS, "checkpoints").endsWith("allowed: an absolute path"));
    }

    @Test
    void aJobsFolderIsItsUsersAlone(@TempDir Path parent) throws Exception {
        Path made = Checkpoints.folder(parent, "application_1_1");
        assertEquals("rwx------", PosixFilePermissions.toString(Files.getPosixFilePermissions(made)));
        assertEquals(made, Checkpoints.folder(parent, "application_1_1"), "the second ApplicationMaster's");
    }

    @Test
    void aTrapIsNoJobsFolder(@TempDir Path parent) throws Exception {
        Files.createSymbolicLink(parent.resolve("application_1_1"), Files.createDirectory(parent.resolve("mine")));
        assertTrue(trapped(parent, "application_1_1").endsWith("application_1_1 is there, but is no folder"));
        Files.createFile(parent.resolve("application_1_2"));
        assertTrue(trapped(parent, "application_1_2").endsWith("application_1_2 is there, but is no folder"));
        assertTrue(trapped(parent.resolve("none"), "application_1_3").contains("can't be made in " + Settings.CHECKPOINTS));
        boolean isRoot = (Integer) Files.getAttribute(parent, "unix:uid") == 0;
        // Of another user: one that there is on every Unix, or one that root makes up.
        Path other = isRoot ? Files.createDirectory(parent.resolve("application_1_4")) : Path.of("/usr");
        if (isRoot) {
            Files.setAttribute(other, "unix:uid", 4711);
        }
        String said = trapped(other.getParent(), other.getFileName().toString());
        assertTrue(said.contains("belongs to user " + (isRoot ? 4711 : 0)), said);
    }

    private static String trapped(Path parent, String application) {
        return assertThrows(IllegalArgumentException.class, () -> Checkpoints.folder(parent, application))
                .getMessage();
    }
}
