// The source beside the IR after each pass, PTX and machine code.

function codeView(data) {
  if (!data.stages.length && !data.sourceLines.length) return make("div", { class: "view" }, note("There is nothing to list."));
  const state = { short: true };
  const ir = data.stages.filter((stage) => stage.kind === "ir");
  const lastChanged = ir.findLast((stage) => !stage.same) ?? data.stages[0];
  const machine = data.stages.filter((stage) => stage.kind !== "ir");
  const source = new Lines("Source", { onpick: (row) => row.source >= 0 && selection.set(row.source, "toggle"), gutter: weight });
  const left = new Pane(data, state, machine.length ? lastChanged : ir[0], "left");
  const right = new Pane(data, state, machine.at(-1) ?? lastChanged, "right");
  const strip = new Strip(data, (stage) => (stage.kind === "ir" || data.stages.length === ir.length ? left : right).choose(stage));
  left.onchoose = right.onchoose = () => { strip.draw(left.stage, right.stage); source.draw(true); };

  // How much of the listing on the right a line has become.
  function weight(row) {
    const node = make("span", { class: "w" });
    const counts = right.stage?.listing.counts;
    if (!counts || row.source < 0 || !counts[row.source]) return node;
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    const bar = make("i", { title: `${many(counts[row.source], "line")} of ${right.stage.name}` });
    bar.style.width = `${Math.max(2, 24 * counts[row.source] / most)}px`;
    bar.style.background = lineColour(row.source);
    node.append(bar);
    return node;
  }

  const rows = [];
  let number = 0;
  for (const part of data.sources) {
    if (data.sources.length > 1) rows.push({ text: part.file.split("/").slice(-2).join("/"), source: -1, mark: "file" });
    part.lines.forEach((text, i) => {
      rows.push({ n: part.first + i, text, source: number, language: "python", wrong: data.error?.source === number, coloured: used(number) });
      number += 1;
    });
  }
  function used(line) { return data.stages.some((stage) => stage.counts?.[line]); }
  source.show(rows);

  selection.follow((line, by) => {
    strip.draw(left.stage, right.stage);
    const at = rows.findIndex((row) => row.source === line);
    if (by !== "toggle") source.reveal(at);
    for (const pane of [left, right]) if (by !== pane) pane.revealSelected();
  });
  source.node.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const lines = rows.filter((row) => row.source >= 0 && row.coloured);
    const now = lines.findIndex((row) => row.source === selection.line);
    const next = lines[now < 0 ? (step > 0 ? 0 : lines.length - 1) : now + step];
    if (next) selection.set(next.source, "key");
  });

  const short = make("button", { type: "button", "aria-pressed": "true", title: "Leave out layouts, facts of arrays and types of operands in the IR" }, "Short types");
  short.addEventListener("click", () => {
    state.short = !state.short;
    short.setAttribute("aria-pressed", String(state.short));
    for (const pane of [left, right]) pane.fill(true);
  });
  const file = data.sources[0]?.file ?? "";
  const panes = make("div", { class: "panes" },
    make("section", { class: "panel pane", "aria-label": "Source" },
      make("div", { class: "bar" }, make("h3", { title: file }, file.split("/").at(-1) || "source"),
        make("span", { class: "grow" }),
        short),
      source.node),
    splitter(0), left.node, splitter(1), right.node);

  function splitter(which) {
    const node = make("button", { class: "splitter", type: "button", role: "separator", "aria-orientation": "vertical", "aria-label": "Width of the listings; arrow keys move it", title: "Drag, or arrow keys" });
    const widths = () => [...panes.querySelectorAll(".pane")].map((pane) => pane.getBoundingClientRect().width);
    const move = (dx) => {
      const now = widths();
      const by = Math.max(120 - now[which], Math.min(dx, now[which + 1] - 120));
      now[which] += by;
      now[which + 1] -= by;
      panes.style.gridTemplateColumns = now.map((w) => `minmax(0, ${w}fr)`).join(" 8px ");
    };
    let from = null;
    node.addEventListener("pointerdown", (event) => { from = event.clientX; node.setPointerCapture(event.pointerId); });
    node.addEventListener("pointermove", (event) => { if (from !== null) { move(event.clientX - from); from = event.clientX; } });
    node.addEventListener("pointerup", () => { from = null; });
    node.addEventListener("keydown", (event) => { const dx = { ArrowLeft: -24, ArrowRight: 24 }[event.key]; if (dx) move(dx); });
    return node;
  }

  strip.draw(left.stage, right.stage);
  const view = make("div", { class: "view" }, strip.node, panes);
  view.keys = (event) => {
    const step = { "[": -1, "]": 1 }[event.key];
    if (step) {
      const changed = ir.filter((stage) => !stage.same);
      const now = changed.indexOf(left.stage.listing);
      if (changed[now + step]) left.choose(changed[now + step]);
    } else if (event.key === "n" || event.key === "p") {
      for (const pane of [left, right]) pane.next(event.key === "p");
    } else if (event.key === "/") {
      event.preventDefault();
      left.search.focus();
    } else if (event.key === "d") {
      left.mode.selectedIndex = (left.mode.selectedIndex + 1) % 3;
      left.fill();
    }
  };
  view.fills = true;
  view.shown = () => { for (const lines of [source, left.lines, right.lines]) lines.draw(true); };
  return view;
}

