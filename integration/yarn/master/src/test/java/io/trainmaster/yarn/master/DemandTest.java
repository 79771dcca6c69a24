package io.trainmaster.yarn.master;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.trainmaster.yarn.v1.SlotOrder;
import org.apache.hadoop.yarn.api.records.Resource;
import org.junit.jupiter.api.Test;

class DemandTest {
    private static final SlotOrder WORKER = SlotOrder.newBuilder().setAllocationRequest(1L << 32 | 3).build();

    @Test
    void aDemandBeyondTheLimitIsRefused() {
        Resource most = Resource.newInstance(8192, 4);
        assertDoesNotThrow(() -> Demand.check(WORKER, most, most));
        Resource demand = Resource.newInstance(1024, 5);
        String message = assertThrows(IllegalArgumentException.class, () -> Demand.check(WORKER, demand, most))
                .getMessage();
        assertEquals("worker 3 needs 5 vcores; the ResourceManager's limit for a container is 4", message);
    }
}
