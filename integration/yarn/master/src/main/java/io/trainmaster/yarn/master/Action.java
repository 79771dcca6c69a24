package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.SlotOrder;
import java.util.List;

/** An action to carry out now. */
sealed interface Action {
    /** Request a slot's container from the ResourceManager. */
    record Ask(SlotOrder slot) implements Action {
        @Override
        public String toString() {
            String where = slot.getNode().isEmpty() ? ", anywhere" : " on " + slot.getNode();
            return "Ask[" + Slots.name(slot.getAllocationRequest()) + where + "]";
        }
    }

    /** Withdraw a request that is met or obsolete. */
    record Withdraw(long request) implements Action {}

    /** Give a container back, with any program in it. */
    record Release(String container) implements Action {}

    /** Have the node stop the program in a container. */
    record Stop(String container) implements Action {}

    /** Start the slot's program in a container. */
    record Launch(String container, SlotOrder slot) implements Action {
        @Override
        public String toString() {
            return "Launch[" + Slots.name(slot.getAllocationRequest()) + " in " + container + "]";
        }
    }

    /** Start several programs at once, each with the addresses of all. */
    record LaunchTogether(List<Launch> launches) implements Action {}

    /** Log a warning. */
    record Warn(String text) implements Action {}

    /** End the application, which has no containers. */
    record Finish(boolean succeeded, String reason) implements Action {}
}
