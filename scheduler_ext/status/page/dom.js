// Makes elements. Texts are only ever set as text: names of pods are their authors' choice.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Writes a text only where it differs: the browser then has nothing to lay out.
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function byId(id) {
  return document.getElementById(id);
}

// Gives `parent` one child for each value, in their order. A child that is known by its key is kept and filled again.
export function keep(parent, values, keyOf, make, fill) {
  const known = parent.kept ?? new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const now = new Map(values.map((value) => [keyOf(value), value]));
  // Before the others are placed: none of these has to move then.
  for (const [key, child] of known) if (!now.has(key)) child.remove();
  let next = parent.firstChild;
  for (const [key, value] of now) {
    const child = known.get(key) ?? make(value);
    fill?.(child, value);
    now.set(key, child);
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
  }
  parent.kept = now;
  // One that moved has lost the focus.
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

const STOPS = "a, button, summary, .scroll"; // what Tab reaches

// Gives `parent` these children. Those that are equal stay, and so does the reader's place.
export function renew(parent, children) {
  const [scrolled, before, focused] = [parent.scrollTop, [...parent.children], document.activeElement];
  const stops = [...parent.querySelectorAll(STOPS)];
  const aside = stops.filter((stop) => stop.scrollLeft).map((stop) => [nameOf(stop), stop.scrollLeft]);
  const nth = stops.includes(focused) ? alike(stops, nameOf(focused)).indexOf(focused) : -1;
  for (const [at, child] of children.entries()) {
    if (at >= before.length) parent.append(child);
    else if (!before[at].isEqualNode(child)) before[at].replaceWith(child);
  }
  for (const child of before.slice(children.length)) child.remove();
  parent.scrollTop = scrolled;
  const now = [...parent.querySelectorAll(STOPS)];
  for (const [name, left] of aside) for (const stop of alike(now, name)) stop.scrollLeft = left;
  if (nth < 0 || parent.contains(focused)) return;
  const same = alike(now, nameOf(focused));
  (same[nth] ?? same.at(-1) ?? now[0])?.focus({ preventScroll: true });
}

function alike(stops, name) {
  return stops.filter((stop) => nameOf(stop) === name);
}

function nameOf(stop) {
  return stop.getAttribute("href") ?? stop.getAttribute("aria-label") ?? stop.textContent;
}
