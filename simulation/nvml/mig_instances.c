/*
 * MIG instances that a program makes and destroys while it runs, of GPUs with seven compute and eight memory slices.
 *
 * They are of the process that makes them: another one that reads the same file does not see them.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "calls.h"

enum { INSUFFICIENT_RESOURCES = 23, MEMORY_SLICES = 8 };

typedef struct { unsigned start, size; } Placement;
typedef struct {
    unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mb;
} GpuInstanceProfile;
typedef struct { void *device; unsigned id, profile; Placement placement; } GpuInstanceInfo;
typedef struct { unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas; } ComputeProfile;
typedef struct { void *device, *instance; unsigned id, profile; Placement placement; } ComputeInfo;

_Static_assert(sizeof(GpuInstanceProfile) == 48, "nvmlGpuInstanceProfileInfo_t");
_Static_assert(sizeof(GpuInstanceInfo) == 24, "nvmlGpuInstanceInfo_t");
_Static_assert(sizeof(ComputeProfile) == 36, "nvmlComputeInstanceProfileInfo_t");
_Static_assert(sizeof(ComputeInfo) == 32, "nvmlComputeInstanceInfo_t");

/* In the order of NVML_GPU_INSTANCE_PROFILE_*; a driver gives each an id of its own, as here those of an A100. */
typedef struct { unsigned id, slices, memory, count, starts[7]; } Profile;
static const Profile profiles[] = {
    {19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}}, {14, 2, 2, 3, {0, 2, 4}}, {9, 3, 4, 2, {0, 4}}, {5, 4, 4, 1, {0}}, {0, 7, 8, 1, {0}},
};
enum { PROFILES = sizeof profiles / sizeof *profiles };

/* An instance of a GPU, with at most one compute instance, which has all of it. */
typedef struct { bool used, computes; int gpu; unsigned id; const Profile *profile; Placement at; } Instance;
static Instance instances[MAX_GPUS][MAX_MIGS];
static unsigned last_id;

static const Profile *profile_of(unsigned id) {
    for (int k = 0; k < PROFILES; k++)
        if (profiles[k].id == id) return &profiles[k];
    return NULL;
}

static unsigned long long memory_of(const Gpu *gpu, const Profile *profile) { return gpu->memory_mib / MEMORY_SLICES * profile->memory; }

/* The other calls see the instances with a compute instance as MIG devices. */
static void show(int i) {
    Gpu *gpu = &machine->gpus[i];
    gpu->mig_count = 0;
    for (int k = 0; k < MAX_MIGS; k++) {
        const Instance *one = &instances[i][k];
        if (!one->used || !one->computes) continue;
        Mig *mig = &gpu->migs[gpu->mig_count++];
        memset(mig, 0, sizeof *mig);
        mig->gi = one->id;
        mig->gpu_slices = mig->compute_slices = one->profile->slices;
        mig->memory_mib = memory_of(gpu, one->profile);
        snprintf(mig->uuid, sizeof mig->uuid, "MIG-%08x-0000-5000-8000-%012x", i, one->id);
        snprintf(mig->profile, sizeof mig->profile, "%ug.%llugb", mig->gpu_slices, mig->memory_mib / 1024);
    }
}

void keep_instances(void) {
    for (int i = 0; i < machine->gpu_count; i++)
        for (int k = 0; k < MAX_MIGS; k++)
            if (instances[i][k].used) machine->gpus[i].mig = 1, show(i);
}

/* ---- of a GPU ---- */

DEVICE_CALL(nvmlDeviceSetMigMode, unsigned mode, nvmlReturn_t *activation)
    if (gpu->mig < 0) return leave(NOT_SUPPORTED);
    if (mode > 1) return leave(INVALID_ARGUMENT);
    if (mode == 0) memset(instances[i], 0, sizeof instances[i]), gpu->mig_count = 0;
    gpu->mig = (int)mode;
    *activation = SUCCESS;
END

DEVICE_CALL(nvmlDeviceGetGpuInstanceProfileInfo, unsigned which, GpuInstanceProfile *info)
    if (gpu->mig < 0 || which >= PROFILES) return leave(NOT_SUPPORTED);
    const Profile *profile = &profiles[which];
    memset(info, 0, sizeof *info);
    info->id = profile->id;
    info->slices = info->copy_engines = profile->slices;
    info->instances = profile->count;
    info->multiprocessors = 14 * profile->slices;
    info->memory_mb = memory_of(gpu, profile);
END

/* Without a list only the count is asked for. */
DEVICE_CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, unsigned id, Placement *places, unsigned *count)
    const Profile *profile = profile_of(id);
    if (!profile) return leave(NOT_SUPPORTED);
    for (unsigned k = 0; places && k < profile->count; k++) places[k] = (Placement){profile->starts[k], profile->memory};
    *count = profile->count;
END

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(void *device, unsigned id, Placement *places, unsigned *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, places, count);
}

static bool overlap(Placement a, Placement b) { return a.start < b.start + b.size && b.start < a.start + a.size; }

