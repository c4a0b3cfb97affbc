// Roofline: what the device could do at most, what is predicted, what was measured.

function speedView(data) {
  const r = data.roofline;
  const view = make("div", { class: "view" });
  const times = [
    ["by the roofs", r?.bound, "--strong"], ["predicted", data.prediction?.seconds, "--accent"], ["measured", data.measured, "--good"],
  ].filter(([, seconds]) => seconds);
  if (r && times.length) {
    const moves = !r.operations || !r.bytes; // only: there is no ratio to draw
    const drawn = () => (moves ? note(`The launch computes nothing that is counted: it moves ${amount(r.bytes, "B")}.`) : picture(r, data));
    const figure = make("figure", {}, drawn());
    themed.push(() => figure.replaceChildren(drawn()));
    const longest = Math.max(...times.map(([, seconds]) => seconds));
    const bars = tabled([["", ""], ["time", "number"], ["of the roofs", "number"], ["", ""]], times.map(([name, seconds, colour]) => {
      const fill = make("i");
      fill.style.cssText = `width:${100 * seconds / longest}%;background:var(${colour})`;
      return { cells: [name, time(seconds), percent(r.bound / seconds), make("div", { class: "stack" }, fill)] };
    }));
    const work = tabled([["the launch", ""], ["", "number"]], [
      ["operations", amount(r.operations, "op")], ["on tensor cores", percent(r.operations ? r.tensor / r.operations : 0)],
      ["bytes to and from memory, by the model", amount(r.bytes, "B")], ["operations a byte", digits(r.operations / Math.max(1, r.bytes))],
    ].map((cells) => ({ cells })));
    view.append(make("div", { class: "columns" },
      section("Roofline", note("Both axes are logarithmic. A launch right under a slope waits for that memory, one under a level for that engine; the distance is what is left."), figure),
      make("div", { class: "view" }, section("Time", bars, data.missing.measured ? note(`Not measured: ${data.missing.measured}.`) : null), section("Work", work))));
  } else {
    view.append(section("Roofline", note(data.missing.roofline ?? data.missing.timeline ?? "There is nothing to draw.")));
    if (data.measured) view.append(section("Measured", note(time(data.measured))));
  }
  if (data.times.length) {
    const longest = Math.max(...data.times.map(([, seconds]) => seconds));
    view.append(section(`Compiled in ${time(data.times.reduce((sum, [, s]) => sum + s, 0))}`,
      tabled([["step", ""], ["time", "number"], ["", ""]], data.times.map(([step, seconds]) => {
        const fill = make("i");
        fill.style.cssText = `width:${100 * seconds / longest}%;background:var(--strong)`;
        return { cells: [make("code", {}, step), time(seconds), make("div", { class: "stack" }, fill)] };
      }))));
  }
  return view;
}

function picture(r, data) {
  const W = 720, H = 400, L = 64, B = 46, T = 16, R = 150;
  const compute = r.roofs.filter(([, , memory]) => !memory), memory = r.roofs.filter(([, , is]) => is);
  const intensity = r.operations / Math.max(1, r.bytes);
  const top = Math.max(...compute.map(([, rate]) => rate));
  const ridge = compute.flatMap(([, rate]) => memory.map(([, speed]) => rate / speed));
  const low = Math.log10(Math.min(intensity / 3, ...ridge)) - 0.4, high = Math.log10(Math.max(intensity * 3, ...ridge)) + 0.5;
  const speeds = [data.prediction?.seconds, data.measured].filter(Boolean).map((s) => r.operations / s);
  const floor = Math.log10(Math.min(...speeds, ...compute.map(([, rate]) => rate)) / 8), ceiling = Math.log10(top * 2.2);
  const x = (v) => L + (Math.log10(v) - low) / (high - low) * (W - L - R);
  const y = (v) => H - B - (Math.log10(v) - floor) / (ceiling - floor) * (H - B - T);
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Roofline: ${digits(intensity)} operations a byte` });
  const line = (x1, y1, x2, y2, colour, width = 1, dash = null) => make("line", { x1, y1, x2, y2, stroke: colour, "stroke-width": width, "stroke-dasharray": dash });
  const words = (tx, ty, text, anchor = "start", kind = null) => make("text", { x: tx, y: ty, "text-anchor": anchor, class: kind }, text);
  for (let e = Math.ceil(low); e <= high; e++) svg.append(line(x(10 ** e), T, x(10 ** e), H - B, css("--line")), words(x(10 ** e), H - B + 16, 10 ** e >= 1 ? (10 ** e).toLocaleString("en") : String(10 ** e), "middle"));
  for (let e = Math.ceil(floor); e <= ceiling; e++) svg.append(line(L, y(10 ** e), W - R, y(10 ** e), css("--line")), words(L - 6, y(10 ** e) + 4, amount(10 ** e, "op/s").replace("op/s", ""), "end"));
  svg.append(words((L + W - R) / 2, H - 8, "operations for each byte of memory", "middle"), words(8, T + 2, "op/s"));
  const highest = 10 ** high;
  for (const [name, rate] of compute) svg.append(line(x(Math.max(10 ** low, rate / Math.max(...memory.map(([, s]) => s)))), y(rate), x(highest), y(rate), css("--tensor"), 2), words(W - R + 6, y(rate) + 4, name), words(W - R + 6, y(rate) + 17, amount(rate, "op/s")));
  for (const [name, speed] of memory) {
    const end = Math.min(top / speed, highest), begin = Math.max(10 ** low, 10 ** floor / speed);
    svg.append(line(x(begin), y(begin * speed), x(end), y(end * speed), css("--copy"), 2));
    const at = begin * (end / begin) ** 0.32;
    svg.append(make("text", { x: x(at), y: y(at * speed) - 7, transform: `rotate(${-Math.atan2(y(at * speed) - y(at * 2 * speed), x(at * 2) - x(at)) * 180 / Math.PI} ${x(at)} ${y(at * speed) - 7})` }, `${name}, ${amount(speed, "B/s")}`));
  }
  svg.append(line(x(intensity), T, x(intensity), H - B, css("--strong"), 1, "3 4"));
  const points = [["predicted", data.prediction?.seconds, "--accent"], ["measured", data.measured, "--good"]].filter(([, s]) => s);
  points.forEach(([name, seconds, colour], i) => {
    const py = y(r.operations / seconds);
    svg.append(make("circle", { cx: x(intensity), cy: py, r: 6, fill: css(colour), stroke: css("--panel"), "stroke-width": 2 }, make("title", {}, `${name}: ${amount(r.operations / seconds, "op/s")}`)));
    const side = x(intensity) > (L + W - R) * 0.6 ? [-11, "end"] : [11, "start"];
    svg.append(words(x(intensity) + side[0], py + 4 + (points.length > 1 ? (i ? 11 : -5) : 12), `${name} ${amount(r.operations / seconds, "op/s")}`, side[1], "strong"));
  });
  return svg;
}
