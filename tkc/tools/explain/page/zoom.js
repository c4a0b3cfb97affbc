// A stretch of an axis that is zoomed and moved by wheel, drag and keys, for pictures on canvases.

class Zoom {
  constructor(canvas, end, redraw, { left = 0 } = {}) {
    Object.assign(this, { canvas, end, redraw, left, from: 0, to: end, least: end / 1e5 });
    canvas.tabIndex = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move((event.deltaX || event.deltaY) / this.width * (this.to - this.from));
      else this.scale(1.0018 ** event.deltaY, this.at(event));
    }, { passive: false });
    let grip = null;
    canvas.addEventListener("pointerdown", (event) => { grip = event.clientX; this.dragged = false; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (grip === null) return;
      if (Math.abs(event.clientX - grip) > 2) this.dragged = true;
      this.move((grip - event.clientX) / this.width * (this.to - this.from));
      grip = event.clientX;
    });
    canvas.addEventListener("pointerup", () => { grip = null; });
    canvas.addEventListener("keydown", (event) => {
      const span = this.to - this.from;
      const action = {
        ArrowLeft: () => this.move(-span / 8), ArrowRight: () => this.move(span / 8),
        "+": () => this.scale(0.7), "=": () => this.scale(0.7), "-": () => this.scale(1 / 0.7),
        ArrowUp: () => this.scale(0.7), ArrowDown: () => this.scale(1 / 0.7),
        Home: () => this.show(0, this.end), 0: () => this.show(0, this.end),
      }[event.key];
      if (action) { event.preventDefault(); action(); }
    });
  }

  get width() { return Math.max(1, this.canvas.clientWidth - this.left); }
  x(value) { return this.left + (value - this.from) / (this.to - this.from) * this.width; }
  at(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left - this.left;
    return this.from + x / this.width * (this.to - this.from);
  }
  show(from, to) {
    const span = Math.min(this.end, Math.max(this.least, to - from));
    this.from = Math.max(0, Math.min(from, this.end - span));
    this.to = this.from + span;
    this.redraw();
  }
  move(by) { const span = this.to - this.from; this.show(Math.max(0, this.from + by), Math.max(0, this.from + by) + span); }
  scale(by, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * by, around + (this.to - around) * by);
  }
}

// A canvas of this height, sharp on every screen; gives its context, cleared.
function prepared(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = Math.max(1, canvas.clientWidth || canvas.parentNode?.clientWidth || 800);
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  return c;
}

// Round numbers at which an axis is marked.
function marks(from, to, about = 8) {
  if (!(to > from) || !Number.isFinite(to - from)) return [];
  const rough = (to - from) / about;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}
