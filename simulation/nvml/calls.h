/*
 * How a call is entered and left, and the handles it takes, for every file that exports some.
 */
#ifndef TOPOGPU_FAKE_NVML_CALLS_H
#define TOPOGPU_FAKE_NVML_CALLS_H

#include "machine.h"

#define EXPORT __attribute__((visibility("default")))
#define VERSION(type, number) ((unsigned)sizeof(type) | (unsigned)(number) << 24)

/* Take the lock and answer whether the call may go on; every entering needs its `leave`. */
int enter(const char *call, const void *handle, int *index);
int enter_system(const char *call);
nvmlReturn_t leave(int code);

/* For a call that finds its GPU itself, between entering and using what it found: the machine may be another after it. */
void hang(const char *call, int gpu);

/* A handle points into an array, so it outlives a re-read of the file. */
void *handle_of(int index);
int index_of(const void *handle);

/* As `enter`, for a GPU or one of its MIG devices; `mig` is NULL for a GPU. A fault of the GPU is one of all of it. */
int enter_either(const char *call, const void *handle, int *index, const Mig **mig);

/* Strings are copied out, never lent; a short buffer is refused. */
int copy_out(char *to, unsigned size, const char *from);

#define DEVICE_CALL(name, ...)                            \
    EXPORT nvmlReturn_t name(void *device, __VA_ARGS__) { \
        int i, code = enter(#name, device, &i);           \
        if (code != SUCCESS) return leave(code);          \
        Gpu *gpu = &machine->gpus[i];                     \
        (void)gpu;
#define EITHER_CALL(name, ...)                            \
    EXPORT nvmlReturn_t name(void *device, __VA_ARGS__) { \
        int i;                                            \
        const Mig *mig;                                   \
        int code = enter_either(#name, device, &i, &mig); \
        if (code != SUCCESS) return leave(code);          \
        Gpu *gpu = &machine->gpus[i];                     \
        (void)gpu, (void)mig;
#define END return leave(code); }

#endif
