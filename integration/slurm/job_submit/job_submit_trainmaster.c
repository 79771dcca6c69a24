/*
 * JobSubmitPlugins=trainmaster: recognises Trainmaster's jobs at submission, checks and holds them, and wakes the
 * agent. All other jobs pass unchanged.
 *
 * slurmctld holds its locks during these calls. They must not call Slurm's API, and must not block.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "submission.h"

const char plugin_name[] = "Trainmaster job submission";
const char plugin_type[] = "job_submit/trainmaster";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;
/* integration/slurm/check reads this text. */
#define TEXT_OF(text) #text
#define TEXT(text) TEXT_OF(text)
__attribute__((used)) static const char built_for[] = "trainmaster built for slurm " TEXT(SLURM_VERSION_NUMBER);

/* slurmctld exports these symbols, but no installed header declares them. */
extern slurm_conf_t slurm_conf;
extern void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern int slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void slurm_xfree(void **item);
extern char *slurm_xstrdup(const char *text);
extern void slurm_unsetenvp(char **env, const char *name);
extern int slurm_env_array_overwrite(char ***env, const char *name, const char *value);

/* Variables that sbatch sets from its options. They would be wrong after a resize, and srun uses them. */
static const char *const stale[] = {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};

/* The interval between two looks at the configuration file. */
#define LOOK_MS 1000

static int wake_socket = -1;
static pthread_t watcher;
static bool watching;
static int stop_event = -1;

/* Reads the configuration file when it changes. This thread can wait for the disk, unlike a submission. */
static void *watch(void *unused)
{
	struct pollfd event = {.fd = stop_event, .events = POLLIN};
	char text[TRAINMASTER_MESSAGE] = "";
	struct trainmaster_message message = {text, sizeof(text), 0};

	(void) unused;
	while (poll(&event, 1, LOOK_MS) <= 0)
		if (trainmaster_look(&message))
			slurm_error("trainmaster: %s; the previous configuration stays in force", text);
	return NULL;
}

/* Starts the thread with all signals blocked, because slurmctld handles them. */
static void start_watching(void)
{
	sigset_t all, before;

	stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (stop_event < 0)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	watching = pthread_create(&watcher, NULL, watch, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void stop_watching(void)
{
	const uint64_t one = 1;

	if (watching && write(stop_event, &one, sizeof(one)) == (ssize_t) sizeof(one)) {
		pthread_join(watcher, NULL);
		watching = false;
	}
	if (stop_event >= 0)
		close(stop_event);
	stop_event = -1;
}

static int64_t number(uint64_t value, uint64_t unset)
{
	return value >= unset ? -1 : (int64_t) value;
}

#define NUMBER32(value) number((value), NO_VAL)
#define NUMBER16(value) number((value), NO_VAL16)

extern int init(void)
{
	char path[4096], text[TRAINMASTER_MESSAGE] = "";
	struct trainmaster_message message = {text, sizeof(text), 0};
	const char *conf = slurm_conf.slurm_conf ? slurm_conf.slurm_conf : "";
	const char *end = strrchr(conf, '/');

	snprintf(path, sizeof(path), "%.*s/trainmaster.toml", end ? (int) (end - conf) : 1, end ? conf : ".");
	if (trainmaster_configure(path, &message))
		slurm_error("trainmaster: %s; using the defaults", text);
	start_watching();
	if (!watching)
		slurm_error("trainmaster: no thread watches the configuration file; "
			    "a change takes effect at the next restart");
	wake_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	slurm_info("trainmaster %s: holds jobs with --comment='trainmaster;...'", trainmaster_version());
	return SLURM_SUCCESS;
}

extern int fini(void)
{
	stop_watching();
	if (wake_socket >= 0)
		close(wake_socket);
	wake_socket = -1;
	return SLURM_SUCCESS;
}

/* Wakes the agent. An agent that gets no message runs its next round at its usual time. */
static void wake_agent(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/trainmaster.socket",
			      slurm_conf.state_save_location ? slurm_conf.state_save_location : "");

	if (wake_socket < 0 || length < 0 || (size_t) length >= sizeof(address.sun_path))
		return;
	sendto(wake_socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *) &address, sizeof(address));
}

static void set_text(char **field, const char *text)
{
	slurm_xfree((void **) field);
	if (text[0])
		*field = slurm_xstrdup(text);
}

