// SPDX-License-Identifier: MIT
// Walks through the page in a frame as wide as each of WIDTHS, and writes down what is wrong. RUNS
// are what the programs recorded, PLANS what ./tutorial plan says (step_test.py). Of two
// runs side by side it sees the beginning and, if ALL is true, every twelfth moment.
const wrong = [], counts = {}, frame = document.querySelector("iframe");
const sum = list => list.reduce((a, b) => a + b, 0);
let page, get, width;
const all = what => [...page.document.querySelectorAll(what)];
const press = key => page.document.body.dispatchEvent(
  new page.KeyboardEvent("keydown", {key, bubbles: true}));
function expect(holds, what, where) {
  counts[what] = (counts[what] || 0) + 1;
  if (!holds) wrong.push(`${what}: ${where}`);
}
function layout(name) {
  const box = e => e.getBoundingClientRect(), size = e => page.getComputedStyle(e).fontSize;
  const boxes = all("header, #says, #stage > *, .timebox, #plan").map(box);
  const apart = (p, q) => p.right <= q.left + 1 || q.right <= p.left + 1 ||
    p.bottom <= q.top + 1 || q.bottom <= p.top + 1;
  const fits = e => e.scrollWidth <= e.clientWidth + 1 || size(e) === "0px";
  expect(fits(page.document.documentElement), "no sideways scroll", name);
  boxes.forEach((p, i) => boxes.slice(i + 1).forEach(
    (q, j) => expect(apart(p, q), "no overlap", `${name}: blocks ${i} and ${i + 1 + j}`)));
  for (const e of all(".cell, .lab, .say, .hold, td"))
    expect(fits(e), "no text is cut", `${name}: ${e.className} ${e.textContent.slice(0, 20)}`);
}
function walk(key, frames) {
  const [chapter, dtype, micro] = key.split(" "), a = Number(chapter.slice(0, 2)) - 1;
  get(`Object.assign(app, {a: ${a}, b: "", dtype: "${dtype}", micro: ${micro}, ask: false})`);
  get("build()");
  expect(get("app.time.length") === frames.length + 2, "a frame for each event", key);
  frames.forEach((told, k) => {
    press("ArrowRight");
    const name = `${key} at ${width}, event ${k + 1}`, view = get("app.views[0]");
    for (const [row, layer, rank, start, values] of told.writes) values.forEach((x, i) => {
      const cell = view.cells[rank][row + layer][start + i].textContent.replace("\u2212", "-");
      expect(Math.abs(cell - x) <= (Math.abs(x) < 5e-4 ? Math.abs(x) / 2 : 6e-4),
        "numbers are those recorded", `${name}: ${cell}, not ${x}`);
    });
    told.in_use.forEach((kinds, rank) => {
      const shown = {device: [0, 0, 0], host: [0, 0, 0], disk: [0, 0, 0]};
      for (const [place, cells] of Object.entries(view.cells[rank])) {
        const [type, where = "device"] = view.run.held[place.slice(0, -1)] || [dtype];
        const there = cells.filter(e => e.matches(".held:not(.leaving)")).length;
        if (!/[SL]/.test(place))  // staging and landings are counted as communication
          shown[where][{P: 0, G: 1}[place[0]] ?? 2] += there * (type === "fp32" ? 4 : 2);
      }
      for (const [where, booked] of Object.entries({...told.away, device: kinds}))
        expect(shown[where].join() === booked.slice(0, 3).join(), "cells are the bytes booked",
          `${name}, ${where}: ${shown[where]}, not ${booked}`);
      const said = [kinds, told.away.host, told.away.disk].map(sum).filter((x, i) => x || !i);
      expect(view.holds[rank].textContent.match(/\d+/g).join() === said.join(), "bytes in use", name);
    });
    const rows = new Map(all(".timebox tr").map(e => [...e.cells].map(x => x.innerText.trim())));
    const now = get("DATA.kinds").map((kind, i) => [kind, told.in_use[0][i]]);
    for (const [what, count] of [...now, ...Object.entries(told.sent)])
      expect(Number(rows.get(what) ?? 0) === count, "bytes and elements of now", `${name}: ${what}`);
    expect(view.over.childElementCount === told.arrows, "arrows are elements sent", name);
    const [line, more] = all(".code .at"), {parentNode: code} = line;
    const number = line.querySelector(".n").textContent, top = line.offsetTop - code.scrollTop;
    expect(!more && (!told.line || number === told.line), "the line that runs", name);
    expect(top >= 0 && top + line.offsetHeight <= code.clientHeight + 1, "it is in sight", name);
    if (k % 5 === 0) layout(name);
  });
  const {run: {sent}, frame: {sent: [now]}} = get("app.views[0]"), [table] = all(".timebox table");
  expect(table.textContent.includes(`${sum(now)} of ${sum(now)}`) &&
    sent.every((of, p) => of[1] === now[p]), "sent equals its formula", key);
  const peak = `peak ${Math.max(...frames.flatMap(told => told.in_use.map(sum)))} bytes`;
  expect(table.closest(".timebox").textContent.includes(peak), "its peak", key);
}
function pairs() {
  get(`Object.assign(app, {dtype: "bf16", micro: 1, ask: false})`);
  for (const a of [0, 1, 2, 3, 4, 5, 6, 7]) for (const b of ["broken", String((a + 1) % 8)]) {
    get(`choose(${a}, "${b}")`);
    if (b === "broken") expect(get("app.parts.length"), "a sabotage parts", a);
    else for (const [v, {run}] of get("app.views").entries()) expect(all(".who")[v].textContent
      .includes(`sent ${sum(run.sent.map(of => of[1]))}, peak`), "who sent how much", `${a} ${b}`);
    for (let k = 0; ALL && k < get("app.time.length"); k += 12) {
      get(`go(${k})`);
      layout(`${a} beside ${b} at ${width}, moment ${k}`);
    }
  }
}
function keys() {
  get("choose(0); app.ask = true");
  for (let n = 0, asked = 0; n < 8; n++, asked = 0) {
    press(String(n + 1));
    press("Home");
    while (get("app.k < app.time.length - 1")) {
      press("ArrowRight");
      if (!get("app.asking")) continue;
      asked++;
      all(".answers button")[get("DATA.chapters[app.a].asks.right")].click();
      expect(all(".why")[0].textContent.startsWith("Yes. "), "a right answer is right", n);
    }
    expect(asked === 1, "a chapter asks once", `${n}: ${asked}`);
  }
  for (const [key, holds] of [["Home", "!app.k"], ["ArrowLeft", "!app.k"], ["ArrowRight", "app.k"],
    ["End", "app.k === app.time.length - 1"], ["6", "app.a === 5"], ["d", "app.diff"],
    ["d", "!app.diff"], ["c", "app.b === '4'"], ["c", "!app.b"], ["b", "app.b === 'broken'"],
    ["b", "!app.b"], [" ", "app.playing"], [" ", "!app.playing"]]) {
    press(key);
    expect(get(holds), "keys", key);
  }
  for (const key of ["f", "1", "5", "8"]) {
    press(key);
    const marked = all(".grid .cell").filter(e => page.getComputedStyle(e).outlineStyle !== "none");
    const places = marked.map(e => e.parentNode.dataset.l + [...e.parentNode.children].indexOf(e));
    expect(new Set(places).size === 1 && places[0] === "12", "the element is marked", key);
  }
  press("f");
  expect(get('$("follow").ariaPressed === "false"'), "it is marked no longer", "f");
}
function plans() {
  for (const {fields, figures} of PLANS) {
    for (const [id, value] of Object.entries(fields)) {
      const [e] = all(`#${id}`);
      e.value = value;
      e.dispatchEvent(new page.Event("input", {bubbles: true}));
    }
    const near = (e, bytes) => Math.abs(parseFloat(e.textContent) * 1000 ** ["B", "kB", "MB", "GB",
      "TB"].indexOf(e.textContent.split("\u00a0")[1]) - bytes) <= bytes / 190;  // 3 are shown
    const plans = get("DATA.cards.map(card => [card.name, predict(card, asked())])");
    for (const [n, [name, p]] of plans.entries()) {
      const of = figures[name], sent = of["sent in a step, and copied"].sent;
      const [, , memory, traffic] = all("#bars tr")[n].children;
      expect(near(memory.firstChild, of["borrowed within a step"].reserved) && near(traffic, sent),
        "the plan's words are its figures", [name, memory.textContent, traffic.textContent]);
      for (const [rows, kinds] of [["held throughout", p.device], ["on its host", p.host],
        ["on its disk", p.disk],
        ["borrowed within a step", p.borrowed]])
        for (const [kind, bytes] of Object.entries(kinds))
          expect(of[rows][kind] === bytes, "the plan is ./tutorial plan's", [name, kind]);
      expect(sent === sum(p.sent) * p.w, "so is its traffic", name);
    }
  }
}
function contrast(theme) {
  const rules = [...page.document.styleSheets[0].cssRules], style = of => page.getComputedStyle(of);
  page.dark ??= rules.find(of => /dark/.test(of.conditionText));
  page.dark.media.mediaText = theme === "dark" ? "all" : "not all";
  const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const seen = colours => {
    for (context.fillStyle of colours) context.fillRect(0, 0, 1, 1);
    return sum([...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v, i) =>
      [0.2126, 0.7152, 0.0722][i] * (v <= 10 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4)));
  };
  for (const e of all(".now, .why, .t, .lab, .hold, .cell, button, td")) {
    const back = [], where = `${theme}: ${e.className} ${e.textContent.slice(0, 20)}`;
    for (let of = e; of; of = of.parentElement) back.unshift(style(of).backgroundColor);
    const [p, q] = [seen([...back, style(e).color]), seen(back)].map(light => light + 0.05);
    expect(Math.max(p / q, q / p) >= 4.5 || !e.textContent.trim(), "contrast of 4.5", where);
  }
}
frame.onload = () => {
  page = frame.contentWindow;
  get = code => page.eval(code);
  width = WIDTHS.shift();
  for (const [key, frames] of Object.entries(RUNS)) walk(key, frames);
  for (const on of [true, false]) {
    get(`setDiff(${on})`);
    ["light", "dark"].forEach(contrast);
  }
  for (const look of [pairs, keys, plans]) look();
  for (const text of page.said) expect(false, "the console is silent", text);
  document.querySelector("pre").textContent = JSON.stringify({counts, wrong, left: WIDTHS.length});
  frame.width = WIDTHS[0];
  if (WIDTHS.length) page.location.reload();
};
frame.width = WIDTHS[0];
frame.src = "page.html";
