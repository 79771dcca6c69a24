// Trainmaster: the number of workers and parameter servers of every training job on a cluster, their placement, the
// time of changes, and which jobs run at all.
//
// Overview: create a scheduler. Pass it events (servers, jobs, reports of training programs, the manager's
// observations). When a decision is due, ask it to decide, and have the cluster's manager execute the plan.
//
//     struct trainmaster_scheduler *scheduler;
//     trainmaster_scheduler_new(trainmaster_text("engine = \"optimus\""), &scheduler, NULL);
//     trainmaster_scheduler_apply(scheduler, events, count, sizeof *events, NULL, NULL);
//     trainmaster_scheduler_decide(scheduler, now, NULL, NULL);
//     const struct trainmaster_plan *plan;
//     trainmaster_scheduler_take_issues(scheduler, &plan, NULL);   // ... execute it
//     trainmaster_plan_free(plan);
//     trainmaster_scheduler_free(scheduler);
//
// ffi/examples/first.c is a complete program. The library does no I/O, has no clock and starts no thread. The caller
// provides the time. The same events give the same decisions, byte by byte.
//
// Results. A function that can fail returns TRAINMASTER_OK (0) or a value of enum trainmaster_error. "Errors" in a
// function's description lists the possible ones without "TRAINMASTER_ERROR_". Unless the description says otherwise, a
// function that fails has no effect and writes no output except the message. `message` may always be NULL. Otherwise it
// gets a text with the problem, the value, and what is allowed. A bug in the library (a panic) becomes
// TRAINMASTER_ERROR_PANIC. If memory runs out, the process ends.
//
// Structs from the caller. Set the whole struct to zero, then `size` to its sizeof, then the known fields. New fields
// are appended, and zero means that a field isn't used. So a program works unchanged with a newer library. It also
// works with an older one, as long as it uses no field that is unknown there (else: TRAINMASTER_ERROR_SIZE). Structs
// that say "Never grows" have no size.
//
// Arrays are a pointer, a count and a stride, which is the number of bytes from one element to the next. In arguments,
// the stride is the element's sizeof. In results it can be larger than the sizeof in your header, so use
// TRAINMASTER_AT. Enumerations in structs have the type uint32_t, so that their size is the same in C and C++.
//
// Time. Durations are in milliseconds. Times are milliseconds since an origin that the caller chooses once, from 0 to
// 10^15. `at` is the current time, and never decreases: events before the last one are refused, and other calls use the
// last time instead.
//
// Ownership. Arguments are read during the call and never kept, except a log's `user`. Outputs whose comment says
// "yours" belong to the caller, who frees each once with its own function. That also frees what it points to.
//
// Threads. Only one thread at a time may use a scheduler or a ticket, but any thread may. A second thread, or a call
// from inside a callback, gets TRAINMASTER_ERROR_BUSY without any effect. A ticket runs on any thread while its
// scheduler is in use. Results don't change, and any thread may read them. There is no other shared state. Handles must
// not be used in the child of a fork().
//
// Archive: link with -ltrainmaster -lpthread -ldl -lm. A plugin that contains it should hide its symbols:
// -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,-z,nodelete.

#ifndef TRAINMASTER_H
#define TRAINMASTER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// The element of an array in a result: TRAINMASTER_AT(struct trainmaster_slot, slots.data, slots.stride, index).
#define TRAINMASTER_AT(type, data, stride, index) \
    ((const type *)(const void *)((const char *)(data) + (size_t)(index) * (size_t)(stride)))


// Version of the ABI in this header. It increases with each addition. Existing functions, numbers and fields of
// structs never change; new fields are added at the end only.
#define TRAINMASTER_ABI_VERSION 1

// The result of a successful function.
#define TRAINMASTER_OK 0

// A time that never comes.
#define TRAINMASTER_NEVER INT64_MAX

// Kind of a job's end.
enum trainmaster_end {
    // It converged, or reached its maximum of epochs.
    TRAINMASTER_END_COMPLETED = 0,
    // It failed.
    TRAINMASTER_END_FAILED = 1,
    // A user cancelled it.
    TRAINMASTER_END_CANCELLED = 2,
    // The scheduler stopped it.
    TRAINMASTER_END_STOPPED = 3,
};

// The manager's result for a change.
enum trainmaster_enacted {
    // The change is being enacted.
    TRAINMASTER_ENACTED_ACCEPTED = 0,
    // A part of it is. Observations show which.
    TRAINMASTER_ENACTED_PARTIAL = 1,
    // The change is refused.
    TRAINMASTER_ENACTED_REFUSED = 2,
};

// The result of a function that failed and changed nothing. Numbers are never reused, and new ones may be added.
// trainmaster_error_name() returns their names.
enum trainmaster_error {
    // A required pointer is NULL.
    TRAINMASTER_ERROR_NULL = 1,
    // A struct's size, an array's stride or a length is impossible, or a struct of a newer version has fields set that
    // this library doesn't know.
    TRAINMASTER_ERROR_SIZE = 2,
    // A number is not an allowed one, a text is not UTF-8, or a pointer is not aligned.
    TRAINMASTER_ERROR_VALUE = 3,
    // The handle is in use by another thread, or by the caller of a callback.
    TRAINMASTER_ERROR_BUSY = 4,
    // An earlier panic has poisoned the handle. Only status, take_issues, all_issues, drain_journal, set_log, restore
    // and free work.
    TRAINMASTER_ERROR_POISONED = 5,
    // A bug in the library was caught. If it occurred during a change of a scheduler, the scheduler is poisoned.
    TRAINMASTER_ERROR_PANIC = 6,
    // Wrong order of calls: the ticket has not run yet, has run or was committed already, or is for fits instead of a
    // decision.
    TRAINMASTER_ERROR_ORDER = 7,
    // The ticket was superseded by a newer one or abandoned, its scheduler was restored since, or it belongs to
    // another scheduler.
    TRAINMASTER_ERROR_SUPERSEDED = 8,
    // The caller's buffer is too small. The required length was written.
    TRAINMASTER_ERROR_BUFFER = 9,
    // The journal's writer returned something other than 0.
    TRAINMASTER_ERROR_WRITE = 10,
    // The settings are invalid: a key, an engine, or a parameter.
    TRAINMASTER_ERROR_SETTINGS = 20,
    // The engine failed to decide.
    TRAINMASTER_ERROR_ENGINE = 21,
    // The job's description is invalid.
    TRAINMASTER_ERROR_JOB = 30,
    // An active job has the same name.
    TRAINMASTER_ERROR_DUPLICATE_NAME = 31,
    // The job could never run, even alone.
    TRAINMASTER_ERROR_NEVER_FITS = 32,
    // There are too many types of resources.
    TRAINMASTER_ERROR_RESOURCE_TYPES = 33,
    // The engine in charge can't run such a job.
    TRAINMASTER_ERROR_UNSUPPORTED = 34,
    // There is no such active job.
    TRAINMASTER_ERROR_UNKNOWN_JOB = 35,
    // There is no such server.
    TRAINMASTER_ERROR_UNKNOWN_SERVER = 36,
    // The server's description is invalid.
    TRAINMASTER_ERROR_SERVER = 37,
    // The resync was never begun.
    TRAINMASTER_ERROR_SYNC = 38,
    // The report is out of order, out of range or of another incarnation. It is counted.
    TRAINMASTER_ERROR_REPORT = 39,
    // The refusal is for something that is no longer issued. It is counted.
    TRAINMASTER_ERROR_LATE_REFUSAL = 40,
    // The time is before an earlier one.
    TRAINMASTER_ERROR_TIME = 41,
    // The policy can't be read, is corrupt, has other inputs, or had worse results than the heuristic. The previous
    // policy stays in force.
    TRAINMASTER_ERROR_POLICY = 42,
    // The journal has no snapshot.
    TRAINMASTER_ERROR_NO_SNAPSHOT = 50,
    // A record of the journal is corrupt or of another version.
    TRAINMASTER_ERROR_UNREADABLE = 51,
    // A repeated decision differs from the journal's, because another version of the engine made it.
    TRAINMASTER_ERROR_DIVERGED = 52,
    // There are too few measurements for a fit.
    TRAINMASTER_ERROR_TOO_FEW_POINTS = 60,
    // A sum or difference of the numbers is too large.
    TRAINMASTER_ERROR_TOO_LARGE = 61,
};

