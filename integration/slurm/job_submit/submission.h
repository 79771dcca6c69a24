/* Interface between the plugin and its static library. src/lib.rs declares the same in Rust. The library keeps no
 * pointer after a call. */
#ifndef TRAINMASTER_SUBMISSION_H
#define TRAINMASTER_SUBMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRAINMASTER_COMMENT 1025
#define TRAINMASTER_TRES 256
#define TRAINMASTER_ENVIRONMENT 1024
#define TRAINMASTER_MESSAGE 2048

/* A submitted job. Texts may be NULL. Unset numbers are -1; an unset begin is 0. */
struct trainmaster_submission {
	const char *name, *comment, *script, *array, *partition;
	const char *tres_per_node, *tres_per_task, *tres_per_job;
	/* An option that is not allowed for Trainmaster's jobs, and its value. NULL if there is none. */
	const char *unsupported_option, *unsupported_value;
	/* The number of a heterogeneous job's component. The components come in order, one after the other on one
	 * thread. */
	int64_t component;
	int64_t begin, requeue;
	int64_t min_nodes, max_nodes, tasks, tasks_per_node, cpus_per_task;
	/* pn_min_memory as Slurm encodes it, with its flag. */
	uint64_t memory;
};

/* The changed fields of a held job. An empty text deletes the field. */
struct trainmaster_held {
	int64_t begin;
	char comment[TRAINMASTER_COMMENT];
	char tres_per_node[TRAINMASTER_TRES];
	char tres_per_job[TRAINMASTER_TRES];
	/* name \0 value \0 ... \0 */
	char environment[TRAINMASTER_ENVIRONMENT];
};

enum trainmaster_outcome {
	/* The job does not belong to Trainmaster. */
	TRAINMASTER_PASSES = 0,
	TRAINMASTER_HELD = 1,
	/* The job is refused. The message is for its owner. */
	TRAINMASTER_REFUSED = 2,
	/* The library panicked. The message is for the log. The job has to be refused: its comment was not checked. */
	TRAINMASTER_FAILED = 3,
};

/* Reads the table [slurm] of this file, if the file exists. Returns 0, or -1 with a message. Called once, before any
 * other function. */
int trainmaster_configure(const char *path, char *message, size_t room);
/* Reads the file again if it has changed. Never called with slurmctld's locks held. Returns 0, or -1 with a message;
 * the previous configuration stays in force then. */
int trainmaster_look(char *message, size_t room);
/* Whether a comment has, or might have, a form that only Trainmaster may set. */
bool trainmaster_is_reserved(const char *comment);
/* Whether a job belongs to Trainmaster. Called for every job, before all other checks, so that it has to be cheap.
 * Catches panics. */
bool trainmaster_is_ours(const char *comment, const char *script, int64_t component);
enum trainmaster_outcome trainmaster_submit(const struct trainmaster_submission *job, int64_t now,
					    const unsigned char random[16], struct trainmaster_held *held,
					    char *message, size_t room);

#endif
