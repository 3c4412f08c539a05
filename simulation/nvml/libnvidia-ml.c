/*
 * A libnvidia-ml.so.1 for machines without a GPU. It answers what a flat text
 * file says; TOPOGPU_FAKE_NVML_MACHINE names the file, machine_file.py writes it.
 *
 * All numbers are nvml.h's, taken from the header and not from the code under
 * test: when both sides share a misreading, every test passes.
 *
 * Functions the daemon may not need are left out on purpose: a missing symbol is
 * how an old driver looks, and nvidia-ml-py turns it into FunctionNotFound.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 }; /* 1 is IBMNPU, 255 UNKNOWN */
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { CAPS_READ = 0, CAPS_WRITE = 1, CAPS_NVLINK = 2, CAPS_ATOMICS = 3, CAPS_PCI = 4 };
enum { FABRIC_COMPLETED = 3 };
enum { VALUE_UNSIGNED_INT = 1 };
enum {
    FI_NVLINK_SPEED_COMMON = 90, FI_NVLINK_LINK_COUNT = 91, FI_NVSWITCH_CONNECTED_LINK_COUNT = 147,
    FI_NVLINK_GET_SPEED = 164, FI_NVLINK_GET_STATE = 165, FI_NVLINK_GET_VERSION = 166,
    FI_C2C_LINK_COUNT = 170, FI_C2C_LINK_GET_STATUS = 171, FI_C2C_LINK_GET_MAX_BW = 172,
    FI_RECOVERY_ACTION = 230,
};
/* ECC single and double bit, P-state, critical XID, clock, power source, MIG configuration. */
#define SUPPORTED_EVENTS 0x19fULL
#define WHOLE_GPU 0xFFFFFFFFu

#define MAX_GPUS 64
#define MAX_LINKS 36 /* NVML_NVLINK_MAX_LINKS since 13.3 */
#define MAX_FAULTS 1024
#define MAX_REFUSALS 128
#define MASK_BITS 4096
#define EVERY_GPU (-1)
#define HIDDEN_BUS "FFFFFFFF:FF:FF.0"

/* ---- structs of the interface; a size that drifts stops the build ---- */

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } Value;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    Value value;
} FieldValue;
typedef struct {
    unsigned version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    unsigned char state; /* a byte in nvml.h; three bytes of padding follow */
    unsigned healthMask;
} FabricV2;
typedef struct { FabricV2 v2; unsigned char healthSummary; } FabricV3;
typedef struct {
    void *device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} EventData;

_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(Memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(MemoryV2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(FabricV2) == 36, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(FabricV3) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(EventData) == 32, "nvmlEventData_t");
#define VERSION(type, number) ((unsigned)sizeof(type) | (unsigned)(number) << 24)

/* ---- the machine, as the file says ---- */

typedef struct { int remote; char bus[32]; } Link;
typedef struct {
    char uuid[80], bus[32], name[96], cpus[512], nodes[512];
    unsigned device_id, minor, cc_major, cc_minor, gen, width, gen_now, width_now, c2c_mbps;
    unsigned long long memory_mib, reserved_mib;
    int mig, own_numa, ecc, p2p_pcie; /* mig: -1 unsupported, 0 off, 1 on; own_numa: -1 none */
    unsigned nvlink_version, nvlink_mbps, link_count;
    Link links[MAX_LINKS];
    int fabric_state, fabric_status; /* state -1: the call is unsupported */
    unsigned char cluster[16];
    unsigned clique;
} Gpu;
typedef struct { char call[64]; int code; } Refusal;
enum { FAULT_CALL, FAULT_LINK, FAULT_FABRIC, FAULT_EVENT, FAULT_CLEAR };
typedef struct {
    double at, due; /* seconds since the first load; due is later when the line came later */
    int gpu, kind;
    char call[64];
    long long first, second; /* code | link, state | state, status | type, data */
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
    bool complete;
} Machine;

typedef struct { unsigned long long types[MAX_GPUS]; double since[MAX_GPUS]; } EventSet;

/* One lock for everything: nvml.h promises thread safety, and nothing here is slow. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Machine *machine;
static struct stat seen;
static struct timespec first_load;
static int init_count;
/* A handle points into this array, so it outlives a re-read of the file. */
static char handles[MAX_GPUS];

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)(t.tv_sec - first_load.tv_sec) + (double)(t.tv_nsec - first_load.tv_nsec) / 1e9;
}

