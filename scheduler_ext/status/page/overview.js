// The figures of the cluster, what still fits, and the last hour.

import { byId, element, keep, svg, write } from "./dom.js";
import { counted, memory, number, percent, time } from "./words.js";

export function showHead(head) {
  const problem = byId("problem");
  write(problem, head.problem ? `No decisions here: ${head.problem}.` : "");
  problem.hidden = !head.problem;
  const busy = head.gpus - head.idle - head.lost;
  const free = head.memory[1] - head.memory[0];
  const figures = [
    ["GPUs", number(head.gpus), `on ${counted(head.nodes, "node")}`],
    ["idle", number(head.idle), `${number(busy)} held${head.lost ? `, ${number(head.lost)} out of service` : ""}`],
    ["memory held", `${percent(...head.memory)} %`, `${memory(head.memory[0])} of ${memory(head.memory[1])}`, percent(...head.memory)],
    ["cores held", `${percent(...head.cores)} %`, `of ${counted(head.gpus, "GPU")}`, percent(...head.cores), "cores"],
    ["fragmented", `${percent(head.shared_memory, free)} %`, `${memory(head.shared_memory)} free beside other pods`],
    ["stranded", memory(head.stranded_memory), "free, but no pod can get it"],
    ["waiting", number(head.waiting), head.synced ? "on no node" : "not known yet"],
  ];
  keep(byId("figures"), figures, ([title]) => title, makeFigure, fillFigure);
  showFits(head.fits);
}

function makeFigure([title]) {
  const made = element("div", {}, element("dt", {}, title), element("dd", { class: "value" }), element("dd", { class: "about" }), element("dd", { class: "meter-line", "aria-hidden": "true" }));
  return made;
}

function fillFigure(made, [, value, about, part, kind]) {
  write(made.children[1], value);
  write(made.children[2], about);
  const line = made.children[3];
  line.hidden = part === undefined;
  if (part !== undefined) {
    line.className = `meter-line ${kind ?? "memory"}`;
    line.style.setProperty("--part", `${part}%`);
  }
}

function showFits(fits) {
  const place = byId("fits");
  const text = JSON.stringify(fits);
  if (place.text === text) return;
  place.text = text;
  if (!fits.length) {
    place.replaceChildren(element("p", { class: "nothing" }, "Nothing is known yet, or no node offers GPUs."));
    return;
  }
  const largest = fits.findLast((row) => row.whole_pods > 0);
  const sentence = largest ? `The largest request that fits: ${counted(largest.gpus, "whole GPU")} on one node.` : "No whole GPU is idle.";
  const titles = ["GPUs on one node", "pods with whole GPUs", "of at most", "largest share of each"];
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)));
  const rows = fits.map((row) =>
    element("tr", { class: row.whole_pods ? "" : "none" }, element("th", { scope: "row" }, `${row.gpus}`), element("td", {}, number(row.whole_pods)), element("td", {}, number(row.whole_pods_if_empty)), element("td", {}, row.share_mib ? memory(row.share_mib) : "none")),
  );
  place.replaceChildren(element("p", {}, sentence), element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

const [WIDTH, HEIGHT] = [600, 110];

// A sample is: time, memory held and total, cores held and total, idle GPUs, waiting pods.
export function showHistory(known) {
  if (!known.length) return;
  const to = known.at(-1)[0];
  const from = to - 3600;
  const samples = known.filter(([at]) => from <= at && at <= to); // the extender's clock may have been set
  const x = (at) => (WIDTH * (at - from)) / 3600;
  const most = Math.max(...samples.map((sample) => sample[6]), 1);
  const curve = (value) => samples.map((sample) => `${x(sample[0]).toFixed(1)},${(HEIGHT * (1 - value(sample))).toFixed(1)}`);
  const part = (used, total) => (total ? Math.min(used / total, 1) : 0);
  const memoryLine = curve((sample) => part(sample[1], sample[2]));
  const lines = [25, 50, 75].map((at) => svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT * (1 - at / 100), y2: HEIGHT * (1 - at / 100), class: "grid" }));
  const area = `${x(samples[0][0]).toFixed(1)},${HEIGHT} ${memoryLine.join(" ")} ${WIDTH},${HEIGHT}`;
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": summary(samples), class: "chart" },
    ...lines,
    svg("polygon", { points: area, class: "memory-area" }),
    svg("polyline", { points: memoryLine.join(" "), class: "memory-line" }),
    svg("polyline", { points: curve((sample) => part(sample[3], sample[4])).join(" "), class: "cores-line" }),
    svg("polyline", { points: curve((sample) => sample[6] / most).join(" "), class: "waiting-line" }),
  );
  const last = samples.at(-1);
  const keys = [
    ["memory-line", `memory ${percent(last[1], last[2])} %`],
    ["cores-line", `cores ${percent(last[3], last[4])} %`],
    ["waiting-line", `waiting ${number(last[6])}, at most ${number(Math.max(...samples.map((sample) => sample[6])))}`],
  ].map(([kind, text]) => element("li", {}, element("span", { class: `line ${kind}` }), text));
  const axis = element("p", { class: "axis", "aria-hidden": "true" }, element("span", {}, time(from)), element("span", {}, time(to)));
  byId("history").replaceChildren(drawing, axis, element("ul", { class: "legend" }, ...keys));
}

function summary(samples) {
  const parts = samples.map((sample) => percent(sample[1], sample[2]));
  return `Memory held in the last hour: ${parts.at(-1)} % now, ${Math.min(...parts)} % at least, ${Math.max(...parts)} % at most.`;
}
