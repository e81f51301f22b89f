// What a row of the grid holds, by the row's letter, and its colour. A digit after the letter is the
// number of a slot. N, n and w are the host's pieces of M, m and v, which the disk holds.
const ROWS = {
  P: ["parameters", "P"], G: ["gradients", "G"], M: ["master", "O"], m: ["momentum", "O"],
  v: ["variance", "O"], S: ["staging", "C"], N: ["master", "O"], n: ["momentum", "O"],
  w: ["variance", "O"], L: ["landings", "C"]};
const PLACES = {device: "on its device", host: "in the memory of its host", disk: "on its disk"};
const COLOURS = {optimizer: "O", parameters: "P", gradients: "G", communication: "C",
  activations: "A"};
// The parts of a bar in the plan, by the class that colours each.
const PARTS = {O: "optimizer", P: "parameters", G: "gradients", S: "slots for whole layers",
  C: "receive buffer", H: "on its host", D: "on its disk"};
const PHASES = ["forward", "backward", "update"];
// An event's mark in the strip, and its letter on a stream, if it runs on one.
const SIGNS = {
  load: "■l", forward: "■f", loss: "■=", backward: "■b", divide: "■÷", squared_norm: "■n",
  adam: "■a", add: "■+", add_squares: "■+", copy: "→c", all_gather: "↕g", reduce_scatter: "↕r",
  sums: "↕s", to_host: "↓d", to_device: "↑u", read: "⇑i", write: "⇓o", borrow: "△", give: "▽",
  start: "|", end: "|"};
// What is shown: chapter a (0 is 01), beside it b (a chapter, "broken" or ""), at moment k.
const app = {a: 3, b: "", dtype: "bf16", micro: 1, k: 0, diff: false, ask: true};
const $ = id => document.getElementById(id);

/** Makes an element: el("div.class.class", {attributes}, children...). */
function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const svg = ["svg", "g", "path", "rect", "text"].includes(tag);
  const e = document.createElementNS(`http://www.w3.org/${svg ? "2000/svg" : "1999/xhtml"}`, tag);
  e.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes))
    typeof value === "function" ? e[name] = value : e.setAttribute(name, value);
  e.append(...children);
  return e;
}
const sum = numbers => numbers.reduce((a, b) => a + b, 0);
const upTo = n => Array.from({length: n}, (_, i) => i);
const short = name => name.split("_").slice(0, 2).join(" ");
const brief = label => label.replace(/(eter|ient) slot/, ". slot");
/** Names a slot's row, as "gradient slot 0". The slots of each kind are counted from 0. */
function slotName({rows}, row) {
  const alike = rows.filter(of => of[1] && of[0] === row[0]);
  return `${ROWS[row[0]][0].slice(0, -1)} slot ${alike.indexOf(row)}`;
}
function shown(x) {
  if (x === "" || x === 0) return String(x);
  return (Math.abs(x) < 0.0005 ? x.toExponential(0) : x.toFixed(3)).replace(/^-/, "\u2212");
}