DEVICE_CALL(nvmlDeviceCreateGpuInstanceWithPlacement, unsigned id, const Placement *at, Instance **created)
    const Profile *profile = profile_of(id);
    if (gpu->mig != 1) return leave(NOT_SUPPORTED);
    if (!profile) return leave(INVALID_ARGUMENT);
    bool allowed = false;
    for (unsigned k = 0; k < profile->count; k++) allowed |= profile->starts[k] == at->start && profile->memory == at->size;
    Instance *room = NULL;
    for (int k = 0; k < MAX_MIGS; k++) {
        Instance *one = &instances[i][k];
        if (!one->used) room = room ? room : one;
        else if (overlap(one->at, *at)) allowed = false;
    }
    if (!allowed || !room) return leave(INSUFFICIENT_RESOURCES);
    *room = (Instance){true, false, i, ++last_id, profile, *at};
    *created = room;
END

DEVICE_CALL(nvmlDeviceGetGpuInstances, unsigned id, Instance **found, unsigned *count)
    *count = 0;
    for (int k = 0; k < MAX_MIGS; k++)
        if (instances[i][k].used && instances[i][k].profile->id == id) found[(*count)++] = &instances[i][k];
END

/* An instance that the machine file describes; its place on the GPU is not in the file. */
static Instance *described(const Gpu *gpu, int i, unsigned id) {
    static Instance made[MAX_GPUS][MAX_MIGS];
    for (int k = 0; k < gpu->mig_count; k++)
        for (int p = 0; p < PROFILES; p++)
            if (gpu->migs[k].gi == id && profiles[p].slices == gpu->migs[k].gpu_slices) {
                made[i][k] = (Instance){true, true, i, id, &profiles[p], {0, profiles[p].memory}};
                return &made[i][k];
            }
    return NULL;
}

DEVICE_CALL(nvmlDeviceGetGpuInstanceById, unsigned id, Instance **found)
    Instance *one = NULL;
    for (int k = 0; k < MAX_MIGS; k++)
        if (instances[i][k].used && instances[i][k].id == id) one = &instances[i][k];
    if (!one) one = described(gpu, i, id);
    code = one ? SUCCESS : NOT_FOUND;
    if (one) *found = one;
END

/* ---- of an instance ---- */

#define INSTANCE_CALL(name, ...)                                \
    EXPORT nvmlReturn_t name(Instance *one, __VA_ARGS__) {      \
        int code = enter_system(#name);                         \
        if (code != SUCCESS) return leave(code);                \
        if (!one || !one->used) return leave(INVALID_ARGUMENT);

INSTANCE_CALL(nvmlGpuInstanceGetInfo, GpuInstanceInfo *info)
    *info = (GpuInstanceInfo){handle_of(one->gpu), one->id, one->profile->id, one->at};
END

/* Only the compute instance that has all of its GPU instance. */
INSTANCE_CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo, unsigned which, unsigned engines, ComputeProfile *info)
    (void)engines;
    if (which >= PROFILES || &profiles[which] != one->profile) return leave(NOT_SUPPORTED);
    memset(info, 0, sizeof *info);
    info->id = which;
    info->slices = one->profile->slices;
    info->instances = 1;
    info->multiprocessors = 14 * one->profile->slices;
END

INSTANCE_CALL(nvmlGpuInstanceGetComputeInstances, unsigned id, Instance **found, unsigned *count)
    *count = one->computes && id < PROFILES && one->profile == &profiles[id];
    if (*count) *found = one;
END

INSTANCE_CALL(nvmlGpuInstanceCreateComputeInstance, unsigned id, Instance **created)
    if (id >= PROFILES || &profiles[id] != one->profile || one->computes) return leave(INSUFFICIENT_RESOURCES);
    one->computes = true;
    show(one->gpu);
    *created = one;
END

INSTANCE_CALL(nvmlGpuInstanceGetComputeInstanceById, unsigned id, Instance **found)
    if (id != 0 || !one->computes) return leave(NOT_FOUND);
    *found = one;
END

INSTANCE_CALL(nvmlComputeInstanceGetInfo_v2, ComputeInfo *info)
    if (!one->computes) return leave(INVALID_ARGUMENT);
    *info = (ComputeInfo){handle_of(one->gpu), one, 0, (unsigned)(one->profile - profiles), {0, one->profile->slices}};
END

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(Instance *one, ComputeInfo *info) { return nvmlComputeInstanceGetInfo_v2(one, info); }

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(Instance *one) {
    int code = enter_system("nvmlComputeInstanceDestroy");
    if (code != SUCCESS) return leave(code);
    if (!one || !one->computes) return leave(INVALID_ARGUMENT);
    one->computes = false;
    show(one->gpu);
    return leave(SUCCESS);
}

/* One with a compute instance is in use. */
EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(Instance *one) {
    enum { IN_USE = 19 };
    int code = enter_system("nvmlGpuInstanceDestroy");
    if (code != SUCCESS) return leave(code);
    if (!one || !one->used) return leave(INVALID_ARGUMENT);
    if (one->computes) return leave(IN_USE);
    one->used = false;
    return leave(SUCCESS);
}
