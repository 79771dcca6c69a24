package io.trainmaster.yarn;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;

/** How a job travels in a submission. */
final class Jobs {
    /** The application type of jobs that Trainmaster plans. */
    static final String TYPE = "TRAINMASTER";

    /**
     * The ApplicationMaster's environment variable with the job file's text. It is stored with the submission, so it
     * survives a restart of the ResourceManager, until the application ends.
     */
    static final String VARIABLE = "TRAINMASTER_JOB";

    /** The variable with the secret, of which only the hash is told. */
    static final String SECRET = "TRAINMASTER_SECRET";

    /** Characters of a job file, percent-encoded: the adapter refuses what is longer. */
    static final int LONGEST = 3 * (64 << 10);

    private Jobs() {}

    static boolean isJob(String applicationType) {
        return TYPE.equalsIgnoreCase(applicationType);
    }

    /** Its beginning, where it is longer than what anybody reads. */
    static String fileOf(ApplicationSubmissionContext submission) {
        return cut(variable(submission, VARIABLE), LONGEST + 1);
    }

    /** The beginning of a text that somebody else wrote. */
    static String cut(String text, int longest) {
        return text.length() <= longest ? text : text.substring(0, longest);
    }

    /** The SHA-256, in hex, of what proves its ApplicationMaster to be the application's; empty without one. */
    static String secretHashOf(ApplicationSubmissionContext submission) {
        String secret = variable(submission, SECRET);
        if (secret.isEmpty()) {
            return "";
        }
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(secret.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(digest);
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static String variable(ApplicationSubmissionContext submission, String name) {
        ContainerLaunchContext master = submission.getAMContainerSpec();
        Map<String, String> environment = master == null ? null : master.getEnvironment();
        return environment == null ? "" : environment.getOrDefault(name, "");
    }
}
