// The page: follows the event stream, and shows what changed at the next frame.

import * as address from "./address.js";
import { Cards } from "./cards.js";
import { Details } from "./details.js";
import { byId, write } from "./dom.js";
import { showHappened, showWaiting } from "./lists.js";
import { showHead, showHistory, showTeams } from "./overview.js";
import { OwnerPage } from "./owner.js";
import { PodPage } from "./pod.js";
import { makeHead, showIdle, showPods } from "./pods.js";
import { matches, State, sumsOf } from "./state.js";
import { Stream } from "./stream.js";
import { usedIn } from "./use.js";
import { counted, number } from "./words.js";

const state = new State();
const filter = { text: "", show: "all" };
const details = new Details(byId("node"));
const podPage = new PodPage(byId("pod"), () => stream.headers(), state);
const ownerPage = new OwnerPage(byId("owner"), state);
const pages = { node: details, pod: podPage, owner: ownerPage };
const cards = new Cards(byId("cards"), state, filter, (name) => go("node", name), later);
const REST_MILLISECONDS = 250; // until the table of pods follows, with all that came meanwhile
const PODS_MILLISECONDS = 1_000; // between two drawings of the long table, and
const PODS_PART = 10; // times as long as a drawing takes, but not longer than
const LONGEST_PODS_MILLISECONDS = 5_000; // for the whole machine may have stood still meanwhile
const parts = new Set(); // those to draw
const WARM_MILLISECONDS = 8; // of script in one go, for what the next key needs
const cold = new Set(); // names of nodes whose texts the filter has not read yet
let [drawing, resting, podsDue, filterDue] = [false, false, false, false];
let [podsDrawn, podsTook] = [-Infinity, 0];

const soon = window.requestIdleCallback ? (work) => requestIdleCallback(work, { timeout: 200 }) : (work) => setTimeout(work, 16);
const DRAW = {
  node: () => {
    const node = state.nodes.get(details.name);
    if (node || state.complete) details.update(node, state.use.get(details.name));
  },
  count: showShown,
  head: () => state.head && showHead(state.head, filter.text || filter.show !== "all" ? sumsOf(state.nodes, filter) : null, usedIn(state.nodes, state.use, (node) => matches(node, filter))),
  teams: () => showTeams(state.teams, state.use, filter, soFar()),
  waiting: () => {
    if (state.head) showWaiting(state.waiting, state.head, state.now, filter);
    ownerPage.update();
  },
  use: () => {
    podsDue = true;
    podPage.update();
  },
  happened: () => showHappened(state.happened, filter),
  history: () => showHistory(state.history),
};

function take(changed) {
  for (const name of changed.nodes) {
    cards.due.add(name);
    cold.add(name);
    offerLevels(state.nodes.get(name));
  }
  for (const part of changed.parts) parts.add(part);
  if (changed.parts.has("head")) for (const part of ["count", "teams"]) parts.add(part);
  if (changed.nodes.size) {
    parts.add("count");
    podsDue = true;
    if (changed.nodes.has(details.name)) parts.add("node");
    if (!details.name && address.read().node) openFromAddress();
    if (filter.text) parts.add("head");
  }
  for (const name of changed.used) cards.due.add(name);
  if (changed.used.has(details.name)) parts.add("node");
  if (changed.completed) {
    parts.add("node");
    goBackDown();
  }
  if (changed.nodes.size || changed.parts.size) later();
}

function later() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

function draw() {
  drawing = false;
  if (filterDue) refilter();
  cards.draw();
  for (const part of parts) DRAW[part]();
  parts.clear();
  rest();
}

// The table of pods follows when there is nothing else to do.
function rest() {
  if (resting) return;
  resting = true;
  setTimeout(() => soon(drawRest), REST_MILLISECONDS);
}

function drawRest() {
  resting = false;
  soon(warm);
  if (podsDue) setTimeout(drawPods, podsDrawn + Math.min(Math.max(PODS_MILLISECONDS, PODS_PART * podsTook), LONGEST_PODS_MILLISECONDS) - performance.now());
}

// Reads the texts of nodes before a key needs them all at once.
function warm() {
  const until = performance.now() + WARM_MILLISECONDS;
  for (const name of cold) {
    if (performance.now() > until) return soon(warm);
    cold.delete(name);
    state.nodes.get(name)?.text;
  }
}

function drawPods() {
  if (podsDue) showHeld();
}

// What goes through all pods.
function showHeld() {
  podsDue = false;
  const began = performance.now();
  showPods(cards.order, state.nodes, state.use, filter, soFar());
  showIdle(state.nodes, state.use, state.head, state.now, filter);
  DRAW.teams();
  DRAW.head();
  podsDrawn = performance.now();
  podsTook = podsDrawn - began;
}

// After each count of what the extender has not listed yet.
function soFar() {
  return state.head?.synced === false ? " so far" : "";
}

function showShown() {
  let shown = 0;
  for (const node of state.nodes.values()) shown += matches(node, filter);
  const all = counted(state.nodes.size, "node") + soFar();
  write(byId("nodes-count"), shown === state.nodes.size ? all : `${number(shown)} of ${all}`);
}

