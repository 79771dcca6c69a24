package io.trainmaster.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A sidecar with TLS that requires a token. */
class CredentialsTest {
    private static final String TOKEN = "correct-horse-battery";

    @TempDir
    private Path folder;

    private static Certificate certificate;
    private Path token;

    @BeforeAll
    static void certify(@TempDir Path shared) throws Exception {
        certificate = Certificate.in(shared);
    }

    @BeforeEach
    void write() throws Exception {
        token = Certificate.secret(folder.resolve("token"), TOKEN + "\n");
    }

    private Lab lab(Path ca) throws Exception {
        FakeSidecar sidecar = new FakeSidecar(certificate.identity());
        sidecar.token = TOKEN;
        return new Lab(
                Map.of(
                        Settings.CA.key(), ca.toString(),
                        Settings.TOKEN_FILE.key(), token.toString(),
                        Settings.FAIL_CLOSED.key(), "true"),
                null,
                sidecar);
    }

    /** Runs a round. Returns the failure, or null if it gets a plan. */
    private static Failure round(Lab lab) throws Exception {
        lab.plan(10_000);
        Map<Failure, Long> before = counts();
        lab.round();
        return counts().entrySet().stream()
                .filter(now -> now.getValue() > before.get(now.getKey()))
                .map(Map.Entry::getKey)
                .findFirst()
                .orElse(null);
    }

    private static Map<Failure, Long> counts() {
        return Arrays.stream(Failure.values())
                .collect(Collectors.toMap(
                        failure -> failure, failure -> BridgeMetrics.get().failed(failure).value()));
    }

    @Test
    void bothServicesAreUsed() throws Exception {
        try (Lab lab = lab(certificate.ca())) {
            assertEquals(null, round(lab));
            lab.submit(lab.submission(Jobs.TYPE, ""));
            assertEquals(1, lab.sidecar.submissions.size());
        }
    }

    @Test
    void aSidecarOfAnotherAuthorityGetsNothing() throws Exception {
        Path other = Certificate.in(Files.createDirectory(folder.resolve("other"))).ca();
        try (Lab lab = lab(other)) {
            assertEquals(Failure.UNREACHABLE, round(lab));
            assertEquals(0, lab.sidecar.snapshots.size());
            assertThrows(YarnException.class, () -> lab.submit(lab.submission(Jobs.TYPE, "")));
        }
    }

    @Test
    void aChangedTokenIsUsed() throws Exception {
        Files.writeString(token, "yesterdays-battery");
        try (Lab lab = lab(certificate.ca())) {
            assertEquals(Failure.DENIED, round(lab));
            Files.writeString(token, TOKEN);
            assertEquals(null, round(lab));
            lab.sidecar.token = "tomorrows-battery";
            assertEquals(Failure.DENIED, round(lab));
            Files.writeString(token, "tomorrows-battery");
            assertEquals(null, round(lab));
            Files.delete(token);
            assertEquals(null, round(lab), "the last token is used");
            Certificate.secret(token, "two words");
            assertEquals(null, round(lab), "the last token is used");
            Certificate.secret(token, "x".repeat(1 << 20));
            assertEquals(null, round(lab), "the last token is used");
        }
    }

    @Test
    void aTokenFileWithAccessForOthersIsRefused() throws Exception {
        for (String mode : List.of("rw-r--r--", "rw--w----", "rwx-----x")) {
            Files.setPosixFilePermissions(token, PosixFilePermissions.fromString(mode));
            String problem = assertThrows(IOException.class, () -> TokenFile.read(token)).getMessage();
            assertTrue(problem.contains(mode) && problem.contains("chmod 600"), problem);
        }
        Files.setPosixFilePermissions(token, PosixFilePermissions.fromString("rw-r-----"));
        assertEquals(TOKEN, TokenFile.read(token));
    }

    @Test
    void missingFilesAreReportedAndCanBeCreatedLater() throws Exception {
        Path ca = folder.resolve("later.pem");
        Files.delete(token);
        long before = BridgeMetrics.get().settingsIgnored.value();
        try (Lab lab = lab(ca)) {
            assertEquals(before + 2, BridgeMetrics.get().settingsIgnored.value());
            assertEquals(Failure.CREDENTIALS, round(lab));
            assertThrows(YarnException.class, () -> lab.submit(lab.submission(Jobs.TYPE, "")));
            Files.copy(certificate.ca(), ca);
            assertEquals(Failure.CREDENTIALS, round(lab), "there is no token yet");
            Certificate.secret(token, TOKEN);
            assertEquals(null, round(lab));
        }
    }
}
