// Replays: the recorded scene on one canvas, cost and the critic's estimate over time on another.

const COLOURS = { blue: "#0072B2", green: "#009E73", vermillion: "#D55E00", yellow: "#F0E442", purple: "#CC79A7", ink: "#282c34", grey: "#969ba5", paper: "#f0f2f5" };
const TRAIL = 150, MARGIN = 0.4, STEPS_PER_SECOND = { point: 50, "two paths": 2 };

class Player {
  constructor(section, episodes) {
    this.episodes = episodes;
    const chooser = element("div", section, { class: "controls" });
    this.select = element("select", chooser, { "aria-label": "episode" });
    episodes.forEach((episode, i) => element("option", this.select, { value: i }, episode.title));
    const stage = element("div", section, { class: "stage" });
    const left = element("div", stage), right = element("div", stage);
    this.scene = element("canvas", left, { width: 960, height: 960, id: "scene" });
    const controls = element("div", left, { class: "controls" });
    this.button = element("button", controls, { type: "button", id: "play" }, "Play");
    this.scrub = element("input", controls, { type: "range", min: 0, value: 0, id: "scrub", "aria-label": "step" });
    this.speed = element("select", controls, { "aria-label": "speed" });
    for (const factor of [0.5, 1, 2, 4, 8]) element("option", this.speed, { value: factor }, `${factor}×`);
    this.speed.value = 2;
    this.readout = element("div", right, { class: "readout" });
    this.strips = element("canvas", right, { width: 960, height: 640, id: "strips" });
    this.note = element("p", right, { class: "note" });
    this.select.addEventListener("change", () => this.open(+this.select.value));
    this.button.addEventListener("click", () => this.toggle());
    this.scrub.addEventListener("input", () => this.show(+this.scrub.value));
    this.strips.addEventListener("click", (event) => {
      const bounds = this.strips.getBoundingClientRect();
      this.show(Math.round(((event.clientX - bounds.left) / bounds.width) * this.last));
    });
    this.open(0);
  }

  open(index) {
    this.pause();
    this.episode = this.episodes[index];
    this.last = this.episode.costs.length - 1;
    this.scrub.max = this.last;
    this.note.textContent = this.episode.outage
      ? "The critic's estimate is Pr(discounted cost to go > limit − cost so far), and 1 once the limit is passed. Discounting makes it lower than the probability for the whole episode."
      : "This algorithm's critic estimates no distribution, so it has no outage estimate.";
    this.show(0);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.step >= this.last) this.show(0);
    this.playing = true;
    this.button.textContent = "Pause";
    let before = null, position = this.step;
    const advance = (now) => {
      if (!this.playing) return;
      if (Math.floor(position) !== this.step) position = this.step;
      if (before !== null) position += ((now - before) / 1000) * STEPS_PER_SECOND[this.episode.kind] * this.speed.value;
      before = now;
      this.show(Math.min(Math.floor(position), this.last));
      this.step >= this.last ? this.pause() : requestAnimationFrame(advance);
    };
    requestAnimationFrame(advance);
  }

  pause() {
    this.playing = false;
    this.button.textContent = "Play";
  }

  show(step) {
    this.step = step;
    this.scrub.value = step;
    const { costs, returns, outage, limit } = this.episode;
    const over = this.episode.over[step];
    const cells = [["step", `${step} of ${this.last}`], ["return", returns[step].toFixed(2)], [`cost, limit ${limit}`, `${+costs[step].toFixed(2)}${over ? " over" : ""}`, over]];
    if (outage) cells.push(["critic: Pr(over the limit)", outage[step].toFixed(2)]);
    this.readout.replaceChildren();
    for (const [name, value, marked] of cells) {
      const cell = element("div", this.readout);
      element("small", cell, {}, name);
      element("b", cell, { class: marked ? "over" : "", "data-name": name.split(/[,:]/)[0] }, value);
    }
    (this.episode.kind === "point" ? drawPoint : drawTwoPaths)(this.scene, this.episode, step);
    this.drawStrips();
  }

  drawStrips() {
    const pen = this.strips.getContext("2d"), { width, height } = this.strips, { costs, outage, limit } = this.episode;
    pen.clearRect(0, 0, width, height);
    const half = outage ? height / 2 : height;
    const top = 1.2 * Math.max(limit, costs[this.last]);
    drawStrip(pen, { y: 0, width, height: half }, costs, this.step, top, COLOURS.blue, "cost so far", limit);
    if (outage) drawStrip(pen, { y: half, width, height: half }, outage, this.step, 1, COLOURS.purple, "critic: Pr(over the limit)");
  }
}

