/* What is in use: memory, engines, temperature, power, and the processes on a GPU. */
#define _GNU_SOURCE
#include <stddef.h>

#include "calls.h"

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } ProcessInfo;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } ProcessSample;

_Static_assert(sizeof(Memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(MemoryV2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(Utilization) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(ProcessInfo) == 24, "nvmlProcessInfo_t, version 2 and 3");
_Static_assert(sizeof(ProcessSample) == 32, "nvmlProcessUtilizationSample_t");

#define WHOLE_GPU 0xFFFFFFFFu
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 }; /* nvmlClockType_t */

static unsigned long long used_by_processes(int gpu) {
    unsigned long long used = 0;
    for (int k = 0; k < machine->process_count; k++)
        if (machine->processes[k].gpu == gpu) used += machine->processes[k].used_mib << 20;
    return used;
}

/* Memory info v1 counts the driver's reserved part as used, v2 tells it apart. */
EITHER_CALL(nvmlDeviceGetMemoryInfo, Memory *memory)
    memory->total = (mig ? mig->memory_mib : gpu->memory_mib) << 20;
    memory->used = mig ? 0 : (gpu->reserved_mib << 20) + used_by_processes(i);
    memory->free = memory->total - memory->used;
END

EITHER_CALL(nvmlDeviceGetMemoryInfo_v2, MemoryV2 *memory)
    if (memory->version != VERSION(MemoryV2, 2)) return leave(ARGUMENT_VERSION_MISMATCH);
    memory->total = (mig ? mig->memory_mib : gpu->memory_mib) << 20;
    memory->reserved = mig ? 0 : gpu->reserved_mib << 20;
    memory->used = mig ? 0 : used_by_processes(i);
    memory->free = memory->total - memory->reserved - memory->used;
END

DEVICE_CALL(nvmlDeviceGetUtilizationRates, Utilization *rates)
    if (gpu->mig == 1) return leave(NOT_SUPPORTED);
    rates->gpu = gpu->load.busy_percent;
    rates->memory = gpu->load.memory_busy_percent;
END

DEVICE_CALL(nvmlDeviceGetTemperature, int sensor, unsigned *celsius)
    if (sensor != 0) return leave(INVALID_ARGUMENT); /* there is one, on the die */
    *celsius = gpu->load.celsius;
END

DEVICE_CALL(nvmlDeviceGetPowerUsage, unsigned *milliwatts)
    *milliwatts = gpu->load.milliwatts;
END

DEVICE_CALL(nvmlDeviceGetClockInfo, unsigned type, unsigned *mhz)
    if (type != CLOCK_SM && type != CLOCK_MEMORY) return leave(INVALID_ARGUMENT);
    *mhz = type == CLOCK_SM ? gpu->load.sm_mhz : gpu->load.memory_mhz;
END

DEVICE_CALL(nvmlDeviceGetEncoderUtilization, unsigned *percent, unsigned *period_us)
    if (gpu->mig == 1) return leave(NOT_SUPPORTED);
    *percent = gpu->load.encoder_percent;
    *period_us = 167000;
END

DEVICE_CALL(nvmlDeviceGetDecoderUtilization, unsigned *percent, unsigned *period_us)
    if (gpu->mig == 1) return leave(NOT_SUPPORTED);
    *percent = gpu->load.decoder_percent;
    *period_us = 167000;
END

DEVICE_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long *reasons)
    *reasons = gpu->load.clock_reasons;
END

/* One of the three lists; too small an array is told the size it needs. */
static int list_processes(int gpu, int list, unsigned *count, ProcessInfo *to) {
    unsigned found = 0;
    for (int k = 0; k < machine->process_count; k++) {
        const Process *p = &machine->processes[k];
        if (p->gpu != gpu || p->list != list) continue;
        if (to && found < *count)
            to[found] = (ProcessInfo){p->pid, p->used_mib << 20, WHOLE_GPU, WHOLE_GPU};
        found++;
    }
    int code = found > *count || (found && !to) ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return code;
}

DEVICE_CALL(nvmlDeviceGetComputeRunningProcesses_v3, unsigned *count, ProcessInfo *list)
    code = list_processes(i, COMPUTE, count, list);
END

DEVICE_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, unsigned *count, ProcessInfo *list)
    code = list_processes(i, GRAPHICS, count, list);
END

DEVICE_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, unsigned *count, ProcessInfo *list)
    code = list_processes(i, MPS, count, list);
END

/* One sample per busy process, always a second younger than the last one asked for. */
DEVICE_CALL(nvmlDeviceGetProcessUtilization, ProcessSample *samples, unsigned *count, unsigned long long since_us)
    if (gpu->mig == 1) return leave(NOT_SUPPORTED);
    unsigned found = 0;
    for (int k = 0; k < machine->process_count; k++) {
        const Process *p = &machine->processes[k];
        if (p->gpu != i || p->sm_percent == 0) continue;
        if (samples && found < *count)
            samples[found] = (ProcessSample){p->pid, since_us + 1000000, p->sm_percent, 0, 0, 0};
        found++;
    }
    if (found == 0) code = NOT_FOUND;
    else if (!samples || found > *count) code = INSUFFICIENT_SIZE;
    *count = found;
END
