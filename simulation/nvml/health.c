/* Memory errors and what they ask for, and the events that tell of faults as they happen. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "calls.h"

/* ECC single and double bit, P-state, critical XID, clock, power source, MIG configuration, recovery action. */
#define SUPPORTED_EVENTS 0x819fULL
#define ECC_EVENTS 3ULL
#define WHOLE_GPU 0xFFFFFFFFu
#define AMPERE 8 /* major compute capability: remaps rows, where older GPUs retire pages */

typedef struct {
    void *device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} EventData;
_Static_assert(sizeof(EventData) == 32, "nvmlEventData_t");

typedef struct { unsigned long long types[MAX_GPUS]; double since[MAX_GPUS]; } EventSet;

DEVICE_CALL(nvmlDeviceGetRemappedRows, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
    if (!gpu->ecc || gpu->cc_major < AMPERE) return leave(NOT_SUPPORTED);
    const Fault *rows = fault_now(FAULT_ROWS, i);
    *corrected = 0;
    *uncorrected = rows != NULL;
    *pending = rows && rows->first;
    *failed = rows && rows->second;
END

DEVICE_CALL(nvmlDeviceGetRetiredPagesPendingStatus, unsigned *pending)
    if (!gpu->ecc || gpu->cc_major >= AMPERE) return leave(NOT_SUPPORTED);
    *pending = (unsigned)fault_value(FAULT_PAGES, i, 0);
END

DEVICE_CALL(nvmlDeviceGetTotalEccErrors, unsigned type, unsigned counter, unsigned long long *count)
    if (!gpu->ecc) return leave(NOT_SUPPORTED);
    if (type > 1 || counter > 1) return leave(INVALID_ARGUMENT);
    *count = type == 1 ? (unsigned long long)fault_value(FAULT_ECC, i, 0) : 0;
END

/* ---- events ---- */

static unsigned long long supported_events(int gpu) {
    unsigned long long usual = machine->gpus[gpu].ecc ? SUPPORTED_EVENTS : SUPPORTED_EVENTS & ~ECC_EVENTS;
    return (unsigned long long)fault_value(FAULT_EVENT_TYPES, gpu, (long long)usual);
}

DEVICE_CALL(nvmlDeviceGetSupportedEventTypes, unsigned long long *types)
    *types = supported_events(i);
END

EXPORT nvmlReturn_t nvmlEventSetCreate(EventSet **set) {
    int code = enter_system("nvmlEventSetCreate");
    if (code == SUCCESS && !(*set = calloc(1, sizeof **set))) code = UNKNOWN;
    return leave(code);
}

EXPORT nvmlReturn_t nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}

DEVICE_CALL(nvmlDeviceRegisterEvents, unsigned long long types, EventSet *set)
    if (types & ~supported_events(i)) return leave(NOT_SUPPORTED);
    set->types[i] |= types;
    set->since[i] = now_seconds();
END

static EventData event_of(const Fault *f) {
    EventData event = {handle_of(f->gpu), (unsigned long long)f->first, (unsigned long long)f->second, WHOLE_GPU, WHOLE_GPU};
    sscanf(f->call, "%u/%u", &event.gpuInstanceId, &event.computeInstanceId);
    return event;
}

/* One event that is due, wanted by this set, and younger than its registration. */
static bool next_event(EventSet *set, EventData *out) {
    double now = now_seconds();
    for (int k = 0; k < machine->fault_count; k++) {
        Fault *f = &machine->faults[k];
        if (f->kind != FAULT_EVENT || f->delivered || f->due > now || f->gpu < 0 || f->gpu >= machine->gpu_count) continue;
        if (!(set->types[f->gpu] & (unsigned long long)f->first) || f->due < set->since[f->gpu]) continue;
        f->delivered = true;
        *out = event_of(f);
        return true;
    }
    return false;
}

/* Looks every 100 ms, which costs next to nothing, without the lock in between: other threads go on asking. */
EXPORT nvmlReturn_t nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    const struct timespec pause = {0, 100000000};
    for (unsigned waited = 0;; waited += 100) {
        int code = enter_system("nvmlEventSetWait_v2");
        bool found = code == SUCCESS && next_event(set, out);
        leave(code);
        if (code != SUCCESS || found) return code;
        if (waited >= timeout_ms) return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}
