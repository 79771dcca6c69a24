// Calls every function at random. The arguments are valid, invalid, NULL, of another version, or no longer valid. Equal
// seeds make equal calls. The fuzzer finds crashes and leaks (both with AddressSanitizer), and panics that it did not
// inject itself.
//
//     fuzz CALLS SEED
#include "check.h"

uint32_t trainmaster_fault_inject(struct trainmaster_scheduler *scheduler, uint32_t place,
                                  struct trainmaster_message *message);

static uint64_t state;

// xorshift64*
static uint64_t any(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(2685821657736338717);
}

static uint64_t below(uint64_t limit) { return any() % limit; }
static int one_in(uint64_t odds) { return below(odds) == 0; }

// --- arguments ---

enum { SCHEDULERS = 3, TICKETS = 6, SPACE = 1 << 19 };

struct owner {
    struct trainmaster_scheduler *scheduler;
    int64_t now;
    int faulty;
    uint8_t *journal;
    uint64_t length;
};

static struct owner owners[SCHEDULERS];
static struct trainmaster_ticket *tickets[TICKETS];
static const struct trainmaster_plan *plan;
static uint64_t counts[64], errors[64], panics, restored;

static const char *const SERVERS[] = {"s0", "s1", "s2", "s3", "s4"};
static const char *const JOBS[] = {"a", "b", "c", "d", "e", "f", "g", "1", "", ".x", "y z"};
static const char *const MANAGERS[] = {"m0", "m1", ""};
static const char *const RESOURCES[] = {"gpu", "cpu", "memory", "bandwidth", "gpu:a", "gpu:b", "disk", "licence", ""};
static const char *const SETTINGS[] = {
    "engine = \"fifo\"\nstability = \"off\"",
    "engine = \"fifo\"\nfallback_after = 1\n[parameters]\nbackfill = true",
    "engine = \"drf\"\nstability = \"off\"",
    "engine = \"drf\"\n[queues.q]\ngpu = 2\n[tenants.t]\ncpu = 4",
    "engine = \"tetris\"\nshape = { equal_per_server = true, colocate = false, grow_in_place = false }",
    "engine = \"optimus\"\nstability = \"off\"",
    "engine = \"optimus\"\nfallback = \"drf\"\nfallback_after = 2\n[parameters]\nbetween_rounds = true",
    "engine = \"random\"\nseed = 7",
    "engine = \"rrh\"\nstability = \"off\"",
    "engine = \"srtf\"\nstability = \"off\"",
    "engine = \"tiresias\"\n[parameters]\nthresholds = \"1, 9\"",
    "engine = \"batch\"\n[parameters]\nbatch_jobs = 2",
    "",
    "engine = \"nil\"",
    "engine = 3",
    "engine = \"oasis\"\nstability = \"off\"\n[parameters]\nhorizon = 4",
    "engine = \"dorm\"\nstability = \"off\"",
};
#define PICK(list) ((list)[below(sizeof(list) / sizeof *(list))])

static struct trainmaster_string word(const char *of) {
    struct trainmaster_string string = text(of);
    if (one_in(200)) string.data = NULL;
    if (one_in(200)) string.length = 0;
    if (one_in(300)) string.data = "\xff\xc0\x80\xff", string.length = 3;
    if (one_in(1000)) string.length = UINT64_MAX;
    return string;
}

// Mostly a plausible number, at most `usual`. Rarely an extreme or an arbitrary one.
static uint64_t number(uint64_t usual) {
    if (!one_in(40)) return below(usual + 1);
    static const uint64_t odd[] = {0, 1, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_C(1) << 63,
                                   1000000000000000, 1000000000001};
    return one_in(4) ? any() : PICK(odd);
}

static int64_t amount(uint64_t usual) { return (int64_t)number(usual); }
static uint32_t small(uint32_t usual) { return (uint32_t)number(usual); }

static double real(double usual) {
    static const double odd[] = {0.0, -1.0, 1e300, -1e300, 1e-300, 1e18};
    if (one_in(60)) return PICK(odd);
    if (one_in(200)) return strtod(one_in(2) ? "nan" : "inf", NULL);
    return usual * (double)below(1000) / 500.0;
}

static int64_t when(struct owner *owner) {
    if (one_in(3000)) return (int64_t)any();
    if (one_in(200)) return owner->now - (int64_t)below(1000);
    static const uint64_t steps[] = {1, 10, 1000, 60000, 3600000};
    return owner->now += (int64_t)below(PICK(steps)) / 4;
}

