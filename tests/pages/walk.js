// SPDX-License-Identifier: MIT
// Walks through the page in frames of two widths and writes what it finds into the document. RUNS,
// PLANS and CONFIGS are what programs and tools say (step_test.py).
"use strict";
const wrong = [], counts = {};
const frame = document.querySelector("iframe");

function expect(holds, what, where) {
  counts[what] = (counts[what] || 0) + 1;
  if (!holds) wrong.push(`${what}: ${where}`);
}
const number = text => Number(text.replace("\u2212", "-"));
const equal = (text, x) => Math.abs(number(text) - x) <= (Math.abs(x) < 5e-4 ? Math.abs(x) / 2 : 6e-4);
const sum = list => list.reduce((a, b) => a + b, 0);

function layout(page, name) {
  const body = page.document, box = e => e.getBoundingClientRect();
  const width = body.documentElement.clientWidth;
  expect(body.documentElement.scrollWidth <= width, "no sideways scroll", name);
  const blocks = [...body.querySelectorAll("header, #says, #controls, #stage > *, .timebox, #plan")];
  blocks.forEach((a, i) => blocks.slice(i + 1).forEach(b => {
    const [p, q] = [box(a), box(b)];
    const apart = p.right <= q.left + 1 || q.right <= p.left + 1 || p.bottom <= q.top + 1 ||
      q.bottom <= p.top + 1 || a.id === "controls" || !p.height || !q.height;
    expect(apart, "no overlap", `${name}: ${a.className || a.id} and ${b.className || b.id}`);
  }));
  for (const e of body.querySelectorAll(".cell, .lab, .say, .hold, td"))
    expect(e.scrollWidth <= e.clientWidth + 1 || page.getComputedStyle(e).fontSize === "0px",
      "no text is cut", `${name}: ${e.className} ${e.textContent.slice(0, 20)}`);
}