static Gpu *gpu_of_line(Machine *m, int index) {
    return index >= 0 && index < m->gpu_count ? &m->gpus[index] : NULL;
}

static bool read_link(Machine *m, const char *rest) {
    int index, remote;
    char bus[32];
    if (sscanf(rest, "%d %d %31s", &index, &remote, bus) != 3) return false;
    Gpu *gpu = gpu_of_line(m, index);
    if (!gpu || gpu->link_count >= MAX_LINKS) return false;
    Link *link = &gpu->links[gpu->link_count++];
    link->remote = remote;
    strcpy(link->bus, bus);
    return true;
}

static bool read_gpu(Machine *m, const char *rest) {
    int index, used = 0;
    Gpu read = {0};
    int got = sscanf(rest, "%d %79s %31s %x %u %u %u %llu %llu %d %u %u %u %u %d %d %u %d %u %u %n", &index, read.uuid,
                     read.bus, &read.device_id, &read.minor, &read.cc_major, &read.cc_minor, &read.memory_mib,
                     &read.reserved_mib, &read.mig, &read.gen, &read.width, &read.gen_now, &read.width_now,
                     &read.own_numa, &read.ecc, &read.c2c_mbps, &read.p2p_pcie, &read.nvlink_version,
                     &read.nvlink_mbps, &used);
    Gpu *gpu = gpu_of_line(m, index);
    if (got != 20 || !gpu) return false;
    read.fabric_state = -1;
    snprintf(read.name, sizeof read.name, "%s", rest + used);
    *gpu = read;
    return true;
}

static bool read_fabric(Machine *m, const char *rest) {
    int index, state, status;
    unsigned clique;
    char cluster[33];
    if (sscanf(rest, "%d %d %d %u %32s", &index, &state, &status, &clique, cluster) != 5) return false;
    Gpu *gpu = gpu_of_line(m, index);
    if (!gpu || strlen(cluster) != 32) return false;
    gpu->fabric_state = state;
    gpu->fabric_status = status;
    gpu->clique = clique;
    for (int i = 0; i < 16; i++)
        if (sscanf(cluster + 2 * i, "%2hhx", &gpu->cluster[i]) != 1) return false;
    return true;
}

static bool read_fault(Machine *m, const char *rest) {
    static const char *const kinds[] = {"call", "link", "fabric", "event", "clear"};
    char kind[16];
    if (m->fault_count >= MAX_FAULTS) return false;
    Fault *fault = &m->faults[m->fault_count];
    memset(fault, 0, sizeof *fault);
    if (sscanf(rest, "%lf %d %15s %63s %lld %lld", &fault->at, &fault->gpu, kind, fault->call, &fault->first,
               &fault->second) != 6)
        return false;
    for (fault->kind = 0; fault->kind < 5; fault->kind++)
        if (strcmp(kind, kinds[fault->kind]) == 0) break;
    m->fault_count++;
    return fault->kind < 5;
}

static bool read_refusal(Machine *m, const char *rest) {
    if (m->refusal_count >= MAX_REFUSALS) return false;
    Refusal *refusal = &m->refusals[m->refusal_count++];
    return sscanf(rest, "%63s %d", refusal->call, &refusal->code) == 2;
}

static bool read_list(Machine *m, const char *rest, bool cpus) {
    int index, used = 0;
    if (sscanf(rest, "%d %n", &index, &used) != 1) return false;
    Gpu *gpu = gpu_of_line(m, index);
    if (!gpu) return false;
    snprintf(cpus ? gpu->cpus : gpu->nodes, sizeof gpu->cpus, "%s", rest + used);
    return true;
}

