// The page: facts, tabs, keys, theme.

const VIEWS = [
  ["code", "Code", codeView], ["choices", "Choices", choicesView, "decisions"], ["timeline", "Timeline", timelineView, "timeline"],
  ["speed", "Roofline", speedView, "roofline"], ["memory", "Shared memory", memoryView, "memory"],
  ["layouts", "Layouts", layoutsView, "layouts"], ["registers", "Registers", registersView, "registers"],
];

const KEYS = [
  ["1 … 7", "a view"], ["↑ ↓ or j k", "in the source: another line"], ["Esc", "no line"], ["[ ]", "the IR before, after the next pass that changed something"],
  ["n p", "next, previous line of the selection, match or change"], ["d", "plain, diff, changes only"], ["/", "find"], ["+ − ← →", "in a picture: zoom and move"], ["Home", "in a picture: all of it"],
];

function facts(data) {
  const list = [];
  if (data.measured) list.push(["measured", time(data.measured)]);
  if (data.prediction?.seconds) list.push(["predicted", time(data.prediction.seconds)], ["limited by", data.prediction.limit === "memory" ? "memory" : "multiprocessor"]);
  if (data.prediction?.tensor) list.push(["tensor cores", percent(data.prediction.tensor)]);
  const launch = data.launch;
  if (launch) {
    list.push(["threads", String(launch.threads)]);
    if (launch.registers !== undefined) list.push(["registers", String(launch.registers)], ["spills", launch.spills[0] || launch.spills[1] ? `${launch.spills[0]} B` : "none", launch.spills[0] ? "bad" : null]);
    list.push(["shared memory", bytes(launch.shared)]);
    if (launch.cluster.some((n) => n > 1)) list.push(["cluster", launch.cluster.join(" × ")]);
  }
  if (data.grid) list.push(["grid", data.grid.join(" × ").replace(/( × 1)+$/, "")]);
  document.getElementById("facts").append(...list.map(([name, value, kind]) => make("div", {}, make("dt", {}, name), make("dd", { class: kind }, value))));
  const words = [...data.arguments, ...data.options].flatMap(([name, value]) => [make("b", {}, `${name}=`), `${value}  `]);
  const box = document.getElementById("arguments");
  box.append(...words);
  for (const text of [...data.notes, ...(launch?.remarks ?? [])]) box.append(make("div", {}, text));
}

function failure(data) {
  if (!data.error) return;
  const box = document.getElementById("error");
  box.hidden = false;
  const where = data.error.reached ? `after ${data.error.reached}` : "while the function was traced";
  const excerpt = data.error.text.split("\n").slice(1).join("\n");
  box.append(make("strong", {}, `${data.error.kind} ${where}: `), data.error.message, " ", lineLink(data, data.error.source), ...(excerpt ? [make("pre", {}, excerpt)] : []));
}

function theme() {
  const button = document.getElementById("theme"), root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let asked = null;
  try { asked = localStorage.getItem("tkc-theme"); } catch { /* a file: page may have no storage */ }
  const apply = () => {
    const dark = asked ? asked === "dark" : system.matches;
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    for (const draw of themed) draw();
  };
  button.addEventListener("click", () => {
    asked = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("tkc-theme", asked); } catch { /* likewise */ }
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function keysDialog() {
  const dialog = document.getElementById("keys");
  dialog.append(make("h2", { id: "keys-title" }, "Keys"),
    tabled([["", ""], ["", ""]], KEYS.map(([key, text]) => ({ cells: [make("kbd", {}, key), text] }))),
    make("form", { method: "dialog" }, make("button", {}, "Close")));
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  return dialog;
}

async function main() {
  theme();
  const data = await load();
  facts(data);
  failure(data);
  const host = document.getElementById("main"), tabs = document.getElementById("tabs");
  const views = new Map();
  const buttons = VIEWS.map(([id, name, , part]) => make("button", {
    role: "tab", id: `tab-${id}`, "aria-controls": "main", type: "button", "aria-selected": "false", tabindex: "-1",
    "data-empty": part && part !== "decisions" && !data[part], onclick: () => open(id),
  }, name));
  tabs.append(...buttons);
  let current = null;
  function open(id) {
    tip.hide();
    if (!views.has(id)) views.set(id, VIEWS.find(([one]) => one === id)[2](data));
    current = views.get(id);
    host.classList.toggle("fills", Boolean(current.fills));
    host.setAttribute("role", "tabpanel");
    host.setAttribute("aria-labelledby", `tab-${id}`);
    host.replaceChildren(current);
    host.scrollTop = 0;
    buttons.forEach((button) => {
      const on = button.id === `tab-${id}`;
      button.setAttribute("aria-selected", String(on));
      button.tabIndex = on ? 0 : -1;
    });
    current.shown?.();
    if (location.hash !== `#${id}`) history.replaceState(null, "", `#${id}`);
  }
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  });
  const dialog = keysDialog();
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.key === "Escape") { if (typing) event.target.blur(); else selection.set(-1); return; }
    if (typing) return;
    if (event.key === "?") dialog.showModal();
    else if (/^[1-7]$/.test(event.key)) open(VIEWS[Number(event.key) - 1][0]);
    else current?.keys?.(event);
  });
  addEventListener("hashchange", () => { const id = location.hash.slice(1); if (VIEWS.some(([one]) => one === id)) open(id); });
  const asked = location.hash.slice(1);
  open(VIEWS.some(([id]) => id === asked) ? asked : "code");
  // A link to a line shows it in the code.
  selection.follow((line, by) => { if (line >= 0 && by === "link") open("code"); });
  if (data.error?.source >= 0) selection.set(data.error.source);
  document.documentElement.dataset.ready = "yes";
  window.explained = { data, selection, open, owners }; // for tests, and for the console
}

main().catch((error) => {
  const box = document.getElementById("error");
  box.hidden = false;
  box.append(make("strong", {}, "This page could not be drawn: "), String(error), ". It needs a browser of 2023 or later.");
  console.error(error);
});
