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
      pen.strokeStyle = ink.ink;
      pen.strokeRect(x, y, wide, high);
    }
  }

  drawOwners(pen) {
    // The worker of most tasks of a column is that of its last one here.
    const owners = new Map(this.boxes.map(({ task, x }) => [x, tasks.worker[task]]));
    const names = graph.workers.length > 1 ? "worker" : "";
    pen.fillStyle = ink.muted;
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
    pen.strokeStyle = ink.faint;
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
    pen.fillStyle = ink.ink;
    pen.textAlign = "right";
    for (const band of this.bands) {
      pen.fillText(graph.kinds[band.kind].name, this.left - 8, band.y + this.high / 2);
    }
    pen.fillStyle = ink.muted;
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