// Several keys of one frame count once, and what goes through all pods follows when there is nothing else to do.
function refilterSoon() {
  filterDue = true;
  later();
}

function refilter() {
  filterDue = false;
  const sort = byId("sort").value;
  const group = byId("group").value;
  const show = document.querySelector("input[name=show]:checked").value;
  // The address keeps a level that no node has yet: the nodes can come after the address.
  const named = address.read().group;
  address.choose({ q: byId("filter").value.trim(), show: show === "all" ? "" : show, sort, group: offers("group", named) ? group : group || named, pgroup: byId("pgroup").value });
  filter.text = byId("filter").value.trim().toLowerCase();
  filter.show = show;
  cards.arrange(sort, group);
  cards.filter();
  for (const part of ["count", "head", "waiting", "happened"]) DRAW[part]();
  [podsDue, podsDrawn] = [true, -Infinity];
}

// Cards can be grouped by each level of domains that a node is in.
function offerLevels(node) {
  for (const [level] of node?.domains ?? []) {
    if (offers("group", level)) continue;
    byId("group").add(new Option(level));
    if (address.read().group !== level) continue;
    byId("group").value = level;
    refilterSoon();
  }
}

function offers(id, value) {
  return [...byId(id).options].some((each) => each.value === value);
}

// The browser loads the page again at the top: there is nothing else yet.
function goBackDown() {
  const { scrolled } = history.state ?? {};
  if (!scrolled) return;
  history.replaceState({ ...history.state, scrolled: 0 }, "");
  draw();
  if (!scrollY) scrollTo(0, scrolled);
}

function go(what, name) {
  address.open(what, name);
  openFromAddress();
}

function openFromAddress() {
  const wanted = address.read();
  for (const [what, page] of Object.entries(pages)) if (page.name && page.name !== wanted[what]) putAway(page);
  if (!byId("ask").hidden) return;
  if (wanted.pod) podPage.open(wanted.pod);
  if (wanted.owner) ownerPage.open(wanted.owner);
  if (state.nodes.has(wanted.node)) details.open(state.nodes.get(wanted.node), state.use.get(wanted.node));
}

// Closes a dialog that the address may still name.
function putAway(page) {
  page.name = "";
  page.dialog.close();
}

// The address was changed: by Back, by a link, or by hand.
function arrive() {
  const { q, show, sort, group, pgroup } = address.read();
  byId("filter").value = q;
  const wanted = document.querySelector(`input[name=show][value="${CSS.escape(show || "all")}"]`);
  if (wanted) wanted.checked = true;
  for (const [id, value] of [["sort", sort], ["group", group], ["pgroup", pgroup]]) byId(id).value = offers(id, value) ? value : "";
  refilterSoon();
  openFromAddress();
}

function showState(what, why) {
  if (what === "live" && state.head?.stale) [what, why] = ["lost", "the API server does not answer the extender"];
  byId("live").dataset.state = what;
  write(byId("live"), { live: "Live", paused: "Paused", lost: `Not live: ${why}. Trying again …`, denied: `Not shown: ${why}.` }[what]);
  const before = byId("ask").hidden;
  byId("ask").hidden = what !== "denied";
  // The token is asked for behind no dialog. What the address names opens after it.
  if (what === "denied") Object.values(pages).forEach(putAway);
  else if (!before) openFromAddress();
  document.querySelector("main").hidden = what === "denied";
}

const stream = new Stream((message, last) => take(state.apply(message, last)), showState);

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.token = byId("token").value.trim();
  byId("token").value = "";
  stream.open();
});
byId("filter").addEventListener("input", refilterSoon);
byId("show").addEventListener("change", refilterSoon);
byId("order").addEventListener("change", ({ target }) => {
  address.choose({ [target.id]: target.value });
  refilterSoon();
});
byId("pgroup").addEventListener("change", refilterSoon);
makeHead(showHeld);
addEventListener("scrollend", () => history.replaceState({ ...history.state, scrolled: scrollY }, ""));
addEventListener("popstate", () => {
  arrive();
  draw(); // at once: the browser goes back to where the reader was, which must be there again
});
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#pod='], a[href^='#node='], a[href^='#owner='], a[href^='#q=']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const [[what, name]] = new URLSearchParams(link.hash.slice(1));
  if (what !== "q") return go(what, name);
  address.follow(link.hash);
  arrive();
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, select, dialog[open]")) return;
  event.preventDefault();
  byId("filter").focus();
});
for (const heading of document.querySelectorAll(".columns section > .heading")) {
  const section = heading.parentElement;
  const fold = heading.querySelector(".fold");
  fold.addEventListener("click", () => fold.setAttribute("aria-expanded", `${!section.classList.toggle("folded")}`));
  if (matchMedia("(max-width: 760px)").matches) fold.click();
}
byId("pause").addEventListener("click", (event) => {
  const paused = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", `${paused}`);
  write(event.currentTarget, paused ? "Continue" : "Pause");
  if (paused) stream.close();
  else stream.open();
});
arrive();
stream.open();
