// The page's sections, from the numbers in its data element.

const data = JSON.parse(document.getElementById("data").textContent);
const section = (id) => document.getElementById(id);

function addTable(parent, header, rows) {
  const table = element("table", element("div", parent, { class: "scroll" }));
  const head = element("tr", element("thead", table));
  for (const name of header) element("th", head, {}, name);
  const body = element("tbody", table);
  for (const { cells, kind } of rows) {
    const row = element("tr", body, kind ? { class: kind } : {});
    for (const cell of cells) element("td", row, {}, cell);
  }
}

function showRuns() {
  const list = (values) => values.join(", ");
  addTable(section("runs"), ["run", "algorithm", "environment", "trained under", "probability", "limit", "seeds", "steps", "qcrl", "device"],
    data.runs.map((r) => ({
      cells: [r.name, r.label, r.environment, r.constraint, list(r.probabilities), list(r.limits), r.seeds, short(r.steps), r.versions.qcrl || "–", r.versions.device || "–"],
    })));
  for (const problem of data.problems) element("p", section("runs"), { class: "note over" }, `Left out: ${problem}`);
}

function showCurves() {
  const parent = section("curves"), labels = [...new Set(data.curves.map((c) => c.label))];
  const hidden = new Set(), legend = element("div", parent, { class: "legend" }), holder = element("div", parent);
  labels.forEach((label, i) => {
    const button = element("button", legend, { type: "button", "aria-pressed": "true" });
    button.innerHTML = swatch(style(i)) + escaped(label);
    button.addEventListener("click", () => {
      hidden.has(label) ? hidden.delete(label) : hidden.add(label);
      button.setAttribute("aria-pressed", String(!hidden.has(label)));
      draw();
    });
  });
  const draw = () => {
    holder.replaceChildren();
    for (const environment of new Set(data.curves.map((c) => c.environment))) {
      element("h3", holder, {}, environment);
      const panels = element("div", holder, { class: "panels" });
      const shown = data.curves.filter((c) => c.environment === environment && !hidden.has(c.label));
      for (const name of data.columns) drawColumn(panels, name, shown.filter((c) => c.columns[name]?.x.length), labels);
    }
  };
  draw();
}

function drawColumn(panels, name, curves, labels) {
  if (!curves.length) return;
  const series = curves.map((c) => {
    const { x, mean, std } = c.columns[name];
    return { label: c.label, style: style(labels.indexOf(c.label)), x, y: mean, std: c.seeds > 1 ? std : null };
  });
  const asked = (c) => (name === "outage" ? c.probability : name === "episode_cost" ? c.limit : c.bounds?.[name]);
  const targets = curves.map(asked).filter((y) => y !== undefined);
  // Early costs of many times the limit would flatten all that follows: the axis is made for what comes after the start.
  const settled = (s) => (name === "episode_cost" ? s.y.slice(Math.floor(s.y.length / 5)) : s.y);
  const highest = Math.max(...series.flatMap(settled), ...targets), lowest = Math.min(...series.flatMap((s) => s.y));
  const floor = name === "episode_return" ? lowest : 0;
  const room = 0.12 * (highest - floor || 1);
  const yHigh = name === "outage" ? Math.min(1, highest + room) : highest + room;
  const ends = series.map((s) => s.y[s.y.length - 1]).filter((y) => y > 0);
  const log = name.startsWith("multiplier") && Math.max(...ends) > data.spread * Math.min(...ends);
  const yLow = log ? Math.min(...ends) / 10 : name === "episode_return" ? lowest - room : 0;
  drawChart(panels, { title: data.titles[name] || name.replaceAll("_", " "), xLabel: "environment steps", series, marks: [...new Set(targets)].map((y) => ({ y })), yLow, yHigh, log });
}

function showSeeds() {
  const header = ["seed", "p", "limit", "episodes", "outages", "outage", "95% interval", "return", "± std", "mean cost", "mean cost over the limit", "cost quantile", "CVaR", "outage by Weibull tail", "outage by Gaussian"];
  const fixed = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const cells = (name, row) => [name, row.probability, row.limit, row.episodes, row.outages, fixed(row.outage, 4),
    `${fixed(row.outage_low, 4)} to ${fixed(row.outage_high, 4)}`, fixed(row.mean_return, 2), fixed(row.std_return, 2),
    fixed(row.mean_cost, 2), fixed(row.mean_cost_over, 2), fixed(row.cost_quantile, 2), fixed(row.cvar, 2), fixed(row.weibull?.outage, 4), fixed(row.gaussian?.outage, 4)];
  for (const evaluation of data.evaluations) {
    element("h3", section("seeds"), {}, `${evaluation.run}: ${evaluation.name}`);
    const rows = evaluation.pooled.flatMap((pooled) => {
      const own = evaluation.rows.filter((r) => r.probability === pooled.probability && r.limit === pooled.limit);
      const all = { cells: cells(own.length === 1 ? "1 seed" : `all ${own.length} seeds`, pooled), kind: "pooled" };
      return [...own.map((r) => ({ cells: cells(r.seed, r) })), all];
    });
    addTable(section("seeds"), header, rows);
    showTogether(evaluation);
  }
}

