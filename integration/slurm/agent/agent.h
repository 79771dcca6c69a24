// Interface between the plugin and its static library, the agent, beside that of trainmaster.h. agent.h is made from
// src/abi.rs.
//
// An agent is used by one thread. Texts are copied; other pointers may not be NULL, but for the agent that is closed.
// An order's texts are valid until the next round. No function panics, prints or exits.

#ifndef TRAINMASTER_AGENT_H
#define TRAINMASTER_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "trainmaster.h"

// The action for a job.
enum trainmaster_slurm_action {
    // slurm_update_job.
    TRAINMASTER_SLURM_ACTION_UPDATE,
    // slurm_requeue.
    TRAINMASTER_SLURM_ACTION_REQUEUE,
    // slurm_kill_job: sends SIGTERM, and SIGKILL after KillWait.
    TRAINMASTER_SLURM_ACTION_CANCEL,
};

// An open agent.
struct trainmaster_agent;

// The used fields of node_info_t. Memory and disk are in MiB.
struct trainmaster_slurm_node {
    trainmaster_c_string name;
    trainmaster_c_string features;
    trainmaster_c_string gres;
    trainmaster_c_string gres_drain;
    trainmaster_c_string gres_used;
    uint64_t memory;
    uint64_t disk;
    uint64_t used_memory;
    uint32_t state;
    uint32_t cpus;
    uint32_t threads;
    uint32_t used_cpus;
    // NO_VAL if it isn't known.
    uint32_t cpu_load;
};

// The used fields of partition_info_t.
struct trainmaster_slurm_partition {
    trainmaster_c_string name;
    trainmaster_c_string nodes;
    // def_mem_per_cpu as Slurm encodes it, with its flag.
    uint64_t default_memory;
    // Whether jobs can start.
    bool up;
};

// The used fields of slurm_job_info_t.
struct trainmaster_slurm_job {
    trainmaster_c_string name;
    trainmaster_c_string user;
    trainmaster_c_string account;
    trainmaster_c_string partition;
    trainmaster_c_string comment;
    trainmaster_c_string admin_comment;
    // The reason of the job's state, in squeue's spelling.
    trainmaster_c_string reason;
    trainmaster_c_string nodes;
    trainmaster_c_string batch_host;
    trainmaster_c_string tres;
    trainmaster_c_string tres_per_job;
    int64_t start;
    uint32_t id;
    uint32_t state;
    uint32_t priority;
    uint32_t exit;
    // For a component of a heterogeneous job: its leader's id. 0 for other jobs.
    uint32_t leader;
    // The component's number.
    uint32_t component;
};

// A call of Slurm's API. An update leaves fields with -1 or NULL unchanged.
struct trainmaster_slurm_order {
    uint32_t job;
    enum trainmaster_slurm_action action;
    int64_t min_nodes;
    int64_t max_nodes;
    int64_t tasks;
    int64_t tasks_per_node;
    int64_t cpus_per_task;
    int64_t cpus;
    int64_t cpus_per_node;
    int64_t priority;
    int64_t begin;
    // pn_min_memory as Slurm encodes it, with its flag. 0 leaves the field unchanged.
    uint64_t memory;
    const char *tres_per_node;
    const char *tres_per_job;
    const char *req_nodes;
    const char *admin_comment;
};

// Reads trainmaster.toml at `config` and restores the journal under `state`. Returns NULL after an error, which it
// logs. `log` writes a line to the log; any thread may call it.
struct trainmaster_agent *trainmaster_agent_open(trainmaster_c_string config,
                                                 trainmaster_c_string state,
                                                 void (*log)(bool is_error, const char *line));

// Writes what is left, and frees the agent.
void trainmaster_agent_close(struct trainmaster_agent *agent);

// Returns the milliseconds until the next round, unless the thread is woken earlier.
int32_t trainmaster_agent_wait(struct trainmaster_agent *agent);

// Begins a round. A round is these calls, in this order: begin; look, after the plugin has loaded Slurm's data; node,
// partition and job for every item of each kind that changed; round; answered for each order; finish.
void trainmaster_agent_begin(struct trainmaster_agent *agent);

// Says at which Unix time Slurm was looked at, and which kinds of items changed: all of a kind follow.
void trainmaster_agent_look(struct trainmaster_agent *agent,
                            int64_t now,
                            bool nodes,
                            bool partitions,
                            bool jobs);

// Shows a node.
void trainmaster_agent_node(struct trainmaster_agent *agent, const struct trainmaster_slurm_node *node);

// Shows a partition.
void trainmaster_agent_partition(struct trainmaster_agent *agent,
                                 const struct trainmaster_slurm_partition *partition);

// Shows a job.
void trainmaster_agent_job(struct trainmaster_agent *agent, const struct trainmaster_slurm_job *job);

// Shows the next entry of gres_detail_str of the job that was shown last.
void trainmaster_agent_job_gres(struct trainmaster_agent *agent, trainmaster_c_string gres);

// Returns the number of orders of this round, and points `orders` to them.
size_t trainmaster_agent_round(struct trainmaster_agent *agent,
                               const struct trainmaster_slurm_order **orders);

// Reports what Slurm answered to an order, by its index in this round's orders: `error` is 0, or Slurm's error number
// with its text in `words`.
void trainmaster_agent_answered(struct trainmaster_agent *agent,
                                size_t order,
                                uint32_t error,
                                trainmaster_c_string words);

// Ends the round.
void trainmaster_agent_finish(struct trainmaster_agent *agent);

#endif  /* TRAINMASTER_AGENT_H */
