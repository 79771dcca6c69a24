// Trainmaster: how many workers and parameter servers every training job of a cluster gets, where they run, when
// that changes, and which jobs run at all.
//
// How it goes: make a scheduler, tell it events (servers, jobs, reports of training programs, what the manager
// sees), ask it to decide when a decision is due, and have the cluster's manager carry out what it is to be told.
//
//     struct trainmaster_scheduler *scheduler;
//     trainmaster_scheduler_new(trainmaster_text("engine = \"optimus\""), &scheduler, NULL);
//     trainmaster_scheduler_apply(scheduler, events, count, sizeof *events, NULL, NULL);
//     trainmaster_scheduler_decide(scheduler, now, NULL, NULL);
//     const struct trainmaster_plan *plan;
//     trainmaster_scheduler_take_issues(scheduler, &plan, NULL);   // ... carry it out
//     trainmaster_plan_free(plan);
//     trainmaster_scheduler_free(scheduler);
//
// ffi/examples/first.c is a whole program. The library does no I/O, has no clock, starts no thread: the same events
// give the same decisions, byte by byte, and the time is what you say it is.
//
// Results. Functions that can fail return a number, TRAINMASTER_OK (0) or one of enum trainmaster_error; "Errors" at
// a function lists those it may return, without "TRAINMASTER_ERROR_". Unless it says otherwise, a function that fails
// has done nothing and written no output but the message. `message` may be NULL everywhere; else it gets the words: what
// is wrong, its value, and what is allowed. A bug in the library (a panic) never leaves it: it comes back as
// TRAINMASTER_ERROR_PANIC. Running out of memory ends the process.
//
// Structs that you fill in: set all of it to zero, `size` to sizeof, then what you know. New fields come at the end, and zero
// means that they aren't used: a program works with a newer library as it is, and with an older one as long as it uses
// nothing that one doesn't know (else: TRAINMASTER_ERROR_SIZE). Structs that say "Never grows" have no size.
//
// Arrays are a pointer, a count, and a stride: the bytes from one element to the next. In arguments that is sizeof of the
// element; in results it may be more than sizeof in your header, so step by it (TRAINMASTER_AT). Choices in structs are
// uint32_t, so that C and C++ agree on their size; the enums name their values.
//
// Time. Durations are in milliseconds, times in milliseconds since an origin that you choose once, from 0 to 10^15. `at` is the
// time now; it never goes back: events before the last one are refused, in other calls the last one's time counts instead.
//
// Ownership. What you pass is read during the call and never kept, but for a log's `user`. What you are handed (the output's
// comment says "yours") you free, each with its own function, once; what it points to goes with it.
//
// Threads. A scheduler and a ticket are used by one thread at a time, whichever; a second one, or a callback that calls back
// in, gets TRAINMASTER_ERROR_BUSY and nothing happens. A ticket runs on any thread while its scheduler is used. Results don't
// change and are read by any thread. There is no other shared state. Handles must not be used in the child of a fork().
//
// To link the archive: -ltrainmaster -lpthread -ldl -lm. A plugin that contains it should hide its symbols:
// -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,-z,nodelete.

#ifndef TRAINMASTER_H
#define TRAINMASTER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// The element of an array in a result: TRAINMASTER_AT(struct trainmaster_slot, slots.data, slots.stride, index).
#define TRAINMASTER_AT(type, data, stride, index) ((const type *)(const void *)((const char *)(data) + (size_t)(index) * (size_t)(stride)))


// The ABI that this header describes. It grows with each addition; what was there stays as it is: functions, numbers, and
// the fields of structs, which are only ever added at the end.
#define TRAINMASTER_ABI_VERSION 1

// A time that never comes.
#define TRAINMASTER_NEVER INT64_MAX

// What a function returns that did what it was asked.
#define TRAINMASTER_OK 0

// How a job ended.
enum trainmaster_end {
    // Converged, or through all its epochs.
    TRAINMASTER_END_COMPLETED = 0,
    // Given up.
    TRAINMASTER_END_FAILED = 1,
    // By a person.
    TRAINMASTER_END_CANCELLED = 2,
    // By the scheduler.
    TRAINMASTER_END_STOPPED = 3,
};

// What became of a change.
enum trainmaster_enacted {
    // It is being carried out.
    TRAINMASTER_ENACTED_ACCEPTED = 0,
    // A part of it is; observations say which.
    TRAINMASTER_ENACTED_PARTIAL = 1,
    // It isn't.
    TRAINMASTER_ENACTED_REFUSED = 2,
};

// What a function returns else: why it did nothing. Numbers are never reused for something else; new ones
// may come. trainmaster_error_name() has their names.
enum trainmaster_error {
    // A pointer is NULL that must not be.
    TRAINMASTER_ERROR_NULL = 1,
    // A struct's size, an array's stride or a length is impossible, or a struct of a newer version has fields set that
    // this library doesn't know.
    TRAINMASTER_ERROR_SIZE = 2,
    // A number is not one of those allowed, a text is not UTF-8, or a pointer is not aligned.
    TRAINMASTER_ERROR_VALUE = 3,
    // The handle is being used, by another thread or by the caller of a callback.
    TRAINMASTER_ERROR_BUSY = 4,
    // The handle is poisoned by an earlier panic: only status, take_issues, all_issues, drain_journal, set_log, restore
    // and free are left.
    TRAINMASTER_ERROR_POISONED = 5,
    // A bug in the library was caught. A scheduler that was being changed is poisoned by it.
    TRAINMASTER_ERROR_PANIC = 6,
    // Out of order: a ticket that is not run yet, or run or committed already, or of fits instead of a decision.
    TRAINMASTER_ERROR_ORDER = 7,
    // A newer ticket was prepared, or this one was abandoned, or its scheduler was restored since, or is another one.
    TRAINMASTER_ERROR_SUPERSEDED = 8,
    // The caller's buffer is too small; the length that is needed was written.
    TRAINMASTER_ERROR_BUFFER = 9,
    // The journal's writer returned something other than 0.
    TRAINMASTER_ERROR_WRITE = 10,
    // The settings are not valid: a key, an engine, a parameter.
    TRAINMASTER_ERROR_SETTINGS = 20,
    // The engine could not decide.
    TRAINMASTER_ERROR_ENGINE = 21,
    // A job's description is not valid.
    TRAINMASTER_ERROR_JOB = 30,
    // An active job has that name.
    TRAINMASTER_ERROR_DUPLICATE_NAME = 31,
    // The job could never run, were it alone.
    TRAINMASTER_ERROR_NEVER_FITS = 32,
    // Too many types of resources.
    TRAINMASTER_ERROR_RESOURCE_TYPES = 33,
    // The engine in charge can never run such a job.
    TRAINMASTER_ERROR_UNSUPPORTED = 34,
    // There is no such active job.
    TRAINMASTER_ERROR_UNKNOWN_JOB = 35,
    // There is no such server.
    TRAINMASTER_ERROR_UNKNOWN_SERVER = 36,
    // A server's description is not valid.
    TRAINMASTER_ERROR_SERVER = 37,
    // The end of a resync that never began.
    TRAINMASTER_ERROR_SYNC = 38,
    // A report is out of order, out of range or of another incarnation. It is counted.
    TRAINMASTER_ERROR_REPORT = 39,
    // A refusal of something that is no longer issued. It is counted.
    TRAINMASTER_ERROR_LATE_REFUSAL = 40,
    // Time went back.
    TRAINMASTER_ERROR_TIME = 41,
    // A policy that can't be read, was spoilt, is for other inputs, or did worse than the heuristic. What the engine followed stands.
    TRAINMASTER_ERROR_POLICY = 42,
    // The journal has no snapshot to start from.
    TRAINMASTER_ERROR_NO_SNAPSHOT = 50,
    // A record of the journal is damaged or of another version.
    TRAINMASTER_ERROR_UNREADABLE = 51,
    // A decision in the journal comes out differently: another version of the engine made it.
    TRAINMASTER_ERROR_DIVERGED = 52,
    // Too little was measured for a fit.
    TRAINMASTER_ERROR_TOO_FEW_POINTS = 60,
    // Numbers whose sum or difference is too large.
    TRAINMASTER_ERROR_TOO_LARGE = 61,
};