static bool read_level(Machine *m, const char *rest) {
    int a, b, level;
    if (sscanf(rest, "%d %d %d", &a, &b, &level) != 3 || !gpu_of_line(m, a) || !gpu_of_line(m, b)) return false;
    m->levels[a][b] = m->levels[b][a] = level;
    return true;
}

static bool read_line(Machine *m, const char *word, const char *rest) {
    if (strcmp(word, "init") == 0) return sscanf(rest, "%d", &m->init) == 1;
    if (strcmp(word, "driver") == 0) return snprintf(m->driver, sizeof m->driver, "%s", rest) >= 0;
    if (strcmp(word, "nvml") == 0) return snprintf(m->nvml, sizeof m->nvml, "%s", rest) >= 0;
    if (strcmp(word, "cuda") == 0) return sscanf(rest, "%d", &m->cuda) == 1;
    if (strcmp(word, "gpus") == 0)
        return sscanf(rest, "%d", &m->gpu_count) == 1 && m->gpu_count >= 0 && m->gpu_count <= MAX_GPUS;
    if (strcmp(word, "gpu") == 0) return read_gpu(m, rest);
    if (strcmp(word, "cpus") == 0) return read_list(m, rest, true);
    if (strcmp(word, "nodes") == 0) return read_list(m, rest, false);
    if (strcmp(word, "level") == 0) return read_level(m, rest);
    if (strcmp(word, "link") == 0) return read_link(m, rest);
    if (strcmp(word, "fabric") == 0) return read_fabric(m, rest);
    if (strcmp(word, "refuse") == 0) return read_refusal(m, rest);
    if (strcmp(word, "fault") == 0) return read_fault(m, rest);
    if (strcmp(word, "end") == 0) return m->complete = true;
    return false;
}

/* Lines are `word rest`; the last is `end`, so a file cut short is refused. */
static Machine *read_machine(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    Machine *m = calloc(1, sizeof *m);
    char line[2048];
    bool good = m != NULL;
    while (good && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *rest = strchr(line, ' ');
        if (rest) *rest++ = '\0';
        good = line[0] == '\0' || line[0] == '#' || read_line(m, line, rest ? rest : "");
    }
    fclose(file);
    if (good && m->complete) return m;
    free(m);
    return NULL;
}

/* An event already told stays told when the file is written again with more faults. */
static void carry_deliveries(Machine *old, Machine *fresh) {
    for (int i = 0; i < fresh->fault_count; i++) {
        Fault *f = &fresh->faults[i];
        f->due = old && f->at < now_seconds() ? now_seconds() : f->at;
        for (int k = 0; old && k < old->fault_count; k++) {
            Fault *o = &old->faults[k];
            if (o->kind != f->kind || o->gpu != f->gpu || o->at != f->at || o->first != f->first ||
                o->second != f->second || strcmp(o->call, f->call) != 0)
                continue;
            f->due = o->due;
            f->delivered = o->delivered;
            o->kind = -1; /* used up: a second equal line is a second event */
            break;
        }
    }
}

/* Re-reads when the file changed; an unreadable or half-written one leaves the last machine. */
static void refresh(void) {
    const char *path = getenv("TOPOGPU_FAKE_NVML_MACHINE");
    struct stat found;
    if (!path || stat(path, &found) != 0) return;
    if (machine && found.st_mtim.tv_sec == seen.st_mtim.tv_sec && found.st_mtim.tv_nsec == seen.st_mtim.tv_nsec &&
        found.st_ino == seen.st_ino && found.st_size == seen.st_size)
        return;
    Machine *fresh = read_machine(path);
    if (!fresh) return;
    if (!machine) clock_gettime(CLOCK_MONOTONIC, &first_load);
    carry_deliveries(machine, fresh);
    free(machine);
    machine = fresh;
    seen = found;
}

/* ---- faults ---- */

static bool concerns(const Fault *fault, int gpu) { return fault->gpu == EVERY_GPU || fault->gpu == gpu; }

