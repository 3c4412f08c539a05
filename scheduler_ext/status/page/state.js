// What the page knows: messages enter, the parts that changed leave.

import { Use } from "./use.js";

const MOST_HAPPENED = 200;
const MOST_SAMPLES = 360;
const PARTS = ["head", "teams", "waiting", "happened", "history", "use"];

export class State {
  constructor() {
    this.forget();
  }

  forget() {
    this.nodes = new Map();
    this.use = new Map();
    this.head = null;
    this.teams = {};
    this.waiting = [];
    this.happened = [];
    this.history = [];
    this.at = 0;
    this.complete = false; // whether every node has come
  }

  // The extender's time, for ages. Without news no message has it.
  get now() {
    return this.at && this.at + (performance.now() - this.heard) / 1000;
  }

  // `last` is whether the messages that belong together end with this one. Returns the names of the nodes that changed, of
  // those whose use changed, the other parts, and whether every node has come with this message.
  apply(message, last) {
    const parts = new Set();
    const nodes = new Set();
    const used = new Set();
    if (message.full) {
      for (const name of this.nodes.keys()) nodes.add(name);
      this.forget();
      for (const part of PARTS) parts.add(part);
    }
    if (message.at) {
      this.at = message.at;
      this.heard = performance.now();
      parts.add("waiting"); // for the ages
    }
    for (const [name, node] of Object.entries(message.nodes ?? {})) {
      if (node === null) {
        this.nodes.delete(name);
        this.use.delete(name);
      } else this.nodes.set(name, new Known(name, node));
      nodes.add(name);
    }
    for (const [name, use] of Object.entries(message.use ?? {})) {
      if (use === null) this.use.delete(name);
      else this.use.set(name, new Use(use));
      parts.add("use");
      used.add(name);
    }
    for (const part of ["head", "teams", "waiting"]) {
      if (message[part]) {
        this[part] = message[part];
        parts.add(part);
      }
    }
    if (message.happened) this.happened = [...this.happened, ...message.happened].slice(-MOST_HAPPENED);
    if (message.history) this.history = [...this.history, ...message.history].slice(-MOST_SAMPLES);
    for (const part of ["happened", "history"]) if (message[part]) parts.add(part);
    const completed = last && !this.complete && Boolean(this.head?.synced);
    if (completed) this.complete = true;
    return { nodes, used, parts, completed };
  }
}

// A node, with what cards, filter and the table of pods need. The costly parts are made when they are first asked for.
class Known {
  constructor(name, node) {
    this.name = name;
    this.gpus = node.gpus ?? [];
    this.links = node.links ?? [];
    this.notes = node.notes ?? [];
    this.problem = node.problem ?? "";
    this.taints = node.taints ?? [];
    this.tainted = node.tainted ?? false;
    this.pool = node.pool ?? "";
    this.domains = node.domains ?? [];
    this.limits = node.limits ?? "";
    this.models = [...new Set(this.gpus.map((gpu) => gpu.model))];
    this.idle = 0;
    this.lost = 0;
    this.memory = [0, 0];
    this.cores = [0, 0];
    for (const gpu of this.gpus) {
      if (gpu.state) this.lost += 1;
      else if (!gpu.replicas[0]) this.idle += 1;
      this.memory[0] += gpu.memory[0];
      this.memory[1] += gpu.memory[1];
      this.cores[0] += gpu.cores[0];
      this.cores[1] += gpu.cores[1];
    }
    this.cordoned = this.gpus.some((gpu) => gpu.state === "the node is cordoned");
    this.whole = this.gpus.length > 0 && this.idle === this.gpus.length;
    this.troubled = Boolean(this.problem || this.notes.length || this.lost);
  }

  // The domain of this level, such as "rack" or "clique"; empty if it is in none.
  domain(level) {
    return this.domains.find(([each]) => each === level)?.[1] ?? "";
  }

  get pods() {
    return (this.foundPods ??= podsOf(this));
  }

  // The namespace that holds most of it.
  get namespace() {
    const held = new Map();
    for (const pod of this.pods) held.set(namespaceOf(pod.pod), (held.get(namespaceOf(pod.pod)) ?? 0) + pod.memory);
    return [...held].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "";
  }

  // What is true of all its pods.
  get about() {
    return (this.foundAbout ??= [this.name, this.pool, ...this.models].join("\n").toLowerCase());
  }

  get text() {
    return (this.foundText ??= [this.name, this.pool, ...this.domains.flat(), ...this.taints, ...this.models, ...this.pods.map((pod) => pod.pod), ...this.gpus.map((gpu) => gpu.uuid)].join("\n").toLowerCase());
  }
}

function podsOf(node) {
  const pods = new Map();
  for (const gpu of node.gpus) {
    for (const held of gpu.held ?? []) {
      const key = `${held.pod} ${held.state ?? ""}`;
      let pod = pods.get(key);
      if (!pod) pods.set(key, (pod = { pod: held.pod, node: node.name, gpus: [], memory: 0, cores: 0, state: held.state ?? "bound" }));
      pod.gpus.push(gpu.index);
      pod.memory += held.memory;
      pod.cores += held.cores;
    }
  }
  return [...pods.values()];
}

export function namespaceOf(pod) {
  return pod.slice(0, pod.indexOf("/"));
}

// Sums of the nodes that match; of all without a filter.
export function sumsOf(nodes, filter) {
  const sums = { nodes: 0, gpus: 0, idle: 0, lost: 0, memory: [0, 0], cores: [0, 0] };
  for (const node of nodes.values()) {
    if (!matches(node, filter)) continue;
    sums.nodes += 1;
    sums.gpus += node.gpus.length;
    for (const name of ["idle", "lost"]) sums[name] += node[name];
    for (const name of ["memory", "cores"]) for (const at of [0, 1]) sums[name][at] += node[name][at];
  }
  return sums;
}

// The group with those of its pods that match; null without any. A match of owner or reason is one of all pods.
export function waiting(group, filter) {
  const about = `${group.namespace}/\n${group.owner}\n${group.why?.sentence ?? ""}`.toLowerCase();
  if (about.includes(filter.text)) return group;
  const pods = group.pods.filter(([name]) => `${group.namespace}/${name}`.toLowerCase().includes(filter.text));
  return pods.length ? { ...group, pods, count: pods.length } : null;
}

export function matches(node, filter) {
  return (!filter.text || node.text.includes(filter.text)) && (filter.show !== "idle" || node.idle > 0) && (filter.show !== "problems" || node.troubled);
}
