/* Between the plugin and its static library (src/lib.rs, which says the same in Rust). Nothing here outlives a call. */
#ifndef TRAINMASTER_SUBMISSION_H
#define TRAINMASTER_SUBMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRAINMASTER_COMMENT 1025
#define TRAINMASTER_TRES 256
#define TRAINMASTER_ENVIRONMENT 1024
#define TRAINMASTER_MESSAGE 2048

/* A job as it is submitted. Texts may be NULL; numbers are -1 where nothing was said. */
struct trainmaster_submission {
	const char *name, *comment, *script, *array, *partition;
	const char *tres_per_node, *tres_per_task, *tres_per_job;
	/* An option that is not allowed for Trainmaster's jobs, and its value; NULL for none. */
	const char *unsupported_option, *unsupported_value;
	/* Of a heterogeneous job; its components come in order, one after the other on one thread. */
	int64_t component;
	int64_t begin, requeue;
	int64_t min_nodes, max_nodes, tasks, tasks_per_node, cpus_per_task;
	/* As Slurm has it, flag and all. */
	uint64_t memory;
};

/* What it becomes; an empty text takes the field away. */
struct trainmaster_held {
	int64_t begin;
	char comment[TRAINMASTER_COMMENT];
	char tres_per_node[TRAINMASTER_TRES];
	char tres_per_job[TRAINMASTER_TRES];
	/* name \0 value \0 ... \0 */
	char environment[TRAINMASTER_ENVIRONMENT];
};

enum trainmaster_outcome {
	/* Not ours. */
	TRAINMASTER_PASSES = 0,
	TRAINMASTER_HELD = 1,
	/* The message is for its owner. */
	TRAINMASTER_REFUSED = 2,
	/* A panic; the message is for the log. The job must not pass as it is: its comment may say anything. */
	TRAINMASTER_FAILED = 3,
};

/* Reads the table [slurm] of this file, if it is there. 0, or -1 with a message. Once, before all else. */
int trainmaster_configure(const char *path, char *message, size_t room);
/* Reads it anew if it has changed; not where slurmctld holds its locks. 0, or -1 with a message: what was read before
 * holds. */
int trainmaster_look(char *message, size_t room);
/* Whether a comment says, or might say, what only Trainmaster says of a job. */
bool trainmaster_is_reserved(const char *comment);
/* Whether a job is ours: cheap, for every job, and before all else of it. Never panics across. */
bool trainmaster_is_ours(const char *comment, const char *script, int64_t component);
enum trainmaster_outcome trainmaster_submit(const struct trainmaster_submission *job, int64_t now,
					    const unsigned char random[16], struct trainmaster_held *held, char *message,
					    size_t room);

#endif
