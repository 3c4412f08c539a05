// The figures of the cluster, what still fits, and the last hour.

import { byId, element, keep, renew, svg, write } from "./dom.js";
import { namespaceOf } from "./state.js";
import { counted, cut, memory, number, percent, time } from "./words.js";

// `sums` are those of the nodes that match the filter; null without one. `used` is what the daemons of these report.
export function showHead(head, sums, used) {
  const problem = byId("problem");
  const old = head.stale ? `What is shown may be old: ${head.stale}.` : "";
  write(problem, [head.problem && `No decisions here: ${head.problem}.`, old].filter(Boolean).join(" "));
  problem.hidden = !problem.textContent;
  const of = sums ?? head;
  const busy = of.gpus - of.idle - of.lost;
  const free = head.memory[1] - head.memory[0];
  const figures = [
    ["GPUs", number(of.gpus), `on ${counted(of.nodes, "node")}${sums ? " that match" : ""}`],
    ["idle", number(of.idle), `${number(busy)} held${of.lost ? `, ${number(of.lost)} out of service` : ""}`],
    ["memory held", `${percent(...of.memory)} %`, `${memory(of.memory[0])} of ${memory(of.memory[1])}`, percent(...of.memory)],
    ["cores held", `${percent(...of.cores)} %`, `of ${counted(of.gpus, "GPU")}`, percent(...of.cores), "cores"],
    ["in use", used.gpus ? `${Math.round(used.busy / used.gpus)} %` : "?", used.gpus ? `of the time, ${memory(used.memory)}, on ${counted(used.gpus, "GPU")}` : "not known", used.gpus ? Math.round(used.busy / used.gpus) : undefined, "busy"],
    ["fragmented", `${percent(head.shared_memory, free)} %`, `${memory(head.shared_memory)} free beside other pods`],
    ["stranded", memory(head.stranded_memory), "free, but no pod can get it"],
    ["waiting", number(head.waiting), "on no node"],
  ];
  const shown = head.synced ? figures : figures.map(([title]) => [title, "?", "not known yet"]);
  keep(byId("figures"), shown, ([title]) => title, makeFigure, fillFigure);
  showFits(head.fits);
  const about = [head.version && `version ${head.version}`, head.cluster, leaderOf(head)];
  write(byId("about"), about.filter(Boolean).join(", "));
}

function leaderOf({ leader, leads }) {
  if (leader) return leads ? `leader ${leader}` : `not the leader: that is ${leader}`;
  return leads ? "" : "not the leader: none is known";
}

export function showTeams(teams, uses, filter, soFar) {
  const busy = new Map();
  for (const use of uses.values()) {
    for (const [pod, of] of use.pods) {
      const namespace = namespaceOf(pod);
      busy.set(namespace, (busy.get(namespace) ?? 0) + (of.busy ?? 0));
    }
  }
  const rows = Object.entries(teams).map(([name, [pods, gpus, mib, hours]]) => ({ name, pods, gpus, mib, hours }));
  const shown = rows.filter((row) => row.name.toLowerCase().includes(filter.text)).sort((a, b) => b.gpus - a.gpus || b.hours - a.hours);
  write(byId("teams-count"), `${counted(rows.length, "namespace")}${soFar}, hours since the extender began to look${cut(shown.length, MOST_TEAMS)}`);
  keep(byId("team-rows"), shown.slice(0, MOST_TEAMS), (row) => row.name, () => element("tr", {}, element("th", { scope: "row", class: "pod" }), ...["", "", "", "", ""].map(() => element("td", { class: "number" }))), (made, row) => {
    const texts = [row.name || "(deleted pods)", number(row.pods), row.gpus.toFixed(1), busy.has(row.name) ? (busy.get(row.name) / 100).toFixed(1) : "", memory(row.mib), row.hours.toFixed(1)];
    texts.forEach((text, at) => write(made.children[at], text));
  });
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
  if (!fits.length) return renew(byId("fits"), [element("p", { class: "nothing" }, "Nothing is known yet, or no node offers GPUs.")]);
  const largest = fits.findLast((row) => row.whole_pods > 0);
  const sentence = largest ? `The largest request that fits: ${counted(largest.gpus, "whole GPU")} on one node.` : "No whole GPU is idle.";
  const titles = ["GPUs on one node", "pods with whole GPUs", "of at most", "largest share of each"];
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)));
  const rows = fits.map((row) =>
    element("tr", { class: row.whole_pods ? "" : "none" }, element("th", { scope: "row" }, `${row.gpus}`), element("td", {}, number(row.whole_pods)), element("td", {}, number(row.whole_pods_if_empty)), element("td", {}, row.share_mib ? memory(row.share_mib) : "none")),
  );
  renew(byId("fits"), [element("p", {}, sentence), element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))]);
}

