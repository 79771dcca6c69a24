package io.trainmaster.yarn.master;

import com.google.protobuf.InvalidProtocolBufferException;
import io.trainmaster.yarn.v1.Orders;
import io.trainmaster.yarn.v1.SlotOrder;
import java.util.Base64;

/** What a job does that goes on alone: orders that it was submitted with, for while nobody gives any. */
final class Alone {
    static final String VARIABLE = "TRAINMASTER_ALONE";
    /** No incarnation of the scheduler's gets so far. */
    static final long INCARNATION = 0x7fff_ffffL;

    private Alone() {}

    /**
     * What the variable says; null where it isn't set: such a job waits.
     *
     * @throws IllegalArgumentException it makes no sense
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
        Orders.Builder alone = orders.toBuilder().setIncarnation((int) INCARNATION).clearSlots();
        orders.getSlotsList().forEach(slot -> alone.addSlots(Slots.anywhere(slot)));
        return alone.build();
    }
}
