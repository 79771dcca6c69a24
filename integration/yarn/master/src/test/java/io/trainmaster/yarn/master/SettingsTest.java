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
        List<String> invalid = List.of(
                "rm.example", ":7071", "rm:0", "rm:65536", "::1:7071", "http://rm:7071", "rm:7071/x", "-:1");
        for (String bad : invalid) {
            String message = Settings.ADDRESS + " is \"" + bad + "\"; allowed: HOST:PORT, an IPv6 address in brackets";
            assertEquals(message, refused(Settings.ADDRESS, bad));
        }
    }

    @Test
    void filesMustExistAndFoldersMustBeAbsolute(@TempDir Path folder) {
        String missing = folder.resolve("ca.pem").toString();
        String message = Settings.CA + " is \"" + missing + "\"; allowed: a PEM file";
        assertTrue(refused(Settings.CA, missing).startsWith(message));
        configuration.unset(Settings.CA);
        assertTrue(refused(Settings.CHECKPOINTS, "checkpoints").endsWith("allowed: an absolute path"));
    }

    @Test
    void aJobsFolderIsPrivate(@TempDir Path parent) throws Exception {
        Path made = Checkpoints.folder(parent, "application_1_1");
        assertEquals("rwx------", PosixFilePermissions.toString(Files.getPosixFilePermissions(made)));
        assertEquals(made, Checkpoints.folder(parent, "application_1_1"), "for the second ApplicationMaster");
    }

    @Test
    void aJobsFolderOfAnotherUserIsRefused(@TempDir Path parent) throws Exception {
        Files.createSymbolicLink(parent.resolve("application_1_1"), Files.createDirectory(parent.resolve("mine")));
        assertTrue(refusal(parent, "application_1_1").endsWith("application_1_1 exists, but is not a folder"));
        Files.createFile(parent.resolve("application_1_2"));
        assertTrue(refusal(parent, "application_1_2").endsWith("application_1_2 exists, but is not a folder"));
        String missing = refusal(parent.resolve("none"), "application_1_3");
        assertTrue(missing.contains("can't be made in " + Settings.CHECKPOINTS), missing);
        boolean isRoot = (Integer) Files.getAttribute(parent, "unix:uid") == 0;
        // The other user is root, or, for tests as root, a made-up one.
        Path other = isRoot ? Files.createDirectory(parent.resolve("application_1_4")) : Path.of("/usr");
        if (isRoot) {
            Files.setAttribute(other, "unix:uid", 4711);
        }
        String message = refusal(other.getParent(), other.getFileName().toString());
        assertTrue(message.contains("belongs to user " + (isRoot ? 4711 : 0)), message);
    }

    private static String refusal(Path parent, String application) {
        return assertThrows(IllegalArgumentException.class, () -> Checkpoints.folder(parent, application))
                .getMessage();
    }
}