// The kinds of events. Each kind lists the fields of struct trainmaster_event that it reads in addition to `size`,
// `kind` and `at`. Other fields are ignored.
enum trainmaster_event_kind {
    // New settings. `text`: TOML, as for trainmaster_scheduler_new().
    TRAINMASTER_EVENT_KIND_CONFIGURED = 1,
    // `value`: one of TRAINMASTER_MODE_*.
    TRAINMASTER_EVENT_KIND_MODE_SET = 2,
    // Another host took over. `number`: its term, which increases. Decisions of older terms are void.
    TRAINMASTER_EVENT_KIND_TERM_BEGAN = 3,
    // A server arrived or changed. `manager`, `server`.
    TRAINMASTER_EVENT_KIND_SERVER_SET = 4,
    // A server left, with all its slots. `name`.
    TRAINMASTER_EVENT_KIND_SERVER_LEFT = 5,
    // The total foreign use of a server. `name`, `amounts`, `devices`.
    TRAINMASTER_EVENT_KIND_FOREIGN_USE = 6,
    // A job was submitted. `submitted`, or if that is NULL `text`: a job file (TOML). trainmaster_scheduler_find_job()
    // returns its number.
    TRAINMASTER_EVENT_KIND_JOB_SUBMITTED = 7,
    // A job ended. `job`, `value`: one of TRAINMASTER_END_*.
    TRAINMASTER_EVENT_KIND_JOB_ENDED = 8,
    // A user holds a job (`value` 1) or resumes it (0). `job`.
    TRAINMASTER_EVENT_KIND_JOB_HELD = 9,
    // A training program reports. `job`, `incarnation`, `report`.
    TRAINMASTER_EVENT_KIND_REPORTED = 10,
    // All slots of a job that the manager observes. `job`, `incarnation`, `slots` (empty: all are released), `value`:
    // one of TRAINMASTER_PHASE_*.
    TRAINMASTER_EVENT_KIND_OBSERVED = 11,
    // The manager's result for an issue. `job`, `number`: the `decision` of the plan that contained it, `value`: one
    // of TRAINMASTER_ENACTED_*. If refused also `text`: the cause, and `retry_ms`.
    TRAINMASTER_EVENT_KIND_ENACTED = 12,
    // A manager begins a resync. `manager`. No decision is due before its end.
    TRAINMASTER_EVENT_KIND_SYNC_BEGIN = 13,
    // The resync is complete. Servers and jobs' slots that it didn't mention are gone. `manager`, `value` 1: so are
    // unmentioned jobs of that cluster.
    TRAINMASTER_EVENT_KIND_SYNC_END = 14,
    // New measurements of a server, which replace the previous ones. `name`, `amounts`: total use without devices;
    // `devices`: their use, others are idle; `uses`: the part of each slot.
    TRAINMASTER_EVENT_KIND_UTILISATION = 15,
    // A learnt policy. `name`: the engine; `text`: a policy file. Without a text the engine uses its heuristic again.
    TRAINMASTER_EVENT_KIND_POLICY_SET = 16,
    // The batch and the gradients of a report, before its TRAINMASTER_EVENT_KIND_REPORTED. For jobs with a range of
    // batches, others ignore it. `job`, `incarnation`, `report`: the same report.
    TRAINMASTER_EVENT_KIND_BATCH_REPORTED = 17,
};

// Known values. `known` of struct trainmaster_prediction is their sum.
enum trainmaster_known {
    // `speed` and `speed_error`.
    TRAINMASTER_KNOWN_SPEED = 1,
    // `epochs`, `low`, `high` and `remaining_epochs`.
    TRAINMASTER_KNOWN_CONVERGENCE = 2,
    // `remaining_ms`.
    TRAINMASTER_KNOWN_TIME = 4,
    // The loss is not expected to converge before the job's maximum of epochs, which is then in `epochs`.
    TRAINMASTER_KNOWN_CAPPED = 8,
};

// Severity of a line of the log.
enum trainmaster_log_level {
    // An administrator has to act: a panic, or a paused scheduler.
    TRAINMASTER_LOG_LEVEL_ERROR = 0,
    // A handled failure: of an engine, or a truncated end of a journal.
    TRAINMASTER_LOG_LEVEL_WARNING = 1,
    // Information.
    TRAINMASTER_LOG_LEVEL_INFO = 2,
};

// The scheduling mode.
enum trainmaster_mode {
    // The engine decides, and the manager receives plans.
    TRAINMASTER_MODE_ACTIVE = 0,
    // The engine decides from observations. All jobs are handed back to the manager.
    TRAINMASTER_MODE_SHADOW = 1,
    // Nothing is decided. All jobs are handed back to the manager, in their last or requested shape.
    TRAINMASTER_MODE_PAUSED = 2,
};

// Phase of a job's slots.
enum trainmaster_phase {
    // There are none.
    TRAINMASTER_PHASE_STOPPED = 0,
    // Some don't run yet.
    TRAINMASTER_PHASE_STARTING = 1,
    // All run.
    TRAINMASTER_PHASE_RUNNING = 2,
    // They stop with a checkpoint.
    TRAINMASTER_PHASE_STOPPING = 3,
};

// Kind of a reason why a job doesn't run, or has less than planned.
enum trainmaster_reason_kind {
    // For a finding without a reason.
    TRAINMASTER_REASON_KIND_NONE = 0,
    // There was no decision about the job yet.
    TRAINMASTER_REASON_KIND_NOT_CONSIDERED = 1,
    // No server could hold one slot of the job. `server` has the most `resource`: `available` of the `needed` amount.
    TRAINMASTER_REASON_KIND_NEVER_FITS = 2,
    // There is no room now. A slot needs `needed` of `resource`; the most free room is `available` on `server`.
    TRAINMASTER_REASON_KIND_NO_ROOM = 3,
    // A total of the cluster, a queue or a tenant is used up: `needed` of `resource`, and `available` are left of
    // `limit`.
    TRAINMASTER_REASON_KIND_EXHAUSTED = 4,
    // Other jobs go first: it is at `position` in line, behind `job`.
    TRAINMASTER_REASON_KIND_BEHIND = 5,
    // It is planned, but `needed` more of `resource` must be released on `server` first.
    TRAINMASTER_REASON_KIND_RELEASING = 6,
    // The manager refused it. The next attempt is at `until`.
    TRAINMASTER_REASON_KIND_REFUSED = 7,
    // `server` left.
    TRAINMASTER_REASON_KIND_SERVER_LOST = 8,
    // `server` lacks `needed` of `resource` because of new foreign use.
    TRAINMASTER_REASON_KIND_EVICTED = 9,
    // Its utility is `worth`, and it costs others `cost`. The difference must exceed `threshold`.
    TRAINMASTER_REASON_KIND_OUTWEIGHED = 10,
    // A user holds it.
    TRAINMASTER_REASON_KIND_HELD = 11,
    // It reached its maximum run time, `limit` milliseconds.
    TRAINMASTER_REASON_KIND_TIME_LIMIT = 12,
    // A user cancelled it.
    TRAINMASTER_REASON_KIND_CANCELLED = 13,
    // Its training is complete.
    TRAINMASTER_REASON_KIND_FINISHED = 14,
    // The engine in charge can't run such jobs.
    TRAINMASTER_REASON_KIND_UNSUPPORTED = 15,
    // It continues at `until`.
    TRAINMASTER_REASON_KIND_SCHEDULED = 16,
    // Its best schedule has utility `worth` and costs `cost`, mostly for `resource`. The next attempt is at `until`.
    TRAINMASTER_REASON_KIND_PRICED_OUT = 17,
    // Until `until` there is room for `available` of the `needed` remaining chunks.
    TRAINMASTER_REASON_KIND_UNFINISHABLE = 18,
    // `server` is overloaded, with `available` millionths of its `resource` in use, and there is no room elsewhere.
    TRAINMASTER_REASON_KIND_OVERLOADED = 19,
    // It has the required accuracy: `available`, with `needed` required, in millionths.
    TRAINMASTER_REASON_KIND_ACCURACY_REACHED = 20,
    // Its accuracy is `available`, and its predicted final accuracy is hardly more: `limit`, in millionths.
    TRAINMASTER_REASON_KIND_NOTHING_TO_GAIN = 21,
    // Its predicted final accuracy is `limit`, and `needed` is required, in millionths.
    TRAINMASTER_REASON_KIND_OUT_OF_REACH = 22,
    // The engine's policy scores waiting, `worth`, above its best place on `server`, `cost`.
    TRAINMASTER_REASON_KIND_HELD_BACK = 23,
    // A reason of the engine, in `text`.
    TRAINMASTER_REASON_KIND_ENGINE = 24,
    // No domain of the topology that the job requires could hold it: its smallest shape needs `needed` of `resource`,
    // and the largest domain has `available`.
    TRAINMASTER_REASON_KIND_NO_DOMAIN = 25,
};

