// A card for each node, with a tile for each GPU. Only cards near the view are in the document: their places are computed.

import { element, keep, write } from "./dom.js";
import { counted, memory, percent } from "./words.js";
import { matches } from "./state.js";

const byName = new Intl.Collator("en", { numeric: true });
const MOST_PODS = 4;
const OF_A_NODE = ["model", "pool", "namespace"]; // what cards are grouped by, beside levels of domains
const TILES_IN_A_ROW = 9; // at least, as style.css lays them out
// In pixels: sizes, as style.css has them.
const [NARROWEST, GAP, HEADING] = [264, 8, 25];
const [CARD, ROW] = [78, 31]; // of a card without tiles, and of each row of them

export class Cards {
  // `state` and `filter` are those of the page. `open` gets the name of a node that was chosen; `later` is called when
  // something is to be drawn.
  constructor(list, state, filter, open, later) {
    this.list = list;
    this.state = state;
    this.filtered = filter;
    this.items = new Map(); // by name of a node what places its card
    this.order = []; // names, sorted
    this.shown = []; // those that match the filter
    this.lines = []; // headings and rows of cards, from the top
    this.size = 0; // of headings and cards
    this.sort = "";
    this.group = "";
    this.width = 0;
    this.current = ""; // the one card that Tab reaches, and that is always in the document
    this.due = new Set(); // names of nodes that changed
    this.moved = new Set(); // those that changed their place among the others
    [this.unsorted, this.unplaced, this.chosen] = [false, false, false]; // the reader chose the last, and expects cards to move
    list.addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (card) open(card.name);
    });
    list.addEventListener("keydown", (event) => this.move(event));
    list.addEventListener("focusin", (event) => this.reach(event.target.closest(".card")?.name));
    list.addEventListener("pointerover", (event) => {
      const tile = event.target.closest(".tile");
      if (tile?.gpu) tile.title = described(tile.gpu, tile.use);
    });
    addEventListener("scroll", later, { passive: true });
    const resized = new ResizeObserver(() => {
      this.unplaced ||= this.width !== list.clientWidth;
      this.width = list.clientWidth;
      later();
    });
    // What is above the cards may grow and move them.
    for (const each of [list, document.body]) resized.observe(each);
  }

  // Brings the places of all cards up to date, and the cards near the view.
  draw() {
    for (const name of this.due) this.take(name);
    const seen = this.unsorted || this.unplaced ? this.seen() : [];
    if (this.unsorted) this.order = [...this.items.keys()].sort((a, b) => byKey(this.items.get(a).key, this.items.get(b).key));
    if (this.unsorted || this.unplaced) this.place();
    if (!this.chosen) this.stay(seen);
    [this.unsorted, this.unplaced, this.chosen] = [false, false, false];
    this.moved.clear();
    this.look();
  }

  // The lines in view, if the reader has scrolled to cards.
  seen() {
    const from = -this.list.getBoundingClientRect().top;
    return from > 0 ? this.lines.filter(({ top, height, names }) => names && top + height > from && top < from + innerHeight) : [];
  }

  // Scrolls so that the first card that was seen, and still has its place among the others, is where it was.
  stay(seen) {
    for (const { top, names } of seen) {
      const name = names.find((each) => this.items.get(each)?.shows && !this.moved.has(each));
      if (name === undefined) continue;
      scrollBy(0, this.lines.find((line) => line.names?.includes(name)).top - top);
      return;
    }
  }

  take(name) {
    const node = this.state.nodes.get(name);
    const before = this.items.get(name);
    if (!node && !this.state.complete) return; // it can still come
    this.due.delete(name);
    if (!node) {
      if (this.items.delete(name)) this.unsorted = true;
      return;
    }
    const now = { key: this.keyOf(node), shows: matches(node, this.filtered), rows: Math.ceil(node.gpus.length / TILES_IN_A_ROW) || 1, whole: node.whole };
    this.items.set(name, now);
    if (!before || byKey(before.key, now.key)) {
      this.unsorted = true;
      this.moved.add(name);
    } else this.unplaced ||= before.shows !== now.shows || before.rows !== now.rows || before.whole !== now.whole;
  }

  // Sorts by `sort` within groups by `group`: "" for none, a property of a node, or a level of domains.
  arrange(sort, group) {
    if (sort === this.sort && group === this.group) return;
    [this.sort, this.group] = [sort, group];
    for (const [name, item] of this.items) if (this.state.nodes.has(name)) item.key = this.keyOf(this.state.nodes.get(name));
    [this.unsorted, this.chosen] = [true, true];
  }

  keyOf(node) {
    const group = { "": "", model: node.models.join(", "), pool: node.pool, namespace: this.group === "namespace" ? node.namespace : "" }[this.group] ?? node.domain(this.group);
    const rank = { idle: -node.idle, held: -percent(...node.memory) }[this.sort] ?? 0;
    return [group ?? "", rank, node.name];
  }

  filter() {
    for (const [name, item] of this.items) item.shows = this.state.nodes.has(name) && matches(this.state.nodes.get(name), this.filtered);
    [this.unplaced, this.chosen] = [true, true];
  }

  // Computes the lines. A group begins with a heading, of a domain with the number of nodes that are free as a whole.
  place() {
    const columns = this.columns();
    const before = this.shown;
    [this.shown, this.lines] = [[], []];
    let [heading, row] = [null, null];
    for (const name of this.order) {
      const { key: [group], shows, rows, whole } = this.items.get(name);
      if (!shows) continue;
      if (this.group && heading?.group !== group) {
        this.lines.push((heading = { group, height: HEADING, all: 0, whole: 0 }));
        row = null;
      }
      if (!row || row.names.length === columns) this.lines.push((row = { names: [], height: 0 }));
      row.names.push(name);
      row.height = Math.max(row.height, CARD + ROW * rows);
      this.shown.push(name);
      if (heading) [heading.all, heading.whole] = [heading.all + 1, heading.whole + whole];
    }
    let [top, nth] = [0, 1];
    for (const line of this.lines) {
      [line.top, line.at] = [top, nth];
      top += line.height + GAP;
      nth += line.names?.length ?? 1;
    }
    this.size = nth - 1;
    this.list.style.height = `${Math.max(top - GAP, 0)}px`;
    if (!this.items.get(this.current)?.shows) this.reach(this.nextTo(before.indexOf(this.current), before) ?? this.shown[0]);
  }

  // The card that is shown and was next to a place before.
  nextTo(at, before) {
    const shows = (name) => this.items.get(name)?.shows;
    return at < 0 ? undefined : (before.slice(at).find(shows) ?? before.slice(0, at).findLast(shows));
  }

  columns() {
    return Math.max(Math.floor((this.width + GAP) / (NARROWEST + GAP)), 1);
  }

  // Shows what is near the view: within one view's height of it.
  look() {
    const from = -this.list.getBoundingClientRect().top;
    const near = this.lines.filter(({ top, height, names }) => (top < from + 2 * innerHeight && top + height > from - innerHeight) || names?.includes(this.current));
    const width = (this.width + GAP) / this.columns();
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const items = near.flatMap((line) => line.names?.map((name, nth) => ({ name, top: line.top, at: line.at + nth, left: nth * width, width: width - GAP })) ?? [line]);
    keep(this.list, items, ({ name, group }) => name ?? `= ${group}`, (item) => this.make(item), (made, item) => this.fill(made, item));
    if (focused && focused !== document.activeElement) this.cardOf(this.current)?.focus({ preventScroll: true });
  }

  make({ name }) {
    if (name === undefined) return element("li", { class: "group" });
    const card = element("button", { type: "button", class: "card", tabindex: "-1" });
    card.name = name;
    card.parts = {
      name: element("span", { class: "name" }),
      idle: element("span", { class: "idle" }),
      tiles: element("span", { class: "tiles", "aria-hidden": "true" }),
      about: element("span", { class: "about" }, element("span"), element("span", { class: "amounts" })),
      pods: element("span", { class: "on" }),
    };
    write(card.parts.name, name);
    card.append(...Object.values(card.parts));
    return element("li", {}, card);
  }

  fill(made, { name, top, left, width, at, group, whole, all }) {
    setStyle(made, "top", `${top}px`);
    // Readers that speak count those too that are not in the document.
    setAttribute(made, "aria-posinset", `${at}`);
    setAttribute(made, "aria-setsize", `${this.size}`);
    if (name === undefined) {
      const free = OF_A_NODE.includes(this.group) ? "" : `: ${whole} of ${counted(all, "node")} free as a whole`;
      return write(made, `${group || "none"}${free}`);
    }
    setStyle(made, "left", `${left}px`);
    setStyle(made, "width", `${width}px`);
    setStyle(made, "height", `${CARD + ROW * this.items.get(name).rows}px`);
    const card = made.firstChild;
    card.tabIndex = name === this.current ? 0 : -1;
    const [node, use] = [this.state.nodes.get(name), this.state.use.get(name)];
    if (!node || (card.node === node && card.use === use)) return;
    [card.node, card.use] = [node, use];
    fill(card, node, use);
  }

  cardOf(name) {
    return this.list.kept?.get(name)?.firstChild;
  }

  reach(name) {
    if (name === undefined || name === this.current) return;
    const [before, now] = [this.cardOf(this.current), this.cardOf(name)];
    if (before) before.tabIndex = -1;
    if (now) now.tabIndex = 0;
    this.current = name;
  }

  move(event) {
    const card = event.target.closest(".card");
    if (!card || event.ctrlKey || event.altKey || event.metaKey) return;
    const [at, last, wide] = [this.shown.indexOf(card.name), this.shown.length - 1, this.columns()];
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + wide, ArrowUp: at - wide, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.reach(this.shown[Math.min(Math.max(to, 0), last)]);
    this.look();
    this.cardOf(this.current)?.focus();
  }
}

