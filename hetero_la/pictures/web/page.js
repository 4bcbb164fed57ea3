// Where the page is, by the part of its address after "#": the run, the whole graph, a step, or
// a task.

let picture = null;
let player = null;
let sheet = null;
let shownHash = null; // a task is shown once, and not again when the window changes
const HEADING = 56; // height of the heading of a picture, which the page has of its own

// The picture of the whole graph, which can be made larger and smaller.
class Sheet {
  constructor() {
    this.section = document.getElementById("whole");
    this.svg = this.section.querySelector("svg");
    const [wide, high] = ["width", "height"].map((name) => Number(this.svg.getAttribute(name)));
    this.natural = [wide, high - HEADING];
    this.svg.setAttribute("height", high - HEADING);
    this.svg.setAttribute("viewBox", `0 ${HEADING} ${wide} ${high - HEADING}`);
    this.zoom = 0; // 0: as large as the window allows
    const on = (name, act) => { this.section.querySelector(`.${name}`).onclick = act; };
    on("fit", () => this.set(0));
    on("in", () => this.magnify(1.25));
    on("out", () => this.magnify(0.8));
    this.svg.addEventListener("click", (event) => {
      const link = event.target.dataset.link;
      if (link) location.hash = link;
    });
  }

  // As wide as the window; a tall picture is enlarged only a little, and scrolls.
  fitted() {
    const [wide, high] = this.natural;
    const room = this.section.querySelector(".scroll").clientWidth;
    const tall = document.querySelector("main").clientHeight - 56;
    return wide * Math.min(Math.max(room, 640) / wide, Math.max(tall / high, 1.6));
  }

  set(zoom) {
    this.zoom = zoom;
    this.svg.style.width = `${zoom ? zoom * this.natural[0] : this.fitted()}px`;
  }

  magnify(factor) {
    this.set(Math.min(Math.max((this.svg.clientWidth / this.natural[0]) * factor, 0.1), 8));
  }
}

function place() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name, limit) => {
    const text = given.get(name) ?? "";
    return /^\d+$/.test(text) && Number(text) < limit ? Number(text) : null;
  };
  if (player && (given.has("run") || !location.hash)) {
    return { view: "run", step: null, task: number("run", tasks.count) };
  }
  const task = number("task", tasks.count);
  const step = task === null ? number("step", graph.steps) : tasks.step[task];
  return { view: step === null ? "whole" : "step", step, task };
}

function show() {
  const { view, step, task } = place();
  for (const id of ["whole", "run", "step"]) document.getElementById(id).hidden = id !== view;
  hideTip();
  showCrumbs(view, step, task);
  if (view === "step") showStep(step, task);
  if (view === "whole") sheet.set(sheet.zoom);
  if (view === "run") showRun(task);
  shownHash = location.hash;
}

function showRun(task) {
  player.showParts();
  player.resize();
  if (task !== null && location.hash !== shownHash) player.showTask(task);
}

function showStep(step, task) {
  document.getElementById("previous").disabled = step === 0;
  document.getElementById("next").disabled = step === graph.steps - 1;
  const room = document.querySelector("main").clientHeight;
  picture = new StepPicture(step, document.querySelector(".halves .scroll").clientWidth, room - 80);
  picture.draw(task);
  drawTiles(task);
  showFacts(task);
}

function showCrumbs(view, step, task) {
  document.getElementById("to-run").hidden = player === null;
  for (const name of ["run", "whole"]) {
    const link = document.getElementById(`to-${name}`);
    if (view === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const crumbs = document.getElementById("crumbs");
  crumbs.replaceChildren();
  if (view !== "run") {
    document.getElementById("title").textContent = graph.title;
    document.getElementById("summary").textContent = graph.summary;
  }
  if (step === null) return;
  const text = `› step ${step} (0 to ${graph.steps - 1})`;
  element(task === null ? "span" : "a", text, crumbs).href = `#step=${step}`;
  if (task === null) return;
  element("span", `› ${graph.kinds[tasks.kind[task]].name}, ${columnName(tasks.column[task])}`, crumbs);
}

function goToStep(step) {
  if (step >= 0 && step < graph.steps) location.hash = `step=${step}`;
}

function onKey(event) {
  if (event.altKey || event.metaKey || event.ctrlKey) return;
  const { view, step, task } = place();
  const keys = document.getElementById("keys");
  if (keys.open) { if (event.key === "Escape") keys.close(); return; }
  if (event.key === "/") { document.getElementById("search").focus(); event.preventDefault(); return; }
  if (event.key === "?") keys.showModal();
  // A slider has its own arrows, and the other keys are the player's.
  const own = event.target.matches("input[type=range]") ? /^(Arrow|Home|End|Page)/.test(event.key) : event.target.matches("input, select");
  if (view === "run" && !own) {
    // A button that has the focus would otherwise be pressed too.
    if (event.key === " ") document.activeElement.blur();
    player.onKey(event);
  }
  if (event.key === "Escape" && view === "step") location.hash = task === null ? "graph" : `step=${step}`;
  if (view === "whole" && (event.key === "+" || event.key === "=")) sheet.magnify(1.25);
  if (view === "whole" && event.key === "-") sheet.magnify(0.8);
  if (view === "step" && event.key === "ArrowLeft") goToStep(step - 1);
  if (view === "step" && event.key === "ArrowRight") goToStep(step + 1);
}

function showTip(event, text) {
  const tip = document.getElementById("tip");
  tip.hidden = false;
  tip.textContent = text;
  tip.style.left = `${Math.max(Math.min(event.clientX + 14, window.innerWidth - 350), 4)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - 60)}px`;
}

function hideTip() { document.getElementById("tip").hidden = true; }

function under(event) {
  const box = document.getElementById("tasks").getBoundingClientRect();
  return picture.at(event.clientX - box.left, event.clientY - box.top);
}

function onMove(event) {
  const task = under(event);
  event.target.style.cursor = task === null ? "default" : "pointer";
  if (task === null) hideTip(); else showTip(event, taskText(task));
}

function listen() {
  const canvas = document.getElementById("tasks");
  canvas.addEventListener("click", (event) => {
    const task = under(event);
    if (task !== null) location.hash = `step=${tasks.step[task]}&task=${task}`;
  });
  canvas.addEventListener("mousemove", onMove);
  canvas.addEventListener("mouseleave", hideTip);
  document.getElementById("previous").onclick = () => goToStep(place().step - 1);
  document.getElementById("next").onclick = () => goToStep(place().step + 1);
  document.getElementById("help").onclick = () => document.getElementById("keys").showModal();
  document.getElementById("theme").onclick = (event) => { event.target.textContent = nextTheme(); show(); };
  wantsDark.addEventListener("change", () => { applyTheme(); show(); });
  window.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", show);
  document.addEventListener("change", (event) => { if (event.target.matches("select")) event.target.blur(); });
  window.addEventListener("resize", show);
  listenToSearch();
}

applyTheme();
unpackTasks().then(() => {
  readRuns();
  sheet = new Sheet();
  document.getElementById("run").hidden = runs.length === 0; // the player measures it
  if (runs.length) player = new Player();
  listen();
  show();
  document.body.dataset.ready = "yes";
}, (error) => {
  document.getElementById("summary").textContent = `This browser cannot unpack the tasks: ${error}`;
});