// The optional fields of a report. `has` is the sum of those that are set.
enum trainmaster_report_has {
    // `loss`.
    TRAINMASTER_REPORT_HAS_LOSS = 1,
    // `accuracy`.
    TRAINMASTER_REPORT_HAS_ACCURACY = 2,
    // `restart_ms`.
    TRAINMASTER_REPORT_HAS_RESTART = 4,
    // `batch`.
    TRAINMASTER_REPORT_HAS_BATCH = 8,
    // `grad_sqr` and `grad_var`.
    TRAINMASTER_REPORT_HAS_NOISE = 16,
};

// Allowed changes of a running job's shape.
enum trainmaster_resize {
    // Workers and parameter servers.
    TRAINMASTER_RESIZE_ANY = 0,
    // Workers only.
    TRAINMASTER_RESIZE_WORKERS = 1,
    // None: it runs in its requested shape.
    TRAINMASTER_RESIZE_FIXED = 2,
};

// When the scheduler may end the job before its convergence rule applies.
enum trainmaster_stop {
    // Only when the convergence rule applies.
    TRAINMASTER_STOP_EPOCHS = 0,
    // When the requested accuracy is reached or out of reach; without one, when further training would hardly improve
    // the accuracy.
    TRAINMASTER_STOP_OPTIMAL = 1,
    // When the requested accuracy is reached.
    TRAINMASTER_STOP_ACCURACY = 2,
};

// Role of a slot.
enum trainmaster_slot_role {
    // Computes gradients.
    TRAINMASTER_SLOT_ROLE_WORKER = 0,
    // Stores parameters.
    TRAINMASTER_SLOT_ROLE_SERVER = 1,
};

// Source of a decision.
enum trainmaster_source {
    // The engine.
    TRAINMASTER_SOURCE_ENGINE = 0,
    // The engine, without changes that no longer fitted.
    TRAINMASTER_SOURCE_PRUNED = 1,
    // The fallback engine, because the engine failed several times in a row.
    TRAINMASTER_SOURCE_FALLBACK = 2,
    // None: the engine failed, see `error`, and the last plan stays in force.
    TRAINMASTER_SOURCE_KEPT = 3,
};

// Flags of a scheduler. `flags` of struct trainmaster_status is their sum.
enum trainmaster_status_flag {
    // A panic was caught during a change: restore the scheduler from its journal.
    TRAINMASTER_STATUS_FLAG_POISONED = 1,
    // The engine failed several times in a row, so the fallback decides.
    TRAINMASTER_STATUS_FLAG_FALLBACK = 2,
    // The ticket of a decision is open.
    TRAINMASTER_STATUS_FLAG_DECIDING = 4,
    // A manager's resync is in progress.
    TRAINMASTER_STATUS_FLAG_SYNCING = 8,
    // A journal is active.
    TRAINMASTER_STATUS_FLAG_JOURNAL = 16,
};

// Topic of a finding.
enum trainmaster_topic {
    // The reason why the job doesn't run.
    TRAINMASTER_TOPIC_REASON = 0,
    // The difference between the plan and the issued part.
    TRAINMASTER_TOPIC_ISSUE = 1,
    // The scheduling mode.
    TRAINMASTER_TOPIC_MODE = 2,
    // The time of the next decision.
    TRAINMASTER_TOPIC_DECISION = 3,
    // Bounds from the job file and the site.
    TRAINMASTER_TOPIC_BOUNDS = 4,
    // The stability rule that keeps its slots.
    TRAINMASTER_TOPIC_STABILITY = 5,
    // Predicted convergence.
    TRAINMASTER_TOPIC_CONVERGENCE = 6,
    // Predicted speed.
    TRAINMASTER_TOPIC_SPEED = 7,
    // Slow workers.
    TRAINMASTER_TOPIC_STRAGGLER = 8,
    // Past changes and their costs.
    TRAINMASTER_TOPIC_HISTORY = 9,
    // Ignored reports.
    TRAINMASTER_TOPIC_REPORTS = 10,
    // State of its data chunks.
    TRAINMASTER_TOPIC_WORK = 11,
};

// The way in which gradients are combined.
enum trainmaster_training_mode {
    // Parameter servers wait for all workers in each step.
    TRAINMASTER_TRAINING_MODE_SYNC = 0,
    // Parameter servers apply each worker's gradients when they arrive.
    TRAINMASTER_TRAINING_MODE_ASYNC = 1,
    // There are no parameter servers: workers form a ring.
    TRAINMASTER_TRAINING_MODE_ALLREDUCE = 2,
};

// The curve of a job's utility over the time t from its arrival to its end.
enum trainmaster_utility_kind {
    // value / (1 + e^(decay * (t - target)))
    TRAINMASTER_UTILITY_KIND_SIGMOID = 0,
    // value
    TRAINMASTER_UTILITY_KIND_CONSTANT = 1,
    // value * (1 - t / (2 * target)), at least 0
    TRAINMASTER_UTILITY_KIND_LINEAR = 2,
    // value up to the target, then 0
    TRAINMASTER_UTILITY_KIND_STEP = 3,
    // From the points.
    TRAINMASTER_UTILITY_KIND_TABLE = 4,
};

// Kind of a verdict.
enum trainmaster_verdict_kind {
    // The job runs with these slots.
    TRAINMASTER_VERDICT_KIND_RUN = 0,
    // The job has no slots for now.
    TRAINMASTER_VERDICT_KIND_WAIT = 1,
    // The job is refused.
    TRAINMASTER_VERDICT_KIND_REJECT = 2,
    // The job is ended.
    TRAINMASTER_VERDICT_KIND_STOP = 3,
    // The job is handed back to its manager, with this shape.
    TRAINMASTER_VERDICT_KIND_RELEASE = 4,
};

// Reason to abandon a ticket.
enum trainmaster_why {
    // It took too long. This counts as a failure of the engine.
    TRAINMASTER_WHY_LATE = 0,
    // It is no longer needed.
    TRAINMASTER_WHY_LOST = 1,
};

// State of a piece of work.
enum trainmaster_work_state {
    // In training.
    TRAINMASTER_WORK_STATE_RUNNING = 0,
    // Waiting for its turn: `rank` chunks of the same job come before it on its slot.
    TRAINMASTER_WORK_STATE_QUEUED = 1,
    // Interrupted. It continues on the same worker.
    TRAINMASTER_WORK_STATE_PREEMPTED = 2,
    // Trained completely.
    TRAINMASTER_WORK_STATE_DONE = 3,
};

// The state machine of the policy core. One thread at a time may use it. A call during another one, or from within one
// of its callbacks, only returns TRAINMASTER_ERROR_BUSY. Its tickets may run on other threads at the same time.
struct trainmaster_scheduler;

// One attempt to decide or to fit: a consistent copy of the required state, separate from its scheduler. It is
// prepared, run once on any thread while its scheduler is used, committed or abandoned, and freed.
struct trainmaster_ticket;

// A text in UTF-8 without a terminating zero byte. `data` may be NULL if `length` is 0. Texts in arguments are read
// during the call and never kept. Texts in results belong to the result. Never grows.
struct trainmaster_string {
    // The first byte.
    const char *data;
    // Length in bytes.
    uint64_t length;
};

// A caller's buffer for the message of a failure. Every function accepts NULL instead. Never grows.
struct trainmaster_message {
    // The buffer, or NULL.
    char *data;
    // Its size in bytes. The text is truncated to fit, and always ends with a zero byte if the size is at least 1.
    uint64_t capacity;
    // Set by the function: length of the whole text without the zero byte, 0 after TRAINMASTER_OK.
    uint64_t length;
};

// An amount of one resource. Units: `memory` and `disk` in MiB, `bandwidth` in Mbit/s, all others (`gpu`, `cpu`,
// `gpu:<type>`, names of your own) in thousandths of one. From 0 to 10^12. Never grows.
struct trainmaster_amount {
    // Name of the resource.
    struct trainmaster_string name;
    // The amount.
    int64_t value;
};

