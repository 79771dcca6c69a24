package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.SlotOrder;

/** The parts of an allocation request ID: the incarnation in the upper 32 bits, a bit for servers, and the index. */
final class Slots {
    private Slots() {}

    static long incarnation(long request) {
        return request >>> 32;
    }

    /** The id without the incarnation. */
    static long slot(long request) {
        return request & 0xFFFF_FFFFL;
    }

    static boolean isServer(long request) {
        return (request & 0x8000_0000L) != 0;
    }

    static String name(long request) {
        return (isServer(request) ? "server " : "worker ") + (request & 0x7FFF_FFFFL);
    }

    /** The same slot on any node. */
    static SlotOrder anywhere(SlotOrder order) {
        return order.toBuilder().clearNode().clearNodeName().build();
    }
}
