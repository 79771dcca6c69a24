package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.SlotOrder;
import java.util.List;

/** Something to do now. */
sealed interface Action {
    /** Ask the ResourceManager for a slot's container. */
    record Ask(SlotOrder slot) implements Action {
        @Override
        public String toString() {
            String where = slot.getNode().isEmpty() ? ", anywhere" : " on " + slot.getNode();
            return "Ask[" + Slots.name(slot.getAllocationRequest()) + where + "]";
        }
    }

    /** Ask for it no longer; or it is there. */
    record Withdraw(long request) implements Action {}

    /** Give a container back, whatever runs in it. */
    record Release(String container) implements Action {}

    /** Have its node end the program in it. */
    record Stop(String container) implements Action {}

    /** Start the slot's program in it. */
    record Launch(String container, SlotOrder slot) implements Action {
        @Override
        public String toString() {
            return "Launch[" + Slots.name(slot.getAllocationRequest()) + " in " + container + "]";
        }
    }

    /** Start these, and tell each where all of them are. */
    record LaunchTogether(List<Launch> launches) implements Action {}

    /** For the log. */
    record Warn(String text) implements Action {}

    /** Nothing is held: end the application. */
    record Finish(boolean succeeded, String reason) implements Action {}
}