function walk(page, key, frames, width) {
  const [chapter, dtype, micro] = key.split(" "), get = code => page.eval(code);
  get(`Object.assign(app, {a: ${+chapter.slice(0, 2) - 1}, b: "", dtype: "${dtype}",
    micro: ${micro}, ask: false}); build()`);
  expect(get("app.time.length") === frames.length + 2, "a frame for each event", key);
  frames.forEach((told, k) => {
    const name = `${key} at ${width}, event ${k + 1}`;
    page.document.body.dispatchEvent(
      new page.KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
    const view = get("app.views[0]"), held = view.run.held;
    for (const [row, layer, rank, start, values] of told.writes)
      values.forEach((x, i) => expect(equal(view.cells[rank][row + layer][start + i].textContent, x),
        "numbers are those recorded", `${name}: ${row}${layer} of rank ${rank}, not ${x}`));
    told.in_use.forEach((kinds, rank) => {
      const shown = [0, 0, 0];
      for (const [place, cells] of Object.entries(view.cells[rank])) {
        const row = place.slice(0, -1), [type, , away] = held[row] || [dtype];
        const there = cells.filter(e => e.matches(".held") && !e.matches(".leaving")).length;
        if (!away) shown["PG".indexOf(row[0]) < 0 ? 2 : "PG".indexOf(row[0])] +=
          there * (type === "fp32" ? 4 : 2);
      }
      expect(shown.join() === kinds.slice(0, 3).join(), "cells are the bytes booked", `${name}: ${shown}`);
      expect(parseInt(view.holds[rank].textContent) === sum(kinds), "bytes in use", name);
    });
    expect(view.over.lastChild.childElementCount === told.arrows, "arrows are elements sent", name);
    const [line, ...more] = page.document.querySelectorAll(".code .at");
    const top = line ? line.offsetTop - line.parentNode.scrollTop : -1;
    expect(!more.length && (!told.line || line.querySelector(".n").textContent === told.line),
      "the line that runs", name);
    expect(top >= 0 && top + line.offsetHeight <= line.parentNode.clientHeight + 1,
      "the line is in sight", `${name}: ${top}`);
    if (k % 4 === 0) layout(page, name);
  });
  const texts = page.document.querySelector(".timebox table").textContent;
  const total = sum(get("app.views[0].run.sent").map(of => of[1]));
  if (chapter > "02") expect(texts.includes(`${total} of ${total}`), "sent equals its formula", key);
}

function pairs(page, width) {
  for (const [a, b] of [[1, 2], [3, 4], [4, 5], [5, 6], ...[...Array(7).keys()].map(n => [n, "broken"])]) {
    page.eval(`Object.assign(app, {dtype: "bf16", micro: 1, ask: false}); choose(${a}, "${b}")`);
    if (b === "broken") expect(page.eval("app.parts.length"), "a sabotage parts", a);
    for (let k = 0; k < page.eval("app.time.length"); k += 12) {
      page.eval(`go(${k})`);
      layout(page, `${a} beside ${b} at ${width}, moment ${k}`);
    }
  }
}

function keys(page) {
  const press = key => page.document.body.dispatchEvent(
    new page.KeyboardEvent("keydown", {key, bubbles: true}));
  const at = code => page.eval(code), says = () => page.document.querySelector("#says").textContent;
  at("choose(0); app.ask = true");
  for (let n = 0; n < 7; n++) {
    press(String(n + 1));
    press("Home");
    let asked = 0;
    for (let i = 0; i < 120 && at("app.k < app.time.length - 1"); i++) {
      press("ArrowRight");
      if (!at("app.asking")) continue;
      asked++;
      page.document.querySelectorAll(".answers button")[at("DATA.chapters[app.a].asks[5]")].click();
      expect(says().includes("Yes. "), "a right answer is right", n);
    }
    expect(asked === 1, "a chapter asks once", `${n}: ${asked}`);
  }
  for (const [key, holds] of [["Home", "app.k === 0"], ["ArrowLeft", "app.k === 0"],
    ["End", "app.k === app.time.length - 1"], ["6", "app.a === 5"], ["d", "app.diff"],
    ["d", "!app.diff"], ["c", "app.b === '4'"], ["c", "!app.b"], ["b", "app.b === 'broken'"],
    ["b", "!app.b"], [" ", "app.playing"], [" ", "!app.playing"]]) {
    press(key);
    expect(at(holds), "keys", key);
  }
}

function plans(page) {
  const set = (id, value) => {
    const e = page.document.getElementById(id);
    e.value = value;
    e.dispatchEvent(new page.Event("input", {bubbles: true}));
  };
  for (const {sliders, config, figures} of PLANS) {
    for (const [id, value] of Object.entries(sliders)) set(id, value);
    set("config", config);
    const found = page.eval("DATA.cards.map(card => [card.name, predict(card, asked())])");
    for (const [name, p] of found) {
      const of = figures[name], same = (rows, kinds) => Object.entries(kinds).every(
        ([kind, x]) => (rows[`  ${kind}`] || 0) === x);
      expect(same(of["held throughout"], p.resident) && same(of["borrowed within a step"], p.borrowed)
        && same(of["on its host"], p.host), "the plan's bytes are ./tutorial plan's", name);
      expect(of["sent in a step, and copied"].sent === sum(p.sent) * p.w, "so is its traffic", name);
    }
  }
}

function contrast(page, theme) {
  page.document.documentElement.dataset.theme = theme;
  const context = page.document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const seen = colours => {
    context.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
    }
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map(v =>
      (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const e of page.document.querySelectorAll(".now, .why, .t, .lab, .hold, .cell, button, td")) {
    const back = [];
    for (let of = e; of; of = of.parentElement)
      back.unshift(page.getComputedStyle(of).backgroundColor);
    const [p, q] = [seen([...back, page.getComputedStyle(e).color]), seen(back)];
    expect((Math.max(p, q) + 0.05) / (Math.min(p, q) + 0.05) >= 4.5 || !e.textContent.trim(),
      "contrast of 4.5", `${theme}: ${e.className} ${e.textContent.slice(0, 20)}`);
  }
}

const widths = [1280, 390];
frame.onload = () => {
  const page = frame.contentWindow, width = widths.shift();
  for (const [key, frames] of Object.entries(RUNS)) walk(page, key, frames, width);
  pairs(page, width);
  if (width === 1280) {
    keys(page);
    plans(page);
  }
  for (const theme of ["light", "dark"]) contrast(page, theme);
  for (const text of page.said) expect(false, "the console is silent", text);
  document.querySelector("pre").textContent = JSON.stringify({counts, wrong, left: widths.length});
  if (widths.length) {
    frame.width = widths[0];
    page.location.reload();
  }
};
frame.width = widths[0];
frame.src = "page.html";
