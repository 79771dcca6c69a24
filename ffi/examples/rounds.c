// Plays ten rounds of a cluster with two types of GPU. One job may have GPUs of any type, one needs V100s, and a third
// one, which comes later, prefers A100s. The scheduler also chooses their batches. A round is a minute: the manager
// starts and stops what it is told, and the jobs report their speed, their progress and the noise of their gradients.
// Prints who has what after each decision.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainmaster.h"

enum { JOBS = 3, ROUNDS = 10, REPORTS = 6 };

// A job as it really is. Nobody tells the scheduler.
struct job {
    const char *name;
    const char *gpu;  // what a worker asks for
    int arrival;      // round
    double seconds;   // time of an example on a V100
    double exchange;  // seconds per step to exchange gradients, if there are several workers
    double noise;     // tr Sigma / |G|^2, in examples
    uint32_t epochs;

    // What it has.
    char type[16];
    uint32_t workers;
    uint32_t incarnation;
    uint64_t batch;
    // What it did: steps of the submitted batch, which are independent of the batch in use.
    double step;
    uint64_t seq;
    uint64_t id;
};

static struct job jobs[JOBS] = {
    {"bert", "gpu", 0, 0.004, 0.05, 2000, 120, "", 0, 0, 0, 0, 0, 0},
    {"resnet", "gpu:v100", 0, 0.002, 0.02, 500, 60, "", 0, 0, 0, 0, 0, 0},
    {"speech", "gpu:a100|v100", 4, 0.003, 0.04, 1000, 15, "", 0, 0, 0, 0, 0, 0},
};
static const uint64_t SUBMITTED = 64, EXAMPLES = 6400;

static char words[256];
static struct trainmaster_message message = {words, sizeof words, 0};

static void check(uint32_t result) {
    if (result == TRAINMASTER_OK) return;
    fprintf(stderr, "%s: %s\n", trainmaster_error_name(result), words);
    exit(1);
}

static struct trainmaster_event event(uint32_t kind) {
    struct trainmaster_event event = {0};
    event.size = sizeof event;
    event.kind = kind;
    return event;
}

static void apply(struct trainmaster_scheduler *scheduler, int64_t at, struct trainmaster_event event) {
    event.at = at;
    check(trainmaster_scheduler_apply(scheduler, &event, 1, sizeof event, NULL, &message));
}

static void add_server(struct trainmaster_scheduler *scheduler, const char *name, const char *type) {
    struct trainmaster_amount capacity[] = {{trainmaster_text("cpu"), 32000}};
    struct trainmaster_string devices[4];
    for (int i = 0; i < 4; i++) devices[i] = trainmaster_text(type);
    struct trainmaster_server server = {0};
    server.size = sizeof server;
    server.name = trainmaster_text(name);
    server.capacity.data = capacity;
    server.capacity.count = 1;
    server.capacity.stride = sizeof capacity[0];
    server.devices.data = devices;
    server.devices.count = 4;
    server.devices.stride = sizeof devices[0];
    struct trainmaster_event set = event(TRAINMASTER_EVENT_KIND_SERVER_SET);
    set.manager = trainmaster_text("mine");
    set.server = &server;
    apply(scheduler, 0, set);
}

static void submit(struct trainmaster_scheduler *scheduler, int64_t at, struct job *job) {
    struct trainmaster_amount demand[] = {{trainmaster_text(job->gpu), 1000}, {trainmaster_text("cpu"), 2000}};
    struct trainmaster_role worker = {0};
    worker.size = sizeof worker;
    worker.max = 8;
    worker.demand.data = demand;
    worker.demand.count = 2;
    worker.demand.stride = sizeof demand[0];
    // It trains exactly so many epochs.
    struct trainmaster_convergence end = {0};
    end.size = sizeof end;
    end.max_epochs = job->epochs;
    struct trainmaster_label batches[] = {
        {trainmaster_text("batch.max"), trainmaster_text("1024")},
        {trainmaster_text("batch.local"), trainmaster_text("256")},
    };
    struct trainmaster_job submitted = {0};
    submitted.size = sizeof submitted;
    submitted.name = trainmaster_text(job->name);
    submitted.mode = TRAINMASTER_TRAINING_MODE_ALLREDUCE;
    submitted.batch = SUBMITTED;
    submitted.examples = EXAMPLES;
    submitted.worker = &worker;
    submitted.convergence = &end;
    submitted.labels.data = batches;
    submitted.labels.count = 2;
    submitted.labels.stride = sizeof batches[0];
    struct trainmaster_event arrived = event(TRAINMASTER_EVENT_KIND_JOB_SUBMITTED);
    arrived.submitted = &submitted;
    apply(scheduler, at, arrived);
    check(trainmaster_scheduler_find_job(scheduler, trainmaster_text(job->name), &job->id, &message));
}

