// What stands in a row of the grid, and its kind's colour; a number behind it is a slot's.
const ROWS = {
  P: ["parameters", "P"], G: ["gradients", "G"], M: ["master", "O"], m: ["momentum", "O"],
  v: ["variance", "O"], S: ["staging", "C"]};
const COLOURS = {optimizer: "O", parameters: "P", gradients: "G", communication: "C",
  activations: "A"};
const PHASES = ["forward", "backward", "update"];
// An event's mark in the strip, and its letter among the streams.
const SIGNS = {
  load: "■l", forward: "■f", loss: "■=", backward: "■b", divide: "■÷", squared_norm: "■n",
  adam: "■a", copy: "→c", all_gather: "↕g", reduce_scatter: "↕r", sums: "↕s", to_host: "↓d",
  to_device: "↑u", borrow: "△", give: "▽", start: "|", end: "|"};
const app = {a: 3, b: "", dtype: "bf16", micro: 1, k: 0, diff: false, ask: true};
const $ = id => document.getElementById(id);

/** el("div.a.b", {attributes}, children...): an element. */
function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const svg = ["svg", "g", "path", "rect", "text"].includes(tag);
  const e = document.createElementNS(`http://www.w3.org/${svg ? "2000/svg" : "1999/xhtml"}`, tag);
  e.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") e[name] = value;
    else e.setAttribute(name, value);
  }
  e.append(...children);
  return e;
}
const sum = numbers => numbers.reduce((a, b) => a + b, 0);
const upTo = n => Array.from({length: n}, (_, i) => i);
const times = formula => formula.replace(/ x /g, " \u00d7 ");
function shown(x) {
  if (x === "" || x === 0) return String(x);
  return (Math.abs(x) < 0.0005 ? x.toExponential(0) : x.toFixed(3)).replace(/^-/, "\u2212");
}