function drawStrip(pen, box, values, step, top, colour, title, mark) {
  const y0 = box.y + 44, y1 = box.y + box.height - 14;
  const x = (i) => (box.width * i) / Math.max(1, values.length - 1), y = (v) => y1 - (y1 - y0) * Math.min(v / top, 1);
  const line = (from, to) => {
    pen.beginPath();
    for (let i = from; i <= to; i++) pen.lineTo(x(i), y(values[i]));
    pen.stroke();
  };
  pen.fillStyle = "#5f6571";
  pen.font = "24px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.fillText(title, 0, box.y + 28);
  pen.textAlign = "right";
  pen.fillText(mark === undefined ? "0 to 1" : `dashed: limit ${mark}`, box.width, box.y + 28);
  pen.fillStyle = COLOURS.paper;
  pen.fillRect(0, y0, box.width, y1 - y0);
  if (mark !== undefined) {
    pen.strokeStyle = COLOURS.ink;
    pen.lineWidth = 2;
    pen.setLineDash([10, 8]);
    pen.beginPath();
    pen.moveTo(0, y(mark));
    pen.lineTo(box.width, y(mark));
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.strokeStyle = colour;
  pen.globalAlpha = 0.3;
  pen.lineWidth = 3;
  line(step, values.length - 1);
  pen.globalAlpha = 1;
  pen.lineWidth = 4;
  line(0, step);
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x(step), y(values[step]), 8, 0, 7);
  pen.fill();
}

