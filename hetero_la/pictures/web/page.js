// Where the page is, by the part of its address after "#": the whole, a step, a task, or
// the timeline, if there is one.

let picture = null;

// A picture that can be made larger and smaller.
class Sheet {
  constructor(id) {
    this.section = document.getElementById(id);
    this.svg = this.section.querySelector("svg");
    this.natural = Number(this.svg.getAttribute("width"));
    this.zoom = 0; // 0: as wide as the window
    const on = (name, act) => { this.section.querySelector(`.${name}`).onclick = act; };
    on("fit", () => this.set(0));
    on("in", () => this.magnify(1.25));
    on("out", () => this.magnify(0.8));
    this.svg.addEventListener("click", (event) => {
      const link = event.target.dataset.link;
      if (link) location.hash = link;
    });
  }

  set(zoom) {
    this.zoom = zoom;
    const fitted = Math.min(this.natural, this.section.querySelector(".scroll").clientWidth);
    this.svg.style.width = `${zoom ? zoom * this.natural : fitted}px`;
  }

  magnify(factor) {
    this.set(Math.min(Math.max((this.svg.clientWidth / this.natural) * factor, 0.1), 8));
  }

  // Put a frame around a box.
  mark(box) {
    this.svg.querySelector(".mark")?.remove();
    if (box === null) return;
    const frame = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const [x, y, width, height] = box;
    const shape = { x: x - 3, y: y - 3, width: width + 6, height: height + 6 };
    for (const [name, value] of Object.entries(shape)) frame.setAttribute(name, value);
    frame.setAttribute("class", "mark");
    this.svg.append(frame);
    frame.scrollIntoView({ block: "nearest", inline: "center" });
  }
}

const sheets = {};

function place() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name, limit) => {
    const text = given.get(name) ?? "";
    return /^\d+$/.test(text) && Number(text) < limit ? Number(text) : null;
  };
  if (graph.timeline && given.has("timeline")) {
    return { view: "timeline", step: null, task: number("timeline", tasks.count) };
  }
  const task = number("task", tasks.count);
  const step = task === null ? number("step", graph.steps) : tasks.step[task];
  return { view: step === null ? "whole" : "step", step, task };
}

function show() {
  const { view, step, task } = place();
  for (const id of ["whole", "timeline", "step"]) document.getElementById(id).hidden = id !== view;
  document.getElementById("tip").hidden = true;
  showCrumbs(view, step, task);
  if (view === "step") {
    showStep(step, task);
    return;
  }
  sheets[view].set(sheets[view].zoom);
  if (view === "timeline") sheets[view].mark(task === null ? null : tasks.boxes.subarray(4 * task, 4 * task + 4));
}

function showStep(step, task) {
  document.getElementById("previous").disabled = step === 0;
  document.getElementById("next").disabled = step === graph.steps - 1;
  picture = new StepPicture(step, document.querySelector(".halves .scroll").clientWidth);
  picture.draw(task);
  drawTiles(task);
  showFacts(task);
}

const HINTS = {
  whole: "Choose a mark to see its step; + and − change the size.",
  step: "Choose a task to see its tiles; ← and → go to the steps beside, Esc goes back up.",
  timeline: "Choose a call to see its first task and the tiles; + and − change the size.",
};

function showCrumbs(view, step, task) {
  const crumbs = document.getElementById("crumbs");
  crumbs.replaceChildren();
  const names = [["the whole graph", "#"]];
  if (view === "timeline") names[0] = ["timeline", "#timeline"];
  if (step !== null) names.push([`step ${step} of 0–${graph.steps - 1}`, `#step=${step}`]);
  if (task !== null) {
    names.push([`${graph.kinds[tasks.kind[task]].name}, ${columnName(tasks.column[task])}`,
      view === "timeline" ? `#task=${task}` : ""]);
  }
  names.forEach(([name, address], at) => {
    if (at) element("span", "›", crumbs);
    const linked = address && (at < names.length - 1 || (view === "timeline" && task !== null));
    const crumb = element(linked ? "a" : "span", name, crumbs);
    if (linked) crumb.href = address;
  });
  if (graph.timeline) {
    const [name, address] = view === "timeline" ? ["the graph", "#"] : ["the timeline", "#timeline"];
    const other = element("a", name, crumbs);
    other.href = address;
    other.className = "aside";
  }
  document.getElementById("hint").textContent = HINTS[view];
}

function goToStep(step) {
  if (step >= 0 && step < graph.steps) location.hash = `step=${step}`;
}

function onKey(event) {
  const { view, step, task } = place();
  if (event.key === "Escape" && view === "timeline") location.hash = task === null ? "" : "timeline";
  if (event.key === "Escape" && view === "step") location.hash = task === null ? "" : `step=${step}`;
  if (view !== "step" && (event.key === "+" || event.key === "=")) sheets[view].magnify(1.25);
  if (view !== "step" && event.key === "-") sheets[view].magnify(0.8);
  if (view === "step" && event.key === "ArrowLeft") goToStep(step - 1);
  if (view === "step" && event.key === "ArrowRight") goToStep(step + 1);
}

function under(event) {
  const box = document.getElementById("tasks").getBoundingClientRect();
  return picture.at(event.clientX - box.left, event.clientY - box.top);
}

function onMove(event) {
  const task = under(event);
  const tip = document.getElementById("tip");
  event.target.style.cursor = task === null ? "default" : "pointer";
  tip.hidden = task === null;
  if (task === null) return;
  tip.textContent = taskText(task);
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 350)}px`;
  tip.style.top = `${event.clientY + 16}px`;
}

function listen() {
  const canvas = document.getElementById("tasks");
  canvas.addEventListener("click", (event) => {
    const task = under(event);
    if (task !== null) location.hash = `step=${tasks.step[task]}&task=${task}`;
  });
  canvas.addEventListener("mousemove", onMove);
  canvas.addEventListener("mouseleave", () => { document.getElementById("tip").hidden = true; });
  document.getElementById("previous").onclick = () => goToStep(place().step - 1);
  document.getElementById("next").onclick = () => goToStep(place().step + 1);
  window.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", show);
  window.addEventListener("resize", show);
}

unpackTasks().then(() => {
  sheets.whole = new Sheet("whole");
  if (graph.timeline) sheets.timeline = new Sheet("timeline");
  if (graph.timeline && !location.hash) history.replaceState(null, "", "#timeline");
  listen();
  show();
  document.body.dataset.ready = "yes";
}, (error) => {
  document.getElementById("hint").textContent = `This browser cannot unpack the tasks: ${error}`;
});
