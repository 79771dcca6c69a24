package io.trainmaster.yarn;

import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.MetadataUtils;
import io.netty.handler.ssl.SslContext;
import io.trainmaster.yarn.v1.BridgeGrpc;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Submission;
import io.trainmaster.yarn.v1.Verdict;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/** The client of the sidecar. Each call ends at its deadline, even if the sidecar doesn't answer. */
final class Sidecar {
    /** Plans of large clusters exceed gRPC's default limit of 4 MiB. */
    private static final int LARGEST_PLAN = 64 << 20;

    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    /** Shared channels, because schedulers create new plug-ins when queues are refreshed, and never close old ones. */
    private static final Map<Settings.Endpoint, Sidecar> BY_ENDPOINT = new ConcurrentHashMap<>();

    private final Settings.Endpoint endpoint;
    private final TokenFile token;
    private ManagedChannel channel;

    private Sidecar(Settings.Endpoint endpoint) {
        this.endpoint = endpoint;
        token = endpoint.tokenFile().map(TokenFile::new).orElse(null);
    }

    static Sidecar at(Settings.Endpoint endpoint) {
        return BY_ENDPOINT.computeIfAbsent(endpoint, Sidecar::new);
    }

    /** A TLS context that trusts only this authority. */
    static SslContext trust(Path ca) throws IOException {
        return GrpcSslContexts.forClient().trustManager(ca.toFile()).build();
    }

    Plan exchange(Cluster cluster, int deadlineMs) throws SidecarException {
        return call(deadlineMs, bounded -> bounded.exchange(cluster));
    }

    Verdict admit(Submission submission, int deadlineMs) throws SidecarException {
        return call(deadlineMs, bounded -> bounded.admit(submission));
    }

    private <T> T call(int deadlineMs, Function<BridgeGrpc.BridgeBlockingStub, T> method) throws SidecarException {
        ManagedChannel open = channel();
        BridgeGrpc.BridgeBlockingStub stub =
                authorized(BridgeGrpc.newBlockingStub(open)).withDeadlineAfter(deadlineMs, TimeUnit.MILLISECONDS);
        try {
            return method.apply(stub);
        } catch (StatusRuntimeException error) {
            Status status = error.getStatus();
            Failure failure =
                    switch (status.getCode()) {
                        case DEADLINE_EXCEEDED -> Failure.LATE;
                        case UNAVAILABLE -> Failure.UNREACHABLE;
                        case UNAUTHENTICATED -> Failure.DENIED;
                        default -> Failure.ERROR;
                    };
            if (failure == Failure.LATE || failure == Failure.UNREACHABLE) {
                // Makes the next call connect at once: gRPC's own pauses grow to minutes, and the connection can be
                // dead.
                open.enterIdle();
            }
            throw new SidecarException(
                    failure, status.getCode() + ", " + status.getDescription() + causes(status), error);
        }
    }

    /** True if the next call connects at once: there is no connection, and gRPC neither makes one nor waits to. */
    synchronized boolean isIdle() {
        return channel == null || channel.getState(false) == ConnectivityState.IDLE;
    }

    /** The channel. It is made at the first call with a usable certificate file. */
    private synchronized ManagedChannel channel() throws SidecarException {
        if (channel == null) {
            NettyChannelBuilder builder = NettyChannelBuilder.forAddress(
                            endpoint.address().host(), endpoint.address().port())
                    .maxInboundMessageSize(LARGEST_PLAN);
            if (endpoint.ca().isPresent()) {
                builder.sslContext(readable(Settings.CA, () -> trust(endpoint.ca().get())));
            } else {
                builder.usePlaintext();
            }
            channel = builder.build();
        }
        return channel;
    }

    private BridgeGrpc.BridgeBlockingStub authorized(BridgeGrpc.BridgeBlockingStub stub) throws SidecarException {
        if (token == null) {
            return stub;
        }
        Metadata headers = new Metadata();
        headers.put(AUTHORIZATION, "Bearer " + readable(Settings.TOKEN_FILE, token::current));
        return stub.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    }

    private interface Source<T> {
        T read() throws IOException;
    }

    private static <T> T readable(Setting<?> setting, Source<T> source) throws SidecarException {
        try {
            return source.read();
        } catch (IOException | RuntimeException unusable) {
            throw new SidecarException(Failure.CREDENTIALS, setting.key() + ": " + unusable, unusable);
        }
    }

    /** The messages of a status' causes, because gRPC's own message doesn't name a certificate's fault. */
    private static String causes(Status status) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = status.getCause(); cause != null; cause = cause.getCause()) {
            text.append(": ").append(cause.getMessage());
        }
        return text.toString();
    }
}
