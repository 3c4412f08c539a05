// A card for each node, with a tile for each GPU.

import { element, write } from "./dom.js";
import { counted, memory, percent } from "./words.js";
import { matches } from "./state.js";

const byName = new Intl.Collator("en", { numeric: true });
const MOST_PODS = 4;
const MOST_DRAWN = 40; // known cards in one go, and
const DRAW_MILLISECONDS = 40; // of script, so that keys and scrolling never wait long; each lot of new cards costs a layout of all
const OF_A_NODE = ["model", "pool", "namespace"]; // what cards are grouped by, beside levels of domains
const TILES_IN_A_ROW = 9; // at least, as style.css lays them out

export class Cards {
  // `open` gets the name of a node that was chosen; `draw` is called when cards that are due come into view.
  constructor(list, open, draw) {
    this.list = list;
    this.cards = new Map();
    this.order = []; // names, sorted
    this.keys = new Map(); // by name what it is sorted by: group, rank, name
    this.whole = new Set(); // names of nodes of which all GPUs are idle
    this.sort = "";
    this.group = "";
    this.headings = [];
    this.current = ""; // the one card that Tab reaches
    this.due = new Set(); // names of nodes whose cards are not up to date
    this.near = new Set(); // names of nodes whose cards the browser draws: those in view, or almost
    list.addEventListener("contentvisibilityautostatechange", ({ target, skipped }) => {
      const { name } = target.firstChild;
      if (!name) return;
      if (skipped) this.near.delete(name);
      else if (this.near.add(name) && this.due.has(name)) draw();
    });
    list.addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (card) open(card.name, card);
    });
    list.addEventListener("keydown", (event) => this.move(event));
    list.addEventListener("focusin", (event) => this.reach(event.target.closest(".card")));
    list.addEventListener("pointerover", (event) => {
      const tile = event.target.closest(".tile");
      if (tile?.gpu) tile.title = described(tile.gpu, tile.use);
    });
  }

  // Brings cards that are due up to date: new ones and those in view, or `all`. Returns false where there are more than
  // may be drawn at once.
  draw(nodes, uses, filter, all) {
    const until = performance.now() + DRAW_MILLISECONDS;
    let [drawn, done] = [0, true];
    for (const name of this.due) {
      const known = this.cards.has(name);
      if (known && !all && !this.near.has(name)) continue;
      done = drawn < MOST_DRAWN && performance.now() < until;
      if (!done) break;
      drawn += known;
      this.due.delete(name);
      const node = nodes.get(name);
      if (!node) {
        this.remove(name);
        continue;
      }
      const key = this.keyOf(node);
      const moved = known && byKey(key, this.keys.get(name)) !== 0;
      this.keys.set(name, key);
      if (node.whole) this.whole.add(name);
      else this.whole.delete(name);
      const card = known ? this.cards.get(name) : this.make(name);
      if (moved) this.order.splice(this.order.indexOf(name), 1);
      if (moved || !known) this.place(name, card);
      fill(card, node, uses.get(name));
      const hidden = !matches(node, filter);
      if (card.parentElement.hidden !== hidden) card.parentElement.hidden = hidden;
    }
    this.keepReachable();
    this.head();
    return done;
  }

  // Sorts by `sort` within groups by `group`: "" for none, a property of a node, or a level of domains.
  arrange(nodes, sort, group) {
    if (sort === this.sort && group === this.group) return;
    [this.sort, this.group] = [sort, group];
    for (const name of this.order) if (nodes.has(name)) this.keys.set(name, this.keyOf(nodes.get(name)));
    this.order.sort((a, b) => byKey(this.keys.get(a), this.keys.get(b)));
    this.list.append(...this.order.map((name) => this.cards.get(name).parentElement));
    this.head();
  }

  keyOf(node) {
    const group = { "": "", model: node.models.join(", "), pool: node.pool, namespace: this.group === "namespace" ? node.namespace : "" }[this.group] ?? node.domain(this.group);
    const rank = { idle: -node.idle, held: -percent(...node.memory) }[this.sort] ?? 0;
    return [group ?? "", rank, node.name];
  }

  // Puts a heading before the first card of each group, of a domain with the number of nodes that are free as a whole.
  head() {
    const firsts = [];
    let last, whole, all;
    for (const name of this.group ? this.order : []) {
      const card = this.cards.get(name);
      const [group] = this.keys.get(name);
      if (card.parentElement.hidden) continue;
      if (group !== last) {
        [last, whole, all] = [group, 0, 0];
        firsts.push(["", card.parentElement]);
      }
      all += 1;
      whole += this.whole.has(name);
      const free = OF_A_NODE.includes(this.group) ? "" : `: ${whole} of ${counted(all, "node")} free as a whole`;
      firsts.at(-1)[0] = `${group || "none"}${free}`;
    }
    const same = firsts.length === this.headings.length && firsts.every(([group, item], at) => this.headings[at].textContent === group && this.headings[at].nextElementSibling === item);
    if (same) return;
    for (const heading of this.headings) heading.remove();
    this.headings = firsts.map(([group, item]) => {
      const heading = element("li", { class: "group" }, group);
      item.before(heading);
      return heading;
    });
  }

  filter(nodes, filter) {
    for (const [name, card] of this.cards) card.parentElement.hidden = !nodes.has(name) || !matches(nodes.get(name), filter);
    this.keepReachable();
    this.head();
  }

  make(name) {
    const card = element("button", { type: "button", class: "card", tabindex: "-1" });
    card.name = name;
    card.parts = {
      name: element("span", { class: "name" }),
      idle: element("span", { class: "idle" }),
      tiles: element("span", { class: "tiles", "aria-hidden": "true" }),
      about: element("span", { class: "about" }),
      pods: element("span", { class: "on" }),
    };
    write(card.parts.name, name);
    card.append(...Object.values(card.parts));
    element("li", {}, card);
    this.cards.set(name, card);
    return card;
  }

  place(name, card) {
    const key = this.keys.get(name);
    let [low, high] = [0, this.order.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (byKey(this.keys.get(this.order[middle]), key) < 0) low = middle + 1;
      else high = middle;
    }
    const after = this.cards.get(this.order[low])?.parentElement ?? null;
    this.order.splice(low, 0, name);
    this.list.insertBefore(card.parentElement, after);
  }

  remove(name) {
    const card = this.cards.get(name);
    if (!card) return;
    card.parentElement.remove();
    this.cards.delete(name);
    this.keys.delete(name);
    this.near.delete(name);
    this.whole.delete(name);
    this.order.splice(this.order.indexOf(name), 1);
  }

  shown() {
    return this.order.map((name) => this.cards.get(name)).filter((card) => !card.parentElement.hidden);
  }

  reach(card) {
    if (!card || card.name === this.current) return;
    const before = this.cards.get(this.current);
    if (before) before.tabIndex = -1;
    card.tabIndex = 0;
    this.current = card.name;
  }

  keepReachable() {
    const current = this.cards.get(this.current);
    if (current && !current.parentElement.hidden && current.tabIndex === 0) return;
    const first = this.order.find((name) => !this.cards.get(name).parentElement.hidden);
    if (first !== undefined) this.reach(this.cards.get(first));
  }

  move(event) {
    const card = event.target.closest(".card");
    if (!card || event.ctrlKey || event.altKey || event.metaKey) return;
    const shown = this.shown();
    const at = shown.indexOf(card);
    const wide = shown.filter((each) => each.offsetTop === shown[0].offsetTop).length || 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + wide, ArrowUp: at - wide, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    shown[Math.min(Math.max(to, 0), shown.length - 1)].focus();
  }
}