// ---- The runs, and what is in the cells after a frame ----
function decode(told, pool) {
  if (told.rows) return told;
  const part = ([row, layer, places]) => [row, layer, places.map(place => pool[place])];
  told.start = told.start.map(([row, layer, cells]) => [row, layer, pool[cells]]);
  told.frames = told.frames.map(places => {
    const f = Object.fromEntries(DATA.fields.map((name, i) => [name, pool[places[i]]]));
    return {...f, write: (f.write || []).map(part), read: f.read || []};
  });
  const all = [...told.start, ...told.frames.flatMap(f => f.lend ? [f.lend] : [])];
  const place = ([of, slot]) => slot ? 1 + (1 + +slot) / 100 : "PGMmvS".indexOf(of);
  told.rows = [...new Set(all.map(of => of[0]))].sort((p, q) => place(p) - place(q));
  told.peak = Math.max(...told.frames.flatMap(f => f.bytes.map(sum)));
  return told;
}
const owner = (run, layer, i) => run.ranks > 1 ? Math.floor(i / run.layers[layer][1]) : 0;
const brokenOf = chapter => DATA.broken.chapters[chapter.name];
function chosen(which) {
  const broken = which === "broken", chapter = DATA.chapters[broken ? app.a : which];
  const dtype = chapter.runs["bf16 1"] ? app.dtype : "fp32", right = `${dtype} ${app.micro}`;
  const of = broken ? brokenOf(chapter) : {code: chapter.code, run: chapter.runs[right]};
  const run = decode(of.run, broken ? DATA.broken.pool : DATA.pool);
  return {broken, chapter, code: of.code, run, name: broken ? `broken: ${of.title}` : chapter.name};
}
function stateAt(run, last) {
  const copied = ([row, l, cells]) => [row + l, {values: cells.map(of => [...of])}];
  const state = new Map(run.start.map(copied));
  run.frames.slice(0, last + 1).forEach((f, k) => {
    const now = k === last, free = f.free && f.free[0] + f.free[1];
    if (f.lend) {
      const [row, l] = f.lend, empty = upTo(run.layers[l][0]).map(() => "");
      state.set(row + l, {values: upTo(run.ranks).map(() => [...empty])});
    }
    if (free && now && state.has(free)) state.get(free).leaving = true;
    else if (free) state.delete(free);
    for (const [row, l, parts] of f.write) {
      const cells = state.get(row + l);  // not of a slot that a broken run has given back
      if (cells) parts.forEach(([at, ...x], r) => cells.values[r].splice(at, x.length, ...x));
      if (cells && now) cells.wrote = parts.map(part => [part[0], part[0] + part.length - 1]);
    }
    for (const [row, l, whole] of f.read)
      if (now && state.has(row + l)) state.get(row + l).read = whole;
  });
  return state;
}
/** The moments of one run, or of two beside each other: of each its frame, and whether it acts. */
function timeline() {
  const [a, b] = app.views.map(view => view.run.frames), pairs = [];
  const key = f => f && [f.kind, f.layer, f.phase, f.micro].join();
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
/** At which moments a broken run does not do what the right one does. */
function partings() {
  const does = ({run}, i) => JSON.stringify([!i && run.start,
    ...["write", "read", "sent", "bytes"].map(name => run.frames[i][name])]);
  return app.b !== "broken" ? [] : upTo(app.time.length).filter(k => {
    const [[i, here], [j, there]] = app.time[k], [right, broken] = app.views;
    return !here || !there || does(right, i) !== does(broken, j);
  });
}

// ---- The trainer's text ----
function makeCode(view) {
  const title = `${view.chapter.name}/trainer.hpp`, n = DATA.chapters.indexOf(view.chapter);
  const code = el("div.code", {tabindex: 0, role: "region", "aria-label": title});
  view.lines = [];
  for (const line of view.code) {
    const sign = line[0], indent = line.slice(1).search(/\S|$/), gone = sign === "-";
    const row = el(`div.l${{"+": ".add", "-": ".gone", " ": ""}[sign]}`, {},
      el("span.n", {}, gone ? "" : String(view.lines.length + 1)), el("span.n", {}, sign),
      el("span.t", {style: `padding-left:${indent + 4}ch`}, line.slice(1 + indent)));
    if (!gone) view.lines.push(row);
    code.append(row);
  }
  const bar = el("div.bar", {}, el("b", {}, title)), before = n && DATA.chapters[n - 1].name;
  const words = view.broken ? "what is broken" :
    `${view.code.filter(line => line[0] !== " ").length} lines changed from ${before}`;
  if (before || view.broken)
    bar.append(el("button.diff", {onclick: () => setDiff(!app.diff)}, words));
  Object.assign(view, {codeBox: code, inside: el("div.inside")});
  view.inside.hidden = !view.run.frames.some(f => f.inside);
  return el("div.codebox.card", {}, bar, code, view.inside);
}
function setDiff(on) {
  app.diff = on;
  $("app").classList.toggle("diff", on);
  document.querySelectorAll(".diff").forEach(e => e.setAttribute("aria-pressed", on));
  app.views.forEach(showLine);
}
function showLine({lines, codeBox, inside, frame, act}) {
  lines.forEach((line, i) => line.classList.toggle("at", act && i + 1 === frame.line));
  const line = lines[frame.line - 1], [file, number, text] = act && frame.inside || [];
  if (line) codeBox.scrollTop = line.offsetTop - codeBox.clientHeight * 0.4;
  inside.textContent = file ? `\u21b3 ${file}:${number}\n${text}` : "";
}

// ---- The grid ----
function makeGrid(view) {
  const {run} = view, grid = el("div.grid"), layers = upTo(run.layers.length);
  const line = (label, make, more = {}) => el("div.row", more, el("span.lab", {}, label),
    ...layers.map(l => el("div.layer", {"data-l": l}, ...make(l))));
  const cells = (l, text) => upTo(run.layers[l][0]).map(i => el("span.cell", {}, text(i)));
  grid.append(line("", l => [el("span.name", {}, `layer ${l}`)]));
  if (run.ranks > 1) grid.append(line("owned by", l => cells(l, i => String(owner(run, l, i)))));
  Object.assign(view, {grid, cells: [], holds: [], over: el("svg.over", {"aria-hidden": true})});
  for (const r of upTo(run.ranks)) {
    const hold = el("span.hold"), rows = {};
    const rank = el("div.rank", {},
      el("div.head", {}, el("b", {}, run.ranks > 1 ? `rank ${r}` : "process"), hold));
    for (const row of run.rows) {
      const [word, colour] = ROWS[row[0]], [dtype, , away] = run.held[row] || [run.dtype];
      if (away && !rank.querySelector(".host"))
        rank.append(el("div.host", {}, "in the memory of its host"));
      rank.append(line(row[1] ? `slot ${row[1]}` : word, l => {
        rows[row + l] = cells(l, () => "");
        return rows[row + l];
      }, {style: `--k:var(--${colour});--h:${dtype === "fp32" ? 16 : 13}px`, "data-row": row,
        title: row[1] ? `slot for the ${word} of a whole layer` : `${word}, ${dtype}`}));
    }
    view.cells.push(rows);
    view.holds.push(hold);
    grid.append(rank);
  }
  grid.append(view.over);
  const key = (kind, words) => el("span", {}, el(`span.cell.${kind}`, {}, "0.5"), ` ${words}`);
  const legend = [key("wrote", "written now"), key("held.read", "read now"),
    key("stale", "not read any more")];
  if (run.ranks > 1) legend.push(key("held.own", "the rank's shard"), "\u00b7 held elsewhere");
  if (run.rows.some(row => row[1])) legend.push(key("room.lent", "lent, still empty"));
  return el("div.gridbox.card", {}, grid, el("div.legend", {"aria-hidden": true}, ...legend));
}
function showGrid(view, right) {
  const {run, frame, act} = view, alone = run.ranks === 1;
  const later = run.frames.slice(view.i).flatMap(f => f.read);
  const host = sum(Object.values(run.held).map(([, bytes, away]) => away ? bytes : 0));
  const focus = app.views.map(v => v.act ? v.frame.layer : -1).find(l => l >= 0) || 0;
  view.state = stateAt(run, view.i);
  for (const e of view.grid.querySelectorAll(".layer"))
    e.classList.toggle("focus", +e.dataset.l === focus);
  view.cells.forEach((rows, r) => Object.entries(rows).forEach(([place, cells]) => {
    const {values, wrote, read, leaving} = view.state.get(place) || {}, slot = place.length > 2;
    const theirs = right && right.state.get(place), layer = place.slice(-1);
    cells.forEach((cell, i) => {
      const x = values ? values[r][i] : null, own = !alone && owner(run, layer, i) === r;
      const reads = ([row, l, whole]) => row + l === place && (whole[r] || own || alone);
      const is = {
        held: x !== null, own: x !== null && own, room: x !== null && slot,
        lent: x === "" && slot, leaving: act && leaving,
        wrote: act && wrote && i >= wrote[r][0] && i < wrote[r][1],
        read: act && read && (read[r] || own || alone),
        stale: x && place[0] === "G" && !slot && !later.some(reads),
        differs: right && x !== (theirs ? theirs.values[r][i] : null)};
      cell.className = ["cell", ...Object.keys(is).filter(name => is[name])].join(" ");
      cell.textContent = x !== null ? shown(x) : slot ? "" : "\u00b7";
    });
  }));
  view.holds.forEach((hold, r) => {
    hold.textContent = `${sum(frame.bytes[r])} bytes ` +
      (host ? `on its device, ${host} on its host` : "in use");
  });
  drawArrows(view);
}
/** An event's messages, and copies within a rank: [from cell, to cell, kind's colour]. */
function journeys({run, frame, act, cells}) {
  const [[from, l, whole] = [], [to] = []] = [frame.read[0], frame.write[0]], found = [];
  const sends = /all_gather|reduce_scatter/.test(frame.kind);
  if (!act || !to || !(sends || /copy|to_/.test(frame.kind))) return found;
  for (const i of upTo(run.layers[l][0])) {
    for (const r of upTo(run.ranks)) {
      const o = owner(run, l, i), [a, b] = whole[0] ? [r, o] : [o, r];  // to its owner, from it
      if (sends ? r !== o : r === o)
        found.push([cells[a][from + l][i], cells[b][to + l][i], ROWS[from[0]][1]]);
    }
  }
  return found;
}
function drawArrows(view) {
  const base = view.grid.getBoundingClientRect(), halos = el("g"), lines = el("g");
  for (const [from, to, colour] of journeys(view)) {  // down at a column's right, up at its left
    const a = from.getBoundingClientRect(), b = to.getBoundingClientRect();
    const s = Math.sign(b.top - a.top), x = (s > 0 ? a.right - 3 : a.left + 3) - base.left;
    const end = (s > 0 ? b.top : b.bottom) - base.top - s;
    const d = `M${x} ${(a.top + a.bottom) / 2 - base.top}V${end}` +
      `m-3.5 ${-5 * s}l3.5 ${5 * s}l3.5 ${-5 * s}`;
    halos.append(el("path.halo", {d}));
    lines.append(el("path", {d, stroke: `var(--${colour})`}));
  }
  view.over.replaceChildren(halos, lines);
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
  app.marks = app.time.map((at, k) => {
    const view = app.views.find((_, v) => at[v][1]), f = frameOf(view, k), x = k * w;
    const mark = el("g", {}, el("rect", {x, y: 15, width: w, height: 22}), el("text", {x: x + w / 2,
      y: 30, style: `font-size:${Math.min(11, 1.4 * w)}px`}, SIGNS[f.kind.split(" ")[0]][0]));
    if (app.parts.includes(k)) mark.append(el("path", {d: `M${x} 36.5h${w}`}));
    if (during(k) !== during(k - 1) && during(k) !== "load")
      mark.append(el("text.phase", {x: x + 2, y: 11}, during(k)));
    svg.append(mark);
    return mark;
  });
  $("range").style.setProperty("--thumb", `${w}px`);
}
/** When each event begins, if each takes one unit of time, a stream keeps its order, and an event
 * waits for whoever wrote what it reads, and for whoever read or wrote what it writes. */
function schedule(run) {
  const free = {}, written = {}, read = {};
  const place = ([row, layer]) => row[1] ? row : row + layer;
  return run.frames.map(f => {
    if (!f.stream || f.stream === "host") return null;
    const reads = f.read.map(place), writes = f.write.map(place);
    const needs = f.kind === "sums" ? Object.values(written) : reads.map(p => written[p] || 0);
    const t = Math.max(free[f.stream] || 0, ...needs,
      ...writes.map(p => Math.max(written[p] || 0, read[p] || 0)));
    free[f.stream] = t + 1;
    for (const p of reads) read[p] = Math.max(read[p] || 0, t + 1);
    for (const p of writes) written[p] = t + 1;
    return t;
  });
}
function drawStreams(view) {
  const {run} = view, begin = schedule(run), slots = run.rows.filter(row => row[1]);
  const streams = new Set(run.frames.map(f => f.stream).filter(of => of && of !== "host"));
  const lanes = [...streams, ...slots], svg = view.streams, width = canvas(svg, 18 * lanes.length);
  const left = width < 500 ? 74 : 92, w = (width - left) / (1 + Math.max(...begin));
  const size = `font-size:${width < 500 ? 9 : 11}px`;
  lanes.forEach((lane, n) => svg.append(el("text", {x: 0, y: 18 * n + 12, style: size},
    slots.includes(lane) ? `slot ${lane[1]}` : lane)));
  const box = (from, to, lane, words, more) => {
    const x = left + from * w, y = 18 * lanes.indexOf(lane), wide = (to - from) * w - 1;
    const rect = el("rect", {x, y, width: wide, height: 16, rx: 2, ...more});
    svg.append(rect, el("text.middle", {x: x + wide / 2, y: y + 12, style: size},
      wide > 5 * words.length ? words : ""));
    return rect;
  };
  const moment = i => app.time.findIndex(at => at[app.views.indexOf(view)][0] === i);
  view.boxes = run.frames.map((f, k) => begin[k] !== null && box(begin[k], begin[k] + 1, f.stream,
    SIGNS[f.kind][1] + (f.layer < 0 ? "" : f.layer), {onclick: () => go(moment(k))}));
  const open = {};  // a layer is in a slot from its first write to the last event that reads it
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
function drawBytes(view, most) {
  const svg = view.bytes, width = canvas(svg, 112), w = width / app.time.length;
  const y = bytes => 112 - 96 * bytes / most;
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
  view.boxes.forEach((box, k) => {
    if (box) box.setAttribute("class", k === i && act ? "here" : k <= i ? "done" : "coming");
  });
  const row = (kind, ...cells) => el(`tr${kind}`, {}, ...cells.map(cell => el("td", {}, cell)));
  const formula = ([text, count]) => `${times(text)} = ${count}`;
  const bytes = Object.entries(run.bytes).map(([kind, of]) => row("",
    el("span", {}, el("span.dot", {style: `--k:var(--${COLOURS[kind] || "O"})`}), ` ${kind}`),
    String(COLOURS[kind] ? frame.bytes[0][DATA.kinds.indexOf(kind)] : of[1]), formula(of)));
  const phases = PHASES.map((phase, p) => row(act && frame.phase === phase ? ".at" : "", phase,
    String(sent[p]), formula(run.sent[p])));
  const bus = row("", "over the bus", `${frame.copied[0]} down, ${frame.copied[1]} up`, "bytes");
  view.tables.replaceChildren(
    row(".first", "bytes in use", "now", "most, by formula"), ...bytes,
    row(".first", "elements sent", `${sum(sent)} of ${total}`,
      run.ranks > 1 ? "by each rank, by formula" : "there is nobody else"),
    ...run.ranks > 1 ? phases : [], ...run.rows.includes("S") ? [bus] : []);
}

// ---- Moving ----
function go(k, said = "") {
  Object.assign(app, {k: Math.max(0, Math.min(app.time.length - 1, k)), asking: false, said});
  show();
}
function step(by) {
  const event = DATA.chapters[app.a].asks.slice(0, 3).join();
  const is = f => [f.kind.replaceAll(" ", "_"), f.layer, f.phase].join() === event;
  const decisive = app.k + by === app.views[0].run.frames.findIndex(is);
  if (app.asking && by > 0) return answer(-1);
  app.asking = by > 0 && app.ask && !app.b && decisive;
  if (!app.asking) return go(app.k + by);
  stop();
  show();
}
function answer(i) {
  const [, , , , , right, because] = DATA.chapters[app.a].asks;
  go(app.k + 1, (i < 0 ? "" : i === right ? "Yes. " : "Not this. ") + because);
  if (i >= 0) document.querySelector("[data-go=next]").focus();
}
function say(view) {
  const {frame, act, broken, name} = view, [, , , asked, answers] = DATA.chapters[app.a].asks;
  if (app.asking) return el("div.say", {}, el("div.now", {}, asked), el("div.answers", {},
    ...answers.map((text, i) => el("button", {onclick: () => answer(i)}, text)),
    el("button", {onclick: () => answer(-1)}, "Show me")));
  const box = el("div.say", {}, el("div.now", {}, act ? frame.now : "No such event here."),
    el("div.why", {}, act ? app.said || frame.why : "It goes on when the other has done this."));
  box.classList.toggle("idle", !act);
  if (app.b) box.prepend(el("div.who", {}, name));
  if (broken && app.parts.includes(app.k)) box.append(el("div.parts", {},
    app.k === app.parts[0] ? "Here they part." : "Not as it should be."));
  return box;
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
  $("place").textContent = `${frame.during || "step"} \u00b7 ${app.k} of ${last}`;
  app.marks.forEach((mark, k) => mark.setAttribute("class",
    k === app.k ? "here" : k < app.k ? "done" : "coming"));
  Object.assign($("range"), {max: last, value: app.k});
  $("range").setAttribute("aria-valuetext", frame.now);
  const names = [app.a, app.b].map(n => DATA.chapters[n] ? DATA.chapters[n].name.slice(0, 2) : n);
  const here = [names[0], app.k, app.dtype, app.micro, names[1]];
  history.replaceState(null, "", `#${here.join("/")}`);
}
function stop() {
  clearInterval(app.playing);
  app.playing = 0;
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
const GO = {first: () => go(0), back: () => step(-1), next: () => step(1),
  last: () => go(app.time.length - 1)};

// ---- The page for a choice of runs ----
function build(k = 0) {
  stop();
  app.views = [app.a, ...app.b ? [app.b] : []].map(chosen);
  app.time = timeline();
  app.parts = partings();
  $("app").classList.toggle("two", app.b !== "");
  [...$("tabs").children].forEach((tab, n) => tab.setAttribute("aria-current", n === app.a));
  const others = DATA.chapters.map((c, n) => [n, c.name]).filter(([n]) => n !== app.a);
  const broken = brokenOf(DATA.chapters[app.a]) ? [["broken", "itself, broken"]] : [];
  $("beside").replaceChildren(...[["", "nothing"], ...broken, ...others].map(
    ([value, words]) => el("option", {value}, words)));
  $("beside").value = app.b;
  $("dtype").textContent = app.views.some(view => view.chapter.runs["bf16 1"]) ? app.dtype : "fp32";
  $("micro").textContent = `A = ${app.micro}`;
  $("dtype").disabled = $("micro").disabled = app.b === "broken";
  $("ask").setAttribute("aria-pressed", app.ask);
  const grids = app.views.map(makeGrid), codes = app.views.map(makeCode);
  $("stage").replaceChildren(...app.b ? [...grids, ...codes] : [...codes, ...grids]);
  $("time").replaceChildren(...app.views.map(view => {
    const picture = {role: "img", "aria-label": "a picture of the figures beside it"};
    Object.assign(view, {streams: el("svg", picture), bytes: el("svg", picture),
      tables: el("table")});
    return el("div.timebox", {}, el("div", {}, el("h3", {}, "streams: what waits for what"),
      view.streams, el("h3", {}, "bytes in use"), view.bytes), el("div", {}, view.tables));
  }));
  draw(k);
  setDiff(app.b === "broken" || app.diff);
}
function draw(k) {
  const most = Math.max(...app.views.map(view => view.run.peak));
  drawStrip();
  for (const view of app.views) {
    drawStreams(view);
    drawBytes(view, most);
  }
  go(k);
}
function choose(a, b = "") {
  const same = f => f.kind + f.layer + f.phase, was = same(app.views[0].frame);
  const broken = b === "broken" && brokenOf(DATA.chapters[a]);
  Object.assign(app, {a, b: b === String(a) ? "" : b, diff: app.diff && app.b !== "broken"});
  if (broken) Object.assign(app, {micro: broken.micro, dtype: "bf16"});
  build();
  const like = app.time.findIndex(([[i]]) => i >= 0 && same(app.views[0].run.frames[i]) === was);
  go(broken ? app.parts[0] : Math.max(0, like));
}
function begin() {
  const theme = dark => { document.documentElement.dataset.theme = dark ? "dark" : "light"; };
  theme(matchMedia("(prefers-color-scheme: dark)").matches);
  const [a, k, dtype, micro, b] = location.hash.slice(1).split("/");
  const index = text => DATA.chapters.findIndex(c => text && c.name.startsWith(text));
  Object.assign(app, {a: Math.max(0, index(a || "04")), dtype: dtype === "fp32" ? dtype : "bf16",
    micro: micro === "2" ? 2 : 1, b: b === "broken" ? b : index(b) < 0 ? "" : String(index(b))});
  $("app").hidden = false;
  $("tabs").replaceChildren(...DATA.chapters.map((c, n) => el("button",
    {title: c.title, onclick: () => choose(n)}, c.name.split("_").slice(0, 2).join(" "))));
  const on = (id, does, event = "onclick") => { $(id)[event] = does; };
  const change = more => build((Object.assign(app, more), app.k));
  on("dtype", () => change({dtype: app.dtype === "bf16" ? "fp32" : "bf16"}));
  on("micro", () => change({micro: 3 - app.micro}));
  on("ask", () => change({ask: !app.ask}));
  on("theme", () => theme(document.documentElement.dataset.theme === "light"));
  on("play", play);
  on("beside", e => choose(app.a, e.target.value), "onchange");
  on("range", e => { stop(); go(+e.target.value); }, "oninput");
  for (const button of document.querySelectorAll("[data-go]"))
    button.addEventListener("click", () => { stop(); GO[button.dataset.go](); });
  const keys = {ArrowRight: GO.next, ArrowLeft: GO.back, Home: GO.first, End: GO.last,
    d: () => setDiff(!app.diff), b: () => choose(app.a, app.b ? "" : "broken"),
    c: () => choose(app.a, app.b || !app.a ? "" : String(app.a - 1))};
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("#plan, select")) return;
    const space = e.key === " " && !e.target.closest("button"), tab = $("tabs").children[e.key - 1];
    if (keys[e.key]) stop();
    const does = keys[e.key] || (space && play) || (tab && (() => tab.click()));
    if (!does) return;
    e.preventDefault();
    does();
  });
  addEventListener("resize", () => draw(app.k));
  addEventListener("hashchange", () => location.reload());
  beginPlan();
  build(+k || 0);
}