// What happened. Behind each kind: the fields of struct trainmaster_event that it reads beside `size`, `kind` and `at`;
// others are ignored.
enum trainmaster_event_kind {
    // Other settings. `text`: TOML, as for trainmaster_scheduler_new().
    TRAINMASTER_EVENT_KIND_CONFIGURED = 1,
    // `value`: one of TRAINMASTER_MODE_*.
    TRAINMASTER_EVENT_KIND_MODE_SET = 2,
    // Another host took over. `number`: its term, which grows; decisions of older ones are void.
    TRAINMASTER_EVENT_KIND_TERM_BEGAN = 3,
    // A server came or changed. `manager`, `server`.
    TRAINMASTER_EVENT_KIND_SERVER_SET = 4,
    // A server is gone, with all that ran there. `name`.
    TRAINMASTER_EVENT_KIND_SERVER_LEFT = 5,
    // All that other work uses of a server. `name`, `amounts`, `devices`.
    TRAINMASTER_EVENT_KIND_FOREIGN_USE = 6,
    // A job was submitted. `submitted`, or where that is NULL `text`: a job file (TOML). Find its number with
    // trainmaster_scheduler_find_job().
    TRAINMASTER_EVENT_KIND_JOB_SUBMITTED = 7,
    // A job is over. `job`, `value`: one of TRAINMASTER_END_*.
    TRAINMASTER_EVENT_KIND_JOB_ENDED = 8,
    // A person holds a job (`value` 1) or lets it go on (0). `job`.
    TRAINMASTER_EVENT_KIND_JOB_HELD = 9,
    // A training program reports. `job`, `incarnation`, `report`.
    TRAINMASTER_EVENT_KIND_REPORTED = 10,
    // All slots of a job that the manager sees. `job`, `incarnation`, `slots` (none: all are released), `value`: one of
    // TRAINMASTER_PHASE_*.
    TRAINMASTER_EVENT_KIND_OBSERVED = 11,
    // What became of what the manager was told. `job`, `number`: the `decision` of the plan that told it,
    // `value`: one of TRAINMASTER_ENACTED_*; if refused also `text`: why, and `retry_ms`.
    TRAINMASTER_EVENT_KIND_ENACTED = 12,
    // A manager begins to tell everything that it has. `manager`. Nothing is due before its end.
    TRAINMASTER_EVENT_KIND_SYNC_BEGIN = 13,
    // It has; what it didn't mention is gone. `manager`, `value` 1: so are jobs of that cluster it didn't mention (else
    // only their slots).
    TRAINMASTER_EVENT_KIND_SYNC_END = 14,
    // What was measured on a server, in place of what was measured before. `name`, `amounts`: all that is in use, without
    // devices; `devices`: how busy they are, the others are idle; `uses`: the part of it that slots use.
    TRAINMASTER_EVENT_KIND_UTILISATION = 15,
    // What an engine learnt elsewhere. `name`: the engine; `text`: a policy file; without one the engine decides by its
    // heuristic again.
    TRAINMASTER_EVENT_KIND_POLICY_SET = 16,
};

// What is known; added up in `known` of struct trainmaster_prediction.
enum trainmaster_known {
    // `speed` and `speed_error`.
    TRAINMASTER_KNOWN_SPEED = 1,
    // `epochs`, `low`, `high` and `remaining_epochs`.
    TRAINMASTER_KNOWN_CONVERGENCE = 2,
    // `remaining_ms`.
    TRAINMASTER_KNOWN_TIME = 4,
    // The loss isn't expected to converge before the job's last allowed epoch: `epochs` is that.
    TRAINMASTER_KNOWN_CAPPED = 8,
};

// How urgent a line of the log is.
enum trainmaster_log_level {
    // Someone has to look: a panic, a scheduler that gave up.
    TRAINMASTER_LOG_LEVEL_ERROR = 0,
    // Something failed and was dealt with: an engine, a torn end of a journal.
    TRAINMASTER_LOG_LEVEL_WARNING = 1,
    // Good to know.
    TRAINMASTER_LOG_LEVEL_INFO = 2,
};

// Who is in charge.
enum trainmaster_mode {
    // The engine decides, and the manager is told.
    TRAINMASTER_MODE_ACTIVE = 0,
    // The engine decides from what is observed; the manager is told that every job is its own.
    TRAINMASTER_MODE_SHADOW = 1,
    // Nothing is decided; every job is the manager's own, as it was given last or requested.
    TRAINMASTER_MODE_PAUSED = 2,
};

// What a job's slots do.
enum trainmaster_phase {
    // There are none.
    TRAINMASTER_PHASE_STOPPED = 0,
    // Not all run yet.
    TRAINMASTER_PHASE_STARTING = 1,
    // All run.
    TRAINMASTER_PHASE_RUNNING = 2,
    // They leave, with a checkpoint.
    TRAINMASTER_PHASE_STOPPING = 3,
};

// Why a job doesn't run, or has less than planned.
enum trainmaster_reason_kind {
    // A finding that is no reason.
    TRAINMASTER_REASON_KIND_NONE = 0,
    // No decision was made about it yet.
    TRAINMASTER_REASON_KIND_NOT_CONSIDERED = 1,
    // No server could hold even one slot of it: `server` has the most `resource`, `available`, of the `needed`.
    TRAINMASTER_REASON_KIND_NEVER_FITS = 2,
    // No room for it now: a slot needs `needed` of `resource`; the most that is free is `available` on `server`.
    TRAINMASTER_REASON_KIND_NO_ROOM = 3,
    // A total is used up, of the cluster, a queue or a tenant: `needed` of `resource`, `available` are left of `limit`.
    TRAINMASTER_REASON_KIND_EXHAUSTED = 4,
    // Others go first: it is number `position` in line, behind `job`.
    TRAINMASTER_REASON_KIND_BEHIND = 5,
    // Planned, but `needed` more of `resource` has to be released on `server` first.
    TRAINMASTER_REASON_KIND_RELEASING = 6,
    // The manager refused it; it is asked again at `until`.
    TRAINMASTER_REASON_KIND_REFUSED = 7,
    // `server` is gone.
    TRAINMASTER_REASON_KIND_SERVER_LOST = 8,
    // `server` lacks `needed` of `resource` since other work came.
    TRAINMASTER_REASON_KIND_EVICTED = 9,
    // It is worth `worth`, and costs others `cost`; the difference has to be above `threshold`.
    TRAINMASTER_REASON_KIND_OUTWEIGHED = 10,
    // A person holds it.
    TRAINMASTER_REASON_KIND_HELD = 11,
    // It ran for as long as it may: `limit` milliseconds.
    TRAINMASTER_REASON_KIND_TIME_LIMIT = 12,
    // A person cancelled it.
    TRAINMASTER_REASON_KIND_CANCELLED = 13,
    // Its training is over.
    TRAINMASTER_REASON_KIND_FINISHED = 14,
    // The engine in charge doesn't take such jobs.
    TRAINMASTER_REASON_KIND_UNSUPPORTED = 15,
    // It goes on at `until`.
    TRAINMASTER_REASON_KIND_SCHEDULED = 16,
    // Its best schedule is worth `worth` and costs `cost`, mostly for `resource`; it is tried again at `until`.
    TRAINMASTER_REASON_KIND_PRICED_OUT = 17,
    // Until `until` there is room for `available` of the `needed` chunks that it has left.
    TRAINMASTER_REASON_KIND_UNFINISHABLE = 18,
    // `server` carries too much, `available` millionths of its `resource`, and there is no room elsewhere.
    TRAINMASTER_REASON_KIND_OVERLOADED = 19,
    // Its accuracy, `available` in millionths, is the `needed` one.
    TRAINMASTER_REASON_KIND_ACCURACY_REACHED = 20,
    // Its accuracy is `available`, in millionths, and would hardly be more in the end: `limit`.
    TRAINMASTER_REASON_KIND_NOTHING_TO_GAIN = 21,
    // Its accuracy would be `limit` in the end, in millionths, and `needed` is asked for.
    TRAINMASTER_REASON_KIND_OUT_OF_REACH = 22,
    // The engine's policy scores waiting, `worth`, above its best place, on `server`: `cost`.
    TRAINMASTER_REASON_KIND_HELD_BACK = 23,
    // A reason of the engine's own: `text` has it.
    TRAINMASTER_REASON_KIND_ENGINE = 24,
};

