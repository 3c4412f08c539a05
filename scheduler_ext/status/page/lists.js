// Pods that hold GPUs, pods that wait, and decisions.

import { byId, element, keep, write } from "./dom.js";
import { matches } from "./state.js";
import { counted, duration, memory, number, ranges, time } from "./words.js";

const MOST_ROWS = 200;
const MOST_LINES = 50; // of decisions

export function showPods(names, nodes, filter) {
  const rows = [];
  let [found, all] = [0, 0];
  for (const name of names) {
    const node = nodes.get(name);
    all += node.pods.length;
    if (!node.pods.length || !matches(node, filter)) continue;
    const whole = !filter.text || name.toLowerCase().includes(filter.text) || node.models.some((model) => model.toLowerCase().includes(filter.text));
    for (const pod of node.pods) {
      if (!whole && !pod.pod.toLowerCase().includes(filter.text)) continue;
      found += 1;
      if (rows.length < MOST_ROWS) rows.push(pod);
    }
  }
  const more = found > rows.length ? `; the first ${rows.length} are shown, filter to see others` : "";
  write(byId("pods-count"), found === all ? counted(all, "pod") + more : `${number(found)} of ${counted(all, "pod")}${more}`);
  keep(byId("pod-rows"), rows, (pod) => `${pod.node} ${pod.pod} ${pod.state}`, makePod, fillPod);
}

function makePod() {
  return element("tr", {}, element("th", { scope: "row", class: "pod" }), element("td"), element("td"), element("td", { class: "number" }), element("td", { class: "number" }), element("td"));
}

function fillPod(row, pod) {
  const texts = [pod.pod, pod.node, ranges(pod.gpus), memory(pod.memory), pod.cores ? `${pod.cores} %` : "no limit", pod.state];
  texts.forEach((text, at) => write(row.children[at], text));
}

export function showWaiting(waiting, head, now) {
  const none = head.synced ? "none: every pod that asked has a node" : "not known yet: the extender is still reading the cluster";
  write(byId("waiting-count"), head.waiting ? `${counted(head.waiting, "pod")} on no node` : none);
  keep(byId("waiting-list"), waiting, (group) => JSON.stringify([group.namespace, group.owner, group.pods[0]]), makeWaiting, (made, group) => fillWaiting(made, group, now));
}

function makeWaiting() {
  const summary = element("summary", {}, element("span", { class: "pod" }), element("span", { class: "since" }), element("span", { class: "asks" }), element("span", { class: "asks because" }));
  return element("li", {}, element("details", {}, summary, element("div", { class: "reasons" })));
}

function fillWaiting(made, group, now) {
  const [summary, reasons] = made.firstChild.children;
  const [name, since, priority] = group.pods[0];
  const others = group.count > 1 ? ` and ${counted(group.count - 1, "other")}` : "";
  write(summary.children[0], `${group.namespace}/${name}${others}`);
  write(summary.children[1], `${duration(now - since)}${priority ? `, priority ${priority}` : ""}`);
  write(summary.children[2], [group.owner, ...(group.why?.asks ?? [])].filter(Boolean).join("; "));
  write(summary.children[3], group.why?.sentence ?? "not judged yet");
  const text = JSON.stringify([group.pods, group.why]);
  if (made.text === text) return;
  made.text = text;
  reasons.replaceChildren(...whyOf(group));
}

function* whyOf(group) {
  if (group.count > 1) yield element("p", {}, group.pods.map(([name]) => name).join(", ") + (group.count > group.pods.length ? " and more" : ""));
  if (!group.why) {
    yield element("p", {}, "Not judged yet.");
    return;
  }
  const { refused = [], ways = [], less = "", hints = [] } = group.why;
  if (refused.length) {
    const groups = refused.map((group) => {
      const nearest = group.lacks ? element("span", { class: "nearest" }, `nearest is ${group.nearest}: ${group.lacks}`) : "";
      return element("li", {}, `${counted(group.nodes, "node")}: ${group.reason}`, nearest);
    });
    yield element("p", {}, "Why it fits nowhere:");
    yield element("ul", {}, ...groups);
  }
  if (ways.length) {
    const places = ways.map((way) => {
      const more = way.count - way.pods.length;
      return element("li", {}, `on ${way.node} without ${way.pods.join(", ")}${more > 0 ? ` and ${more} more` : ""}`);
    });
    yield element("p", {}, "It would fit:");
    yield element("ul", {}, ...places);
  }
  if (less) yield element("p", {}, `It would fit now if it asked for ${less}.`);
  for (const hint of hints) yield element("p", {}, hint);
}

const SENTENCES = {
  decided: (told) => `goes to ${told.node}, GPU ${ranges(told.gpus ?? [])}`,
  refused: () => "fits on no node",
  bound: (told) => `is bound to ${told.node}`,
  nominated: (told) => `gets room on ${told.node}: others are evicted`,
  dropped: () => "was not bound, and its GPUs are free again",
  deleted: (told) => (told.node ? `was deleted from ${told.node}` : "was deleted"),
};

// A pod that was decided and then seen on its node has one line.
export function showTold(told) {
  const lines = new Map();
  const decided = new Map();
  for (const each of told) {
    const earlier = each.what === "bound" ? decided.get(`${each.pod} ${each.node}`) : undefined;
    if (earlier) {
      lines.set(earlier.number, { ...earlier, bound: true });
      continue;
    }
    lines.set(each.number, each);
    if (each.what === "decided") decided.set(`${each.pod} ${each.node}`, each);
  }
  const shown = [...lines.values()].slice(-MOST_LINES).reverse();
  write(byId("told-count"), told.length ? `${lines.size > MOST_LINES ? `the newest ${MOST_LINES}, ` : ""}the newest first` : "none yet");
  keep(byId("told-list"), shown, (each) => each.number, makeTold, fillTold);
}

function makeTold(told) {
  const when = element("time", { datetime: new Date(told.at * 1000).toISOString() }, time(told.at));
  const what = element("span", { class: "what" }, element("span", { class: "pod" }, told.pod), element("span"));
  return element("li", { class: told.what }, when, what);
}

function fillTold(made, told) {
  write(made.lastChild.lastChild, ` ${SENTENCES[told.what]?.(told) ?? told.what}${told.bound ? ", bound" : ""}`);
}
