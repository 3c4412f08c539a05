// Pods that wait, and decisions.

import { byId, element, keep, renew, write } from "./dom.js";
import { podLink } from "./pods.js";
import { waiting as matching } from "./state.js";
import { counted, duration, number, ranges, time } from "./words.js";

const MOST_LINES = 50; // of decisions
const MOST_GROUPS = 200; // of waiting pods, that the extender names

// Pods with one reason are one entry; within it those of one owner are one line.
export function showWaiting(waiting, head, now, filter) {
  const none = head.synced ? "none: every pod that asked has a node" : "not known yet: the extender is still reading the cluster";
  const groups = waiting.map((group) => matching(group, filter)).filter(Boolean);
  const found = filter.text ? `${number(podsOf(groups))} of ` : "";
  const more = waiting.length < MOST_GROUPS ? "" : `; the first ${number(podsOf(waiting))} are listed`;
  write(byId("waiting-count"), head.waiting ? `${found}${counted(head.waiting, "pod")} on no node${head.synced ? "" : " so far"}${more}` : none);
  const reasons = new Map();
  for (const group of groups) {
    const reason = group.why?.sentence ?? "not judged yet";
    if (!reasons.has(reason)) reasons.set(reason, { reason, groups: [] });
    reasons.get(reason).groups.push(group);
  }
  keep(byId("waiting-list"), [...reasons.values()], ({ groups: [first] }) => `${first.namespace}/${first.pods[0][0]}`, makeWaiting, (made, each) => fillWaiting(made, each, now));
}

export function podsOf(groups) {
  return groups.reduce((sum, group) => sum + group.count, 0);
}

function makeWaiting() {
  const summary = element("summary", {}, element("span", { class: "pod" }), element("span", { class: "since" }), element("span", { class: "asks because" }));
  return element("li", {}, element("details", {}, summary, element("div", { class: "reasons" })));
}

function fillWaiting(made, { reason, groups }, now) {
  const [summary, reasons] = made.firstChild.children;
  const pods = podsOf(groups);
  const first = `${groups[0].namespace}/${groups[0].pods[0][0]}`;
  const longest = Math.min(...groups.flatMap((group) => group.pods.map(([, since]) => since)));
  write(summary.children[0], pods === 1 ? first : counted(pods, "pod"));
  write(summary.children[1], `${pods === 1 ? "" : "up to "}${duration(now - longest)}`);
  write(summary.children[2], reason);
  if (groups.length === made.groups?.length && groups.every((group, at) => group === made.groups[at])) return;
  made.groups = groups;
  renew(reasons, [...groups.map(ownerOf), ...whyOf(groups[0].why)]);
}

function ownerOf(group) {
  const owner = group.owner ? element("a", { href: `#${new URLSearchParams({ owner: nameOf(group) })}` }, `${group.namespace} ${group.owner}`) : group.namespace;
  const line = element("p", { class: "owner" }, owner, ": ");
  group.pods.forEach(([name, , priority], at) => {
    line.append(at ? ", " : "", podLink(`${group.namespace}/${name}`, name), priority ? ` (priority ${priority})` : "");
  });
  const more = group.count - group.pods.length;
  if (more > 0) line.append(` and ${number(more)} more`);
  return element("div", {}, line, ...(group.why?.asks ?? []).map((ask) => element("p", { class: "count" }, ask)));
}

// `namespace/Job/train`
export function nameOf(group) {
  return `${group.namespace}/${group.owner}`;
}

export function* whyOf(why) {
  if (!why) return;
  const { refused = [], ways = [], less = "", hints = [] } = why;
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
  decided: (happened) => `goes to ${happened.node}, GPU ${ranges(happened.gpus ?? [])}`,
  refused: () => "fits on no node",
  bound: (happened) => `is bound to ${happened.node}`,
  nominated: (happened) => `gets room on ${happened.node}: others are evicted`,
  dropped: () => "was not bound, and its GPUs are free again",
  deleted: (happened) => (happened.node ? `was deleted from ${happened.node}` : "was deleted"),
};

// A pod that was decided and then seen on its node has one line.
export function showHappened(happened, filter) {
  const lines = new Map();
  const decided = new Map();
  for (const each of happened) {
    const earlier = each.what === "bound" ? decided.get(`${each.pod} ${each.node}`) : undefined;
    if (earlier) {
      lines.set(earlier.number, { ...earlier, bound: true });
      continue;
    }
    lines.set(each.number, each);
    if (each.what === "decided") decided.set(`${each.pod} ${each.node}`, each);
  }
  const shown = [...lines.values()].filter((each) => `${each.pod}\n${each.node ?? ""}`.toLowerCase().includes(filter.text)).slice(-MOST_LINES).reverse();
  write(byId("told-count"), happened.length ? `${lines.size > MOST_LINES ? `the newest ${MOST_LINES}, ` : ""}the newest first` : "none yet");
  keep(byId("told-list"), shown, (each) => each.number, makeHappened, fillHappened);
}

function makeHappened(happened) {
  const when = element("time", { datetime: new Date(happened.at * 1000).toISOString() }, time(happened.at));
  const what = element("span", { class: "what" }, podLink(happened.pod), element("span"));
  return element("li", { class: happened.what }, when, what);
}

function fillHappened(made, happened) {
  write(made.lastChild.lastChild, ` ${SENTENCES[happened.what]?.(happened) ?? happened.what}${happened.bound ? ", bound" : ""}`);
}
