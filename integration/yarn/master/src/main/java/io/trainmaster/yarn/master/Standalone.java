package io.trainmaster.yarn.master;

import com.google.protobuf.InvalidProtocolBufferException;
import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import java.util.Base64;

/** The orders for standalone mode, with which a job is submitted. */
final class Standalone {
    static final String VARIABLE = "TRAINMASTER_ALONE";
    /** Greater than every incarnation of the scheduler. */
    static final long INCARNATION = 0x7fff_ffffL;

    private Standalone() {}

    /**
     * Parses the variable. Returns null if it isn't set: such a job waits for orders.
     *
     * @throws IllegalArgumentException if the value is invalid
     */
    static Orders parse(String text) {
        if (text == null || text.isBlank()) {
            return null;
        }
        Orders orders;
        try {
            orders = Orders.parseFrom(Base64.getDecoder().decode(text.strip()));
        } catch (IllegalArgumentException | InvalidProtocolBufferException bad) {
            throw new IllegalArgumentException(VARIABLE + " isn't base64 of Orders: " + bad.getMessage(), bad);
        }
        if (orders.getSlotsCount() == 0) {
            throw new IllegalArgumentException(VARIABLE + " has no slots; allowed: 1 or more");
        }
        for (SlotOrder slot : orders.getSlotsList()) {
            if (Slots.incarnation(slot.getAllocationRequest()) != INCARNATION) {
                throw new IllegalArgumentException(VARIABLE + " has a slot with the allocation request ID "
                        + slot.getAllocationRequest() + "; allowed: those of incarnation " + INCARNATION);
            }
        }
        Orders.Builder standalone = orders.toBuilder().setIncarnation((int) INCARNATION).clearSlots();
        orders.getSlotsList().forEach(slot -> standalone.addSlots(Slots.anywhere(slot)));
        return standalone.build();
    }
}