function showTogether(evaluation) {
  const rows = evaluation.pooled.flatMap((pooled) => {
    const each = (pooled.constraints || []).map((c) => ({
      cells: [c.words, short(c.measured, 4), c.low === null ? "–" : `${short(c.low, 4)} to ${short(c.high, 4)}`, short(c.bound, 4), c.judged, c.mean_cost_over === null ? "–" : short(c.mean_cost_over, 4)],
    }));
    if (pooled.outage_any !== null && pooled.outage_any !== undefined) {
      each.push({ cells: ["over the limit of any outage constraint", short(pooled.outage_any, 4), "–", "–", "–", "–"], kind: "pooled" });
    }
    return each;
  });
  if (rows.length) addTable(section("seeds"), ["constraints that hold together", "measured", "95% interval", "asked for", "judged", "mean cost over the limit"], rows);
}

function showDistribution() {
  const parent = section("distribution");
  const legend = element("div", parent, { class: "legend" });
  const drawn = (tail) => data.evaluations.some((evaluation) => evaluation.distributions.some((d) => d.tails[tail]));
  const kinds = [["episodes", 0]];
  if (drawn("weibull")) kinds.push(["Weibull tail", 1]);
  if (drawn("gaussian")) kinds.push(["Gaussian", 2]);
  legend.innerHTML = kinds.map(([name, i]) => `<span>${swatch(style(i))}${name}</span>`).join("") +
    `<span>◆ cost quantile at 1 − p</span><span>dotted: limit and asked outage</span>`;
  const panels = element("div", parent, { class: "panels" });
  for (const evaluation of data.evaluations) {
    for (const d of evaluation.distributions) {
      const series = [{ label: "episodes", style: style(0), x: d.x, y: d.share, stairs: true }];
      for (const [tail, name, i] of [["weibull", "Weibull tail", 1], ["gaussian", "Gaussian", 2]]) {
        if (d.tails[tail]) series.push({ label: name, style: style(i), x: d.fine, y: d.tails[tail] });
      }
      const holder = element("div", panels);
      drawChart(holder, {
        title: `${evaluation.run}, p = ${d.probability}, limit ${d.limit}`, xLabel: "episode cost", series, log: true, yLow: 0.5 / d.episodes, yHigh: 1,
        xHigh: d.fine[d.fine.length - 1], marks: [{ x: d.limit }, { y: d.probability }], point: { x: d.quantile, y: d.probability },
      });
      element("p", holder, { class: "note" }, evaluation.name);
    }
  }
}

function showCertificates() {
  const parent = section("certificates");
  if (!data.certificates.length) return element("p", parent, { class: "note" }, "None of these runs has one; qcrl certify makes it.");
  const cards = element("div", parent, { class: "cards" });
  for (const c of data.certificates) {
    const card = element("div", cards, { class: `card ${c.verdict}` });
    element("strong", card, {}, c.verdict);
    if (c.constraints.length) {
      element("p", card, {}, `${c.run} on ${c.environment.id} (${c.engine} engine), ${c.episodes} episodes, ${short(100 * c.confidence, 4)}% confidence for each:`);
      for (const row of c.constraints) element("p", card, {}, row.words);
      element("code", card, {}, `${c.file} · policy ${String(c.policy_sha256).slice(0, 16)}…`);
      continue;
    }
    element("p", card, {}, `${c.run}: Pr(cost > ${c.limit}) ≤ ${c.probability} on ${c.environment.id} (${c.engine} engine)`);
    element("p", card, {}, `${c.outages} outages in ${c.episodes} episodes; at ${short(100 * c.confidence, 4)}% confidence the outage is at most ${short(c.upper_bound, 4)}, and at least ${short(c.lower_bound, 4)}`);
    if (c.parts.length) element("p", card, {}, `A mixture: ${c.parts.map((part) => `${part.policy} in ${short(100 * part.weight, 3)}% of episodes`).join(", ")}`);
    if (c.candidates > 1) element("p", card, {}, `Chosen among ${c.candidates} policies, on other episodes${c.attempt > 1 ? `; attempt ${c.attempt}` : ""}`);
    element("code", card, {}, `${c.file} · policy ${String(c.policy_sha256).slice(0, 16)}…`);
  }
}

showRuns();
showCurves();
showSeeds();
showDistribution();
showCertificates();
if (data.replays.length) new Player(section("replay"), data.replays);
else element("p", section("replay"), { class: "note" }, "No episode was recorded for this page.");
document.querySelector("footer").textContent = `Made by qcrl ${data.version}. Everything shown is in this file.`;
document.title = `qcrl report: ${data.runs.map((r) => r.name).join(", ")}`;