/* A name without its _vN suffix means every version of the call. */
static bool names_call(const char *name, const char *call) {
    size_t length = strlen(name);
    if (strncmp(name, call, length) != 0) return false;
    const char *rest = call + length;
    return *rest == '\0' || (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9' && rest[3] == '\0');
}

/* The last fault of a kind that holds for a GPU now; a later `clear` takes it back. */
static const Fault *fault_of(int kind, int gpu, const char *call, long long link) {
    const Fault *holds = NULL;
    double now = now_seconds();
    for (int i = 0; i < machine->fault_count; i++) {
        const Fault *f = &machine->faults[i];
        if (f->at > now || !concerns(f, gpu)) continue;
        if (f->kind == FAULT_CLEAR) holds = NULL;
        if (f->kind != kind) continue;
        if (kind == FAULT_CALL && strcmp(f->call, "*") != 0 && !names_call(f->call, call)) continue;
        if (kind == FAULT_LINK && f->first != link) continue;
        holds = f;
    }
    return holds;
}

/* What stands in the way of `call` on a GPU (EVERY_GPU: a call on the system). */
static int refused(const char *call, int gpu) {
    const Fault *fault = fault_of(FAULT_CALL, gpu, call, 0);
    if (fault && (gpu != EVERY_GPU || strcmp(fault->call, "*") != 0)) return (int)fault->first;
    for (int i = 0; i < machine->refusal_count; i++)
        if (names_call(machine->refusals[i].call, call)) return machine->refusals[i].code;
    return SUCCESS;
}

static bool link_up(int gpu, unsigned link) {
    const Fault *fault = fault_of(FAULT_LINK, gpu, "", link);
    return !fault || fault->second != 0;
}

static unsigned live_links(int gpu, int remote, const char *bus) {
    unsigned live = 0;
    Gpu *g = &machine->gpus[gpu];
    for (unsigned k = 0; k < g->link_count; k++)
        live += g->links[k].remote == remote && (!bus || strcmp(g->links[k].bus, bus) == 0) && link_up(gpu, k);
    return live;
}

static int fabric_state(int gpu) {
    const Fault *fault = fault_of(FAULT_FABRIC, gpu, "", 0);
    return fault && machine->gpus[gpu].fabric_state >= 0 ? (int)fault->first : machine->gpus[gpu].fabric_state;
}

static int fabric_status(int gpu) {
    const Fault *fault = fault_of(FAULT_FABRIC, gpu, "", 0);
    return fault ? (int)fault->second : machine->gpus[gpu].fabric_status;
}

static bool fabric_good(int gpu) {
    int state = fabric_state(gpu);
    return state <= 0 || (state == FABRIC_COMPLETED && fabric_status(gpu) == SUCCESS);
}

static int nvlink_peer_status(int a, int b) {
    Gpu *first = &machine->gpus[a], *second = &machine->gpus[b];
    if (first->mig == 1 || second->mig == 1) return P2P_NOT_SUPPORTED; /* MIG ends all peer access */
    if (live_links(a, REMOTE_GPU, second->bus) && live_links(b, REMOTE_GPU, first->bus)) return P2P_OK;
    bool switched = live_links(a, REMOTE_SWITCH, NULL) && live_links(b, REMOTE_SWITCH, NULL);
    bool joined = fabric_good(a) && fabric_good(b) && memcmp(first->cluster, second->cluster, 16) == 0 &&
                  first->clique == second->clique;
    return switched && joined ? P2P_OK : P2P_NOT_SUPPORTED;
}

/* ---- entering a call ---- */

static int index_of(const void *handle) {
    const char *h = handle;
    return h >= handles && h < handles + (machine ? machine->gpu_count : 0) ? (int)(h - handles) : -1;
}

/* Takes the lock and answers whether the call may go on; every ENTER needs its LEAVE. */
static int enter(const char *call, const void *handle, int *index) {
    pthread_mutex_lock(&lock);
    if (init_count == 0) return UNINITIALIZED;
    refresh();
    *index = index_of(handle);
    return *index < 0 ? INVALID_ARGUMENT : refused(call, *index);
}

static int enter_system(const char *call) {
    pthread_mutex_lock(&lock);
    if (init_count == 0) return UNINITIALIZED;
    refresh();
    return refused(call, EVERY_GPU);
}

static nvmlReturn_t leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* Strings are copied out, never lent; a short buffer is refused. */
static int copy_out(char *to, unsigned size, const char *from) {
    if (!to) return INVALID_ARGUMENT;
    if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

#define DEVICE_CALL(name, ...)                          \
    EXPORT nvmlReturn_t name(void *device, __VA_ARGS__) { \
        int i, code = enter(#name, device, &i);         \
        if (code != SUCCESS) return leave(code);        \
        Gpu *gpu = &machine->gpus[i];                   \
        (void)gpu;
#define END return leave(code); }

/* ---- load and leave ---- */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    refresh();
    if (!machine) {
        const char *path = getenv("TOPOGPU_FAKE_NVML_MACHINE");
        fprintf(stderr, "fake NVML: TOPOGPU_FAKE_NVML_MACHINE names no readable machine file (%s)\n", path ? path : "unset");
        return leave(DRIVER_NOT_LOADED);
    }
    const Fault *fault = fault_of(FAULT_CALL, EVERY_GPU, "nvmlInitWithFlags", 0);
    int code = fault ? (int)fault->first : machine->init;
    if (code == SUCCESS) init_count++;
    return leave(code);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (init_count == 0) return leave(UNINITIALIZED);
    init_count--;
    return leave(SUCCESS);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "NVML is not initialized";
    case NOT_SUPPORTED: return "Not supported on this machine";
    case NOT_FOUND: return "Not found";
    default: return "An error of the fake NVML";
    }
}

/* ---- the system ---- */

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    int code = enter_system("nvmlSystemGetDriverVersion");
    return leave(code ? code : copy_out(version, length, machine->driver));
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    int code = enter_system("nvmlSystemGetNVMLVersion");
    return leave(code ? code : copy_out(version, length, machine->nvml));
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    int code = enter_system("nvmlSystemGetCudaDriverVersion_v2");
    if (code == SUCCESS) *version = machine->cuda;
    return leave(code);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter_system("nvmlDeviceGetCount_v2");
    if (code == SUCCESS) *count = (unsigned)machine->gpu_count;
    return leave(code);
}

/* ---- finding a GPU ---- */

static int find(const char *call, int index, void **device) {
    if (index < 0) return NOT_FOUND;
    int code = refused(call, index);
    if (code == SUCCESS) *device = &handles[index];
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    int code = enter_system("");
    if (code != SUCCESS) return leave(code);
    if (index >= (unsigned)machine->gpu_count) return leave(INVALID_ARGUMENT);
    return leave(find("nvmlDeviceGetHandleByIndex_v2", (int)index, device));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int code = enter_system(""), index = -1;
    if (code != SUCCESS) return leave(code);
    for (int i = 0; i < machine->gpu_count; i++)
        if (strcmp(machine->gpus[i].uuid, uuid) == 0) index = i;
    return leave(find("nvmlDeviceGetHandleByUUID", index, device));
}

/* Both the eight-digit domain and sysfs's four-digit one are understood, in any case. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    int code = enter_system(""), index = -1;
    if (code != SUCCESS) return leave(code);
    size_t digits = strcspn(bus, ":");
    for (int i = 0; i < machine->gpu_count; i++) {
        const char *own = machine->gpus[i].bus;
        if (strcasecmp(own, bus) == 0) index = i;
        if (digits == 4 && strncmp(own, "0000", 4) == 0 && strcasecmp(own + 4, bus) == 0) index = i;
    }
    return leave(find("nvmlDeviceGetHandleByPciBusId_v2", index, device));
}

/* ---- inventory ---- */

DEVICE_CALL(nvmlDeviceGetName, char *name, unsigned length)
    code = copy_out(name, length, gpu->name);
END

DEVICE_CALL(nvmlDeviceGetUUID, char *uuid, unsigned length)
    code = copy_out(uuid, length, gpu->uuid);
END

DEVICE_CALL(nvmlDeviceGetMinorNumber, unsigned *minor)
    *minor = gpu->minor;
END

DEVICE_CALL(nvmlDeviceGetIndex, unsigned *index)
    *index = (unsigned)i;
END

static void fill_pci(PciInfo *pci, const char *bus, unsigned device_id) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "%s", bus);
    sscanf(bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF,
             pci->device & 0xFF);
    pci->pciDeviceId = device_id;
}

