
// Drawing: a grid of cells that stays readable from 1 to 100000, and the curve of joins.

const STATES = {
  joined: "joined", finished: "finished", announced: "announced, not joined", waiting: "waits for the next round",
  earlier: "goes on with the attempt before",
  redundant: "beyond the maximum", gone: "gone", disconnected: "disconnected", away: "its link is away", missing: "missing", free: "may still join",
};
// States that look like another.
const LOOKS = { earlier: "waiting", disconnected: "gone" };
const lookOf = (state) => LOOKS[state] || state;
// What a cell says that has no room for more.
const SHORT = { announced: "not joined", waiting: "next round", earlier: "old attempt", redundant: "spare", free: "free" };
// What may stand below the name of a cell: the longest first.
const notesOf = (cell) => [cell.note, cell.short, SHORT[cell.state]].filter(Boolean);
const MAX_CELLS = 131072;

let palette = {};
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["joined", "finished", "waiting", "redundant", "gone", "missing", "missing-fill", "empty", "on-fill",
    "focus", "text", "faint", "line", "panel"]) palette[name] = style.getPropertyValue(`--${name}`).trim();
}

// A canvas of so many CSS pixels, sharp on every screen.
function sized(canvas, width, height) {
  const scale = Math.min(window.devicePixelRatio || 1, 3);
  // Browsers give up on larger ones.
  const fit = Math.min(scale, 16000 / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * fit));
  canvas.height = Math.max(1, Math.round(height * fit));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(canvas.width / width, 0, 0, canvas.height / height, 0, 0);
  return context;
}

// Colour is never alone: what is missing is hollow, what is gone is crossed out, what is finished has a check mark.
function drawCell(context, state, x, y, width, height) {
  const small = Math.min(width, height), radius = small >= 30 ? 7 : small >= 10 ? 2.5 : 1;
  const line = small >= 30 ? 1.5 : 1;
  const box = (inset) => {
    context.beginPath();
    context.roundRect(x + inset, y + inset, width - 2 * inset, height - 2 * inset, radius);
  };
  const tiny = small < 6;
  const hollow = { missing: "missing", announced: "joined", free: "empty" }[state];
  if (hollow) {
    context.strokeStyle = palette[hollow];
    context.lineWidth = line;
    // Without corners it is much faster, and there may be very many.
    if (tiny) { context.strokeRect(x + line / 2, y + line / 2, width - line, height - line); return; }
    if (state === "missing") { context.fillStyle = palette["missing-fill"]; box(line / 2); context.fill(); }
    context.setLineDash(state === "free" ? [3, 3] : []);
    box(line / 2);
    context.stroke();
    context.setLineDash([]);
    return;
  }
  context.fillStyle = palette[lookOf(state)] || palette.redundant;
  if (tiny) { context.fillRect(x, y, width, height); return; }
  box(0);
  context.fill();
  if (small >= 30) return;
  context.strokeStyle = palette["on-fill"];
  context.lineWidth = Math.max(1, small / 9);
  const at = (a, b) => [x + width / 2 + (a * small) / 2, y + height / 2 + (b * small) / 2];
  context.beginPath();
  if (lookOf(state) === "gone") {
    context.moveTo(...at(-0.45, -0.45)); context.lineTo(...at(0.45, 0.45));
    context.moveTo(...at(0.45, -0.45)); context.lineTo(...at(-0.45, 0.45));
  } else if (state === "finished" && small >= 8) {
    context.moveTo(...at(-0.45, 0.05)); context.lineTo(...at(-0.1, 0.4)); context.lineTo(...at(0.5, -0.4));
  }
  context.stroke();
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let keep = Math.min(text.length, 60);
  while (keep > 1 && context.measureText(`${text.slice(0, keep)}…`).width > width) keep -= 1;
  // The end of a pod's name tells it from the others.
  const tail = text.slice(-Math.ceil(keep / 2)), head = text.slice(0, Math.max(0, keep - tail.length - 1));
  return `${head}…${tail}`;
}

// Cells are {state, name, note, short}: the note without what is known besides the state. `unit` is how many belong together (the ranks of a node); `tell` describes one in full.
class Grid {
  constructor(id, tell) {
    this.canvas = document.getElementById(`${id}-grid`);
    this.detail = document.getElementById(`${id}-detail`);
    this.legend = document.getElementById(`${id}-legend`);
    this.tell = tell;
    this.cells = [];
    this.unit = 1;
    this.at = -1;
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.select(this.at < 0 ? 0 : this.at));
    this.canvas.addEventListener("blur", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    new ResizeObserver(() => { if (this.canvas.clientWidth !== this.width) this.draw(); }).observe(this.canvas.parentElement);
  }

