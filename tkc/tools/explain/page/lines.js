// A listing of any length of which only the rows in sight are in the document.

const ROW = 18;

class Lines {
  // draw(row) gives the children of a row; row: {n, text, source, mark, …}
  constructor(label, { onpick = () => {}, gutter = null } = {}) {
    this.seen = make("div", { class: "seen" });
    this.inside = make("div", { class: "inside" }, this.seen);
    this.node = make("div", { class: "lines", tabindex: "0", role: "region", "aria-label": label }, this.inside);
    this.rows = [];
    this.first = this.last = -1;
    this.gutter = gutter;
    this.found = "";
    this.twin = "";
    this.node.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw(true)).observe(this.node);
    this.node.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (!row || String(getSelection())) return;
      this.twin = event.target.classList.contains("v") ? event.target.textContent : "";
      onpick(this.rows[Number(row.dataset.row)]);
      this.draw(true);
    });
    selection.follow(() => this.draw(true));
    themed.push(() => this.draw(true));
  }

  show(rows, { keep = false } = {}) {
    this.rows = rows;
    const longest = rows.reduce((most, row) => Math.max(most, row.text.length), 0);
    this.inside.style.height = `${rows.length * ROW}px`;
    this.inside.style.minWidth = `calc(${longest + 2}ch + 7em)`;
    if (!keep) this.node.scrollTop = 0;
    this.draw(true);
  }

  draw(anew = false) {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - 8);
    const last = Math.min(this.rows.length, Math.ceil((this.node.scrollTop + this.node.clientHeight) / ROW) + 8);
    if (!anew && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    this.seen.style.transform = `translateY(${first * ROW}px)`;
    this.seen.replaceChildren(...this.rows.slice(first, last).map((row, i) => this.row(row, first + i)));
  }

  row(row, index) {
    const classes = ["row", row.mark ?? ""];
    if (row.source >= 0 && row.source === selection.line) classes.push("pick");
    if (row.wrong) classes.push("wrong");
    if (this.found && row.text.toLowerCase().includes(this.found)) classes.push("hit");
    const node = make("div", { class: classes.join(" ").trim(), "data-row": index });
    if (row.source >= 0) {
      node.dataset.source = row.source;
      if (row.coloured !== false) node.style.borderLeftColor = lineColour(row.source);
    }
    node.append(make("span", { class: "n" }, row.n === undefined ? "" : String(row.n)));
    if (this.gutter) node.append(this.gutter(row));
    const text = make("span", { class: "t", title: row.whole && row.whole !== row.text ? row.whole.trim() : null });
    for (const [kind, part] of row.mark === "gap" || row.mark === "file" ? [["", row.text]] : tokens(row.text, row.language)) {
      if (!kind) { text.append(part); continue; }
      const twin = kind === "v" && part === this.twin ? " twin" : "";
      text.append(make("span", { class: kind + twin }, part));
    }
    node.append(text);
    return node;
  }

  // Scrolls so that a row is in sight, a third down.
  reveal(index, { unlessSeen = true } = {}) {
    if (index < 0) return;
    const top = index * ROW;
    const { scrollTop, clientHeight } = this.node;
    if (unlessSeen && top >= scrollTop + ROW && top <= scrollTop + clientHeight - 3 * ROW) return;
    this.node.scrollTop = Math.max(0, top - clientHeight / 3);
    this.draw(true);
  }

  // The next row after the middle of the window (or before it) that satisfies a test, and where.
  seek(test, backward = false) {
    const hits = this.rows.flatMap((row, i) => (test(row) ? [i] : []));
    if (!hits.length) return -1;
    const here = this.current ?? (this.node.scrollTop + this.node.clientHeight / 3) / ROW;
    const index = backward
      ? hits.findLast((i) => i < here) ?? hits.at(-1)
      : hits.find((i) => i > here) ?? hits[0];
    this.current = index;
    this.reveal(index, { unlessSeen: false });
    return index;
  }
}

const SYNTAX = {
  ir: /(%[\w.$-]+(?:#\d+)?)|("(?:[^"\\]|\\.)*")|\b((?:tile|scf|builtin)\.\w+)|(?<![\w.])(-?\d[\w.+-]*)/g,
  ptx: /(%[\w.]+|\$\w+)|("(?:[^"\\]|\\.)*"|\/\/.*)|^(\s*(?:@!?%\w+\s+)?[a-z][\w.:]*|\s*\.\w+)|(?<![\w.])(-?(?:0x)?\d[\w.]*)/g,
  sass: /((?<![\w])U?[RP]\d+\b)|(\/\*[^*]*\*\/)|((?<=\s)[A-Z][A-Z0-9]+(?:\.[\w.]+)*(?=\s))|(?<![\w.])(-?0x[\da-f]+)/g,
  llvm: /([%@][\w."-]+)|("(?:[^"\\]|\\.)*"|;.*)|\b(define|declare|load|store|br|phi|call|ret|switch|getelementptr|icmp|fcmp|select|add|mul|sub|fmul|fadd|alloca)\b|(?<![\w.])(-?\d[\w.+]*)/g,
  python: /(#.*)|("""[^]*?"""|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(def|for|while|if|else|elif|in|return|and|or|not|import|from|as|is|None|True|False|lambda|class|with|pass|break|continue)\b|(?<![\w.])(\d[\w.]*)/g,
};

function tokens(text, language) {
  const kinds = { python: ["c", "s", "k", "d"], ptx: ["v", "s", "k", "d"] }[language] ?? ["v", "s", "k", "d"];
  const pattern = SYNTAX[language];
  if (!pattern) return [["", text]];
  const found = [];
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) found.push(["", text.slice(at, match.index)]);
    const group = match.slice(1).findIndex((part) => part !== undefined);
    found.push([kinds[group], match[0]]);
    at = match.index + match[0].length;
  }
  if (at < text.length) found.push(["", text.slice(at)]);
  return found;
}

// IR without what repeats the declarations of values: layouts, facts of arrays, types of operands.
function shortened(text) {
  return text
    .replace(/(!tile\.\w+<[^<>"]*?),?\s*(?:shared )?"[^"]*"/g, "$1")
    .replace(/ : \(([^()]*)\) -> /, " -> ")
    .replace(/ : \(([^()]*)\)$/, "")
    .replace(/!tile\./g, "");
}
