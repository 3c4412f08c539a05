// The waiting pods of one owner in a dialog, such as those of a Job.

import * as address from "./address.js";
import { element } from "./dom.js";
import { nameOf, whyOf } from "./lists.js";
import { podLink } from "./pods.js";
import { counted, duration, number } from "./words.js";

export class OwnerPage {
  // `known` is the state of the page.
  constructor(dialog, known) {
    this.dialog = dialog;
    this.known = known;
    this.name = "";
    this.text = "";
    dialog.addEventListener("close", () => {
      const { name } = this;
      this.name = "";
      if (name && address.read().owner === name) address.close();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  open(name) {
    this.name = name;
    this.text = "";
    this.update();
    if (!this.dialog.open) this.dialog.showModal();
  }

  // Brings an open dialog up to date.
  update() {
    if (!this.name) return;
    const groups = this.known.waiting.filter((group) => nameOf(group) === this.name);
    const count = groups.length || this.known.head?.synced ? `${counted(groups.reduce((sum, group) => sum + group.count, 0), "pod")} on no node` : "not known yet";
    const text = JSON.stringify([count, groups]);
    if (text === this.text) return;
    this.text = text;
    const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    close.addEventListener("click", () => this.dialog.close());
    const heading = element("div", { class: "heading" }, element("h2", { id: "owner-title" }, this.name), element("p", { class: "count" }, count), close);
    this.dialog.replaceChildren(heading, ...groups.flatMap((group) => [...parts(group, this.known.at)]));
  }
}

function* parts(group, now) {
  yield element("p", {}, `${counted(group.count, "pod")}: ${group.why?.sentence ?? "not judged yet"}`);
  for (const ask of group.why?.asks ?? []) yield element("p", { class: "count" }, ask);
  yield element("div", { class: "reasons" }, ...whyOf(group.why));
  const lines = group.pods.map(([name, since, priority]) => {
    return element("li", {}, podLink(`${group.namespace}/${name}`, name), ` waits for ${duration(now - since)}${priority ? `, priority ${priority}` : ""}`);
  });
  const more = group.count - group.pods.length;
  yield element("ul", { class: "story" }, ...lines, ...(more > 0 ? [element("li", {}, `and ${number(more)} more`)] : []));
}
