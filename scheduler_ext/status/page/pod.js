// One pod in a dialog: where it is and why, what its containers get, and what happened to it.

import * as address from "./address.js";
import { element } from "./dom.js";
import { whyOf } from "./lists.js";
import { duration } from "./words.js";

const AGAIN_MILLISECONDS = 2_000;

export class PodPage {
  // `headers` returns those of a request.
  constructor(dialog, headers) {
    this.dialog = dialog;
    this.headers = headers;
    this.name = "";
    this.text = "";
    dialog.addEventListener("close", () => {
      const { name } = this;
      this.name = "";
      if (address.read().pod === name) address.close();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  open(name) {
    if (this.name === name) return;
    this.name = name;
    this.text = "";
    this.show(element("p", {}, "Reading …"));
    if (!this.dialog.open) this.dialog.showModal();
    this.follow(name);
  }

  // Reads the pod again while it is open.
  async follow(name) {
    while (this.name === name) {
      let text = "";
      try {
        const answer = await fetch(`pod?name=${encodeURIComponent(name)}`, { headers: this.headers(), cache: "no-store" });
        text = await answer.text();
        if (this.name !== name) return;
        if (text !== this.text) this.show(...(answer.ok ? parts(JSON.parse(text)) : [element("p", { class: "problem" }, text)]));
        this.text = text;
      } catch {
        if (this.name === name) this.show(element("p", { class: "problem" }, "The extender does not answer."));
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
    }
  }

  show(...found) {
    const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    close.addEventListener("click", () => this.dialog.close());
    this.dialog.replaceChildren(element("div", { class: "heading" }, element("h2", { id: "pod-title" }, this.name), close), ...found);
  }
}

function* parts(pod) {
  yield element("p", {}, `Pod ${pod.pod} ${pod.sentence}.`);
  const facts = [
    ["phase", pod.phase],
    ["age", pod.since ? duration(Date.now() / 1000 - pod.since) : ""],
    ["node", pod.node && element("a", { href: `#${new URLSearchParams({ node: pod.node })}` }, pod.node)],
    ["made by", pod.owner],
    ["scheduler", pod.scheduler],
    ["priority", pod.priority ? `${pod.priority}` : ""],
  ].filter(([, value]) => value);
  yield element("dl", { class: "facts" }, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const head = ["container", "asks", "gets", "held to it by"].map((title) => element("th", { scope: "col" }, title));
  const rows = (pod.containers ?? []).map((each) =>
    element("tr", {}, element("th", { scope: "row" }, each.name), ...[each.asks || "no GPU", each.gets ?? "", each.held_by ?? ""].map((text) => element("td", {}, text))),
  );
  yield element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Containers" }, element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
  yield element("div", { class: "reasons" }, ...whyOf(pod.why));
  if (pod.said) yield element("p", {}, `The last decision: ${pod.said}`);
  if (pod.story?.length) yield element("ol", { class: "story" }, ...pod.story.map((step) => element("li", {}, step)));
}
