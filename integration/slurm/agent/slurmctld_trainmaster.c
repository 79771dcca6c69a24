/*
 * SlurmctldPlugstack=trainmaster: a thread that loads Slurm's state, runs Trainmaster's rounds and carries out their
 * orders. It uses Slurm's public API only. It holds no lock of slurmctld, and slurmctld never waits for it.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "agent.h"

const char plugin_name[] = "Trainmaster";
const char plugin_type[] = "slurmctld/trainmaster";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;
/* integration/slurm/check reads this text. */
#define TEXT_OF(text) #text
#define TEXT(text) TEXT_OF(text)
__attribute__((used)) static const char built_for[] = "trainmaster built for slurm " TEXT(SLURM_VERSION_NUMBER);

/* slurmctld exports these symbols, but no installed header declares them. */
extern slurm_conf_t slurm_conf;
extern void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern int slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern char *slurm_job_reason_string(int reason);

/* The wait before the first round: slurmctld answers calls only after it has read its state. */
#define FIRST_LOOK_MS 1000
/* The wait between attempts to open the agent. */
#define REOPEN_MS 30000
/* The wait after a failed call. */
#define RETRY_MS 2000
/* The minimum wait between two rounds. */
#define BETWEEN_LOOKS_MS 100

static pthread_t thread;
static bool running;
static int stop_event = -1, wake_socket = -1;
static char wake_path[sizeof(((struct sockaddr_un *) 0)->sun_path)];
/* Copies of slurmctld's paths, because scontrol reconfigure frees the originals. */
static char config[4096], state[4096];

struct loaded {
	node_info_msg_t *nodes;
	partition_info_msg_t *partitions;
	job_info_msg_t *jobs;
};

static void log_line(bool is_error, const char *line)
{
	if (is_error)
		slurm_error("%s", line);
	else
		slurm_info("%s", line);
}

/* Waits for this time or a wake-up. Returns false once the plugin stops. */
static bool wait_or_stop(int milliseconds)
{
	struct pollfd events[] = {{.fd = stop_event, .events = POLLIN}, {.fd = wake_socket, .events = POLLIN}};
	char drop[64];

	while (poll(events, wake_socket < 0 ? 1 : 2, milliseconds) < 0 && errno == EINTR)
		;
	if (events[0].revents)
		return false;
	if (wake_socket >= 0)
		while (recv(wake_socket, drop, sizeof(drop), MSG_DONTWAIT) >= 0)
			;
	return true;
}

/* Waits for this time, without wake-ups. Returns true once the plugin stops. */
static bool stops_within(int milliseconds)
{
	struct pollfd event = {.fd = stop_event, .events = POLLIN};

	return poll(&event, 1, milliseconds) > 0;
}

/* Stores the new message and sets `changed`, or keeps the old one if Slurm has no change. Returns the error of a failed
 * call. */
#define LOAD(call, free_it, kept)                                                                                      \
	do {                                                                                                           \
		fresh = NULL;                                                                                          \
		if ((call) == SLURM_SUCCESS) {                                                                         \
			if (kept)                                                                                      \
				free_it(kept);                                                                         \
			kept = fresh;                                                                                  \
			changed = true;                                                                                \
		} else if (slurm_get_errno() == SLURM_NO_CHANGE_IN_DATA && kept) {                                     \
			changed = false;                                                                               \
		} else {                                                                                               \
			return slurm_get_errno() ? slurm_get_errno() : SLURM_ERROR;                                    \
		}                                                                                                      \
	} while (0)

static int load_nodes(struct loaded *loaded, bool *out)
{
	node_info_msg_t *fresh;
	bool changed;
	time_t since = loaded->nodes ? loaded->nodes->last_update : 0;

	LOAD(slurm_load_node(since, &fresh, SHOW_ALL | SHOW_DETAIL), slurm_free_node_info_msg, loaded->nodes);
	*out = changed;
	return 0;
}

static int load_partitions(struct loaded *loaded, bool *out)
{
	partition_info_msg_t *fresh;
	bool changed;
	time_t since = loaded->partitions ? loaded->partitions->last_update : 0;

	LOAD(slurm_load_partitions(since, &fresh, SHOW_ALL), slurm_free_partition_info_msg, loaded->partitions);
	*out = changed;
	return 0;
}

static int load_jobs(struct loaded *loaded, bool *out)
{
	job_info_msg_t *fresh;
	bool changed;
	time_t since = loaded->jobs ? loaded->jobs->last_update : 0;

	LOAD(slurm_load_jobs(since, &fresh, SHOW_ALL | SHOW_DETAIL), slurm_free_job_info_msg, loaded->jobs);
	*out = changed;
	return 0;
}

