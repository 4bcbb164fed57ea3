// The clock of a run, its controls, and the two pictures that follow it.

const WHOLE = 20; // seconds in which a run is played at speed 1
const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];

class Player {
  constructor() {
    this.at = (id) => document.getElementById(id);
    this.moved = false; // until the reader, or the address, moves the cursor
    this.playing = false;
    this.speed = 1;
    this.withGhost = true;
    this.maps = new Map();
    this.choose(0);
    this.listen();
  }

  // Show a run; predictions of the same graph are ghosts behind a measured one.
  choose(number) {
    this.number = number;
    this.run = runs[number];
    this.timeline = new Timeline(this.at("scroller"), this.run);
    this.setGhost();
    if (this.run.taskBox && !this.maps.has(number)) this.maps.set(number, new TileMap(this.run));
    this.map = this.maps.get(number) ?? null;
    this.time = this.moved ? Math.min(this.time, this.run.seconds) : this.middle();
    this.at("mapped").hidden = this.map === null;
    this.at("run").classList.toggle("unmapped", this.map === null);
    this.showParts();
    this.showChosen(null);
    this.redraw();
  }

  // When a task is at work that as many have begun before as after: at half the time of a run its
  // first one may still be to come.
  middle() {
    if (!this.map?.order.length) return this.run.seconds / 2;
    const { order, begin, end } = this.map;
    const task = order[order.length >> 1];
    return (begin[task] + end[task]) / 2;
  }

  setGhost() {
    const other = runs.find((run) => run.predicted && run !== this.run && run.taskBox);
    const has = other !== undefined && !this.run.predicted && this.run.taskBox !== undefined;
    this.at("ghost").hidden = !has;
    this.timeline.ghost = has && this.withGhost ? other : null;
    this.at("ghost").setAttribute("aria-pressed", String(this.withGhost));
    this.timeline.fit();
  }

  listen() {
    const click = (id, act) => { this.at(id).onclick = () => { act(); this.redraw(); }; };
    click("play", () => this.toggle());
    click("first", () => this.seek(0));
    click("back", () => this.step(-1));
    click("forth", () => this.step(1));
    click("ghost", () => { this.withGhost = !this.withGhost; this.setGhost(); });
    click("by", () => this.colourBy());
    click("wider", () => this.timeline.zoom(1.6, this.time));
    click("narrower", () => this.timeline.zoom(1 / 1.6, this.time));
    click("all", () => this.timeline.fit());
    this.at("scrub").oninput = () => this.seek(this.at("scrub").value / 1e4 * this.run.seconds);
    this.at("speed").onchange = () => { this.speed = Number(this.at("speed").value); };
    this.at("which").onchange = () => this.choose(Number(this.at("which").value));
    for (const speed of SPEEDS) this.at("speed").append(new Option(`${speed}×`, speed, speed === 1, speed === 1));
    runs.forEach((run, at) => this.at("which").append(
      new Option(`${run.predicted ? "predicted" : "measured"}, ${seconds(run.seconds)}: ${run.title.split(",")[0]}`, at)));
    this.at("which").hidden = runs.length < 2;
    this.listenToTimeline();
    const map = this.at("map");
    map.addEventListener("mousemove", (event) => this.tipOfTile(event));
    map.addEventListener("mouseleave", hideTip);
  }