// ---- The plan: your model on your GPUs, exact and padded, by the chapters' cards ----
const padded = (size, n) => Math.ceil(size / (8 * n)) * 8 * n;
/** What a rank holds and borrows on its device, holds on its host, and sends in a step. */
function predict(card, {sizes, ranks: n, accumulate, dtype}) {
  const w = dtype === "fp32" ? 4 : 2, away = card.held.optimizer === "sharded on the host";
  const k = w === 4 && !away ? 8 : 12, full = sum(sizes.map(size => padded(size, n)));
  const largest = padded(Math.max(...sizes), n), uses = sizes.length * accumulate;
  const slots = card.borrowed.parameters + (card.borrowed.and_prefetched ? 1 : 0);
  const held = (kind, size) => size * full / (card.held[kind] === "replicated" ? 1 : n);
  const often = text => text.endsWith("A") ? (+text.slice(0, -1) || 1) * accumulate : +text;
  const sent = PHASES.map(phase => often(card.sent[phase]) * (n - 1) * (full / n));
  return {sent, w, host: away ? {optimizer: k * full / n, communication: w * full / n} : {},
    resident: {parameters: held("parameters", w), gradients: held("gradients", w),
      optimizer: away ? 0 : held("optimizer", k)},
    borrowed: {parameters: w * largest * Math.min(slots, 2 * uses),
      gradients: w * largest * Math.min(card.borrowed.gradients, uses),
      communication: w * (n - 1) * largest / n}};
}
/** Parameters of the embedding, of each block, of the last norm with the head: of a config.json. */
function decoder(text) {
  const config = JSON.parse(text), {model_type: kind} = config;
  const whole = (key, otherwise) => {
    const value = config[key] ?? otherwise;
    if (!(Number.isInteger(value) && value > 0)) throw Error(`${key} is no whole number`);
    return value;
  };
  if (!["llama", "mistral", "qwen2", "qwen3"].includes(kind))
    throw Error(`model_type is ${kind}, not llama, mistral, qwen2 or qwen3`);
  if (config.num_experts || config.num_local_experts || config.n_routed_experts)
    throw Error("it has experts, which are in no chapter");
  const h = whole("hidden_size"), heads = whole("num_attention_heads");
  const inner = whole("intermediate_size"), words = whole("vocab_size") * h;
  const size = whole("head_dim", h / heads), q = heads * size;
  const kv = whole("num_key_value_heads", heads) * size;
  const biased = config.attention_bias && (kind === "llama" || kind === "qwen3");
  const small = ({qwen2: q + 2 * kv, qwen3: 2 * size}[kind] || 0) + (biased ? q + 2 * kv + h : 0)
    + (config.mlp_bias && kind === "llama" ? 2 * inner + h : 0);
  const block = h * (2 * (q + kv) + 3 * inner + 2) + small;
  return [words, ...Array(whole("num_hidden_layers")).fill(block),
    h + (config.tie_word_embeddings ? 0 : words)];
}
function unit(x, units = ["B", "kB", "MB", "GB", "TB", "PB"]) {
  const power = x < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(x * 1.0005) / 3));
  return `${+(x / 1000 ** power).toPrecision(3)} ${units[power]}`;
}
const PARAMETERS = ["", "thousand", "million", "billion", "trillion"];
const TAKES = {params: x => +(10 ** x).toPrecision(2), layers: x => x, ranks: x => 2 ** x,
  accumulate: x => 2 ** x};