static void pass_node(struct trainmaster_agent *agent, node_info_t *node)
{
	uint16_t used_cpus = 0;
	uint64_t used_memory = 0;
	uint16_t effective = node->cpus_efctv ? node->cpus_efctv : node->cpus;

	/* An unused entry of the node table. */
	if (!node->name)
		return;
	slurm_get_select_nodeinfo(node->select_nodeinfo, SELECT_NODEDATA_SUBCNT, NODE_STATE_ALLOCATED, &used_cpus);
	slurm_get_select_nodeinfo(node->select_nodeinfo, SELECT_NODEDATA_MEM_ALLOC, NODE_STATE_ALLOCATED, &used_memory);
	trainmaster_agent_node(agent, &(struct trainmaster_slurm_node){
		.name = node->name,
		.features = node->features_act ? node->features_act : node->features,
		.gres = node->gres,
		.gres_drain = node->gres_drain,
		.gres_used = node->gres_used,
		.memory = node->real_memory > node->mem_spec_limit ? node->real_memory - node->mem_spec_limit : 0,
		.disk = node->tmp_disk,
		.used_memory = used_memory,
		.state = node->node_state,
		.cpus = effective,
		.threads = node->threads,
		.used_cpus = used_cpus,
		.cpu_load = node->cpu_load,
	});
}

static void pass_partition(struct trainmaster_agent *agent, partition_info_t *partition)
{
	trainmaster_agent_partition(agent, &(struct trainmaster_slurm_partition){
		.name = partition->name,
		.nodes = partition->nodes,
		.default_memory = partition->def_mem_per_cpu,
		.up = partition->state_up == PARTITION_UP,
	});
}

static void pass_job(struct trainmaster_agent *agent, slurm_job_info_t *job)
{
	char user[16];

	/* Skips the jobs of others. Their nodes report what they use. */
	if (!job->comment || strncmp(job->comment, "trainmaster", strlen("trainmaster")))
		return;
	snprintf(user, sizeof(user), "%u", job->user_id);
	trainmaster_agent_job(agent, &(struct trainmaster_slurm_job){
		.id = job->job_id,
		.name = job->name,
		.user = job->user_name && *job->user_name ? job->user_name : user,
		.account = job->account,
		.partition = job->partition,
		.comment = job->comment,
		.admin_comment = job->admin_comment,
		.reason = slurm_job_reason_string(job->state_reason),
		.nodes = job->nodes,
		.batch_host = job->batch_host,
		.tres = job->tres_alloc_str,
		.tres_per_job = job->tres_per_job,
		.start = job->start_time,
		.state = job->job_state,
		.priority = job->priority,
		.exit = job->exit_code,
		.leader = job->het_job_id,
		.component = job->het_job_offset,
	});
	for (uint32_t i = 0; job->gres_detail_str && i < job->gres_detail_cnt; i++)
		trainmaster_agent_job_gres(agent, job->gres_detail_str[i]);
}

static uint32_t done(int result)
{
	int error;

	if (result == SLURM_SUCCESS)
		return 0;
	error = slurm_get_errno();
	return error > 0 ? (uint32_t) error : (uint32_t) ESLURM_NOT_SUPPORTED;
}

static uint32_t update(const struct trainmaster_slurm_order *order)
{
	job_desc_msg_t job;

	slurm_init_job_desc_msg(&job);
	job.job_id = order->job;
	if (order->min_nodes >= 0)
		job.min_nodes = (uint32_t) order->min_nodes;
	if (order->max_nodes >= 0)
		job.max_nodes = (uint32_t) order->max_nodes;
	if (order->tasks >= 0)
		job.num_tasks = (uint32_t) order->tasks;
	if (order->tasks_per_node >= 0)
		job.ntasks_per_node = (uint16_t) order->tasks_per_node;
	if (order->cpus_per_task >= 0)
		job.cpus_per_task = (uint16_t) order->cpus_per_task;
	if (order->cpus >= 0)
		job.min_cpus = (uint32_t) order->cpus;
	if (order->cpus_per_node >= 0)
		job.pn_min_cpus = (uint16_t) order->cpus_per_node;
	if (order->memory)
		job.pn_min_memory = order->memory;
	if (order->priority >= 0)
		job.priority = (uint32_t) order->priority;
	if (order->begin >= 0)
		job.begin_time = (time_t) order->begin;
	/* The API only reads these texts. */
	job.tres_per_node = (char *) order->tres_per_node;
	job.tres_per_job = (char *) order->tres_per_job;
	job.req_nodes = (char *) order->req_nodes;
	job.admin_comment = (char *) order->admin_comment;
	return done(slurm_update_job(&job));
}

static uint32_t carry_out(const struct trainmaster_slurm_order *order)
{
	switch (order->action) {
	case TRAINMASTER_SLURM_ACTION_UPDATE:
		return update(order);
	case TRAINMASTER_SLURM_ACTION_REQUEUE:
		return done(slurm_requeue(order->job, 0));
	case TRAINMASTER_SLURM_ACTION_CANCEL:
		return done(slurm_kill_job(order->job, SIGKILL, 0));
	}
	return ESLURM_NOT_SUPPORTED;
}