// One button a stage: what it changed, and how much of the selected line there is in it.
class Strip {
  constructor(data, onchoose) {
    this.data = data;
    this.buttons = data.stages.map((stage) => {
      const button = make("button", { type: "button", onclick: () => onchoose(stage) });
      if (stage.same) {
        button.className = "same";
        button.setAttribute("aria-label", `${stage.name}: changed nothing`);
        button.title = `${stage.name}: changed nothing`;
      }
      return button;
    });
    this.node = make("div", { class: "strip", role: "group", "aria-label": "Stages of the compilation" }, ...this.buttons);
  }

  draw(...shown) {
    this.data.stages.forEach((stage, i) => {
      const button = this.buttons[i];
      button.setAttribute("aria-pressed", String(shown.includes(stage)));
      if (stage.same) return;
      const parts = [make("span", {}, stage.name)];
      const from = selection.line >= 0 ? stage.counts[selection.line] : 0;
      if (from) parts.push(make("small", { class: "from", title: `${many(from, "line")} from the selected one` }, String(from)));
      else if (selection.line < 0 && stage.kind === "ir" && (stage.added || stage.removed)) {
        parts.push(make("small", {}, make("span", { class: "plus" }, `+${stage.added}`), " ", make("span", { class: "minus" }, `−${stage.removed}`)));
      }
      button.replaceChildren(...parts);
      button.style.opacity = selection.line >= 0 && !from ? 0.55 : 1;
    });
  }
}

class Pane {
  constructor(data, state, stage, side) {
    this.data = data;
    this.state = state;
    this.onchoose = () => {};
    this.lines = new Lines(`Listing on the ${side}`, { onpick: (row) => { if (row.source >= 0) selection.set(row.source, this); } });
    this.select = make("select", { "aria-label": `Stage on the ${side}` },
      ...data.stages.map((one, i) => make("option", { value: i }, one.name + (one.same ? "  (same)" : ""))));
    this.mode = make("select", { class: "mode", "aria-label": "Comparison with the stage before" },
      ...["plain", "diff", "changes only"].map((name) => make("option", {}, name)));
    this.search = make("input", { type: "search", placeholder: "Find", "aria-label": `Find in the listing on the ${side}` });
    this.count = make("span", { class: "count" });
    const button = (text, label, action) => make("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.node = make("section", { class: "panel pane", "aria-label": `Listing on the ${side}` },
      make("div", { class: "bar" }, this.select, this.mode, this.search, this.count,
        button("↑", "Previous match, change or line of the selection", () => this.next(true)),
        button("↓", "Next match, change or line of the selection", () => this.next(false))),
      this.lines.node);
    this.select.addEventListener("change", () => this.choose(data.stages[this.select.value]));
    this.mode.addEventListener("change", () => this.fill());
    this.search.addEventListener("input", () => { this.lines.found = this.search.value.toLowerCase(); this.lines.current = -1; this.next(false); this.lines.draw(true); this.tell(); });
    this.search.addEventListener("keydown", (event) => { if (event.key === "Enter") this.next(event.shiftKey); });
    selection.follow(() => this.tell());
    this.choose(stage);
  }