// An array of amounts, at most one per resource.
struct trainmaster_amounts {
    // The first element.
    const struct trainmaster_amount *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// An array of texts.
struct trainmaster_strings {
    // The first element.
    const struct trainmaster_string *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// A label. Never grows.
struct trainmaster_label {
    // Name.
    struct trainmaster_string key;
    // Its value.
    struct trainmaster_string value;
};

// An array of labels, at most one per name.
struct trainmaster_labels {
    // The first element.
    const struct trainmaster_label *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// A server (machine), for TRAINMASTER_EVENT_KIND_SERVER_SET.
struct trainmaster_server {
    // sizeof(struct trainmaster_server).
    uint32_t size;
    // 1: it takes no new slots.
    uint32_t draining;
    // Unique in the cluster.
    struct trainmaster_string name;
    // Capacity without `devices`.
    struct trainmaster_amounts capacity;
    // `gpu` or `gpu:<type>`, one entry per device, which adds 1000 `gpu` (and 1000 of its type). Empty if the manager
    // picks devices itself; then `capacity` contains `gpu`.
    struct trainmaster_strings devices;
    // Labels for jobs' constraints. The label `hosts` sets the roles that it hosts: `workers`, `servers` or `both`.
    struct trainmaster_labels labels;
};

// Demand of one worker or one parameter server, and bounds of their number.
struct trainmaster_role {
    // sizeof(struct trainmaster_role).
    uint32_t size;
    // Minimum number; 0 is 1.
    uint32_t min;
    // Maximum number, up to 10000; 0: as requested.
    uint32_t max;
    // The number that it gets from an engine that doesn't choose; 0: the minimum.
    uint32_t requested;
    // Demand of one. At most one kind of GPU, in whole GPUs or a share of one.
    struct trainmaster_amounts demand;
    // The program to start. Empty if the manager knows it.
    struct trainmaster_string command;
};

// A convergence rule.
struct trainmaster_convergence {
    // sizeof(struct trainmaster_convergence).
    uint32_t size;
    // Number of consecutive epochs; 0 is 3 ...
    uint32_t patience;
    // ... that each lower the loss by less than this fraction of the first epoch's loss, from 0 up to 1. With 0 the
    // job trains exactly `max_epochs`.
    double delta;
    // Maximum number of epochs; 0 is 200.
    uint32_t max_epochs;
    // Reserved: 0.
    uint32_t reserved;
};

// A point of a utility table. Never grows.
struct trainmaster_worth {
    // From this time after the arrival on, in milliseconds ...
    int64_t elapsed_ms;
    // ... an end has this utility.
    double worth;
};

// Utility of a job by its completion time (engine `oasis`).
struct trainmaster_utility {
    // sizeof(struct trainmaster_utility).
    uint32_t size;
    // One of TRAINMASTER_UTILITY_KIND_*.
    uint32_t kind;
    // Maximum utility, from 0 to 10^9.
    double value;
    // Steepness of a sigmoid, per hour, from 0 to 10^6.
    double decay;
    // In milliseconds.
    int64_t target_ms;
    // The first point of a table, by time. Other kinds have none.
    const struct trainmaster_worth *points;
    // Number of elements.
    uint64_t points_count;
    // Bytes from one element to the next.
    uint64_t points_stride;
};

// Training data, for engines that schedule chunks (`oasis`, `edge`).
struct trainmaster_dataset {
    // sizeof(struct trainmaster_dataset).
    uint32_t size;
    // Number of data chunks, at least 1.
    uint32_t chunks;
    // Mini-batches per chunk, at least 1.
    uint32_t batches_per_chunk;
    // Number of passes over each chunk, at least 1.
    uint32_t epochs;
    // Time of a mini-batch on one worker without communication, in milliseconds. 0: from the fitted speed.
    int64_t batch_time_ms;
    // The location from which chunks are uploaded. A server's label `upload.` with this name has the duration.
    struct trainmaster_string upload;
    // Size of a chunk on the disk of the server that trains it, in MiB. 0 if unknown.
    int64_t chunk_size;
};

// A speed in a shape. Never grows.
struct trainmaster_speed {
    // Parameter servers; 0 for all-reduce.
    uint32_t servers;
    // Workers, at least 1.
    uint32_t workers;
    // Steps per second.
    double speed;
};

// An array of speeds.
struct trainmaster_speeds {
    // The first element.
    const struct trainmaster_speed *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// One partition of a model.
struct trainmaster_partition {
    // Number of parameters. 0 in all partitions: they have equal sizes.
    uint64_t parameters;
    // The first of the partitions whose output it needs, by index in the array. They are earlier ones.
    const uint32_t *after;
    // Number of elements.
    uint64_t after_count;
};

// An array of partitions.
struct trainmaster_partitions {
    // The first element.
    const struct trainmaster_partition *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// A training job. Set the known fields and leave the rest 0. For each field, 0, an empty text and NULL mean what its
// comment says, or that it is unknown.
struct trainmaster_job {
    // sizeof(struct trainmaster_job).
    uint32_t size;
    // Engines that use priorities prefer higher ones.
    int32_t priority;
    // One of TRAINMASTER_RESIZE_*.
    uint32_t resize;
    // One of TRAINMASTER_TRAINING_MODE_*.
    uint32_t mode;
    // Unique among active jobs: 1 to 128 letters, digits, '.', '_' and '-', not starting with '.' and not a number.
    struct trainmaster_string name;
    // The kind of network. Jobs of one model share fitted speeds. Empty: the name.
    struct trainmaster_string model;
    // Owner of the job; empty is "default".
    struct trainmaster_string tenant;
    // Name of its queue; empty is "default".
    struct trainmaster_string queue;
    // Examples per step: of the whole job (sync, all-reduce) or of one worker (async); 0 is 1.
    uint64_t batch;
    // Examples per epoch. 0 if only the program knows.
    uint64_t examples;
    // Its workers. Not NULL.
    const struct trainmaster_role *worker;
    // Its parameter servers. NULL exactly for all-reduce.
    const struct trainmaster_role *server;
    // NULL: 3 consecutive epochs with gains below 0.01, at most 200.
    const struct trainmaster_convergence *convergence;
    // NULL: unknown.
    const struct trainmaster_utility *utility;
    // NULL: unknown.
    const struct trainmaster_dataset *dataset;
    // Size of the parameters in MiB.
    int64_t model_size_mib;
    // Deadline in milliseconds after its arrival.
    int64_t deadline_ms;
    // Maximum run time in milliseconds, after which it is stopped. 0: unlimited.
    int64_t time_limit_ms;
    // First estimate of a restart's cost, in milliseconds. It is measured while the job runs.
    int64_t restart_cost_ms;
    // Requested accuracy, up to 1.
    double accuracy;
    // From 1 (low) to 10.
    uint32_t urgency;
    // Reserved: 0.
    uint32_t reserved;
    // Labels that a server must have. `topology.require` and `topology.prefer` say instead how close to each other the
    // job's slots must be: `server`, `rack`, `block` or `zone`. `worker.sizes` says with how many workers the job can
    // run: `multiples of 4`, `powers of 2` or a list such as `1,2,4`. `parallel.tp`, `parallel.pp` and `parallel.ep`
    // say how its model is cut.
    struct trainmaster_labels labels;
    // Speeds that were measured before submission.
    struct trainmaster_speeds profile;
    // The cluster that the job came from, and its name there; empty: unknown.
    struct trainmaster_string external_cluster;
    // See `external_cluster`.
    struct trainmaster_string external_name;
    // 32 bytes: the BLAKE3 hash of the token with which the job reports. NULL: none.
    const uint8_t *token_hash;
    // Not 0: no server may have both workers and parameter servers of the job. 0 for all-reduce.
    uint32_t separate_roles;
    // One of TRAINMASTER_STOP_*.
    uint32_t stop;
    // Partitions of its model, each after the ones that it depends on. Empty if every worker has the whole model.
    // Worker i trains partition i % K of replica i / K; resize is then TRAINMASTER_RESIZE_FIXED.
    struct trainmaster_partitions partitions;
    // The same as `stop` while the cluster is overloaded: one of TRAINMASTER_STOP_*; 0: as `stop`.
    uint32_t stop_under_load;
    // Reserved: 0.
    uint32_t reserved_too;
};

// A worker's step time. Never grows.
struct trainmaster_slot_time {
    // Index of the worker.
    uint32_t worker;
    // Reserved: 0.
    uint32_t reserved;
    // Mean time between its gradients, in milliseconds.
    double ms;
};

// Progress of a training program since its last report.
struct trainmaster_report {
    // sizeof(struct trainmaster_report).
    uint32_t size;
    // Sum of TRAINMASTER_REPORT_HAS_*.
    uint32_t has;
    // Role of the reporting slot: one of TRAINMASTER_SLOT_ROLE_* ...
    uint32_t role;
    // ... and its index.
    uint32_t index;
    // Increases with each report of a slot in one incarnation.
    uint64_t seq;
    // Steps since the job's start, over all incarnations.
    uint64_t step;
    // Steps per epoch in this shape. 0: unknown.
    uint64_t steps_per_epoch;
    // Completed epochs.
    uint32_t epoch;
    // Number of steps in `duration_ms`.
    uint32_t steps;
    // Their duration in a constant shape. 0: not measured.
    int64_t duration_ms;
    // Number of workers.
    uint32_t workers;
    // Number of parameter servers.
    uint32_t servers;
    // Mean training loss.
    double loss;
    // Validation accuracy, from 0 to 1.
    double accuracy;
    // Time from the start to the first step, once per incarnation.
    int64_t restart_ms;
    // The first of the workers' step times, for the detection of stragglers.
    const struct trainmaster_slot_time *slot_times;
    // Number of elements.
    uint64_t slot_times_count;
    // Bytes from one element to the next.
    uint64_t slot_times_stride;
    // The first of the completed data chunks (indices in the dataset): at least those since the last report.
    const uint32_t *chunks;
    // Number of elements.
    uint64_t chunks_count;
    // Bytes from one element to the next.
    uint64_t chunks_stride;
    // Examples per step of the whole job, of a job with a range of batches.
    uint64_t batch;
    // Squared norm of its true gradient ...
    double grad_sqr;
    // ... and the variance of one example's gradient, summed over the parameters.
    double grad_var;
};

// A share of a device. Never grows.
struct trainmaster_device {
    // Index in the server's `devices`.
    uint32_t device;
    // Thousandths of it; 1000 is the whole device.
    uint32_t milli;
};

// An array of shares of devices.
struct trainmaster_devices {
    // The first element.
    const struct trainmaster_device *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// One worker or parameter server on one server.
struct trainmaster_slot {
    // sizeof(struct trainmaster_slot).
    uint32_t size;
    // One of TRAINMASTER_SLOT_ROLE_*.
    uint32_t role;
    // Unique among the job's slots of a role. Kept while the slot doesn't change.
    uint32_t index;
    // 1: all its work waits. It keeps its memory and disk, and other jobs may use its devices. Managers report idle
    // slots that they observe.
    uint32_t idle;
    // Name of the server.
    struct trainmaster_string server;
    // Its devices. Empty if the manager picks them.
    struct trainmaster_devices devices;
};

// An array of slots. In results, workers come first, each role by index.
struct trainmaster_slots {
    // The first element.
    const struct trainmaster_slot *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// Measured use of one slot. Never grows.
struct trainmaster_slot_use {
    // Number of the job.
    uint64_t job;
    // One of TRAINMASTER_SLOT_ROLE_*.
    uint32_t role;
    // Index of the slot.
    uint32_t index;
    // Amounts without devices.
    struct trainmaster_amounts amounts;
    // Its part of the devices' use.
    struct trainmaster_devices devices;
};

// An array of measured uses.
struct trainmaster_slot_uses {
    // The first element.
    const struct trainmaster_slot_use *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// An event. Fields that its kind doesn't read may have any value; zero is recommended.
struct trainmaster_event {
    // sizeof(struct trainmaster_event).
    uint32_t size;
    // One of TRAINMASTER_EVENT_KIND_*, which lists the fields that are read.
    uint32_t kind;
    // Time in milliseconds since an origin that you chose once, from 0 to 10^15. Not before an earlier event or call.
    int64_t at;
    // Number of a job.
    uint64_t job;
    // Number of a term or decision.
    uint64_t number;
    // Incarnation of a job.
    uint32_t incarnation;
    // A choice.
    uint32_t value;
    // Wait before another attempt of a refused change, in milliseconds. 0: a wait that doubles each time.
    int64_t retry_ms;
    // Name of a server.
    struct trainmaster_string name;
    // Name of a cluster manager. Servers belong to the manager that reports them.
    struct trainmaster_string manager;
    // A message, or TOML.
    struct trainmaster_string text;
    // A server.
    const struct trainmaster_server *server;
    // A job.
    const struct trainmaster_job *submitted;
    // A report.
    const struct trainmaster_report *report;
    // Slots.
    struct trainmaster_slots slots;
    // Amounts.
    struct trainmaster_amounts amounts;
    // Shares of devices.
    struct trainmaster_devices devices;
    // Use by slots.
    struct trainmaster_slot_uses uses;
};

// A reason. Its kind determines the other fields. Unused fields are 0 or empty.
struct trainmaster_reason {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // One of TRAINMASTER_REASON_KIND_*.
    uint32_t kind;
    // Text with the numbers.
    struct trainmaster_string text;
    // Name of a resource. Amounts are in its units (see struct trainmaster_amount).
    struct trainmaster_string resource;
    // Name of a server.
    struct trainmaster_string server;
    // The needed or missing amount.
    int64_t needed;
    // The available amount.
    int64_t available;
    // The total limit.
    int64_t limit;
    // Number of another job.
    uint64_t job;
    // Time in milliseconds, as in events, or TRAINMASTER_NEVER.
    int64_t until;
    // In millionths of a unit of utility.
    int64_t worth;
    // In millionths of a unit of utility.
    int64_t cost;
    // In millionths of a unit of utility.
    int64_t threshold;
    // From 1.
    uint32_t position;
    // Reserved: 0.
    uint32_t reserved;
};

// A data chunk and its worker. Never grows.
struct trainmaster_work {
    // Index in the dataset.
    uint32_t chunk;
    // One of TRAINMASTER_WORK_STATE_*.
    uint32_t state;
    // For TRAINMASTER_WORK_STATE_QUEUED.
    uint32_t rank;
    // Index of its worker's slot. UINT32_MAX while it waits for one.
    uint32_t worker;
};

// An array of work, by slot. Work without a slot comes first.
struct trainmaster_works {
    // The first element.
    const struct trainmaster_work *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// The verdict for one job.
struct trainmaster_verdict {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // One of TRAINMASTER_VERDICT_KIND_*.
    uint32_t kind;
    // Number of the job.
    uint64_t job;
    // Name of the job. Empty after its end.
    struct trainmaster_string name;
    // Number of the incarnation, which increases with each restart from a checkpoint. 0 in decisions and previews.
    uint32_t incarnation;
    // Number of changes in place within an incarnation, in which workers are added or removed. 0 in decisions and
    // previews.
    uint32_t revision;
    // Number of workers, for TRAINMASTER_VERDICT_KIND_RUN and _RELEASE.
    uint32_t workers;
    // Number of parameter servers, for the same.
    uint32_t servers;
    // Reason why it doesn't run. NULL if it runs or is released.
    const struct trainmaster_reason *reason;
    // For TRAINMASTER_VERDICT_KIND_RUN.
    struct trainmaster_slots slots;
    // Work of its slots, if the engine schedules data chunks one by one; otherwise empty.
    struct trainmaster_works work;
    // The batch that a job with a range should train with: examples per step of the whole job. 0: its batch is fixed,
    // or this isn't an issue to run.
    uint64_t batch;
    // Examples that one replica of the model computes at once.
    uint64_t batch_local;
    // Passes of a replica in a step.
    uint32_t batch_passes;
    // Reserved: 0.
    uint32_t reserved;
};

// An array of verdicts by job. Each job occurs once.
struct trainmaster_verdicts {
    // The first element.
    const struct trainmaster_verdict *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// Verdicts for some jobs: issues to a manager, or an engine's proposal. Yours; free it with trainmaster_plan_free().
// It doesn't change, and it outlives its scheduler.
struct trainmaster_plan {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // The term and ...
    uint64_t term;
    // ... the decision of the plan: the `number` for TRAINMASTER_EVENT_KIND_ENACTED.
    uint64_t decision;
    // Time of a preview's next decision. TRAINMASTER_NEVER: after the next event.
    int64_t wake_at;
    // By job.
    struct trainmaster_verdicts verdicts;
};

// A committed change of the plan, which is the desired state. The plan of trainmaster_scheduler_take_issues() has the
// issues for the manager, because room must be released before others can use it. Yours; free it with
// trainmaster_decision_free(). It doesn't change, and it outlives its scheduler.
struct trainmaster_decision {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // One of TRAINMASTER_SOURCE_*.
    uint32_t source;
    // The term of the host that made it.
    uint64_t term;
    // Its number, which increases.
    uint64_t number;
    // The decision whose plan it changes.
    uint64_t base;
    // Time of its commit.
    int64_t at;
    // Time of the engine's next decision without an event, or TRAINMASTER_NEVER.
    int64_t wake_at;
    // The changed verdicts.
    struct trainmaster_verdicts verdicts;
    // The first of the numbers of jobs for which the engine's proposal no longer fitted.
    const uint64_t *dropped;
    // Number of elements.
    uint64_t dropped_count;
    // Reason of the engine's failure. Empty without one.
    struct trainmaster_string error;
};

// Status of a scheduler.
struct trainmaster_status {
    // sizeof(struct trainmaster_status); set it before the call.
    uint32_t size;
    // Sum of TRAINMASTER_STATUS_FLAG_*.
    uint32_t flags;
    // Time of the last event or call, in milliseconds. The minimum of its type before the first.
    int64_t now;
    // Time of the next decision, which may have passed. TRAINMASTER_NEVER without an event.
    int64_t due;
    // Time of the last commit. TRAINMASTER_NEVER if there was none since the engine was chosen.
    int64_t decided_at;
    // Term of the host in charge.
    uint64_t term;
    // Number of the last decision.
    uint64_t decision;
    // Number of active jobs.
    uint64_t jobs;
    // Number of present servers.
    uint64_t servers;
    // Number of records that wait for trainmaster_scheduler_drain_journal().
    uint64_t records;
    // One of TRAINMASTER_MODE_*.
    uint32_t mode;
    // Reserved: 0.
    uint32_t reserved;
    // The engine in charge. The text belongs to the library, while it is loaded.
    struct trainmaster_string engine;
};

// Status of an active job.
struct trainmaster_job_status {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Phase that the manager observed: one of TRAINMASTER_PHASE_*.
    uint32_t phase;
    // Number of the job.
    uint64_t job;
    // Name of the job.
    struct trainmaster_string name;
    // Time of its submission.
    int64_t arrival;
    // Time of its first start, or TRAINMASTER_NEVER.
    int64_t started;
    // Number of planned workers.
    uint32_t planned_workers;
    // Number of planned parameter servers.
    uint32_t planned_servers;
    // Number of issued workers.
    uint32_t issued_workers;
    // Number of issued parameter servers.
    uint32_t issued_servers;
    // Number of observed workers.
    uint32_t observed_workers;
    // Number of observed parameter servers.
    uint32_t observed_servers;
    // The desired incarnation; 0 before the first.
    uint32_t incarnation;
    // Number of changes in place within it.
    uint32_t revision;
    // Reason why it doesn't run, or has less than planned. NULL without one.
    const struct trainmaster_reason *reason;
    // Number of completed steps.
    uint64_t step;
    // Steps per epoch.
    uint64_t steps_per_epoch;
    // Number of completed epochs.
    uint32_t epoch;
    // 1: a user holds it.
    uint32_t held;
    // Last reported loss, or NaN.
    double loss;
    // Last reported accuracy, or NaN.
    double accuracy;
    // Steps per second in the last report, or NaN.
    double speed;
    // Cost of a restart in milliseconds.
    int64_t restart_cost_ms;
    // Number of changes of its shape while it ran.
    uint32_t rescales;
    // Number of consecutive refusals.
    uint32_t refusals;
    // Number of invalid reports that were ignored.
    uint64_t ignored_reports;
};

// Active jobs in order of submission. Yours; free it with trainmaster_jobs_free(). It doesn't change, and it outlives
// its scheduler.
struct trainmaster_jobs {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // The first element.
    const struct trainmaster_job_status *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// Use of one resource of a server, in its units (see struct trainmaster_amount). Never grows.
struct trainmaster_use {
    // The resource.
    struct trainmaster_string resource;
    // Capacity of the server, including devices.
    int64_t capacity;
    // Foreign use.
    int64_t foreign;
    // Planned amount over all jobs.
    int64_t planned;
    // Charged amount over all jobs: the larger of issued and observed.
    int64_t charged;
};

// A present server.
struct trainmaster_server_status {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // 1: it takes no new slots.
    uint32_t draining;
    // Name of the server.
    struct trainmaster_string name;
    // The first of its resources.
    const struct trainmaster_use *uses;
    // Number of elements.
    uint64_t uses_count;
    // Bytes from one element to the next.
    uint64_t uses_stride;
};

// Servers in the order of their first mention. Yours; free it with trainmaster_servers_free(). It doesn't change, and
// it outlives its scheduler.
struct trainmaster_servers {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // The first element.
    const struct trainmaster_server_status *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// One finding.
struct trainmaster_finding {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // One of TRAINMASTER_TOPIC_*.
    uint32_t topic;
    // One of TRAINMASTER_REASON_KIND_* if the topic is TRAINMASTER_TOPIC_REASON.
    uint32_t reason;
    // 1: it prevents the job from running, or from getting its planned slots.
    uint32_t blocks;
    // Text with numbers.
    struct trainmaster_string text;
};

// Findings about a job, the most important first. Yours; free it with trainmaster_explanation_free(). It doesn't
// change, and it outlives its scheduler.
struct trainmaster_explanation {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // Number of the job.
    uint64_t job;
    // Name of the job.
    struct trainmaster_string name;
    // The first finding.
    const struct trainmaster_finding *findings;
    // Number of elements.
    uint64_t findings_count;
    // Bytes from one element to the next.
    uint64_t findings_stride;
};

// Takes a record: the pointer that was given with the function, `length` bytes to append to the journal unchanged, and
// 1 if the record is a snapshot. Records before a snapshot are not needed to restore. Returns 0 when the record is
// stored. After another result, this record and all later ones are passed again the next time. It is called by the
// draining thread, within that call: it must not use the same scheduler (that fails with TRAINMASTER_ERROR_BUSY),
// throw, or jump out.
typedef uint32_t (*trainmaster_journal_writer)(void *user,
                                               const uint8_t *record,
                                               uint64_t length,
                                               uint32_t is_snapshot);

// Takes a line: the pointer that was given with the function, one of TRAINMASTER_LOG_LEVEL_*, and a text that ends
// with a zero byte and is valid until the function returns. It is called by the thread that uses the scheduler, within
// that call: it must not use the same scheduler (that fails with TRAINMASTER_ERROR_BUSY), throw, or jump out.
typedef void (*trainmaster_log_writer)(void *user, uint32_t level, const char *text);

// A parameter of an engine: a key of the settings' table `parameters`.
struct trainmaster_parameter {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // Its name in the settings.
    struct trainmaster_string name;
    // Its default, as in the settings.
    struct trainmaster_string standard;
    // Its effect, with its unit.
    struct trainmaster_string meaning;
};

// An engine.
struct trainmaster_engine {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // Its name in the settings.
    struct trainmaster_string name;
    // Summary in one line.
    struct trainmaster_string summary;
    // Its source.
    struct trainmaster_string paper;
    // The first of its parameters.
    const struct trainmaster_parameter *parameters;
    // Number of elements.
    uint64_t parameters_count;
    // Bytes from one element to the next.
    uint64_t parameters_stride;
};

// All engines. Yours; free it with trainmaster_engines_free().
struct trainmaster_engines {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // The first element.
    const struct trainmaster_engine *data;
    // Number of elements.
    uint64_t count;
    // Bytes from one element to the next.
    uint64_t stride;
};

// Predictions for a job or a curve.
struct trainmaster_prediction {
    // sizeof(struct trainmaster_prediction); set it before the call.
    uint32_t size;
    // Sum of TRAINMASTER_KNOWN_*.
    uint32_t known;
    // Steps per second.
    double speed;
    // Its standard error, as a fraction of it: 0.1 is 10 %.
    double speed_error;
    // The epoch at whose end the job converges.
    uint64_t epochs;
    // Convergence before this epoch is unlikely (about one in ten).
    uint64_t low;
    // Convergence after this epoch is unlikely.
    uint64_t high;
    // Remaining epochs until then.
    uint64_t remaining_epochs;
    // Remaining time in milliseconds.
    int64_t remaining_ms;
};

// The mean loss of an epoch. Never grows.
struct trainmaster_loss {
    // The epoch, from 1.
    uint64_t epoch;
    // Its mean loss.
    double loss;
};

// A part of a block on one parameter server. Never grows.
struct trainmaster_piece {
    // Index of the block in the array.
    uint64_t block;
    // Start of the part within the block.
    uint64_t offset;
    // Length of the part.
    uint64_t length;
    // The parameter server, from 0.
    uint32_t server;
    // Reserved: 0.
    uint32_t reserved;
};

// Load of a parameter server. Never grows.
struct trainmaster_load {
    // Amount in the blocks' unit.
    uint64_t amount;
    // Number of pieces: requests per worker and step.
    uint64_t requests;
};

// The servers of all parameters. Yours; free it with trainmaster_assignment_free().
struct trainmaster_assignment {
    // Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    uint32_t size;
    // Reserved: 0.
    uint32_t reserved;
    // Largest minus smallest amount of a server.
    uint64_t amount_spread;
    // Largest minus smallest number of requests of a server.
    uint64_t request_spread;
    // Total number of requests.
    uint64_t requests;
    // The first piece, by block, then offset.
    const struct trainmaster_piece *pieces;
    // Number of elements.
    uint64_t pieces_count;
    // Bytes from one element to the next.
    uint64_t pieces_stride;
    // The load of the first server.
    const struct trainmaster_load *loads;
    // Number of elements.
    uint64_t loads_count;
    // Bytes from one element to the next.
    uint64_t loads_stride;
};

// A text that ends with a zero byte. NULL is an empty text.
typedef const char *trainmaster_c_string;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Creates a scheduler for an empty cluster. `*scheduler` is yours; free it with trainmaster_scheduler_free().
//
// `settings` is TOML. Missing keys have their defaults:
//
// ```toml
// engine = "optimus"                 # see trainmaster_engines_list()
// parameters = {}                    # of the engine; see struct trainmaster_engine
// fallback = "fifo"                  # takes over ...
// fallback_after = 3                 # ... after this many consecutive failures
// stability = { min_run = "1m", rescales_per_hour = 12, payback = 2.0 }    # or "off"
// shape = { equal_per_server = false, colocate = true, grow_in_place = true, oversubscribe = 1.0 }
// caps = { urgency = 10 }            # also utility, priority: the most that owners may claim
// queues = {}                        # such as { batch = { gpu = 8, memory = "1TiB" } }: the most they may have
// tenants = {}                       # likewise
// early_stop = false                 # whether jobs that have nothing to gain end, as far as their owners consent
// share_models = false               # whether tenants learn from each other's jobs of one model
// refusal_backoff = "5s"             # first wait after a manager's refusal; doubles
// refusals = 5                       # after this many, others get the room
// seed = 0                           # of engines with random numbers
// ```
//
// Errors: NULL, VALUE, SETTINGS. Threads: any.
uint32_t trainmaster_scheduler_new(struct trainmaster_string settings,
                                   struct trainmaster_scheduler **scheduler,
                                   struct trainmaster_message *message);

// Frees a scheduler. NULL is ignored. No other call may use it. Its tickets stay valid but can't be committed any
// more. They must be freed as well, before or after.
void trainmaster_scheduler_free(struct trainmaster_scheduler *scheduler);

// Applies events in order: `count` of them, `stride` bytes apart (sizeof(struct trainmaster_event)). It stops at the
// first invalid one, which has no effect except that reports and late refusals are counted. `*done`, which may be
// NULL, is the number of applied events before it. To continue after the invalid event, call it again with the rest.
//
// Nothing is decided here. A panic poisons the scheduler.
//
// Errors: NULL, SIZE, VALUE, BUSY, POISONED, PANIC, SETTINGS, and those from 30 to 41. Threads: one at a time for a
// scheduler.
uint32_t trainmaster_scheduler_apply(struct trainmaster_scheduler *scheduler,
                                     const struct trainmaster_event *events,
                                     uint64_t count,
                                     uint64_t stride,
                                     uint64_t *done,
                                     struct trainmaster_message *message);

// Whether a job would be accepted now. Changes nothing.
//
// Errors: as for its event. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_would_accept(const struct trainmaster_scheduler *scheduler,
                                            const struct trainmaster_job *job,
                                            struct trainmaster_message *message);

// The number of the active job with this name.
//
// Errors: NULL, VALUE, BUSY, POISONED, UNKNOWN_JOB. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_find_job(const struct trainmaster_scheduler *scheduler,
                                        struct trainmaster_string name,
                                        uint64_t *job,
                                        struct trainmaster_message *message);

// The issues for the manager since the last call: jobs whose issued part changed, and once the end of a job that was
// issued before. For a poisoned scheduler: in each call all jobs, released.
//
// Enact `*plan` and report the result: TRAINMASTER_EVENT_KIND_ENACTED for each issue, _OBSERVED for the slots.
//
// Errors: NULL, BUSY, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_take_issues(struct trainmaster_scheduler *scheduler,
                                           const struct trainmaster_plan **plan,
                                           struct trainmaster_message *message);

// The issues of all jobs, for a manager that starts or returns. A job that is not in it has ended. For a poisoned
// scheduler: all jobs, released. Changes nothing.
//
// Errors: NULL, BUSY, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_all_issues(const struct trainmaster_scheduler *scheduler,
                                          const struct trainmaster_plan **plan,
                                          struct trainmaster_message *message);

// The proposal of an engine at this moment. `engine` empty: the engine in charge; otherwise an engine by name with its
// default parameters. `steps` limits its work as in trainmaster_ticket_run(). Changes nothing, but takes as long as a
// decision.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ENGINE. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_preview(const struct trainmaster_scheduler *scheduler,
                                       struct trainmaster_string engine,
                                       uint64_t steps,
                                       const struct trainmaster_plan **plan,
                                       struct trainmaster_message *message);

// Begins a decision. `*ticket` is a consistent copy for the engine, created in microseconds. An open ticket is
// superseded. `*ticket` is yours; run it, commit or abandon it, and free it. A panic poisons the scheduler.
//
// Call it at the time `due` of struct trainmaster_status. `at`: the current time, as in events. If it is before the
// last event, the time of that event counts.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_prepare(struct trainmaster_scheduler *scheduler,
                                       int64_t at,
                                       struct trainmaster_ticket **ticket,
                                       struct trainmaster_message *message);

// Begins fits of loss and speed for jobs with reports since the last fits, at most 250. `*ticket` is NULL if there are
// none. Run and commit such tickets before a decision, or during it, until it is NULL: decisions don't wait for fits.
// A panic poisons the scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_prepare_fits(struct trainmaster_scheduler *scheduler,
                                            int64_t at,
                                            struct trainmaster_ticket **ticket,
                                            struct trainmaster_message *message);

// Runs the engine or the fits. Once per ticket, on any thread; its scheduler may be used meanwhile. Fits take about a
// millisecond per job. `steps` limits an engine's work (a step is about one examined candidate, tens of nanoseconds),
// 0: no limit. The journal contains the limit, so that a replay stops at the same point.
//
// A failure of the engine (a panic, too many steps, or a proposal that breaks a rule) is no error here. The commit
// reports it, and the last plan stays in force. After several failures in a row the fallback engine decides. If that
// fails as often, scheduling is paused and all jobs are released.
//
// Errors: NULL, BUSY, ORDER, PANIC. Threads: one at a time for a ticket, any.
uint32_t trainmaster_ticket_run(struct trainmaster_ticket *ticket,
                                uint64_t steps,
                                struct trainmaster_message *message);

// Applies the proposal of the ticket's engine to the plan, as far as it still fits. `*decision` is yours; free it with
// trainmaster_decision_free(); `decision` may be NULL. The ticket can't be used again, but must be freed. A panic
// poisons the scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ORDER, SUPERSEDED. Threads: one at a time for a scheduler and for a
// ticket.
uint32_t trainmaster_scheduler_commit(struct trainmaster_scheduler *scheduler,
                                      int64_t at,
                                      struct trainmaster_ticket *ticket,
                                      const struct trainmaster_decision **decision,
                                      struct trainmaster_message *message);

// Stores the results of a ticket from trainmaster_scheduler_prepare_fits(). The ticket can't be used again, but must
// be freed. A panic poisons the scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ORDER, SUPERSEDED. Threads: one at a time for a scheduler and for a
// ticket.
uint32_t trainmaster_scheduler_commit_fits(struct trainmaster_scheduler *scheduler,
                                           int64_t at,
                                           struct trainmaster_ticket *ticket,
                                           struct trainmaster_message *message);

// Abandons a ticket, even while another thread runs it: its commit will fail. `why`: one of TRAINMASTER_WHY_*. Does
// nothing if the ticket is not open any more. The ticket must be freed, after its run has ended. A panic poisons the
// scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, SUPERSEDED. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_abandon(struct trainmaster_scheduler *scheduler,
                                       int64_t at,
                                       const struct trainmaster_ticket *ticket,
                                       uint32_t why,
                                       struct trainmaster_message *message);

// Fits, prepares, runs and commits in one call, for callers that can wait. `*decision` is yours; free it with
// trainmaster_decision_free(); `decision` may be NULL. A panic poisons the scheduler, except for a panic of the
// engine; see trainmaster_ticket_run().
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_decide(struct trainmaster_scheduler *scheduler,
                                      int64_t at,
                                      const struct trainmaster_decision **decision,
                                      struct trainmaster_message *message);

// Frees a ticket. NULL is ignored. No thread may be running it any more.
void trainmaster_ticket_free(struct trainmaster_ticket *ticket);

// Frees a plan. NULL is ignored. Any thread.
void trainmaster_plan_free(const struct trainmaster_plan *plan);

// Frees a decision. NULL is ignored. Any thread.
void trainmaster_decision_free(const struct trainmaster_decision *decision);

// Version of the library, such as "0.1.0". The text belongs to the library, while it is loaded. Any thread.
const char *trainmaster_version(void);

// The TRAINMASTER_ABI_VERSION of the library. If it is less than that of the header you compiled with, the library
// lacks a part of the header. Any thread.
uint32_t trainmaster_abi_version(void);

// Returns the status of a scheduler. For a poisoned scheduler, only `flags` and `records` are valid.
//
// Errors: NULL, SIZE, BUSY, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_status(const struct trainmaster_scheduler *scheduler,
                                      struct trainmaster_status *status,
                                      struct trainmaster_message *message);

// The active job with this number, or all active jobs for 0.
//
// Errors: NULL, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_jobs(const struct trainmaster_scheduler *scheduler,
                                    uint64_t job,
                                    const struct trainmaster_jobs **jobs,
                                    struct trainmaster_message *message);

// Frees a list of jobs. NULL is ignored. Any thread.
void trainmaster_jobs_free(const struct trainmaster_jobs *jobs);

// The server with this name, or all servers for an empty one.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, UNKNOWN_SERVER. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_servers(const struct trainmaster_scheduler *scheduler,
                                       struct trainmaster_string name,
                                       const struct trainmaster_servers **servers,
                                       struct trainmaster_message *message);

// Frees a list of servers. NULL is ignored. Any thread.
void trainmaster_servers_free(const struct trainmaster_servers *servers);

// Explains an active job at a time that is not before the last event.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_explain(const struct trainmaster_scheduler *scheduler,
                                       int64_t at,
                                       uint64_t job,
                                       const struct trainmaster_explanation **explanation,
                                       struct trainmaster_message *message);