DEVICE_CALL(nvmlDeviceGetPciInfo_v3, PciInfo *pci)
    fill_pci(pci, gpu->bus, gpu->device_id);
END

/* Memory info v1 counts the driver's reserved part as used, v2 tells it apart. */
DEVICE_CALL(nvmlDeviceGetMemoryInfo, Memory *memory)
    memory->total = gpu->memory_mib << 20;
    memory->used = gpu->reserved_mib << 20;
    memory->free = memory->total - memory->used;
END

DEVICE_CALL(nvmlDeviceGetMemoryInfo_v2, MemoryV2 *memory)
    if (memory->version != VERSION(MemoryV2, 2)) return leave(ARGUMENT_VERSION_MISMATCH);
    memory->total = gpu->memory_mib << 20;
    memory->reserved = gpu->reserved_mib << 20;
    memory->used = 0;
    memory->free = memory->total - memory->reserved;
END

DEVICE_CALL(nvmlDeviceGetMigMode, unsigned *current, unsigned *pending)
    if (gpu->mig < 0) return leave(NOT_SUPPORTED);
    *current = *pending = (unsigned)gpu->mig;
END

DEVICE_CALL(nvmlDeviceGetCudaComputeCapability, int *major, int *minor)
    *major = (int)gpu->cc_major;
    *minor = (int)gpu->cc_minor;
