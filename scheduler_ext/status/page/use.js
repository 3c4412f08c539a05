// Who really uses the GPUs: what the node daemons report, by node.

export const IDLE_SECONDS = 3600; // a pod that has not computed on its GPU for so long holds it idly

// A node's use. A row of `containers` is: pod, container, index of the GPU, MiB, percent of the time, and since when it does not
// compute there (0 while it does, null where that is not known).
export class Use {
  constructor({ gpus, containers }) {
    this.gpus = new Map(Object.entries(gpus).map(([index, [memory, busy]]) => [Number(index), { memory, busy }]));
    this.containers = containers;
    this.pods = new Map();
    this.since = Infinity; // since when any of it is not used
    for (const [pod, , gpu, memory, busy, since] of containers) {
      if (since) this.since = Math.min(this.since, since);
      if (!this.pods.has(pod)) this.pods.set(pod, { memory: 0, busy: 0, since: new Map() });
      const of = this.pods.get(pod);
      of.memory = sum(of.memory, memory);
      of.busy = sum(of.busy, busy);
      of.since.set(gpu, of.since.has(gpu) ? later(of.since.get(gpu), since) : since);
    }
  }

  // The GPUs that the pod has not used for an hour, and for how long at least.
  idle(pod, now) {
    const gpus = [];
    let seconds = Infinity;
    for (const [gpu, since] of this.pods.get(pod)?.since ?? []) {
      if (!since || now - since < IDLE_SECONDS) continue;
      gpus.push(gpu);
      seconds = Math.min(seconds, now - since);
    }
    return gpus.length ? { gpus, seconds } : null;
  }
}

// Of what is not known the sum is not known.
function sum(one, other) {
  return one === null || other === null ? null : one + other;
}

// Of two containers on one GPU: in use if one uses it, not known if one is not.
function later(one, other) {
  if (one === 0 || other === 0) return 0;
  return one === null || other === null ? null : Math.max(one, other);
}

// The use of all GPUs of which it is known, of the nodes for which `chosen` is true.
export function usedIn(nodes, uses, chosen) {
  const of = { gpus: 0, busy: 0, memory: 0 };
  for (const [name, use] of uses) {
    if (!nodes.has(name) || !chosen(nodes.get(name))) continue;
    for (const { memory, busy } of use.gpus.values()) {
      if (busy === null) continue;
      of.gpus += 1;
      of.busy += busy;
      of.memory += memory ?? 0;
    }
  }
  return of;
}
