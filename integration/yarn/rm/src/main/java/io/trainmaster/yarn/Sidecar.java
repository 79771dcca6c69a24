package io.trainmaster.yarn;

import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.trainmaster.yarn.v1.BridgeGrpc;
import io.trainmaster.yarn.v1.Cluster;
import io.trainmaster.yarn.v1.Plan;
import io.trainmaster.yarn.v1.Submission;
import io.trainmaster.yarn.v1.Verdict;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/** The sidecar, as the plug-ins call it: each call ends at its deadline, whatever the other side does. */
final class Sidecar {
    /** Plans of large clusters pass gRPC's own limit of 4 MiB. */
    private static final int LARGEST_PLAN = 64 << 20;

    /** Schedulers make plug-ins anew when queues are refreshed and never end them, so they share a channel. */
    private static final Map<Settings.Address, Sidecar> BY_ADDRESS = new ConcurrentHashMap<>();

    private final ManagedChannel channel;
    private final BridgeGrpc.BridgeBlockingStub stub;

    private Sidecar(Settings.Address address) {
        channel = NettyChannelBuilder.forAddress(address.host(), address.port())
                .usePlaintext()
                .maxInboundMessageSize(LARGEST_PLAN)
                .build();
        stub = BridgeGrpc.newBlockingStub(channel);
    }

    static Sidecar at(Settings.Address address) {
        return BY_ADDRESS.computeIfAbsent(address, Sidecar::new);
    }

    Plan exchange(Cluster cluster, int deadlineMs) throws SidecarException {
        return call(deadlineMs, bounded -> bounded.exchange(cluster));
    }

    Verdict admit(Submission submission, int deadlineMs) throws SidecarException {
        return call(deadlineMs, bounded -> bounded.admit(submission));
    }

    private <T> T call(int deadlineMs, Function<BridgeGrpc.BridgeBlockingStub, T> method) throws SidecarException {
        try {
            return method.apply(stub.withDeadlineAfter(deadlineMs, TimeUnit.MILLISECONDS));
        } catch (StatusRuntimeException error) {
            Status status = error.getStatus();
            Failure failure =
                    switch (status.getCode()) {
                        case DEADLINE_EXCEEDED -> Failure.LATE;
                        case UNAVAILABLE -> Failure.UNREACHABLE;
                        default -> Failure.ERROR;
                    };
            if (failure != Failure.ERROR) {
                // The next call connects anew: gRPC's own pauses grow to minutes, and perhaps the other end is dead.
                channel.enterIdle();
            }
            throw new SidecarException(failure, status.getCode() + ", " + status.getDescription(), error);
        }
    }
}