// Which of a report's optional fields are set; added up in `has`.
enum trainmaster_report_has {
    // `loss`.
    TRAINMASTER_REPORT_HAS_LOSS = 1,
    // `accuracy`.
    TRAINMASTER_REPORT_HAS_ACCURACY = 2,
    // `restart_ms`.
    TRAINMASTER_REPORT_HAS_RESTART = 4,
};

// How a job may be resized while it runs.
enum trainmaster_resize {
    // Workers and parameter servers.
    TRAINMASTER_RESIZE_ANY = 0,
    // Workers only.
    TRAINMASTER_RESIZE_WORKERS = 1,
    // Not at all: it runs as requested.
    TRAINMASTER_RESIZE_FIXED = 2,
};

// When training ends, besides by its convergence rule.
enum trainmaster_stop {
    // By that rule alone.
    TRAINMASTER_STOP_EPOCHS = 0,
    // Once nothing is left to gain, or the accuracy asked for can't be reached.
    TRAINMASTER_STOP_OPTIMAL = 1,
    // Once the accuracy asked for is reached.
    TRAINMASTER_STOP_ACCURACY = 2,
};

// What a slot does.
enum trainmaster_slot_role {
    // Computes gradients.
    TRAINMASTER_SLOT_ROLE_WORKER = 0,
    // Keeps parameters.
    TRAINMASTER_SLOT_ROLE_SERVER = 1,
};

// Whose a decision is.
enum trainmaster_source {
    // The engine's.
    TRAINMASTER_SOURCE_ENGINE = 0,
    // The engine's, less what no longer fitted.
    TRAINMASTER_SOURCE_PRUNED = 1,
    // The fallback engine's, since the engine failed several times in a row.
    TRAINMASTER_SOURCE_FALLBACK = 2,
    // Nobody's: the engine failed, see `error`, and the last plan stands.
    TRAINMASTER_SOURCE_KEPT = 3,
};

// What is true of a scheduler; added up in `flags` of struct trainmaster_status.
enum trainmaster_status_flag {
    // A panic was caught in the midst of a change: restore it from its journal.
    TRAINMASTER_STATUS_FLAG_POISONED = 1,
    // The engine failed so often in a row that the fallback decides.
    TRAINMASTER_STATUS_FLAG_FALLBACK = 2,
    // A decision's ticket is open.
    TRAINMASTER_STATUS_FLAG_DECIDING = 4,
    // A manager is telling everything that it has.
    TRAINMASTER_STATUS_FLAG_SYNCING = 8,
    // A journal is kept.
    TRAINMASTER_STATUS_FLAG_JOURNAL = 16,
};

// What a finding is about.
enum trainmaster_topic {
    // Why the job doesn't run.
    TRAINMASTER_TOPIC_REASON = 0,
    // What lies between the plan and the manager.
    TRAINMASTER_TOPIC_ISSUE = 1,
    // Who is in charge.
    TRAINMASTER_TOPIC_MODE = 2,
    // When it is decided about next.
    TRAINMASTER_TOPIC_DECISION = 3,
    // What its owner and its site allow.
    TRAINMASTER_TOPIC_BOUNDS = 4,
    // Why its shape is kept.
    TRAINMASTER_TOPIC_STABILITY = 5,
    // Predicted convergence.
    TRAINMASTER_TOPIC_CONVERGENCE = 6,
    // Predicted speed.
    TRAINMASTER_TOPIC_SPEED = 7,
    // Slow workers.
    TRAINMASTER_TOPIC_STRAGGLER = 8,
    // Past changes and what they cost.
    TRAINMASTER_TOPIC_HISTORY = 9,
    // Reports that were ignored.
    TRAINMASTER_TOPIC_REPORTS = 10,
    // What becomes of its data chunks.
    TRAINMASTER_TOPIC_WORK = 11,
};

// How gradients meet parameters.
enum trainmaster_training_mode {
    // Parameter servers wait for every worker in each step.
    TRAINMASTER_TRAINING_MODE_SYNC = 0,
    // Parameter servers take each worker's gradients as they come.
    TRAINMASTER_TRAINING_MODE_ASYNC = 1,
    // No parameter servers: workers form a ring.
    TRAINMASTER_TRAINING_MODE_ALLREDUCE = 2,
};

// The curve of a job's worth over the time t from its arrival to its end.
enum trainmaster_utility_kind {
    // value / (1 + e^(decay * (t - target)))
    TRAINMASTER_UTILITY_KIND_SIGMOID = 0,
    // value
    TRAINMASTER_UTILITY_KIND_CONSTANT = 1,
    // value * (1 - t / (2 * target)), at least 0
    TRAINMASTER_UTILITY_KIND_LINEAR = 2,
    // value up to the target, then 0
    TRAINMASTER_UTILITY_KIND_STEP = 3,
    // By the points.
    TRAINMASTER_UTILITY_KIND_TABLE = 4,
};

// What is decided about a job.
enum trainmaster_verdict_kind {
    // It runs with these slots.
    TRAINMASTER_VERDICT_KIND_RUN = 0,
    // It has nothing for now.
    TRAINMASTER_VERDICT_KIND_WAIT = 1,
    // It is refused.
    TRAINMASTER_VERDICT_KIND_REJECT = 2,
    // It is ended.
    TRAINMASTER_VERDICT_KIND_STOP = 3,
    // It is the manager's own again, to run with so many workers and parameter servers.
    TRAINMASTER_VERDICT_KIND_RELEASE = 4,
};

// Why a ticket came to nothing.
enum trainmaster_why {
    // It took too long. Counts as a failure of the engine.
    TRAINMASTER_WHY_LATE = 0,
    // It isn't wanted any more.
    TRAINMASTER_WHY_LOST = 1,
};

// What happens to a piece of work.
enum trainmaster_work_state {
    // It is done now.
    TRAINMASTER_WORK_STATE_RUNNING = 0,
    // It waits for its turn: `rank` others of its job go before it on its slot.
    TRAINMASTER_WORK_STATE_QUEUED = 1,
    // It was interrupted, and goes on where it is.
    TRAINMASTER_WORK_STATE_PREEMPTED = 2,
    // Nothing is left of it.
    TRAINMASTER_WORK_STATE_DONE = 3,
};

// The policy core's state machine. One thread at a time may use it, whichever; a call while another is under way, or from
// within one of its callbacks, does nothing but return TRAINMASTER_ERROR_BUSY. Tickets that it hands out may run on other
// threads at the same time.
struct trainmaster_scheduler;

// One attempt to decide, or to fit: a consistent copy of what it takes, apart from its scheduler. It is prepared,
// run once on any thread while its scheduler goes on, committed or abandoned, and freed.
struct trainmaster_ticket;

// A text in UTF-8, not ended by a zero byte. `data` may be NULL where `length` is 0. In arguments it is read during the
// call and never kept; in results it belongs to what it is found in. Never grows.
struct trainmaster_string {
    // The first byte.
    const char *data;
    // In bytes.
    uint64_t length;
};

// Where a function writes why it failed: a buffer of the caller's. Every function takes NULL instead. Never grows.
struct trainmaster_message {
    // The buffer, or NULL.
    char *data;
    // Its size in bytes. The text is cut to fit, and always ends with a zero byte where this is at least 1.
    uint64_t capacity;
    // Set by the function: the whole text's length without the zero byte, 0 after TRAINMASTER_OK.
    uint64_t length;
};

