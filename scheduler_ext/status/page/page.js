// The page: follows the event stream, and shows what changed at the next frame.

import { Cards } from "./cards.js";
import { Details, nodeInHash } from "./details.js";
import { byId, write } from "./dom.js";
import { showPods, showTold, showWaiting } from "./lists.js";
import { showHead, showHistory } from "./overview.js";
import { matches, State } from "./state.js";
import { Stream } from "./stream.js";
import { counted, number } from "./words.js";

const state = new State();
const filter = { text: "", show: "all" };
const details = new Details(byId("node"));
const cards = new Cards(byId("cards"), (name) => details.open(state.nodes.get(name)));
let [nodes, parts, drawing] = [new Set(), new Set(), false];

function later() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

function draw() {
  performance.mark("update begins");
  drawing = false;
  const [names, changed] = [nodes, parts];
  [nodes, parts] = [new Set(), new Set()];
  if (names.size) {
    cards.update(names, state.nodes, filter);
    showShown();
    showPodsSoon();
    if (details.name && names.has(details.name)) details.update(state.nodes.get(details.name));
    if (!details.name && nodeInHash()) openFromHash();
  }
  if (state.head && changed.has("head")) showHead(state.head);
  if (changed.has("waiting") || changed.has("head")) showWaiting(state.waiting, state.head?.waiting ?? 0, state.at);
  if (changed.has("told")) showTold(state.told);
  if (changed.has("history")) showHistory(state.history);
  performance.measure("update", "update begins");
}

function showShown() {
  let shown = 0;
  for (const node of state.nodes.values()) shown += matches(node, filter);
  const all = counted(state.nodes.size, "node");
  write(byId("nodes-count"), shown === state.nodes.size ? all : `${number(shown)} of ${all}`);
}

// The table of pods is long: it follows a second later at most, all changes at once.
let [podsDue, podsShown] = [0, false];

function showPodsSoon() {
  podsDue ||= setTimeout(() => {
    podsDue = 0;
    showPods(cards.order, state.nodes, filter);
  }, podsShown ? 1_000 : 0);
  podsShown = true;
}

function refilter() {
  filter.text = byId("filter").value.trim().toLowerCase();
  filter.show = document.querySelector("input[name=show]:checked").value;
  cards.filter(state.nodes, filter);
  showShown();
  showPods(cards.order, state.nodes, filter);
}

function openFromHash() {
  const node = state.nodes.get(nodeInHash());
  if (node) details.open(node);
}

function showState(what, why) {
  byId("live").dataset.state = what;
  write(byId("live"), { live: "Live", paused: "Paused", lost: `Not live: ${why}. Trying again …`, denied: `Not shown: ${why}.` }[what]);
  byId("ask").hidden = what !== "denied";
  document.querySelector("main").hidden = what === "denied";
}

const stream = new Stream((message) => {
  const changed = state.apply(message);
  changed.nodes.forEach((name) => nodes.add(name));
  changed.parts.forEach((part) => parts.add(part));
  if (changed.nodes.size || changed.parts.size) later();
}, showState);

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.token = byId("token").value.trim();
  byId("token").value = "";
  stream.open();
});
byId("filter").addEventListener("input", refilter);
byId("show").addEventListener("change", refilter);
addEventListener("hashchange", openFromHash);
byId("pause").addEventListener("click", (event) => {
  const paused = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", `${paused}`);
  write(event.currentTarget, paused ? "Continue" : "Pause");
  if (paused) stream.close();
  else stream.open();
});
stream.open();