  show(cells, unit, label) {
    this.cells = cells.slice(0, MAX_CELLS);
    this.unit = Math.max(1, unit);
    if (this.at >= this.cells.length) this.at = -1;
    this.canvas.setAttribute("aria-label", `${label}. Arrow keys move, N goes to the next that is missing or gone.`);
    this.drawLegend();
    this.draw();
    this.describe();
  }

  // Few cells are cards with a name, more are squares with a number, many are small squares.
  layout() {
    const n = Math.max(1, this.cells.length), width = Math.max(120, this.canvas.clientWidth);
    this.width = width;
    if (n <= 96 && this.cells.some((cell) => cell.name)) {
      const columns = Math.max(1, Math.min(n, Math.floor(width / (n <= 16 ? 190 : 104))));
      const even = n > columns && columns > 8 ? columns - (columns % 8) : columns;
      const w = even === 1 ? Math.min(width, 420) : Math.min(280, width / even);
      return { columns: even, left: 0, top: 0, w, h: n <= 16 ? 64 : 46, gap: 6, kind: "card" };
    }
    const left = 46, room = width - left;
    let size = Math.max(4, Math.min(34, Math.floor(Math.sqrt((room * 380) / n))));
    let columns = Math.max(1, Math.floor(room / size));
    const step = this.unit > 1 && this.unit <= columns ? this.unit : columns >= 10 ? 10 : 1;
    if (n > columns) columns -= columns % step;
    size = Math.min(34, room / columns);
    return { columns, left, top: 5, w: size, h: size, gap: size >= 14 ? 3 : size >= 8 ? 2 : 1, kind: size >= 24 ? "number" : "dot" };
  }

  draw() {
    if (this.canvas.clientWidth === 0) return;
    const layout = this.layout(), { columns, left, top, w, h, gap, kind } = layout;
    this.shape = layout;
    const rows = Math.ceil(this.cells.length / columns);
    const context = sized(this.canvas, this.width, top + Math.max(1, rows * h));
    context.textBaseline = "middle";
    const sans = getComputedStyle(document.body).fontFamily;
    if (left > 0) {
      context.fillStyle = palette.faint;
      context.font = `11px ${sans}`;
      context.textAlign = "right";
      const every = Math.ceil((rows * h > 300 ? 28 : 14) / h);
      for (let row = 0; row < rows; row += every) context.fillText(String(row * columns), left - 8, top + row * h + (h - gap) / 2);
    }
    const pad = w > 120 ? 12 : 8, inner = w - gap - 2 * pad, small = `${w > 120 ? 12 : 11}px ${sans}`;
    // Cells of one state say the same things: the most that fits into each of them.
    context.font = small;
    const said = {};
    for (const cell of kind === "card" ? this.cells : []) {
      const first = notesOf(cell).findIndex((text) => context.measureText(text).width <= inner);
      said[cell.state] = Math.max(said[cell.state] ?? 0, first);
    }
    this.cells.forEach((cell, i) => {
      const x = left + (i % columns) * w, y = top + Math.floor(i / columns) * h;
      drawCell(context, cell.state, x, y, w - gap, h - gap);
      if (kind === "dot") return;
      const filled = !["missing", "announced", "free"].includes(cell.state);
      context.fillStyle = filled ? palette["on-fill"] : cell.state === "missing" ? palette.missing : palette.faint;
      if (kind === "number") {
        context.textAlign = "center";
        context.font = `600 ${w >= 30 ? 11 : 9}px ${sans}`;
        if (w >= 24 && i < 10000 && lookOf(cell.state) !== "gone") context.fillText(String(i), x + (w - gap) / 2, y + (h - gap) / 2);
        return;
      }
      context.textAlign = "left";
      const two = h >= 40;
      context.font = `600 ${w > 120 ? 14 : 12}px ${sans}`;
      context.fillText(fitted(context, cell.name || "?", inner), x + pad, y + (h - gap) * (two ? 0.34 : 0.5));
      if (!two) return;
      context.font = small;
      // A state that is cut in the middle may say the opposite.
      const notes = notesOf(cell), from = Math.min(said[cell.state], notes.length - 1);
      const note = notes.slice(Math.max(0, from)).find((text) => context.measureText(text).width <= inner);
      context.fillText(note ?? "", x + pad, y + (h - gap) * 0.7);
    });
    if (this.at >= 0 && document.activeElement === this.canvas) {
      const x = left + (this.at % columns) * w, y = top + Math.floor(this.at / columns) * h;
      context.lineWidth = 2;
      for (const [color, inset] of [[palette.panel, 0.5], [palette.focus, 2]]) {
        context.strokeStyle = color;
        context.strokeRect(x + inset - 1, y + inset - 1, w - gap + 2 - 2 * inset, h - gap + 2 - 2 * inset);
      }
    }
  }