// Frees an explanation. NULL is ignored. Any thread.
void trainmaster_explanation_free(const struct trainmaster_explanation *explanation);

// Starts a journal. Its first record is a snapshot, and each change adds a few hundred bytes. Records stay in memory
// until trainmaster_scheduler_drain_journal() takes them. An open ticket is superseded. Call it once, after
// trainmaster_scheduler_new() or trainmaster_scheduler_restore(). Another call starts a new journal.
//
// Errors: NULL, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_start_journal(struct trainmaster_scheduler *scheduler,
                                             struct trainmaster_message *message);

// Passes the records since the last call to `writer`, in order. Before you acknowledge something to others (a job's
// number, a report), it should be in the journal, on disk. For a poisoned scheduler: the records from before the
// panic.
//
// Errors: NULL, BUSY, WRITE. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_drain_journal(struct trainmaster_scheduler *scheduler,
                                             trainmaster_journal_writer writer,
                                             void *user,
                                             struct trainmaster_message *message);

// Adds a snapshot to the journal, from which it can be restored. Its size grows with the cluster and its jobs. While a
// ticket is open, it returns ORDER.
//
// Errors: NULL, BUSY, POISONED, PANIC, ORDER. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_snapshot(struct trainmaster_scheduler *scheduler,
                                        struct trainmaster_message *message);