// A zeroed struct with 64 bytes of room behind it, for sizes of other versions.
#define ROOM(type, name)                                                                  \
    static union {                                                                        \
        struct type it;                                                                   \
        uint8_t bytes[sizeof(struct type) + 64];                                          \
    } name;                                                                               \
    memset(&name, 0, sizeof name);                                                        \
    name.it.size = size_of(sizeof(struct type), &name.bytes[sizeof(struct type)])

static uint32_t size_of(uint32_t right, uint8_t *behind) {
    if (one_in(300)) {
        if (one_in(2)) behind[below(32)] = 1;
        return right + 32;
    }
    if (one_in(300)) return (uint32_t)below(right);
    if (one_in(600)) return UINT32_MAX;
    return right;
}

// Mostly the right stride. Rarely one that is too small, or larger than any object.
static uint64_t stride_of(uint64_t right) {
    static const uint64_t wrong[] = {0, 1, 3, 4, 8, UINT64_MAX, UINT64_MAX - 7};
    if (!one_in(200)) return right;
    uint64_t stride = PICK(wrong);
    return stride < right || stride > UINT32_MAX ? stride : right;
}

#define LIST(into, from, n)                                                               \
    do {                                                                                  \
        (into).data = one_in(300) ? NULL : (from);                                        \
        (into).count = (n);                                                               \
        (into).stride = stride_of(sizeof *(from));                                        \
    } while (0)

static struct trainmaster_amounts amounts(struct trainmaster_amount space[4]) {
    struct trainmaster_amounts list;
    uint64_t n = below(4);
    for (uint64_t i = 0; i < n; i++) {
        space[i].name = word(RESOURCES[one_in(100) ? below(9) : (i + below(3)) % 8]);
        space[i].value = amount(i == 0 ? 4000 : 16000);
    }
    LIST(list, space, n);
    return list;
}

static const struct trainmaster_server *a_server(void) {
    static struct trainmaster_amount space[4];
    static struct trainmaster_string kinds[4];
    static struct trainmaster_label labels[2];
    ROOM(trainmaster_server, server);
    struct trainmaster_server *it = &server.it;
    it->draining = small(one_in(10));
    it->name = word(PICK(SERVERS));
    it->capacity = amounts(space);
    uint64_t n = below(5);
    for (uint64_t i = 0; i < n; i++) kinds[i] = word(one_in(30) ? "cpu" : one_in(3) ? "gpu:a" : "gpu");
    LIST(it->devices, kinds, n);
    n = one_in(4) ? below(3) : 0;
    for (uint64_t i = 0; i < n; i++) {
        labels[i].key = word(i ? "zone" : "hosts");
        labels[i].value = word(one_in(9) ? "x" : one_in(2) ? "workers" : "both");
    }
    LIST(it->labels, labels, n);
    return one_in(200) ? NULL : it;
}

static const struct trainmaster_role *a_role(int which) {
    static struct trainmaster_amount space[2][4];
    static union {
        struct trainmaster_role it;
        uint8_t bytes[sizeof(struct trainmaster_role) + 64];
    } roles[2];
    memset(&roles[which], 0, sizeof roles[which]);
    struct trainmaster_role *it = &roles[which].it;
    it->size = size_of(sizeof *it, &roles[which].bytes[sizeof *it]);
    it->min = small(2);
    it->max = one_in(3) ? 0 : it->min + 1 + small(3);
    it->requested = one_in(2) ? 0 : it->min;
    space[which][0].name = word(which == 0 && !one_in(4) ? "gpu" : "cpu");
    space[which][0].value = one_in(4) ? 500 : one_in(30) ? amount(2000) : 1000;
    space[which][1].name = word("bandwidth");
    space[which][1].value = 1000;
    LIST(it->demand, space[which], one_in(5) ? 2 : 1);
    if (one_in(20)) it->demand = amounts(space[which]);
    if (one_in(10)) it->command = word("train --fast");
    return it;
}

