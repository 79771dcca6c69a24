// Interface between the plugin job_submit/trainmaster and its static library, which recognises, checks and holds jobs,
// beside that of trainmaster.h. submission.h is made from src/lib.rs.
//
// Texts and messages may be NULL; other pointers may not. The library keeps no pointer after a call. No panic leaves
// the library: a caught one becomes a message, and the job is refused, because its comment may contain anything.

#ifndef TRAINMASTER_SUBMISSION_H
#define TRAINMASTER_SUBMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "trainmaster.h"

// Bytes of a held job's comment, with the zero byte.
#define TRAINMASTER_COMMENT 1025

// Bytes of its generic resources, with the zero byte.
#define TRAINMASTER_TRES 256

// Bytes of its environment, with the two zero bytes at its end.
#define TRAINMASTER_ENVIRONMENT 1024

// Bytes that suffice for a message.
#define TRAINMASTER_MESSAGE 2048

// What becomes of a submitted job.
enum trainmaster_slurm_outcome {
    // The job isn't for Trainmaster.
    TRAINMASTER_SLURM_OUTCOME_PASSES = 0,
    // The job is held for the agent.
    TRAINMASTER_SLURM_OUTCOME_HELD = 1,
    // The job is refused, with a message for its owner.
    TRAINMASTER_SLURM_OUTCOME_REFUSED = 2,
    // A panic, with a message for the log. The job must not pass unchanged, because its comment may contain anything.
    TRAINMASTER_SLURM_OUTCOME_FAILED = 3,
};

// A submitted job. Unset numbers are -1; an unset begin is 0.
struct trainmaster_slurm_submission {
    trainmaster_c_string name;
    trainmaster_c_string comment;
    trainmaster_c_string script;
    trainmaster_c_string array;
    trainmaster_c_string partition;
    trainmaster_c_string tres_per_node;
    trainmaster_c_string tres_per_task;
    trainmaster_c_string tres_per_job;
    // An option that is not allowed for Trainmaster's jobs. NULL if there is none.
    trainmaster_c_string unsupported_option;
    // Its value.
    trainmaster_c_string unsupported_value;
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

// 16 random bytes.
struct trainmaster_slurm_random {
    uint8_t bytes[16];
};

// The changed fields of a held job. An empty text deletes the field.
struct trainmaster_slurm_held {
    int64_t begin;
    char comment[TRAINMASTER_COMMENT];
    char tres_per_node[TRAINMASTER_TRES];
    char tres_per_job[TRAINMASTER_TRES];
    // name \0 value \0 ... \0
    char environment[TRAINMASTER_ENVIRONMENT];
};

// Reads the table `slurm` of this file, if the file exists. Returns 0, or -1 with a message. Called once, before any
// other function.
int32_t trainmaster_configure(trainmaster_c_string path,
                              struct trainmaster_message *message);

// Reads the file again if it has changed. Never called with slurmctld's locks held. Returns 0, or -1 with a message;
// the previous configuration stays in force then.
int32_t trainmaster_look(struct trainmaster_message *message);

// Returns whether a job belongs to Trainmaster. Called for every job, before all other checks, so that it has to be
// cheap.
bool trainmaster_is_ours(trainmaster_c_string comment,
                         trainmaster_c_string script,
                         int64_t component);

// Returns whether a comment has, or might have, a form that only Trainmaster may set.
bool trainmaster_is_reserved(trainmaster_c_string comment);

// Checks and holds a job. `held` is written if the job is held. `message` is empty if it is held or passes.
enum trainmaster_slurm_outcome trainmaster_submit(const struct trainmaster_slurm_submission *job,
                                                  int64_t now,
                                                  const struct trainmaster_slurm_random *random,
                                                  struct trainmaster_slurm_held *held,
                                                  struct trainmaster_message *message);

#endif  /* TRAINMASTER_SUBMISSION_H */
