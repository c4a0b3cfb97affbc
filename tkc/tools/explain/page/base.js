// Small helpers: elements, numbers as text, the tooltip, what is selected.

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "path", "circle", "text", "title"].includes(tag);
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const scale = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${digits(seconds * scale[0])} ${scale[1]}`;
}

// Three significant digits, and never an exponent.
function digits(x) {
  if (x === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(x)));
  return x.toFixed(Math.max(0, Math.min(2, 2 - size)));
}

function amount(x, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let step = 0;
  while (Math.abs(x) >= 1000 && step < prefixes.length - 1) { x /= 1000; step += 1; }
  return `${digits(x)} ${prefixes[step]}${unit}`;
}

const bytes = (n) => (n >= 1024 ? `${n % 1024 ? digits(n / 1024) : n / 1024} KiB` : `${n.toLocaleString("en")} B`);
const percent = (x) => `${x >= 0.0995 ? Math.round(100 * x) : digits(100 * x)} %`;
const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

const tip = {
  node: null,
  show(text, event) {
    this.node ??= document.getElementById("tip");
    this.node.textContent = text;
    this.node.hidden = false;
    const { width, height } = this.node.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - width - 8);
    const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18;
    this.node.style.left = `${Math.max(4, x)}px`;
    this.node.style.top = `${Math.max(4, y)}px`;
  },
  hide() { if (this.node) this.node.hidden = true; },
};

// Which line of the source is selected, by its number over all parts; -1: none.
const selection = {
  line: -1,
  listeners: [],
  set(line, by = null) {
    if (line === this.line) line = by === "toggle" ? -1 : line;
    this.line = line;
    for (const listener of this.listeners) listener(line, by);
  },
  follow(listener) { this.listeners.push(listener); },
};

// Called where the theme changes, since canvases have no style sheet.
const themed = [];

function tabled(head, rows) {
  const cell = (tag, value, kind) => {
    const node = make(tag, { class: kind === "number" ? "number" : null, scope: tag === "th" ? "col" : null });
    node.append(...[value ?? ""].flat());
    return node;
  };
  const body = rows.map(({ cells, ...attributes }) =>
    make("tr", attributes, ...cells.map((value, i) => cell("td", value, head[i][1]))));
  return make("div", { class: "wide" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...head.map(([name, kind]) => cell("th", name, kind)))),
      make("tbody", {}, ...body)));
}

// A button that selects a line of the source; "" where there is none.
function lineLink(data, source) {
  if (source < 0) return "";
  const { line } = data.sourceLines[source];
  return make("button", {
    class: "line-link", type: "button", title: data.sourceLines[source].text.trim(),
    onclick: () => selection.set(source, "link"),
  }, `line ${line}`);
}

function section(title, ...children) {
  return make("section", { class: "panel block" }, make("h2", {}, title), ...children);
}

const note = (text) => make("p", { class: "note" }, text);

function choice(label, names, chosen, onchange) {
  const buttons = names.map((name) => make("button", {
    type: "button", "aria-pressed": String(name === chosen),
    onclick: () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === name));
      onchange(name);
    },
  }, name));
  return make("span", { class: "group", role: "group", "aria-label": label }, ...buttons);
}

// The soft colour of a source line, the same in every listing and picture.
function hue(line) { return (line * 137.508 + 210) % 360; }
function lineColour(line, alpha = 1) {
  return line < 0 ? css("--strong") : `hsl(${hue(line)} 55% ${css("--mid")} / ${alpha})`;
}