// Restores the scheduler from a journal: its records in order, concatenated as they were drained, from the last
// snapshot on (earlier ones may be omitted). The settings are the journal's. Earlier tickets are void, and the
// scheduler is no longer poisoned. The log stays set. If a journal was active, it starts again with a snapshot.
//
// Every decision is repeated and must be the same. A truncated record at the journal's end, as after a crash, is
// ignored. `*used`, which may be NULL, is the length without it: truncate the file there before you append. After an
// error it is the start of the bad record (0 if there is none), and the scheduler is unchanged.
//
// Errors: NULL, SIZE, BUSY, PANIC, SETTINGS, NO_SNAPSHOT, UNREADABLE, DIVERGED. Threads: one at a time for a
// scheduler.
uint32_t trainmaster_scheduler_restore(struct trainmaster_scheduler *scheduler,
                                       const uint8_t *records,
                                       uint64_t length,
                                       uint64_t *used,
                                       struct trainmaster_message *message);

// The engine's memory between decisions, as in snapshots, for audits and comparisons of replicas. The journal contains
// it already. Writes its bytes to `buffer` and its length to `*length`. If `capacity` is less, only the length is
// written, and TRAINMASTER_ERROR_BUFFER is returned. `*version` is the version of its layout. `buffer` may be NULL if
// `capacity` is 0.
//
// Errors: NULL, BUSY, POISONED, PANIC, BUFFER. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_memo(const struct trainmaster_scheduler *scheduler,
                                    uint8_t *buffer,
                                    uint64_t capacity,
                                    uint64_t *length,
                                    uint32_t *version,
                                    struct trainmaster_message *message);