function drawPoint(canvas, e, step) {
  const pen = canvas.getContext("2d"), reach = e.extent + MARGIN, scale = canvas.width / (2 * reach);
  const disc = (x, y, r, fill, stroke, width = 0.02) => {
    pen.beginPath();
    pen.arc(x, y, r, 0, 7);
    paint(fill, stroke, width);
  };
  const paint = (fill, stroke, width = 0.02) => {
    if (fill) { pen.fillStyle = fill; pen.fill(); }
    if (stroke) { pen.strokeStyle = stroke; pen.lineWidth = width; pen.stroke(); }
  };
  const polygon = (points, fill, stroke) => {
    pen.beginPath();
    points.forEach(([x, y]) => pen.lineTo(x, y));
    pen.closePath();
    paint(fill, stroke);
  };
  pen.setTransform(scale, 0, 0, -scale, canvas.width / 2, canvas.height / 2);
  pen.fillStyle = COLOURS.paper;
  pen.fillRect(-reach, -reach, 2 * reach, 2 * reach);
  pen.fillStyle = "#fff";
  pen.fillRect(-e.extent, -e.extent, 2 * e.extent, 2 * e.extent);
  for (const [x, y] of e.hazards) {
    disc(x, y, e.hazard_size, "#d55e003c", COLOURS.vermillion, 0.025);
    pen.save();
    pen.clip();
    for (let k = -1; k <= 1; k += 0.4) {
      pen.beginPath();
      pen.moveTo(x - e.hazard_size, y - (1 - k) * e.hazard_size);
      pen.lineTo(x + e.hazard_size, y + (1 + k) * e.hazard_size);
      paint(null, "#d55e0070", 0.015);
    }
    pen.restore();
  }
  const goal = e.goal[step];
  if (goal) {
    disc(...goal, e.goal_size, "#009e7346", COLOURS.green, 0.03);
    disc(...goal, e.goal_size * 0.6, null, COLOURS.green);
    disc(...goal, e.goal_size * 0.2, COLOURS.green);
  }
  e.buttons.forEach(([x, y], i) => {
    const lit = i === e.goal_button[step];
    if (lit) disc(x, y, e.button_size * 1.7, "#009e7346", COLOURS.green, 0.03);
    disc(x, y, e.button_size, lit ? COLOURS.yellow : e.buttons_live[step] ? COLOURS.grey : COLOURS.paper, COLOURS.ink);
  });
  for (const [x, y, yaw] of e.gremlins[step]) {
    const h = e.gremlin_size, turn = (a, b) => [x + a * Math.cos(yaw) - b * Math.sin(yaw), y + a * Math.sin(yaw) + b * Math.cos(yaw)];
    polygon([turn(h, h), turn(-h, h), turn(-h, -h), turn(h, -h)], COLOURS.purple, COLOURS.ink);
    for (const side of [-0.4, 0.4]) disc(...turn(0.25 * h, side * h), 0.25 * h, "#fff");
  }
  pen.lineCap = "round";
  for (let i = Math.max(1, step - TRAIL); i <= step; i++) {
    pen.globalAlpha = 0.6 * (1 - (step - i) / TRAIL);
    pen.beginPath();
    pen.moveTo(...e.robot[i - 1]);
    pen.lineTo(...e.robot[i].slice(0, 2));
    paint(null, COLOURS.blue, 0.03);
  }
  pen.globalAlpha = 1;
  const [x, y, heading] = e.robot[step], inside = (v) => Math.max(-reach + 0.2, Math.min(reach - 0.2, v));
  const rx = inside(x), ry = inside(y), cos = Math.cos(heading), sin = Math.sin(heading);
  const turn = ([a, b]) => [rx + a * cos - b * sin, ry + a * sin + b * cos];
  disc(rx, ry, 0.13, e.charged[step] ? COLOURS.vermillion : "#fff");
  polygon([[0.06, 0.08], [0.21, 0], [0.06, -0.08]].map(turn), COLOURS.blue);
  disc(rx, ry, 0.1, COLOURS.blue);
  polygon([[0.07, 0], [-0.05, 0.05], [-0.05, -0.05]].map(turn), "#fff");
  if (e.charged[step]) {
    pen.strokeStyle = COLOURS.vermillion;
    pen.lineWidth = 0.06;
    pen.strokeRect(-reach + 0.03, -reach + 0.03, 2 * reach - 0.06, 2 * reach - 0.06);
  }
}

function drawTwoPaths(canvas, e, step) {
  const pen = canvas.getContext("2d"), size = canvas.width;
  const place = (route, share) => {
    const bend = [0, 0.55, -0.55][route];
    return [size * (0.5 + 0.5 * (1.5 * share - 0.75)), size * (0.5 - 0.5 * bend * Math.sin(Math.PI * share))];
  };
  const disc = ([x, y], r, fill, stroke) => {
    pen.beginPath();
    pen.arc(x, y, r * size, 0, 7);
    pen.fillStyle = fill;
    pen.fill();
    pen.strokeStyle = stroke;
    pen.lineWidth = size * 0.008;
    pen.stroke();
  };
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, size, size);
  const taken = e.route[step];
  for (const route of [1, 2]) {
    const colour = e.colours[route - 1];
    pen.globalAlpha = taken === 0 || taken === route ? 1 : 0.3;
    pen.strokeStyle = colour;
    pen.lineWidth = size * 0.014;
    pen.beginPath();
    for (let i = 0; i <= 40; i++) pen.lineTo(...place(route, i / 40));
    pen.stroke();
    for (let i = 1; i < e.length; i++) disc(place(route, i / e.length), 0.015, "#fff", colour);
  }
  pen.globalAlpha = 1;
  disc(place(0, 0), 0.03, "#fff", COLOURS.ink);
  disc(place(0, 1), 0.045, "#b2e2d5", COLOURS.green);
  disc(place(taken, e.position[step] / e.length), 0.025, COLOURS.blue, COLOURS.ink);
}
