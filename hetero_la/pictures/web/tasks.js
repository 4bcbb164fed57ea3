// The tasks as arrays.

const graph = JSON.parse(document.getElementById("graph").textContent);
const tasks = {};

async function unpackTasks() {
  const { lengths, data } = JSON.parse(document.getElementById("packed").textContent);
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  let at = 0;
  for (const [name, [length, type]] of Object.entries(lengths)) {
    tasks[name] = new (type === "f" ? Float32Array : Int32Array)(buffer, 4 * at, length);
    at += length;
  }
  graph.isValue = graph.names.map((name) => graph.values.includes(name));
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
  return `${Number((value / scale).toPrecision(3))}\u00a0${prefix}s`;
}

function taskText(task) {
  const kind = graph.kinds[tasks.kind[task]].name;
  const worker = graph.workers[tasks.worker[task]].name;
  return `${kind}, step ${tasks.step[task]}, ${columnName(tasks.column[task])}, ${worker}: `
    + `${seconds(tasks.weight[task])}${tasks.critical[task] ? ", critical" : ""}`;
}

function inBytes(value) {
  const prefixes = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [scale, prefix] = prefixes.find((p) => value >= p[0]) ?? [1, ""];
  return `${Number((value / scale).toPrecision(3))}\u00a0${prefix}B`;
}
