// The pods that hold GPUs: a table that sorts by every column and groups, and those that do not use what they hold.

import * as address from "./address.js";
import { byId, element, keep, write } from "./dom.js";
import { matches, namespaceOf } from "./state.js";
import { IDLE_SECONDS } from "./use.js";
import { counted, cut, duration, memory, number, ranges } from "./words.js";

const MOST_ROWS = 200;
const MOST_IDLE = 50;
const byName = new Intl.Collator("en", { numeric: true });

// What a column is sorted by: numbers from the largest, names from a.
const COLUMNS = {
  __proto__: null, // the address names one
  pod: (row) => row.pod,
  node: (row) => row.node,
  GPUs: (row) => -row.gpus.length,
  memory: (row) => -row.memory,
  cores: (row) => -row.cores,
  "in use": (row) => -(row.use?.busy ?? -1),
  state: (row) => row.state,
};
const GROUPS = {
  __proto__: null,
  namespace: (row) => namespaceOf(row.pod),
  model: (row) => row.of.models.join(", "),
  pool: (row) => row.of.pool,
  node: (row) => row.node,
};
const NUMBERS = new Set(["memory", "cores", "in use"]);
const FROM_LARGEST = new Set(["GPUs", ...NUMBERS]);

// Puts a button into the head of each column; `change` is called after a choice.
export function makeHead(change) {
  byId("pod-head").replaceChildren(...Object.keys(COLUMNS).map((title) => {
    const button = element("button", { type: "button", class: "by" }, title);
    button.addEventListener("click", () => {
      const { psort } = address.read();
      address.choose({ psort: psort === title ? `-${title}` : psort === `-${title}` ? "" : title });
      change();
    });
    return element("th", { scope: "col", ...(NUMBERS.has(title) ? { class: "number" } : {}) }, button);
  }));
}

export function showPods(names, nodes, uses, filter, soFar) {
  const { psort, pgroup } = address.read();
  const column = psort.replace(/^-/, "");
  const [value, turn] = [COLUMNS[column], psort.startsWith("-") ? -1 : 1];
  const groupOf = GROUPS[pgroup];
  for (const [at, title] of Object.keys(COLUMNS).entries()) {
    const order = title !== column ? "none" : turn > 0 === FROM_LARGEST.has(title) ? "descending" : "ascending";
    const head = byId("pod-head").children[at];
    if (head.getAttribute("aria-sort") !== order) head.setAttribute("aria-sort", order);
  }
  const first = new First(MOST_ROWS, value || groupOf ? (one, other) => compare(one, other, value, turn) : null);
  const groups = new Map();
  let [found, all] = [0, 0];
  // In the order of the nodes the pods after the first ones are only counted.
  const pass = (count) => !value && !groupOf && found >= MOST_ROWS && (found += count);
  for (const row of rowsOf(names, nodes, uses, filter, (count) => (all += count), pass)) {
    found += 1;
    const group = groupOf?.(row) ?? "";
    if (groupOf) {
      const sums = groups.get(group) ?? { count: 0, gpus: 0, memory: 0 };
      groups.set(group, { count: sums.count + 1, gpus: sums.gpus + row.gpus.length, memory: sums.memory + row.memory });
    }
    first.add({ row, group, value: value?.(row), number: found });
  }
  const shown = first.sorted();
  write(byId("pods-count"), `${found === all ? "" : `${number(found)} of `}${counted(all, "pod")}${soFar}${cut(found, MOST_ROWS)}`);
  const lines = shown.flatMap((each, at) => (groupOf && each.group !== shown[at - 1]?.group ? [{ group: each.group, sums: groups.get(each.group), kind: pgroup }, each.row] : [each.row]));
  keep(byId("pod-rows"), lines, (line) => (line.sums ? `= ${line.group}` : `${line.node} ${line.pod} ${line.state}`), makeLine, fillLine);
}

function* rowsOf(names, nodes, uses, filter, count, pass) {
  for (const name of names) {
    const node = nodes.get(name);
    if (!node?.pods.length) continue;
    count(node.pods.length);
    if (!matches(node, filter)) continue;
    const whole = !filter.text || node.about.includes(filter.text);
    if (whole && pass(node.pods.length)) continue;
    const use = uses.get(name);
    for (const pod of node.pods) {
      if (whole || pod.pod.toLowerCase().includes(filter.text)) yield { ...pod, of: node, use: use?.pods.get(pod.pod) };
    }
  }
}

