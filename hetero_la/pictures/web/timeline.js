// The timeline: the rows of all workers and the tracks under them, on one axis.

const HEAD = 36; // height of the axis: bounds, times, and the head of the cursor
const GHOST = 0.35;

// A text, or as much of its end as fits: addresses differ there.
function ending(pen, text, room) {
  let shown = text;
  for (let cut = 2; pen.measureText(shown).width > room && cut < text.length; cut++) shown = `…${text.slice(cut)}`;
  return shown;
}

class Timeline {
  constructor(scroller, run) {
    this.scroller = scroller;
    this.canvas = scroller.querySelector("canvas");
    this.spacer = scroller.querySelector("div");
    this.base = document.createElement("canvas");
    this.run = run;
    this.ghost = null; // another run that is drawn behind this one
    this.chosen = null; // a box with a frame
    this.fit();
  }

  get length() { return Math.max(this.run.seconds, this.ghost?.seconds ?? 0, 1e-9); }

  fit() { [this.from, this.to] = [0, this.length]; this.stale = true; }

  // Show a stretch of time, at most the whole and at least a few nanoseconds.
  show(from, to) {
    const span = Math.min(Math.max(to - from, 1e-8), this.length);
    this.from = Math.min(Math.max(from, 0), this.length - span);
    this.to = this.from + span;
    this.stale = true;
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) / factor, around + (this.to - around) / factor);
  }

  pan(pixels) {
    const moved = pixels * (this.to - this.from) / this.across;
    this.show(this.from + moved, this.to + moved);
  }

  x(time) { return this.left + (time - this.from) * this.across / (this.to - this.from); }

  time(x) { return this.from + (x - this.left) * (this.to - this.from) / this.across; }

  // Place rows and tracks: rows are as high as the window allows, and scroll if they are many.
  layOut() {
    this.wide = this.scroller.clientWidth;
    this.high = this.scroller.clientHeight;
    const names = 52 + 7 * Math.max(...this.run.workers.map((name) => name.length));
    const [least, most] = this.wide < 560 ? [62, 96] : [104, 190];
    this.left = Math.min(Math.max(names, least), most);
    this.across = Math.max(this.wide - this.left - 10, 10);
    const { rows } = this.run;
    const workers = new Set(rows.map((row) => row.worker)).size;
    const below = TRACKS.reduce((sum, track) => sum + track.high + 12, 10);
    const each = (this.high - HEAD - below - 10 * workers) / Math.max(rows.length, 1);
    this.rowHigh = Math.min(Math.max(each, this.wide < 560 ? 11 : 13), 40);
    let y = HEAD;
    rows.forEach((row, at) => {
      if (at === 0 || rows[at - 1].worker !== row.worker) y += at ? 10 : 2;
      row.y = y;
      y += this.rowHigh;
    });
    const rest = Math.max(this.high - y - below, 0) / TRACKS.length;
    this.tracks = TRACKS.map((track) => {
      const placed = { ...track, y: y + 12, high: track.high + Math.min(rest, 60) };
      y = placed.y + placed.high;
      return placed;
    });
    this.total = y + 10;
    this.spacer.style.height = `${Math.max(this.total - this.high, 0)}px`;
  }

  // Draw all but the cursor, if anything has changed, and then the cursor.
  draw(time) {
    if (!this.scroller.clientWidth || !this.scroller.clientHeight) return;
    if (this.stale) this.drawBase();
    this.stale = false;
    const pen = penOf(this.canvas, this.wide, this.high);
    pen.drawImage(this.base, 0, 0, this.wide, this.high);
    const x = this.x(time);
    if (x < this.left - 1 || x > this.wide) return;
    pen.fillStyle = ink.cursor;
    pen.fillRect(x - 0.75, HEAD - 8, 1.5, this.high);
    pen.beginPath();
    pen.moveTo(x - 5, HEAD - 9); pen.lineTo(x + 5, HEAD - 9); pen.lineTo(x, HEAD - 1);
    pen.fill();
    this.drawValues(pen, time);
  }

  drawBase() {
    this.layOut();
    const pen = penOf(this.base, this.wide, this.high);
    const top = this.scroller.scrollTop;
    pen.save();
    pen.translate(0, -top);
    this.drawTicks(pen, top);
    for (const row of this.run.rows) {
      if (row.y + this.rowHigh < top + HEAD || row.y > top + this.high) continue;
      this.drawRow(pen, row);
    }
    this.drawTracks(pen);
    this.drawChosen(pen);
    pen.restore();
    this.drawHead(pen);
  }

  ticks() {
    const span = this.to - this.from;
    const rough = span * 84 / this.across;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].find((n) => n * unit >= rough) * unit;
    const found = [];
    for (let n = Math.ceil(this.from / every); n * every <= this.to; n += 1) found.push(n * every);
    return found;
  }

  drawTicks(pen) {
    pen.fillStyle = ink.grid;
    for (const tick of this.ticks()) pen.fillRect(this.x(tick), HEAD, 1, this.total);
  }

  drawHead(pen) {
    pen.fillStyle = ink.paper;
    pen.fillRect(0, 0, this.wide, HEAD);
    this.drawBounds(pen);
    pen.textAlign = "center";
    for (const tick of this.ticks()) {
      const [text, x] = [tick ? seconds(tick) : "0", Math.min(this.x(tick), this.wide - 24)];
      const wide = pen.measureText(text).width + 2;
      pen.fillStyle = ink.paper; // over the lines of the bounds
      pen.fillRect(x - wide / 2, 14, wide, 13);
      pen.fillStyle = ink.muted;
      pen.fillText(text, x, 21);
    }
  }

  // Dashed lines from the axis down, at times that no order of these tasks could have beaten.
  drawBounds(pen) {
    this.drawLine(pen, this.run.seconds, ink.faint, HEAD, []);
    const bounds = [
      { time: this.run.work, text: `work / workers ${seconds(this.run.work)}`, dash: [6, 3] },
      { time: this.run.path, text: `critical path ${seconds(this.run.path)}`, dash: [2, 2] },
    ].sort((a, b) => a.time - b.time).filter(({ time, dash }) => this.drawLine(pen, time, ink.ink, 12, dash));
    const widths = bounds.map(({ text }) => pen.measureText(text).width + 10);
    let free = 0;
    pen.fillStyle = ink.ink;
    pen.textAlign = "left";
    // The text of the first stands before it, that of the second behind it; where there is no room,
    // they stand side by side in this order.
    bounds.forEach(({ time, text }, at) => {
      const x = this.x(time);
      const rest = widths.slice(at).reduce((sum, wide) => sum + wide);
      const wanted = at === 0 && x > widths[0] ? x - widths[0] : x + 4;
      const left = Math.max(Math.min(wanted, this.wide - rest), free);
      free = left + widths[at];
      pen.fillText(text, left, 6);
    });
  }

  drawLine(pen, time, colour, top, dash) {
    const x = this.x(time);
    if (x < this.left || x > this.wide) return false;
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, this.high);
    pen.stroke();
    pen.setLineDash([]);
    return true;
  }

  drawRow(pen, row) {
    const first = this.run.rows.find((other) => other.worker === row.worker) === row;
    pen.textAlign = "right";
    pen.fillStyle = ink.muted;
    pen.fillText(row.name, this.left - 6, row.y + this.rowHigh / 2);
    if (first) {
      pen.textAlign = "left";
      pen.fillStyle = ink.ink;
      pen.fillText(ending(pen, this.run.workers[row.worker], this.left - 48), 4, row.y + this.rowHigh / 2);
    }
    pen.fillStyle = ink.grid;
    pen.fillRect(this.left, row.y + this.rowHigh - 1, this.across, 1);
    if (this.ghost) {
      const behind = this.ghost.rows.find((other) => other.key === row.key);
      pen.globalAlpha = GHOST;
      if (behind) this.drawBoxes(pen, this.ghost, behind, row.y, this.rowHigh - 1);
      pen.globalAlpha = 1;
    }
    const inset = this.ghost ? 0.25 * this.rowHigh : 1;
    this.drawBoxes(pen, this.run, row, row.y + inset, this.rowHigh - 2 * inset - 1);
  }

  // Boxes narrower than a pixel are drawn together, in the colour that has most of it.
  drawBoxes(pen, run, row, y, high) {
    const scale = this.across / (this.to - this.from);
    let at = Math.max(countUpTo(run.begin, this.from, row.from, row.to) - 1, row.from);
    const filled = new Float32Array(run.kinds.length);
    for (let pixel = -1; at < row.to && run.begin[at] <= this.to; at += 1) {
      const left = this.x(run.begin[at]);
      const wide = (run.end[at] - run.begin[at]) * scale;
      if (left + wide < this.left) continue;
      if (wide >= 1) { this.drawBox(pen, run, at, left, wide, y, high); continue; }
      pixel = Math.floor(left);
      filled.fill(0);
      let last = at;
      for (; last < row.to && this.x(run.begin[last]) < pixel + 1; last += 1) {
        const other = (run.end[last] - run.begin[last]) * scale;
        if (other >= 1) break;
        filled[run.name[last]] += other + 1e-6;
      }
      const most = filled.indexOf(filled.reduce((a, b) => Math.max(a, b), 0));
      pen.fillStyle = run.kinds[most].colour;
      pen.fillRect(Math.max(pixel, this.left), y, 1, high);
      at = last - 1;
    }
  }

  drawBox(pen, run, box, left, wide, y, high) {
    const kind = run.kinds[run.name[box]];
    const x = Math.max(left, this.left);
    const shown = Math.min(left + wide, this.wide) - x;
    pen.fillStyle = kind.colour;
    pen.fillRect(x, y, wide > 4 ? shown - 0.6 : shown, high);
    if (run !== this.run || shown < 44 || high < 11) return;
    pen.fillStyle = kind.ink;
    pen.textAlign = "left";
    const step = run.boxStep[box] < 0 ? "" : ` ${run.boxStep[box]}`;
    pen.fillText(`${kind.name}${step}`, x + 4, y + high / 2 + 0.5, shown - 8);
  }

  drawChosen(pen) {
    if (this.chosen === null) return;
    const row = this.run.rows.find(({ from, to }) => this.chosen >= from && this.chosen < to);
    const [left, right] = [this.run.begin, this.run.end].map((times) => this.x(times[this.chosen]));
    pen.strokeStyle = ink.ink;
    pen.lineWidth = 2.5;
    pen.strokeRect(left - 2, row.y - 1, Math.max(right - left, 1) + 4, this.rowHigh + 1);
  }

  drawTracks(pen) {
    for (const track of this.tracks) {
      const box = {
        y: track.y, high: track.high, from: this.from, to: this.to, end: this.run.seconds,
        x: (time) => this.x(time),
      };
      track.draw(pen, box, this.run);
      pen.fillStyle = ink.grid;
      pen.fillRect(this.left, track.y + track.high, this.across, 1);
      pen.textAlign = "left";
      pen.fillStyle = ink.ink;
      pen.fillText(track.name, 4, track.y + 8, this.left - 8);
      Object.entries(track.marks).forEach(([name, colour], at) => {
        const y = track.y + 23 + 14 * at;
        pen.fillStyle = colour;
        pen.fillRect(4, y - 4, 8, 8);
        pen.fillStyle = ink.muted;
        pen.fillText(name, 16, y, this.left - 20);
      });
    }
  }

  // What each track says at the cursor, above it.
  drawValues(pen, time) {
    pen.textAlign = "right";
    for (const track of this.tracks) {
      const y = track.y - this.scroller.scrollTop + 8;
      if (y < HEAD) continue;
      const text = track.value(this.run, time);
      const wide = pen.measureText(text).width;
      pen.fillStyle = ink.paper;
      pen.globalAlpha = 0.8;
      pen.fillRect(this.wide - wide - 16, y - 8, wide + 8, 16);
      pen.globalAlpha = 1;
      pen.fillStyle = ink.ink;
      pen.fillText(text, this.wide - 12, y);
    }
  }

  // The box at a place of the canvas, or null.
  at(x, y) {
    const row = this.run.rows.find(({ y: top }) => {
      const inside = y + this.scroller.scrollTop - top;
      return inside >= 0 && inside < this.rowHigh;
    });
    if (!row || x < this.left || y < HEAD) return null;
    return boxAt(this.run, row, this.time(x), 2 * (this.to - this.from) / this.across);
  }

  // Scroll and move so that a box is seen.
  reveal(box) {
    this.chosen = box;
    if (this.run.end[box] < this.from || this.run.begin[box] > this.to) {
      const half = (this.to - this.from) / 2;
      const middle = (this.run.begin[box] + this.run.end[box]) / 2;
      this.show(middle - half, middle + half);
    }
    this.layOut();
    const { y } = this.run.rows.find(({ from, to }) => box >= from && box < to);
    if (y < this.scroller.scrollTop + HEAD || y + this.rowHigh > this.scroller.scrollTop + this.high) {
      this.scroller.scrollTop = y - this.high / 2;
    }
    this.stale = true;
  }
}