// An amount of one resource. Units: `memory` and `disk` in MiB, `bandwidth` in Mbit/s, everything else (`gpu`, `cpu`,
// `gpu:<type>`, names of your own) in thousandths of one. From 0 to 10^12. Never grows.
struct trainmaster_amount {
    // The resource.
    struct trainmaster_string name;
    // How much of it.
    int64_t value;
};

// An array of amounts; at most one for each resource.
struct trainmaster_amounts {
    // The first.
    const struct trainmaster_amount *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// An array of texts.
struct trainmaster_strings {
    // The first.
    const struct trainmaster_string *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// A label. Never grows.
struct trainmaster_label {
    // Its name.
    struct trainmaster_string key;
    // Its value.
    struct trainmaster_string value;
};

// An array of labels; at most one for each name.
struct trainmaster_labels {
    // The first.
    const struct trainmaster_label *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// A server (machine), for TRAINMASTER_EVENT_KIND_SERVER_SET.
struct trainmaster_server {
    // sizeof(struct trainmaster_server).
    uint32_t size;
    // 1: it takes nothing new.
    uint32_t draining;
    // Unique in the cluster.
    struct trainmaster_string name;
    // What it has, without what `devices` add.
    struct trainmaster_amounts capacity;
    // `gpu` or `gpu:<type>`, each a whole device that adds 1000 `gpu` (and 1000 of its type). Empty where the manager picks
    // devices itself; `gpu` is then part of `capacity`.
    struct trainmaster_strings devices;
    // For jobs' constraints. The label `hosts` says which slots it takes: `workers`, `servers` or `both`.
    struct trainmaster_labels labels;
};

// What one worker or one parameter server needs, and how many there may be.
struct trainmaster_role {
    // sizeof(struct trainmaster_role).
    uint32_t size;
    // The fewest that the job runs with; 0 is 1.
    uint32_t min;
    // The most it can use, up to 10000; 0: as requested.
    uint32_t max;
    // What it gets from an engine that doesn't choose; 0: the fewest.
    uint32_t requested;
    // Of one. At most one kind of GPU, in whole ones or a part of one.
    struct trainmaster_amounts demand;
    // The program to start; empty where the manager knows it.
    struct trainmaster_string command;
};

// When a job has converged.
struct trainmaster_convergence {
    // sizeof(struct trainmaster_convergence).
    uint32_t size;
    // So many epochs in a row; 0 is 3 ...
    uint32_t patience;
    // ... that each lower the loss by less than this share of the first epoch's loss, from 0 up to 1.
    double delta;
    // The end in any case; 0 is 200.
    uint32_t max_epochs;
    // 0.
    uint32_t reserved;
};

// A step of a table of worth. Never grows.
struct trainmaster_worth {
    // From this time after the arrival on, in milliseconds ...
    int64_t elapsed_ms;
    // ... an end is worth so much.
    double worth;
};

// What an early end is worth (engine `oasis`).
struct trainmaster_utility {
    // sizeof(struct trainmaster_utility).
    uint32_t size;
    // One of TRAINMASTER_UTILITY_KIND_*.
    uint32_t kind;
    // The most it can be worth, from 0 to 10^9.
    double value;
    // How sharply a sigmoid falls, per hour, from 0 to 10^6.
    double decay;
    // In milliseconds.
    int64_t target_ms;
    // Of a table: the first of its steps, by time; no other kind has any.
    const struct trainmaster_worth *points;
    // How many.
    uint64_t points_count;
    // Bytes from one to the next.
    uint64_t points_stride;
};

// Training data, for engines that schedule its chunks (`oasis`, `edge`).
struct trainmaster_dataset {
    // sizeof(struct trainmaster_dataset).
    uint32_t size;
    // Data chunks, at least 1.
    uint32_t chunks;
    // Mini-batches in a chunk, at least 1.
    uint32_t batches_per_chunk;
    // Times each chunk is trained, at least 1.
    uint32_t epochs;
    // Time of a mini-batch on one worker without its communication, in milliseconds; 0: from the fitted speed.
    int64_t batch_time_ms;
    // Where a chunk is uploaded from: servers say how long that takes, by their label `upload.` with this name.
    struct trainmaster_string upload;
    // MiB of a chunk on the disk of the server that trains it; 0 where unknown.
    int64_t chunk_size;
};

// A speed at a number of workers and parameter servers. Never grows.
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
    // The first.
    const struct trainmaster_speed *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// One part of a model that is cut into several.
struct trainmaster_partition {
    // Parameters in it; 0 in all of them: they are alike.
    uint64_t parameters;
    // The parts whose output it needs, by their place in the array: earlier ones.
    const uint32_t *after;
    // How many.
    uint64_t after_count;
};

// An array of parts.
struct trainmaster_partitions {
    // The first.
    const struct trainmaster_partition *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// A training job. Set what you know and leave the rest 0: 0, an empty text and NULL mean what each field says, else that it
// isn't known.
struct trainmaster_job {
    // sizeof(struct trainmaster_job).
    uint32_t size;
    // Higher goes first where an engine looks at it.
    int32_t priority;
    // One of TRAINMASTER_RESIZE_*.
    uint32_t resize;
    // One of TRAINMASTER_TRAINING_MODE_*.
    uint32_t mode;
    // Unique among active jobs: 1 to 128 letters, digits, '.', '_' and '-', not starting with '.' and not a number.
    struct trainmaster_string name;
    // Jobs of one model share what was learnt about its speed; empty: the name.
    struct trainmaster_string model;
    // Who pays; empty is "default".
    struct trainmaster_string tenant;
    // Where it waits; empty is "default".
    struct trainmaster_string queue;
    // Examples that a step trains: of the whole job (sync, all-reduce) or of one worker (async); 0 is 1.
    uint64_t batch;
    // Examples in an epoch; 0 where only the program knows.
    uint64_t examples;
    // Its workers. Not NULL.
    const struct trainmaster_role *worker;
    // Its parameter servers; NULL for all-reduce and nothing else.
    const struct trainmaster_role *server;
    // NULL: 3 epochs in a row that gain less than 0.01, at most 200.
    const struct trainmaster_convergence *convergence;
    // NULL: not known.
    const struct trainmaster_utility *utility;
    // NULL: not known.
    const struct trainmaster_dataset *dataset;
    // Size of the parameters in MiB.
    int64_t model_size_mib;
    // Milliseconds after its arrival by which it should be done.
    int64_t deadline_ms;
    // It is stopped after it ran for so many milliseconds; 0: never.
    int64_t time_limit_ms;
    // What a restart costs, as a first guess, in milliseconds; it is measured as the job runs.
    int64_t restart_cost_ms;
    // The accuracy that suffices, up to 1.
    double accuracy;
    // From 1 (can wait) to 10.
    uint32_t urgency;
    // 0.
    uint32_t reserved;
    // Labels that a server must have.
    struct trainmaster_labels labels;
    // Speeds that were measured beforehand.
    struct trainmaster_speeds profile;
    // The manager's cluster, and the job's name in it; empty: not known.
    struct trainmaster_string external_cluster;
    // See `external_cluster`.
    struct trainmaster_string external_name;
    // 32 bytes: the BLAKE3 hash of the token that the job reports with; NULL: it has none.
    const uint8_t *token_hash;
    // Not 0: no server may host workers and parameter servers of it at once. 0 for all-reduce.
    uint32_t separate_roles;
    // One of TRAINMASTER_STOP_*.
    uint32_t stop;
    // The parts of its model, each after those it needs; none where every worker has the whole model. Worker i trains part
    // i % K of replica i / K; resize is then TRAINMASTER_RESIZE_FIXED.
    struct trainmaster_partitions partitions;
    // The furthest of TRAINMASTER_STOP_* that the scheduler may go while the cluster is overloaded; 0: as `stop`.
    uint32_t stop_under_load;
    // 0.
    uint32_t reserved_too;
};

// A worker's step time. Never grows.
struct trainmaster_slot_time {
    // The worker's index.
    uint32_t worker;
    // 0.
    uint32_t reserved;
    // Mean time from one of its gradients to the next, in milliseconds.
    double ms;
};

// Progress of a training program since its last report.
struct trainmaster_report {
    // sizeof(struct trainmaster_report).
    uint32_t size;
    // Sum of TRAINMASTER_REPORT_HAS_*.
    uint32_t has;
    // Who reports: one of TRAINMASTER_SLOT_ROLE_* ...
    uint32_t role;
    // ... and its index.
    uint32_t index;
    // Grows with each report of a slot's incarnation.
    uint64_t seq;
    // Steps since the job began, all incarnations.
    uint64_t step;
    // Steps in an epoch at this shape; 0: not known.
    uint64_t steps_per_epoch;
    // Whole epochs done.
    uint32_t epoch;
    // Steps that `duration_ms` covers.
    uint32_t steps;
    // How long they took at a steady shape; 0: not measured.
    int64_t duration_ms;
    // Workers they ran with.
    uint32_t workers;
    // Parameter servers they ran with.
    uint32_t servers;
    // Mean training loss.
    double loss;
    // Validation accuracy, from 0 to 1.
    double accuracy;
    // Time from start to first step, once for each incarnation.
    int64_t restart_ms;
    // The first of the workers' step times, for finding slow ones.
    const struct trainmaster_slot_time *slot_times;
    // How many.
    uint64_t slot_times_count;
    // Bytes from one to the next.
    uint64_t slot_times_stride;
    // The first of the data chunks (places in the dataset) that are trained to their end: at least those since the last
    // report.
    const uint32_t *chunks;
    // How many.
    uint64_t chunks_count;
    // Bytes from one to the next.
    uint64_t chunks_stride;
};

// A part of a device. Never grows.
struct trainmaster_device {
    // Its position in the server's `devices`.
    uint32_t device;
    // Thousandths of it; 1000 is all.
    uint32_t milli;
};

// An array of parts of devices.
struct trainmaster_devices {
    // The first.
    const struct trainmaster_device *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// One worker or parameter server on one server.
struct trainmaster_slot {
    // sizeof(struct trainmaster_slot).
    uint32_t size;
    // One of TRAINMASTER_SLOT_ROLE_*.
    uint32_t role;
    // Unique among the job's slots of a role, and kept for as long as the slot stays as it is.
    uint32_t index;
    // 1 where all its work waits: it keeps memory and disk, and its devices are another job's for now. What a manager sees to
    // be so it reports so.
    uint32_t idle;
    // The server's name.
    struct trainmaster_string server;
    // Its devices; empty where the manager picks them.
    struct trainmaster_devices devices;
};

// An array of slots: in results workers first, each role by index.
struct trainmaster_slots {
    // The first.
    const struct trainmaster_slot *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// What one slot was measured to use. Never grows.
struct trainmaster_slot_use {
    // Whose.
    uint64_t job;
    // One of TRAINMASTER_SLOT_ROLE_*.
    uint32_t role;
    // Its index.
    uint32_t index;
    // Without devices.
    struct trainmaster_amounts amounts;
    // Its part of how busy the server's devices are.
    struct trainmaster_devices devices;
};

// An array of them.
struct trainmaster_slot_uses {
    // The first.
    const struct trainmaster_slot_use *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// Something that happened. What isn't read by its kind may be anything; zero is best.
struct trainmaster_event {
    // sizeof(struct trainmaster_event).
    uint32_t size;
    // One of TRAINMASTER_EVENT_KIND_*, which say what else is read.
    uint32_t kind;
    // When, in milliseconds since an origin that you chose once, from 0 to 10^15; never before an earlier event or call.
    int64_t at;
    // A job's number.
    uint64_t job;
    // A term or decision.
    uint64_t number;
    // A job's incarnation.
    uint32_t incarnation;
    // A choice.
    uint32_t value;
    // When a refused change may be tried again, in milliseconds from now; 0: after a wait that doubles.
    int64_t retry_ms;
    // A server's name.
    struct trainmaster_string name;
    // A cluster manager's name: servers belong to the manager that reports them.
    struct trainmaster_string manager;
    // Words, or TOML.
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
    // Parts of devices.
    struct trainmaster_devices devices;
    // What slots use.
    struct trainmaster_slot_uses uses;
};

// A reason. Its kind says which of the other fields it has; those it hasn't are 0 or empty.
struct trainmaster_reason {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // One of TRAINMASTER_REASON_KIND_*.
    uint32_t kind;
    // In words for people, with the numbers.
    struct trainmaster_string text;
    // A resource's name; amounts are in its units (see struct trainmaster_amount).
    struct trainmaster_string resource;
    // A server's name.
    struct trainmaster_string server;
    // What is needed, or missing.
    int64_t needed;
    // What there is.
    int64_t available;
    // What there may be in all.
    int64_t limit;
    // Another job.
    uint64_t job;
    // In milliseconds, as events are stamped; TRAINMASTER_NEVER where there is no such time.
    int64_t until;
    // In millionths of a unit of utility.
    int64_t worth;
    // Likewise.
    int64_t cost;
    // Likewise.
    int64_t threshold;
    // From 1.
    uint32_t position;
    // 0.
    uint32_t reserved;
};

// A data chunk, and who trains it. Never grows.
struct trainmaster_work {
    // Its place in the dataset.
    uint32_t chunk;
    // One of TRAINMASTER_WORK_STATE_*.
    uint32_t state;
    // Of TRAINMASTER_WORK_STATE_QUEUED.
    uint32_t rank;
    // The index of its worker's slot; UINT32_MAX while it waits for one.
    uint32_t worker;
};

// An array of work: by slot, those without one first.
struct trainmaster_works {
    // The first.
    const struct trainmaster_work *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// What one job is to have.
struct trainmaster_verdict {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // One of TRAINMASTER_VERDICT_KIND_*.
    uint32_t kind;
    // The job's number.
    uint64_t job;
    // Its name; empty once it is over.
    struct trainmaster_string name;
    // Counts the job's restarts: everything stops and starts again from a checkpoint. 0 in decisions and previews.
    uint32_t incarnation;
    // Counts changes within an incarnation: workers come or go, nobody restarts. 0 in decisions and previews.
    uint32_t revision;
    // Workers, of TRAINMASTER_VERDICT_KIND_RUN and _RELEASE.
    uint32_t workers;
    // Parameter servers, likewise.
    uint32_t servers;
    // Why it doesn't run; NULL if it does, or is released.
    const struct trainmaster_reason *reason;
    // Of TRAINMASTER_VERDICT_KIND_RUN.
    struct trainmaster_slots slots;
    // What its slots do, where the engine schedules data chunks one by one; else none.
    struct trainmaster_works work;
};

// An array of verdicts, by job, each job once.
struct trainmaster_verdicts {
    // The first.
    const struct trainmaster_verdict *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// Verdicts on some jobs: what a manager is to be told, or what an engine would propose. Yours; free it with
// trainmaster_plan_free(). Nothing changes in it, and it outlives its scheduler.
struct trainmaster_plan {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // The term and ...
    uint64_t term;
    // ... the decision it belongs to: the `number` of TRAINMASTER_EVENT_KIND_ENACTED.
    uint64_t decision;
    // When the engine of a preview would want to run again; TRAINMASTER_NEVER: when something happens.
    int64_t wake_at;
    // By job.
    struct trainmaster_verdicts verdicts;
};

// A committed change of the plan: what *should* be. What a manager is to be told is in the plan of
// trainmaster_scheduler_take_issues(), since room has to be released before it is given to others. Yours; free it with
// trainmaster_decision_free(). Nothing changes in it, and it outlives its scheduler.
struct trainmaster_decision {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // One of TRAINMASTER_SOURCE_*.
    uint32_t source;
    // The term of the host that made it.
    uint64_t term;
    // Its number, which grows.
    uint64_t number;
    // The decision whose plan it changes.
    uint64_t base;
    // When it was committed.
    int64_t at;
    // When the engine wants to run again even if nothing happens; or TRAINMASTER_NEVER.
    int64_t wake_at;
    // The jobs whose verdict changed.
    struct trainmaster_verdicts verdicts;
    // The numbers of jobs for which the engine's proposal no longer fitted.
    const uint64_t *dropped;
    // How many.
    uint64_t dropped_count;
    // Why the engine failed, if it did.
    struct trainmaster_string error;
};

// A scheduler as it is now.
struct trainmaster_status {
    // sizeof(struct trainmaster_status); set it before the call.
    uint32_t size;
    // Sum of TRAINMASTER_STATUS_FLAG_*.
    uint32_t flags;
    // The time of the last event or call, in milliseconds; the least there is before the first.
    int64_t now;
    // When the next decision is wanted; TRAINMASTER_NEVER while nothing happens. It may have passed.
    int64_t due;
    // When the last one was committed; TRAINMASTER_NEVER if none was since the engine was chosen.
    int64_t decided_at;
    // The term of the host in charge.
    uint64_t term;
    // The last decision's number.
    uint64_t decision;
    // Active jobs.
    uint64_t jobs;
    // Servers that are there.
    uint64_t servers;
    // Records of the journal that wait for trainmaster_scheduler_drain_journal().
    uint64_t records;
    // One of TRAINMASTER_MODE_*.
    uint32_t mode;
    // 0.
    uint32_t reserved;
    // The engine in charge. Belongs to the library, as long as that is loaded.
    struct trainmaster_string engine;
};

// Everything about an active job.
struct trainmaster_job_status {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // What the manager saw it do: one of TRAINMASTER_PHASE_*.
    uint32_t phase;
    // Its number.
    uint64_t job;
    // Its name.
    struct trainmaster_string name;
    // When it was submitted.
    int64_t arrival;
    // When it first ran; or TRAINMASTER_NEVER.
    int64_t started;
    // What the plan gives it.
    uint32_t planned_workers;
    // Likewise.
    uint32_t planned_servers;
    // What the manager was told to give it.
    uint32_t issued_workers;
    // Likewise.
    uint32_t issued_servers;
    // What the manager was seen to give it.
    uint32_t observed_workers;
    // Likewise.
    uint32_t observed_servers;
    // The incarnation that is to run; 0 before the first.
    uint32_t incarnation;
    // Changes in place of it.
    uint32_t revision;
    // Why it doesn't run, or has less than planned; NULL: there is no reason.
    const struct trainmaster_reason *reason;
    // Steps done.
    uint64_t step;
    // Steps in an epoch.
    uint64_t steps_per_epoch;
    // Whole epochs done.
    uint32_t epoch;
    // 1: a person holds it.
    uint32_t held;
    // The last loss that was reported, or not a number.
    double loss;
    // The last accuracy that was reported, or not a number.
    double accuracy;
    // Steps per second over the last report, or not a number.
    double speed;
    // What a restart costs, in milliseconds.
    int64_t restart_cost_ms;
    // Times it changed shape while it ran.
    uint32_t rescales;
    // Refusals in a row.
    uint32_t refusals;
    // Reports that were ignored as nonsense.
    uint64_t ignored_reports;
};

// Active jobs, in the order of their submission. Yours; free it with trainmaster_jobs_free(). Nothing changes in it, and it
// outlives its scheduler.
struct trainmaster_jobs {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // The first.
    const struct trainmaster_job_status *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// What becomes of one resource of a server, in its units (see struct trainmaster_amount). Never grows.
struct trainmaster_use {
    // The resource.
    struct trainmaster_string resource;
    // What the server has, devices included.
    int64_t capacity;
    // What other work uses of it.
    int64_t foreign;
    // What the plan gives to jobs.
    int64_t planned;
    // What is issued to jobs or seen in use, the larger of both.
    int64_t charged;
};

// A server that is there.
struct trainmaster_server_status {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 1: it takes nothing new.
    uint32_t draining;
    // Its name.
    struct trainmaster_string name;
    // The first of its resources.
    const struct trainmaster_use *uses;
    // How many.
    uint64_t uses_count;
    // Bytes from one to the next.
    uint64_t uses_stride;
};

// Servers, in the order in which they were first named. Yours; free it with trainmaster_servers_free(). Nothing changes in
// it, and it outlives its scheduler.
struct trainmaster_servers {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // The first.
    const struct trainmaster_server_status *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// One thing that was found.
struct trainmaster_finding {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // One of TRAINMASTER_TOPIC_*.
    uint32_t topic;
    // One of TRAINMASTER_REASON_KIND_* where the topic is TRAINMASTER_TOPIC_REASON.
    uint32_t reason;
    // 1: it keeps the job from running, or from what it is planned to get.
    uint32_t blocks;
    // In words, with numbers.
    struct trainmaster_string text;
};

// What is to be said about a job, the most important first. Yours; free it with trainmaster_explanation_free(). Nothing
// changes in it, and it outlives its scheduler.
struct trainmaster_explanation {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // The job's number.
    uint64_t job;
    // Its name.
    struct trainmaster_string name;
    // The first finding.
    const struct trainmaster_finding *findings;
    // How many.
    uint64_t findings_count;
    // Bytes from one to the next.
    uint64_t findings_stride;
};

// Takes a record: the pointer that was given with the function, `length` bytes to append to the journal as they are, and 1
// where the record is a snapshot: what lies before it isn't needed any more to restore. Returns 0 once the record is taken;
// anything else keeps it, and all behind it, for the next time. It is called by the thread that drains, within that
// call: it must not use the same scheduler (that fails as TRAINMASTER_ERROR_BUSY), throw, or jump out.
typedef uint32_t (*trainmaster_journal_writer)(void *user,
                                               const uint8_t *record,
                                               uint64_t length,
                                               uint32_t is_snapshot);

// Takes a line: the pointer that was given with the function, one of TRAINMASTER_LOG_LEVEL_*, and a text that ends
// with a zero byte and is gone when the function returns. It is called by the thread that uses the scheduler, within
// that call: it must not use the same scheduler (that fails as TRAINMASTER_ERROR_BUSY), throw, or jump out.
typedef void (*trainmaster_log_writer)(void *user, uint32_t level, const char *text);

// A parameter of an engine: a key of the settings' table `parameters`.
struct trainmaster_parameter {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // As in the settings.
    struct trainmaster_string name;
    // What it is without being set, as in the settings.
    struct trainmaster_string standard;
    // What it does, with its unit.
    struct trainmaster_string meaning;
};

// An engine.
struct trainmaster_engine {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // As in the settings.
    struct trainmaster_string name;
    // What it does, in a line.
    struct trainmaster_string summary;
    // Where it comes from.
    struct trainmaster_string paper;
    // The first of its parameters.
    const struct trainmaster_parameter *parameters;
    // How many.
    uint64_t parameters_count;
    // Bytes from one to the next.
    uint64_t parameters_stride;
};

// All engines. Yours; free it with trainmaster_engines_free().
struct trainmaster_engines {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // The first.
    const struct trainmaster_engine *data;
    // How many.
    uint64_t count;
    // Bytes from one to the next.
    uint64_t stride;
};

// What is expected of a job, or of a curve.
struct trainmaster_prediction {
    // sizeof(struct trainmaster_prediction); set it before the call.
    uint32_t size;
    // Sum of TRAINMASTER_KNOWN_*.
    uint32_t known;
    // Steps per second.
    double speed;
    // Its standard error, as a share of it: 0.1 is 10 %.
    double speed_error;
    // The epoch at whose end the job converges.
    uint64_t epochs;
    // One below which that is unlikely (about one in ten).
    uint64_t low;
    // One above which that is unlikely.
    uint64_t high;
    // Epochs left until then.
    uint64_t remaining_epochs;
    // Time left, in milliseconds.
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
    // The block's position in the array.
    uint64_t block;
    // Where in the block the part begins.
    uint64_t offset;
    // How long it is.
    uint64_t length;
    // The parameter server, from 0.
    uint32_t server;
    // 0.
    uint32_t reserved;
};

// What a parameter server holds. Never grows.
struct trainmaster_load {
    // In the blocks' unit.
    uint64_t amount;
    // Pieces: requests of each worker in each step.
    uint64_t requests;
};

// Where every parameter goes. Yours; free it with trainmaster_assignment_free().
struct trainmaster_assignment {
    // Set by the library: as much of the struct is there. What your header has beyond it isn't.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // The most that a server holds less the least.
    uint64_t amount_spread;
    // The most requests of a server less the fewest.
    uint64_t request_spread;
    // Requests in all.
    uint64_t requests;
    // The first piece; by block, then by offset.
    const struct trainmaster_piece *pieces;
    // How many.
    uint64_t pieces_count;
    // Bytes from one to the next.
    uint64_t pieces_stride;
    // The first server's load.
    const struct trainmaster_load *loads;
    // How many.
    uint64_t loads_count;
    // Bytes from one to the next.
    uint64_t loads_stride;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a scheduler of an empty cluster. `*scheduler` is yours; free it with trainmaster_scheduler_free().
//
// `settings` is TOML; what isn't in it has its default. With the defaults:
//
// ```toml
// engine = "optimus"                 # see trainmaster_engines_list()
// parameters = {}                    # of the engine; see struct trainmaster_engine
// fallback = "fifo"                  # takes over ...
// fallback_after = 3                 # ... after so many failures in a row
// stability = { min_run = "5m", rescales_per_hour = 4, payback = 2.0 }    # or "off"
// shape = { equal_per_server = false, colocate = true, grow_in_place = true, overbook = 1.0 }
// caps = { urgency = 10 }            # also utility: the most that owners may claim
// queues = {}                        # such as { batch = { gpu = 8, memory = "1TiB" } }: the most they may have
// tenants = {}                       # likewise
// refusal_backoff = "5s"             # first wait after a manager's refusal; doubles
// refusals = 5                       # after so many others get the room
// seed = 0                           # of engines that draw lots
// ```
//
// Errors: NULL, VALUE, SETTINGS. Threads: any.
uint32_t trainmaster_scheduler_new(struct trainmaster_string settings,
                                   struct trainmaster_scheduler **scheduler,
                                   struct trainmaster_message *message);

// Frees a scheduler. NULL is nothing. No other call may be using it. Its tickets stay valid, but can't be committed any
// more; they have to be freed as well, before or after.
void trainmaster_scheduler_free(struct trainmaster_scheduler *scheduler);

// Takes events, in order: `count` of them, `stride` bytes apart (sizeof(struct trainmaster_event)). It stops at the first
// that can't be accepted; nothing of that one is done, but that a report or a late refusal is counted. `*done`, which may
// be NULL, is how many were taken before it: to go on behind the bad one, call again with what is left.
//
// Nothing is decided here. A panic poisons the scheduler.
//
// Errors: NULL, SIZE, VALUE, BUSY, POISONED, PANIC, SETTINGS, and those from 30 to 41. Threads: one at a time for a scheduler.
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

// What the manager is to be told since the last call: jobs whose part that is to be carried out now changed, and once
// that a job is over which it was told of before. On a poisoned scheduler: each call, every job, released.
//
// Carry `*plan` out and report back: TRAINMASTER_EVENT_KIND_ENACTED with what became of it, _OBSERVED with what runs.
//
// Errors: NULL, BUSY, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_take_issues(struct trainmaster_scheduler *scheduler,
                                           const struct trainmaster_plan **plan,
                                           struct trainmaster_message *message);

// What the manager is to be told of every job, for one that starts or comes back: a job that isn't in it is over. On a
// poisoned scheduler: every job, released. Changes nothing.
//
// Errors: NULL, BUSY, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_all_issues(const struct trainmaster_scheduler *scheduler,
                                          const struct trainmaster_plan **plan,
                                          struct trainmaster_message *message);

// What an engine would propose now; `engine` empty: the one in charge, else one by name with its default parameters.
// `steps` bounds its work as in trainmaster_ticket_run(). Changes nothing, but takes as long as a decision.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ENGINE. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_preview(const struct trainmaster_scheduler *scheduler,
                                       struct trainmaster_string engine,
                                       uint64_t steps,
                                       const struct trainmaster_plan **plan,
                                       struct trainmaster_message *message);

// Begins a decision: `*ticket` is a consistent copy for the engine, made in microseconds. A ticket that is still open is
// superseded. `*ticket` is yours; run it, commit or abandon it, free it. A panic poisons the scheduler.
//
// When to call it: `due` of struct trainmaster_status. `at`: the time now, as in events; where it is before the last event,
// that one's time counts.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_prepare(struct trainmaster_scheduler *scheduler,
                                       int64_t at,
                                       struct trainmaster_ticket **ticket,
                                       struct trainmaster_message *message);

// Begins fits of loss and speed for jobs that reported since the last ones, 250 at most; `*ticket` is NULL if none did. To be run
// and committed before a decision, or beside, until it is NULL: decisions don't wait for fits. A panic poisons the scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_prepare_fits(struct trainmaster_scheduler *scheduler,
                                            int64_t at,
                                            struct trainmaster_ticket **ticket,
                                            struct trainmaster_message *message);

// Lets the engine decide, or makes the fits. Once for each ticket, on any thread; its scheduler may be used meanwhile. Fits
// take about a millisecond a job. `steps` bounds an engine's work (a step is about one candidate looked at, tens of
// nanoseconds), 0: no bound; it goes into the journal, so that a replay stops in the same place.
//
// That the engine failed, by a panic, too many steps, or a proposal that breaks a rule, is no error here: the commit says
// so, and the last plan stands; after several failures in a row the fallback engine decides, and should that fail as often,
// scheduling is paused and every job released.
//
// Errors: NULL, BUSY, ORDER, PANIC. Threads: one at a time for a ticket, any.
uint32_t trainmaster_ticket_run(struct trainmaster_ticket *ticket,
                                uint64_t steps,
                                struct trainmaster_message *message);

// Makes what the ticket's engine proposed the plan, as far as it still fits after what happened since. `*decision` is yours;
// free it with trainmaster_decision_free(); `decision` may be NULL. The ticket is spent by it, but has to be freed. A panic
// poisons the scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ORDER, SUPERSEDED. Threads: one at a time for a scheduler and for a ticket.
uint32_t trainmaster_scheduler_commit(struct trainmaster_scheduler *scheduler,
                                      int64_t at,
                                      struct trainmaster_ticket *ticket,
                                      const struct trainmaster_decision **decision,
                                      struct trainmaster_message *message);

// Takes over what a ticket of trainmaster_scheduler_prepare_fits() found. The ticket is spent by it, but has to be freed. A
// panic poisons the scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, ORDER, SUPERSEDED. Threads: one at a time for a scheduler and for a ticket.
uint32_t trainmaster_scheduler_commit_fits(struct trainmaster_scheduler *scheduler,
                                           int64_t at,
                                           struct trainmaster_ticket *ticket,
                                           struct trainmaster_message *message);

// Gives a ticket up, also one that another thread is running: its commit will fail. `why`: one of TRAINMASTER_WHY_*. Does
// nothing if the ticket isn't open any more. The ticket has to be freed, once its run has ended. A panic poisons the
// scheduler.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, SUPERSEDED. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_abandon(struct trainmaster_scheduler *scheduler,
                                       int64_t at,
                                       const struct trainmaster_ticket *ticket,
                                       uint32_t why,
                                       struct trainmaster_message *message);

// Fits, prepares, runs and commits in one call, for callers that can wait. `*decision` is yours; free it with
// trainmaster_decision_free(); `decision` may be NULL. A panic poisons the scheduler; that of an engine doesn't, see
// trainmaster_ticket_run().
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_decide(struct trainmaster_scheduler *scheduler,
                                      int64_t at,
                                      const struct trainmaster_decision **decision,
                                      struct trainmaster_message *message);

// Frees a ticket. NULL is nothing. No thread may be running it any more.
void trainmaster_ticket_free(struct trainmaster_ticket *ticket);

// Frees a plan. NULL is nothing. Any thread.
void trainmaster_plan_free(const struct trainmaster_plan *plan);

// Frees a decision. NULL is nothing. Any thread.
void trainmaster_decision_free(const struct trainmaster_decision *decision);

// The library's version, such as "0.1.0". The text is the library's, as long as that is loaded. Any thread.
const char *trainmaster_version(void);

// The TRAINMASTER_ABI_VERSION of the library: not less than that of the header you compiled with, or some of what the header
// has is missing. Any thread.
uint32_t trainmaster_abi_version(void);

// Tells how the scheduler is. Works on a poisoned one; `flags` and `records` are then all that counts.
//
// Errors: NULL, SIZE, BUSY, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_status(const struct trainmaster_scheduler *scheduler,
                                      struct trainmaster_status *status,
                                      struct trainmaster_message *message);

// The active job of a number, or all of them for 0.
//
// Errors: NULL, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_jobs(const struct trainmaster_scheduler *scheduler,
                                    uint64_t job,
                                    const struct trainmaster_jobs **jobs,
                                    struct trainmaster_message *message);

// Frees a list of jobs. NULL is nothing. Any thread.
void trainmaster_jobs_free(const struct trainmaster_jobs *jobs);

// The server of a name, or all of them for an empty one.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, UNKNOWN_SERVER. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_servers(const struct trainmaster_scheduler *scheduler,
                                       struct trainmaster_string name,
                                       const struct trainmaster_servers **servers,
                                       struct trainmaster_message *message);

// Frees a list of servers. NULL is nothing. Any thread.
void trainmaster_servers_free(const struct trainmaster_servers *servers);

// Explains an active job, as of a time that isn't before the last event.
//
// Errors: NULL, VALUE, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_explain(const struct trainmaster_scheduler *scheduler,
                                       int64_t at,
                                       uint64_t job,
                                       const struct trainmaster_explanation **explanation,
                                       struct trainmaster_message *message);

// Frees an explanation. NULL is nothing. Any thread.
void trainmaster_explanation_free(const struct trainmaster_explanation *explanation);

// From now on keeps a journal: its first record is a snapshot, and each change adds a few hundred bytes. Records wait in
// memory until trainmaster_scheduler_drain_journal() takes them. An open ticket is superseded. Call it once, after
// trainmaster_scheduler_new() or trainmaster_scheduler_restore(); calling it again begins anew.
//
// Errors: NULL, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_start_journal(struct trainmaster_scheduler *scheduler,
                                             struct trainmaster_message *message);

// Hands the records since the last time to `writer`, in order. What is acknowledged to others (a job's number, a report)
// should be in the journal, on disk, before it is. On a poisoned scheduler: those of what was done before the panic.
//
// Errors: NULL, BUSY, WRITE. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_drain_journal(struct trainmaster_scheduler *scheduler,
                                             trainmaster_journal_writer writer,
                                             void *user,
                                             struct trainmaster_message *message);

