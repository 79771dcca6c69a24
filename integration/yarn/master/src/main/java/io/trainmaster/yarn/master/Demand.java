package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.SlotOrder;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;

/** What a slot needs, against what a container may have. */
final class Demand {
    private Demand() {}

    /**
     * The ResourceManager would answer with an exception, and again to each ApplicationMaster that comes after.
     *
     * @throws IllegalArgumentException it is beyond it, with the resource, the demand and the most there is
     */
    static void check(SlotOrder slot, Resource demand, Resource largest) {
        for (ResourceInformation one : demand.getResources()) {
            long most = largest.getResourceValue(one.getName());
            if (one.getValue() > most) {
                throw new IllegalArgumentException(Slots.name(slot.getAllocationRequest()) + " needs " + one.getValue() + " "
                        + one.getName() + "; the most that the ResourceManager gives one container is " + most);
            }
        }
    }
}
