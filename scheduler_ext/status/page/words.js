// Amounts and times in plain words.

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export function number(value) {
  return whole.format(value);
}

export function memory(mib) {
  if (mib < 1024) return `${mib} MiB`;
  if (mib < 1024 * 1024) return `${tenth(mib / 1024)} GiB`;
  return `${tenth(mib / 1024 / 1024)} TiB`;
}

function tenth(value) {
  return value >= 100 ? number(Math.round(value)) : value.toFixed(1).replace(/\.0$/, "");
}

export function percent(part, of) {
  return of ? Math.floor((100 * part) / of) : 0;
}

export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// What a list that shows only the first leaves out.
export function cut(found, most) {
  return found > most ? `; the first ${number(most)} are shown, filter to see others` : "";
}

export function time(seconds) {
  return clock.format(new Date(seconds * 1000));
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.max(Math.round(seconds), 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d`;
}

// 0, 1, 2, 5 become "0–2, 5".
export function ranges(indices) {
  const runs = [];
  for (const index of [...indices].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && index === last[1] + 1) last[1] = index;
    else runs.push([index, index]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}

const PATHS = { 60: "PSB", 50: "PIX", 40: "PXB", 30: "PHB", 20: "NODE", 10: "SYS" };

// A pair's score as `nvidia-smi topo -m` names the link.
export function link(score) {
  if (score >= 100) return `NV${Math.floor(score / 100)}`;
  return PATHS[score] ?? "?";
}