  listenToTimeline() {
    const scroller = this.at("scroller");
    let held = null;
    scroller.addEventListener("scroll", () => { this.timeline.stale = true; this.redraw(); }, { passive: true });
    scroller.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) < Math.abs(event.deltaY)) return;
      event.preventDefault();
      if (event.ctrlKey) this.timeline.zoom(Math.exp(-event.deltaY / 300), this.timeline.time(event.offsetX));
      else this.timeline.pan(event.deltaX || event.deltaY);
      this.redraw();
    }, { passive: false });
    scroller.addEventListener("pointerdown", (event) => { held = { x: event.offsetX, moved: 0 }; });
    scroller.addEventListener("pointermove", (event) => {
      if (held && event.buttons) {
        held.moved += Math.abs(event.movementX);
        if (held.moved > 4) this.timeline.pan(-event.movementX);
        this.redraw();
      } else this.tipOfBox(event);
    });
    scroller.addEventListener("pointerleave", hideTip);
    scroller.addEventListener("pointerup", (event) => {
      if (held && held.moved <= 4) this.clickAt(event);
      held = null;
    });
    scroller.addEventListener("dblclick", () => { this.timeline.fit(); this.redraw(); });
  }

  place(event) {
    const box = this.at("lanes").getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  clickAt(event) {
    const [x, y] = this.place(event);
    const box = this.timeline.at(x, y);
    this.seek(this.timeline.time(x));
    this.showChosen(box);
  }

  tipOfBox(event) {
    const box = this.timeline.at(...this.place(event));
    if (box === null) hideTip(); else showTip(event, boxText(this.run, box));
  }

  tipOfTile(event) {
    const tile = this.map?.at(event.offsetX, event.offsetY);
    if (!tile) { hideTip(); return; }
    const task = this.map.state[tile[1] * this.map.nr + tile[0]];
    showTip(event, `tile ${tile[0]}, ${tile[1]}: ${task < 0 ? "untouched" : taskText(task)}`);
  }

  seek(time) {
    this.moved = true;
    this.time = Math.min(Math.max(time, 0), this.run.seconds);
    this.redraw();
  }

  toggle() {
    if (!this.playing && (!this.moved || this.time >= this.run.seconds)) this.time = 0;
    this.moved = true;
    this.playing = !this.playing;
    this.before = null;
  }

  // To the start of the next or the previous step.
  step(by) {
    const begins = Array.from({ length: this.run.steps.length / 2 }, (_, at) => this.run.steps[2 * at])
      .filter((time) => time >= 0).sort((a, b) => a - b);
    const next = by > 0 ? begins.find((time) => time > this.time * (1 + 1e-6) + 1e-12)
      : begins.findLast((time) => time < this.time * (1 - 1e-6) - 1e-12);
    this.seek(next ?? (by > 0 ? this.run.seconds : 0));
  }

  colourBy() {
    for (const map of this.maps.values()) map.byWorker = !map.byWorker;
    this.at("by").textContent = this.map?.byWorker ? "colour: worker" : "colour: kernel";
    this.showLegend();
  }

  showLegend() {
    const legend = this.at("legend");
    legend.replaceChildren();
    const entry = (colour, text) => {
      const item = element("span", null, legend);
      element("span", null, item).className = "swatch";
      item.firstChild.style.background = colour;
      item.append(text);
    };
    if (this.map?.byWorker) graph.workers.slice(0, 16).forEach(({ colour, name }) => entry(colour, name));
    else {
      const roles = Map.groupBy?.(graph.kinds, (kind) => kind.colour)
        ?? graph.kinds.reduce((all, kind) => all.set(kind.colour, [...all.get(kind.colour) ?? [], kind]), new Map());
      for (const [colour, kinds] of roles) entry(colour, kinds.map((kind) => kind.name).join(", "));
    }
    entry(ink.done, "finished");
    element("p", "Bright: being computed by the numbered worker. Pale: waiting for its next task.", legend);
  }

  // The parts of each worker's time, on average.
  showParts() {
    const { parts, seconds: whole } = this.run;
    const names = Object.keys(parts[0] ?? {});
    const shares = names.map((name) =>
      [name, parts.reduce((sum, part) => sum + part[name], 0) / parts.length / Math.max(whole, 1e-30)]);
    this.at("parts").textContent = shares.filter(([, share]) => share >= 0.005)
      .map(([name, share]) => `${name} ${Math.round(100 * share)} %`).join(", ");
    this.at("summary").textContent = `${this.run.summary}; lower bounds at these kernel times: `
      + `work / workers ${seconds(this.run.work)}, critical path ${seconds(this.run.path)}`;
    this.at("title").textContent = this.run.title;
  }

  showChosen(box) {
    this.timeline.chosen = box;
    this.timeline.stale = true;
    const about = this.at("chosen");
    about.replaceChildren();
    if (box !== null) {
      about.append(boxText(this.run, box));
      const task = this.run.boxTask[box];
      if (task >= 0) {
        about.append("; ");
        element("a", "its task and tiles", about).href = `#task=${task}`;
      }
    }
    this.redraw();
  }

  showTask(task) {
    const box = this.run.taskBox?.[task];
    if (box === undefined) return;
    this.timeline.reveal(box);
    this.showChosen(box);
    this.seek((this.run.begin[box] + this.run.end[box]) / 2);
  }

  resize() {
    this.timeline.stale = true;
    this.showLegend();
    this.redraw();
  }

  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.asked = false;
    if (this.at("run").hidden) { this.playing = false; return; }
    if (this.playing) {
      const passed = this.before === null ? 0 : (now - this.before) / 1e3;
      this.before = now;
      this.time += passed * this.speed * this.run.seconds / WHOLE;
      if (this.time >= this.run.seconds) [this.time, this.playing] = [this.run.seconds, false];
    }
    this.draw();
    if (this.playing) this.redraw();
  }

  draw() {
    this.timeline.draw(this.time);
    if (this.map) {
      const box = this.at("mapped");
      const glow = Math.max(this.run.seconds * this.speed / WHOLE / 5, 1e-9);
      this.map.draw(this.at("map"), box.clientWidth, this.at("frame").clientHeight, this.time, glow);
    }
    this.at("play").textContent = this.playing ? "pause" : "play";
    this.at("scrub").value = 1e4 * this.time / Math.max(this.run.seconds, 1e-30);
    this.at("now").textContent = `${seconds(this.time)} of ${seconds(this.run.seconds)}`;
  }

  onKey(event) {
    const far = (this.timeline.to - this.timeline.from) / 100;
    const act = {
      " ": () => this.toggle(), ArrowLeft: () => this.seek(this.time - far),
      ArrowRight: () => this.seek(this.time + far), ",": () => this.step(-1), ".": () => this.step(1),
      Home: () => this.seek(0), End: () => this.seek(this.run.seconds),
      "+": () => this.timeline.zoom(1.6, this.time), "=": () => this.timeline.zoom(1.6, this.time),
      "-": () => this.timeline.zoom(1 / 1.6, this.time), 0: () => this.timeline.fit(),
      c: () => this.colourBy(), g: () => this.at("ghost").click(),
      "[": () => this.faster(-1), "]": () => this.faster(1), Escape: () => this.showChosen(null),
    }[event.key];
    if (!act) return;
    act();
    event.preventDefault();
    this.redraw();
  }

  faster(by) {
    const at = SPEEDS.indexOf(this.speed) + by;
    this.speed = SPEEDS[Math.min(Math.max(at, 0), SPEEDS.length - 1)];
    this.at("speed").value = this.speed;
  }
}