const MOST_TEAMS = 50;
const SHORTEST_SECONDS = 600; // that the chart shows
const LONGEST_GAP_SECONDS = 60; // between two samples that a line joins: nothing was looked at meanwhile
const [WIDTH, HEIGHT] = [600, 110];

// A sample is: time, memory held and total, cores held and total, idle GPUs, waiting pods.
export function showHistory(known) {
  if (!known.length) return;
  const to = known.at(-1)[0];
  const from = to - Math.min(Math.max(to - known[0][0], SHORTEST_SECONDS), 3600);
  const samples = known.filter(([at]) => from <= at && at <= to); // the extender's clock may have been set
  const x = (at) => (WIDTH * (at - from)) / (to - from);
  const most = Math.max(...samples.map((sample) => sample[6]), 1);
  const runs = [];
  for (const [at, sample] of samples.entries()) {
    if (!at || sample[0] - samples[at - 1][0] > LONGEST_GAP_SECONDS) runs.push([]);
    runs.at(-1).push(sample);
  }
  const curve = (run, value) => run.map((sample) => `${x(sample[0]).toFixed(1)},${(HEIGHT * (1 - value(sample))).toFixed(1)}`).join(" ");
  const curves = (kind, value) => runs.map((run) => svg("polyline", { points: curve(run, value), class: `${kind}-line` }));
  const part = (used, total) => (total ? Math.min(used / total, 1) : 0);
  const held = (sample) => part(sample[1], sample[2]);
  const lines = [25, 50, 75].map((at) => svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT * (1 - at / 100), y2: HEIGHT * (1 - at / 100), class: "grid" }));
  const areas = runs.map((run) => svg("polygon", { points: `${x(run[0][0]).toFixed(1)},${HEIGHT} ${curve(run, held)} ${x(run.at(-1)[0]).toFixed(1)},${HEIGHT}`, class: "memory-area" }));
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": summary(samples), class: "chart" },
    ...lines,
    ...areas,
    ...curves("memory", held),
    ...curves("cores", (sample) => part(sample[3], sample[4])),
    ...curves("waiting", (sample) => sample[6] / most),
  );
  const last = samples.at(-1);
  const keys = [
    ["memory-line", `memory ${percent(last[1], last[2])} %`],
    ["cores-line", `cores ${percent(last[3], last[4])} %`],
    ["waiting-line", `waiting ${number(last[6])}, at most ${number(Math.max(...samples.map((sample) => sample[6])))}`],
  ].map(([kind, text]) => element("li", {}, element("span", { class: `line ${kind}` }), text));
  const axis = element("p", { class: "axis", "aria-hidden": "true" }, ...[0, 0.5, 1].map((part) => element("span", {}, time(from + part * (to - from)))));
  const scale = (texts, side) => element("span", { class: `scale ${side}`, "aria-hidden": "true" }, ...texts.map((text) => element("span", {}, text)));
  const framed = element("div", { class: "framed" }, scale(["100 %", "50", "0"], "left"), drawing, scale([number(most), "waiting", "0"], "right"));
  byId("history").replaceChildren(framed, axis, element("ul", { class: "legend" }, ...keys));
}

function summary(samples) {
  const parts = samples.map((sample) => percent(sample[1], sample[2]));
  return `Memory held in the last hour: ${parts.at(-1)} % now, ${Math.min(...parts)} % at least, ${Math.max(...parts)} % at most.`;
}
