// Layouts as pictures: which thread holds an element, in which bank it lies, how accesses meet there.

function layoutsView(data) {
  const found = data.layouts;
  const view = make("div", { class: "view" });
  if (!found) { view.append(section("Layouts", note(data.missing.layouts ?? "There are none."))); return view; }
  view.append(found.registers.length ? registerLayouts(data, found.registers) : section("Tiles in registers", note("No tile has a layout.")));
  if (found.shared.length) view.append(sharedLayouts(found.shared));
  view.append(bankConflicts(data, found.accesses));
  view.shown = () => view.querySelectorAll("canvas").forEach((canvas) => canvas.redraw?.());
  themed.push(() => view.isConnected && view.shown());
  return view;
}

// (register, lane, warp, block) of each element of the first two axes: the first owner of each.
function owners(layout) {
  const rank = layout.shape.length;
  const [rows, columns] = rank === 1 ? [1, layout.shape[0]] : layout.shape.slice(-2);
  const owner = new Array(rows * columns).fill(null);
  const copies = new Uint16Array(rows * columns);
  const sections = ["registers", "lanes", "warps", "blocks"].map((name) => {
    let offsets = [new Array(rank).fill(0)];
    for (const [extent, axis, stride] of layout[name]) {
      const next = [];
      for (let v = 0; v < extent; v++) for (const at of offsets) {
        const moved = at.slice();
        if (axis >= 0) moved[axis] += v * stride;
        next.push(moved);
      }
      offsets = next;
    }
    return offsets;
  });
  // Coordinates add up without carries, and so do the places in the picture.
  const box = new Array(rank).fill(1);
  for (const name of ["registers", "lanes", "warps", "blocks"]) for (const [extent, axis] of layout[name]) if (axis >= 0) box[axis] *= extent;
  const isPadded = box.some((extent, axis) => extent > layout.shape[axis]);
  const weight = layout.shape.map((_, axis) => (axis === rank - 1 ? 1 : axis === rank - 2 ? columns : 0));
  const place = (at) => ({ at, index: at.reduce((sum, n, axis) => sum + n * weight[axis], 0), hidden: at.slice(0, -2).some((n) => n) });
  const [registers, lanes, warps, blocks] = sections.map((offsets) => offsets.map(place));
  const isPadding = (...parts) => layout.shape.some((extent, axis) => parts.reduce((sum, part) => sum + part.at[axis], 0) >= extent);
  blocks.forEach((b, block) => warps.forEach((w, warp) => lanes.forEach((l, lane) => {
    if (b.hidden || w.hidden || l.hidden) return;
    const base = b.index + w.index + l.index;
    registers.forEach((r, register) => {
      if (r.hidden || isPadded && isPadding(r, l, w, b)) return;
      const index = base + r.index;
      copies[index] += 1;
      owner[index] ??= [register, lane, warp, block];
    });
  })));
  return { rows, columns, owner, copies, warps: warps.length, registers: registers.length, blocks: blocks.length };
}

