// A dialog for one thing, which the address names while it is open.

import * as address from "./address.js";
import { element, renew } from "./dom.js";

export class Opened {
  constructor(dialog) {
    this.dialog = dialog;
    this.name = "";
    dialog.addEventListener("close", () => {
      const { name } = this;
      this.name = "";
      if (name && address.read()[dialog.id] === name) address.close();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest(".close")) dialog.close();
    });
  }

  // Puts these parts into the dialog, below its heading.
  show(about, ...parts) {
    const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    const heading = element("div", { class: "heading" }, element("h2", { id: `${this.dialog.id}-title` }, this.name), ...(about ? [element("p", { class: "count" }, about)] : []), close);
    renew(this.dialog, [heading, ...parts]);
    if (!this.dialog.open) this.dialog.showModal();
  }
}
