// Plays an event stream (see src/stream.rs) through the C library. Prints the decisions and the changes of the plan in
// the format of the Rust player. The transcript has to be equal to the golden one.
#include "trainmaster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIELDS = 128, LIST = 64, JOBS = 256 };

static struct trainmaster_scheduler *scheduler;
static char error_text[1024];
static struct trainmaster_message message = {error_text, sizeof error_text, 0};

// The number of each submitted job by name, and the last verdict that was printed for each job.
static struct {
    char *name;
    uint64_t job;
} jobs[JOBS];
static size_t job_count;
static const struct trainmaster_verdict *issued[JOBS];
// The plans that `issued` points into.
static const struct trainmaster_plan *plans[4096];
static size_t plan_count;

static void stop(const char *what, const char *which) {
    fprintf(stderr, "%s: %s\n", what, which);
    exit(1);
}

static void must(uint32_t result) {
    if (result != TRAINMASTER_OK) stop(trainmaster_error_name(result), error_text);
}

static void *keep(void *memory) {
    if (memory == NULL) stop("memory", "there is none");
    return memory;
}

// --- fields of a line ---

static char *fields[FIELDS];
static size_t field_count;

// Splits a line at tabs and replaces its escape sequences.
static void split(char *line) {
    field_count = 0;
    char *to = line;
    fields[field_count++] = to;
    for (char *from = line; *from && *from != '\n'; from++) {
        if (*from == '\t') {
            *to++ = 0;
            if (field_count == FIELDS) stop("too many fields", line);
            fields[field_count++] = to;
        } else if (*from == '\\') {
            from++;
            *to++ = *from == 'n' ? '\n' : *from == 't' ? '\t' : *from;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
}

static const char *field(size_t at) {
    if (at >= field_count) stop("a field is missing", fields[0]);
    return fields[at];
}

static int64_t integer(const char *from) { return strtoll(from, NULL, 10); }

static uint32_t small(const char *from) { return (uint32_t)strtoul(from, NULL, 10); }

// The value of the n-th `key=value`; NULL if there are fewer than n + 1.
static const char *value(const char *key, size_t n) {
    size_t length = strlen(key);
    for (size_t at = 2; at < field_count; at++) {
        if (strncmp(fields[at], key, length) != 0 || fields[at][length] != '=') continue;
        if (n-- == 0) return fields[at] + length + 1;
    }
    return NULL;
}

static int64_t integer_of(const char *key) {
    const char *found = value(key, 0);
    return found ? integer(found) : 0;
}

static uint32_t small_of(const char *key) { return (uint32_t)integer_of(key); }

static double real_of(const char *key) {
    const char *found = value(key, 0);
    return found ? strtod(found, NULL) : 0.0;
}

static struct trainmaster_string text_of(const char *key) { return trainmaster_text(value(key, 0)); }

// All amounts `prefix:name=amount`.
static struct trainmaster_amounts amounts(const char *prefix, struct trainmaster_amount space[LIST]) {
    struct trainmaster_amounts list = {space, 0, sizeof *space};
    size_t length = strlen(prefix);
    for (size_t at = 2; at < field_count; at++) {
        if (strncmp(fields[at], prefix, length) != 0 || fields[at][length] != ':') continue;
        const char *name = fields[at] + length + 1, *equals = strrchr(name, '=');
        if (equals == NULL || list.count == LIST) stop("not an amount", fields[at]);
        space[list.count].name.data = name;
        space[list.count].name.length = (uint64_t)(equals - name);
        space[list.count].value = integer(equals + 1);
        list.count++;
    }
    return list;
}

static struct trainmaster_labels labels(struct trainmaster_label space[LIST]) {
    struct trainmaster_labels list = {space, 0, sizeof *space};
    for (size_t at = 2; at < field_count; at++) {
        if (strncmp(fields[at], "label:", 6) != 0) continue;
        char *equals = strchr(fields[at], '=');
        if (equals == NULL || list.count == LIST) stop("not a label", fields[at]);
        space[list.count].key.data = fields[at] + 6;
        space[list.count].key.length = (uint64_t)(equals - fields[at] - 6);
        space[list.count].value = trainmaster_text(equals + 1);
        list.count++;
    }
    return list;
}

// --- events ---

static struct trainmaster_event event(uint32_t kind) {
    struct trainmaster_event event = {0};
    event.size = sizeof event;
    event.kind = kind;
    event.at = integer(field(1));
    return event;
}

static void apply(struct trainmaster_event event) {
    uint32_t result = trainmaster_scheduler_apply(scheduler, &event, 1, sizeof event, NULL, &message);
    if (result != TRAINMASTER_OK) printf("  refused: %s\n", error_text);
}

static void set_server(void) {
    struct trainmaster_amount capacity[LIST];
    struct trainmaster_label space[LIST];
    struct trainmaster_string devices[LIST];
    struct trainmaster_server server = {0};
    server.size = sizeof server;
    server.name = text_of("name");
    server.draining = small_of("draining");
    server.capacity = amounts("capacity", capacity);
    server.labels = labels(space);
    server.devices.data = devices;
    server.devices.stride = sizeof *devices;
    for (const char *kind; (kind = value("device", server.devices.count)) != NULL;) {
        if (server.devices.count == LIST) stop("too many devices", kind);
        devices[server.devices.count++] = trainmaster_text(kind);
    }
    struct trainmaster_event set = event(TRAINMASTER_EVENT_KIND_SERVER_SET);
    set.manager = text_of("manager");
    set.server = &server;
    apply(set);
}

static struct trainmaster_role role(const char *name, struct trainmaster_amount space[LIST]) {
    char key[32];
    struct trainmaster_role role = {0};
    role.size = sizeof role;
    snprintf(key, sizeof key, "%s.min", name);
    role.min = small_of(key);
    snprintf(key, sizeof key, "%s.max", name);
    role.max = small_of(key);
    snprintf(key, sizeof key, "%s.requested", name);
    role.requested = small_of(key);
    snprintf(key, sizeof key, "%s.command", name);
    role.command = text_of(key);
    snprintf(key, sizeof key, "%s.demand", name);
    role.demand = amounts(key, space);
    return role;
}

static void remember(const char *name) {
    uint64_t job = 0;
    if (trainmaster_scheduler_find_job(scheduler, trainmaster_text(name), &job, NULL) != TRAINMASTER_OK) return;
    size_t at = 0;
    while (at < job_count && strcmp(jobs[at].name, name) != 0) at++;
    if (at == JOBS) stop("too many jobs", name);
    if (at == job_count) {
        jobs[at].name = keep(malloc(strlen(name) + 1));
        strcpy(jobs[at].name, name);
        job_count++;
    }
    jobs[at].job = job;
}

static void submit(void) {
    struct trainmaster_amount worker_demand[LIST], server_demand[LIST];
    struct trainmaster_label space[LIST];
    struct trainmaster_speed profile[LIST];
    struct trainmaster_partition parts[LIST];
    uint32_t after[LIST][LIST];
    struct trainmaster_worth points[LIST];
    struct trainmaster_role worker = role("worker", worker_demand), server = role("server", server_demand);
    struct trainmaster_convergence rule = {0};
    rule.size = sizeof rule;
    rule.delta = real_of("delta");
    rule.patience = small_of("patience");
    rule.max_epochs = small_of("max_epochs");
    struct trainmaster_utility utility = {0};
    utility.size = sizeof utility;
    utility.kind = small_of("utility.kind");
    utility.value = real_of("utility.value");
    utility.decay = real_of("utility.decay");
    utility.target_ms = integer_of("utility.target");
    utility.points = points;
    utility.points_stride = sizeof *points;
    for (const char *point; (point = value("utility.point", utility.points_count)) != NULL;) {
        char *worth;
        if (utility.points_count == LIST) stop("too many points", point);
        points[utility.points_count].elapsed_ms = strtoll(point, &worth, 10);
        points[utility.points_count++].worth = strtod(worth + 1, NULL);
    }
    struct trainmaster_dataset data = {0};
    data.size = sizeof data;
    data.chunks = small_of("dataset.chunks");
    data.batches_per_chunk = small_of("dataset.batches_per_chunk");
    data.epochs = small_of("dataset.epochs");
    data.batch_time_ms = integer_of("dataset.batch_time");
    data.upload = text_of("dataset.upload");
    data.chunk_size = integer_of("dataset.chunk_size");

    struct trainmaster_job job = {0};
    job.size = sizeof job;
    job.name = text_of("name");
    job.model = text_of("model");
    job.tenant = text_of("tenant");
    job.queue = text_of("queue");
    job.priority = (int32_t)integer_of("priority");
    job.resize = small_of("resize");
    job.mode = small_of("mode");
    job.batch = (uint64_t)integer_of("batch");
    job.examples = (uint64_t)integer_of("examples");
    job.worker = &worker;
    job.server = value("server.min", 0) ? &server : NULL;
    job.convergence = &rule;
    job.utility = value("utility.kind", 0) ? &utility : NULL;
    job.dataset = value("dataset.chunks", 0) ? &data : NULL;
    job.separate_roles = small_of("separate_roles");
    job.model_size_mib = integer_of("model_size");
    job.deadline_ms = integer_of("deadline");
    job.time_limit_ms = integer_of("time_limit");
    job.restart_cost_ms = integer_of("restart_cost");
    job.accuracy = real_of("accuracy");
    job.urgency = small_of("urgency");
    job.labels = labels(space);
    job.profile.data = profile;
    job.profile.stride = sizeof *profile;
    for (const char *sample; (sample = value("profile", job.profile.count)) != NULL;) {
        char *next;
        if (job.profile.count == LIST) stop("too many samples", sample);
        struct trainmaster_speed *to = &profile[job.profile.count++];
        to->servers = (uint32_t)strtoul(sample, &next, 10);
        to->workers = (uint32_t)strtoul(next + 1, &next, 10);
        to->speed = strtod(next + 1, NULL);
    }
    job.stop = small_of("stop");
    job.stop_under_load = small_of("stop_under_load");
    job.partitions.data = parts;
    job.partitions.stride = sizeof *parts;
    for (const char *part; (part = value("partition", job.partitions.count)) != NULL;) {
        char *next;
        if (job.partitions.count == LIST) stop("too many partitions", part);
        uint32_t *needed = after[job.partitions.count];
        struct trainmaster_partition *to = &parts[job.partitions.count++];
        to->parameters = strtoull(part, &next, 10);
        to->after = needed;
        for (to->after_count = 0; *next == ':';) {
            if (to->after_count == LIST) stop("too many parts are needed", part);
            needed[to->after_count++] = (uint32_t)strtoul(next + 1, &next, 10);
        }
    }
    struct trainmaster_event submitted = event(TRAINMASTER_EVENT_KIND_JOB_SUBMITTED);
    submitted.submitted = &job;
    apply(submitted);
    remember(value("name", 0));
}

static uint64_t job_named(const char *name) {
    for (size_t at = 0; at < job_count; at++) {
        if (strcmp(jobs[at].name, name) == 0) return jobs[at].job;
    }
    stop("no job was submitted under the name", name);
    return 0;
}

static const char *name_of(uint64_t job) {
    for (size_t at = 0; at < job_count; at++) {
        if (jobs[at].job == job) return jobs[at].name;
    }
    return "?";
}

// The entry of a job in `issued`, or a free one.
static const struct trainmaster_verdict **entry_of(uint64_t job) {
    for (size_t at = 0; at < JOBS; at++) {
        if (issued[at] == NULL || issued[at]->job == job) return &issued[at];
    }
    stop("too many jobs", name_of(job));
    return NULL;
}

static void report(int chunks_only) {
    struct trainmaster_event reported = event(TRAINMASTER_EVENT_KIND_REPORTED);
    reported.job = job_named(field(2));
    const struct trainmaster_jobs *status = NULL;
    if (trainmaster_scheduler_jobs(scheduler, reported.job, &status, NULL) == TRAINMASTER_OK) {
        reported.incarnation = status->data->incarnation;
        trainmaster_jobs_free(status);
    }
    static uint64_t sequence;
    struct trainmaster_report of = {0};
    of.size = sizeof of;
    of.seq = ++sequence;
    uint32_t chunks[64];
    if (chunks_only) {
        of.chunks = chunks;
        of.chunks_stride = sizeof *chunks;
        for (size_t at = 3; at < field_count; at++) {
            if (of.chunks_count == sizeof chunks / sizeof *chunks) stop("too many chunks", fields[0]);
            chunks[of.chunks_count++] = small(fields[at]);
        }
    } else {
        of.epoch = small(field(3));
        of.step = of.epoch;
        of.steps_per_epoch = 1;
        of.has = TRAINMASTER_REPORT_HAS_LOSS;
        of.loss = strtod(field(4), NULL);
    }
    reported.report = &of;
    apply(reported);
}

// Observes a job in its last issued plan, or without any slot.
static void observed(int runs) {
    struct trainmaster_event seen = event(TRAINMASTER_EVENT_KIND_OBSERVED);
    seen.job = job_named(field(2));
    seen.value = TRAINMASTER_PHASE_RUNNING;
    const struct trainmaster_verdict *last = *entry_of(seen.job);
    if (last != NULL) seen.incarnation = last->incarnation;
    if (last != NULL && runs) seen.slots = last->slots;
    apply(seen);
}

static void refused(void) {
    struct trainmaster_status status = {0};
    status.size = sizeof status;
    must(trainmaster_scheduler_status(scheduler, &status, &message));
    struct trainmaster_event enacted = event(TRAINMASTER_EVENT_KIND_ENACTED);
    enacted.number = status.decision;
    enacted.job = job_named(field(2));
    enacted.value = TRAINMASTER_ENACTED_REFUSED;
    enacted.text = trainmaster_text(field(3));
    apply(enacted);
}

// --- output ---

static void print(struct trainmaster_string text) { printf("%.*s", (int)text.length, text.data); }

// Prints `w0 s0[0]` for worker 0 on server s0 with device 0. Half of device 2 is `2:500`.
static void print_slot(const struct trainmaster_slot *slot) {
    printf("%c%" PRIu32 " ", slot->role == TRAINMASTER_SLOT_ROLE_WORKER ? 'w' : 'p', slot->index);
    print(slot->server);
    for (uint64_t i = 0; i < slot->devices.count; i++) {
        const struct trainmaster_device *part =
            TRAINMASTER_AT(struct trainmaster_device, slot->devices.data, slot->devices.stride, i);
        printf("%c%" PRIu32, i == 0 ? '[' : ',', part->device);
        if (part->milli != 1000) printf(":%" PRIu32, part->milli);
    }
    if (slot->devices.count > 0) printf("]");
}

// Prints `; c0 w1 runs, c1 w1 queued 0`: data chunks with their worker (`-` for none) and state.
static void print_work(struct trainmaster_works works) {
    for (uint64_t i = 0; i < works.count; i++) {
        const struct trainmaster_work *work = TRAINMASTER_AT(struct trainmaster_work, works.data, works.stride, i);
        printf("%s c%" PRIu32 " ", i == 0 ? ";" : ",", work->chunk);
        if (work->worker == UINT32_MAX) printf("- ");
        else printf("w%" PRIu32 " ", work->worker);
        switch (work->state) {
        case TRAINMASTER_WORK_STATE_RUNNING: printf("runs"); break;
        case TRAINMASTER_WORK_STATE_QUEUED: printf("queued %" PRIu32, work->rank); break;
        case TRAINMASTER_WORK_STATE_PREEMPTED: printf("preempted"); break;
        default: printf("done");
        }
    }
}

static void print_verdict(const struct trainmaster_verdict *verdict) {
    static const char *const WORDS[] = {"run", "wait", "reject", "stop", "release as"};
    printf("%s", WORDS[verdict->kind]);
    if (verdict->kind == TRAINMASTER_VERDICT_KIND_RUN || verdict->kind == TRAINMASTER_VERDICT_KIND_RELEASE) {
        printf(" %" PRIu32 "w+%" PRIu32 "p", verdict->workers, verdict->servers);
    }
    if (verdict->kind == TRAINMASTER_VERDICT_KIND_RUN || verdict->reason != NULL) printf(": ");
    for (uint64_t i = 0; i < verdict->slots.count; i++) {
        if (i > 0) printf(", ");
        print_slot(TRAINMASTER_AT(struct trainmaster_slot, verdict->slots.data, verdict->slots.stride, i));
    }
    print_work(verdict->work);
    if (verdict->reason != NULL) print(verdict->reason->text);
    puts("");
}

static void decide(void) {
    static const char *const SOURCES[] = {"Engine", "Pruned", "Fallback", "Kept"};
    const struct trainmaster_decision *decision = NULL;
    must(trainmaster_scheduler_decide(scheduler, integer(field(1)), &decision, &message));
    printf("  decision %" PRIu64 " by %s\n", decision->number, SOURCES[decision->source]);
    for (uint64_t i = 0; i < decision->verdicts.count; i++) {
        const struct trainmaster_verdict *verdict =
            TRAINMASTER_AT(struct trainmaster_verdict, decision->verdicts.data, decision->verdicts.stride, i);
        printf("    ");
        print(verdict->name);
        printf(": ");
        print_verdict(verdict);
    }
    for (uint64_t i = 0; i < decision->dropped_count; i++) printf("    dropped %s\n", name_of(decision->dropped[i]));
    trainmaster_decision_free(decision);
}

static int same_text(struct trainmaster_string a, struct trainmaster_string b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

static int same_reason(const struct trainmaster_reason *a, const struct trainmaster_reason *b) {
    if (a == NULL || b == NULL) return a == b;
    // The texts aren't compared: they contain remaining times, which change with every call.
    return a->kind == b->kind && same_text(a->resource, b->resource) && same_text(a->server, b->server) &&
           a->needed == b->needed && a->available == b->available && a->limit == b->limit && a->job == b->job &&
           a->until == b->until && a->worth == b->worth && a->cost == b->cost && a->threshold == b->threshold &&
           a->position == b->position;
}

static int same_work(struct trainmaster_works a, struct trainmaster_works b) {
    for (uint64_t i = 0; a.count == b.count && i < a.count; i++) {
        const struct trainmaster_work *x = TRAINMASTER_AT(struct trainmaster_work, a.data, a.stride, i);
        const struct trainmaster_work *y = TRAINMASTER_AT(struct trainmaster_work, b.data, b.stride, i);
        if (x->chunk != y->chunk || x->worker != y->worker || x->state != y->state || x->rank != y->rank) return 0;
    }
    return a.count == b.count;
}

static int same_slots(struct trainmaster_slots a, struct trainmaster_slots b) {
    for (uint64_t i = 0; a.count == b.count && i < a.count; i++) {
        const struct trainmaster_slot *x = TRAINMASTER_AT(struct trainmaster_slot, a.data, a.stride, i);
        const struct trainmaster_slot *y = TRAINMASTER_AT(struct trainmaster_slot, b.data, b.stride, i);
        if (x->role != y->role || x->index != y->index || !same_text(x->server, y->server)) return 0;
        if (x->devices.count != y->devices.count) return 0;
        for (uint64_t k = 0; k < x->devices.count; k++) {
            const struct trainmaster_device *p =
                TRAINMASTER_AT(struct trainmaster_device, x->devices.data, x->devices.stride, k);
            const struct trainmaster_device *q =
                TRAINMASTER_AT(struct trainmaster_device, y->devices.data, y->devices.stride, k);
            if (p->device != q->device || p->milli != q->milli) return 0;
        }
    }
    return a.count == b.count;
}

// Prints the verdicts that differ from the last ones.
static void print_issues(void) {
    const struct trainmaster_plan *plan = NULL;
    must(trainmaster_scheduler_take_issues(scheduler, &plan, &message));
    if (plan_count == sizeof plans / sizeof *plans) stop("too many plans", "");
    plans[plan_count++] = plan;
    for (uint64_t i = 0; i < plan->verdicts.count; i++) {
        const struct trainmaster_verdict *verdict =
            TRAINMASTER_AT(struct trainmaster_verdict, plan->verdicts.data, plan->verdicts.stride, i);
        const struct trainmaster_verdict **last = entry_of(verdict->job);
        if (*last != NULL && (*last)->kind == verdict->kind && (*last)->incarnation == verdict->incarnation &&
            (*last)->revision == verdict->revision && (*last)->workers == verdict->workers &&
            (*last)->servers == verdict->servers && same_reason((*last)->reason, verdict->reason) &&
            same_slots((*last)->slots, verdict->slots) && same_work((*last)->work, verdict->work)) {
            continue;
        }
        printf("  told %s %" PRIu32 ".%" PRIu32 ": ", name_of(verdict->job), verdict->incarnation, verdict->revision);
        print_verdict(verdict);
        *last = verdict;
    }
}

static void play(void) {
    const char *what = field(0);
    struct trainmaster_event of;
    if (strcmp(what, "say") == 0) {
        puts(field(1));
        return;
    }
    if (strcmp(what, "settings") == 0) {
        must(trainmaster_scheduler_new(trainmaster_text(field(1)), &scheduler, &message));
        return;
    }
    if (strcmp(what, "server") == 0) {
        set_server();
        // Initial servers aren't steps of the scenario.
        if (value("quiet", 0)) return;
    } else if (strcmp(what, "submit") == 0) {
        submit();
    } else if (strcmp(what, "decide") == 0) {
        decide();
    } else if (strcmp(what, "report") == 0) {
        report(0);
    } else if (strcmp(what, "trained") == 0) {
        report(1);
    } else if (strcmp(what, "seen") == 0 || strcmp(what, "gone") == 0) {
        observed(what[0] == 's');
    } else if (strcmp(what, "refused") == 0) {
        refused();
    } else if (strcmp(what, "foreign") == 0) {
        struct trainmaster_amount space[LIST];
        of = event(TRAINMASTER_EVENT_KIND_FOREIGN_USE);
        of.name = trainmaster_text(field(2));
        of.amounts = amounts("amount", space);
        apply(of);
    } else if (strcmp(what, "server_left") == 0) {
        of = event(TRAINMASTER_EVENT_KIND_SERVER_LEFT);
        of.name = trainmaster_text(field(2));
        apply(of);
    } else if (strcmp(what, "end") == 0 || strcmp(what, "hold") == 0) {
        of = event(what[0] == 'e' ? TRAINMASTER_EVENT_KIND_JOB_ENDED : TRAINMASTER_EVENT_KIND_JOB_HELD);
        of.job = job_named(field(2));
        of.value = small(field(3));
        apply(of);
    } else if (strcmp(what, "mode") == 0) {
        of = event(TRAINMASTER_EVENT_KIND_MODE_SET);
        of.value = small(field(2));
        apply(of);
    } else if (strcmp(what, "configure") == 0) {
        of = event(TRAINMASTER_EVENT_KIND_CONFIGURED);
        of.text = trainmaster_text(field(2));
        apply(of);
    } else if (strcmp(what, "sync_begin") == 0 || strcmp(what, "sync_end") == 0) {
        of = event(what[5] == 'b' ? TRAINMASTER_EVENT_KIND_SYNC_BEGIN : TRAINMASTER_EVENT_KIND_SYNC_END);
        of.manager = trainmaster_text(field(2));
        apply(of);
    } else {
        stop("unknown", what);
    }
    print_issues();
}

int main(void) {
    static char line[65536];
    while (fgets(line, sizeof line, stdin)) {
        split(line);
        play();
    }
    while (plan_count > 0) trainmaster_plan_free(plans[--plan_count]);
    while (job_count > 0) free(jobs[--job_count].name);
    trainmaster_scheduler_free(scheduler);
    return 0;
}