function setStyle(made, name, value) {
  if (made.style[name] !== value) made.style[name] = value;
}

function setAttribute(made, name, value) {
  if (made.getAttribute(name) !== value) made.setAttribute(name, value);
}

function byKey(one, other) {
  return byName.compare(one[0], other[0]) || one[1] - other[1] || byName.compare(one[2], other[2]);
}

function fill(card, node, use) {
  const { idle, tiles, about, pods } = card.parts;
  card.classList.toggle("broken", Boolean(node.problem));
  card.classList.toggle("troubled", node.troubled);
  write(idle, node.problem ? "offers no GPUs" : `${node.idle} of ${node.gpus.length} idle${node.cordoned ? ", cordoned" : ""}${node.tainted ? ", tainted" : ""}`);
  while (tiles.childElementCount > node.gpus.length) tiles.lastChild.remove();
  while (tiles.childElementCount < node.gpus.length) tiles.append(element("span", { class: "tile" }));
  let tile = tiles.firstElementChild;
  for (const gpu of node.gpus) {
    fillTile(tile, gpu, use?.gpus.get(gpu.index));
    tile = tile.nextElementSibling;
  }
  const lost = node.lost && !node.cordoned ? `, ${node.lost} out of service` : "";
  write(about.firstChild, node.problem || node.models.join(", "));
  write(about.lastChild, node.problem ? "" : `, ${percent(...node.memory)} % of ${memory(node.memory[1])}${busyOf(use)}${lost}`);
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

