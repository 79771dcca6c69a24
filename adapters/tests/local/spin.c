// Keeps the first NVIDIA GPU busy for ARGUMENT 1 ms, then idle for ARGUMENT 2 ms, for ever, or ends ("once"). It needs
// nothing but the driver, whose compiler takes the kernel's PTX.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                             ".visible .entry spin(.param .u64 length) {\n"
                             "  .reg .u64 %length, %start, %now;\n"
                             "  .reg .pred %early;\n"
                             "  ld.param.u64 %length, [length];\n"
                             "  mov.u64 %start, %globaltimer;\n"
                             "again:\n"
                             "  mov.u64 %now, %globaltimer;\n"
                             "  sub.u64 %now, %now, %start;\n"
                             "  setp.lt.u64 %early, %now, %length;\n"
                             "  @%early bra again;\n"
                             "  ret;\n}\n";

static void *driver;

static void *function(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(1);
    }
    return found;
}

static void must(int error, const char *what) {
    if (error) {
        fprintf(stderr, "%s: CUDA error %d\n", what, error);
        exit(1);
    }
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: spin BUSY_MS IDLE_MS\n");
        return 2;
    }
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "no driver of an NVIDIA GPU: %s\n", dlerror());
        return 1;
    }
    int (*init)(unsigned) = function("cuInit");
    int (*get)(int *, int) = function("cuDeviceGet");
    int (*context)(void **, int) = function("cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = function("cuCtxSetCurrent");
    int (*load)(void **, const void *) = function("cuModuleLoadData");
    int (*find)(void **, void *, const char *) = function("cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **) = function("cuLaunchKernel");
    int (*wait)(void) = function("cuCtxSynchronize");
    int device;
    void *entered, *module, *spin;
    must(init(0), "cuInit");
    must(get(&device, 0), "cuDeviceGet");
    must(context(&entered, device), "cuDevicePrimaryCtxRetain");
    must(enter(entered), "cuCtxSetCurrent");
    must(load(&module, kernel), "cuModuleLoadData");
    must(find(&spin, module, "spin"), "cuModuleGetFunction");
    unsigned long long length = strtoull(arguments[1], NULL, 10) * 1000000;
    unsigned idle = strtoul(arguments[2], NULL, 10) * 1000;
    void *given[] = {&length};
    for (;;) {
        must(launch(spin, 1, 1, 1, 1, 1, 1, 0, NULL, given, NULL), "cuLaunchKernel");
        must(wait(), "cuCtxSynchronize");
        if (!strcmp(arguments[2], "once")) {
            return 0;
        }
        usleep(idle);
    }
}
