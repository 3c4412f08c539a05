/*
 * MIG devices: their handles, and the calls that a MIG device answers as its GPU does.
 *
 * Every other call refuses a handle of a MIG device as no GPU.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "calls.h"

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mb;
} Attributes;

_Static_assert(sizeof(Attributes) == 40, "nvmlDeviceAttributes_t");

static char mig_handles[MAX_GPUS * MAX_MIGS];

static const Mig *mig_of(const void *handle, int *parent) {
    const char *h = handle;
    if (!machine || h < mig_handles || h >= mig_handles + sizeof mig_handles) return NULL;
    *parent = (int)((h - mig_handles) / MAX_MIGS);
    int place = (int)((h - mig_handles) % MAX_MIGS);
    bool exists = *parent < machine->gpu_count && place < machine->gpus[*parent].mig_count;
    return exists ? &machine->gpus[*parent].migs[place] : NULL;
}

int enter_either(const char *call, const void *handle, int *index, const Mig **mig) {
    int code = enter(call, handle, index);
    *mig = code == INVALID_ARGUMENT ? mig_of(handle, index) : NULL;
    return *mig ? refused(call, *index) : code;
}

/* ---- what a GPU and a MIG device both are ---- */

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int code = enter_system("");
    if (code != SUCCESS) return leave(code);
    for (int i = 0; i < machine->gpu_count; i++) {
        const Gpu *gpu = &machine->gpus[i];
        void *found = strcmp(gpu->uuid, uuid) == 0 ? handle_of(i) : NULL;
        for (int k = 0; k < gpu->mig_count; k++)
            if (strcmp(gpu->migs[k].uuid, uuid) == 0) found = &mig_handles[i * MAX_MIGS + k];
        if (!found) continue;
        hang("nvmlDeviceGetHandleByUUID", i);
        code = refused("nvmlDeviceGetHandleByUUID", i);
        if (code == SUCCESS) *device = found;
        return leave(code);
    }
    return leave(NOT_FOUND);
}

EITHER_CALL(nvmlDeviceIsMigDeviceHandle, unsigned *is_mig)
    *is_mig = mig != NULL;
END

EITHER_CALL(nvmlDeviceGetName, char *name, unsigned length)
    char full[sizeof gpu->name + sizeof mig->profile + 8];
    int used = snprintf(full, sizeof full, "%s%s%s", gpu->name, mig ? " MIG " : "", mig ? mig->profile : "");
    code = used < 0 ? UNKNOWN : copy_out(name, length, full);
END

EITHER_CALL(nvmlDeviceGetIndex, unsigned *index)
    *index = mig ? (unsigned)(mig - gpu->migs) : (unsigned)i;
END

EITHER_CALL(nvmlDeviceGetUUID, char *uuid, unsigned length)
    code = copy_out(uuid, length, mig ? mig->uuid : gpu->uuid);
END

/* ---- from a GPU to its MIG devices ---- */

DEVICE_CALL(nvmlDeviceGetMigMode, unsigned *current, unsigned *pending)
    if (gpu->mig < 0) return leave(NOT_SUPPORTED);
    *current = *pending = (unsigned)gpu->mig;
END

DEVICE_CALL(nvmlDeviceGetMaxMigDeviceCount, unsigned *count)
    *count = gpu->mig == 1 ? MAX_MIGS : 0;
END

DEVICE_CALL(nvmlDeviceGetMigDeviceHandleByIndex, unsigned index, void **mig)
    if (gpu->mig < 0) return leave(NOT_SUPPORTED);
    if (index >= MAX_MIGS) return leave(INVALID_ARGUMENT);
    if (gpu->mig != 1 || (int)index >= gpu->mig_count) return leave(NOT_FOUND);
    *mig = &mig_handles[i * MAX_MIGS + (int)index];
END

/* ---- what only a MIG device is ---- */

EITHER_CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, void **parent)
    if (!mig) return leave(INVALID_ARGUMENT);
    *parent = handle_of(i);
END

EITHER_CALL(nvmlDeviceGetGpuInstanceId, unsigned *id)
    if (!mig) return leave(INVALID_ARGUMENT);
    *id = mig->gi;
END

EITHER_CALL(nvmlDeviceGetComputeInstanceId, unsigned *id)
    if (!mig) return leave(INVALID_ARGUMENT);
    *id = mig->ci;
END

/* Of the engines only those that copy are described: one for each slice. */
EITHER_CALL(nvmlDeviceGetAttributes_v2, Attributes *attributes)
    if (!mig) return leave(INVALID_ARGUMENT);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = mig->compute_slices * (gpu->cc_major < 9 ? 14 : 16);
    attributes->copy_engines = mig->gpu_slices;
    attributes->gpu_slices = mig->gpu_slices;
    attributes->compute_slices = mig->compute_slices;
    attributes->memory_mb = mig->memory_mib;
END