function byKey(one, other) {
  return byName.compare(one[0], other[0]) || one[1] - other[1] || byName.compare(one[2], other[2]);
}

function fill(card, node, use) {
  const { idle, tiles, about, pods } = card.parts;
  card.classList.toggle("broken", Boolean(node.problem));
  card.classList.toggle("troubled", node.troubled);
  write(idle, node.problem ? "offers no GPUs" : `${node.idle} of ${node.gpus.length} idle`);
  while (tiles.childElementCount > node.gpus.length) tiles.lastChild.remove();
  while (tiles.childElementCount < node.gpus.length) tiles.append(element("span", { class: "tile" }));
  const rows = Math.ceil(node.gpus.length / TILES_IN_A_ROW) || 1;
  if (card.rows !== rows) card.parentElement.style.setProperty("--rows", `${(card.rows = rows)}`);
  let tile = tiles.firstElementChild;
  for (const gpu of node.gpus) {
    fillTile(tile, gpu, use?.gpus.get(gpu.index));
    tile = tile.nextElementSibling;
  }
  const lost = node.lost ? `, ${node.lost} out of service` : "";
  write(about, node.problem || `${node.models.join(", ")}, ${percent(...node.memory)} % of ${memory(node.memory[1])}${busyOf(use)}${lost}`);
  const names = node.pods.slice(0, MOST_PODS).map((pod) => pod.pod);
  const more = node.pods.length - names.length;
  write(pods, names.join("  ") + (more > 0 ? `  and ${more} more` : ""));
}

function busyOf(use) {
  const known = [...(use?.gpus.values() ?? [])].map(({ busy }) => busy).filter((busy) => busy !== null);
  return known.length ? `, ${Math.round(known.reduce((sum, busy) => sum + busy, 0) / known.length)} % busy` : "";
}

function fillTile(tile, gpu, use) {
  const before = tile.gpu;
  tile.gpu = gpu;
  tile.use = use;
  if (tile.title) tile.title = "";
  write(tile, `${gpu.index}`);
  const [used, cores] = [percent(...gpu.memory), percent(...gpu.cores)];
  if (!before || percent(...before.memory) !== used) tile.style.setProperty("--memory", `${used}%`);
  if (!before || percent(...before.cores) !== cores) tile.style.setProperty("--cores", `${cores}%`);
  const state = KINDS_OF_STATE[gpu.state] || (gpu.replicas[0] ? (used > 55 ? "most" : "held") : "idle");
  if (tile.dataset.state !== state) tile.dataset.state = state;
}

const KINDS_OF_STATE = { unhealthy: "unhealthy", cordoned: "cordoned", "the node is cordoned": "cordoned" };

export function described(gpu, use) {
  const held = (gpu.held ?? []).map((each) => each.pod);
  const amounts = `GPU ${gpu.index}: ${memory(gpu.memory[0])} of ${memory(gpu.memory[1])}, ${gpu.cores[0]} % of cores, ${gpu.replicas[0]} of ${gpu.replicas[1]} replicas`;
  const used = use?.busy === undefined || use.busy === null ? [] : [`in use ${use.busy} % of the time${use.memory === null ? "" : `, ${memory(use.memory)}`}`];
  return [amounts, ...used, ...(gpu.state ? [gpu.state] : []), ...(held.length ? held : ["no pod"])].join("\n");
}

