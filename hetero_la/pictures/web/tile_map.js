// The matrix through time: each tile in the colour of what is done to it.

const KEYFRAME = 2000; // tasks between two states that are kept
const SHADES = 12; // from at work to long done

class TileMap {
  constructor(run) {
    this.run = run;
    this.nr = graph.rows.length - 1;
    this.nc = graph.columns.length - 1;
    this.begin = Float32Array.from(run.taskBox, (box) => run.begin[box]);
    this.end = Float32Array.from(run.taskBox, (box) => run.end[box]);
    this.order = Int32Array.from(this.begin.keys()).sort((a, b) => this.begin[a] - this.begin[b] || a - b);
    this.sorted = Float32Array.from(this.order, (task) => this.begin[task]);
    this.state = new Int32Array(this.nr * this.nc).fill(-1);
    this.done = 0;
    this.frames = [this.state.slice()];
    for (let at = 0; at < this.order.length; at += 1) {
      this.apply(this.order[at]);
      if ((at + 1) % KEYFRAME === 0) this.frames.push(this.state.slice());
    }
    this.final = this.state.slice(); // the task that is the last to change each tile
    this.state.fill(-1);
    this.image = document.createElement("canvas");
    [this.image.width, this.image.height] = [this.nc, this.nr];
    this.pixels = new ImageData(Math.max(this.nc, 1), Math.max(this.nr, 1));
    this.words = new Uint32Array(this.pixels.data.buffer);
    this.byWorker = false;
  }

  apply(task) {
    const total = tasks.regions.length / 5;
    for (let i = tasks.regionAt[task]; i < tasks.regionAt[task + 1]; i += 1) {
      if (!tasks.regions[i] || graph.isValue[tasks.regions[total + i]]) continue;
      const column = tasks.regions[2 * total + i];
      this.state.fill(task, column * this.nr + tasks.regions[3 * total + i],
        column * this.nr + tasks.regions[4 * total + i]);
    }
  }

  // The last task that has begun to change each tile at this time.
  seek(time) {
    const count = countUpTo(this.sorted, time);
    if (count < this.done || count - this.done > KEYFRAME) {
      const frame = Math.floor(count / KEYFRAME);
      this.state.set(this.frames[frame]);
      this.done = frame * KEYFRAME;
    }
    for (; this.done < count; this.done += 1) this.apply(this.order[this.done]);
  }

  // Shades of each kernel's, or worker's, colour as one number for a pixel.
  shades() {
    const colours = this.byWorker ? graph.workers : graph.kinds;
    const word = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    const ground = ink.empty;
    this.table = colours.map(({ colour }) => Array.from({ length: SHADES + 1 },
      (_, at) => word(blend(colour, ground, at === 0 ? 1 : 0.75 - 0.47 * at / SHADES))));
    this.finished = word(rgb(ink.done));
    this.empty = word(rgb(ink.empty));
  }

  paint(time, glow) {
    this.seek(time);
    if (time >= this.run.seconds) time = Infinity; // all is finished
    this.shades();
    const kinds = this.byWorker ? tasks.worker : tasks.kind;
    for (let at = 0; at < this.state.length; at += 1) {
      const task = this.state[at];
      const pixel = (at % this.nr) * this.nc + Math.floor(at / this.nr);
      if (task < 0) { this.words[pixel] = this.empty; continue; }
      const since = time - this.end[task];
      const shade = since < 0 ? 0 : Math.min(1 + Math.floor(since / glow * SHADES), SHADES);
      this.words[pixel] = shade === SHADES && this.final[at] === task ? this.finished
        : this.table[kinds[task]][shade];
    }
    this.image.getContext("2d").putImageData(this.pixels, 0, 0);
  }

  // Draw into a box of the window; `glow` is how long a tile stays bright.
  draw(canvas, wide, high, time, glow) {
    if (!this.state.length) return;
    const [m, n] = [graph.rows.at(-1), graph.columns.at(-1)];
    const scale = Math.min((wide - 20) / n, (high - 34) / m);
    Object.assign(this, { scale, left: (wide - n * scale) / 2, top: 24 });
    const pen = penOf(canvas, wide, high);
    this.paint(time, glow);
    pen.imageSmoothingEnabled = false;
    for (const [c0, c1] of evenRuns(graph.columns)) {
      for (const [r0, r1] of evenRuns(graph.rows)) {
        pen.drawImage(this.image, c0, r0, c1 - c0, r1 - r0, this.x(c0), this.y(r0),
          this.x(c1) - this.x(c0), this.y(r1) - this.y(r0));
      }
    }
    pen.save();
    drawGrid(pen, (c) => this.x(c), (r) => this.y(r));
    pen.restore();
    this.drawOwners(pen);
    this.drawWorkers(pen, time);
  }

  x(column) { return this.left + graph.columns[column] * this.scale; }

  y(row) { return this.top + graph.rows[row] * this.scale; }

  // Who owns each column: the worker of the last task on it.
  drawOwners(pen) {
    this.owners ??= Int32Array.from({ length: this.nc }, (_, c) => {
      const last = this.final.subarray(c * this.nr, (c + 1) * this.nr).find((task) => task >= 0);
      return last === undefined ? -1 : tasks.worker[last];
    });
    for (let column = 0; column < this.nc; column += 1) {
      const worker = graph.workers[this.owners[column]];
      if (!worker) continue;
      const [x, wide] = [this.x(column), this.x(column + 1) - this.x(column)];
      pen.fillStyle = this.byWorker ? worker.colour : worker.grey;
      pen.fillRect(x, 6, wide, 14);
      pen.fillStyle = this.byWorker ? worker.ink : worker.greyInk;
      writeNumber(pen, this.owners[column], [x, 6, wide, 14]);
    }
    pen.strokeStyle = ink.faint;
    pen.lineWidth = 0.5;
    pen.strokeRect(this.x(0), 6, this.x(this.nc) - this.x(0), 14);
  }

  // The number of the worker on each tile that is being changed.
  drawWorkers(pen, time) {
    if (this.state.length > 4096) return;
    for (let at = 0; at < this.state.length; at += 1) {
      const task = this.state[at];
      if (task < 0 || this.end[task] <= time) continue;
      const [column, row] = [Math.floor(at / this.nr), at % this.nr];
      const [x, y] = [this.x(column), this.y(row)];
      pen.fillStyle = (this.byWorker ? graph.workers[tasks.worker[task]] : graph.kinds[tasks.kind[task]]).ink;
      writeNumber(pen, tasks.worker[task], [x, y, this.x(column + 1) - x, this.y(row + 1) - y]);
    }
  }

  // The tile at a place of the canvas, as [row, column], or null.
  at(x, y) {
    const find = (edges, place) => countUpTo(edges, place) - 1;
    const column = find(graph.columns, (x - this.left) / this.scale);
    const row = find(graph.rows, (y - this.top) / this.scale);
    return row < 0 || column < 0 || row >= this.nr || column >= this.nc ? null : [row, column];
  }
}

// Stretches of tiles of equal size, as [first, one past the last].
function evenRuns(edges) {
  const found = [];
  for (let first = 0; first < edges.length - 1;) {
    let last = first + 1;
    while (last < edges.length - 1 && edges[last + 1] - edges[last] === edges[first + 1] - edges[first]) last += 1;
    found.push([first, last]);
    first = last;
  }
  return found;
}
