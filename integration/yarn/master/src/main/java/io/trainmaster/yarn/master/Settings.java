package io.trainmaster.yarn.master;

import java.io.File;
import java.net.URI;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;

/**
 * The ApplicationMaster's settings from the node's {@code yarn-site.xml}.
 *
 * @param address the adapter's {@code HOST:PORT}
 * @param ca PEM file with the certificate authority of an adapter with TLS. Null: without TLS
 * @param checkpoints a folder that all nodes share. Null: programs have no checkpoint folder
 * @param trainer the program of a job without a command
 */
record Settings(String address, File ca, Path checkpoints, String trainer) {
    static final String ADDRESS = "trainmaster.yarn.address";
    static final String CA = "trainmaster.yarn.ca";
    static final String CHECKPOINTS = "trainmaster.yarn.checkpoints";
    static final String TRAINER = "trainmaster.yarn.trainer";

    private static final Pattern HOST_PORT = Pattern.compile("([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+]):([0-9]{1,5})");

    /**
     * Reads the settings, with defaults.
     *
     * @throws IllegalArgumentException if a value is invalid, with the key, the value and the allowed values
     */
    static Settings of(Configuration configuration) {
        String address = configuration.getTrimmed(ADDRESS, "127.0.0.1:7071");
        check(isAddress(address), ADDRESS, address, "HOST:PORT, an IPv6 address in brackets");
        String ca = configuration.getTrimmed(CA, "");
        check(ca.isEmpty() || new File(ca).canRead(), CA, ca, "a PEM file that this user can read");
        String checkpoints = configuration.getTrimmed(CHECKPOINTS, "");
        check(isFolder(checkpoints), CHECKPOINTS, checkpoints, "an absolute path");
        String trainer = configuration.getTrimmed(TRAINER, "trainmaster-trainer");
        check(!trainer.isEmpty(), TRAINER, trainer, "a program's name or path");
        return new Settings(
                address,
                ca.isEmpty() ? null : new File(ca),
                checkpoints.isEmpty() ? null : Path.of(checkpoints),
                trainer);
    }

    /** Accepts the same addresses as the plug-ins: those that gRPC accepts. */
    private static boolean isAddress(String text) {
        Matcher form = HOST_PORT.matcher(text);
        if (!form.matches()) {
            return false;
        }
        int port = Integer.parseInt(form.group(2));
        try {
            return port >= 1 && port <= 65_535 && URI.create("dns://" + text).getHost() != null;
        } catch (IllegalArgumentException bad) {
            return false;
        }
    }

    private static boolean isFolder(String text) {
        return text.isEmpty() || (text.startsWith("/") && text.indexOf('\0') < 0);
    }

    private static void check(boolean isAllowed, String key, String value, String allowed) {
        if (!isAllowed) {
            throw new IllegalArgumentException(key + " is \"" + value + "\"; allowed: " + allowed);
        }
    }
}
