package io.trainmaster.yarn;

import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import io.netty.handler.ssl.SslContextBuilder;
import io.trainmaster.yarn.v1.BridgeGrpc;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Submission;
import io.trainmaster.yarn.v1.Verdict;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Function;
import javax.net.ssl.KeyManagerFactory;

/** A sidecar with the answers of a test, on a port of the loopback interface. */
final class FakeSidecar implements AutoCloseable {
    /** The received snapshots, in order. */
    final List<Cluster> snapshots = new CopyOnWriteArrayList<>();

    final List<Submission> submissions = new CopyOnWriteArrayList<>();
    volatile Function<Cluster, Plan> planner = cluster -> Plan.getDefaultInstance();
    volatile Function<Submission, Verdict> judge =
            submission -> Verdict.newBuilder().setAdmitted(true).build();
    /** The required token. Empty: no token is required. */
    volatile String token = "";

    private final KeyManagerFactory identity;
    private Server server;
    private int port;

    FakeSidecar() throws IOException {
        this(null);
    }

    /**
     * Starts the sidecar.
     *
     * @param identity its TLS key and certificate. Null: plain text
     */
    FakeSidecar(KeyManagerFactory identity) throws IOException {
        this.identity = identity;
        start();
    }

    /**
     * Starts the sidecar, on the same port as before if there was one. While it is stopped, no outgoing connection of
     * another program takes its port: they have higher ones.
     */
    void start() throws IOException {
        if (port != 0) {
            server = listen(port);
            return;
        }
        for (int tries = 1; server == null; tries++) {
            try {
                server = listen(ThreadLocalRandom.current().nextInt(20_000, 32_000));
            } catch (IOException taken) {
                if (tries == 100) {
                    throw taken;
                }
            }
        }
        port = server.getPort();
    }

    private Server listen(int at) throws IOException {
        // The adapter's limit.
        NettyServerBuilder builder = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", at))
                .maxInboundMessageSize(256 << 20);
        if (identity != null) {
            builder.sslContext(GrpcSslContexts.configure(SslContextBuilder.forServer(identity)).build());
        }
        return builder.intercept(new ServerInterceptor() {
                    @Override
                    public <Q, A> ServerCall.Listener<Q> interceptCall(
                            ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
                        String header = headers.get(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER));
                        if (!token.isEmpty() && !("Bearer " + token).equals(header)) {
                            call.close(Status.UNAUTHENTICATED.withDescription("wrong token"), new Metadata());
                            return new ServerCall.Listener<>() {};
                        }
                        return next.startCall(call, headers);
                    }
                })
                .addService(new BridgeGrpc.BridgeImplBase() {
                    @Override
                    public void exchange(Cluster cluster, StreamObserver<Plan> answer) {
                        snapshots.add(cluster);
                        answer.onNext(planner.apply(cluster));
                        answer.onCompleted();
                    }

                    @Override
                    public void admit(Submission submission, StreamObserver<Verdict> answer) {
                        submissions.add(submission);
                        answer.onNext(judge.apply(submission));
                        answer.onCompleted();
                    }
                })
                .build()
                .start();
    }

    void stop() throws InterruptedException {
        server.shutdownNow().awaitTermination();
    }

    String address() {
        return "127.0.0.1:" + port;
    }

    Cluster lastSnapshot() {
        return snapshots.get(snapshots.size() - 1);
    }

    @Override
    public void close() throws InterruptedException {
        stop();
    }
}
