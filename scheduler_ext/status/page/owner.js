// The waiting pods of one owner in a dialog, such as those of a Job.

import * as address from "./address.js";
import { element } from "./dom.js";
import { nameOf, whyOf } from "./lists.js";
import { podLink } from "./pods.js";
import { counted, duration, number } from "./words.js";

export class OwnerPage {
  constructor(dialog) {
    this.dialog = dialog;
    this.name = "";
    this.text = "";
    dialog.addEventListener("close", () => {
      const { name } = this;
      this.name = "";
      if (address.read().owner === name) address.close();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  open(name, waiting, now) {
    this.name = name;
    this.text = "";
    this.update(waiting, now);
    if (!this.dialog.open) this.dialog.showModal();
  }

  // Brings an open dialog up to date.
  update(waiting, now) {
    if (!this.name) return;
    const groups = waiting.filter((group) => nameOf(group) === this.name);
    const text = JSON.stringify(groups);
    if (text === this.text) return;
    this.text = text;
    const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    close.addEventListener("click", () => this.dialog.close());
    const count = groups.reduce((sum, group) => sum + group.count, 0);
    const heading = element("div", { class: "heading" }, element("h2", { id: "owner-title" }, this.name), element("p", { class: "count" }, `${counted(count, "pod")} on no node`), close);
    this.dialog.replaceChildren(heading, ...groups.flatMap((group) => [...parts(group, now)]));
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
