// Functions of NVML with scripted answers, for tests on machines without GPUs. FIRST and SECOND are pids.
// The layouts are those of NVIDIA's nvml.h.
#include <stddef.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct {
    int index;
} Device;

typedef struct {
    unsigned long long time;
    unsigned long long value;
} Sample;

typedef struct {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
} ProcessSample;

static Device devices[3] = {{0}, {1}, {2}};
static const Sample samples[] = {{1000, 100}, {2000, 200}, {3000, 60}};
static const ProcessSample processes[] = {
    {FIRST, 1500, 60, 5, 0, 0}, {FIRST, 2500, 30, 5, 0, 0}, {SECOND, 2500, 30, 5, 0, 0}, {0, 2600, 7, 0, 0, 0},
};

int nvmlInit_v2(void) { return SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 3;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= 3) return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

// A driver answers with the number of samples if there is no room for them.
int nvmlDeviceGetSamples(Device *device, int kind, unsigned long long after, unsigned *type, unsigned *count,
                         Sample *into) {
    if (device->index == 2) return NOT_SUPPORTED;
    if (kind != 1) return INVALID_ARGUMENT;
    unsigned found = 0;
    for (size_t at = 0; at < sizeof samples / sizeof *samples; at++) {
        if (samples[at].time <= after) continue;
        if (into) into[found] = samples[at];
        found++;
    }
    if (!found) return NOT_FOUND;
    *type = 1;
    *count = found;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2]) {
    if (device->index == 2) return NOT_SUPPORTED;
    rates[0] = 37;
    rates[1] = 5;
    return SUCCESS;
}

int nvmlDeviceGetProcessUtilization(Device *device, ProcessSample *into, unsigned *count, unsigned long long after) {
    if (device->index != 0) return NOT_SUPPORTED;
    unsigned found = 0;
    for (size_t at = 0; at < sizeof processes / sizeof *processes; at++) {
        if (processes[at].time <= after) continue;
        if (into) into[found] = processes[at];
        found++;
    }
    if (!found) return NOT_FOUND;
    *count = found;
    return into ? SUCCESS : INSUFFICIENT_SIZE;
}