static const struct trainmaster_job *a_job(void) {
    static const uint8_t hash[32] = {7};
    static struct trainmaster_speed profile[4];
    static struct trainmaster_worth points[3];
    static struct trainmaster_partition parts[3];
    static uint32_t after[3];
    static struct trainmaster_label label;
    ROOM(trainmaster_job, job);
    ROOM(trainmaster_convergence, rule);
    ROOM(trainmaster_utility, utility);
    ROOM(trainmaster_dataset, data);
    struct trainmaster_job *it = &job.it;
    it->name = word(JOBS[below(one_in(30) ? 11 : 7)]);
    if (one_in(2)) it->model = word("m");
    if (one_in(3)) it->tenant = word("t");
    if (one_in(3)) it->queue = word("q");
    it->priority = (int32_t)small(3);
    it->resize = small(2);
    it->mode = one_in(100) ? small(9) : (uint32_t)below(3);
    it->batch = number(512);
    it->examples = number(50000);
    it->worker = one_in(200) ? NULL : a_role(0);
    it->server = (it->mode == TRAINMASTER_TRAINING_MODE_ALLREDUCE) != one_in(100) ? NULL : a_role(1);
    if (one_in(2)) {
        rule.it.delta = real(0.05);
        rule.it.patience = small(3);
        rule.it.max_epochs = small(50);
        it->convergence = &rule.it;
    }
    if (one_in(3)) {
        utility.it.kind = small(4);
        utility.it.value = real(50);
        utility.it.decay = real(1);
        utility.it.target_ms = amount(36000000);
        uint64_t n = utility.it.kind == 4 ? 1 + below(3) : 0;
        for (uint64_t i = 0; i < n; i++) {
            points[i].elapsed_ms = one_in(50) ? amount(9) : 100000 * (int64_t)i;
            points[i].worth = real(5);
        }
        utility.it.points = points;
        utility.it.points_count = n;
        utility.it.points_stride = stride_of(sizeof *points);
        it->utility = &utility.it;
    }
    if (one_in(2)) {
        data.it.chunks = 1 + small(6);
        data.it.batches_per_chunk = 1 + small(20);
        data.it.epochs = 1 + small(4);
        data.it.batch_time_ms = amount(20000);
        data.it.upload = word("cloud");
        it->dataset = &data.it;
    }
    it->model_size_mib = amount(300);
    if (one_in(4)) it->deadline_ms = amount(3600000);
    if (one_in(4)) it->time_limit_ms = amount(7200000);
    if (one_in(4)) it->restart_cost_ms = amount(60000);
    if (one_in(9)) it->accuracy = real(0.5);
    it->urgency = small(10);
    const int is_free = one_in(3);
    label.key = word(is_free ? "batch.max" : "zone");
    label.value = word(is_free ? "4096" : "x");
    LIST(it->labels, &label, is_free || one_in(30));
    uint64_t n = below(4);
    for (uint64_t i = 0; i < n; i++) {
        profile[i].servers = it->server ? 1 + small(2) : 0;
        profile[i].workers = 1 + small(3);
        profile[i].speed = real(3);
    }
    LIST(it->profile, profile, n);
    if (one_in(5)) it->external_cluster = word(PICK(MANAGERS)), it->external_name = word("1234");
    if (one_in(5)) it->token_hash = hash;
    it->stop = one_in(4) ? small(2) : 0;
    it->stop_under_load = one_in(4) ? small(2) : 0;
    n = one_in(4) ? below(4) : 0;
    for (uint64_t i = 0; i < n; i++) {
        parts[i].parameters = number(1000);
        after[i] = i > 0 ? (uint32_t)i - 1 : small(1);
        parts[i].after = after + i;
        parts[i].after_count = i > 0 || one_in(100);
    }
    LIST(it->partitions, parts, n);
    if (n > 0 && !one_in(9)) it->resize = TRAINMASTER_RESIZE_FIXED;
    it->separate_roles = it->server != NULL ? small(1) : (uint32_t)one_in(100);
    return one_in(200) ? NULL : it;
}

static const struct trainmaster_report *a_report(void) {
    static struct trainmaster_slot_time times[4];
    static uint64_t seq;
    ROOM(trainmaster_report, report);
    struct trainmaster_report *it = &report.it;
    it->has = small(31);
    it->role = small(one_in(9));
    it->index = small(2);
    it->seq = one_in(20) ? number(100) : ++seq;
    it->epoch = one_in(9) ? small(40) : (uint32_t)(seq / 20 % 1000);
    it->steps_per_epoch = number(20);
    it->step = one_in(9) ? number(1000) : seq;
    it->steps = small(20);
    it->duration_ms = amount(60000);
    it->workers = small(3);
    it->servers = small(2);
    it->loss = real(1.0 / (1.0 + (double)below(30)));
    it->accuracy = real(0.4);
    it->restart_ms = amount(20000);
    it->batch = number(200);
    it->grad_sqr = real(1);
    it->grad_var = real(1000);
    uint64_t n = below(5);
    for (uint64_t i = 0; i < n; i++) times[i].worker = small(3), times[i].ms = real(100);
    it->slot_times = one_in(300) ? NULL : times;
    it->slot_times_count = n;
    it->slot_times_stride = stride_of(sizeof *times);
    return one_in(200) ? NULL : it;
}