// ---- The runs, and what is in the cells after a frame ----
/** Replaces indices into the pool by its values, once per run. A frame is one event (watch.py). */
function decode(told, pool) {
  if (told.rows) return told;
  const part = ([row, layer, places]) => [row, layer, places.map(place => pool[place])];
  told.start = told.start.map(([row, layer, cells]) => [row, layer, pool[cells]]);
  told.frames = told.frames.map(places => {
    const f = Object.fromEntries(DATA.fields.map((name, i) => [name, pool[places[i]]]));
    return {...f, write: (f.write || []).map(part), read: f.read || [], lend: f.lend || undefined,
      is: [f.kind.replaceAll(" ", "_"), f.layer, f.phase].join(" ")};
  });
  const all = [...told.start, ...told.frames.flatMap(f => f.lend ? [f.lend] : [])];
  const place = row => 100 * Object.keys(PLACES).indexOf(placeOf(told, row)) +
    (row[1] ? 2 + row.slice(1) / 100 : "PG NnwMmvS".indexOf(row));
  told.rows = [...new Set(all.map(of => of[0]))].sort((p, q) => place(p) - place(q));
  told.peak = Math.max(...told.frames.flatMap(f => f.bytes.map(sum)));
  return told;
}
const placeOf = ({held}, row) => held[row]?.[1] ?? (row[0] === "L" ? "host" : "device");
const owner = (run, layer, i) => run.ranks > 1 ? Math.floor(i / run.layers[layer][1]) : 0;
/** The view of a chapter, or of the broken run of the chapter that is shown. */
function chosen(which) {
  const broken = which === "broken", chapter = DATA.chapters[broken ? app.a : which];
  const dtype = chapter.runs["bf16 1"] ? app.dtype : "fp32", right = `${dtype} ${app.micro}`;
  const of = broken ? DATA.broken.chapters[chapter.name] : chapter;
  const run = decode(of.run || of.runs[right], broken ? DATA.broken.pool : DATA.pool);
  const {code, changed, title, name} = of, called = broken ? "the broken run" : name.slice(0, 2);
  return {broken, chapter, code, changed, run, called, name: broken ? `broken: ${title}` : name};
}
/** What is in each rank's cells after a frame, by row and layer: null is another rank's. */
function stateAt(run, last) {
  const state = Object.fromEntries(run.start.map(([row, l, of]) => [row + l, of.map(x => [...x])]));
  run.frames.slice(0, last + 1).forEach(({lend: [to, layer] = [], free, write}, k) => {
    if (to) state[to + layer] = upTo(run.ranks).map(r => upTo(run.layers[layer][0]).map(
      i => to[0] === "L" && owner(run, layer, i) !== r ? null : ""));
    if (free && k < last) delete state[free[0] + free[1]];
    for (const [row, l, parts] of write.filter(of => state[of[0] + of[1]]))
      parts.forEach(([at, ...x], r) => state[row + l][r].splice(at, x.length, ...x));
  });
  return state;
}
/** The moments of one or two runs. A moment is, for each run, [number of its frame, whether that
 * event happens now]. Events of two runs share one if kind, layer, phase, micro-batch agree. */
function timeline() {
  const [a, b] = app.views.map(view => view.run.frames), pairs = [];
  const key = f => f && f.is + f.micro;
  const comes = (frames, from, f) => !f || frames.slice(from).some(g => key(g) === key(f));
  if (!b) return a.map((_, k) => [[k, true]]);
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    const both = key(a[i]) === key(b[j]), alone = a[i] && (!comes(b, j, a[i]) || comes(a, i, b[j]));
    if (both || alone) i++;
    if (both || !alone) j++;
    pairs.push([[i - 1, Boolean(both || alone)], [j - 1, both || !alone]]);
  }
  return pairs;
}
/** The moments at which a broken run does something else than the right one. */
function partings() {
  const does = ({run}, i) => JSON.stringify([!i && run.start,
    ...["write", "read", "sent", "bytes", "now"].map(name => run.frames[i][name])]);
  return app.b !== "broken" ? [] : upTo(app.time.length).filter(k => {
    const [[i, here], [j, there]] = app.time[k], [right, broken] = app.views;
    return !here || !there || does(right, i) !== does(broken, j);
  });
}

