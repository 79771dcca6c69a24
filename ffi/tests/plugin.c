// A plugin that links the archive and exports one function.
#include "trainmaster.h"

int plugin_decide(void);

int plugin_decide(void) {
    struct trainmaster_scheduler *scheduler = NULL;
    if (trainmaster_scheduler_new(trainmaster_text("engine = \"fifo\""), &scheduler, NULL) != TRAINMASTER_OK) return -1;
    struct trainmaster_amount capacity = {trainmaster_text("cpu"), 4000};
    struct trainmaster_server server = {0};
    server.size = sizeof server;
    server.name = trainmaster_text("node1");
    server.capacity.data = &capacity;
    server.capacity.count = 1;
    server.capacity.stride = sizeof capacity;
    struct trainmaster_event events[2] = {{0}, {0}};
    events[0].size = events[1].size = sizeof events[0];
    events[0].kind = TRAINMASTER_EVENT_KIND_SERVER_SET;
    events[0].server = &server;
    events[1].kind = TRAINMASTER_EVENT_KIND_JOB_SUBMITTED;
    events[1].text = trainmaster_text("name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }");
    const struct trainmaster_decision *decision = NULL;
    int runs = -1;
    if (trainmaster_scheduler_apply(scheduler, events, 2, sizeof events[0], NULL, NULL) == TRAINMASTER_OK &&
        trainmaster_scheduler_decide(scheduler, 0, &decision, NULL) == TRAINMASTER_OK) {
        runs = (int)decision->verdicts.count;
    }
    trainmaster_decision_free(decision);
    trainmaster_scheduler_free(scheduler);
    return runs;
}
