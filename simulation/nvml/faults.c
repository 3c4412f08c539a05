/* What the machine's faults change: the last one that is due holds. */
#define _GNU_SOURCE
#include <string.h>

#include "machine.h"

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
        if ((kind == FAULT_CALL || kind == FAULT_HANG) && strcmp(f->call, "*") != 0 && !names_call(f->call, call)) continue;
        if (kind == FAULT_LINK && f->first != link) continue;
        holds = f;
    }
    return holds;
}

/* What stands in the way of `call` on a GPU (EVERY_GPU: a call on the system). */
int refused(const char *call, int gpu) {
    const Fault *fault = fault_of(FAULT_CALL, gpu, call, 0);
    if (fault && (gpu != EVERY_GPU || strcmp(fault->call, "*") != 0)) return (int)fault->first;
    for (int i = 0; i < machine->refusal_count; i++)
        if (names_call(machine->refusals[i].call, call)) return machine->refusals[i].code;
    return SUCCESS;
}

const Fault *hang_now(const char *call, int gpu) {
    const Fault *fault = fault_of(FAULT_HANG, gpu, call, 0);
    return fault && (gpu != EVERY_GPU || strcmp(fault->call, "*") != 0) ? fault : NULL;
}

int init_problem(void) {
    const Fault *fault = fault_of(FAULT_CALL, EVERY_GPU, "nvmlInitWithFlags", 0);
    return fault ? (int)fault->first : machine->init;
}

bool link_up(int gpu, unsigned link) {
    const Fault *fault = fault_of(FAULT_LINK, gpu, "", link);
    return !fault || fault->second != 0;
}

/* What the driver says of the other end; peer access goes by what is really there. */
int link_type(int gpu, unsigned link) {
    return fault_of(FAULT_TYPES, gpu, "", 0) ? REMOTE_UNKNOWN : machine->gpus[gpu].links[link].remote;
}

unsigned live_links(int gpu, int remote, const char *bus) {
    unsigned live = 0;
    Gpu *g = &machine->gpus[gpu];
    for (unsigned k = 0; k < g->link_count; k++)
        live += g->links[k].remote == remote && (!bus || strcmp(g->links[k].bus, bus) == 0) && link_up(gpu, k);
    return live;
}

int fabric_state(int gpu) {
    const Fault *fault = fault_of(FAULT_FABRIC, gpu, "", 0);
    return fault && machine->gpus[gpu].fabric_state >= 0 ? (int)fault->first : machine->gpus[gpu].fabric_state;
}

int fabric_status(int gpu) {
    const Fault *fault = fault_of(FAULT_FABRIC, gpu, "", 0);
    return fault ? (int)fault->second : machine->gpus[gpu].fabric_status;
}

const Fault *fault_now(int kind, int gpu) { return fault_of(kind, gpu, "", 0); }

long long fault_value(int kind, int gpu, long long otherwise) {
    const Fault *fault = fault_now(kind, gpu);
    return fault ? fault->first : otherwise;
}

bool fabric_good(int gpu) {
    int state = fabric_state(gpu);
    return state <= 0 || (state == FABRIC_COMPLETED && fabric_status(gpu) == SUCCESS);
}

int nvlink_peer_status(int a, int b) {
    Gpu *first = &machine->gpus[a], *second = &machine->gpus[b];
    if (first->mig == 1 || second->mig == 1) return P2P_NOT_SUPPORTED; /* MIG ends all peer access */
    if (live_links(a, REMOTE_GPU, second->bus) && live_links(b, REMOTE_GPU, first->bus)) return P2P_OK;
    bool switched = live_links(a, REMOTE_SWITCH, NULL) && live_links(b, REMOTE_SWITCH, NULL);
    bool joined = fabric_good(a) && fabric_good(b) && memcmp(first->cluster, second->cluster, 16) == 0 &&
                  first->clique == second->clique;
    return switched && joined ? P2P_OK : P2P_NOT_SUPPORTED;
}
