// What the page knows: messages enter, the parts that changed leave.

const MOST_TOLD = 200;
const MOST_SAMPLES = 360;

export class State {
  constructor() {
    this.forget();
  }

  forget() {
    this.nodes = new Map();
    this.head = null;
    this.waiting = [];
    this.told = [];
    this.history = [];
    this.at = 0;
  }

  // Returns the names of the nodes that changed, and of the other parts.
  apply(message) {
    const parts = new Set();
    const nodes = new Set();
    if (message.full) {
      for (const name of this.nodes.keys()) nodes.add(name);
      this.forget();
      for (const part of ["head", "waiting", "told", "history"]) parts.add(part);
    }
    if (message.at) this.at = message.at;
    for (const [name, node] of Object.entries(message.nodes ?? {})) {
      if (node === null) this.nodes.delete(name);
      else this.nodes.set(name, known(name, node));
      nodes.add(name);
    }
    for (const part of ["head", "waiting"]) {
      if (message[part]) {
        this[part] = message[part];
        parts.add(part);
      }
    }
    if (message.told) this.told = [...this.told, ...message.told].slice(-MOST_TOLD);
    if (message.history) this.history = [...this.history, ...message.history].slice(-MOST_SAMPLES);
    for (const part of ["told", "history"]) if (message[part]) parts.add(part);
    return { nodes, parts };
  }
}

// Adds what cards, filter and the table of pods need of a node.
function known(name, node) {
  const gpus = node.gpus ?? [];
  const pods = new Map();
  for (const gpu of gpus) {
    for (const held of gpu.held ?? []) {
      const key = `${held.pod} ${held.state ?? ""}`;
      let pod = pods.get(key);
      if (!pod) pods.set(key, (pod = { pod: held.pod, node: name, gpus: [], memory: 0, cores: 0, state: held.state ?? "bound" }));
      pod.gpus.push(gpu.index);
      pod.memory += held.memory;
      pod.cores += held.cores;
    }
  }
  const sum = (part, at) => gpus.reduce((total, gpu) => total + gpu[part][at], 0);
  const models = [...new Set(gpus.map((gpu) => gpu.model))];
  const lost = gpus.filter((gpu) => gpu.state).length;
  const full = {
    name,
    gpus,
    links: node.links ?? [],
    notes: node.notes ?? [],
    problem: node.problem ?? "",
    pods: [...pods.values()],
    models,
    idle: gpus.filter((gpu) => !gpu.state && !gpu.slots[0]).length,
    lost,
    troubled: Boolean(node.problem || node.notes?.length || lost),
    memory: [sum("memory", 0), sum("memory", 1)],
  };
  full.text = [name, ...models, ...full.pods.map((pod) => pod.pod), ...gpus.map((gpu) => gpu.uuid)].join("\n").toLowerCase();
  return full;
}

export function matches(node, filter) {
  return (!filter.text || node.text.includes(filter.text)) && (filter.show !== "idle" || node.idle > 0) && (filter.show !== "problems" || node.troubled);
}