// Writes the digest over all decisions so far to `digest`, 32 bytes. Schedulers with equal decisions have equal
// digests.
//
// Errors: NULL, BUSY, POISONED. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_digest(const struct trainmaster_scheduler *scheduler,
                                      uint8_t *digest,
                                      struct trainmaster_message *message);

// Sets the receiver of the log. NULL: none, the default. `user` is passed to it unchanged and must live as long. Works
// on a poisoned scheduler.
//
// Errors: NULL, BUSY. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_set_log(struct trainmaster_scheduler *scheduler,
                                       trainmaster_log_writer writer,
                                       void *user,
                                       struct trainmaster_message *message);

// Lists the engines. Any thread.
//
// Errors: NULL.
uint32_t trainmaster_engines_list(const struct trainmaster_engines **engines,
                                  struct trainmaster_message *message);

// Frees a list of engines. NULL is nothing. Any thread.
void trainmaster_engines_free(const struct trainmaster_engines *engines);

// Predictions of a job's fits for a number of workers and parameter servers, from the last
// trainmaster_scheduler_commit_fits() or _decide(). Unknown values are not in `known`. `servers` of all-reduce: 1 for
// workers on one server, 2 for workers on several, 0 for as the job is now.
//
// Errors: NULL, SIZE, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_predict(const struct trainmaster_scheduler *scheduler,
                                       uint64_t job,
                                       uint32_t workers,
                                       uint32_t servers,
                                       struct trainmaster_prediction *prediction,
                                       struct trainmaster_message *message);

