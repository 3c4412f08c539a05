// The page's address: what is filtered and how it is ordered, and the node or pod that is open.

const CHOICES = ["q", "show", "sort", "group"];

// Returns the values of the address. Names of pods and nodes are their authors' choice: they are only ever shown as text.
export function read() {
  const known = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries([...CHOICES, "node", "pod"].map((name) => [name, known.get(name) ?? ""]));
}

export function choose(values) {
  history.replaceState(history.state, "", hashOf({ ...read(), ...values }));
}

// Back leads to what was shown before.
export function open(what, name) {
  history.pushState({ opened: true }, "", hashOf({ ...read(), node: "", pod: "", [what]: name }));
}

export function close() {
  const { node, pod } = read();
  if (!node && !pod) return;
  if (history.state?.opened) history.back();
  else choose({ node: "", pod: "" });
}

function hashOf(values) {
  const set = Object.entries(values).filter(([, value]) => value);
  return set.length ? `#${new URLSearchParams(set)}` : location.pathname + location.search;
}
