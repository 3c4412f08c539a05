// The page's address: what is filtered and how it is ordered, and the node, pod or owner that is open.

const CHOICES = ["q", "show", "sort", "group", "psort", "pgroup"];
const OPENED = ["node", "pod", "owner"];
const NOTHING = Object.fromEntries(OPENED.map((what) => [what, ""]));

// Returns the values of the address. Names of pods and nodes are their authors' choice: they are only ever shown as text.
export function read() {
  const known = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries([...CHOICES, ...OPENED].map((name) => [name, known.get(name) ?? ""]));
}

export function choose(values) {
  history.replaceState(history.state, "", hashOf({ ...read(), ...values }));
}

// Filters as the link does. Back leads to what was shown before.
export function follow(hash) {
  history.pushState(null, "", hashOf({ ...read(), ...NOTHING, ...Object.fromEntries(new URLSearchParams(hash.slice(1))) }));
}

export function open(what, name) {
  history.pushState({ opened: true, scrolled: scrollY }, "", hashOf({ ...read(), ...NOTHING, [what]: name }));
}

export function close() {
  const known = read();
  if (!OPENED.some((what) => known[what])) return;
  if (history.state?.opened) history.back();
  else choose(NOTHING);
}

function hashOf(values) {
  const set = Object.entries(values).filter(([, value]) => value);
  return set.length ? `#${new URLSearchParams(set)}` : location.pathname + location.search;
}