  drawLegend() {
    const counts = {};
    for (const cell of this.cells) counts[cell.state] = (counts[cell.state] || 0) + 1;
    const told = JSON.stringify([counts, palette.joined]);
    if (told === this.told) return;
    this.told = told;
    this.legend.replaceChildren(...Object.keys(STATES).filter((state) => counts[state]).map((state) => {
      const canvas = document.createElement("canvas");
      drawCell(sized(canvas, 12, 12), state, 0, 0, 12, 12);
      canvas.setAttribute("aria-hidden", "true");
      return el("span", {}, canvas, `${counts[state]} ${STATES[state]}`);
    }));
  }

  describe() {
    const cell = this.cells[this.at];
    const parts = cell ? this.tell(cell, this.at) : [];
    const told = parts.join(" · ");
    if (this.detail.dataset.told === told && this.detail.hasChildNodes()) return;
    this.detail.dataset.told = told;
    if (!cell) { this.detail.textContent = this.cells.length > 0 ? "Point at a cell, or use the arrow keys, for what is known of it." : ""; return; }
    this.detail.replaceChildren(el("b", {}, parts[0]), parts.length > 1 ? ` · ${parts.slice(1).join(" · ")}` : "");
  }

  select(at) {
    if (this.cells.length === 0) return;
    this.at = Math.max(0, Math.min(this.cells.length - 1, at));
    this.draw();
    this.describe();
  }

  point(event) {
    const { columns, left, top, w, h } = this.shape || {};
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - left) / w), row = Math.floor((event.clientY - box.top - top) / h);
    const at = row * columns + column;
    if (column < 0 || column >= columns || at < 0 || at >= this.cells.length || at === this.at) return;
    this.at = at;
    if (document.activeElement === this.canvas) this.draw();
    this.describe();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const columns = this.shape ? this.shape.columns : 1, last = this.cells.length - 1;
    const wanted = () => {
      for (let step = 1; step <= this.cells.length; step += 1) {
        const at = (this.at + step) % this.cells.length;
        if (["missing", "gone"].includes(lookOf(this.cells[at].state))) return at;
      }
      return this.at;
    };
    const moves = {
      ArrowRight: () => this.at + 1, ArrowLeft: () => this.at - 1, ArrowDown: () => Math.min(last, this.at + columns),
      ArrowUp: () => (this.at >= columns ? this.at - columns : this.at), Home: () => 0, End: () => last,
      PageDown: () => this.at + 8 * columns, PageUp: () => this.at - 8 * columns, n: wanted, N: wanted,
    };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    this.select(moves[event.key]());
  }
}

// How many had come after how many seconds. `came` is sorted; the curve goes on to `until`.
function drawJoins(canvas, came, expected, until, lastName) {
  if (canvas.clientWidth === 0) return;
  const width = canvas.clientWidth, height = 150, context = sized(canvas, width, height);
  const left = 44, right = 16, top = 22, bottom = 24;
  const span = Math.max(until, came.at(-1) || 0, 0.1), most = Math.max(expected || 0, came.length, 1);
  const x = (seconds) => left + (seconds / span) * (width - left - right);
  const y = (count) => height - bottom - (count / most) * (height - top - bottom);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  context.strokeStyle = palette.line;
  context.lineWidth = 1;
  for (const [count, label] of [[0, "0"], [most, String(most)]]) {
    context.beginPath(); context.moveTo(left, y(count)); context.lineTo(width - right, y(count)); context.stroke();
    context.fillStyle = palette.faint; context.textAlign = "right"; context.fillText(label, left - 8, y(count));
  }
  context.textAlign = "left"; context.fillText("first", left, height - 9);
  context.textAlign = "right"; context.fillText(after(span), width - right, height - 9);
  context.beginPath();
  context.moveTo(x(0), y(0));
  came.forEach((seconds, i) => { context.lineTo(x(seconds), y(i)); context.lineTo(x(seconds), y(i + 1)); });
  const end = came.at(-1) || 0;
  context.strokeStyle = palette.joined; context.lineWidth = 2; context.lineJoin = "round"; context.stroke();
  context.lineTo(x(end), y(0));
  context.closePath();
  context.globalAlpha = 0.14; context.fillStyle = palette.joined; context.fill(); context.globalAlpha = 1;
  if (span > end && came.length > 0) {
    context.setLineDash([3, 4]);
    context.beginPath(); context.moveTo(x(end), y(came.length)); context.lineTo(x(span), y(came.length));
    context.strokeStyle = palette.missing; context.stroke(); context.setLineDash([]);
  }
  if (came.length === 0) return;
  context.beginPath(); context.arc(x(end), y(came.length), 4, 0, 7); context.fillStyle = palette.joined; context.fill();
  const label = fitted(context, `${lastName} ${after(end)}`, width / 2), toLeft = x(end) > width / 2;
  context.textAlign = toLeft ? "right" : "left";
  context.fillStyle = palette.text;
  context.fillText(label, x(end) + (toLeft ? -9 : 9), y(came.length) - 10);
}
