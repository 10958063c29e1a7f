"use strict";
// Line charts as SVG: mean lines with bands, staircases, a log axis, marks, and values under the pointer.

const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];
const DASHES = ["", "7 3", "3 2", "9 3 2 3"];
const style = (index) => ({ color: PALETTE[index % PALETTE.length], dash: DASHES[index % DASHES.length] });

const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

function element(tag, parent, attributes = {}, text = "") {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  parent.append(made);
  return made;
}

function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(digits)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(digits)}k`;
  return `${+value.toPrecision(digits)}`;
}

function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

const decades = (low, high) => {
  const found = [];
  for (let k = Math.floor(Math.log10(high)); 10 ** k >= low * 0.999; k--) found.push(10 ** k);
  return found;
};

function swatch({ color, dash }) {
  return `<svg width="28" height="8" aria-hidden="true"><line x1="0" y1="4" x2="28" y2="4" stroke="${color}" stroke-width="2.4" stroke-dasharray="${dash}"/></svg>`;
}

// chart: {title, xLabel, series: [{label, style, x, y, std, stairs}], marks: [{x | y}], point: {x, y}, yLow, yHigh, xHigh, log}
function drawChart(parent, chart) {
  const width = 480, height = 250;
  const box = { left: 46, right: width - 12, top: 26, bottom: height - 34 };
  const xs = chart.series.flatMap((s) => [s.x[0], s.x[s.x.length - 1]]);
  const xHigh = chart.xHigh || Math.max(...xs, 1e-9);
  const across = (x) => box.left + (box.right - box.left) * (x / xHigh);
  const scale = chart.log ? Math.log10 : (v) => v;
  const { yLow, yHigh } = chart;
  const span = scale(yHigh) - scale(yLow) || 1;
  const up = (y) => {
    const drawn = chart.log ? Math.max(y, yLow / 100) : y; // a log axis has no 0
    return box.bottom - ((box.bottom - box.top) * (scale(drawn) - scale(yLow))) / span;
  };
  const path = (x, y) => x.map((v, i) => `${i ? "L" : "M"}${across(v).toFixed(1)} ${up(y[i]).toFixed(1)}`).join("");
  const parts = [`<text class="title" x="${box.left - 36}" y="13">${escaped(chart.title)}</text>`];
  for (const y of chart.log ? decades(yLow, yHigh) : ticks(yLow, yHigh, 5)) {
    parts.push(`<line x1="${box.left}" x2="${box.right}" y1="${up(y)}" y2="${up(y)}" stroke="#e8ebef"/>`);
    parts.push(`<text x="${box.left - 6}" y="${up(y) + 4}" text-anchor="end">${short(y)}</text>`);
  }
  for (const x of ticks(0, xHigh, 5)) {
    parts.push(`<text x="${across(x)}" y="${box.bottom + 15}" text-anchor="middle">${short(x)}</text>`);
  }
  parts.push(`<text x="${(box.left + box.right) / 2}" y="${height - 4}" text-anchor="middle">${escaped(chart.xLabel)}</text>`);
  const clip = `clip${document.querySelectorAll("clipPath").length}`;
  parts.push(`<clipPath id="${clip}"><rect x="${box.left}" y="${box.top}" width="${box.right - box.left}" height="${box.bottom - box.top}"/></clipPath>`);
  parts.push(`<g clip-path="url(#${clip})">`);
  for (const s of chart.series) {
    if (!s.std) continue;
    const upper = s.y.map((y, i) => y + s.std[i]), lower = s.y.map((y, i) => y - s.std[i]);
    const back = path([...s.x].reverse(), lower.reverse()).replace("M", "L");
    parts.push(`<path d="${path(s.x, upper)}${back}Z" fill="${s.style.color}" opacity=".15"/>`);
  }
  for (const mark of chart.marks || []) {
    const [x1, x2] = mark.x === undefined ? [box.left, box.right] : [across(mark.x), across(mark.x)];
    const [y1, y2] = mark.x === undefined ? [up(mark.y), up(mark.y)] : [box.top, box.bottom];
    parts.push(`<line x1="${x1}" x2="${x2}" y1="${y1}" y2="${y2}" stroke="#5f6571" stroke-dasharray="1.5 2.5"/>`);
  }
  for (const s of chart.series) {
    const [x, y] = s.stairs ? stairs(s.x, s.y, xHigh) : [s.x, s.y];
    parts.push(`<path class="line" d="${path(x, y)}" fill="none" stroke="${s.style.color}" stroke-width="1.9" stroke-dasharray="${s.style.dash}"/>`);
  }
  parts.push("</g>");
  if (chart.point) {
    const x = across(chart.point.x), y = up(chart.point.y);
    parts.push(`<path d="M${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}L${x - 6} ${y}Z" fill="${PALETTE[0]}"/>`);
  }
  parts.push(`<line class="cursor" y1="${box.top}" y2="${box.bottom}" stroke="#282c34" visibility="hidden"/>`);
  const holder = element("div", parent, { class: "chart" });
  holder.innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${escaped(chart.title)}">${parts.join("")}</svg>`;
  followPointer(holder, chart, across, (pixel) => ((pixel - box.left) / (box.right - box.left)) * xHigh, width, xHigh);
  return holder;
}

function stairs(x, y, end) {
  const outX = [], outY = [];
  x.forEach((value, i) => {
    outX.push(value, i + 1 < x.length ? x[i + 1] : end);
    outY.push(y[i], y[i]);
  });
  return [outX, outY];
}

function valueAt(series, x) {
  if (x > series.x[series.x.length - 1] && !series.stairs) return null;
  let place = series.x.findIndex((v) => v > x);
  place = place < 0 ? series.x.length - 1 : Math.max(0, place - 1);
  const next = place + 1;
  if (!series.stairs && next < series.x.length && series.x[next] - x < x - series.x[place]) place = next;
  return { y: series.y[place], std: series.std ? series.std[place] : null };
}

function followPointer(holder, chart, across, toX, width, xHigh) {
  const svg = holder.firstChild, cursor = svg.querySelector(".cursor");
  let tip = null;
  const leave = () => {
    tip?.remove();
    tip = null;
    cursor.setAttribute("visibility", "hidden");
  };
  holder.addEventListener("pointerleave", leave);
  holder.addEventListener("pointermove", (event) => {
    const bounds = svg.getBoundingClientRect();
    const x = toX(((event.clientX - bounds.left) / bounds.width) * width);
    if (x < 0 || x > xHigh) return leave();
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", across(x));
    cursor.setAttribute("x2", across(x));
    tip = tip || element("div", holder, { class: "tip" });
    const lines = chart.series.map((s) => [s, valueAt(s, x)]).filter(([, v]) => v);
    tip.innerHTML = [`${escaped(chart.xLabel)} ${short(x)}`]
      .concat(lines.map(([s, v]) => `<i style="background:${s.style.color}"></i>${escaped(s.label)}: ${short(v.y)}${v.std === null ? "" : ` ± ${short(v.std, 2)}`}`))
      .join("<br>");
    const right = event.clientX - bounds.left > bounds.width / 2;
    tip.style.left = right ? "" : `${event.clientX - bounds.left + 14}px`;
    tip.style.right = right ? `${bounds.right - event.clientX + 14}px` : "";
    tip.style.top = "30px";
  });
}
