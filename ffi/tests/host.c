// Loads a plugin as a server does. The host defines functions with the library's names, too; the plugin has to call its
// own.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

uint32_t trainmaster_abi_version(void);
uint32_t trainmaster_scheduler_new(void);
uint32_t trainmaster_abi_version(void) { return 99; }
uint32_t trainmaster_scheduler_new(void) { return 99; }

int main(int argc, char **argv) {
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_LAZY) : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*decide)(void);
    void *found = dlsym(plugin, "plugin_decide");
    memcpy(&decide, &found, sizeof decide);
    printf("the plugin decided: %d job runs\n", decide());
    return 0;
}
