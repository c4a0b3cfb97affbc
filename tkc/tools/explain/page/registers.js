// Registers by life: of the machine code, and tiles by the IR.

function registersView(data) {
  const r = data.registers;
  const view = make("div", { class: "view" });
  if (!r) { view.append(section("Registers", note(data.missing.registers ?? "There are none."))); return view; }
  const drawn = [];
  if (r.machine) view.append(machineLives(data, r.machine, drawn));
  else view.append(section("Registers of the machine code", note(data.missing.lives ?? data.missing.sass ?? "There is no machine code.")));
  if (r.tiles.length) view.append(tileLives(data, r, drawn));
  view.shown = () => { for (const draw of drawn) draw(); };
  themed.push(() => view.isConnected && view.shown());
  addEventListener("resize", () => view.isConnected && view.shown());
  selection.follow(() => view.isConnected && view.shown());
  return view;
}

function machineLives(data, machine, drawn) {
  const sass = data.stages.find((stage) => stage.kind === "sass");
  const instructions = [];
  sass?.lines.forEach((text, i) => { if (data.texts[text].trimStart().startsWith("/*")) instructions.push({ text: data.texts[text].trim(), source: sass.source[i] }); });
  const total = machine.live.length, given = data.launch?.granted ?? 255;
  const canvas = make("canvas", { role: "img", "aria-label": `Live registers over ${total} instructions` });
  const CURVE = 110, EACH = Math.max(1, Math.min(4, Math.floor(420 / machine.stretches.length)));
  const zoom = new Zoom(canvas, total, draw, { left: 44 });
  zoom.least = 20;
  function draw() {
    const height = CURVE + 14 + EACH * machine.stretches.length + 18, c = prepared(canvas, height), width = canvas.clientWidth;
    c.font = `11px ${css("--sans")}`;
    c.textBaseline = "middle";
    const top = Math.max(given, ...machine.live), y = (n) => CURVE - n / top * (CURVE - 8);
    c.textAlign = "right";
    for (const n of marks(0, top, 4)) { c.fillStyle = css("--line"); c.fillRect(44, y(n), width - 44, 1); c.fillStyle = css("--soft"); c.fillText(String(n), 38, y(n)); }
    const each = zoom.width / (zoom.to - zoom.from);
    for (let i = Math.floor(zoom.from); i < Math.min(total, zoom.to + 1); i++) {
      const source = instructions[i]?.source ?? -1;
      c.fillStyle = selection.line >= 0 ? (source === selection.line ? css("--pick-edge") : css("--line")) : lineColour(source);
      c.fillRect(zoom.x(i), y(machine.live[i]), Math.max(0.7, each), CURVE - y(machine.live[i]));
    }
    c.fillStyle = css("--bad");
    c.fillRect(44, y(given), width - 44, 1);
    c.textAlign = "left";
    c.fillText(data.launch?.granted > data.launch?.registers ? `${given} given to a thread of the role that has most` : `${given} given to a thread`, 48, y(given) + (y(given) < 12 ? 9 : -7));
    machine.stretches.forEach((stretches, register) => {
      const at = CURVE + 14 + register * EACH;
      for (const [from, to] of stretches) {
        if (to < zoom.from || from > zoom.to) continue;
        const source = instructions[from]?.source ?? -1;
        c.fillStyle = selection.line >= 0 ? (source === selection.line ? css("--pick-edge") : css("--line")) : lineColour(source);
        const x = Math.max(44, zoom.x(from));
        c.fillRect(x, at, Math.max(0.8, zoom.x(to + 1) - x - (each > 4 ? 1 : 0)), EACH - (EACH > 2 ? 0.6 : 0));
      }
    });
    c.fillStyle = css("--soft");
    c.textAlign = "right";
    for (let register = 0; register < machine.stretches.length; register += 32) c.fillText(`R${register}`, 38, CURVE + 14 + register * EACH + 4);
    c.textAlign = "center";
    for (const n of marks(zoom.from, zoom.to)) if (zoom.x(n) > 60 && zoom.x(n) < width - 30) c.fillText(Math.round(n).toLocaleString("en"), zoom.x(n), height - 8);
  }
  canvas.addEventListener("pointermove", (event) => {
    const i = Math.floor(zoom.at(event));
    if (event.buttons || i < 0 || i >= total || event.offsetX < 44) { tip.hide(); return; }
    const register = Math.floor((event.offsetY - CURVE - 14) / EACH);
    const held = machine.stretches[register]?.find(([from, to]) => from <= i && i <= to);
    const where = instructions[i]?.source >= 0 ? `\nline ${data.sourceLines[instructions[i].source].line}: ${data.sourceLines[instructions[i].source].text.trim()}` : "";
    tip.show(`${machine.live[i]} registers live at instruction ${i}\n${instructions[i]?.text ?? ""}${where}${held ? `\nR${register}: instructions ${held[0]} – ${held[1]}, from ${instructions[held[0]]?.text ?? ""}` : ""}`, event);
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("click", (event) => {
    const i = Math.floor(zoom.at(event));
    if (!zoom.dragged && instructions[i]?.source >= 0) selection.set(instructions[i].source, "toggle");
  });
  drawn.push(draw);
  const spills = data.launch?.spills?.[0] ? ` Spilled: ${data.launch.spills[0]} bytes out, ${data.launch.spills[1]} in.` : "";
  return section(`Registers of the machine code: at most ${Math.max(...machine.live)} live of ${given}`,
    note(`Across: the instructions. Above, how many registers of a thread are live; below, each register while it holds something. The colour is the source line that wrote it. Wheel or + and − zoom.${spills}`), canvas);
}

function tileLives(data, r, drawn) {
  const tiles = r.tiles.map(([name, registers, begin, end, maker, user, source]) => ({ name, registers, begin, end: Math.max(end, begin + 1), maker, user, source }));
  const placed = [];
  for (const t of [...tiles].sort((a, b) => b.end - b.begin - (a.end - a.begin) || b.registers - a.registers)) {
    const taken = placed.filter((p) => p.begin < t.end && t.begin < p.end).sort((a, b) => a.at - b.at);
    t.at = 0;
    for (const p of taken) { if (t.at + t.registers <= p.at) break; t.at = Math.max(t.at, p.at + p.registers); }
    placed.push(t);
  }
  const most = Math.max(...placed.map((t) => t.at + t.registers));
  const canvas = make("canvas", { role: "img", "aria-label": `Lives of ${tiles.length} tiles` });
  const zoom = new Zoom(canvas, r.length, draw, { left: 44 });
  zoom.least = 8;
  const H = 300;
  const y = (n) => H - n / most * (H - 8);
  function draw() {
    const c = prepared(canvas, H + 20), width = canvas.clientWidth;
    c.font = `11px ${css("--sans")}`;
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (const n of marks(0, most, 4)) { c.fillStyle = css("--line"); c.fillRect(44, y(n), width - 44, 1); c.fillStyle = css("--soft"); c.fillText(String(n), 38, y(n)); }
    c.save();
    c.beginPath();
    c.rect(44, 0, width - 44, H);
    c.clip();
    for (const t of placed) {
      const x = zoom.x(t.begin), w = Math.max(1, zoom.x(t.end) - x - 1), tall = Math.max(1.5, y(t.at) - y(t.at + t.registers) - 1);
      c.fillStyle = selection.line >= 0 && t.source !== selection.line ? css("--line") : `hsl(${hue(Math.max(0, t.source))} 45% ${css("--light")})`;
      c.fillRect(x, y(t.at + t.registers), w, tall);
      c.strokeStyle = t.source === selection.line && t.source >= 0 ? css("--pick-edge") : css("--strong");
      c.lineWidth = 0.6;
      c.strokeRect(x, y(t.at + t.registers), w, tall);
      if (tall > 12) {
        const label = clipped(c, t.name ? `%${t.name}` : t.maker, w - 6);
        c.fillStyle = css("--text");
        c.textAlign = "left";
        if (label) c.fillText(label, Math.max(46, x + 3), y(t.at + t.registers) + tall / 2);
      }
    }
    c.restore();
    c.fillStyle = css("--soft");
    c.textAlign = "center";
    for (const n of marks(zoom.from, zoom.to)) if (zoom.x(n) > 60) c.fillText(Math.round(n).toLocaleString("en"), zoom.x(n), H + 11);
  }
  const under = (event) => { const at = zoom.at(event); return placed.find((t) => at >= t.begin && at <= t.end && event.offsetY >= y(t.at + t.registers) && event.offsetY <= y(t.at)); };
  canvas.addEventListener("pointermove", (event) => {
    const t = event.buttons ? null : under(event);
    if (!t) { tip.hide(); return; }
    const line = t.source >= 0 ? `\nline ${data.sourceLines[t.source].line}: ${data.sourceLines[t.source].text.trim()}` : "";
    tip.show(`${t.name ? `%${t.name}, ` : ""}made by ${t.maker}, last read by ${t.user}\n${many(t.registers, "register")} of each thread, operations ${t.begin} – ${t.end}${line}`, event);
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("click", (event) => { const t = under(event); if (!zoom.dragged && t && t.source >= 0) selection.set(t.source, "toggle"); });
  drawn.push(draw);
  return section("Tiles by life, as the IR has them", note("Across: the operations of the last IR; up: 32-bit registers of a thread. What a loop carries is drawn as its start, its body and its result, though these share their registers, so the sum here is an upper bound."), canvas);
}
