package io.trainmaster.yarn.master;

import io.trainmaster.yarn.v1.SlotOrder;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;

/** Compares a slot's demand with the limit of containers. */
final class Demand {
    private Demand() {}

    /**
     * Checks a demand, because the ResourceManager would answer too large a request with an exception, to each
     * ApplicationMaster of the job.
     *
     * @throws IllegalArgumentException if the demand exceeds the limit, with the resource and both amounts
     */
    static void check(SlotOrder slot, Resource demand, Resource largest) {
        for (ResourceInformation one : demand.getResources()) {
            long most = largest.getResourceValue(one.getName());
            if (one.getValue() > most) {
                throw new IllegalArgumentException(
                        Slots.name(slot.getAllocationRequest()) + " needs " + one.getValue() + " " + one.getName()
                                + "; the ResourceManager's limit for a container is " + most);
            }
        }
    }
}
