package io.trainmaster.yarn;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.KeyStore;
import java.util.ArrayList;
import java.util.List;
import javax.net.ssl.KeyManagerFactory;

/**
 * A certificate for 127.0.0.1 that is its own authority.
 *
 * @param identity the server's key and certificate
 * @param ca the client's file with the authority
 */
record Certificate(KeyManagerFactory identity, Path ca) {
    private static final String PASSWORD = "changeit";

    static Certificate in(Path folder) throws Exception {
        Path store = folder.resolve("store");
        Path ca = folder.resolve("ca.pem");
        keytool(folder, "-genkeypair -keystore store -storetype PKCS12 -storepass " + PASSWORD
                + " -alias it -keyalg EC -dname CN=sidecar -ext SAN=IP:127.0.0.1 -ext BC=ca:true -validity 2");
        keytool(folder, "-exportcert -rfc -keystore store -storepass " + PASSWORD + " -alias it -file ca.pem");
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(store)) {
            keys.load(in, PASSWORD.toCharArray());
        }
        KeyManagerFactory identity = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        identity.init(keys, PASSWORD.toCharArray());
        return new Certificate(identity, ca);
    }

    /** Writes a file that only its owner can read. */
    static Path secret(Path file, String text) throws IOException {
        Files.writeString(file, text);
        return Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
    }

    private static void keytool(Path folder, String arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/keytool"));
        command.addAll(List.of(arguments.split(" ")));
        Process process = new ProcessBuilder(command)
                .directory(folder.toFile())
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        if (process.waitFor() != 0) {
            throw new IllegalStateException("keytool failed");
        }
    }
}
