// One step: kernels from above, columns from the left.  Tasks of one kernel on one
// column stand one above the other, by the first rows that they write.  Heights are times.
class StepPicture {
  constructor(step, available, room) {
    this.tasks = Array.from(tasksOfStep(step));
    this.bands = this.makeBands();
    const columns = this.bands.flatMap((band) => band.tasks.map((place) => place.column));
    this.first = columns.reduce((a, b) => Math.min(a, b), Infinity);
    const count = columns.reduce((a, b) => Math.max(a, b), 0) - this.first + 1;
    this.left = 84;
    this.cell = Math.min(Math.max((available - this.left - 8) / count, 2), 140);
    this.count = count;
    this.measureBands(Math.max(room - 60, 240));
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

  // Rows as high as their longest task takes, on one scale, which fills the window.
  measureBands(room) {
    for (const band of this.bands) {
      band.longest = band.tasks.reduce((most, { task }) => Math.max(most, tasks.weight[task]), 1e-30);
    }
    const total = this.bands.reduce((sum, band) => sum + band.rows.size * band.longest, 1e-30);
    const longest = this.bands.reduce((most, band) => Math.max(most, band.longest), 1e-30);
    this.scale = Math.min((room - 24 * this.bands.length) / total, 320 / longest);
    for (const band of this.bands) {
      band.high = Math.max(band.longest * this.scale, band.rows.size > 8 ? 2.5 : 14);
    }
  }

  placeBands() {
    this.boxes = [];
    let y = 40;
    for (const band of this.bands) {
      band.y = y;
      for (const { task, column, row } of band.tasks) {
        const x = this.left + (column - this.first) * this.cell;
        const high = Math.max(tasks.weight[task] * this.scale, 2);
        const floor = y + (band.rows.get(row) + 1) * band.high;
        this.boxes.push({ task, x, y: floor - high, high, top: floor - band.high, floor });
      }
      y += Math.max(band.rows.size * band.high, 14) + 8;
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
    const wide = this.cell - gap;
    for (const { task, x, y, high } of this.boxes) {
      const kind = graph.kinds[tasks.kind[task]];
      pen.fillStyle = kind.colour;
      pen.fillRect(x, y, wide, high - Math.min(gap, 1) / 2);
      if (this.cell < 44 || high < 14) continue;
      pen.fillStyle = kind.ink;
      pen.textAlign = "center";
      pen.fillText(seconds(tasks.weight[task]), x + wide / 2, y + high / 2, wide - 4);
    }
    for (const { task, x, y, high } of this.boxes) {
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
    for (const [x, worker] of owners) {
      pen.fillStyle = graph.workers[worker].grey;
      pen.fillRect(x, 21, this.cell, 12);
      pen.fillStyle = graph.workers[worker].greyInk;
      writeNumber(pen, worker, [x, 21, this.cell, 12]);
    }
    pen.strokeStyle = ink.faint;
    pen.lineWidth = 0.5;
    pen.strokeRect(this.left, 21, this.count * this.cell, 12);
  }

  drawLabels(pen) {
    pen.fillStyle = ink.ink;
    pen.textAlign = "right";
    for (const band of this.bands) {
      pen.fillText(graph.kinds[band.kind].name, this.left - 8, band.y + band.rows.size * band.high - 6);
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
      x >= box.x && x < box.x + this.cell && y >= box.top && y < box.floor);
    return found === undefined ? null : found.task;
  }
}
