/*
 * The calls of a libnvidia-ml.so.1 for machines without a GPU. It answers what a flat
 * text file says; TOPOGPU_FAKE_NVML_MACHINE names the file, machine_file.py writes it.
 *
 * Functions the daemon may not need are left out on purpose: a missing symbol is
 * how an old driver looks, and nvidia-ml-py turns it into FunctionNotFound.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"

#define MASK_BITS 4096

enum { CAPS_READ = 0, CAPS_WRITE = 1, CAPS_NVLINK = 2, CAPS_ATOMICS = 3, CAPS_PCI = 4 };
enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3 };
enum {
    FI_NVLINK_SPEED_COMMON = 90, FI_NVLINK_LINK_COUNT = 91, FI_NVSWITCH_CONNECTED_LINK_COUNT = 147,
    FI_NVLINK_GET_SPEED = 164, FI_NVLINK_GET_STATE = 165, FI_NVLINK_GET_VERSION = 166,
    FI_C2C_LINK_COUNT = 170, FI_C2C_LINK_GET_STATUS = 171, FI_C2C_LINK_GET_MAX_BW = 172,
    FI_RECOVERY_ACTION = 230,
    FI_ECC_SBE_VOL = 3, FI_ECC_DBE_VOL = 4, FI_ECC_SBE_AGG = 5, FI_ECC_DBE_AGG = 6,
    FI_NVLINK_CRC_FLIT = 38, FI_NVLINK_CRC_DATA = 45, FI_NVLINK_REPLAY = 52, FI_NVLINK_RECOVERY = 59,
    FI_MEMORY_TEMP = 82, FI_ENERGY = 83, FI_PCIE_REPLAY = 94, FI_NVLINK_DATA_TX = 138, FI_NVLINK_DATA_RX = 139,
    FI_REMAPPED_COR = 142, FI_REMAPPED_UNC = 143, FI_REMAPPED_FAILURE = 145, FI_PCIE_TX = 197, FI_PCIE_RX = 198,
};

/* ---- structs of the interface; a size that drifts stops the build ---- */

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } Value;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    Value value;
} FieldValue;
typedef struct { unsigned char clusterUuid[16]; nvmlReturn_t status; unsigned cliqueId; unsigned char state; } FabricV1;
typedef struct {
    unsigned version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    unsigned char state; /* a byte in nvml.h; three bytes of padding follow */
    unsigned healthMask;
} FabricV2;
typedef struct { FabricV2 v2; unsigned char healthSummary; } FabricV3;

_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(FabricV1) == 28, "nvmlGpuFabricInfo_t");
_Static_assert(sizeof(FabricV2) == 36, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(FabricV3) == 40, "nvmlGpuFabricInfo_v3_t");

/* One lock for everything: nvml.h promises thread safety, and nothing here is slow. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int init_count;
static char handles[MAX_GPUS];

void *handle_of(int index) { return &handles[index]; }

/* No driver has this: who loads the library can know that its GPUs are not real. */
EXPORT int topogpuSimulated(void) { return 1; }

/* ---- entering a call ---- */

int index_of(const void *handle) {
    const char *h = handle;
    return h >= handles && h < handles + (machine ? machine->gpu_count : 0) ? (int)(h - handles) : -1;
}

/* Keeps a call for as long as its fault says or stands, without the lock: calls on other GPUs go on. */
void hang(const char *call, int gpu) {
    const struct timespec pause = {0, 20000000};
    const Fault *fault;
    for (long long waited_ms = 0; (fault = hang_now(call, gpu)) && waited_ms < fault->first; waited_ms += 20) {
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
        refresh();
    }
}

int enter(const char *call, const void *handle, int *index) {
    pthread_mutex_lock(&lock);
    if (init_count == 0) return UNINITIALIZED;
    refresh();
    *index = index_of(handle);
    if (*index >= 0) hang(call, *index);
    return *index < 0 ? INVALID_ARGUMENT : refused(call, *index);
}