/* Runs one round. Returns 0, or the error of a call whose data the round needs. */
static int round_trip(struct trainmaster_agent *agent, struct loaded *loaded)
{
	const struct trainmaster_slurm_order *orders;
	bool nodes = false, partitions = false, jobs = false;
	int error;
	size_t count;

	trainmaster_agent_begin(agent);
	if ((error = load_nodes(loaded, &nodes)) || stops_within(0) || (error = load_partitions(loaded, &partitions)) ||
	    stops_within(0) || (error = load_jobs(loaded, &jobs)) || stops_within(0))
		return error;
	trainmaster_agent_look(agent, time(NULL), nodes, partitions, jobs);
	for (uint32_t i = 0; nodes && i < loaded->nodes->record_count; i++)
		pass_node(agent, &loaded->nodes->node_array[i]);
	for (uint32_t i = 0; partitions && i < loaded->partitions->record_count; i++)
		pass_partition(agent, &loaded->partitions->partition_array[i]);
	for (uint32_t i = 0; jobs && i < loaded->jobs->record_count; i++)
		pass_job(agent, &loaded->jobs->job_array[i]);
	count = trainmaster_agent_round(agent, &orders);
	/* A stopping slurmctld answers no orders. The agent repeats them after the restart. */
	for (size_t i = 0; i < count && !stops_within(0); i++) {
		uint32_t answer = carry_out(&orders[i]);

		trainmaster_agent_answered(agent, i, answer, answer ? slurm_strerror((int) answer) : NULL);
	}
	trainmaster_agent_finish(agent);
	return 0;
}

static void find_paths(void)
{
	const char *conf = slurm_conf.slurm_conf ? slurm_conf.slurm_conf : "";
	const char *end = strrchr(conf, '/');

	snprintf(config, sizeof(config), "%.*s/trainmaster.toml", end ? (int) (end - conf) : 1, end ? conf : ".");
	snprintf(state, sizeof(state), "%s", slurm_conf.state_save_location ? slurm_conf.state_save_location : ".");
}

static void *run(void *unused)
{
	struct loaded loaded = {NULL, NULL, NULL};
	struct trainmaster_agent *agent;
	int known = 0;

	(void) unused;
	if (!wait_or_stop(FIRST_LOOK_MS))
		return NULL;
	/* The log has the error. An administrator can correct the configuration while slurmctld runs. */
	while (!(agent = trainmaster_agent_open(config, state, log_line)))
		if (!wait_or_stop(REOPEN_MS))
			return NULL;
	for (;;) {
		int error = round_trip(agent, &loaded);

		if (error && error != known)
			slurm_error("trainmaster: Slurm doesn't answer: %s", slurm_strerror(error));
		else if (!error && known)
			slurm_info("trainmaster: Slurm answers again");
		known = error;
		if (!wait_or_stop(error ? RETRY_MS : trainmaster_agent_wait(agent)))
			break;
		/* Frequent wake-ups must not keep slurmctld's locks from Slurm. */
		if (stops_within(BETWEEN_LOOKS_MS))
			break;
	}
	trainmaster_agent_close(agent);
	if (loaded.nodes)
		slurm_free_node_info_msg(loaded.nodes);
	if (loaded.partitions)
		slurm_free_partition_info_msg(loaded.partitions);
	if (loaded.jobs)
		slurm_free_job_info_msg(loaded.jobs);
	return NULL;
}

static void open_wake_socket(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int length = snprintf(wake_path, sizeof(wake_path), "%s/trainmaster.socket", state);

	if (length < 0 || (size_t) length >= sizeof(wake_path)) {
		slurm_error("trainmaster: StateSaveLocation is too long a path for a socket; "
			    "jobs are seen up to a second later");
		wake_path[0] = 0;
		return;
	}
	memcpy(address.sun_path, wake_path, (size_t) length + 1);
	unlink(wake_path);
	wake_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (wake_socket >= 0 && bind(wake_socket, (struct sockaddr *) &address, sizeof(address))) {
		close(wake_socket);
		wake_socket = -1;
	}
	if (wake_socket < 0)
		slurm_error("trainmaster: %s: %s; jobs are seen up to a second later", wake_path, strerror(errno));
}

static void release(void)
{
	if (wake_socket >= 0) {
		close(wake_socket);
		unlink(wake_path);
		wake_socket = -1;
	}
	close(stop_event);
}

extern int init(void)
{
	sigset_t all, before;
	int error;

	stop_event = eventfd(0, EFD_CLOEXEC);
	if (stop_event < 0)
		return SLURM_ERROR;
	find_paths();
	open_wake_socket();
	/* slurmctld handles the signals, so that the agent's threads block them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	running = !error;
	if (error) {
		slurm_error("trainmaster: its thread can't be started: %s", strerror(error));
		release();
	}
	return error ? SLURM_ERROR : SLURM_SUCCESS;
}

extern int fini(void)
{
	uint64_t one = 1;

	if (running && write(stop_event, &one, sizeof(one)) == (ssize_t) sizeof(one)) {
		/* The thread ends after its current API call. */
		pthread_join(thread, NULL);
		running = false;
	}
	release();
	return SLURM_SUCCESS;
}

extern void slurmctld_plugstack_p_get_config(void *parameters)
{
	(void) parameters;
}
