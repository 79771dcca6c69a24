/*
 * Interface between the plugin and its static library. src/abi.rs declares the same in Rust.
 *
 * An agent is used by one thread. Texts are copied, end with a zero byte and may be NULL. An order's texts are valid
 * until the next round. No function panics, prints or exits.
 */
#ifndef TRAINMASTER_AGENT_H
#define TRAINMASTER_AGENT_H

#include <stddef.h>
#include <stdint.h>

typedef struct trainmaster_agent trainmaster_agent;

/* Writes a line to the log. Any thread may call it. */
typedef void (*trainmaster_agent_log)(uint32_t is_error, const char *line);

/* The used fields of node_info_t. Memory and disk are in MiB. */
struct trainmaster_node {
	const char *name, *features, *gres, *gres_drain, *gres_used;
	uint64_t memory, disk, used_memory;
	uint32_t state, cpus, threads, used_cpus;
};

/* The used fields of partition_info_t. */
struct trainmaster_partition {
	const char *name, *nodes;
	/* def_mem_per_cpu as Slurm encodes it, with its flag. */
	uint64_t default_memory;
	/* Whether jobs can start. */
	uint32_t up;
};

/* The used fields of slurm_job_info_t. */
struct trainmaster_job {
	const char *name, *user, *account, *partition, *comment, *admin_comment;
	/* The reason of the job's state, in squeue's spelling. */
	const char *reason;
	const char *nodes, *batch_host, *tres, *tres_per_job;
	/* gres_detail_str. */
	const char *const *gres;
	size_t gres_count;
	int64_t start;
	uint32_t id, state, priority, exit;
	/* For a component of a heterogeneous job: its leader's id and its number. The leader of other jobs is 0. */
	uint32_t leader, component;
};

enum trainmaster_action {
	TRAINMASTER_UPDATE = 0,
	TRAINMASTER_REQUEUE = 1,
	/* Sends SIGTERM, and SIGKILL after KillWait. */
	TRAINMASTER_CANCEL = 2,
};

/* A call of Slurm's API. An update leaves fields with -1 or NULL unchanged. */
struct trainmaster_order {
	uint32_t job;
	uint32_t action;
	int64_t min_nodes, max_nodes, tasks, tasks_per_node, cpus_per_task;
	int64_t cpus, cpus_per_node, priority, begin;
	/* pn_min_memory as Slurm encodes it, with its flag. 0 leaves the field unchanged. */
	uint64_t memory;
	const char *tres_per_node, *tres_per_job, *req_nodes, *admin_comment;
};

/* Reads trainmaster.toml and restores the journal under `state`. Returns NULL after an error, which it logs. */
trainmaster_agent *trainmaster_agent_open(const char *config, const char *state, trainmaster_agent_log log);
void trainmaster_agent_close(trainmaster_agent *agent);
/* Returns the milliseconds until the next round, unless the thread is woken earlier. */
int32_t trainmaster_agent_wait(trainmaster_agent *agent);

/* A round calls in this order: begin; look, after the plugin has loaded Slurm's data; node, partition and job for every
 * item of each kind that changed; round; answered for each order; finish. */
void trainmaster_agent_begin(trainmaster_agent *agent);
void trainmaster_agent_look(trainmaster_agent *agent, int64_t now, uint32_t nodes, uint32_t partitions, uint32_t jobs);
void trainmaster_agent_node(trainmaster_agent *agent, const struct trainmaster_node *node);
void trainmaster_agent_partition(trainmaster_agent *agent, const struct trainmaster_partition *partition);
void trainmaster_agent_job(trainmaster_agent *agent, const struct trainmaster_job *job);
size_t trainmaster_agent_round(trainmaster_agent *agent, const struct trainmaster_order **orders);
/* `error` is 0, or Slurm's error number with its text in `words`. */
void trainmaster_agent_answered(trainmaster_agent *agent, size_t order, uint32_t error, const char *words);
void trainmaster_agent_finish(trainmaster_agent *agent);

#endif
