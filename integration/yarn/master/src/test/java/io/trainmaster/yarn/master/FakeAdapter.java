package io.trainmaster.yarn.master;

import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
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

/** An adapter with the orders of a test, on a port of the loopback interface. */
final class FakeAdapter implements AutoCloseable {
    static final String SECRET = "correct-horse-battery";

    private static final Context.Key<Metadata> CALLER = Context.key("headers");

    private final Map<String, Orders> orders = new HashMap<>();
    private final Map<String, StreamObserver<Orders>> followers = new HashMap<>();
    private Server server;
    private int port;

    FakeAdapter() throws IOException {
        start();
    }

    /** Starts, on the same port as before if there was one. */
    void start() throws IOException {
        server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", port))
                .addService(new MasterGrpc.MasterImplBase() {
                    @Override
                    public void follow(FollowRequest request, StreamObserver<Orders> answer) {
                        followed(CALLER.get(), answer);
                    }
                })
                .intercept(new ServerInterceptor() {
                    @Override
                    public <Q, A> ServerCall.Listener<Q> interceptCall(
                            ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
                        Context context = Context.current().withValue(CALLER, headers);
                        return Contexts.interceptCall(context, call, headers, next);
                    }
                })
                .build()
                .start();
        port = server.getPort();
    }

    private synchronized void followed(Metadata headers, StreamObserver<Orders> answer) {
        String application = headers.get(Identity.APPLICATION);
        Orders known = orders.get(application);
        if (known == null || !("Bearer " + SECRET).equals(headers.get(Identity.AUTHORIZATION))) {
            answer.onError(Status.UNAUTHENTICATED.asRuntimeException());
            return;
        }
        followers.put(application, answer);
        answer.onNext(known);
    }

    synchronized void order(String application, Orders next) {
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
