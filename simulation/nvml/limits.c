/*
 * Limits of GPU memory by control group, as NVIDIA's driver has them since branch 615:
 * https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html
 *
 * Every program that loads this library sees the same limits. They are lines `UUID soft hard FOLDER` in the file
 * `<machine file>.limits`, and a driver that starts again has none: remove the file. A group that is gone loses its
 * limits, as in the driver. What a group uses is what its processes use, by the machine file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"

#define FIRST_BRANCH 615
#define MOST_LIMITS 4096
#define NO_LIMIT 0xFFFFFFFFFFFFFFFFULL

typedef struct { const char *group; unsigned long long soft, hard; } SetLimits;
typedef struct { const char *group; unsigned long long soft, hard, used; } GetLimits;
_Static_assert(sizeof(SetLimits) == 24, "nvmlSetMemoryLimits_v1_t");
_Static_assert(sizeof(GetLimits) == 32, "nvmlGetMemoryLimits_v1_t");

typedef struct { char uuid[80], group[PATH_MAX]; unsigned long long soft, hard; } Limit;

static Limit limits[MOST_LIMITS];
static int limit_count;

static bool is_group(const char *folder) {
    char path[PATH_MAX];
    struct stat found;
    return folder && snprintf(path, sizeof path, "%s/cgroup.procs", folder) < (int)sizeof path && !stat(path, &found);
}

/* Opens and locks the file, and reads the limits of the groups that exist. */
static int read_limits(void) {
    char path[PATH_MAX];
    const char *machine_file = getenv("TOPOGPU_FAKE_NVML_MACHINE");
    snprintf(path, sizeof path, "%s.limits", machine_file ? machine_file : "/run/topogpu-fake-nvml");
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) file = open(path, O_RDONLY | O_CLOEXEC);
    limit_count = 0;
    if (file < 0) return -1;
    while (flock(file, LOCK_EX) && errno == EINTR) {}
    FILE *text = fdopen(dup(file), "r");
    Limit one;
    while (text && limit_count < MOST_LIMITS &&
           fscanf(text, "%79s %llu %llu %4095[^\n]", one.uuid, &one.soft, &one.hard, one.group) == 4)
        if (is_group(one.group)) limits[limit_count++] = one;
    if (text) fclose(text);
    return file;
}

static bool write_limits(int file) {
    bool good = !ftruncate(file, 0);
    lseek(file, 0, SEEK_SET);
    for (int k = 0; k < limit_count; k++)
        good &= dprintf(file, "%s %llu %llu %s\n", limits[k].uuid, limits[k].soft, limits[k].hard, limits[k].group) > 0;
    return good;
}

static Limit *limit_of(const char *uuid, const char *group) {
    for (int k = 0; k < limit_count; k++)
        if (!strcmp(limits[k].uuid, uuid) && !strcmp(limits[k].group, group)) return &limits[k];
    return NULL;
}

/* The pids of the host that are in the group itself. */
static unsigned long long used_by(const char *folder, int gpu) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/cgroup.procs", folder);
    FILE *list = fopen(path, "re");
    unsigned long long used = 0;
    unsigned pid;
    while (list && fscanf(list, "%u", &pid) == 1)
        for (int k = 0; k < machine->process_count; k++) {
            const Process *one = &machine->processes[k];
            if (one->gpu == gpu && one->pid == pid) used += one->used_mib << 20;
        }
    if (list) fclose(list);
    return used;
}

/* What stands in the way of either call; no MIG, no older driver, version 2 of control groups. */
static int problem(const Gpu *gpu, const char *group) {
    if (atoi(machine->driver) < FIRST_BRANCH) return FUNCTION_NOT_FOUND;
    if (gpu->mig == 1) return NOT_SUPPORTED;
    return is_group(group) ? SUCCESS : INVALID_ARGUMENT;
}

DEVICE_CALL(nvmlDeviceSetMemoryLimits_v1, const SetLimits *wanted)
    if ((code = problem(gpu, wanted->group)) != SUCCESS) return leave(code);
    if (geteuid()) return leave(NO_PERMISSION);
    if (wanted->soft > wanted->hard) return leave(INVALID_ARGUMENT);
    int file = read_limits();
    if (file < 0) return leave(UNKNOWN);
    Limit *own = limit_of(gpu->uuid, wanted->group);
    if (!own && wanted->hard != NO_LIMIT) own = limit_count < MOST_LIMITS ? &limits[limit_count++] : NULL;
    if (own) {
        snprintf(own->uuid, sizeof own->uuid, "%s", gpu->uuid);
        snprintf(own->group, sizeof own->group, "%s", wanted->group);
        own->soft = wanted->soft;
        own->hard = wanted->hard;
        if (own->hard == NO_LIMIT) *own = limits[--limit_count];
    } else if (wanted->hard != NO_LIMIT) {
        code = UNKNOWN;
    }
    if (!write_limits(file)) code = UNKNOWN;
    close(file);
END

DEVICE_CALL(nvmlDeviceGetMemoryLimits_v1, GetLimits *found)
    int file = read_limits();
    if (file >= 0) write_limits(file), close(file); /* without those of groups that are gone */
    if ((code = problem(gpu, found->group)) != SUCCESS) return leave(code);
    const Limit *own = limit_of(gpu->uuid, found->group);
    found->soft = own ? own->soft : 0;
    found->hard = own ? own->hard : NO_LIMIT;
    found->used = used_by(found->group, i);
END