// Fits a loss curve to the losses of epochs (in order, at least three, `stride` bytes apart), and predicts when it
// meets the rule. `rule` NULL: the default rule. `paper` 1: as in the Optimus paper, section 3.1; 0: with this
// project's additions. Needs no scheduler. Any thread.
//
// Errors: NULL, SIZE, VALUE, PANIC, TOO_FEW_POINTS, TOO_LARGE.
uint32_t trainmaster_fit_loss(const struct trainmaster_loss *losses,
                              uint64_t count,
                              uint64_t stride,
                              const struct trainmaster_convergence *rule,
                              uint32_t paper,
                              struct trainmaster_prediction *prediction,
                              struct trainmaster_message *message);

// Fits a speed function to measured speeds, `stride` bytes apart, and sets `speed` of each of `shapes`. `mode`: one of
// TRAINMASTER_TRAINING_MODE_*; `batch`: examples per step of the whole job. `paper` 1: as in the Optimus paper,
// section 3.2; 0: with this project's additions. With few or no samples the result is a conservative guess. Needs no
// scheduler. Any thread.
//
// Errors: NULL, SIZE, VALUE, PANIC.
uint32_t trainmaster_fit_speed(uint32_t mode,
                               double batch,
                               const struct trainmaster_speed *samples,
                               uint64_t samples_count,
                               uint64_t samples_stride,
                               uint32_t paper,
                               struct trainmaster_speed *shapes,
                               uint64_t shapes_count,
                               uint64_t shapes_stride,
                               struct trainmaster_message *message);

// Distributes a model's blocks of parameters over 1 to 10000 parameter servers, balanced in size and requests
// (Optimus, section 5.3). `blocks`: their sizes in any unit, `count` of them, `stride` bytes apart. Needs no
// scheduler. Any thread.
//
// Errors: NULL, SIZE, VALUE, PANIC, TOO_LARGE.
uint32_t trainmaster_paa_assign(const uint64_t *blocks,
                                uint64_t count,
                                uint64_t stride,
                                uint32_t servers,
                                const struct trainmaster_assignment **assignment,
                                struct trainmaster_message *message);

// Frees an assignment. NULL is ignored. Any thread.
void trainmaster_assignment_free(const struct trainmaster_assignment *assignment);

// The name of an error number, such as "TRAINMASTER_ERROR_TIME", or "unknown error". The text belongs to the library
// and exists while it is loaded. Any thread.
const char *trainmaster_error_name(uint32_t error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TRAINMASTER_H */


#ifndef TRAINMASTER_TEXT
#define TRAINMASTER_TEXT
// The text of a C string; NULL is empty.
static inline struct trainmaster_string trainmaster_text(const char *text) {
    struct trainmaster_string string;
    string.data = text;
    string.length = text ? strlen(text) : 0;
    return string;
}
#endif  /* TRAINMASTER_TEXT */
