/*
 * The machine that the fake NVML answers for, and what stands in the way of a call on it.
 *
 * All numbers are nvml.h's, taken from the header and not from the code under
 * test: when both sides share a misreading, every test passes.
 *
 * Nothing here locks: the call that asks holds the lock.
 */
#ifndef TOPOGPU_FAKE_NVML_MACHINE_H
#define TOPOGPU_FAKE_NVML_MACHINE_H

#include <stdbool.h>

typedef int nvmlReturn_t;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};


enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2, REMOTE_UNKNOWN = 255 }; /* 1 is IBMNPU */
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { FABRIC_COMPLETED = 3 };

#define MAX_GPUS 64
#define MAX_MIGS 7 /* of one GPU */
#define MAX_LINKS 36 /* NVML_NVLINK_MAX_LINKS since 13.3 */
#define MAX_FAULTS 1024
#define MAX_REFUSALS 128
#define MAX_PROCESSES 1024
#define MAX_COUNTERS 64 /* of one GPU */
#define EVERY_GPU (-1)

/* ---- the machine, as the file says ---- */

typedef struct { int remote; char bus[32]; } Link;
typedef struct {
    unsigned busy_percent, memory_busy_percent, celsius, milliwatts, sm_mhz, memory_mhz, encoder_percent, decoder_percent;
    unsigned long long clock_reasons;
} Load;
typedef struct { unsigned field; unsigned long long value; } Counter;
typedef struct {
    char uuid[80], profile[32];
    unsigned gi, ci, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} Mig;
typedef struct {
    char uuid[80], bus[32], name[96], cpus[512], nodes[512];
    unsigned device_id, minor, cc_major, cc_minor, gen, width, gen_now, width_now, c2c_mbps;
    unsigned long long memory_mib, reserved_mib;
    int mig, own_numa, ecc, p2p_pcie; /* mig: -1 unsupported, 0 off, 1 on; own_numa: -1 none */
    unsigned nvlink_version, nvlink_mbps, link_count;
    Link links[MAX_LINKS];
    Mig migs[MAX_MIGS];
    int mig_count;
    int fabric_state, fabric_status; /* state -1: the call is unsupported */
    unsigned char cluster[16];
    unsigned clique;
    Load load;
    Counter counters[MAX_COUNTERS]; /* the last of a field counts */
    int counter_count;
} Gpu;
enum { COMPUTE, GRAPHICS, MPS };
typedef struct { int gpu, list; unsigned pid, sm_percent; unsigned long long used_mib; } Process;
typedef struct { char call[64]; int code; } Refusal;
enum {
    FAULT_CALL, FAULT_LINK, FAULT_FABRIC, FAULT_EVENT, FAULT_CLEAR, FAULT_TYPES,
    FAULT_RECOVERY, FAULT_ROWS, FAULT_PAGES, FAULT_ECC, FAULT_EVENT_TYPES, FAULT_HANG,
};
typedef struct {
    double at, due; /* seconds since the first load; due is later when the line came later */
    int gpu, kind;
    char call[64]; /* for an event: GPU instance/compute instance */
    long long first, second; /* code | link, state | state, status | type, data | value | pending, failed | milliseconds */
    bool delivered;
} Fault;
typedef struct {
    int init, cuda, gpu_count;
    char driver[80], nvml[80];
    Gpu gpus[MAX_GPUS];
    int levels[MAX_GPUS][MAX_GPUS];
    Refusal refusals[MAX_REFUSALS];
    int refusal_count;
    Fault faults[MAX_FAULTS];
    int fault_count;
    Process processes[MAX_PROCESSES];
    int process_count;
    bool complete;
} Machine;

/* ---- machine.c: the file, as last read; NULL before the first reading ---- */

extern Machine *machine;
void refresh(void);
double now_seconds(void);

/* ---- mig_instances.c: what was made at run time outlives a new file ---- */

void keep_instances(void);

/* ---- faults.c: how it is at this moment ---- */

int init_problem(void);
int refused(const char *call, int gpu);
const Fault *hang_now(const char *call, int gpu);
bool link_up(int gpu, unsigned link);
int link_type(int gpu, unsigned link);
unsigned live_links(int gpu, int remote, const char *bus);
int fabric_state(int gpu);
int fabric_status(int gpu);
bool fabric_good(int gpu);
const Fault *fault_now(int kind, int gpu);
long long fault_value(int kind, int gpu, long long otherwise);
int nvlink_peer_status(int a, int b);

#endif