// Adds a snapshot to the journal, so that restoring starts there. As large as the cluster and its jobs. Not while a ticket
// is open: that returns ORDER.
//
// Errors: NULL, BUSY, POISONED, PANIC, ORDER. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_snapshot(struct trainmaster_scheduler *scheduler,
                                        struct trainmaster_message *message);

// Makes the scheduler what a journal leads to: its records one after the other, as they were drained, from the last snapshot
// on (earlier ones may be left out). Its settings are the journal's. Tickets of before are void, and so is what poisoned it;
// the log stays set. Where a journal was kept it begins anew, with a snapshot.
//
// Every decision is made again and has to come out the same. A record that is cut off at the journal's end, as a crash
// leaves it, is ignored; `*used`, which may be NULL, is the length of what isn't: cut the file there before you append.
// After an error it is where the bad record begins (0 where none is to blame), and the scheduler is as it was.
//
// Errors: NULL, SIZE, BUSY, PANIC, SETTINGS, NO_SNAPSHOT, UNREADABLE, DIVERGED. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_restore(struct trainmaster_scheduler *scheduler,
                                       const uint8_t *records,
                                       uint64_t length,
                                       uint64_t *used,
                                       struct trainmaster_message *message);

// The engine's memory between decisions, as snapshots hold it: for audits, and to compare replicas. It travels in the
// journal by itself. Writes its bytes to `buffer` and its length to `*length`; if `capacity` is less, nothing but the length
// is written and TRAINMASTER_ERROR_BUFFER is returned. `*version` is that of its layout. `buffer` may be NULL if `capacity` is
// 0.
//
// Errors: NULL, BUSY, POISONED, PANIC, BUFFER. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_memo(const struct trainmaster_scheduler *scheduler,
                                    uint8_t *buffer,
                                    uint64_t capacity,
                                    uint64_t *length,
                                    uint32_t *version,
                                    struct trainmaster_message *message);

