package io.trainmaster.yarn;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The file with the token, read for each call: so a new token needs no restart. */
final class TokenFile {
    private static final Logger LOG = LoggerFactory.getLogger(TokenFile.class);

    private final Path path;
    private String last;
    private boolean unreadable;

    TokenFile(Path path) {
        this.path = path;
    }

    /** What the file says now; what it said before, while it can't be read. */
    synchronized String current() throws IOException {
        try {
            last = read(path);
            unreadable = false;
        } catch (IOException missing) {
            if (last == null) {
                throw missing;
            }
            if (!unreadable) {
                LOG.warn("Going on with the last token of {}: {}", path, missing.toString());
            }
            unreadable = true;
        }
        return last;
    }

    static String read(Path path) throws IOException {
        String token = Files.readString(path).strip();
        // Nothing else can be in a header.
        if (token.isEmpty() || !token.chars().allMatch(letter -> letter > ' ' && letter < 127)) {
            throw new IOException(path + " isn't one word of ASCII");
        }
        return token;
    }
}