// Mostly the slots of the last plan; otherwise random slots.
static struct trainmaster_slots some_slots(uint64_t *job, uint32_t *incarnation) {
    static struct trainmaster_slot space[3];
    static struct trainmaster_device devices[3];
    struct trainmaster_slots list = {NULL, 0, sizeof *space};
    if (plan && plan->verdicts.count > 0 && !one_in(4)) {
        const struct trainmaster_verdict *verdict = TRAINMASTER_AT(struct trainmaster_verdict, plan->verdicts.data,
                                                                   plan->verdicts.stride, below(plan->verdicts.count));
        *job = verdict->job;
        *incarnation = verdict->incarnation;
        return verdict->slots;
    }
    uint64_t n = below(4);
    for (uint64_t i = 0; i < n; i++) {
        memset(&space[i], 0, sizeof space[i]);
        space[i].size = one_in(300) ? (uint32_t)below(100) : sizeof space[i];
        if (space[i].size > sizeof space[i]) space[i].size = sizeof space[i];
        space[i].role = small(1);
        space[i].index = small(3);
        space[i].server = word(PICK(SERVERS));
        devices[i].device = small(3);
        devices[i].milli = small(1000);
        LIST(space[i].devices, &devices[i], below(2));
    }
    if (n) LIST(list, space, n);
    return list;
}

// Mostly the number of an active job, with its incarnation.
static uint64_t active(struct owner *owner, uint32_t *incarnation) {
    uint64_t job = number(99);
    const struct trainmaster_jobs *jobs = NULL;
    if (one_in(50) || trainmaster_scheduler_jobs(owner->scheduler, 0, &jobs, NULL) != 0) return job;
    if (jobs->count > 0) {
        const struct trainmaster_job_status *it =
            TRAINMASTER_AT(struct trainmaster_job_status, jobs->data, jobs->stride, below(jobs->count));
        job = it->job;
        if (incarnation && !one_in(20)) *incarnation = it->incarnation;
    }
    trainmaster_jobs_free(jobs);
    return job;
}

static struct trainmaster_event an_event(struct owner *owner) {
    static const uint32_t often[] = {4, 4, 7, 7, 7, 7, 7, 8, 10, 10, 10, 10, 10, 10,
                                     11, 11, 11, 11, 11, 11, 12, 12, 6, 9, 15, 15, 17, 17};
    static struct trainmaster_amount space[4];
    static struct trainmaster_device device;
    static struct trainmaster_slot_use uses[2];
    struct trainmaster_event it;
    memset(&it, 0, sizeof it);
    it.size = one_in(500) ? (uint32_t)below(sizeof it) : sizeof it;
    it.kind = one_in(20) ? small(17) : PICK(often);
    it.at = when(owner);
    it.incarnation = small(4);
    it.job = active(owner, it.kind == TRAINMASTER_EVENT_KIND_OBSERVED ? NULL : &it.incarnation);
    static const uint32_t choices[] = {1, 1, 3, 1, 1, 1, 1, 1, 4, 2, 1, 4, 3, 1, 2, 1};
    it.value = one_in(50) || it.kind > 15 ? small(9) : (uint32_t)below(choices[it.kind]);
    if (it.kind == TRAINMASTER_EVENT_KIND_MODE_SET && !one_in(4)) it.value = TRAINMASTER_MODE_ACTIVE;
    it.number = number(50);
    it.retry_ms = amount(60000);
    it.name = word(PICK(SERVERS));
    it.manager = word(PICK(MANAGERS));
    it.text = word(one_in(9) ? "name = \"a\"\nmode = \"allreduce\"\nworker = { gpu = 1 }" : "because");
    if (it.kind == TRAINMASTER_EVENT_KIND_CONFIGURED) it.text = word(SETTINGS[below(one_in(50) ? 14 : 12)]);
    it.server = a_server();
    it.submitted = a_job();
    it.report = a_report();
    it.slots = some_slots(&it.job, &it.incarnation);
    it.amounts = amounts(space);
    device.device = small(3);
    device.milli = small(1000);
    LIST(it.devices, &device, below(2));
    for (uint64_t i = 0; i < 2; i++) {
        uses[i].job = one_in(9) ? number(99) : it.job;
        uses[i].role = small(1);
        uses[i].index = small(3);
        uses[i].amounts = it.amounts;
        uses[i].devices = it.devices;
    }
    LIST(it.uses, uses, below(3));
    return it;
}

