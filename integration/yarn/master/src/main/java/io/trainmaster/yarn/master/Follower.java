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

/** Hears the adapter's orders, and calls it again whenever it is away. */
final class Follower {
    private static final Logger LOG = LoggerFactory.getLogger(Follower.class);
    private static final long SHORTEST_WAIT_MS = 100;
    private static final long LONGEST_WAIT_MS = 5000;
    private static final int LARGEST_ORDERS = 64 << 20;
    /** The shortest that gRPC allows: an adapter that hangs is away, too. */
    private static final int KEEP_ALIVE_S = 10;

    private static final int KEEP_ALIVE_ANSWER_S = 5;

    private final ManagedChannel channel;
    private final Identity identity;
    private final Consumer<Orders> heard;
    private final Runnable away;
    private final Thread thread = new Thread(this::run, "orders");

    /**
     * Begins to listen.
     *
     * @param identity whose orders they are
     * @param heard is told all orders
     * @param away is called when nobody gives any longer
     */
    Follower(Settings settings, Identity identity, Consumer<Orders> heard, Runnable away) throws IOException {
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
        this.heard = heard;
        this.away = away;
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        long wait = SHORTEST_WAIT_MS;
        String said = "";
        while (!channel.isShutdown()) {
            String why = "it ended the conversation";
            try {
                Iterator<Orders> orders = MasterGrpc.newBlockingStub(channel)
                        .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(identity.headers()))
                        .follow(FollowRequest.getDefaultInstance());
                while (orders.hasNext()) {
                    heard.accept(orders.next());
                    wait = SHORTEST_WAIT_MS;
                    said = "";
                }
            } catch (StatusRuntimeException error) {
                why = error.getStatus().toString();
            }
            away.run();
            if (!why.equals(said) && !channel.isShutdown()) {
                LOG.warn("the adapter gives no orders, going on with the last: {}", why);
                said = why;
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

    /** Hears no more. */
    void close() {
        channel.shutdownNow();
        thread.interrupt();
    }
}