function compare(one, other, value, turn) {
  const groups = byName.compare(one.group, other.group);
  if (groups || !value) return groups || one.number - other.number;
  const order = typeof one.value === "number" ? one.value - other.value : byName.compare(one.value, other.value);
  return turn * order || one.number - other.number;
}

// The first `most` of many values, without sorting them all.
class First {
  constructor(most, order) {
    this.most = most;
    this.order = order;
    this.kept = [];
  }

  add(value) {
    if (this.order && this.kept.length >= this.most && this.order(value, this.last) > 0) return;
    if (!this.order && this.kept.length >= this.most) return;
    this.kept.push(value);
    // Sorted now and then: each time costs little for each value.
    if (this.order && (this.kept.length === this.most || this.kept.length >= 2 * this.most)) this.cut();
  }

  cut() {
    this.kept.sort(this.order);
    this.kept.length = Math.min(this.kept.length, this.most);
    this.last = this.kept.at(-1);
  }

  sorted() {
    if (this.order) this.cut();
    return this.kept;
  }
}

function makeLine(line) {
  if (line.sums) return element("tr", { class: "group" }, element("th", { colspan: "7", scope: "rowgroup" }));
  const cells = Object.keys(COLUMNS).slice(1).map((title) => element("td", NUMBERS.has(title) ? { class: "number" } : {}));
  return element("tr", {}, element("th", { scope: "row" }, podLink("")), ...cells);
}

function fillLine(made, line) {
  if (line.sums) {
    const { count, gpus, memory: mib } = line.sums;
    const text = `${line.group || "none"}: ${counted(count, "pod")}, ${counted(gpus, "GPU")} or parts of them, ${memory(mib)}`;
    if (made.textContent === text) return;
    const shows = { namespace: { q: `${line.group}/` }, node: { node: line.group } }[line.kind] ?? { q: line.group };
    const name = line.group ? element("a", { href: `#${new URLSearchParams(shows)}` }, line.group) : line.group || "none";
    made.firstChild.replaceChildren(name, text.slice((line.group || "none").length));
    return;
  }
  const used = line.use ? (line.use.busy === null ? "?" : `${line.use.busy} %`) : "";
  const texts = [line.pod, line.node, ranges(line.gpus), memory(line.memory), line.cores ? `${line.cores} %` : "no limit", used, line.state];
  const link = made.firstChild.firstChild;
  if (link.pod !== line.pod) link.replaceWith(podLink(line.pod));
  texts.forEach((text, at) => at && write(made.children[at], text));
}

// The pods that have not computed for an hour on a GPU that they hold; those with the most GPUs first.
export function showIdle(nodes, uses, head, now, filter) {
  const first = new First(MOST_IDLE, (a, b) => b.gpus.length - a.gpus.length || b.seconds - a.seconds || byName.compare(a.pod, b.pod));
  let found = 0;
  for (const [name, use] of uses) {
    const node = nodes.get(name);
    if (!node || now - use.since < IDLE_SECONDS || !matches(node, filter)) continue;
    const whole = !filter.text || node.about.includes(filter.text);
    for (const pod of node.pods) {
      const idle = pod.state === "bound" && (whole || pod.pod.toLowerCase().includes(filter.text)) ? use.idle(pod.pod, now) : null;
      const gpus = idle?.gpus.filter((gpu) => pod.gpus.includes(gpu)) ?? [];
      if (!gpus.length) continue;
      found += 1;
      first.add({ pod: pod.pod, node: name, gpus, seconds: idle.seconds });
    }
  }
  const known = uses.size ? (found ? `${counted(found, "pod")} with GPUs unused for an hour${cut(found, MOST_IDLE)}` : "none for an hour") : "not known";
  write(byId("idle-count"), known);
  write(byId("idle-note"), head?.use_problem ? `The use of GPUs is not known everywhere: ${head.use_problem}.` : uses.size || !head ? "" : "No daemon has been read yet.");
  byId("idle-note").hidden = !byId("idle-note").textContent;
  keep(byId("idle-list"), first.sorted(), (each) => `${each.node} ${each.pod}`, (each) => element("li", {}, podLink(each.pod), element("span", { class: "count" })), (made, each) => {
    write(made.lastChild, ` ${each.node} GPU ${ranges(each.gpus)}: not used for ${duration(each.seconds)}`);
  });
}

export function podLink(pod, text) {
  const link = element("a", { href: `#${new URLSearchParams({ pod })}`, class: "pod" }, text ?? pod);
  link.pod = pod;
  return link;
}
