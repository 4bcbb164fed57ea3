"use strict";
// The tasks as arrays, and the picture of one step of them.

const graph = JSON.parse(document.getElementById("graph").textContent);
const tasks = {};

async function unpackTasks() {
  const { lengths, data } = JSON.parse(document.getElementById("packed").textContent);
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  let at = 0;
  for (const [name, length] of Object.entries(lengths)) {
    tasks[name] = new Int32Array(buffer, 4 * at, length);
    at += length;
  }
  for (const name of ["weight", "spans", "boxes"].filter((n) => n in tasks)) {
    const bits = tasks[name];
    tasks[name] = new Float32Array(bits.buffer, bits.byteOffset, bits.length);
  }
  tasks.count = tasks.weight.length;
  sortBySteps();
}

function sortBySteps() {
  tasks.stepAt = new Int32Array(graph.steps + 1);
  for (const step of tasks.step) tasks.stepAt[step + 1] += 1;
  for (let step = 0; step < graph.steps; step += 1) tasks.stepAt[step + 1] += tasks.stepAt[step];
  const next = tasks.stepAt.slice();
  tasks.byStep = new Int32Array(tasks.count);
  for (let task = 0; task < tasks.count; task += 1) tasks.byStep[next[tasks.step[task]]++] = task;
}

const tasksOfStep = (step) =>
  tasks.byStep.subarray(tasks.stepAt[step], tasks.stepAt[step + 1]);

const before = (task) =>
  Array.from(tasks.before.subarray(tasks.beforeAt[task], tasks.beforeAt[task + 1]), (d) => task - d);

function after(task) {
  // Asked for one task at a time: looking through all takes milliseconds.
  const found = [];
  for (let other = task + 1; other < tasks.count; other += 1) {
    for (let i = tasks.beforeAt[other]; i < tasks.beforeAt[other + 1]; i += 1) {
      if (other - tasks.before[i] === task) found.push(other);
    }
  }
  return found;
}

function regions(task) {
  const total = tasks.regions.length / 5;
  const found = [];
  for (let i = tasks.regionAt[task]; i < tasks.regionAt[task + 1]; i += 1) {
    const [access, name, index, start, stop] = [0, 1, 2, 3, 4].map((n) => tasks.regions[n * total + i]);
    found.push({ access, name: graph.names[name], index, start, stop });
  }
  return found;
}

const columnName = (column) =>
  column < graph.nt ? `column ${column}` : `rhs ${column - graph.nt}`;

function seconds(value) {
  const prefixes = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]];
  const [scale, prefix] = prefixes.find((p) => value >= p[0]) ?? prefixes.at(-1);
  return `${Number((value / scale).toPrecision(3))} ${prefix}s`;
}

function taskText(task) {
  const kind = graph.kinds[tasks.kind[task]].name;
  const worker = graph.workers[tasks.worker[task]].name;
  return `${kind}, step ${tasks.step[task]}, ${columnName(tasks.column[task])}, ${worker}: `
    + `${seconds(tasks.weight[task])}${tasks.critical[task] ? ", critical" : ""}`;
}

