/* Reads the machine and its faults from the file that TOPOGPU_FAKE_NVML_MACHINE names. A program that is started in a
 * running container has not the environment that the container runtime added: then the file is at a fixed place. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "machine.h"

Machine *machine;
static struct stat seen;
static struct timespec first_load;

/* Since the first reading. */
double now_seconds(void) {
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

static bool read_mig(Machine *m, const char *rest) {
    int index;
    Mig read = {0};
    if (sscanf(rest, "%d %79s %31s %llu %u %u %u %u", &index, read.uuid, read.profile, &read.memory_mib, &read.gi,
               &read.ci, &read.gpu_slices, &read.compute_slices) != 8)
        return false;
    Gpu *gpu = gpu_of_line(m, index);
    if (!gpu || gpu->mig_count >= MAX_MIGS) return false;
    gpu->migs[gpu->mig_count++] = read;
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
    static const char *const kinds[] = {"call",     "link", "fabric", "event", "clear",      "types",
                                        "recovery", "rows", "pages",  "ecc",   "event-types", "hang"};
    const int kind_count = (int)(sizeof kinds / sizeof *kinds);
    char kind[16];
    if (m->fault_count >= MAX_FAULTS) return false;
    Fault *fault = &m->faults[m->fault_count];
    memset(fault, 0, sizeof *fault);
    if (sscanf(rest, "%lf %d %15s %63s %lld %lld", &fault->at, &fault->gpu, kind, fault->call, &fault->first,
               &fault->second) != 6)
        return false;
    for (fault->kind = 0; fault->kind < kind_count; fault->kind++)
        if (strcmp(kind, kinds[fault->kind]) == 0) break;
    m->fault_count++;
    return fault->kind < kind_count;
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

static bool read_usage(Machine *m, const char *rest) {
    int index;
    Load load;
    if (sscanf(rest, "%d %u %u %u %u %u %u %u %u %llu", &index, &load.busy_percent, &load.memory_busy_percent,
               &load.celsius, &load.milliwatts, &load.sm_mhz, &load.memory_mhz, &load.encoder_percent,
               &load.decoder_percent, &load.clock_reasons) != 10)
        return false;
    Gpu *gpu = gpu_of_line(m, index);
    if (!gpu) return false;
    gpu->load = load;
    return true;
}

static bool read_counter(Machine *m, const char *rest) {
    int index;
    Counter counter;
    if (sscanf(rest, "%d %u %llu", &index, &counter.field, &counter.value) != 3) return false;
    Gpu *gpu = gpu_of_line(m, index);
    if (!gpu || gpu->counter_count >= MAX_COUNTERS) return false;
    gpu->counters[gpu->counter_count++] = counter;
    return true;
}

static bool read_process(Machine *m, const char *rest) {
    if (m->process_count >= MAX_PROCESSES) return false;
    Process *p = &m->processes[m->process_count++];
    return sscanf(rest, "%d %d %u %llu %u", &p->gpu, &p->list, &p->pid, &p->used_mib, &p->sm_percent) == 5 &&
           gpu_of_line(m, p->gpu);
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
    if (strcmp(word, "mig") == 0) return read_mig(m, rest);
    if (strcmp(word, "fabric") == 0) return read_fabric(m, rest);
    if (strcmp(word, "refuse") == 0) return read_refusal(m, rest);
    if (strcmp(word, "fault") == 0) return read_fault(m, rest);
    if (strcmp(word, "usage") == 0) return read_usage(m, rest);
    if (strcmp(word, "counter") == 0) return read_counter(m, rest);
    if (strcmp(word, "process") == 0) return read_process(m, rest);
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
void refresh(void) {
    const char *named = getenv("TOPOGPU_FAKE_NVML_MACHINE"), *path = named ? named : "/etc/topogpu-fake-nvml-machine";
    struct stat found;
    if (stat(path, &found) != 0) return;
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
    keep_instances();
}