// ---- The trainer's text ----
function makeCode(view) {
  const title = `${view.chapter.name}/trainer.hpp`;
  const code = el("div.code", {tabindex: 0, role: "region", "aria-label": title});
  // A line breaks at spaces. A word that is too long breaks after a bracket.
  const whole = text => el("span.whole", {}, ...text.split(/(?<=\()/).flatMap(x => [x, el("wbr")]));
  view.lines = [];
  for (const line of view.code) {
    const sign = line[0], indent = line.slice(1).search(/\S|$/), gone = sign === "-";
    const row = el(`div.l${{"+": ".add", "-": ".gone", " ": ""}[sign]}`, {},
      el("span.n", {}, gone ? "" : String(view.lines.length + 1)), el("span.n", {}, sign),
      el("span.t", {style: `padding-left:min(${indent + 4}ch, 40%)`},
        ...line.slice(1 + indent).split(/( +)/).map((text, i) => i % 2 ? text : whole(text))));
    if (!gone) view.lines.push(row);
    code.append(row);
  }
  const bar = el("div.bar", {}, el("b", {}, title)), onclick = () => setDiff(!app.diff);
  if (view.changed) bar.append(el("button.diff", {onclick}, view.changed));
  Object.assign(view, {codeBox: code, inside: el("div.inside")});
  return el("div.codebox.card", {}, bar, code, view.inside);
}
function setDiff(on) {
  app.diff = on;
  $("app").classList.toggle("diff", on);
  document.querySelectorAll("button.diff").forEach(e => e.setAttribute("aria-pressed", on));
  app.views.forEach(showLine);
}
/** Marks element 2 of layer 1, or no longer: it stays marked in each chapter that is chosen. */
function follow() {
  $("follow").setAttribute("aria-pressed", $("app").classList.toggle("follow"));
}
function showLine({lines, codeBox, inside, frame, act}) {
  lines.forEach((line, i) => line.classList.toggle("at", act && i + 1 === frame.line));
  const line = lines[frame.line - 1], [file, number, text] = act && frame.inside || [];
  inside.textContent = file ? `\u21b3 ${file}:${number}\n${text}` : "";
  const first = line && line.offsetTop - codeBox.clientHeight * 0.4;
  if (line) codeBox.scrollTop = [...codeBox.children].find(e => e.offsetTop >= first).offsetTop;
}

// ---- The grid ----
function makeGrid(view) {
  const {run} = view, grid = el("div.grid"), layers = upTo(run.layers.length);
  const line = (label, make, more = {}) => el("div.row", more,
    el("span.lab", {"data-short": brief(label)}, label),
    ...layers.map(l => el("div.layer", {"data-l": l}, ...make(l))));
  const cells = (l, text) => upTo(run.layers[l][0]).map(i => el("span.cell", {}, text(i)));
  grid.append(line("", l => [el("span.name", {"data-short": `L${l}`}, `layer ${l}`)]));
  if (run.ranks > 1) grid.append(line("owned by", l => cells(l, i => String(owner(run, l, i)))));
  Object.assign(view, {grid, cells: [], holds: [], over: el("svg.over", {"aria-hidden": true})});
  for (const r of upTo(run.ranks)) {
    const hold = el("span.hold"), rows = {};
    const rank = el("div.rank", {},
      el("div.head", {}, el("b", {}, run.ranks > 1 ? `rank ${r}` : "process"), hold));
    for (const row of run.rows) {
      const [word, colour] = ROWS[row[0]], [dtype] = run.held[row] || [run.dtype];
      const there = placeOf(run, row);
      if (there !== "device" && !rank.querySelector(`.${there}`))
        rank.append(el(`div.away.${there}`, {}, PLACES[there]));
      for (const l of layers) rows[row + l] = cells(l, () => "");
      rank.append(line(row[1] ? slotName(run, row) : word, l => rows[row + l],
        {style: `--k:var(--${colour});--h:${dtype === "fp32" ? 16 : 13}px`}));
    }
    view.cells.push(rows);
    view.holds.push(hold);
    grid.append(rank);
  }
  grid.append(view.over);
  return el("div.gridbox.card", {}, grid);
}
function showGrid(view, right) {
  const {run, frame, act} = view, alone = run.ranks === 1, {read, write, free} = frame;
  const later = run.frames.slice(view.i).flatMap(
    f => f.kind === "adam" ? [...f.read, ...f.write] : f.read);  // Adam reads what it writes
  const lead = app.views.find(v => v.act && v.frame.layer >= 0), focus = lead?.frame.layer ?? 0;
  view.state = stateAt(run, view.i);
  for (const e of view.grid.querySelectorAll(".layer"))
    e.classList.toggle("focus", +e.dataset.l === focus);
  view.cells.forEach((rows, r) => Object.entries(rows).forEach(([place, cells]) => {
    const at = ([row, l]) => row + l === place, slot = place.length > 2;
    const values = view.state[place], theirs = right && right.state[place];
    const [start, ...written] = act && write.some(at) ? write.find(at)[2][r] : [];
    cells.forEach((cell, i) => {
      const x = values ? values[r][i] : null, own = owner(run, place.slice(-1), i) === r;
      const reads = view => at(view) && (view[2][r] || own);
      const is = {
        held: x !== null, own: x !== null && own && !alone, room: x !== null && slot,
        lent: x === "" && slot, leaving: act && free && at(free),
        wrote: i >= start && i < start + written.length, read: act && read.some(reads),
        stale: x !== null && x !== "" && "GNnw".includes(place[0]) && !slot && !later.some(reads),
        differs: right && x !== (theirs ? theirs[r][i] : null)};
      cell.className = ["cell", ...Object.keys(is).filter(name => is[name])].join(" ");
      cell.textContent = x !== null ? shown(x) : slot ? "" : "\u00b7";
    });
  }));
  view.holds.forEach((hold, r) => {
    const away = Object.entries(run.away).map(([where, bytes]) => `, ${bytes} on its ${where}`);
    hold.textContent = `${sum(frame.bytes[r])} bytes ` +
      (away.length ? `on its device${away.join("")}` : "in use");
  });
  drawArrows(view);
}
/** Draws messages between ranks and copies within one, an arrow per element. An arrow down runs at
 * the right of its cells, an arrow up at their left. */
function drawArrows({run, frame, act, cells, grid, over}) {
  const sends = /all_gather|reduce_scatter/.test(frame.kind), base = grid.getBoundingClientRect();
  over.replaceChildren();
  if (!act || !(sends || /^(copy|to_|read|write)/.test(frame.kind))) return;
  for (const [n, [source, l, whole]] of frame.read.entries())
  for (const i of upTo(run.layers[l][0])) {
    const [target] = frame.write[n];
    const o = owner(run, l, i);
    for (const r of upTo(run.ranks).filter(r => sends === (r !== o))) {
      const a = cells[whole[0] ? r : o][source + l][i].getBoundingClientRect();
      const b = cells[whole[0] ? o : r][target + l][i].getBoundingClientRect();
      const s = Math.sign(b.top - a.top), x = (s > 0 ? a.right : a.left) + 1.2 * s - base.left;
      const [from, to] = [a, b].map(of => (of.top + of.bottom) / 2 - base.top);
      const d = `M${x - 1} ${from}a1 1 0 1 0 2 0a1 1 0 1 0 -2 0M${x} ${from}V${to}` +
        `m${s} -2.5v5l${-3 * s} -2.5z`, colour = `var(--${ROWS[source[0]][1]})`;
      over.append(el(l === 1 && i === 2 ? "path.it" : "path", {d, stroke: colour, fill: colour}));
    }
  }
}

// ---- Time: the strip of events, the streams, bytes in use, elements sent ----
const frameOf = (view, k) => view.run.frames[Math.max(0, app.time[k][app.views.indexOf(view)][0])];
function canvas(svg, height) {
  const width = Math.max(220, svg.parentNode.clientWidth);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  return width;
}
function drawStrip() {
  const svg = $("events"), width = canvas(svg, 38), n = app.time.length, w = width / n;
  const during = k => k >= 0 && frameOf(app.views[0], k).during;
  let free = 0;  // x from which a word does not touch the one before
  app.marks = app.time.map((at, k) => {
    const view = app.views.find((_, v) => at[v][1]), f = frameOf(view, k), x = k * w;
    const mark = el("g", {}, el("rect", {x, y: 15, width: w, height: 22}), el("text", {x: x + w / 2,
      y: 30, style: `font-size:${Math.min(11, 1.4 * w)}px`}, SIGNS[f.kind.split(" ")[0]][0]));
    if (app.parts.includes(k)) mark.append(el("path", {d: `M${x} 36.5h${w}`}));
    if (x >= free && during(k) !== during(k - 1) && /ward|update/.test(during(k))) {
      mark.append(el("text.phase", {x: x + 2, y: 11}, during(k)));
      free = x + 62;
    }
    svg.append(mark);
    return mark;
  });
  $("range").style.setProperty("--thumb", `${w}px`);
}
/** When each event begins if each takes one unit of time. A stream keeps its order. An event waits
 * until what it reads is written, and until what it writes has been read and written before. The
 * program itself waits for the sums. */
function schedule(run) {
  const until = {asked: 0}, place = ([row, layer]) => row[1] ? row : row + layer;
  return run.frames.map(({kind, stream, read, write}) => {
    if (!stream || stream === "host") return null;
    const reads = read.map(place), writes = write.map(place), all = Object.values(until);
    const waits = ["asked", stream, ...reads.map(p => `written ${p}`),
      ...writes.flatMap(p => [`written ${p}`, `read ${p}`])].map(what => until[what] || 0);
    const t = Math.max(...waits, ...kind === "sums" ? all : []);
    for (const p of [kind === "sums" ? "asked" : stream, stream,
      ...writes.map(p => `written ${p}`), ...reads.map(p => `read ${p}`)])
      until[p] = Math.max(until[p] || 0, t + 1);
    return t;
  });
}
function drawStreams(view) {
  const {run} = view, begin = schedule(run), slots = run.rows.filter(row => row[1]);
  const streams = new Set(run.frames.map(f => f.stream).filter(of => of && of !== "host"));
  const lanes = [...streams, ...slots], svg = view.streams, width = canvas(svg, 18 * lanes.length);
  const left = width < 500 ? 74 : 104, w = (width - left) / (1 + Math.max(...begin));
  const size = width < 500 ? 9 : 11, style = `font-size:${size}px`;
  lanes.forEach((lane, n) => svg.append(el("text", {y: 18 * n + 12, style},
    !slots.includes(lane) ? lane : size < 11 ? brief(slotName(run, lane)) : slotName(run, lane))));
  const box = (from, to, lane, words, more) => {
    const x = left + from * w, y = 18 * lanes.indexOf(lane), wide = (to - from) * w - 1;
    const rect = el("rect", {x, y, width: wide, height: 16, rx: 2, ...more});
    svg.append(rect, el("text.middle", {x: x + wide / 2, y: y + 12, style},
      [words, words.replace("layer ", "L")].find(of => wide > 0.55 * size * of.length) || ""));
    return rect;
  };
  view.boxes = run.frames.map((f, k) => begin[k] !== null && box(begin[k], begin[k] + 1, f.stream,
    SIGNS[f.kind][1] + (f.layer < 0 ? "" : f.layer)));
  const open = {};  // by slot: a layer is in it from its first write to its last read
  run.frames.forEach((f, k) => {
    for (const [slot, layer] of [...f.write, ...f.read].filter(of => of[0][1])) {
      open[slot] = open[slot] || {layer, from: begin[k]};
      open[slot].to = Math.max(open[slot].to || 0, begin[k] + 1);
    }
    const {layer, from, to} = f.free && open[f.free[0]] || {};
    if (to) box(from, to, f.free[0], `layer ${layer}`,
      {fill: `var(--${ROWS[f.free[0][0]][1]})`, "fill-opacity": .25});
    if (f.free) delete open[f.free[0]];
  });
}
function drawBytes(view) {
  const svg = view.bytes, width = canvas(svg, 112), w = width / app.time.length;
  const most = Math.max(...app.views.map(of => of.run.peak)), y = bytes => 112 - 96 * bytes / most;
  view.columns = upTo(app.time.length).map(k => {
    const column = el("g"), bytes = frameOf(view, k).bytes[0];
    let below = 0;
    for (const [kind, colour] of Object.entries(COLOURS)) {
      const size = bytes[DATA.kinds.indexOf(kind)];
      column.append(el("rect", {x: k * w, y: y(below + size), width: w + .3,
        height: y(below) - y(below + size), fill: `var(--${colour})`}));
      below += size;
    }
    svg.append(column);
    return column;
  });
  svg.append(el("path", {d: `M0 ${y(view.run.peak)}H${width}`, stroke: "var(--soft)"}),
    el("text", {x: width, y: y(view.run.peak) - 4, "text-anchor": "end"},
      `peak ${view.run.peak} bytes`));
}
function showTime(view) {
  const {run, frame, act, i} = view, sent = frame.sent[0], total = sum(run.sent.map(of => of[1]));
  view.columns.forEach((column, k) => column.setAttribute("opacity", k <= app.k ? 1 : .3));
  view.boxes.forEach((box, k) => box &&
    box.setAttribute("class", k === i && act ? "here" : k <= i ? "done" : "coming"));
  const row = (kind, ...cells) => el(`tr${kind}`, {}, ...cells.map(cell => el("td", {}, cell)));
  const formula = ([text, count]) => `${text.replaceAll(" x ", " \u00d7 ")} = ${count}`;
  const bytes = Object.entries(run.bytes).map(([kind, of]) => row("",
    el("span", {}, el("span.dot", {style: `--k:var(--${COLOURS[kind] || "O"})`}), ` ${kind}`),
    String(COLOURS[kind] ? frame.bytes[0][DATA.kinds.indexOf(kind)] : of[1]), formula(of)));
  const phases = PHASES.slice(0, run.ranks > 1 ? 3 : 0).map((phase, p) => row(
    act && frame.phase === phase ? ".at" : "", phase, String(sent[p]), formula(run.sent[p])));
  view.tables.replaceChildren(
    row(".first", "bytes in use", "now", "most: bytes per element \u00d7 elements"), ...bytes,
    row(".first", "elements sent", `${sum(sent)} of ${total}`,
      run.ranks > 1 ? "each rank: times × elements × (N−1)/N" : "there is nobody else"), ...phases);
}

// ---- Moving ----
/** Shows moment k. `said` (yes or no to an answer, and why) takes the place of the event's why. */
function go(k, said = "") {
  k = Math.max(0, Math.min(app.time.length - 1, k));
  Object.assign(app, {k, asking: false, said});
  show();
}
/** Goes an event on (1) or back (-1); before the decisive one it asks the chapter's question. */
function step(by) {
  const {event} = DATA.chapters[app.a].asks;
  const decisive = app.k + by === app.views[0].run.frames.findIndex(f => f.is === event);
  if (app.asking && by > 0) return answer(-1);
  app.asking = by > 0 && app.ask && !app.b && decisive;
  if (!app.asking) return go(app.k + by);
  stop();
  show();
}
/** Shows the event after answer number i, and says whether that was right; -1: none was given. */
function answer(i) {
  const {right, why} = DATA.chapters[app.a].asks;
  go(app.k + 1, (i < 0 ? "" : i === right ? "Yes. " : "Not this. ") + why);
  if (i >= 0) $("next").focus();
}
function say(view) {
  const {frame, act, broken, run, name, called, i} = view, {asks} = DATA.chapters[app.a];
  if (app.asking) return el("div.say", {}, el("div.now", {}, asks.now), el("div.answers", {},
    ...asks.answers.map((text, i) => el("button", {onclick: () => answer(i)}, text)),
    el("button", {onclick: () => answer(-1)}, "Show me")));
  const kind = frame.kind.replace(/(all|reduce)_/, "$1-").replaceAll("_", " ");
  const layer = frame.layer < 0 ? "" : `, layer ${frame.layer}`;
  const other = app.views.find(v => v.act).called;
  const [now, why] = !act ? [`Here ${called} does nothing; it waits for ${other}.`, ""] :
    broken && app.parts.includes(app.k) ? [`(broken) ${kind}${layer}`, "Red shows what differs."] :
    [frame.now, app.said || frame.why];
  const e = el(`div.say${act ? "" : ".idle"}`, {}, el("div.now", {}, now), el("div.why", {}, why));
  if (app.b) e.prepend(el("div.who", {}, `${name} \u00b7 event ${i} of ${run.frames.length - 1} ` +
    `\u00b7 sent ${sum(run.frames.at(-1).sent[0])}, peak ${run.peak} bytes`));
  if (broken && app.k === app.parts[0]) e.append(el("div.parts", {}, `A was set to ${app.micro}, ` +
    "to show it. This is the first event that differs: see red outlines and the struck line."));
  return e;
}
function show() {
  app.views.forEach((view, v) => {
    const [i, act] = app.time[app.k][v];
    Object.assign(view, {i: Math.max(0, i), act, frame: view.run.frames[Math.max(0, i)]});
  });
  $("says").replaceChildren(...app.views.map(say));
  for (const view of app.views) {
    showGrid(view, view.broken && app.views[0]);
    showLine(view);
    showTime(view);
  }
  const {frame} = app.views.find(view => view.act), last = app.time.length - 1;
  $("place").textContent = (frame.during || "step") + (app.b ? "" : ` \u00b7 ${app.k} of ${last}`);
  app.marks.forEach((mark, k) => mark.setAttribute("class",
    k === app.k ? "here" : k < app.k ? "done" : "coming"));
  Object.assign($("range"), {max: last, value: app.k, ariaValueText: frame.now});
  const [a, b] = [app.a, app.b].map(n => DATA.chapters[n] ? DATA.chapters[n].name.slice(0, 2) : n);
  history.replaceState(null, "", `#${[a, app.k, app.dtype, app.micro, b].join("/")}`);
}
function stop() {
  app.playing = clearInterval(app.playing);
  $("play").textContent = "\u25b6 play";
}
function play() {
  if (app.playing) return stop();
  if (app.k === app.time.length - 1) go(0);
  $("play").textContent = "\u25ae\u25ae pause";
  app.playing = setInterval(() => {
    step(1);
    if (app.k === app.time.length - 1) stop();
  }, 3500);
}

// ---- The page for a choice of runs ----
function build(k = 0) {
  const broken = app.b === "broken" && DATA.broken.chapters[DATA.chapters[app.a].name];
  if (broken) Object.assign(app, {micro: broken.micro, dtype: "bf16"});
  stop();
  app.views = [app.a, ...app.b ? [app.b] : []].map(chosen);
  app.time = timeline();
  app.parts = partings();
  $("app").classList.toggle("two", app.b !== "");
  [...$("tabs").children].forEach((tab, n) => tab.setAttribute("aria-current", n === app.a));
  $("beside").value = app.b;
  $("dtype").textContent = app.views.some(view => view.chapter.runs["bf16 1"]) ? app.dtype : "fp32";
  $("micro").textContent = `A = ${app.micro}`;
  $("dtype").disabled = $("micro").disabled = app.b === "broken";
  $("ask").checked = app.ask;
  const grids = app.views.map(makeGrid), codes = app.views.map(makeCode);
  $("stage").replaceChildren(...app.b ? [...grids, ...codes] : [...codes, ...grids]);
  $("time").replaceChildren(...app.views.map(view => {
    const [streams, bytes] = [1, 2].map(() => el("svg", {"aria-hidden": true}));
    Object.assign(view, {streams, bytes, tables: el("table")});
    const head = (text, axis) => el("h3", {}, text, el("span.soft", {}, `${axis} \u2192`));
    return el("div.timebox", {}, el("div", {}, head("streams: what waits for what", "time"),
      el("p.soft", {}, "boxes: when it could run; grey: already asked for"), streams,
      head("bytes in use", "events"), bytes), el("div", {}, view.tables));
  }));
  draw(k);
  setDiff(app.b === "broken" || app.diff);
}
function draw(k, said) {
  drawStrip();
  app.views.forEach(drawStreams);
  app.views.forEach(drawBytes);
  go(k, said);
}
/** Shows other runs: at the event shown now, or at the first; a broken run where it first differs. */
function choose(a, b = "") {
  const was = app.views[0].frame.is;
  Object.assign(app, {a, b: b === String(a) ? "" : b, diff: app.diff && app.b !== "broken"});
  build();
  const like = app.time.findIndex(([[i]]) => i >= 0 && app.views[0].run.frames[i].is === was);
  go(b === "broken" ? app.parts[0] : Math.max(0, like));
}
/** Begins with the address, as in #05/8/bf16/1/04: chapter, moment, dtype, A, what is beside. */
function begin() {
  const [a, k, dtype, micro, b] = location.hash.slice(1).split("/");
  const chapter = of => /^0[1-8]$/.test(of) ? of - 1 : "";
  Object.assign(app, {a: chapter(a) === "" ? 3 : chapter(a), dtype: dtype === "fp32" ? dtype : "bf16",
    micro: micro === "2" ? 2 : 1, b: b === a ? "" : b === "broken" ? b : String(chapter(b))});
  DATA.chapters.forEach(({name, title}, n) => {
    $("beside").append(el("option", {value: n}, name));
    $("tabs").append(el("button", {title, onclick: () => choose(n)}, short(name)));
  });
  const change = more => build((Object.assign(app, more), app.k));
  const does = {first: () => go(0), back: () => step(-1), next: () => step(1),
    last: () => go(app.time.length - 1), play, ask: () => change({ask: !app.ask}),
    dtype: () => change({dtype: app.dtype === "bf16" ? "fp32" : "bf16"}),
    micro: () => change({micro: 3 - app.micro}),
    diff: () => setDiff(!app.diff), follow, broken: () => choose(app.a, app.b ? "" : "broken"),
    before: () => choose(app.a, app.b || !app.a ? "" : String(app.a - 1))};
  const act = name => does[name](/play|follow/.test(name) || stop());
  for (const name of Object.keys(does).filter($)) $(name).onclick = () => act(name);
  $("beside").onchange = e => choose(app.a, e.target.value);
  $("range").oninput = e => go(+e.target.value);
  const keys = {ArrowRight: "next", ArrowLeft: "back", Home: "first", End: "last", d: "diff",
    c: "before", b: "broken", f: "follow", " ": "play"};
  addEventListener("keydown", e => {
    const of = what => e.target.closest(what), tab = $("tabs").children[e.key - 1];
    if (e.ctrlKey || e.metaKey || e.altKey || of("#plan, select")) return;
    if (!(keys[e.key] || tab) || e.key === " " && of("button, #ask, summary")) return;
    e.preventDefault();
    tab ? tab.click() : act(keys[e.key]);
  });
  addEventListener("resize", () => app.asking || draw(app.k, app.said));
  addEventListener("hashchange", () => location.reload());
  $("app").hidden = false;
  beginPlan();
  build(+k || 0);
}

// ---- The plan: your model on your GPUs, exact and padded, by the chapters' cards ----
const padded = (size, n) => Math.ceil(size / (8 * n)) * 8 * n;
/** Returns the bytes by place and kind, the elements sent by phase, and w, the bytes of an element.
 * A term of a card is bytes per element times elements (of a layer, a shard ...) times a count. */
function predict(card, {sizes, ranks: n, accumulate, dtype}) {
  const full = sum(sizes.map(size => padded(size, n))), layer = padded(Math.max(...sizes), n);
  const of = {full, layer, shard: full / n, others: (n - 1) * layer / n,
    piece: Math.min(1 << 20, layer / n), landing: accumulate > 1 ? 2 * layer / n : 0};
  const there = {device: {}, borrowed: {}, host: {}, disk: {}};
  for (const [place, kind, size, what, count, most] of card.terms[dtype]) {
    const times = most ? Math.min(count, most * sizes.length * accumulate) : count;
    there[place][kind] = (there[place][kind] ?? 0) + size * of[what] * times;
  }
  return {...there, w: dtype === "fp32" ? 4 : 2,
    sent: card.sent.map(([step, micro]) => (step + micro * accumulate) * (n - 1) * (full / n))};
}
function unit(x, units = ["B", "kB", "MB", "GB", "TB", "PB"]) {
  const power = x < 1 ? 0 : Math.floor(Math.log10(x * 1.0005) / 3);
  return `${+(x / 1000 ** power).toPrecision(3)}\u00a0${units[power]}`;
}
const TAKES = {params: x => +(10 ** x).toPrecision(2), layers: x => x, ranks: x => 2 ** x,
  accumulate: x => 2 ** x};
function beginPlan() {
  $("fields").oninput = showPlan;
  for (const [of, what] of Object.entries(PARTS))
    $("colours").append(el(`i.dot.${of}`, {style: `--k:var(--${of})`}), `\u00a0${what}\u2003`);
  showPlan();
}
function asked() {
  const {params, layers, ...of} = Object.fromEntries(
    Object.entries(TAKES).map(([id, take]) => [id, take(+$(id).value)]));
  const even = upTo(layers).map(l => Math.floor(params / layers) + (l < params % layers));
  return {...of, sizes: even, dtype: $("plan-dtype").value};
}
function showPlan() {
  const of = asked(), plans = DATA.cards.map(card => predict(card, of));
  const all = (...of) => sum(of.flatMap(Object.values));
  const axis = Math.max(96e9, ...plans.map(p => all(p.device, p.borrowed, p.host, p.disk)));
  const params = unit(sum(of.sizes), ["", "thousand", "million", "billion", "trillion"]);
  const words = {params, layers: of.sizes.length, ...of};
  for (const id of Object.keys(TAKES)) {
    $(id).previousElementSibling.textContent = words[id];
    $(id).setAttribute("aria-valuetext", words[id]);
  }
  $("bars").replaceChildren(...plans.map((p, n) => {
    const {optimizer: O = 0, parameters: P = 0, gradients: G = 0} = p.device;
    const bytes = {O, P, G, S: p.borrowed.parameters + p.borrowed.gradients,
      C: p.borrowed.communication, H: all(p.host), D: all(p.disk)};
    const lane = el("div", {}, ...Object.entries(PARTS).map(([of, what]) => el(`i.dot.${of}`, {
      title: `${what}: ${unit(bytes[of])}`,
      style: `width:${100 * bytes[of] / axis}%;--k:var(--${of})`})),
    ...[24e9, 80e9].map(at => el("u", {style: `left:${100 * at / axis}%`})));
    return el("tr", {}, el("td", {}, short(DATA.cards[n].name)),
      el("td.lane", {}, lane), el("td", {}, el("b", {}, unit(all(p.device, p.borrowed))),
        ...[bytes.H, bytes.D].map(more => more ? ` +\u00a0${unit(more)}` : "")),
      el("td", {}, unit(sum(p.sent) * p.w)));
  }));
}