static uint32_t append(void *user, const uint8_t *record, uint64_t length, uint32_t is_snapshot) {
    struct owner *owner = user;
    if (is_snapshot) owner->length = 0;
    if (one_in(50) || owner->length + length > SPACE) return 1 + (uint32_t)below(3);
    memcpy(owner->journal + owner->length, record, length);
    owner->length += length;
    return trainmaster_scheduler_snapshot(owner->scheduler, NULL) == TRAINMASTER_ERROR_BUSY ? 0 : 1;
}

static void check_log(void *user, uint32_t level, const char *line) {
    CHECK(user == counts && level <= TRAINMASTER_LOG_LEVEL_INFO && strlen(line) > 0);
}

static void renew(struct owner *owner) {
    trainmaster_scheduler_free(owner->scheduler);
    owner->scheduler = NULL;
    owner->now = 0;
    owner->faulty = 0;
    owner->length = 0;
    while (trainmaster_scheduler_new(text(SETTINGS[below(one_in(10) ? 14 : 10)]), &owner->scheduler, &error) !=
           TRAINMASTER_OK) {
    }
    for (int i = 0; i < 3; i++) {
        struct trainmaster_amount capacity[] = {
            {text("cpu"), 8000}, {text("bandwidth"), 10000}, {text("memory"), 4096}};
        struct trainmaster_string devices[] = {text("gpu"), text("gpu"), text("gpu:a")};
        struct trainmaster_server server = {0};
        server.size = sizeof server;
        server.name = text(SERVERS[i]);
        LIST(server.capacity, capacity, 3);
        LIST(server.devices, devices, 3);
        struct trainmaster_event set;
        memset(&set, 0, sizeof set);
        set.size = sizeof set;
        set.kind = TRAINMASTER_EVENT_KIND_SERVER_SET;
        set.manager = text("m0");
        set.server = &server;
        trainmaster_scheduler_apply(owner->scheduler, &set, 1, sizeof set, NULL, NULL);
    }
}

// --- calls ---

enum { CALLS = 36 };