// Writes the digest over all decisions so far to `digest`, 32 bytes: equal where two schedulers decided alike.
//
// Errors: NULL, BUSY, POISONED. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_digest(const struct trainmaster_scheduler *scheduler,
                                      uint8_t *digest,
                                      struct trainmaster_message *message);

// Sets who takes the log; NULL: nobody, as at first. `user` is handed to it as it is and has to live as long. Works on
// a poisoned scheduler.
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

// What a job's fits say of it at a number of workers and parameter servers (0 for all-reduce), as of the last
// trainmaster_scheduler_commit_fits() or _decide(). What isn't known yet isn't in `known`.
//
// Errors: NULL, SIZE, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
uint32_t trainmaster_scheduler_predict(const struct trainmaster_scheduler *scheduler,
                                       uint64_t job,
                                       uint32_t workers,
                                       uint32_t servers,
                                       struct trainmaster_prediction *prediction,
                                       struct trainmaster_message *message);

// Fits a loss curve to the losses of epochs (in order, at least three of them, `stride` bytes apart) and predicts when it
// meets the rule; `rule` NULL: the one of a job that has none. `paper` 1: as in the Optimus paper, section 3.1; 0: with this
// project's improvements. Needs no scheduler; any thread.
//
// Errors: NULL, SIZE, VALUE, PANIC, TOO_FEW_POINTS, TOO_LARGE.
uint32_t trainmaster_fit_loss(const struct trainmaster_loss *losses,
                              uint64_t count,
                              uint64_t stride,
                              const struct trainmaster_convergence *rule,
                              uint32_t paper,
                              struct trainmaster_prediction *prediction,
                              struct trainmaster_message *message);

// Fits a speed function to measured speeds, `stride` bytes apart, and fills in `speed` of each of `shapes`. `mode`: one of
// TRAINMASTER_TRAINING_MODE_*; `batch`: examples of a step, of the whole job. `paper` 1: as in the Optimus paper, section
// 3.2; 0: with this project's improvements. Few or no samples give a careful guess. Needs no scheduler; any thread.
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

// Spreads a model's blocks of parameters over 1 to 10000 parameter servers, so that none holds or answers much more than
// another (Optimus, section 5.3). `blocks`: their sizes in any unit, `count` of them, `stride` bytes apart. Needs no
// scheduler. Any thread.
//
// Errors: NULL, SIZE, VALUE, PANIC, TOO_LARGE.
uint32_t trainmaster_paa_assign(const uint64_t *blocks,
                                uint64_t count,
                                uint64_t stride,
                                uint32_t servers,
                                const struct trainmaster_assignment **assignment,
                                struct trainmaster_message *message);

// Frees an assignment. NULL is nothing. Any thread.
void trainmaster_assignment_free(const struct trainmaster_assignment *assignment);

// The name of an error number, such as "TRAINMASTER_ERROR_TIME", or "unknown error". The text is the library's and
// lasts as long as it is loaded. Any thread.
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
