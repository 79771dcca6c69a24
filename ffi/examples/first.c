// Schedules two jobs on two servers. Prints the plan for the manager, and why the second job waits.
#include <stdio.h>
#include <stdlib.h>

#include "trainmaster.h"

static char words[256];
static struct trainmaster_message message = {words, sizeof words, 0};

static void check(uint32_t result) {
    if (result == TRAINMASTER_OK) return;
    fprintf(stderr, "%s: %s\n", trainmaster_error_name(result), words);
    exit(1);
}

static void apply(struct trainmaster_scheduler *scheduler, const struct trainmaster_event *event) {
    check(trainmaster_scheduler_apply(scheduler, event, 1, sizeof *event, NULL, &message));
}

static void add_server(struct trainmaster_scheduler *scheduler, const char *name) {
    struct trainmaster_amount capacity[] = {{trainmaster_text("cpu"), 16000}, {trainmaster_text("memory"), 65536}};
    struct trainmaster_string devices[] = {trainmaster_text("gpu"), trainmaster_text("gpu")};
    struct trainmaster_server server = {0};
    server.size = sizeof server;
    server.name = trainmaster_text(name);
    server.capacity.data = capacity;
    server.capacity.count = 2;
    server.capacity.stride = sizeof capacity[0];
    server.devices.data = devices;
    server.devices.count = 2;
    server.devices.stride = sizeof devices[0];

    struct trainmaster_event event = {0};
    event.size = sizeof event;
    event.kind = TRAINMASTER_EVENT_KIND_SERVER_SET;
    event.manager = trainmaster_text("mine");
    event.server = &server;
    apply(scheduler, &event);
}

static void submit(struct trainmaster_scheduler *scheduler, const char *name, uint32_t workers) {
    struct trainmaster_amount demand[] = {{trainmaster_text("gpu"), 1000}, {trainmaster_text("cpu"), 4000}};
    struct trainmaster_role worker = {0};
    worker.size = sizeof worker;
    worker.requested = workers;
    worker.demand.data = demand;
    worker.demand.count = 2;
    worker.demand.stride = sizeof demand[0];

    struct trainmaster_job job = {0};
    job.size = sizeof job;
    job.name = trainmaster_text(name);
    job.mode = TRAINMASTER_TRAINING_MODE_ALLREDUCE;
    job.worker = &worker;

    struct trainmaster_event event = {0};
    event.size = sizeof event;
    event.kind = TRAINMASTER_EVENT_KIND_JOB_SUBMITTED;
    event.submitted = &job;
    apply(scheduler, &event);
}

int main(void) {
    struct trainmaster_scheduler *scheduler = NULL;
    check(trainmaster_scheduler_new(trainmaster_text("engine = \"fifo\""), &scheduler, &message));
    add_server(scheduler, "node1");
    add_server(scheduler, "node2");
    submit(scheduler, "mnist", 3);
    submit(scheduler, "resnet", 2);

    check(trainmaster_scheduler_decide(scheduler, 1000, NULL, &message));
    const struct trainmaster_plan *plan = NULL;
    check(trainmaster_scheduler_take_issues(scheduler, &plan, &message));
    for (uint64_t i = 0; i < plan->verdicts.count; i++) {
        const struct trainmaster_verdict *job =
            TRAINMASTER_AT(struct trainmaster_verdict, plan->verdicts.data, plan->verdicts.stride, i);
        printf("%.*s:", (int)job->name.length, job->name.data);
        if (job->reason != NULL) printf(" %.*s", (int)job->reason->text.length, job->reason->text.data);
        for (uint64_t k = 0; k < job->slots.count; k++) {
            const struct trainmaster_slot *slot =
                TRAINMASTER_AT(struct trainmaster_slot, job->slots.data, job->slots.stride, k);
            printf(" worker %u on %.*s", (unsigned)slot->index, (int)slot->server.length, slot->server.data);
        }
        puts("");
    }
    trainmaster_plan_free(plan);

    uint64_t resnet = 0;
    const struct trainmaster_explanation *why = NULL;
    check(trainmaster_scheduler_find_job(scheduler, trainmaster_text("resnet"), &resnet, &message));
    check(trainmaster_scheduler_explain(scheduler, 1000, resnet, &why, &message));
    for (uint64_t i = 0; i < why->findings_count; i++) {
        const struct trainmaster_finding *finding =
            TRAINMASTER_AT(struct trainmaster_finding, why->findings, why->findings_stride, i);
        printf("  %c %.*s\n", finding->blocks ? '!' : '-', (int)finding->text.length, finding->text.data);
    }
    trainmaster_explanation_free(why);
    trainmaster_scheduler_free(scheduler);
    return 0;
}