static uint32_t call(uint64_t which, struct owner *owner) {
    struct trainmaster_scheduler *s = one_in(400) ? NULL : owner->scheduler;
    struct trainmaster_message *message = one_in(20) ? NULL : &error;
    // Mostly one of the owner's own tickets.
    uint64_t own = 2 * (uint64_t)(owner - owners) + one_in(5);
    struct trainmaster_ticket **ticket = &tickets[one_in(9) ? below(TICKETS) : own];
    uint64_t id = number(30);
    uint32_t result = 0;
    switch (which) {
    case 0: case 1: case 2: case 3: case 4: case 5: case 6: {
        // Mostly one event: the parts of the second event overwrite those of the first.
        struct trainmaster_event events[2] = {an_event(owner), an_event(owner)};
        uint64_t done = 0;
        return trainmaster_scheduler_apply(s, one_in(400) ? NULL : events, one_in(9) ? 2 : 1, stride_of(sizeof *events),
                                           one_in(2) ? NULL : &done, message);
    }
    case 7: return trainmaster_scheduler_would_accept(s, a_job(), message);
    case 8: return trainmaster_scheduler_find_job(s, word(PICK(JOBS)), one_in(200) ? NULL : &id, message);
    case 9: case 10: case 11: {
        const struct trainmaster_plan *next = NULL;
        result = one_in(5) ? trainmaster_scheduler_all_issues(s, one_in(200) ? NULL : &next, message)
                           : trainmaster_scheduler_take_issues(s, one_in(200) ? NULL : &next, message);
        if (next) {
            trainmaster_plan_free(plan);
            plan = next;
        }
        return result;
    }
    case 12: {
        const struct trainmaster_plan *other = NULL;
        static const char *const names[] = {"", "fifo", "drf", "optimus", "tetris", "nil"};
        result = trainmaster_scheduler_preview(s, word(PICK(names)), one_in(3) ? number(100) : 0,
                                               one_in(200) ? NULL : &other, message);
        trainmaster_plan_free(other);
        return result;
    }
    case 13: case 14: case 15:
        trainmaster_ticket_free(*ticket);
        *ticket = NULL;
        return trainmaster_scheduler_prepare(s, when(owner), one_in(200) ? NULL : ticket, message);
    case 16:
        trainmaster_ticket_free(*ticket);
        *ticket = NULL;
        return trainmaster_scheduler_prepare_fits(s, when(owner), one_in(200) ? NULL : ticket, message);
    case 17: case 18: case 19: case 20: return trainmaster_ticket_run(*ticket, one_in(9) ? number(50) : 0, message);
    case 21: case 22: case 23: {
        const struct trainmaster_decision *decision = NULL;
        result = trainmaster_scheduler_commit(s, when(owner), *ticket, one_in(9) ? NULL : &decision, message);
        trainmaster_decision_free(decision);
        return result;
    }
    case 24: return trainmaster_scheduler_commit_fits(s, when(owner), *ticket, message);
    case 25: return trainmaster_scheduler_abandon(s, when(owner), *ticket, small(1), message);
    case 26: {
        const struct trainmaster_decision *decision = NULL;
        result = trainmaster_scheduler_decide(s, when(owner), one_in(9) ? NULL : &decision, message);
        trainmaster_decision_free(decision);
        return result;
    }
    case 27: {
        ROOM(trainmaster_status, status);
        return trainmaster_scheduler_status(s, one_in(200) ? NULL : &status.it, message);
    }
    case 28: {
        const struct trainmaster_jobs *jobs = NULL;
        const struct trainmaster_servers *servers = NULL;
        if (one_in(2)) result = trainmaster_scheduler_jobs(s, id, one_in(200) ? NULL : &jobs, message);
        else result = trainmaster_scheduler_servers(s, word(one_in(2) ? "" : PICK(SERVERS)),
                                                    one_in(200) ? NULL : &servers, message);
        trainmaster_jobs_free(jobs);
        trainmaster_servers_free(servers);
        return result;
    }
    case 29: {
        const struct trainmaster_explanation *why = NULL;
        id = active(owner, NULL);
        result = trainmaster_scheduler_explain(s, when(owner), id, one_in(200) ? NULL : &why, message);
        trainmaster_explanation_free(why);
        return result;
    }
    case 30: {
        ROOM(trainmaster_prediction, prediction);
        id = active(owner, NULL);
        return trainmaster_scheduler_predict(s, id, small(9), small(9), one_in(200) ? NULL : &prediction.it, message);
    }
    case 31:
        if (one_in(20) || owner->length > SPACE / 2) return trainmaster_scheduler_start_journal(s, message);
        if (one_in(5)) return trainmaster_scheduler_snapshot(s, message);
        return trainmaster_scheduler_drain_journal(s, one_in(200) ? NULL : append, owner, message);
    case 32: {
        if (!one_in(4)) return 0;
        uint64_t length = one_in(3) ? below(owner->length + 1) : owner->length, used = 0;
        uint8_t *at = owner->length && one_in(6) ? &owner->journal[below(owner->length)] : NULL;
        if (at) *at ^= (uint8_t)(1 << below(8));
        result = trainmaster_scheduler_restore(s, one_in(200) ? NULL : owner->journal, length, one_in(2) ? NULL : &used,
                                               message);
        if (at) owner->length = 0;
        CHECK(used <= length);
        if (result == 0) {
            owner->faulty = 0;
            owner->length = 0;
            restored++;
        }
        return result;
    }
    case 33: {
        uint8_t memo[4096], digest[32];
        uint32_t version = 0;
        if (one_in(2)) return trainmaster_scheduler_digest(s, one_in(200) ? NULL : digest, message);
        return trainmaster_scheduler_memo(s, one_in(200) ? NULL : memo, one_in(3) ? below(9) : sizeof memo,
                                          one_in(200) ? NULL : &id, &version, message);
    }
    case 34: {
        if (one_in(2)) return trainmaster_scheduler_set_log(s, one_in(3) ? NULL : check_log, counts, message);
        const struct trainmaster_engines *engines = NULL;
        result = trainmaster_engines_list(one_in(200) ? NULL : &engines, message);
        trainmaster_engines_free(engines);
        return result;
    }
    default: {
        static struct trainmaster_loss losses[16];
        static struct trainmaster_speed samples[6], shapes[3];
        uint64_t blocks[8];
        ROOM(trainmaster_prediction, prediction);
        ROOM(trainmaster_convergence, rule);
        rule.it.delta = real(0.01);
        rule.it.patience = small(3);
        rule.it.max_epochs = small(200);
        for (uint64_t i = 0; i < 16; i++) {
            losses[i].epoch = one_in(20) ? number(50) : i;
            losses[i].loss = real(1.0 / (double)(i + 1));
        }
        for (uint64_t i = 0; i < 6; i++) {
            samples[i].servers = small(4);
            samples[i].workers = small(8);
            samples[i].speed = real(4);
        }
        for (uint64_t i = 0; i < 3; i++) shapes[i].servers = small(4), shapes[i].workers = small(8);
        for (uint64_t i = 0; i < 8; i++) blocks[i] = number(1000);
        const struct trainmaster_assignment *assignment = NULL;
        switch (below(4)) {
        case 0:
            return trainmaster_fit_loss(losses, below(17), stride_of(sizeof *losses), one_in(2) ? NULL : &rule.it,
                                        small(1),
                                        one_in(200) ? NULL : &prediction.it, message);
        case 1:
            return trainmaster_fit_speed(small(2), real(64), samples, below(7), stride_of(sizeof *samples), small(1),
                                         shapes,
                                         below(4), stride_of(sizeof *shapes), message);
        case 2:
            result = trainmaster_paa_assign(blocks, below(9), stride_of(sizeof *blocks),
                                            one_in(40) ? small(1) : (uint32_t)below(20),
                                            one_in(200) ? NULL : &assignment, message);
            trainmaster_assignment_free(assignment);
            return result;
        default:
            CHECK(trainmaster_version() && trainmaster_abi_version() == 1 && trainmaster_error_name(small(70)));
            return 0;
        }
    }
    }
}

