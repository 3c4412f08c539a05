// One node in a dialog: how its GPUs are connected, and who holds what.

import { described } from "./cards.js";
import { Opened } from "./dialog.js";
import { element, svg } from "./dom.js";
import { podLink } from "./pods.js";
import { counted, link, memory, percent } from "./words.js";

const SIZE = 320;
const MOST_IN_GRAPH = 32; // GPUs: beyond, lines are a solid disc

export class Details extends Opened {
  open(node, use) {
    this.name = node.name;
    this.fill(node, use);
  }

  // Brings an open dialog up to date; `node` is undefined once it is gone.
  update(node, use) {
    if (!node) this.dialog.close();
    else this.fill(node, use);
  }

  fill(node, use) {
    const opened = this.dialog.querySelector("details")?.open;
    const parts = [node.problem, ...node.notes].filter(Boolean).map((note) => element("p", { class: "problem" }, note));
    const about = [node.pool && `pool ${node.pool}`, ...node.domains.map((domain) => domain.join(" ")), node.limits && `parts held by: ${node.limits}`, ...node.taints.map((taint) => `taint ${taint}`)].filter(Boolean);
    if (about.length) parts.push(element("p", { class: "count" }, about.join(", ")));
    if (node.gpus.length) {
      const body = element("div", { class: "inside" });
      if (node.links.length && node.gpus.length <= MOST_IN_GRAPH) body.append(element("figure", {}, graph(node), legend(node)));
      body.append(element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "GPUs" }, table(node, use)));
      parts.push(body);
    }
    if (node.links.length) {
      const links = element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Links" });
      const more = element("details", {}, element("summary", {}, "Links as a table"), links);
      // It is large, and most readers leave it closed.
      more.addEventListener("toggle", () => more.open && !links.firstChild && links.append(matrix(node)));
      more.open = Boolean(opened);
      if (opened) links.append(matrix(node)); // at once, so that the reader's place is still there
      parts.push(more);
    }
    this.show(summary(node), ...parts);
  }
}

function summary(node) {
  if (!node.gpus.length) return "offers no GPUs";
  return `${counted(node.gpus.length, "GPU")} ${node.models.join(", ")}, ${node.idle} idle, ${percent(...node.memory)} % of ${memory(node.memory[1])} held`;
}

function table(node, use) {
  const several = node.models.length > 1;
  const titles = ["GPU", ...(several ? ["model"] : []), "memory", "cores", "replicas", ...(use ? ["in use"] : []), "held by"];
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col", class: title === "replicas" ? title : undefined }, title)));
  const rows = node.gpus.map((gpu) => {
    const held = (gpu.held ?? []).map((each) => {
      const cores = each.cores ? `, ${each.cores} %` : "";
      const state = each.state ? `, ${each.state}` : "";
      return element("li", {}, podLink(each.pod), ` ${memory(each.memory)}${cores}${state}`);
    });
    const state = gpu.state ? element("strong", { class: "bad" }, gpu.state) : "no pod";
    return element(
      "tr",
      {},
      element("th", { scope: "row", title: gpu.uuid }, `${gpu.index}${gpu.mig ? " MIG" : ""}`),
      ...(several ? [element("td", {}, gpu.model)] : []),
      element("td", {}, meter(gpu.memory, "memory"), ` ${shared(gpu.memory)}`),
      element("td", {}, meter(gpu.cores, "cores"), ` ${gpu.cores[0]} %`),
      element("td", { class: "replicas" }, `${gpu.replicas[0]} of ${gpu.replicas[1]}`),
      ...(use ? [element("td", {}, inUse(use.gpus.get(gpu.index)))] : []),
      element("td", {}, held.length ? element("ul", { class: "held" }, ...(gpu.state ? [element("li", {}, state)] : []), ...held) : state),
    );
  });
  return element("table", { class: "devices" }, element("thead", {}, head), element("tbody", {}, ...rows));
}

function inUse(use) {
  const parts = [use?.busy ?? null, use?.memory ?? null];
  return [parts[0] === null ? "" : `${parts[0]} % of the time`, parts[1] === null ? "" : memory(parts[1])].filter(Boolean).join(", ") || "not known";
}