// Does what a plan says at once, and tells the scheduler.
static void enact(struct trainmaster_scheduler *scheduler, int64_t at) {
    const struct trainmaster_plan *plan = NULL;
    check(trainmaster_scheduler_take_issues(scheduler, &plan, &message));
    for (uint64_t i = 0; i < plan->verdicts.count; i++) {
        const struct trainmaster_verdict *issue =
            TRAINMASTER_AT(struct trainmaster_verdict, plan->verdicts.data, plan->verdicts.stride, i);
        for (struct job *job = jobs; job < jobs + JOBS; job++) {
            if (job->id != issue->job) continue;
            job->seq = issue->incarnation == job->incarnation ? job->seq : 0;
            job->incarnation = issue->incarnation;
            job->workers = issue->workers;
            job->batch = issue->batch;
            if (issue->slots.count > 0) {
                // Servers are named by their type, and all workers of a job have one type.
                const struct trainmaster_string *server = &issue->slots.data->server;
                const char *dash = memchr(server->data, '-', server->length);
                int length = (int)(dash ? (uint64_t)(dash - server->data) : server->length);
                snprintf(job->type, sizeof job->type, "%.*s", length, server->data);
            }
        }
        struct trainmaster_event observed = event(TRAINMASTER_EVENT_KIND_OBSERVED);
        observed.job = issue->job;
        observed.incarnation = issue->incarnation;
        observed.slots = issue->slots;
        observed.value = issue->slots.count > 0 ? TRAINMASTER_PHASE_RUNNING : TRAINMASTER_PHASE_STOPPED;
        apply(scheduler, at, observed);
    }
    trainmaster_plan_free(plan);
}

// Trains for a while and reports. Returns whether the job is done.
static int train(struct trainmaster_scheduler *scheduler, int64_t at, struct job *job, int64_t ms) {
    double batch = (double)job->batch;
    double faster = strcmp(job->type, "a100") == 0 ? 2.5 : 1;
    double step_time = job->seconds * batch / job->workers / faster + (job->workers > 1 ? job->exchange : 0);
    double efficiency = (job->noise + (double)SUBMITTED) / (job->noise + batch);
    double steps = (double)ms / 1000 / step_time;
    job->step += steps * batch / (double)SUBMITTED * efficiency;
    uint64_t each = EXAMPLES / SUBMITTED, all = each * job->epochs;
    uint64_t step = job->step < (double)all ? (uint64_t)job->step : all;

    struct trainmaster_report report = {0};
    report.size = sizeof report;
    report.has = TRAINMASTER_REPORT_HAS_BATCH + TRAINMASTER_REPORT_HAS_NOISE;
    report.seq = ++job->seq;
    report.step = step;
    report.epoch = (uint32_t)(step / each);
    report.steps_per_epoch = each;
    report.steps = (uint32_t)steps;
    report.duration_ms = (int64_t)(report.steps * step_time * 1000);
    report.workers = job->workers;
    report.batch = job->batch;
    report.grad_sqr = 1;
    report.grad_var = job->noise;
    struct trainmaster_event told = event(TRAINMASTER_EVENT_KIND_BATCH_REPORTED);
    told.job = job->id;
    told.incarnation = job->incarnation;
    told.report = &report;
    apply(scheduler, at, told);
    told.kind = TRAINMASTER_EVENT_KIND_REPORTED;
    apply(scheduler, at, told);
    return step == all;
}

int main(void) {
    struct trainmaster_scheduler *scheduler = NULL;
    check(trainmaster_scheduler_new(trainmaster_text("engine = \"goodput\""), &scheduler, &message));
    add_server(scheduler, "a100-1", "gpu:a100");
    add_server(scheduler, "v100-1", "gpu:v100");
    for (int64_t round = 0; round < ROUNDS; round++) {
        int64_t at = round * 60000;
        for (struct job *job = jobs; job < jobs + JOBS; job++)
            if (job->arrival == round) submit(scheduler, at, job);
        // Fits first, because the decision needs them.
        struct trainmaster_ticket *fits = NULL;
        check(trainmaster_scheduler_prepare_fits(scheduler, at, &fits, &message));
        if (fits != NULL) {
            check(trainmaster_ticket_run(fits, 0, &message));
            check(trainmaster_scheduler_commit_fits(scheduler, at, fits, &message));
            trainmaster_ticket_free(fits);
        }
        check(trainmaster_scheduler_decide(scheduler, at, NULL, &message));
        // What was told to stop frees room for what waits for it.
        for (int turn = 0; turn < 3; turn++) enact(scheduler, at);
        printf("%2" PRId64 " min:", round);
        for (struct job *job = jobs; job < jobs + JOBS; job++)
            if (job->workers > 0)
                printf("  %s %u x %s, batch %" PRIu64, job->name, (unsigned)job->workers, job->type, job->batch);
        puts("");
        for (int64_t part = 1; part <= REPORTS; part++) {
            int64_t then = at + part * 60000 / REPORTS;
            for (struct job *job = jobs; job < jobs + JOBS; job++) {
                if (job->workers == 0 || !train(scheduler, then, job, 60000 / REPORTS)) continue;
                struct trainmaster_event ended = event(TRAINMASTER_EVENT_KIND_JOB_ENDED);
                ended.job = job->id;
                ended.value = TRAINMASTER_END_COMPLETED;
                apply(scheduler, then, ended);
                printf("        %s is done\n", job->name);
            }
            // New batches come without a decision, and jobs that are done leave.
            enact(scheduler, then);
        }
    }
    trainmaster_scheduler_free(scheduler);
    return 0;
}