  choose(stage) {
    if (!stage) {
      this.lines.show([{ text: "There is no IR: the function was not traced to its end.", source: -1, mark: "gap" }]);
      return;
    }
    this.stage = stage;
    this.select.value = this.data.stages.indexOf(stage);
    this.mode.hidden = stage.kind !== "ir";
    this.fill();
    this.onchoose();
    this.revealSelected();
  }

  text(stage, i) {
    const text = this.data.texts[stage.lines[i]];
    return this.state.short && stage.kind === "ir" ? shortened(text) : text;
  }

  fill(keep = false) {
    const stage = this.stage.listing;
    const mode = this.mode.value;
    const row = (of, i, mark) => ({ n: i + 1, text: this.text(of, i), whole: this.data.texts[of.lines[i]], source: of.source[i], mark, language: of.kind });
    const rows = [];
    const at = this.data.stages.indexOf(stage);
    const before = this.data.stages.slice(0, at).findLast((one) => one.kind === "ir")?.listing;
    if (mode === "plain" || stage.kind !== "ir" || !before || this.stage.same) {
      for (let i = 0; i < stage.lines.length; i++) rows.push(row(stage, i));
    } else {
      for (const [tag, i0, i1, j0, j1] of stage.changes) {
        if (tag === "equal") this.equal(rows, stage, j0, j1, mode, row);
        else {
          for (let i = i0; i < i1; i++) rows.push(row(before, i, "minus"));
          for (let j = j0; j < j1; j++) rows.push(row(stage, j, "plus"));
        }
      }
    }
    this.lines.current = undefined;
    this.lines.show(rows, { keep });
    this.tell();
  }

  equal(rows, stage, from, to, mode, row) {
    const around = 3;
    if (mode !== "changes only" || to - from <= 2 * around + 1) {
      for (let j = from; j < to; j++) rows.push(row(stage, j));
      return;
    }
    const head = from === 0 ? from : from + around;
    const tail = to === stage.lines.length ? to : to - around;
    for (let j = from; j < head; j++) rows.push(row(stage, j));
    rows.push({ text: `${tail - head} lines as before`, source: -1, mark: "gap" });
    for (let j = tail; j < to; j++) rows.push(row(stage, j));
  }

  // What ↑ and ↓ go to: matches of the search, lines of the selection, else changes.
  wanted() {
    if (this.lines.found) return (row) => row.text.toLowerCase().includes(this.lines.found);
    if (selection.line >= 0) return (row) => row.source === selection.line && row.mark !== "minus";
    return (row) => row.mark === "plus" || row.mark === "minus";
  }

  next(backward) { this.lines.seek(this.wanted(), backward); }

  revealSelected() {
    if (selection.line < 0) return;
    const seen = this.lines.rows.slice(this.lines.first + 8, Math.max(this.lines.first + 9, this.lines.last - 8));
    if (seen.some((row) => row.source === selection.line)) return;
    this.lines.reveal(this.lines.rows.findIndex((row) => row.source === selection.line));
  }

  tell() {
    const total = this.lines.rows.length;
    const test = this.wanted();
    const hits = this.lines.found || selection.line >= 0 ? this.lines.rows.filter(test).length : 0;
    this.count.textContent = hits || this.lines.found || selection.line >= 0 ? `${hits}/${total}` : `${total} lines`;
  }
}
