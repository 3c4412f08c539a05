// The waiting pods of one owner in a dialog, such as those of a Job.

import { Opened } from "./dialog.js";
import { element } from "./dom.js";
import { nameOf, podsOf, whyOf } from "./lists.js";
import { podLink } from "./pods.js";
import { counted, duration, number } from "./words.js";

export class OwnerPage extends Opened {
  // `known` is the state of the page.
  constructor(dialog, known) {
    super(dialog);
    this.known = known;
  }

  open(name) {
    this.name = name;
    this.update();
  }

  // Brings an open dialog up to date.
  update() {
    if (!this.name) return;
    const groups = this.known.waiting.filter((group) => nameOf(group) === this.name);
    const count = groups.length || this.known.head?.synced ? `${counted(podsOf(groups), "pod")} on no node` : "not known yet";
    this.show(count, ...groups.flatMap((group) => [...parts(group, this.known.now)]));
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
