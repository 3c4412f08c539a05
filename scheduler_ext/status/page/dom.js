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
  const now = new Map(values.map((value) => [keyOf(value), value]));
  // Before the others are placed: none of these has to move then, and one that moves loses the focus.
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
}
