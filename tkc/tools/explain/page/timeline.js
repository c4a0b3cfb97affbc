// Which warpgroup uses which engine when, by the compiler's model of a multiprocessor.

function timelineView(data) {
  const line = data.timeline;
  if (!line || !line.segments.length) return make("div", { class: "view" }, section("Timeline", note(data.missing.timeline ?? "The model saw no work.")));
  const names = line.engines;
  const segments = line.segments.map(([agent, engine, what, begin, end, clocks]) =>
    ({ agent, engine: names[engine], what: line.names[what], begin, end, clocks: clocks.map(([e, c]) => [names[e], c]) }));
  const canvas = make("canvas", { role: "img", "aria-label": "Timeline of a block; wheel or + and − zoom, drag or arrow keys move" });
  const small = make("canvas", { "aria-hidden": "true" });
  const detail = make("p", { class: "note", "aria-live": "polite" });
  let by = "by warpgroup";
  let lanes = [];
  const LANE = 24;
  const LABEL = Math.min(200, 66 + 6.4 * Math.max(...line.agents.map((name) => name.length)));
  const kinds = [["dots", ["tensor"]], ["work", ["mufu", "fma", "alu", "lsu", "shared", "issue"]], ["copies", ["copy"]], ["waits", ["wait"]]];

  function layOut() {
    lanes = [];
    if (by === "by warpgroup") {
      line.agents.forEach((name, agent) => {
        for (const [kind, engines] of kinds) {
          const here = segments.filter((s) => s.agent === agent && engines.includes(s.engine));
          if (here.length) lanes.push({ label: `${name}`, kind, parts: here.map((s) => [s, 0, 1]), first: !lanes.some((lane) => lane.label === name), thin: kind === "waits" });
        }
      });
      return;
    }
    for (const engine of names) {
      if (engine === "wait") continue;
      const users = segments.filter((s) => s.engine === engine || s.clocks.some(([e]) => e === engine));
      const agents = [...new Set(users.map((s) => s.agent))].sort((a, b) => a - b);
      if (!users.length) continue;
      lanes.push({
        label: ENGINE_TEXT[engine], kind: "", first: true, agents,
        parts: users.map((s) => {
          const clocks = s.clocks.find(([e]) => e === engine)?.[1] ?? s.end - s.begin;
          return [s, agents.indexOf(s.agent) / agents.length, 1 / agents.length, Math.min(1, clocks / (s.end - s.begin))];
        }),
      });
    }
  }
  const agentColour = (agent) => `hsl(${hue(agent)} 45% ${document.documentElement.dataset.theme === "dark" ? 66 : 46}%)`;
  for (const one of segments) one.length = one.end - one.begin;
  layOut();

  const zoom = new Zoom(canvas, Math.max(line.end, ...segments.map((s) => s.end)), draw, { left: LABEL });
  const period = line.steady[1] - line.steady[0];
  const fit = () => zoom.show(0, zoom.end);
  const steady = (n) => zoom.show(line.steady[0], line.steady[0] + n * period);

  function draw() {
    const high = (lane) => (lane.thin ? LANE * 0.55 : lane.agents ? Math.max(LANE, 13 * lane.agents.length) : LANE);
    const height = lanes.reduce((sum, lane) => sum + high(lane) + 3, 0) + 30;
    const c = prepared(canvas, height);
    const width = canvas.clientWidth;
    const inside = css("--panel"), text = css("--text"), soft = css("--soft"), edge = css("--line"), colours = {};
    for (const name of names) colours[name] = css(`--${name}`);
    c.font = `11px ${css("--sans")}`;
    c.textBaseline = "middle";
    if (period > 0) {
      c.fillStyle = css("--raised");
      const [a, b] = [zoom.x(line.steady[0]), zoom.x(line.steady[1])];
      c.fillRect(Math.max(LABEL, a), 0, Math.max(0, Math.min(width, b) - Math.max(LABEL, a)), height - 22);
    }
    for (const at of marks(zoom.from, zoom.to)) {
      const x = zoom.x(at);
      c.fillStyle = edge;
      c.fillRect(x, 0, 1, height - 22);
      c.fillStyle = soft;
      c.textAlign = "center";
      if (x > LABEL + 20 && x < width - 24) c.fillText(Math.round(at).toLocaleString("en"), x, height - 12);
    }
    c.textAlign = "right";
    c.fillText("clocks", LABEL - 8, height - 12);
    let y = 2;
    for (const lane of lanes) {
      const h = high(lane);
      [lane.y, lane.h] = [y, h];
      c.textAlign = "left";
      c.fillStyle = lane.first ? text : soft;
      if (lane.first) c.fillText(clipped(c, lane.label, LABEL - (lane.kind ? 52 : 8)), 2, y + h / 2);
      c.textAlign = "right";
      c.fillStyle = soft;
      c.fillText(lane.kind, LABEL - 8, y + h / 2);
      c.save();
      c.beginPath();
      c.rect(LABEL, y, width - LABEL, h);
      c.clip();
      let covered = -1;
      for (const [s, top, share, fill = 1] of lane.parts) {
        if (s.end < zoom.from || s.begin > zoom.to) continue;
        const x = zoom.x(s.begin), w = Math.max(0.6, zoom.x(s.end) - x);
        if (w < 1 && x < covered && by === "by warpgroup") continue;
        covered = x + w;
        const full = h * share, tall = Math.max(1, full * fill);
        c.fillStyle = by === "by warpgroup" ? colours[s.engine] : agentColour(s.agent);
        c.fillRect(x, y + h * top + (full - tall), Math.max(0.6, w - (w > 3 ? 0.7 : 0)), tall);
        if (s === chosen) { c.strokeStyle = text; c.lineWidth = 2; c.strokeRect(x + 1, y + h * top + 1, w - 2, full - 2); }
        if (w > 34 && tall > 9) {
          c.fillStyle = s.engine === "wait" ? text : inside;
          c.textAlign = "center";
          const middle = (Math.max(x, LABEL) + Math.min(x + w, width)) / 2;
          const label = by === "by warpgroup" ? s.what : line.agents[s.agent];
          c.fillText(clipped(c, label, Math.min(w, width - LABEL) - 6), middle, y + h * top + full - tall / 2 + 0.5);
        }
      }
      c.restore();
      y += h + 3;
    }
    c.fillStyle = css("--pick-edge");
    for (const start of line.starts) {
      const x = zoom.x(start);
      if (x >= LABEL) c.fillRect(x, 0, 1.5, height - 22);
    }
    overview();
  }

  function overview() {
    const c = prepared(small, 26), width = small.clientWidth - LABEL;
    const x = (t) => LABEL + t / zoom.end * width;
    const shade = new Float32Array(Math.max(1, Math.ceil(width)));
    for (const s of segments) {
      if (s.engine === "wait" || s.engine === "copy") continue;
      const a = Math.floor(s.begin / zoom.end * width), b = Math.min(shade.length - 1, Math.floor(s.end / zoom.end * width));
      for (let i = a; i <= b; i++) shade[i] += s.engine === "tensor" ? 1 : 0.4;
    }
    c.fillStyle = css("--tensor");
    shade.forEach((value, i) => { c.globalAlpha = Math.min(0.75, value / 3); c.fillRect(LABEL + i, 4, 1, 18); });
    c.globalAlpha = 1;
    c.strokeStyle = css("--accent");
    c.lineWidth = 1.5;
    c.strokeRect(x(zoom.from) + 0.75, 1, Math.max(3, x(zoom.to) - x(zoom.from) - 1.5), 24);
    c.fillStyle = css("--soft");
    c.font = `11px ${css("--sans")}`;
    c.textBaseline = "middle";
    c.fillText("all of it", 2, 13);
  }
  const jump = (event) => {
    const t = (event.offsetX - LABEL) / Math.max(1, small.clientWidth - LABEL) * zoom.end;
    const half = (zoom.to - zoom.from) / 2;
    zoom.show(Math.max(0, t - half), Math.max(0, t - half) + 2 * half);
  };
  small.addEventListener("pointerdown", (event) => { small.setPointerCapture(event.pointerId); jump(event); });
  small.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });

  let chosen = null;
  function under(event) {
    const y = event.offsetY, t = zoom.at(event), slack = (zoom.to - zoom.from) / zoom.width;
    const lane = lanes.find((one) => y >= one.y && y <= one.y + one.h);
    if (!lane || event.offsetX < LABEL) return null;
    const hit = lane.parts.filter(([s, top, share]) => t >= s.begin - slack && t <= s.end + slack && (y - lane.y) / lane.h >= top && (y - lane.y) / lane.h <= top + share);
    return hit.sort((a, b) => a[0].length - b[0].length)[0]?.[0] ?? null;
  }
  function told(s) {
    const used = s.clocks.filter(([e]) => e !== s.engine || s.clocks.length > 1).map(([e, c]) => `${e} ${Math.round(c)}`).join(", ");
    return `${line.agents[s.agent]}: ${s.what || s.engine}\n${s.engine}, ${Math.round(s.begin).toLocaleString("en")} – ${Math.round(s.end).toLocaleString("en")}: ${Math.round(s.length).toLocaleString("en")} clocks${used ? `\nclocks of each engine: ${used}` : ""}`;
  }
  canvas.addEventListener("pointermove", (event) => {
    const s = event.buttons ? null : under(event);
    if (s) tip.show(told(s), event);
    else tip.hide();
    canvas.style.cursor = s ? "pointer" : "grab";
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("click", (event) => {
    if (zoom.dragged) return;
    chosen = under(event);
    detail.textContent = chosen ? told(chosen).replaceAll("\n", " · ") : "";
    draw();
  });

  const button = (text, action, title) => make("button", { type: "button", onclick: action, title }, text);
  const bar = make("div", { class: "bar" },
    choice("Rows", ["by warpgroup", "by engine"], by, (name) => { by = name; layOut(); explainColours(); draw(); }),
    make("span", { class: "grow" }),
    button("−", () => zoom.scale(1 / 0.6), "Zoom out"), button("+", () => zoom.scale(0.6), "Zoom in"),
    button("All", fit, "From the first operation to the last"),
    period > 0 ? button("One iteration", () => steady(1), "A steady iteration of the loop that takes longest") : null,
    period > 0 ? button("Three", () => steady(Math.min(3, Math.floor((zoom.end - line.steady[0]) / period)))) : null);
  const key = make("p", {});
  function explainColours() {
    const pairs = by === "by warpgroup"
      ? names.filter((name) => segments.some((s) => s.engine === name)).map((name) => [`var(--${name})`, ENGINE_TEXT[name]])
      : line.agents.map((name, agent) => [agentColour(agent), name]);
    key.replaceChildren(...pairs.map(([colour, text]) => {
      const square = make("i");
      square.style.background = colour;
      return make("span", { class: "key" }, square, text);
    }));
  }
  explainColours();
  const intro = "Level 4 executed in time: the first programs of one multiprocessor. The shaded stretch is a steady iteration; upright lines are where programs begin. Wheel or + and − zoom, drag or arrow keys move.";
  const shares = line.shares.filter(([, share]) => share >= 0.005);
  const bars = tabled([["engine", ""], ["busy", "number"], ["", ""]], shares.map(([name, share]) => {
    const fill = make("i");
    fill.style.cssText = `width:${Math.min(100, 100 * share)}%;background:var(--${name})`;
    return { cells: [ENGINE_TEXT[name] ?? name, percent(share), make("div", { class: "stack" }, fill)] };
  }));
  const p = data.prediction;
  const numbers = tabled([["of the launch", ""], ["", "number"]], [
    ["predicted", time(p.seconds)], ["limited by", p.limit === "memory" ? "memory" : "the multiprocessor"],
    ["memory alone", time(p.memory)], ["clocks of the busiest multiprocessor", Math.round(p.clocks).toLocaleString("en")],
    ["clock", `${digits(p.clock)} GHz`], ["tensor cores' share of the time", percent(p.tensor)],
    ["programs", p.programs.toLocaleString("en")], ["rounds of them", digits(p.rounds)],
    ["clocks of a program besides its loops", Math.round(p.fixed).toLocaleString("en")], ["clocks of an iteration with dots", Math.round(p.step).toLocaleString("en")],
  ].map((cells) => ({ cells })));
  const view = make("div", { class: "view" },
    make("section", { class: "panel block" }, bar, note(intro), key, small, canvas, detail, line.cut ? note("Only the first part is shown.") : null),
    make("div", { class: "columns" }, section("What it adds up to", numbers), period > 0 ? section("Busy in a steady iteration", bars) : section("Busy in a steady iteration", note("No loop of it runs long enough to have one."))));
  view.shown = () => {
    if (!view.ready) { view.ready = true; if (period > 0 && zoom.end > 24 * period) steady(Math.min(16, (zoom.end - line.steady[0]) / period)); else fit(); }
    else draw();
  };
  themed.push(() => view.ready && draw());
  addEventListener("resize", () => view.isConnected && view.ready && draw());
  return view;
}

const ENGINE_TEXT = {
  tensor: "tensor cores", mufu: "special functions", fma: "multiply-adds", alu: "other arithmetic", lsu: "loads, shuffles",
  shared: "shared memory", copy: "copies", issue: "issue", wait: "waiting",
};

function clipped(c, text, width) {
  if (!text || width < 14) return "";
  if (c.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && c.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return end > 1 ? `${text.slice(0, end)}…` : "";
}
