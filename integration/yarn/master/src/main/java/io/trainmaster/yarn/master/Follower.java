package io.trainmaster.yarn.master;

import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.MetadataUtils;
import io.trainmaster.yarn.v1.FollowRequest;
import io.trainmaster.yarn.v1.MasterGrpc;
import io.trainmaster.yarn.v1.Orders;
import java.io.IOException;
import java.util.Iterator;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Receives the adapter's orders, and reconnects after each disconnection. */
final class Follower {
    private static final Logger LOG = LoggerFactory.getLogger(Follower.class);
    private static final long SHORTEST_WAIT_MS = 100;
    private static final long LONGEST_WAIT_MS = 5000;
    private static final int LARGEST_ORDERS = 64 << 20;
    /** gRPC's minimum. It detects an adapter that doesn't answer. */
    private static final int KEEP_ALIVE_S = 10;

    private static final int KEEP_ALIVE_ANSWER_S = 5;

    private final ManagedChannel channel;
    private final Identity identity;
    private final Consumer<Orders> onOrders;
    private final Runnable onDisconnect;
    private final Thread thread = new Thread(this::run, "orders");

    /**
     * Starts to follow.
     *
     * @param identity the job whose orders to follow
     * @param onOrders called with each received orders
     * @param onDisconnect called after each disconnection
     */
    Follower(Settings settings, Identity identity, Consumer<Orders> onOrders, Runnable onDisconnect)
            throws IOException {
        NettyChannelBuilder builder = NettyChannelBuilder.forTarget(settings.address())
                .maxInboundMessageSize(LARGEST_ORDERS)
                .keepAliveTime(KEEP_ALIVE_S, TimeUnit.SECONDS)
                .keepAliveTimeout(KEEP_ALIVE_ANSWER_S, TimeUnit.SECONDS);
        if (settings.ca() == null) {
            builder.usePlaintext();
        } else {
            builder.sslContext(GrpcSslContexts.forClient().trustManager(settings.ca()).build());
        }
        this.channel = builder.build();
        this.identity = identity;
        this.onOrders = onOrders;
        this.onDisconnect = onDisconnect;
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        long wait = SHORTEST_WAIT_MS;
        String logged = "";
        while (!channel.isShutdown()) {
            String why = "the adapter closed the stream";
            try {
                Iterator<Orders> orders = MasterGrpc.newBlockingStub(channel)
                        .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(identity.headers()))
                        .follow(FollowRequest.getDefaultInstance());
                while (orders.hasNext()) {
                    onOrders.accept(orders.next());
                    wait = SHORTEST_WAIT_MS;
                    logged = "";
                }
            } catch (StatusRuntimeException error) {
                why = error.getStatus().toString();
            }
            onDisconnect.run();
            if (!why.equals(logged) && !channel.isShutdown()) {
                LOG.warn("no orders from the adapter, the last ones stay in force: {}", why);
                logged = why;
            }
            // gRPC's own pauses grow to minutes.
            channel.enterIdle();
            try {
                Thread.sleep(wait);
            } catch (InterruptedException end) {
                return;
            }
            wait = Math.min(2 * wait, LONGEST_WAIT_MS);
        }
    }

    /** Stops following. */
    void close() {
        channel.shutdownNow();
        thread.interrupt();
    }
}
