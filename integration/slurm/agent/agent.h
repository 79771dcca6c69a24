/*
 * Between the plugin and its static library (src/abi.rs, which says the same in Rust).
 *
 * One thread uses an agent. Texts may be NULL, are copied, and end with a zero; those of orders last until the next round.
 * Nothing here panics, prints or exits.
 */
#ifndef TRAINMASTER_AGENT_H
#define TRAINMASTER_AGENT_H

#include <stddef.h>
#include <stdint.h>

typedef struct trainmaster_agent trainmaster_agent;

/* A line for the log; may come from any thread. */
typedef void (*trainmaster_agent_log)(uint32_t is_error, const char *line);

/* What of node_info_t matters. Memory and disk in MiB. */
struct trainmaster_node {
	const char *name, *features, *gres, *gres_drain, *gres_used;
	uint64_t memory, disk, used_memory;
	uint32_t state, cpus, threads, used_cpus;
};

/* What of partition_info_t matters. */
struct trainmaster_partition {
	const char *name, *nodes;
	/* As Slurm has it, flag and all. */
	uint64_t default_memory;
	/* Whether jobs may start. */
	uint32_t up;
};

/* What of slurm_job_info_t matters. */
struct trainmaster_job {
	const char *name, *user, *account, *partition, *comment, *admin_comment;
	/* In a word, as squeue has it. */
	const char *reason;
	const char *nodes, *batch_host, *tres, *tres_per_job;
	/* gres_detail_str. */
	const char *const *gres;
	size_t gres_count;
	int64_t start;
	uint32_t id, state, priority, exit;
	/* Of a heterogeneous job: its leader's id, 0 of others, and which component it is. */
	uint32_t leader, component;
};

enum trainmaster_action {
	TRAINMASTER_UPDATE = 0,
	TRAINMASTER_REQUEUE = 1,
	/* SIGTERM, KillWait, SIGKILL. */
	TRAINMASTER_CANCEL = 2,
};

/* A call of Slurm's API. In an update, -1 and NULL leave a field as it is. */
struct trainmaster_order {
	uint32_t job;
	uint32_t action;
	int64_t min_nodes, max_nodes, tasks, tasks_per_node, cpus_per_task;
	int64_t cpus, cpus_per_node, priority, begin;
	/* pn_min_memory as it is set, flag and all; 0 leaves it. */
	uint64_t memory;
	const char *tres_per_node, *tres_per_job, *req_nodes, *admin_comment;
};

/* Reads trainmaster.toml and goes on where the journal under `state` ends. NULL: the log says why not. */
trainmaster_agent *trainmaster_agent_open(const char *config, const char *state, trainmaster_agent_log log);
void trainmaster_agent_close(trainmaster_agent *agent);
/* Milliseconds until the next round, if nobody wakes the thread before. */
int32_t trainmaster_agent_wait(trainmaster_agent *agent);

/* A round: begin, load, look, name everything of the kinds that are looked at anew, round, answered for each order, finish. */
void trainmaster_agent_begin(trainmaster_agent *agent);
void trainmaster_agent_look(trainmaster_agent *agent, int64_t now, uint32_t nodes, uint32_t partitions, uint32_t jobs);
void trainmaster_agent_node(trainmaster_agent *agent, const struct trainmaster_node *node);
void trainmaster_agent_partition(trainmaster_agent *agent, const struct trainmaster_partition *partition);
void trainmaster_agent_job(trainmaster_agent *agent, const struct trainmaster_job *job);
size_t trainmaster_agent_round(trainmaster_agent *agent, const struct trainmaster_order **orders);
/* 0, or Slurm's error number and its words for it. */
void trainmaster_agent_answered(trainmaster_agent *agent, size_t order, uint32_t error, const char *words);
void trainmaster_agent_finish(trainmaster_agent *agent);

#endif