END

/* Zero stands for a GPU whose PCIe link is not told. */
static int tell(unsigned *to, unsigned value) {
    if (value == 0) return NOT_SUPPORTED;
    *to = value;
    return SUCCESS;
}

DEVICE_CALL(nvmlDeviceGetMaxPcieLinkGeneration, unsigned *gen)
    code = tell(gen, gpu->gen);
END

DEVICE_CALL(nvmlDeviceGetMaxPcieLinkWidth, unsigned *width)
    code = tell(width, gpu->width);
END

DEVICE_CALL(nvmlDeviceGetCurrPcieLinkGeneration, unsigned *gen)
    code = tell(gen, gpu->gen_now);
END

DEVICE_CALL(nvmlDeviceGetCurrPcieLinkWidth, unsigned *width)
    code = tell(width, gpu->width_now);
END

DEVICE_CALL(nvmlDeviceGetNumaNodeId, unsigned *node)
    if (gpu->own_numa < 0) return leave(NOT_SUPPORTED);
    *node = (unsigned)gpu->own_numa;
END

/* `0-3,8` into a bit mask; a mask too short for the list is refused as NVML does. */
static int fill_mask(unsigned long *mask, unsigned words, const char *list) {
    memset(mask, 0, words * sizeof *mask);
    for (const char *at = list; *at;) {
        char *end;
        unsigned long from = strtoul(at, &end, 10), to = *end == '-' ? strtoul(end + 1, &end, 10) : from;
        if (to >= MASK_BITS || to >= 64UL * words) return INSUFFICIENT_SIZE;
        for (unsigned long bit = from; bit <= to; bit++) mask[bit / 64] |= 1UL << bit % 64;
        at = *end == ',' ? end + 1 : "";
    }
    return SUCCESS;
}

DEVICE_CALL(nvmlDeviceGetMemoryAffinity, unsigned words, unsigned long *mask, unsigned scope)
    code = scope > 1 ? INVALID_ARGUMENT : fill_mask(mask, words, gpu->nodes);
END

DEVICE_CALL(nvmlDeviceGetCpuAffinity, unsigned words, unsigned long *mask)
    code = fill_mask(mask, words, gpu->cpus);
END