int enter_system(const char *call) {
    pthread_mutex_lock(&lock);
    if (init_count == 0) return UNINITIALIZED;
    refresh();
    hang(call, EVERY_GPU);
    return refused(call, EVERY_GPU);
}

nvmlReturn_t leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

int copy_out(char *to, unsigned size, const char *from) {
    if (!to) return INVALID_ARGUMENT;
    if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

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
    int code = init_problem();
    if (code == SUCCESS) init_count++;
    return leave(code);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (init_count == 0) return leave(UNINITIALIZED);
    init_count--;
    return leave(SUCCESS);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "GPU access blocked by the operating system", "Driver/library version mismatch", "In use",
        "Insufficient memory", "No data", "vGPU ECC not supported", "Insufficient resources", "Frequency not supported",
        "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
    };
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
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

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* ---- finding a GPU ---- */

static int find(const char *call, int index, void **device) {
    if (index < 0) return NOT_FOUND;
    hang(call, index);
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

DEVICE_CALL(nvmlDeviceGetMinorNumber, unsigned *minor)
    *minor = gpu->minor;
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

DEVICE_CALL(nvmlDeviceGetArchitecture, unsigned *architecture)
    enum { VOLTA = 5, TURING, AMPERE, ADA, HOPPER, BLACKWELL };
    unsigned cc = 10 * gpu->cc_major + gpu->cc_minor;
    *architecture = cc < 70 ? cc / 10 - 2 : cc < 75 ? VOLTA : cc < 80 ? TURING : cc < 89 ? AMPERE : cc < 90 ? ADA : cc < 100 ? HOPPER : BLACKWELL;
END

DEVICE_CALL(nvmlDeviceGetBrand, unsigned *brand)
    enum { TESLA = 2, GEFORCE = 5, NVIDIA = 14 };
    *brand = strstr(gpu->name, "GeForce") ? GEFORCE : strstr(gpu->name, "Tesla") ? TESLA : NVIDIA;
END

DEVICE_CALL(nvmlDeviceGetEccMode, unsigned *current, unsigned *pending)
    if (gpu->cc_major < 7) return leave(NOT_SUPPORTED);
    *current = *pending = gpu->ecc != 0;
END

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
    if ((code = link_problem(gpu, i, link)) == SUCCESS) *type = (unsigned)link_type(i, link);
END

/* Stacked memory has a sensor of its own: the data-centre GPUs of these generations have such memory. */
static bool has_hbm(const Gpu *gpu) {
    return gpu->ecc && (gpu->cc_minor == 0 && gpu->cc_major >= 6 && gpu->cc_major <= 10);
}

/* What the machine file says of a field, else 0 where the GPU has it at all. */
static int counted(const Gpu *gpu, int i, unsigned id, unsigned long long *value) {
    const Fault *rows = fault_now(FAULT_ROWS, i);
    bool told = false;
    *value = id == FI_ECC_DBE_VOL ? (unsigned long long)fault_value(FAULT_ECC, i, 0)
           : id == FI_MEMORY_TEMP ? gpu->load.celsius
           : id == FI_REMAPPED_UNC ? rows != NULL
           : id == FI_REMAPPED_FAILURE ? rows && rows->second : 0;
    for (int k = 0; k < gpu->counter_count; k++)
        if (gpu->counters[k].field == id) *value = gpu->counters[k].value, told = true;
    switch (id) {
    case FI_ECC_SBE_VOL: case FI_ECC_DBE_VOL: case FI_ECC_SBE_AGG: case FI_ECC_DBE_AGG: return gpu->ecc ? SUCCESS : NOT_SUPPORTED;
    case FI_MEMORY_TEMP: return has_hbm(gpu) || told ? SUCCESS : NOT_SUPPORTED;
    case FI_REMAPPED_COR: case FI_REMAPPED_UNC: case FI_REMAPPED_FAILURE:
        return gpu->ecc && gpu->cc_major >= 8 ? SUCCESS : NOT_SUPPORTED;
    case FI_NVLINK_CRC_FLIT: case FI_NVLINK_CRC_DATA: case FI_NVLINK_REPLAY: case FI_NVLINK_RECOVERY:
    case FI_NVLINK_DATA_TX: case FI_NVLINK_DATA_RX: return link_problem(gpu, i, 0);
    case FI_ENERGY: case FI_PCIE_REPLAY: case FI_PCIE_TX: case FI_PCIE_RX: return SUCCESS;
    default: return told ? SUCCESS : NOT_SUPPORTED;
    }
}

static int field(const Gpu *gpu, int i, unsigned id, unsigned scope, unsigned long long *value) {
    char call[32];
    snprintf(call, sizeof call, "field:%u", id);
    int code = refused(call, i);
    if (code != SUCCESS) return code;
    switch (id) {
    case FI_RECOVERY_ACTION: *value = (unsigned long long)fault_value(FAULT_RECOVERY, i, 0); return SUCCESS;
    case FI_C2C_LINK_COUNT: *value = gpu->c2c_mbps != 0; return SUCCESS;
    case FI_C2C_LINK_GET_STATUS: *value = gpu->c2c_mbps != 0; return gpu->c2c_mbps ? SUCCESS : NOT_SUPPORTED;
    case FI_C2C_LINK_GET_MAX_BW: *value = gpu->c2c_mbps; return gpu->c2c_mbps ? SUCCESS : NOT_SUPPORTED;
    case FI_NVLINK_SPEED_COMMON: *value = gpu->nvlink_mbps; return link_problem(gpu, i, 0);
    case FI_NVLINK_LINK_COUNT: *value = gpu->link_count; return link_problem(gpu, i, 0);
    case FI_NVSWITCH_CONNECTED_LINK_COUNT: *value = live_links(i, REMOTE_SWITCH, NULL); return link_problem(gpu, i, 0);
    case FI_NVLINK_GET_SPEED: *value = link_up(i, scope) ? gpu->nvlink_mbps : 0; return link_problem(gpu, i, scope);
    case FI_NVLINK_GET_STATE: *value = link_up(i, scope); return link_problem(gpu, i, scope);
    case FI_NVLINK_GET_VERSION: *value = gpu->nvlink_version; return link_problem(gpu, i, scope);
    default: return counted(gpu, i, id, value);
    }
}

/* Counters that grow for as long as the driver is loaded are wide, whatever their value is. */
static int type_of(unsigned id) {
    switch (id) {
    case FI_ECC_SBE_VOL: case FI_ECC_DBE_VOL: case FI_ECC_SBE_AGG: case FI_ECC_DBE_AGG: case FI_ENERGY:
    case FI_NVLINK_CRC_FLIT: case FI_NVLINK_CRC_DATA: case FI_NVLINK_REPLAY: case FI_NVLINK_RECOVERY:
    case FI_NVLINK_DATA_TX: case FI_NVLINK_DATA_RX: return VALUE_UNSIGNED_LONG_LONG;
    default: return VALUE_UNSIGNED_INT;
    }
}

/* The call succeeds; entries fail one by one. */
DEVICE_CALL(nvmlDeviceGetFieldValues, int count, FieldValue *values)
    for (int k = 0; k < count; k++) {
        unsigned long long value = 0;
        values[k].nvmlReturn = field(gpu, i, values[k].fieldId, values[k].scopeId, &value);
        values[k].valueType = value > 0xFFFFFFFFull ? VALUE_UNSIGNED_LONG_LONG : type_of(values[k].fieldId);
        values[k].value.ull = values[k].nvmlReturn == SUCCESS ? value : 0;
    }
END

DEVICE_CALL(nvmlDeviceGetGpuFabricInfo, FabricV1 *info)
    if (gpu->fabric_state < 0) return leave(NOT_SUPPORTED);
    memcpy(info->clusterUuid, gpu->cluster, sizeof info->clusterUuid);
    info->status = fabric_status(i);
    info->cliqueId = gpu->clique;
    info->state = (unsigned char)fabric_state(i);
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
