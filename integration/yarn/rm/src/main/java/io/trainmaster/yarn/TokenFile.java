package io.trainmaster.yarn;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Collections;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The token's file. Each call reads it, so that a new token needs no restart. */
final class TokenFile {
    private static final Logger LOG = LoggerFactory.getLogger(TokenFile.class);

    private static final int LONGEST = 1024;

    /** Permissions that the file must not have. Reading by the group is allowed. */
    private static final Set<PosixFilePermission> FORBIDDEN = PosixFilePermissions.fromString("----w-rwx");

    private final Path path;
    private String last;
    private boolean unreadable;

    TokenFile(Path path) {
        this.path = path;
    }

    /** The current token. If the file can't be read, the last token. */
    synchronized String current() throws IOException {
        try {
            last = read(path);
            unreadable = false;
        } catch (IOException missing) {
            if (last == null) {
                throw missing;
            }
            if (!unreadable) {
                LOG.warn("Using the last token of {}: {}", path, missing.toString());
            }
            unreadable = true;
        }
        return last;
    }

    static String read(Path path) throws IOException {
        Set<PosixFilePermission> mode = Files.getPosixFilePermissions(path);
        if (!Collections.disjoint(mode, FORBIDDEN)) {
            throw new IOException(path + " has mode " + PosixFilePermissions.toString(mode)
                    + ", so others can read or change it; run chmod 600 " + path);
        }
        String token;
        try (InputStream file = Files.newInputStream(path)) {
            token = new String(file.readNBytes(LONGEST + 2), StandardCharsets.UTF_8).strip();
        }
        // The characters that a header can have.
        if (token.isEmpty()
                || token.length() > LONGEST
                || !token.chars().allMatch(letter -> letter > ' ' && letter < 127)) {
            throw new IOException(path + " must have one word of at most " + LONGEST + " visible ASCII characters");
        }
        return token;
    }
}