int main(int argc, char **argv) {
    uint64_t total = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int i = 0; i < SCHEDULERS; i++) {
        owners[i].journal = malloc(SPACE);
        CHECK(owners[i].journal != NULL);
        renew(&owners[i]);
    }
    for (uint64_t calls = 0; calls < total; calls++) {
        struct owner *owner = &owners[below(SCHEDULERS)];
        if (one_in(1500)) renew(owner);
        if (one_in(3000)) {
            owner->faulty = 1;
            trainmaster_fault_inject(owner->scheduler, (uint32_t)below(3), NULL);
        }
        uint64_t which = below(CALLS);
        uint32_t result = call(which, owner);
        counts[which]++;
        if (result != TRAINMASTER_OK) errors[which]++;
        if (result != TRAINMASTER_OK) CHECK(strncmp(trainmaster_error_name(result), "TRAINMASTER_ERROR_", 18) == 0);
        if (result == TRAINMASTER_ERROR_PANIC) {
            panics++;
            if (!owner->faulty) {
                fprintf(stderr, "seed %llu, call %llu of kind %llu panicked: %s\n", (unsigned long long)seed,
                        (unsigned long long)calls, (unsigned long long)which, error_text);
                return 1;
            }
        }
        // The scheduler is poisoned, and its journal may not suffice to restore it.
        if (result == TRAINMASTER_ERROR_POISONED && one_in(30)) renew(owner);
        CHECK(result != TRAINMASTER_ERROR_BUSY);
    }
    for (uint64_t i = 0; i < CALLS; i++) {
        fprintf(stderr, "kind %2llu: %7llu calls, %7llu failed\n", (unsigned long long)i,
                (unsigned long long)counts[i], (unsigned long long)errors[i]);
        CHECK(counts[i] == 0 || total < 100000 || errors[i] < counts[i]);
    }
    for (int i = 0; i < SCHEDULERS; i++) {
        trainmaster_scheduler_free(owners[i].scheduler);
        free(owners[i].journal);
    }
    for (int i = 0; i < TICKETS; i++) trainmaster_ticket_free(tickets[i]);
    trainmaster_plan_free(plan);
    printf("%llu calls, %llu injected panics, %llu restored\n", (unsigned long long)total, (unsigned long long)panics,
           (unsigned long long)restored);
    CHECK(total < 100000 || (panics > 0 && restored > 0));
    return 0;
}