function readConfig() {
  let said = "";
  app.model = null;
  try {
    if ($("config").value.trim()) app.model = decoder($("config").value);
  } catch (error) {
    said = `This cannot be used: ${error.message}.`;
  }
  $("config-said").textContent = said;
  showPlan();
}
function beginPlan() {
  $("config").oninput = readConfig;
  $("file").onchange = async () => {
    $("config").value = await $("file").files[0].text();
    readConfig();
  };
  $("fields").oninput = e => {
    if (/params|layers/.test(e.target.id)) app.model = null;
    showPlan();
  };
  showPlan();
}
function asked() {
  const {params, layers, ...of} = Object.fromEntries(
    Object.entries(TAKES).map(([id, take]) => [id, take(+$(id).value)]));
  const even = upTo(layers).map(l => Math.floor(params / layers) + (l < params % layers));
  return {...of, sizes: app.model || even, dtype: $("plan-dtype").value};
}
function showPlan() {
  const of = asked(), plans = DATA.cards.map(card => predict(card, of));
  const all = kinds => sum(Object.values(kinds)), device = p => all(p.resident) + all(p.borrowed);
  const axis = Math.max(96e9, ...plans.map(p => device(p) + all(p.host)));
  const words = {params: unit(sum(of.sizes), PARAMETERS), layers: of.sizes.length, ...of};
  for (const id of Object.keys(TAKES)) {
    $(id).previousElementSibling.textContent = words[id];
    $(id).setAttribute("aria-valuetext", words[id]);
  }
  $("bars").replaceChildren(...plans.map((p, n) => {
    const part = (bytes, colour, what) => el("i", {title: `${what}: ${unit(bytes)}`,
      style: `width:${100 * bytes / axis}%;--k:var(--${colour})`});
    const host = all(p.host), away = part(host, "O", "on the host");
    away.classList.add("away");
    const lane = el("div", {}, ...Object.entries(COLOURS).slice(0, 3).map(
      ([kind, colour]) => part(p.resident[kind], colour, kind)),
    part(p.borrowed.parameters + p.borrowed.gradients, "A", "slots for whole layers"),
    part(p.borrowed.communication, "C", "room to receive"), away,
    ...[24e9, 80e9].map(bytes => el("u", {style: `left:${100 * bytes / axis}%`})));
    return el("tr", {}, el("td", {}, DATA.cards[n].name.split("_").slice(0, 2).join(" ")),
      el("td.lane", {}, lane), el("td", {}, el("b", {}, unit(device(p))),
        host ? ` + ${unit(host)}` : ""), el("td.sent", {}, unit(all(p.sent) * p.w)));
  }));
}