/* ---- topology ---- */

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(void *first, void *second, unsigned *level) {
    static const char *const name = "nvmlDeviceGetTopologyCommonAncestor";
    int a, code = enter(name, first, &a);
    if (code != SUCCESS) return leave(code);
    int b = index_of(second);
    if (b < 0) return leave(INVALID_ARGUMENT);
    if ((code = refused(name, b)) == SUCCESS) *level = (unsigned)machine->levels[a][b];
    return leave(code);
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(void *first, void *second, unsigned caps, unsigned *status) {
    static const char *const name = "nvmlDeviceGetP2PStatus";
    int a, code = enter(name, first, &a);
    if (code != SUCCESS) return leave(code);
    int b = index_of(second);
    if (b < 0 || caps > CAPS_PCI) return leave(INVALID_ARGUMENT);
    if ((code = refused(name, b)) != SUCCESS) return leave(code);
    bool mig = machine->gpus[a].mig == 1 || machine->gpus[b].mig == 1;
    int nvlink = nvlink_peer_status(a, b), pcie = mig ? P2P_NOT_SUPPORTED : machine->gpus[a].p2p_pcie;
    bool over_nvlink = caps == CAPS_NVLINK || (caps != CAPS_PCI && nvlink == P2P_OK);
    *status = (unsigned)(over_nvlink ? nvlink : pcie);
    return leave(SUCCESS);
}

/* A loop over links ends at INVALID_ARGUMENT; a GPU without NVLink refuses link 0. */
static int link_problem(const Gpu *gpu, int index, unsigned link) {
    int code = refused("nvlink", index);
    if (code != SUCCESS) return code;
    if (gpu->link_count == 0) return NOT_SUPPORTED;
    return link < gpu->link_count ? SUCCESS : INVALID_ARGUMENT;
}

DEVICE_CALL(nvmlDeviceGetNvLinkState, unsigned link, unsigned *up)
    if ((code = link_problem(gpu, i, link)) == SUCCESS) *up = link_up(i, link);
END

DEVICE_CALL(nvmlDeviceGetNvLinkVersion, unsigned link, unsigned *version)
    if ((code = link_problem(gpu, i, link)) == SUCCESS) *version = gpu->nvlink_version;
END

DEVICE_CALL(nvmlDeviceGetNvLinkRemotePciInfo_v2, unsigned link, PciInfo *pci)
    if ((code = link_problem(gpu, i, link)) != SUCCESS) return leave(code);
    if (!link_up(i, link)) return leave(NOT_SUPPORTED);
    fill_pci(pci, gpu->links[link].bus, 0);
END

DEVICE_CALL(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned link, unsigned *type)
    if ((code = link_problem(gpu, i, link)) == SUCCESS) *type = (unsigned)gpu->links[link].remote;
END

static int field(const Gpu *gpu, int i, unsigned id, unsigned scope, unsigned *value) {
    char call[32];
    snprintf(call, sizeof call, "field:%u", id);
    int code = refused(call, i);
    if (code != SUCCESS) return code;
    switch (id) {
    case FI_RECOVERY_ACTION: *value = 0; return SUCCESS;
    case FI_C2C_LINK_COUNT: *value = gpu->c2c_mbps != 0; return SUCCESS;
    case FI_C2C_LINK_GET_STATUS: return tell(value, gpu->c2c_mbps != 0);
    case FI_C2C_LINK_GET_MAX_BW: return tell(value, gpu->c2c_mbps);
    case FI_NVLINK_SPEED_COMMON: *value = gpu->nvlink_mbps; return link_problem(gpu, i, 0);
    case FI_NVLINK_LINK_COUNT: *value = gpu->link_count; return link_problem(gpu, i, 0);
    case FI_NVSWITCH_CONNECTED_LINK_COUNT: *value = live_links(i, REMOTE_SWITCH, NULL); return link_problem(gpu, i, 0);
    case FI_NVLINK_GET_SPEED: *value = link_up(i, scope) ? gpu->nvlink_mbps : 0; return link_problem(gpu, i, scope);
    case FI_NVLINK_GET_STATE: *value = link_up(i, scope); return link_problem(gpu, i, scope);
    case FI_NVLINK_GET_VERSION: *value = gpu->nvlink_version; return link_problem(gpu, i, scope);
    default: return NOT_SUPPORTED;
    }
}

/* The call succeeds; entries fail one by one. */
DEVICE_CALL(nvmlDeviceGetFieldValues, int count, FieldValue *values)
    for (int k = 0; k < count; k++) {
        unsigned value = 0;
        values[k].nvmlReturn = field(gpu, i, values[k].fieldId, values[k].scopeId, &value);
        values[k].valueType = VALUE_UNSIGNED_INT;
        values[k].value.ull = values[k].nvmlReturn == SUCCESS ? value : 0;
    }
END

DEVICE_CALL(nvmlDeviceGetGpuFabricInfoV, FabricV2 *info)
    bool v3 = info->version == VERSION(FabricV3, 3);
    if (!v3 && info->version != VERSION(FabricV2, 2)) return leave(ARGUMENT_VERSION_MISMATCH);
    if (gpu->fabric_state < 0) return leave(NOT_SUPPORTED);
    memcpy(info->clusterUuid, gpu->cluster, sizeof info->clusterUuid);
    info->status = fabric_status(i);
    info->cliqueId = gpu->clique;
    info->state = (unsigned char)fabric_state(i);
    info->healthMask = 0;
    if (v3) ((FabricV3 *)info)->healthSummary = fabric_good(i) ? 1 : 2;
END

/* ---- health ---- */

DEVICE_CALL(nvmlDeviceGetRemappedRows, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
    if (!gpu->ecc || gpu->cc_major < 8) return leave(NOT_SUPPORTED); /* Ampere and later */
    *corrected = *uncorrected = *pending = *failed = 0;
END

DEVICE_CALL(nvmlDeviceGetTotalEccErrors, unsigned type, unsigned counter, unsigned long long *count)
    if (!gpu->ecc) return leave(NOT_SUPPORTED);
    if (type > 1 || counter > 1) return leave(INVALID_ARGUMENT);
    *count = 0;
END

DEVICE_CALL(nvmlDeviceGetSupportedEventTypes, unsigned long long *types)
    *types = gpu->ecc ? SUPPORTED_EVENTS : SUPPORTED_EVENTS & ~3ULL;
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
    if (types & ~(gpu->ecc ? SUPPORTED_EVENTS : SUPPORTED_EVENTS & ~3ULL)) return leave(NOT_SUPPORTED);
    set->types[i] |= types;
    set->since[i] = now_seconds();
END

/* One event that is due, wanted by this set, and younger than its registration. */
static bool next_event(EventSet *set, EventData *out) {
    double now = now_seconds();
    for (int k = 0; k < machine->fault_count; k++) {
        Fault *f = &machine->faults[k];
        if (f->kind != FAULT_EVENT || f->delivered || f->due > now || f->gpu < 0 || f->gpu >= machine->gpu_count) continue;
        if (!(set->types[f->gpu] & (unsigned long long)f->first) || f->due < set->since[f->gpu]) continue;
        f->delivered = true;
        *out = (EventData){&handles[f->gpu], (unsigned long long)f->first, (unsigned long long)f->second, WHOLE_GPU, WHOLE_GPU};
        return true;
    }
    return false;
}

/* Looks every 5 ms, without the lock in between: other threads go on asking. */
EXPORT nvmlReturn_t nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    const struct timespec pause = {0, 5000000};
    for (unsigned waited = 0;; waited += 5) {
        int code = enter_system("nvmlEventSetWait_v2");
        bool found = code == SUCCESS && next_event(set, out);
        leave(code);
        if (code != SUCCESS || found) return code;
        if (waited >= timeout_ms) return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}

/* ---- processes: nobody computes on a described machine ---- */

DEVICE_CALL(nvmlDeviceGetComputeRunningProcesses_v3, unsigned *count, void *list)
    (void)list;
    *count = 0;
END

DEVICE_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, unsigned *count, void *list)
    (void)list;
    *count = 0;
END

DEVICE_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, unsigned *count, void *list)
    (void)list;
    *count = 0;
END

DEVICE_CALL(nvmlDeviceGetProcessUtilization, void *samples, unsigned *count, unsigned long long since)
    (void)samples, (void)since;
    if (gpu->mig == 1) return leave(NOT_SUPPORTED);
    *count = 0;
    code = NOT_FOUND;
END
