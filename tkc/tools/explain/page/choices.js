// What was chosen: the plans that were weighed, how each dot and load is done, what passes said.

function choicesView(data) {
  const view = make("div", { class: "view" });
  const found = data.candidates;
  if (found) view.append(candidatesOf(found));
  if (data.others.length) {
    view.append(section("Configurations that were not chosen",
      make("div", { class: "list mono" }, ...data.others.map((line) => make("div", {}, line)))));
  }
  if (data.plan) {
    const fields = make("div", { class: "fields" }, ...data.plan.fields.map(([name, value, set]) =>
      make("div", { class: set ? "set" : null }, make("span", {}, name), make("span", { class: "mono" }, value))));
    view.append(make("div", { class: "columns" }, partsOf(data), section("The plan", note("What is not the default is in bold."), fields)));
  }
  const said = make("dl", { class: "said" });
  let step = null;
  for (const decision of data.decisions) {
    said.append(make("dt", {}, decision.step === step ? "" : decision.step),
      make("dd", {}, decision.text, " ", lineLink(data, decision.source)));
    step = decision.step;
  }
  if (data.decisions.length) view.append(section("What the passes said", said));
  for (const name of ["candidates", "plan"]) {
    if (data.missing[name]) view.append(section(name === "plan" ? "The plan" : "Other plans", note(data.missing[name])));
  }
  return view;
}

const LIMITS = [["steps", "--tensor", "steps of loops"], ["exposed", "--fma", "not overlapped"], ["memory", "--copy", "memory, beside them"]];

function candidatesOf(found) {
  const chosen = found.rows.find((row) => row.chosen);
  const least = Math.min(...found.rows.map((row) => row.seconds));
  const most = Math.max(...found.rows.map((row) => Math.max(row.steps + row.exposed, row.memory)));
  const scale = found.sized ? time : (seconds) => `${digits(seconds / least)} ×`;
  const rows = found.rows.map((row) => {
    const stack = make("div", { class: "stack", role: "img", "aria-label": LIMITS.map(([name, , text]) => `${text} ${scale(row[name])}`).join(", "), title: LIMITS.map(([name, , text]) => `${text}: ${scale(row[name])}`).join("\n") });
    for (const [name, colour] of LIMITS.slice(0, 2)) {
      const part = make("i");
      part.style.cssText = `width:${100 * row[name] / most}%;background:var(${colour})`;
      stack.append(part);
    }
    const fill = make("i");
    fill.style.cssText = `width:${100 * row.memory / most}%;background:var(--copy)`;
    const moved = make("div", { class: "stack thin", "aria-hidden": "true" }, fill);
    const against = row.seconds / chosen.seconds - 1;
    const forcing = row.forcing.filter(([name]) => found.names.includes(name) || found.rows.length === 1).map(([name, value]) => `${name}=${value}`).join(" ");
    const timeline = row.predicted !== null && row.predicted !== undefined
      ? time(row.predicted)
      : make("span", { title: row.refused || "only the cheapest by the model are compiled" }, row.refused ? "none" : "–");
    return {
      class: row.chosen ? "chosen" : null,
      cells: [
        row.chosen ? make("span", { class: "tag" }, "chosen") : "",
        ...row.values.map((value) => make("code", {}, value)),
        scale(row.seconds),
        row.chosen ? "" : Math.abs(against) < 5e-5 ? "equal" : `${against >= 0 ? "+" : "−"}${digits(Math.abs(100 * against))} %`,
        timeline, row.spills === null ? "" : row.spills ? make("b", { class: "bad" }, `${row.spills} B`) : "none", make("div", {}, stack, moved), row.limit, make("code", {}, forcing),
      ],
    };
  });
  const head = [["", ""], ...found.names.map((name) => [name.replaceAll("_", " "), ""]), ["model", "number"], ["to chosen", "number"], ["timeline", "number"], ["spills", "number"], ["of which", ""], ["limit of a step", ""], ["forced by", ""]];
  const key = make("p", {}, ...LIMITS.map(([, colour, text]) => {
    const square = make("i");
    square.style.background = `var(${colour})`;
    return make("span", { class: "key" }, square, text);
  }));
  const text = found.sized
    ? "Every legal plan for these options, the cheapest by the closed-form model for this launch first. The plan is made before a launch's sizes are known, so the chosen one need not stand first. “Timeline” is the finer model, which knows nothing of spills; it is asked, and ptxas too, for the chosen plan and the cheapest others."
    : "Every legal plan for these options, the cheapest by the closed-form model first; without a grid, times are relative.";
  return section(found.rows.length > 1 ? `${found.rows.length} plans fit these options` : "One plan fits these options", note(text), tabled(head, rows), key);
}

function partsOf(data) {
  const rows = data.plan.parts.map((part) => ({
    cells: [
      make("b", {}, part.what), make("span", { class: "mono" }, part.operation), lineLink(data, part.source),
      make("span", { class: "mono" }, part.fields.map(([name, value]) => `${name} ${value}`).join(", ")),
    ],
  }));
  return section("Dots and loads", rows.length ? tabled([["", ""], ["operation", ""], ["source", ""], ["how", ""]], rows) : note("The kernel has neither."));
}
