package io.trainmaster.yarn.master;

import io.grpc.Server;
import io.grpc.Status;
import io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import io.trainmaster.yarn.v1.FollowRequest;
import io.trainmaster.yarn.v1.MasterGrpc;
import io.trainmaster.yarn.v1.Orders;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;

/** An adapter whose orders a test gives, on a port of loopback. */
final class FakeAdapter implements AutoCloseable {
    static final String SECRET = "correct-horse-battery";

    private final Map<String, Orders> orders = new HashMap<>();
    private final Map<String, StreamObserver<Orders>> followers = new HashMap<>();
    private Server server;
    private int port;

    FakeAdapter() throws IOException {
        start();
    }

    /** On the same port, if it was there before. */
    void start() throws IOException {
        server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", port))
                .addService(new MasterGrpc.MasterImplBase() {
                    @Override
                    public void follow(FollowRequest request, StreamObserver<Orders> answer) {
                        followed(request, answer);
                    }
                })
                .build()
                .start();
        port = server.getPort();
    }

    private synchronized void followed(FollowRequest request, StreamObserver<Orders> answer) {
        Orders known = orders.get(request.getApplication());
        if (known == null || !request.getSecret().equals(SECRET)) {
            answer.onError(Status.UNAUTHENTICATED.asRuntimeException());
            return;
        }
        followers.put(request.getApplication(), answer);
        answer.onNext(known);
    }

    synchronized void tell(String application, Orders next) {
        orders.put(application, next);
        StreamObserver<Orders> follower = followers.get(application);
        if (follower != null) {
            follower.onNext(next);
        }
    }

    synchronized boolean isFollowed(String application) {
        return followers.containsKey(application);
    }

    void stop() throws InterruptedException {
        synchronized (this) {
            followers.clear();
        }
        server.shutdownNow().awaitTermination();
    }

    int port() {
        return port;
    }

    @Override
    public void close() throws InterruptedException {
        stop();
    }
}
