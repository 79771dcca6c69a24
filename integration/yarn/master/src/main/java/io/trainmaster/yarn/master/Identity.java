package io.trainmaster.yarn.master;

import io.grpc.Metadata;

/**
 * The identity with which an ApplicationMaster calls the adapter.
 *
 * @param application the application's id
 * @param secret the secret that the application was submitted with
 */
record Identity(String application, String secret) {
    static final Metadata.Key<String> APPLICATION =
            Metadata.Key.of("trainmaster-application", Metadata.ASCII_STRING_MARSHALLER);
    static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    Metadata headers() {
        Metadata headers = new Metadata();
        headers.put(APPLICATION, application);
        headers.put(AUTHORIZATION, "Bearer " + secret);
        return headers;
    }

    @Override
    public String toString() {
        return application;
    }
}
