// Interface between the plugin job_submit/trainmaster and its static library, which recognises, checks and holds jobs.
// submission.h is made from src/lib.rs.
//
// Texts end with a zero byte and may be NULL; other pointers may not. The library keeps no pointer after a call.
// `message` has `room` bytes. No panic leaves the library: a caught one becomes a message, and the job is refused,
// because its comment may contain anything.

#ifndef TRAINMASTER_SUBMISSION_H
#define TRAINMASTER_SUBMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes of a held job's comment, with the zero byte.
#define TRAINMASTER_COMMENT 1025

// Bytes of its generic resources, with the zero byte.
#define TRAINMASTER_TRES 256

// Bytes of its environment, with the two zero bytes at its end.
#define TRAINMASTER_ENVIRONMENT 1024

// Bytes that suffice for a message.
#define TRAINMASTER_MESSAGE 2048

// What becomes of a submitted job.
enum trainmaster_outcome {
    // The job isn't for Trainmaster.
    TRAINMASTER_OUTCOME_PASSES = 0,
    // The job is held for the agent.
    TRAINMASTER_OUTCOME_HELD = 1,
    // The job is refused, with a message for its owner.
    TRAINMASTER_OUTCOME_REFUSED = 2,
    // A panic, with a message for the log. The job must not pass unchanged, because its comment may contain anything.
    TRAINMASTER_OUTCOME_FAILED = 3,
};

// A submitted job. Unset numbers are -1; an unset begin is 0.
struct trainmaster_submission {
    const char *name;
    const char *comment;
    const char *script;
    const char *array;
    const char *partition;
    const char *tres_per_node;
    const char *tres_per_task;
    const char *tres_per_job;
    // An option that is not allowed for Trainmaster's jobs. NULL if there is none.
    const char *unsupported_option;
    // Its value.
    const char *unsupported_value;
    // The number of a heterogeneous job's component. The components come in order, one after the other on one thread.
    int64_t component;
    int64_t begin;
    int64_t requeue;
    int64_t min_nodes;
    int64_t max_nodes;
    int64_t tasks;
    int64_t tasks_per_node;
    int64_t cpus_per_task;
    // pn_min_memory as Slurm encodes it, with its flag.
    uint64_t memory;
};

// The changed fields of a held job. An empty text deletes the field.
struct trainmaster_held {
    int64_t begin;
    char comment[TRAINMASTER_COMMENT];
    char tres_per_node[TRAINMASTER_TRES];
    char tres_per_job[TRAINMASTER_TRES];
    // name \0 value \0 ... \0
    char environment[TRAINMASTER_ENVIRONMENT];
};

// Reads the table `slurm` of this file, if the file exists. Returns 0, or -1 with a message. Called once, before any
// other function.
int32_t trainmaster_configure(const char *path,
                              char *message,
                              size_t room);

// Reads the file again if it has changed. Never called with slurmctld's locks held. Returns 0, or -1 with a message;
// the previous configuration stays in force then.
int32_t trainmaster_look(char *message,
                         size_t room);

// Returns whether a job belongs to Trainmaster. Called for every job, before all other checks, so that it has to be
// cheap.
bool trainmaster_is_ours(const char *comment,
                         const char *script,
                         int64_t component);

// Returns whether a comment has, or might have, a form that only Trainmaster may set.
bool trainmaster_is_reserved(const char *comment);

// Checks and holds a job. `random` has 16 bytes. `held` is written if the job is held, `message` if it isn't.
enum trainmaster_outcome trainmaster_submit(const struct trainmaster_submission *job,
                                            int64_t now,
                                            const uint8_t *random,
                                            struct trainmaster_held *held,
                                            char *message,
                                            size_t room);

#endif  /* TRAINMASTER_SUBMISSION_H */
