// What a timeline shows under its rows: steps, ready tasks, memory, links.

const READY = "#E69F00";
const WORKING = "#0072B2";
const BETWEEN = "#CC79A7";
const HOST = "#009E73";
const TRACKS = [
  { name: "steps", high: 84, draw: drawSteps, value: stepsText, marks: {} },
  { name: "tasks", high: 52, draw: drawTasks, value: tasksText, marks: { ready: READY, "at work": WORKING } },
  { name: "memory", high: 48, draw: drawMemory, value: memoryText, marks: {} },
  { name: "links", high: 52, draw: drawLinks, value: linksText, marks: { workers: BETWEEN, host: HOST } },
];

// A step function as a filled shape; `box` maps times and values, from 0 to `most`, to pixels.
function fillStep(pen, box, times, values, most, colour, alpha) {
  const first = Math.max(countUpTo(times, box.from) - 1, 0);
  pen.beginPath();
  pen.moveTo(box.x(Math.max(times[first], box.from)), box.y + box.high);
  // Where several values fall on one pixel, the largest is drawn.
  for (let at = first; at < times.length && times[at] <= box.to;) {
    const x = box.x(Math.max(times[at], box.from));
    let value = values[at];
    for (at += 1; at < times.length && box.x(times[at]) < x + 1; at += 1) value = Math.max(value, values[at]);
    const y = box.y + box.high * (1 - value / Math.max(most, 1e-30));
    pen.lineTo(x, y);
    pen.lineTo(at < times.length ? Math.min(box.x(times[at]), box.x(box.to)) : box.x(Math.min(box.end, box.to)), y);
  }
  pen.lineTo(box.x(Math.min(box.end, box.to)), box.y + box.high);
  pen.globalAlpha = alpha;
  pen.fillStyle = colour;
  pen.fill();
  pen.globalAlpha = 1;
}

const mostOf = (values) => values.reduce((a, b) => Math.max(a, b), 0);

// Each step from its first call to its last: those side by side are look-ahead.
function drawSteps(pen, box, run) {
  const count = run.steps.length / 2;
  const high = box.high / Math.max(count, 1);
  for (let step = 0; step < count; step += 1) {
    const [from, to] = run.steps.subarray(2 * step, 2 * step + 2);
    if (!(to >= box.from && from <= box.to)) continue;
    const left = box.x(Math.max(from, box.from));
    pen.fillStyle = step % 2 ? "#56B4E9" : "#0072B2";
    pen.fillRect(left, box.y + step * high, Math.max(box.x(Math.min(to, box.to)) - left, 1), Math.max(high, 1));
  }
}

function stepsText(run, time) {
  const now = [];
  for (let step = 0; 2 * step < run.steps.length; step += 1) {
    if (run.steps[2 * step] <= time && time < run.steps[2 * step + 1]) now.push(step);
  }
  if (now.length > 1) return `${now[0]}–${now.at(-1)}`;
  return now.length ? `${now[0]}` : "none";
}

function drawTasks(pen, box, run) {
  const most = Math.max(mostOf(run.ready), mostOf(run.running), 1);
  fillStep(pen, box, run.readyTimes, run.ready, most, READY, 0.55);
  fillStep(pen, box, run.runningTimes, run.running, most, WORKING, 0.55);
}

function tasksText(run, time) {
  const [ready, running] = [[run.readyTimes, run.ready], [run.runningTimes, run.running]]
    .map(([times, values]) => valueAt(times, values, time));
  return `${ready} ready, ${running} at work`;
}

const memoryOf = (run, worker) => ["memoryTimes", "memory"]
  .map((name) => run[name].subarray(run.memoryAt[worker], run.memoryAt[worker + 1]));

// One line for each worker, against the most that one of them can need.
function drawMemory(pen, box, run) {
  const most = mostOf(run.peak);
  run.workers.forEach((_, worker) => {
    const [times, values] = memoryOf(run, worker);
    fillStep(pen, box, times, values, most, graph.workers[worker]?.colour ?? WORKING, Math.max(0.8 / run.workers.length, 0.06));
  });
}

function memoryText(run, time) {
  const all = run.workers.map((_, worker) => valueAt(...memoryOf(run, worker), time));
  return `${inBytes(mostOf(all))} of ${inBytes(mostOf(run.peak))}`;
}

function linkTimes(run) {
  const count = run.between.length;
  return Float32Array.from({ length: count }, (_, at) => at * run.seconds / count);
}

function drawLinks(pen, box, run) {
  run.linkTimes ??= linkTimes(run);
  const most = Math.max(mostOf(run.between), mostOf(run.host));
  fillStep(pen, box, run.linkTimes, run.between, most, BETWEEN, 0.8);
  fillStep(pen, box, run.linkTimes, run.host, most, HOST, 0.5);
}

function linksText(run, time) {
  run.linkTimes ??= linkTimes(run);
  const each = run.seconds / run.between.length;
  const rates = [run.between, run.host].map((bytes) => valueAt(run.linkTimes, bytes, time) / each);
  const host = mostOf(run.host) ? `, host ${inBytes(rates[1])}/s` : "";
  return `${inBytes(rates[0])}/s${host}`;
}