function canvasOf(id, width, height) {
  const canvas = document.getElementById(id);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.ceil(width * ratio);
  canvas.height = Math.ceil(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px DejaVu Sans, Verdana, Arial, sans-serif";
  pen.textBaseline = "middle";
  return pen;
}

// One step: kernels from above, columns from the left.  Tasks of one kernel on one
// column stand one above the other, by the first rows that they write.
class StepPicture {
  constructor(step, available) {
    this.tasks = Array.from(tasksOfStep(step));
    this.bands = this.makeBands();
    const columns = this.bands.flatMap((band) => band.tasks.map((place) => place.column));
    this.first = columns.reduce((a, b) => Math.min(a, b), Infinity);
    const count = columns.reduce((a, b) => Math.max(a, b), 0) - this.first + 1;
    const rows = this.bands.reduce((sum, band) => sum + band.rows.size, 0);
    this.left = 84;
    this.cell = Math.min(Math.max((available - this.left - 8) / count, 2), 58);
    this.high = Math.min(Math.max(560 / rows, 2.5), 24);
    this.count = count;
    this.placeBands();
  }

  makeBands() {
    const bands = new Map();
    for (const task of this.tasks) {
      const kind = tasks.kind[task];
      if (!bands.has(kind)) bands.set(kind, { kind, tasks: [], rows: new Map() });
      const made = regions(task).find((region) => region.access > 0);
      const value = graph.values.includes(made.name);
      bands.get(kind).tasks.push({ task, column: tasks.column[task], row: value ? 0 : made.start, made });
    }
    for (const band of bands.values()) {
      const columns = new Set(band.tasks.map((place) => place.column)).size;
      for (const place of band.tasks) {
        // A column of tiles begins where it begins: that alone makes no rows.
        if (columns === band.tasks.length) place.row = 0;
        // Values of several steps that one column's owner makes belong to these steps.
        else if (columns === 1 && graph.values.includes(place.made.name)) place.column = place.made.index;
        band.rows.set(place.row, 0);
      }
      const order = [...band.rows.keys()].sort((a, b) => a - b);
      order.forEach((row, at) => band.rows.set(row, at));
    }
    return [...bands.values()];
  }

  placeBands() {
    this.boxes = [];
    let y = 40;
    for (const band of this.bands) {
      band.y = y;
      for (const { task, column, row } of band.tasks) {
        const x = this.left + (column - this.first) * this.cell;
        this.boxes.push({ task, x, y: y + band.rows.get(row) * this.high });
      }
      y += Math.max(band.rows.size * this.high, 14) + 8;
    }
    this.width = this.left + this.count * this.cell + 8;
    this.height = y + 8;
  }

  draw(chosen) {
    const pen = canvasOf("tasks", this.width, this.height);
    const near = new Set(chosen === null ? [] : before(chosen));
    this.drawLabels(pen);
    this.drawOwners(pen);
    const gap = this.cell > 6 ? 2 : 0.5;
    const [wide, high] = [this.cell - gap, this.high - Math.min(gap, 1)];
    for (const { task, x, y } of this.boxes) {
      const kind = graph.kinds[tasks.kind[task]];
      pen.fillStyle = kind.colour;
      pen.fillRect(x, y, wide, high);
      if (this.cell >= 12 && this.high >= 12) this.drawWorker(pen, task, x, y, high);
      if (this.cell >= 52 && this.high >= 12) {
        pen.fillStyle = kind.ink;
        pen.textAlign = "center";
        pen.fillText(kind.name, x + 12 + (wide - 12) / 2, y + high / 2, wide - 14);
      }
    }
    for (const { task, x, y } of this.boxes) {
      if (task !== chosen && !near.has(task)) continue;
      pen.setLineDash(task === chosen ? [] : [3, 2]);
      pen.lineWidth = task === chosen ? 3 : 2;
      pen.strokeStyle = "#1a1a1a";
      pen.strokeRect(x, y, wide, high);
    }
  }

  drawOwners(pen) {
    // The worker of most tasks of a column is that of its last one here.
    const owners = new Map(this.boxes.map(({ task, x }) => [x, tasks.worker[task]]));
    const names = graph.workers.length > 1 ? "worker" : "";
    pen.fillStyle = "#6b6b6b";
    pen.textAlign = "right";
    pen.fillText(names, this.left - 8, 27);
    if (!names) return;
    pen.textAlign = "center";
    for (const [x, worker] of owners) {
      pen.fillStyle = graph.workers[worker].grey;
      pen.fillRect(x, 21, this.cell, 12);
      if (this.cell < 12) continue;
      pen.fillStyle = graph.workers[worker].ink;
      pen.fillText(String(worker), x + this.cell / 2, 27, this.cell);
    }
    pen.strokeStyle = "#8e8e8e";
    pen.lineWidth = 0.5;
    pen.strokeRect(this.left, 21, this.count * this.cell, 12);
  }

  drawWorker(pen, task, x, y, high) {
    const worker = graph.workers[tasks.worker[task]];
    pen.fillStyle = worker.grey;
    pen.fillRect(x, y, 12, high);
    pen.fillStyle = worker.ink;
    pen.textAlign = "center";
    pen.fillText(String(tasks.worker[task]), x + 6, y + high / 2, 10);
  }

  drawLabels(pen) {
    pen.fillStyle = "#1a1a1a";
    pen.textAlign = "right";
    for (const band of this.bands) {
      pen.fillText(graph.kinds[band.kind].name, this.left - 8, band.y + this.high / 2);
    }
    pen.fillStyle = "#6b6b6b";
    pen.fillText("column", this.left - 8, 12);
    pen.textAlign = "center";
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
      .find((n) => n * this.cell >= 30) ?? 10000;
    for (let column = Math.ceil(this.first / every) * every; column < this.first + this.count; column += every) {
      pen.fillText(String(column), this.left + (column - this.first + 0.5) * this.cell, 12);
    }
  }

  at(x, y) {
    const found = this.boxes.find((box) =>
      x >= box.x && x < box.x + this.cell && y >= box.y && y < box.y + this.high);
    return found === undefined ? null : found.task;
  }
}