function shared([used, total]) {
  return used ? `${memory(used)} of ${memory(total)}` : `none of ${memory(total)}`;
}

function meter([used, total], kind) {
  const bar = element("span", { class: `meter ${kind}`, "aria-hidden": "true" });
  bar.style.setProperty("--part", `${percent(used, total)}%`);
  return bar;
}

function score(node, a, b) {
  const [low, high] = a < b ? [a, b] : [b, a];
  return node.links[low]?.[high - low - 1] ?? -1;
}

function kindOf(word) {
  if (word.startsWith("NV")) return "nvlink";
  return { PSB: "switch", PIX: "switch", PXB: "switch", PHB: "socket", NODE: "socket", SYS: "far" }[word] ?? "unknown";
}

const KINDS = { nvlink: "NVLink", switch: "PCIe switch (PIX, PXB)", socket: "one socket (PHB, NODE)", far: "between sockets (SYS)", unknown: "unknown" };

// GPUs on a circle; a better link is a thicker line, drawn last.
function graph(node) {
  const count = node.gpus.length;
  const middle = SIZE / 2;
  const places = node.gpus.map((_, at) => [middle + (middle - 34) * Math.sin((2 * Math.PI * at) / count), middle - (middle - 34) * Math.cos((2 * Math.PI * at) / count)]);
  const pairs = [];
  for (let a = 0; a < count; a++) for (let b = a + 1; b < count; b++) pairs.push([score(node, a, b), a, b]);
  pairs.sort((one, other) => one[0] - other[0]);
  const lines = pairs.map(([value, a, b]) => {
    const word = link(value);
    const width = value >= 100 ? Math.min(1.2 + value / 400, 5) : 1;
    const line = svg("line", { x1: places[a][0], y1: places[a][1], x2: places[b][0], y2: places[b][1], class: kindOf(word), "stroke-width": width });
    line.append(svg("title", {}, `GPU ${node.gpus[a].index} and GPU ${node.gpus[b].index}: ${word}`));
    return line;
  });
  const r = Math.min(20, (Math.PI * (middle - 34)) / count - 1);
  const circles = node.gpus.map((gpu, at) => {
    const [x, y] = places[at];
    const around = 2 * Math.PI * r;
    const part = (around * percent(...gpu.memory)) / 100;
    return svg(
      "g",
      { class: gpu.state ? "gpu lost" : gpu.replicas[0] ? "gpu" : "gpu free" },
      svg("title", {}, described(gpu)),
      svg("circle", { cx: x, cy: y, r, class: "plate" }),
      svg("circle", { cx: x, cy: y, r, class: "ring", "stroke-dasharray": `${part} ${around}`, transform: `rotate(-90 ${x} ${y})` }),
      svg("text", { x, y }, `${gpu.index}`),
    );
  });
  const nvlinks = pairs.filter(([value]) => value >= 100).length;
  const label = `${counted(count, "GPU")}; ${nvlinks} of ${counted(pairs.length, "pair")} connected by NVLink. The table of links has each pair.`;
  return svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": label, class: "graph" }, ...lines, ...circles);
}

function legend(node) {
  const kinds = new Set(node.links.flat().map((value) => kindOf(link(value))));
  const items = Object.keys(KINDS).filter((kind) => kinds.has(kind)).map((kind) => element("li", {}, element("span", { class: `line ${kind}` }), KINDS[kind]));
  return element("figcaption", {}, element("ul", { class: "legend" }, ...items));
}

function matrix(node) {
  const head = element("tr", {}, element("td"), ...node.gpus.map((gpu) => element("th", { scope: "col" }, `${gpu.index}`)));
  const rows = node.gpus.map((gpu, a) =>
    element("tr", {}, element("th", { scope: "row" }, `GPU ${gpu.index}`), ...node.gpus.map((_, b) => {
      const word = a === b ? "–" : link(score(node, a, b));
      return element("td", { class: a === b ? "" : kindOf(word) }, word);
    })),
  );
  return element("table", { class: "matrix" }, element("thead", {}, head), element("tbody", {}, ...rows));
}