/* Finds an option that leaves Trainmaster no choice of nodes, or that a resize would break. */
static void find_unsupported(const job_desc_msg_t *job, struct trainmaster_slurm_submission *out)
{
	const struct {
		const char *option, *value;
	} texts[] = {
		{"--nodelist", job->req_nodes},
		{"--exclude", job->exc_nodes},
		{"--constraint", job->features},
		{"--cluster-constraint", job->cluster_features},
		{"--batch", job->batch_features},
		{"--prefer", job->prefer},
		{"--reservation", job->reservation},
		{"--gpus-per-socket", job->tres_per_socket},
		{"--cpus-per-gpu", job->cpus_per_tres},
		{"--mem-per-gpu", job->mem_per_tres},
	};
	const struct {
		const char *option;
		bool set;
	} flags[] = {
		{"--exclusive", job->shared != NO_VAL16 && job->shared != JOB_SHARED_OK},
		{"--contiguous", job->contiguous == 1},
		{"--overcommit", job->overcommit != NO_VAL8 && job->overcommit > 0},
		{"--core-spec", job->core_spec != NO_VAL16},
		{"--ntasks-per-gpu", job->ntasks_per_tres != NO_VAL16},
		{"--ntasks-per-socket", job->ntasks_per_socket != NO_VAL16},
		{"--ntasks-per-core", job->ntasks_per_core != NO_VAL16},
		{"--sockets-per-node", job->sockets_per_node != NO_VAL16},
		{"--threads-per-core", job->threads_per_core != NO_VAL16},
		{"--switches", job->req_switch != NO_VAL},
		{"--tmp", job->pn_min_tmp_disk != NO_VAL},
		{"--deadline", job->deadline > 0},
		/* All memory of each node, on nodes of any size. */
		{"--mem=0", job->pn_min_memory == 0},
	};
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		if (texts[i].value && texts[i].value[0]) {
			out->unsupported_option = texts[i].option;
			out->unsupported_value = texts[i].value;
			return;
		}
	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++)
		if (flags[i].set) {
			out->unsupported_option = flags[i].option;
			out->unsupported_value = "";
			return;
		}
}

static void set_environment(job_desc_msg_t *job, const struct trainmaster_slurm_held *held)
{
	/* Both functions keep the array terminated by NULL, and free the variables that they remove. */
	for (size_t i = 0; i < sizeof(stale) / sizeof(*stale); i++)
		slurm_unsetenvp(job->environment, stale[i]);
	for (const char *name = held->environment; *name;) {
		const char *value = name + strlen(name) + 1;

		slurm_env_array_overwrite(&job->environment, name, value);
		name = value + strlen(value) + 1;
	}
	job->env_size = 0;
	while (job->environment[job->env_size])
		job->env_size++;
}

/* A training job waits as the plugin holds it. */
static void hold(job_desc_msg_t *job, const struct trainmaster_slurm_held *held)
{
	set_text(&job->comment, held->comment);
	set_text(&job->tres_per_node, held->tres_per_node);
	set_text(&job->tres_per_job, held->tres_per_job);
	set_text(&job->tres_per_task, "");
	job->begin_time = held->begin;
	job->requeue = 1;
	if (job->environment)
		set_environment(job, held);
}

extern int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	int result = SLURM_SUCCESS;
	struct trainmaster_slurm_held held = {0};
	struct trainmaster_slurm_random random;
	char text[TRAINMASTER_MESSAGE] = "";
	struct trainmaster_message message = {text, sizeof(text), 0};
	struct trainmaster_slurm_submission submission = {
		.name = job->name,
		.comment = job->comment,
		.script = job->script,
		.array = job->array_inx,
		.partition = job->partition,
		.tres_per_node = job->tres_per_node,
		.tres_per_task = job->tres_per_task,
		.tres_per_job = job->tres_per_job,
		.component = NUMBER32(job->het_job_offset),
		.begin = job->begin_time,
		.requeue = NUMBER16(job->requeue),
		.min_nodes = NUMBER32(job->min_nodes),
		.max_nodes = NUMBER32(job->max_nodes),
		.tasks = NUMBER32(job->num_tasks),
		.tasks_per_node = NUMBER16(job->ntasks_per_node),
		.cpus_per_task = NUMBER16(job->cpus_per_task),
		.memory = job->pn_min_memory,
	};

	(void) submit_uid;
	if (!trainmaster_is_ours(submission.comment, submission.script, submission.component))
		return SLURM_SUCCESS;
	find_unsupported(job, &submission);
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t) sizeof(random)) {
		*err_msg = slurm_xstrdup("trainmaster: no random numbers for the job's token; submit it again");
		return ESLURM_NOT_SUPPORTED;
	}
	switch (trainmaster_submit(&submission, time(NULL), &random, &held, &message)) {
	case TRAINMASTER_SLURM_OUTCOME_HELD:
		hold(job, &held);
		wake_agent();
		break;
	case TRAINMASTER_SLURM_OUTCOME_REFUSED:
		*err_msg = slurm_xstrdup(text);
		result = ESLURM_NOT_SUPPORTED;
		break;
	case TRAINMASTER_SLURM_OUTCOME_FAILED:
		slurm_error("trainmaster: a job is refused because of an internal error in the plugin: %s", text);
		*err_msg = slurm_xstrdup("trainmaster: internal error in the plugin; see slurmctld's log");
		result = ESLURM_NOT_SUPPORTED;
		break;
	default:
		break;
	}
	/* Both have the job's token. */
	explicit_bzero(&held, sizeof(held));
	explicit_bzero(&random, sizeof(random));
	return result;
}

/* Only root and Slurm's user may set a comment of Trainmaster's form. Such a comment holds the hash of the job's token
 * and the requested options. Older versions of slurmctld have no place for a message. */
extern int job_modify(job_desc_msg_t *job, void *record, uint32_t submit_uid)
{
	(void) record;
	if (submit_uid == 0 || submit_uid == slurm_conf.slurm_user_id || !job->comment)
		return SLURM_SUCCESS;
	if (!trainmaster_is_reserved(job->comment))
		return SLURM_SUCCESS;
	slurm_info("trainmaster: user %u may not give job %s a comment that begins with \"trainmaster\"", submit_uid,
		   job->job_id_str ? job->job_id_str : "?");
	return ESLURM_ACCESS_DENIED;
}
