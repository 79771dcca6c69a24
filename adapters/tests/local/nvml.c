// Functions of NVML with scripted answers, for tests on machines without GPUs. FIRST and SECOND are pids. Samples take
// WAIT seconds. The layouts are those of NVIDIA's nvml.h.
#include <stddef.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct {
    unsigned bus;
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

typedef struct {
    char old_name[16];
    unsigned domain, bus, device, id, subsystem;
    char name[32];
} Place;

// The library's order isn't that of the bus.
static Device devices[3] = {{7}, {9}, {5}};
static const unsigned TELLS = 5, NOTHING = 9;
static const Sample samples[] = {{1000, 100}, {2000, 4000}, {3000, 60}};
static const ProcessSample processes[] = {
    {FIRST, 1500, 60, 5, 0, 0},
    {FIRST, 2500, 30, 5, 0, 0},
    {SECOND, 2500, 30, 5, 0, 0},
    {0, 2600, 7, 0, 0, 0},
    {SECOND, 2600, 2147483632, 0, 0, 0},
    {SECOND, 1ull << 62, 50, 0, 0, 0},
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

int nvmlDeviceGetPciInfo_v3(Device *device, Place *place) {
    *place = (Place){.bus = device->bus, .name = "0000:00:00.0", .old_name = "0000:00:00.0"};
    return SUCCESS;
}

// A driver answers with the number of samples if there is no room for them.
int nvmlDeviceGetSamples(Device *device, int kind, unsigned long long after, unsigned *type, unsigned *count,
                         Sample *into) {
    sleep(WAIT);
    if (device->bus == NOTHING) return NOT_SUPPORTED;
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
    if (device->bus == NOTHING) return NOT_SUPPORTED;
    rates[0] = 37;
    rates[1] = 5;
    return SUCCESS;
}

int nvmlDeviceGetProcessUtilization(Device *device, ProcessSample *into, unsigned *count, unsigned long long after) {
    if (device->bus != TELLS) return NOT_SUPPORTED;
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
