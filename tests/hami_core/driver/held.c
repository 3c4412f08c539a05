/* What the fake driver has: {"<uuid>": {"<host pid>": [MiB, percent, contexts], ...}, ...} */
#include <stdio.h>

#include "gpus.h"

int main(void) {
    FakeState *state = fake_lock();
    printf("{");
    for (int g = 0; g < fake_gpu_count; g++) {
        printf("%s\"%s\": {", g ? ", " : "", fake_gpus[g].uuid);
        int first = 1;
        for (int p = 0; p < MOST_PROCESSES; p++) {
            const FakeProcess *each = &state->processes[p];
            if (!each->pid || (!each->used[g] && !each->contexts[g])) continue;
            printf("%s\"%d\": [%llu, %u, %u]", first ? "" : ", ", each->pid, (unsigned long long)each->used[g] >> 20,
                   fake_percent(each, g), each->contexts[g]);
            first = 0;
        }
        printf("}");
    }
    printf("}\n");
    fake_unlock(state);
    return 0;
}
