package io.trainmaster.yarn;

import io.grpc.Server;
import io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import io.trainmaster.yarn.v1.BridgeGrpc;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Submission;
import io.trainmaster.yarn.v1.Verdict;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;

/** A sidecar that answers what a test tells it to, on a port of loopback. */
final class FakeSidecar implements AutoCloseable {
    /** What it was sent, in order. */
    final List<Cluster> snapshots = new CopyOnWriteArrayList<>();

    final List<Submission> submissions = new CopyOnWriteArrayList<>();
    volatile Function<Cluster, Plan> planner = cluster -> Plan.getDefaultInstance();
    volatile Function<Submission, Verdict> judge =
            submission -> Verdict.newBuilder().setAdmitted(true).build();
    private Server server;
    private int port;

    FakeSidecar() throws IOException {
        start();
    }

    /** On the same port, if it was there before. */
    void start() throws IOException {
        server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", port))
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
        port = server.getPort();
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
