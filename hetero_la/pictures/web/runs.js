// Runs: their boxes by row, and tracks over time.

const runs = [];

function readRuns() {
  graph.runs.forEach((about, number) => {
    const prefix = `${number}.`;
    const names = Object.keys(tasks).filter((name) => name.startsWith(prefix));
    const run = { ...about, ...Object.fromEntries(names.map((n) => [n.slice(prefix.length), tasks[n]])) };
    for (const name of names) delete tasks[name];
    run.rows = rowsOf(run, about.rows);
    runs.push(run);
  });
}

// The boxes lie row by row, and by time within a row; rows without any are left out.
function rowsOf(run, names) {
  const rows = [];
  for (let from = 0; from < run.row.length;) {
    let to = from;
    while (to < run.row.length && run.row[to] === run.row[from]) to += 1;
    const worker = Math.floor(run.row[from] / names.length);
    rows.push({ from, to, worker, key: run.row[from], name: names[run.row[from] % names.length] });
    from = to;
  }
  return rows;
}

// Number of values of a sorted array that are at most `value`.
function countUpTo(values, value, from = 0, to = values.length) {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

// The box of a row at a time.  Boxes of a queue follow one another, so the last that has begun
// is the one, if it has not ended.
function boxAt(run, row, time, slack = 0) {
  for (let at = countUpTo(run.begin, time + slack, row.from, row.to) - 1; at >= row.from; at -= 1) {
    if (run.end[at] + slack >= time) return at;
    if (row.to - at > 8 && run.end[at] + 50 * slack < time) break;
  }
  return null;
}

function boxText(run, box) {
  const kind = run.kinds[run.name[box]].name;
  const columns = run.first[box] < 0 ? "" : run.last[box] > run.first[box]
    ? `, columns ${run.first[box]} to ${run.last[box]}` : `, ${columnName(run.first[box])}`;
  const step = run.boxStep[box] < 0 ? "" : `, step ${run.boxStep[box]}`;
  return `${kind}${step}${columns}: ${seconds(run.end[box] - run.begin[box])}, from ${seconds(run.begin[box])} on`;
}

// The value of a step function at a time.
function valueAt(times, values, time) {
  const at = countUpTo(times, time) - 1;
  return at < 0 ? 0 : values[at];
}
