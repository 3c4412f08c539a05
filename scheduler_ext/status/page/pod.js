// One pod in a dialog: where it is and why, what its containers get, and what happened to it.

import { Opened } from "./dialog.js";
import { element } from "./dom.js";
import { whyOf } from "./lists.js";
import { MARKS_OF_DIRECTION } from "./stream.js";
import { duration, memory } from "./words.js";

const AGAIN_MILLISECONDS = 2_000;
const SILENT_MILLISECONDS = 2_900; // what is older is not shown as if it were true

export class PodPage extends Opened {
  // `headers` returns those of a request. `known` is the state of the page.
  constructor(dialog, headers, known) {
    super(dialog);
    this.headers = headers;
    this.known = known;
    this.pod = null;
  }

  open(name) {
    if (this.name === name) return;
    this.name = name;
    this.pod = null;
    this.show("", element("p", {}, "Reading …"));
    this.follow(name);
  }

  // Reads the pod again while it is open.
  async follow(name) {
    const turn = (this.turn = {}); // it may be closed and opened again meanwhile
    const asked = () => this.name === name && this.turn === turn;
    while (asked()) {
      let [pod, problem] = [null, ""];
      try {
        const answer = await fetch(`pod?name=${encodeURIComponent(name)}`, { headers: this.headers(), cache: "no-store", signal: AbortSignal.timeout(SILENT_MILLISECONDS) });
        const text = await answer.text();
        if (answer.ok) pod = JSON.parse(text.replace(MARKS_OF_DIRECTION, "\ufffd"));
        else problem = text;
      } catch {
        problem = "The extender does not answer.";
      }
      if (!asked()) return;
      this.pod = pod;
      if (problem) this.show("", element("p", { class: "problem" }, problem));
      this.update();
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
    }
  }

  // Brings an open dialog up to date.
  update() {
    if (!this.name || !this.pod) return;
    const use = this.known.use.get(this.pod.node)?.containers.filter(([pod]) => pod === this.pod.pod) ?? [];
    this.show("", ...parts(this.pod, use, this.known.now || Date.now() / 1000));
  }
}

function* parts(pod, use, now) {
  yield element("p", {}, `Pod ${pod.pod} ${pod.sentence}.`);
  const facts = [
    ["phase", pod.phase],
    ["age", pod.since ? duration(now - pod.since) : ""],
    ["node", pod.node && element("a", { href: `#${new URLSearchParams({ node: pod.node })}` }, pod.node)],
    ["made by", pod.owner],
    ["scheduler", pod.scheduler],
    ["priority", pod.priority ? `${pod.priority}` : ""],
  ].filter(([, value]) => value);
  yield element("dl", { class: "facts" }, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const head = ["container", "asks", "gets", "held to it by", "uses"].map((title) => element("th", { scope: "col" }, title));
  const rows = (pod.containers ?? []).map((each) =>
    element("tr", {}, element("th", { scope: "row" }, each.name), ...[each.asks || "no GPU", each.gets ?? "", each.held_by ?? "", usesOf(each, use, now)].map((text) => element("td", {}, text))),
  );
  yield element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Containers" }, element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
  yield element("div", { class: "reasons" }, ...whyOf(pod.why));
  if (pod.said) yield element("p", {}, `The last decision: ${pod.said}`);
  if (pod.events_problem) yield element("p", { class: "count" }, `Its events cannot be read: ${pod.events_problem}`);
  if (pod.events?.length) {
    const rows = pod.events.map((each) => {
      const times = each.count > 1 ? `, ${each.count} times` : "";
      const warns = each.warning ? { class: "bad" } : {};
      return element("tr", {}, element("td", { class: "count" }, `${duration(now - each.at)} ago${times}`), element("td", warns, each.reason), element("td", {}, each.message), element("td", { class: "count" }, each.source ?? ""));
    });
    const titles = ["event", "", "", "from"].map((title) => element("th", { scope: "col" }, title));
    yield element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Events" }, element("table", { class: "events" }, element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...rows)));
  }
  if (pod.story?.length) yield element("ol", { class: "story" }, ...pod.story.map((step) => element("li", {}, step)));
}

// A sentence for each GPU that the daemon reports of the container.
function usesOf(container, use, now) {
  const rows = use.filter(([, name]) => name === container.name);
  return rows.map(([, , gpu, mib, busy, since]) => {
    const amounts = [busy === null ? "" : `computes ${busy} % of the time`, mib === null ? "" : `uses ${memory(mib)}`].filter(Boolean);
    const idle = since ? [`not used for ${duration(now - since)}`] : [];
    return `GPU ${gpu}: ${[...amounts, ...idle].join(", ") || "not known"}`;
  }).join("; ") || (container.gets ? "not known" : "");
}
