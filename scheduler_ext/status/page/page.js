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
const cards = new Cards(byId("cards"), (name) => details.open(state.nodes.get(name)), later);
const REST_MILLISECONDS = 250; // until cards out of view follow, with all that came meanwhile
const PODS_MILLISECONDS = 1_000; // between two drawings of the long table
const parts = new Set(); // those to draw
let [drawing, resting, podsDue] = [false, false, false];
let podsDrawn = -Infinity;

const soon = window.requestIdleCallback ? (work) => requestIdleCallback(work, { timeout: 200 }) : (work) => setTimeout(work, 16);
const DRAW = {
  node: () => details.update(state.nodes.get(details.name)),
  count: showShown,
  head: () => state.head && showHead(state.head),
  waiting: () => state.head && showWaiting(state.waiting, state.head, state.at),
  told: () => showTold(state.told),
  history: () => showHistory(state.history),
};

function take(changed) {
  for (const name of changed.nodes) cards.due.add(name);
  for (const part of changed.parts) parts.add(part);
  if (changed.parts.has("head")) parts.add("waiting");
  if (changed.nodes.size) {
    parts.add("count");
    podsDue = true;
    if (changed.nodes.has(details.name)) parts.add("node");
    if (!details.name && nodeInHash()) openFromHash();
  }
  if (changed.nodes.size || changed.parts.size) later();
}

function later() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

// The cards in view, then the other parts, in as many frames as it takes.
function draw() {
  drawing = false;
  if (!cards.draw(state.nodes, filter, false)) return later();
  for (const part of parts) DRAW[part]();
  parts.clear();
  rest();
}

// What is not in view follows when there is nothing else to do: the other cards, then the table of pods.
function rest() {
  if (resting) return;
  resting = true;
  setTimeout(() => soon(drawRest), REST_MILLISECONDS);
}

function drawRest() {
  if (!cards.draw(state.nodes, filter, true)) return soon(drawRest);
  resting = false;
  if (podsDue) setTimeout(drawPods, podsDrawn + PODS_MILLISECONDS - performance.now());
}

function drawPods() {
  if (!podsDue) return;
  podsDue = false;
  podsDrawn = performance.now();
  showPods(cards.order, state.nodes, filter);
}

function showShown() {
  let shown = 0;
  for (const node of state.nodes.values()) shown += matches(node, filter);
  const all = counted(state.nodes.size, "node");
  write(byId("nodes-count"), shown === state.nodes.size ? all : `${number(shown)} of ${all}`);
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

const stream = new Stream((message) => take(state.apply(message)), showState);

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
