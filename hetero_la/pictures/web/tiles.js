// The matrix, with the tiles that a task reads and writes.

const MOST_LINKS = 12;

function drawTiles(task) {
  const [rows, columns] = [graph.rows, graph.columns];
  const [m, n] = [rows.at(-1), columns.at(-1)];
  const scale = 330 / Math.max(m, n, 1);
  const [left, top] = [18, 22];
  const pen = canvasOf("tiles", left + n * scale + 4, top + m * scale + 4);
  const x = (column) => left + columns[column] * scale;
  const y = (row) => top + rows[row] * scale;
  pen.fillStyle = ink.muted;
  pen.textAlign = "left";
  pen.fillText(`${m} x ${n}, ${rows.length - 1} x ${columns.length - 1} tiles`, left, 10);
  pen.fillStyle = ink.empty;
  pen.fillRect(left, top, n * scale, m * scale);
  for (const region of task === null ? [] : regions(task)) {
    if (graph.values.includes(region.name)) continue;
    const box = [x(region.index), y(region.start),
      Math.max(x(region.index + 1) - x(region.index), 2),
      Math.max(y(region.stop) - y(region.start), 2)];
    pen.fillStyle = region.access === 0 ? graph.read : graph.written;
    pen.fillRect(...box);
    if (region.access > 0 && Math.min(box[2], box[3]) >= 8) hatch(pen, box);
  }
  drawGrid(pen, x, y);
}

function hatch(pen, [x, y, wide, high]) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, wide, high);
  pen.clip();
  pen.strokeStyle = "#ffffff";
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = -high; at < wide; at += 6) {
    pen.moveTo(x + at, y + high);
    pen.lineTo(x + at + high, y);
  }
  pen.stroke();
  pen.restore();
}

function drawGrid(pen, x, y) {
  const [rows, columns] = [graph.rows.length - 1, graph.columns.length - 1];
  const lines = (count, place, horizontal) => {
    // Tiles too small to be told apart have no lines between them.
    const every = place(count) - place(0) >= 4 * count ? 1 : Math.max(count, 1);
    for (let at = 0; at <= count; at += every) {
      pen.beginPath();
      pen.moveTo(horizontal ? x(0) : place(at), horizontal ? place(at) : y(0));
      pen.lineTo(horizontal ? x(columns) : place(at), horizontal ? place(at) : y(rows));
      pen.stroke();
    }
  };
  pen.strokeStyle = ink.grid;
  pen.lineWidth = 0.5;
  lines(rows, y, true);
  lines(columns, x, false);
  if (graph.nt < columns) {  // the right-hand sides stand apart
    pen.strokeStyle = ink.ink;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x(graph.nt), y(0));
    pen.lineTo(x(graph.nt), y(rows));
    pen.stroke();
  }
}

function regionText({ name, index, start, stop }) {
  if (graph.values.includes(name)) return `${name}[${index}]`;
  const rows = stop === start + 1 ? `${start}` : `${start}:${stop}`;
  return `${name}[${rows}, ${index}]`;
}

function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function fact(table, name, colour, ...contents) {
  const row = element("tr", null, table);
  const head = element("th", null, row);
  if (colour) {
    const swatch = element("span", null, head);
    swatch.className = "swatch";
    swatch.style.background = colour;
  }
  head.append(name);
  element("td", null, row).append(...contents);
}

function links(found) {
  const shown = found.slice(0, MOST_LINKS).flatMap((task) => {
    const link = element("a", `${graph.kinds[tasks.kind[task]].name} (${tasks.step[task]}, ${tasks.column[task]})`);
    link.href = `#step=${tasks.step[task]}&task=${task}`;
    link.title = taskText(task);
    return [link, " "];
  });
  if (found.length > MOST_LINKS) shown.push(`and ${found.length - MOST_LINKS} more`);
  return shown.length ? shown : ["none"];
}

function showFacts(task) {
  const facts = document.getElementById("facts");
  facts.replaceChildren();
  if (task === null) {
    element("p", "Choose a task to see the tiles that it reads and writes.", facts);
    return;
  }
  const kind = graph.kinds[tasks.kind[task]];
  const table = element("table", null, facts);
  const text = (access) => regions(task).filter((r) => r.access === access).map(regionText).join(", ");
  fact(table, "kernel", kind.colour, `${kind.name}: ${kind.equation}`);
  fact(table, "step, column", null, `${tasks.step[task]}, ${columnName(tasks.column[task])}`);
  fact(table, "worker", null, `${tasks.worker[task]}: ${graph.workers[tasks.worker[task]].name}`);
  fact(table, "predicted", null,
    seconds(tasks.weight[task]) + (tasks.critical[task] ? ", on the critical path" : ""));
  for (const run of runs.filter((each) => each.taskBox)) {
    const [from, to] = [run.begin, run.end].map((times) => times[run.taskBox[task]]);
    const link = element("a", "show it in the run");
    link.href = `#run=${task}`;
    fact(table, run.predicted ? "predicted run" : "ran", null,
      `${seconds(to - from)}, from ${seconds(from)} on: `, link);
  }
  if (text(0)) fact(table, "reads", graph.read, text(0));
  if (text(1)) fact(table, "updates", graph.written, text(1));
  if (text(2)) fact(table, "writes", graph.written, text(2));
  fact(table, "waits for", null, ...links(before(task)));
  fact(table, "before", null, ...links(after(task)));
}