function registerLayouts(data, layouts) {
  const canvas = make("canvas", { role: "img", tabindex: "0" });
  const about = make("div", {});
  let shown = 0, by = "warp and lane", size = "fit";
  const kept = new Map();
  const buttons = layouts.map((one, i) => make("button", {
    type: "button", "aria-pressed": "false", onclick: () => { shown = i; pick(); },
  }, `${one.tile}`, make("small", {}, `${many(one.values, "value")}: ${one.operations.slice(0, 4).join(", ")}${one.operations.length > 4 ? " …" : ""}`)));
  function pick() {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === shown)));
    const one = layouts[shown];
    about.replaceChildren(make("p", { class: "mono" }, one.text),
      make("p", { class: "note" }, "registers | lanes | warps, each as extent:stride@axis. Made at ", ...one.sources.filter((s) => s >= 0).slice(0, 8).flatMap((source) => [lineLink(data, source), " "])));
    draw();
  }
  function geometry(of) {
    const wrap = of.rows === 1 ? Math.min(of.columns, 64) : of.columns;
    const rows = of.rows === 1 ? Math.ceil(of.columns / wrap) : of.rows;
    const room = Math.max(200, (box.clientWidth || 760) - 2);
    const cell = size === "fit" ? Math.max(2, Math.min(34, room / wrap)) : size === "small" ? 6 : 34;
    return { wrap, rows, cell, high: Math.max(2, Math.min(cell, 18)) };
  }
  function draw() {
    if (!kept.has(shown)) kept.set(shown, owners(layouts[shown]));
    const of = kept.get(shown), { wrap, rows, cell, high } = geometry(of);
    const ratio = Math.min(devicePixelRatio || 1, 8000 / (wrap * cell), 8000 / (rows * high));
    canvas.style.width = `${wrap * cell}px`;
    canvas.style.height = `${rows * high}px`;
    canvas.width = Math.ceil(wrap * cell * ratio);
    canvas.height = Math.ceil(rows * high * ratio);
    canvas.setAttribute("aria-label", `${layouts[shown].tile}: ${of.registers} registers of each thread of ${of.warps} warps`);
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = `9px ${css("--mono")}`;
    c.textAlign = "center";
    c.textBaseline = "middle";
    const light = css("--light"), text = css("--text"), edge = css("--panel");
    for (let i = 0; i < of.owner.length; i++) {
      const owner = of.owner[i];
      const x = (i % wrap) * cell, y = Math.floor(i / wrap) * high;
      if (!owner) continue;
      const [register, lane, warp] = owner;
      const [h, s, l] = {
        "warp and lane": [(warp * 360 / Math.max(1, of.warps)) % 360, 50, null],
        warp: [(warp * 360 / Math.max(1, of.warps)) % 360, 55, 0],
        lane: [lane * 360 / 32, 60, 0],
        register: [215 + 110 * register / Math.max(1, of.registers), 60, 0],
      }[by];
      const shade = parseFloat(light) + (l === null ? ((lane % 8) - 3.5) * 2.4 : 0);
      c.fillStyle = `hsl(${h} ${s}% ${shade}%)`;
      c.fillRect(x, y, cell - (cell > 6 ? 0.7 : 0), high - (high > 6 ? 0.7 : 0));
      if (cell >= 26) { c.fillStyle = text; c.fillText(of.warps > 1 && size === "large" ? `${warp}.${lane}.${register}` : `${lane}:${register}`, x + cell / 2, y + high / 2); }
    }
    if (cell < 26 && of.rows > 1) {
      c.fillStyle = edge;
      c.globalAlpha = 0.6;
      for (let row = 16; row < of.rows; row += 16) c.fillRect(0, row * high - 0.5, wrap * cell, 1);
      for (let column = 16; column < wrap; column += 16) c.fillRect(column * cell - 0.5, 0, 1, rows * high);
      c.globalAlpha = 1;
    }
  }
  canvas.addEventListener("pointermove", (event) => {
    const of = kept.get(shown), { wrap, cell, high } = geometry(of);
    const i = Math.floor(event.offsetY / high) * wrap + Math.floor(event.offsetX / cell);
    const owner = of.owner[i];
    if (!owner) { tip.hide(); return; }
    const [register, lane, warp, block] = owner;
    const where = of.rows === 1 ? `element ${i}` : `row ${Math.floor(i / of.columns)}, column ${i % of.columns}`;
    tip.show(`${where}\nregister ${register} of lane ${lane}, warp ${warp}${of.blocks > 1 ? `, block ${block} of the cluster` : ""}${of.copies[i] > 1 ? `\nand ${many(of.copies[i] - 1, "other copy").replace("copys", "copies")}` : ""}`, event);
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.redraw = () => draw();
  const box = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Picture of the layout" }, canvas);
  const bar = make("div", { class: "bar" }, choice("Colour", ["warp and lane", "warp", "lane", "register"], by, (name) => { by = name; draw(); }),
    make("span", { class: "grow" }), choice("Size", ["fit", "small", "large"], size, (name) => { size = name; draw(); }));
  const panel = section("Tiles in registers: which thread holds an element", make("div", { class: "side" },
    make("div", { class: "list", role: "group", "aria-label": "Layouts" }, ...buttons), make("div", { class: "view" }, bar, about, box)));
  pick();
  return panel;
}

function sharedLayouts(layouts) {
  const box = make("div", { class: "banks" });
  for (const one of layouts) {
    const canvas = make("canvas", { role: "img", "aria-label": `Banks of ${one.tile}, ${one.text}` });
    const rows = one.banks.length, columns = one.banks[0].length;
    const draw = () => {
      const shown = Math.min(rows, 32), high = Math.max(5, Math.min(16, 256 / shown));
      const c = prepared(canvas, shown * high);
      const cell = canvas.clientWidth / columns;
      c.font = `9px ${css("--mono")}`;
      c.textAlign = "center";
      c.textBaseline = "middle";
      for (let y = 0; y < shown; y++) for (let x = 0; x < columns; x++) {
        const bank = one.banks[y][x];
        c.fillStyle = `hsl(${bank * 360 / 32} 58% ${css("--light")})`;
        c.fillRect(x * cell, y * high, cell - 0.4, high - 0.4);
        if (cell >= 14 && high >= 10) { c.fillStyle = css("--text"); c.fillText(String(bank), x * cell + cell / 2, y * high + high / 2); }
      }
    };
    canvas.redraw = draw;
    canvas.addEventListener("pointermove", (event) => {
      const shown = Math.min(rows, 32), y = Math.floor(event.offsetY / canvas.clientHeight * shown), x = Math.floor(event.offsetX / canvas.clientWidth * columns);
      if (one.banks[y]?.[x] === undefined) return;
      const each = Math.max(1, 32 / one.bits);
      tip.show(`row ${y}, elements ${x * each} – ${x * each + each - 1}\nbank ${one.banks[y][x]}`, event);
    });
    canvas.addEventListener("pointerleave", () => tip.hide());
    box.append(make("figure", { class: "view" }, make("figcaption", { class: "mono" }, `${one.tile}: ${one.text}`), canvas));
  }
  return section("Tiles in shared memory: the bank of each word", note("Rows of the fastest axis, 4 bytes a cell, the first 32 rows. Equal colours in a column are one bank: threads that read down it would take turns."), box);
}

function bankConflicts(data, accesses) {
  if (!accesses.length) return section("Bank conflicts", note("No tile moves between registers and shared memory: copies and tensor cores read it by themselves."));
  const worst = Math.max(...accesses.map((a) => a.degree));
  const box = make("div", { class: "banks" });
  for (const a of accesses.slice(0, 24)) {
    const canvas = make("canvas", { role: "img", "aria-label": `${a.operation} of ${a.tile}: ${a.degree} passes` });
    const deep = Math.max(1, ...a.lanes.map((words) => words.length));
    canvas.redraw = () => {
      const high = Math.max(10, Math.min(20, 150 / deep)), c = prepared(canvas, deep * high + 16), cell = canvas.clientWidth / 32;
      c.font = `9px ${css("--mono")}`;
      c.textAlign = "center";
      c.textBaseline = "middle";
      a.lanes.forEach((words, bank) => {
        words.forEach((lanes, i) => {
          c.fillStyle = words.length > 1 ? `hsl(4 65% ${css("--light")})` : `hsl(150 35% ${css("--light")})`;
          c.fillRect(bank * cell, i * high, cell - 1, high - 1);
          c.fillStyle = css("--text");
          if (cell > 12) c.fillText(lanes.length > 1 ? `${lanes[0]}+` : String(lanes[0]), bank * cell + cell / 2, i * high + high / 2);
        });
        c.fillStyle = css("--faint");
        if (bank % 4 === 0) c.fillText(String(bank), bank * cell + cell / 2, deep * high + 9);
      });
    };
    canvas.addEventListener("pointermove", (event) => {
      const bank = Math.floor(event.offsetX / canvas.clientWidth * 32), words = a.lanes[bank] ?? [];
      tip.show(`bank ${bank}: ${many(words.length, "word")} wanted\n${words.map((lanes) => `lanes ${lanes.join(", ")}`).join("\n")}`, event);
    });
    canvas.addEventListener("pointerleave", () => tip.hide());
    box.append(make("figure", { class: "view" },
      make("figcaption", {}, make("b", {}, a.degree === 1 ? `${a.operation}: no conflict` : `${a.operation}: ${a.degree} passes`), ` ${a.tile}, ${a.instruction} `, ...a.sources.filter((s) => s >= 0).slice(0, 3).flatMap((source) => [lineLink(data, source), " "]), make("div", { class: "mono note" }, a.memory)),
      canvas));
  }
  return section(worst > 1 ? "Bank conflicts" : "Bank conflicts: none", note("The phase of each access that takes most passes: a column is a bank, a cell a word that lanes (their numbers) want of it. More than one cell in a column is read one after the other."), box);
}
