// Shared memory: where buffers lie, and from when to when each is in use.

function memoryView(data) {
  const m = data.memory;
  if (!m) return make("div", { class: "view" }, section("Shared memory", note(data.missing.memory ?? "The kernel uses none.")));
  const all = m.buffers.every((b) => b.begin === 0 && b.end >= m.length - 1);
  const used = Math.max(...m.buffers.map((b) => b.offset + b.bytes));
  const figure = make("figure", {});
  let full = true;
  let lit = -1;
  function draw() {
    const W = 1180, L = 8, rows = all ? 1 : 0, H = all ? 74 : 300, T = 22;
    const end = full ? m.most : used;
    const x = (byte) => L + byte / end * (W - 2 * L);
    const y = (op) => T + (rows ? 0 : op / m.length * H);
    const svg = make("svg", { viewBox: `0 0 ${W} ${T + H + 24}`, role: "img", "aria-label": `Map of ${bytes(used)} of shared memory` });
    svg.append(make("rect", { x: L, y: T, width: W - 2 * L, height: H, fill: css("--raised"), rx: 3 }));
    const step = marks(0, end / 1024, 10);
    for (const at of step) svg.append(make("line", { x1: x(at * 1024), x2: x(at * 1024), y1: T - 4, y2: T + H, stroke: css("--line") }), make("text", { x: x(at * 1024), y: 12, "text-anchor": at ? "middle" : "start" }, `${at} KiB`));
    m.buffers.forEach((b, i) => {
      const g = make("g", { tabindex: "0", role: "button", "aria-label": `${b.name}, ${bytes(b.bytes)} at ${b.offset}` });
      const top = y(b.begin), tall = Math.max(2, rows ? H : y(b.end + 1) - top), wide = Math.max(1, x(b.offset + b.bytes) - x(b.offset));
      const colour = `hsl(${(i * 67 + 205) % 360} 45% ${css("--light")})`;
      g.append(make("rect", { x: x(b.offset), y: top, width: wide, height: tall, fill: colour, stroke: lit === i ? css("--pick-edge") : css("--strong"), "stroke-width": lit === i ? 2.5 : 0.8, rx: 2 }));
      for (let s = 1; s < b.stages; s++) {
        const at = x(b.offset + s * b.bytes / b.stages);
        g.append(make("line", { x1: at, x2: at, y1: top, y2: top + tall, stroke: css("--strong"), "stroke-width": 0.8, "stroke-dasharray": "2 2" }));
      }
      if (wide > 46 && tall > 14) {
        const text = make("text", { x: x(b.offset) + 5, y: top + Math.min(16, tall / 2 + 4), class: "strong" }, `${b.name}${b.stages > 1 ? ` × ${b.stages}` : ""}`);
        g.append(text);
        if (wide > 110 && tall > 32) g.append(make("text", { x: x(b.offset) + 5, y: top + 31 }, b.what.split(",")[0]));
        if (wide > 110 && tall > 46) g.append(make("text", { x: x(b.offset) + 5, y: top + 46 }, bytes(b.bytes)));
      }
      const told = `${b.name}: ${b.what}\n${bytes(b.bytes)} at ${b.offset.toLocaleString("en")}${b.stages > 1 ? `, ${b.stages} stages of ${bytes(b.bytes / b.stages)}` : ""}\nused by ${[...new Set(b.uses.map(([name]) => name))].join(", ") || "nothing"}`;
      g.addEventListener("pointermove", (event) => tip.show(told, event));
      g.addEventListener("pointerleave", () => tip.hide());
      const pick = () => { lit = i; draw(); mark(); const line = b.uses.find(([, source]) => source >= 0)?.[1]; if (line >= 0) selection.set(line, "memory"); };
      g.addEventListener("click", pick);
      g.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
      svg.append(g);
    });
    const free = m.most - used;
    if (full && x(m.most) - x(used) > 60) svg.append(make("text", { x: (x(used) + x(m.most)) / 2, y: T + H / 2 + 4, "text-anchor": "middle" }, `${bytes(free)} free`));
    svg.append(make("text", { x: L, y: T + H + 17 }, all ? "every buffer is in use from the first operation to the last" : "down: the operations in program order; buffers that are never in use together share bytes"));
    figure.replaceChildren(svg);
  }
  const rows = m.buffers.map((b, i) => ({
    cells: [
      make("b", {}, b.name), make("span", { class: "mono" }, b.what), b.offset.toLocaleString("en"), b.bytes.toLocaleString("en"), String(b.stages),
      all ? "all through" : `${b.begin} – ${b.end}`,
      b.uses.flatMap(([name, source]) => [make("code", {}, name), " ", lineLink(data, source), "  "]),
    ],
  }));
  const table = tabled([["buffer", ""], ["tile and layout", ""], ["at", "number"], ["bytes", "number"], ["stages", "number"], ["operations", ""], ["used by", ""]], rows);
  function mark() { table.querySelectorAll("tbody tr").forEach((row, i) => row.classList.toggle("pick", i === lit || m.buffers[i].uses.some(([, source]) => source >= 0 && source === selection.line))); }
  selection.follow(mark);
  themed.push(draw);
  draw();
  return make("div", { class: "view" },
    section(`Shared memory: ${bytes(used)} of ${bytes(m.most)}`,
      make("div", { class: "bar" }, choice("Scale", ["all a block may have", "what is used"], "all a block may have", (name) => { full = name.startsWith("all"); draw(); })), figure),
    section("Buffers", table));
}
