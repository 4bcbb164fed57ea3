// Search for tasks: a kernel or worker by name, then step and column, as in "gemm 3 5".

const MOST_FOUND = 12;

function matching(text) {
  const words = text.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const numbers = words.filter((word) => /^\d+$/.test(word)).map(Number);
  const names = words.filter((word) => !/^\d+$/.test(word) && !/^(step|column)$/.test(word));
  const fits = (named, word) => named.name.toLowerCase().startsWith(word);
  const kinds = graph.kinds.map((kind) => names.filter((word) => fits(kind, word)).length);
  const workers = graph.workers.map((worker) => names.filter((word) => fits(worker, word)).length);
  const byColumn = words[words.indexOf(String(numbers[0])) - 1] === "column";
  const [step, column] = byColumn ? [numbers[1], numbers[0]] : numbers;
  const found = [];
  for (let task = 0; task < tasks.count && words.length; task += 1) {
    const named = kinds[tasks.kind[task]] + workers[tasks.worker[task]];
    if (named < names.length || (step !== undefined && tasks.step[task] !== step)) continue;
    if (column === undefined || tasks.column[task] === column) found.push(task);
  }
  return found;
}

function showMatches() {
  const input = document.getElementById("search");
  const list = document.getElementById("found");
  const found = matching(input.value);
  list.replaceChildren();
  list.hidden = !input.value.trim();
  if (list.hidden) return;
  element("p", `${found.length} ${found.length === 1 ? "task" : "tasks"}`, list);
  for (const task of found.slice(0, MOST_FOUND)) {
    const link = element("a", taskText(task), list);
    link.href = player?.run.taskBox ? `#run=${task}` : `#task=${task}`;
  }
}

function listenToSearch() {
  const input = document.getElementById("search");
  const list = document.getElementById("found");
  input.addEventListener("input", showMatches);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") list.querySelector("a")?.click();
    if (event.key === "Enter" || event.key === "Escape") { list.hidden = true; input.blur(); }
    event.stopPropagation();
  });
  list.addEventListener("click", () => { list.hidden = true; });
}
