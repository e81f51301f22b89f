// What stands in a row of the grid, and its colour; a number behind it is a slot's.
const ROWS = {P: ["parameters", "P"], G: ["gradients", "G"], M: ["master", "O"],
  m: ["momentum", "O"], v: ["variance", "O"], S: ["staging", "C"]};
const COLOURS = {parameters: "P", gradients: "G", optimizer: "O", communication: "C",
  activations: "A"};
const PHASES = ["forward", "backward", "update"];
// In the strip a symbol, in the streams a letter.
const SIGNS = {load: ["■", "l"], forward: ["■", "f"], loss: ["■", "="], backward: ["■", "b"],
  divide: ["■", "÷"], squared_norm: ["■", "n"], adam: ["■", "a"], copy: ["→", "c"],
  all_gather: ["↕", "g"], reduce_scatter: ["↕", "r"], sums: ["↕", "s"], to_host: ["↓", "d"],
  to_device: ["↑", "u"], start: ["|", ""], end: ["|", ""], borrow: ["△", ""], give: ["▽", ""]};
const app = {a: 3, b: "", dtype: "bf16", micro: 1, k: 0, diff: false, ask: true, views: []};
const $ = id => document.getElementById(id);

/** el("div.a.b", {attributes}, children...): an element. */
function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const svg = ["svg", "g", "path", "rect", "text"].includes(tag);
  const e = document.createElementNS(`http://www.w3.org/${svg ? "2000/svg" : "1999/xhtml"}`, tag);
  if (classes.length) e.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else e.setAttribute(name, value);
  }
  e.append(...children);
  return e;
}
const sum = numbers => numbers.reduce((a, b) => a + b, 0);
const minus = text => text.replace("-", "\u2212");
const times = formula => formula.replace(/ x /g, " \u00d7 ");
function shown(x) {
  if (x === null || x === "") return "";
  if (x === 0) return "0";
  return minus(Math.abs(x) < 0.0005 ? x.toExponential(0) : x.toFixed(3));
}

// ---- The runs, and what the cells hold after a frame ----
function decode(told, pool) {
  if (told.decoded) return told;
  const frames = told.frames.map(
    places => Object.fromEntries(DATA.fields.map((name, i) => [name, pool[places[i]]])));
  const part = view => [view[0], view[1], view[2].map(place => pool[place])];
  told.start = told.start.map(([row, layer, cells]) => [row, layer, pool[cells]]);
  told.frames = frames.map(f => ({...f, write: (f.write || []).map(part), read: f.read || []}));
  const names = [...told.start, ...frames.flatMap(f => f.lend ? [f.lend] : [])].map(of => of[0]);
  const place = name => name[1] ? 1 + (1 + +name[1]) / 100 : "PGMmvS".indexOf(name[0]);
  told.rows = [...new Set(names)].sort((p, q) => place(p) - place(q));
  told.peak = Math.max(...frames.map(f => Math.max(...f.bytes.map(sum))));
  told.lastRead = {};
  told.frames.forEach((f, k) => f.read.forEach(([row, l, whole]) => whole.forEach((all, r) =>
    told.layers[l][0] && Array.from({length: told.layers[l][0]}, (_, i) => i).forEach(i => {
      if (all || owner(told, l, i) === r) told.lastRead[[row, l, r, i]] = k;
    }))));
  told.decoded = true;
  return told;
}
const owner = (run, layer, i) => run.ranks > 1 ? Math.floor(i / run.layers[layer][1]) : 0;
function chosen(which) {
  const chapter = DATA.chapters[which === "broken" ? app.a : which];
  const broken = DATA.broken.chapters[chapter.name];
  if (which === "broken")
    return {which, chapter, code: broken.code, run: decode(broken.run, DATA.broken.pool)};
  const dtype = chapter.runs["bf16 1"] ? app.dtype : "fp32";
  const run = decode(chapter.runs[`${dtype} ${app.micro}`], DATA.pool);
  return {which, chapter, code: chapter.code, run};
}
function stateAt(run, last) {
  const state = new Map(run.start.map(([row, l, cells]) =>
    [row + l, {values: cells.map(of => [...of])}]));
  run.frames.slice(0, last + 1).forEach((f, k) => {
    const here = k === last;
    if (f.lend) {
      const empty = () => Array(run.layers[f.lend[1]][0]).fill("");
      state.set(f.lend[0] + f.lend[1], {values: Array.from({length: run.ranks}, empty)});
    }
    if (f.free && here) state.get(f.free[0] + f.free[1]).leaving = true;
    else if (f.free) state.delete(f.free[0] + f.free[1]);
    for (const [row, l, parts] of f.write) {
      const cells = state.get(row + l);
      if (!cells) continue;  // of a slot that a broken program has already given back
      parts.forEach(([start, ...values], r) => cells.values[r].splice(start, values.length, ...values));
      if (here) cells.wrote = parts.map(([start, ...values]) => [start, start + values.length]);
    }
    for (const [row, l, whole] of f.read) if (here && state.has(row + l)) state.get(row + l).read = whole;
  });
  return state;
}
/** The frames of one or two runs beside each other: [place, whether it is there] of each. */
function timeline() {
  const [a, b] = app.views.map(view => view.run.frames);
  if (!b) return a.map((_, k) => [[k, true]]);
  const key = f => [f.kind, f.layer, f.phase, f.micro].join();
  const best = Array.from({length: a.length + 1}, () => Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i][j] = key(a[i]) === key(b[j]) ? best[i + 1][j + 1] + 1 :
        Math.max(best[i + 1][j], best[i][j + 1]);
  const pairs = [];
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    const both = i < a.length && j < b.length && key(a[i]) === key(b[j]);
    const first = both || j === b.length || (i < a.length && best[i + 1][j] >= best[i][j + 1]);
    pairs.push([[first ? i : i - 1, first], [first && !both ? j - 1 : j, both || !first]]);
    i += first;
    j += both || !first;
  }
  return pairs;
}
/** At which of these moments a broken run does not do what the right one does. */
function partings() {
  if (app.b !== "broken") return [];
  const [a, b] = app.views.map(view => view.run);
  const does = (run, k) => JSON.stringify([run.frames[k].write, run.frames[k].read,
    run.frames[k].sent, run.frames[k].bytes, k ? 0 : run.start]);
  return app.time.flatMap(([x, y], k) =>
    x[1] && y[1] && does(a, x[0]) === does(b, y[0]) ? [] : [k]);
}

// ---- The trainer's text ----
function makeCode(view) {
  const code = el("div.code", {tabindex: 0, role: "region", "aria-label": "The trainer's text"});
  view.lines = [null];
  for (const line of view.code) {
    const sign = line[0], text = line.slice(1), [, indent] = text.match(/^( *)/);
    const at = text.indexOf("//"), cut = at < 0 ? text.length : at;
    const shownText = el("span.t", {style: `padding-left:${indent.length + 4}ch;text-indent:-4ch`},
      text.slice(indent.length, cut), el("span.comment", {}, text.slice(cut)));
    const row = el(`div.l${{"+": ".add", "-": ".cut", " ": ""}[sign]}`, {},
      el("span.n", {}, sign === "-" ? "" : String(view.lines.length)), el("span", {}, sign), shownText);
    if (sign !== "-") view.lines.push(row);
    code.append(row);
  }
  view.codeBox = code;
  view.inside = el("div.inside");
  const n = DATA.chapters.indexOf(view.chapter), before = n && DATA.chapters[n - 1].name.slice(0, 2);
  const diff = el("button.diff", {onclick: () => setDiff(!app.diff)},
    view.which === "broken" ? "what is broken" : `${view.chapter.changed} lines changed from ${before}`);
  const bar = el("div.bar", {}, el("b", {}, `${view.chapter.name}/trainer.hpp`));
  if (n || view.which === "broken") bar.append(diff);
  return el("div.codebox.card", {}, bar, code, view.inside);
}
function setDiff(on) {
  app.diff = on;
  $("app").classList.toggle("diff", on);
  document.querySelectorAll(".bar .diff").forEach(b => b.setAttribute("aria-pressed", on));
  app.views.forEach(showLine);
}
function showLine(view) {
  view.lines.forEach((line, n) => line && line.classList.toggle("at", n === view.frame.line && view.act));
  const line = view.lines[view.frame.line];
  if (line) view.codeBox.scrollTop = line.offsetTop - view.codeBox.clientHeight * 0.4;
  const [file, number, text] = (view.act && view.frame.inside) || [];
  view.inside.replaceChildren(...(file ? [el("div.soft", {}, `\u21b3 in ${file}, line ${number}`), text] : []));
}

// ---- The grid ----
function makeGrid(view) {
  const {run} = view, grid = el("div.grid"), each = run.layers.map((_, l) => l);
  const cellsOf = (l, text, cls = "") => Array.from({length: run.layers[l][0]},
    (_, i) => el("span.cell" + cls, {}, text(i)));
  const line = (label, make, more = {}) => el("div.row", more, el("span.lab", {}, label),
    ...each.map(l => el("div.layer", {"data-l": l}, ...make(l))));
  const head = line("", l => [el("span.name", {}, `layer ${l}`)]);
  const owners = line("owner: rank", l => cellsOf(l, i => String(owner(run, l, i))));
  head.classList.add("colhead");
  owners.classList.add("colhead");
  grid.append(head, ...(run.ranks > 1 ? [owners] : []));
  view.cells = [];
  view.heads = [];
  for (let r = 0; r < run.ranks; r++) {
    const hold = el("span.hold"), mail = el("span.mail", {}, "loss, squares"), rows = {};
    const rank = el("div.rank", {}, el("div.head", {},
      el("b", {}, run.ranks > 1 ? `rank ${r}` : "process"), hold, mail));
    let host = false;
    for (const name of run.rows) {
      const [dtype, , away] = run.held[name] || [run.dtype];
      if (away && !host) rank.append(el("div.host", {}, "in its host's memory"));
      host = host || away;
      const [word, colour] = ROWS[name[0]];
      const style = `--k:var(--${colour});--h:${dtype === "fp32" ? 16 : 13}px`;
      rank.append(line(name[1] ? `slot ${name[1]}` : word, l => {
        rows[name + l] = cellsOf(l, () => "");
        return rows[name + l];
      }, {style, "data-row": name, title: name[1] ? `lent for a layer's ${word}` : word}));
    }
    view.cells.push(rows);
    view.heads.push({hold, mail});
    grid.append(rank);
  }
  view.over = el("svg.over", {"aria-hidden": "true"});
  grid.append(view.over);
  view.grid = grid;
  const key = (cls, words) => el("span", {}, el("span.cell" + cls, {}, "0.5"), " " + words);
  return el("div.gridbox.card", {}, grid, el("div.legend", {"aria-hidden": "true"},
    key(".held.wrote", "written now"), key(".held.read", "read now"),
    ...(run.ranks > 1 ? [key(".held.own", "the rank's own shard"), el("span", {}, "\u00b7 held elsewhere")] : []),
    ...(run.rows.some(name => name[1]) ? [key(".room.lent", "lent, still empty")] : []),
    key(".stale", "not read any more")));
}
function showGrid(view, other) {
  const {run, frame, act} = view, host = sum(Object.values(run.held).map(h => h[2] ? h[1] : 0));
  view.state = stateAt(run, view.i);
  const focus = app.views.map(v => v.act ? v.frame.layer : -1).find(l => l >= 0);
  view.grid.querySelectorAll(".layer").forEach(
    e => e.classList.toggle("focus", +e.dataset.l === (focus === undefined ? 0 : focus)));
  view.cells.forEach((rows, r) => Object.entries(rows).forEach(([place, cells]) => {
    const held = view.state.get(place), slot = place.length > 2;
    const there = other && other.state.get(place);
    cells.forEach((cell, i) => {
      const x = held ? held.values[r][i] : null, own = run.ranks > 1 && owner(run, place.slice(-1), i) === r;
      const wrote = act && held && held.wrote && i >= held.wrote[r][0] && i < held.wrote[r][1];
      const read = act && held && held.read && (held.read[r] || own || run.ranks === 1);
      const last = run.lastRead[[place.slice(0, -1), place.slice(-1), r, i]];
      const has = {
        held: x !== null, room: x !== null && slot, lent: x === "" && slot, own: x !== null && own,
        wrote, read: read && !wrote, leaving: act && held && held.leaving,
        stale: place[0] === "G" && !slot && x !== null && x !== "" && !(last >= view.i) && !wrote,
        differs: other && x !== (there ? there.values[r][i] : null)};
      cell.className = ["cell", ...Object.keys(has).filter(name => has[name])].join(" ");
      cell.textContent = x === null ? (slot ? "" : "\u00b7") : shown(x);
    });
  }));
  view.heads.forEach(({hold, mail}, r) => {
    hold.textContent = `${sum(frame.bytes[r])} bytes ` +
      (host ? `on its device, ${host} on its host` : "in use");
    mail.classList.toggle("on", act && frame.kind === "sums" && run.ranks > 1);
  });
  view.grid.querySelectorAll("[data-row]").forEach(line => line.classList.toggle("off",
    line.dataset.row[1] && !run.layers.some((_, l) => view.state.has(line.dataset.row + l))));
  drawArrows(view);
}
/** An event's messages, and copies within a rank: [from cell, to cell, kind's colour]. */
function journeys({run, frame, act, cells}) {
  const [[from, l, whole] = [], [to, , parts] = []] = [frame.read[0], frame.write[0]];
  const moves = /all_gather|reduce_scatter/.test(frame.kind), size = from && run.layers[l][0];
  if (!act || !parts || !(moves || /copy|to_/.test(frame.kind))) return [];
  const found = [];
  for (let i = 0; i < size; i++) {
    for (let r = 0; r < run.ranks; r++) {
      const o = owner(run, l, i), a = whole[r] && moves ? r : o, b = whole[r] || !moves ? o : r;
      if (moves ? a === b : r !== o) continue;
      found.push([cells[a][from + l][i], cells[b][to + l][i], ROWS[from[0]][1]]);
    }
  }
  return found;
}
function drawArrows(view) {
  const base = view.grid.getBoundingClientRect(), halos = el("g"), lines = el("g");
  const draw = (x, y, to, colour) => {
    const s = Math.sign(to - y), d = `M${x} ${y}V${to - s}m-3.5 ${-5 * s}l3.5 ${5 * s}l3.5 ${-5 * s}`;
    halos.append(el("path.halo", {d}));
    lines.append(el("path", {d, stroke: `var(--${colour})`}));
  };
  for (const [from, to, colour] of journeys(view)) {  // down at the right of a column, up at its left
    const a = from.getBoundingClientRect(), b = to.getBoundingClientRect(), down = b.top > a.top;
    draw((down ? a.right - 3 : a.left + 3) - base.left, (a.top + a.bottom) / 2 - base.top,
      (down ? b.top : b.bottom) - base.top, colour);
  }
  if (view.act && view.frame.kind === "sums" && view.run.ranks > 1) {
    const boxes = view.heads.map(h => h.mail.getBoundingClientRect());
    boxes.forEach((a, i) => boxes.forEach((b, j) => i !== j && draw(
      a.right + 6 + 5 * (3 * i + j) % 28 - base.left, a.top + 7 - base.top, b.top + 7 - base.top, "C")));
  }
  view.over.replaceChildren(halos, lines);
}

// ---- Time: the strip of events, the streams, bytes in use, elements sent ----
const frameOf = (view, k) => view.run.frames[Math.max(0, app.time[k][app.views.indexOf(view)][0])];
function seek(svg, places) {  // a pointer on it chooses the event
  const to = e => {
    const box = svg.getBoundingClientRect(), x = (e.clientX - box.left) / box.width;
    stop();
    go(places(x, e.clientY - box.top));
  };
  svg.onpointerdown = to;
  svg.onpointermove = e => e.buttons && to(e);
}
const ofStrip = x => Math.floor(x * app.time.length);
const widthOf = svg => Math.max(220, svg.parentNode.clientWidth);
function phases(svg, width, view, height) {
  const w = width / app.time.length, of = k => frameOf(view, k).during;
  for (let k = 1, from = 0; k <= app.time.length; k++) {
    if (k < app.time.length && of(k) === of(from)) continue;
    svg.append(el("rect", {x: from * w, y: 0, width: (k - from) * w - 1, height, fill: "var(--panel)"}));
    if ((k - from) * w > 52) svg.append(el("text", {x: from * w + 4, y: 11}, of(from)));
    from = k;
  }
}
function drawStrip() {
  const svg = $("events"), width = widthOf(svg), w = width / app.time.length;
  svg.setAttribute("viewBox", `0 0 ${width} 38`);
  svg.replaceChildren();
  phases(svg, width, app.views[0], 38);
  app.marks = app.time.map((at, k) => {
    const view = app.views.find((_, v) => at[v][1]);
    const mark = el("text", {x: (k + .5) * w, y: 31, "text-anchor": "middle"},
      SIGNS[frameOf(view, k).kind.split(" ")[0]][0]);
    const back = el("rect", {x: k * w, y: 15, width: w, height: 23, rx: 3, fill: "none"});
    svg.append(back, mark);
    if (app.parts.includes(k)) svg.append(el("rect", {x: k * w, y: 35, width: w, height: 3, fill: "var(--cut)"}));
    return {mark, back};
  });
  seek(svg, ofStrip);
}
/** When each event begins, if it takes one unit of time, streams keep their order, and it waits for
 * whoever wrote what it reads, and for whoever read or wrote what it writes. */
function schedule(run) {
  const free = {}, written = {}, used = {};
  return run.frames.map(f => {
    if (!f.stream || f.stream === "host") return null;
    const reads = f.read.map(v => v[0] + v[1]), writes = f.write.map(v => v[0][1] ? v[0] : v[0] + v[1]);
    const slots = reads.map(place => place.length > 2 ? place.slice(0, 2) : place);
    const all = f.kind === "sums" ? Object.values(written) : [];
    const t = Math.max(0, free[f.stream] || 0, ...all, ...slots.map(p => written[p] || 0),
      ...writes.map(p => Math.max(written[p] || 0, used[p] || 0)));
    free[f.stream] = t + 1;
    slots.forEach(p => { used[p] = Math.max(used[p] || 0, t + 1); });
    writes.forEach(p => { written[p] = t + 1; });
    return t;
  });
}
function drawStreams(view) {
  const {run} = view, begin = schedule(run), end = 1 + Math.max(...begin), svg = view.streams;
  const lanes = [...new Set(run.frames.map(f => f.stream).filter(s => s && s !== "host")),
    ...run.rows.filter(name => name[1])];
  const width = widthOf(svg), left = 86, w = (width - left) / end, height = 18 * lanes.length + 2;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...lanes.map((lane, n) =>
    el("text", {x: 0, y: 18 * n + 13}, ROWS[lane[0]] && +lane[1] >= 0 ? `slot ${lane[1]}` : lane)));
  const box = (t, units, lane, fill, text, more) => {
    const y = 18 * lanes.indexOf(lane) + 1;
    const rect = el("rect", {x: left + t * w, y, width: units * w - 1, height: 16, rx: 2, fill, ...more});
    const label = el("text", {x: left + (t + units / 2) * w, y: y + 12, "text-anchor": "middle"},
      units * w > 6.5 * text.length ? text : "");
    svg.append(rect, label);
    return {rect, label};
  };
  view.boxes = run.frames.map((f, k) => begin[k] === null ? null : box(begin[k], 1, f.stream,
    "var(--panel)", SIGNS[f.kind][1] + (f.layer < 0 ? "" : f.layer), {stroke: "var(--faint)"}));
  const open = {};  // what is in a slot: from the first write to the last event that reads it
  run.frames.forEach((f, k) => {
    for (const [name, l] of [...f.write, ...f.read]) if (name[1] && begin[k] !== null) {
      const now = open[name] && open[name].l === l && !open[name].over ? open[name] : {l, t: begin[k]};
      open[name] = now;
      now.end = Math.max(now.end || 0, begin[k] + 1);
    }
    if (f.free && open[f.free[0]]) {
      const {l, t, end: last} = open[f.free[0]];
      box(t, last - t, f.free[0], `var(--${ROWS[f.free[0][0]][1]})`, `layer ${l}`, {opacity: .25});
      delete open[f.free[0]];
    }
  });
  seek(svg, (x, y) => {
    const t = Math.floor((x * width - left) / w), lane = lanes[Math.floor(y / 18)];
    const i = run.frames.findIndex((f, k) => begin[k] === t && f.stream === lane);
    return i < 0 ? app.k : app.time.findIndex(at => at[app.views.indexOf(view)][0] === i);
  });
}
function drawBytes(view, most) {
  const svg = view.bytes, width = widthOf(svg), w = width / app.time.length, ground = 128, top = 30;
  svg.setAttribute("viewBox", `0 0 ${width} ${ground + 2}`);
  svg.replaceChildren();
  phases(svg, width, view, 15);
  const y = b => ground - (ground - top) * b / most;
  view.columns = app.time.map((_, k) => {
    const column = el("g"), bytes = frameOf(view, k).bytes[0];
    let below = 0;
    for (const kind of ["optimizer", "parameters", "gradients", "communication", "activations"]) {
      const b = bytes[DATA.kinds.indexOf(kind)];
      if (b) column.append(el("rect", {x: k * w, y: y(below + b), width: w + .3,
        height: y(below) - y(below + b), fill: `var(--${COLOURS[kind]})`}));
      below += b;
    }
    svg.append(column);
    return column;
  });
  svg.append(el("path", {d: `M0 ${y(view.run.peak)}H${width}`, stroke: "var(--soft)", "stroke-dasharray": "2 3"}),
    el("text.strong", {x: width, y: y(view.run.peak) - 4, "text-anchor": "end"}, `peak ${view.run.peak} bytes`));
  seek(svg, ofStrip);
}
function showTime(view) {
  const {run, frame, act} = view, title = app.b === "" ? "" : name(view) + ": ";
  view.columns.forEach((column, k) => column.setAttribute("opacity", k <= app.k ? 1 : .3));
  view.boxes.forEach((box, k) => {
    if (!box) return;
    const now = k === view.i && act;
    box.rect.setAttribute("fill", now ? "var(--now-edge)" : k <= view.i ? "var(--faint)" : "var(--panel)");
    box.label.setAttribute("style", `fill:var(--${now ? "paper" : "ink"})`);
  });
  const row = (cls, ...cells) => el("tr" + cls, {}, ...cells.map(cell => el("td", {}, cell)));
  const kinds = DATA.kinds.filter(kind => run.bytes[kind]).map((kind, i) => row("",
    el("span", {}, el("span.dot", {style: `--k:var(--${COLOURS[kind]})`}), " " + kind),
    String(frame.bytes[0][DATA.kinds.indexOf(kind)]), `${times(run.bytes[kind][0])} = ${run.bytes[kind][1]}`));
  const host = Object.keys(run.bytes).filter(kind => kind.startsWith("host")).map(kind =>
    row("", `on the ${kind}`, String(run.bytes[kind][1]), times(run.bytes[kind][0])));
  view.kinds.replaceChildren(row("", el("b", {}, `${title}bytes in use`), "now", "most, by the formula"), ...kinds, ...host);
  const sent = frame.sent[0], total = sum(run.sent.map(of => of[1]));
  view.sent.replaceChildren(row("", el("b", {}, run.ranks > 1 ? `each rank sent` : "sent"),
    run.ranks > 1 ? `${sum(sent)} of ${total}` : "nothing: it is alone", run.ranks > 1 ? "elements, by the formula" : ""),
    ...(run.ranks > 1 ? PHASES.map((phase, p) => row(act && frame.phase === phase ? ".at" : "", phase,
      String(sent[p]), `${times(run.sent[p][0])} = ${run.sent[p][1]}`)) : []),
    ...(run.rows.includes("S") ? [row("", "over the bus", `${frame.copied[0]} down, ${frame.copied[1]} up`, "bytes")] : []));
}

// ---- Moving ----
const name = view => view.which === "broken" ? "broken" : view.chapter.name;
const question = k => {
  const asks = DATA.chapters[app.a].asks, frames = app.views[0].run.frames;
  const matches = f => f.kind.replaceAll(" ", "_") === asks[0] && f.layer === +asks[1] && f.phase === asks[2];
  return app.ask && app.b === "" && frames.findIndex(matches) === k;
};
function go(k, said = "") {
  app.k = Math.max(0, Math.min(app.time.length - 1, k));
  app.asking = false;
  app.said = said;
  show();
}
function step(by) {
  if (by > 0 && !app.asking && question(app.k + 1)) {
    app.asking = true;
    stop();
    return show();
  }
  go(app.k + by);
}
function answer(i) {
  const [, , , , , right, because] = DATA.chapters[app.a].asks;
  go(app.k + 1, `${i < 0 ? "" : i === right ? "Yes. " : "Not this time. "}${because}`);
  document.querySelector("[data-go=next]").focus();
}
function say(view) {
  const {frame, act} = view, parts = app.parts.indexOf(app.k);
  if (app.asking) {
    const [, , , asked, answers] = DATA.chapters[app.a].asks;
    return el("div.say", {}, el("div.now", {}, asked), el("div.answers", {},
      ...answers.map((text, i) => el("button", {onclick: () => answer(i)}, text)),
      el("button", {onclick: () => answer(-1)}, "Show me")));
  }
  const box = el("div.say" + (act ? "" : ".idle"), {}, el("div.now", {}, act ? frame.now : "No such event here."),
    el("div.why", {}, act ? app.said || frame.why : "It goes on when the other has done this."));
  if (app.b !== "") box.prepend(el("div.who", {}, view.which === "broken" ?
    `broken: ${DATA.broken.chapters[view.chapter.name].title}` : view.chapter.name));
  if (parts >= 0 && view.which === "broken") box.append(el("div.parts", {}, parts ? "It differs here too." : "Here they part."));
  return box;
}
function show() {
  app.views.forEach((view, v) => {
    const [i, act] = app.time[app.k][v];
    Object.assign(view, {i: Math.max(0, i), act, frame: view.run.frames[Math.max(0, i)]});
  });
  $("says").replaceChildren(...app.views.map(say));
  app.views.forEach((view, v) => {
    showGrid(view, v && view.which === "broken" ? app.views[0] : null);
    showLine(view);
    showTime(view);
  });
  const {frame} = app.views.find(view => view.act);
  $("place").textContent = `${frame.during || "step"} \u00b7 ${app.k} of ${app.time.length - 1}`;
  app.marks.forEach(({mark, back}, k) => {
    mark.setAttribute("style", `fill:var(--${k === app.k ? "ink" : k < app.k ? "soft" : "faint"})`);
    back.setAttribute("fill", k === app.k ? "var(--now)" : "none");
    back.setAttribute("stroke", k === app.k ? "var(--now-edge)" : "none");
  });
  Object.assign($("range"), {max: app.time.length - 1, value: app.k});
  $("range").setAttribute("aria-valuetext", frame.now);
  const where = [DATA.chapters[app.a].name.slice(0, 2), app.k, app.dtype, app.micro,
    ...(app.b === "" ? [] : [app.b === "broken" ? app.b : DATA.chapters[app.b].name.slice(0, 2)])];
  history.replaceState(null, "", "#" + where.join("/"));
}
function stop() {
  clearTimeout(app.playing);
  app.playing = 0;
  $("play").textContent = "\u25b6 play";
}
function play() {
  if (app.playing) return stop();
  if (app.k === app.time.length - 1) go(0);
  const next = () => {
    const words = Math.max(...app.views.map(view => view.frame.now.length + view.frame.why.length));
    app.playing = setTimeout(() => {
      step(1);
      if (app.k === app.time.length - 1) stop();
      else if (app.playing) next();
    }, 1200 + 20 * words);
  };
  next();
  $("play").textContent = "\u25ae\u25ae pause";
}
const GO = {first: () => go(0), back: () => step(-1), next: () => step(1),
  last: () => go(app.time.length - 1)};

// ---- The page for a choice of chapters ----
function build(k = 0) {
  stop();
  app.views = [app.a, ...(app.b === "" ? [] : [app.b])].map(chosen);
  app.time = timeline();
  app.parts = partings();
  $("app").classList.toggle("two", app.b !== "");
  [...$("tabs").children].forEach((tab, n) => tab.setAttribute("aria-current", n === app.a));
  $("beside").replaceChildren(el("option", {value: ""}, "nothing"),
    ...(DATA.broken.chapters[DATA.chapters[app.a].name] ? [el("option", {value: "broken"}, "itself, broken")] : []),
    ...DATA.chapters.map((c, n) => el("option", {value: n}, c.name)).filter((_, n) => n !== app.a));
  $("beside").value = app.b;
  $("dtype").textContent = app.views.some(view => view.chapter.runs["bf16 1"]) ? app.dtype : "fp32";
  $("micro").textContent = `A = ${app.micro}`;
  $("dtype").disabled = $("micro").disabled = app.b === "broken";
  $("ask").setAttribute("aria-pressed", app.ask);
  const grids = app.views.map(makeGrid), codes = app.views.map(makeCode);
  $("stage").replaceChildren(...(app.b === "" ? [...codes, ...grids] : [...grids, ...codes]));
  $("time").replaceChildren(...app.views.flatMap(view => {
    Object.assign(view, {streams: el("svg"), bytes: el("svg"), kinds: el("table"), sent: el("table")});
    const drawn = el("div", {}, el("h3", {}, "streams: what waits for what"), view.streams,
      el("p", {}, STREAMS), el("h3", {}, `bytes in use, on ${view.run.ranks > 1 ? "every rank" : "it"}`), view.bytes);
    return [drawn, el("div", {}, view.kinds, view.sent, ...(app.b === "" ? [keys()] : []))];
  }));
  draw(k);
  setDiff(app.b === "broken" || app.diff);
}
const STREAMS = "Drawn as if each event took one unit of time and began as soon as what it needs is " +
  "there; this is order, not measured time. g: gather, r: reduce-scatter, c: copy, f, b: forward, " +
  "backward, n: norm, s: sums, a: Adam, d, u: down, up; and the layer.";
function keys() {
  const all = [["← →", "an event"], ["space", "play"], ["1 – 7", "a chapter"], ["D", "what changed"],
    ["C", "beside the chapter before"], ["B", "beside itself, broken"]];
  return el("p", {}, ...all.flatMap(([key, words]) => [el("kbd", {}, key), ` ${words}  `]));
}
function draw(k) {
  const most = Math.max(...app.views.map(view => view.run.peak));
  drawStrip();
  app.views.forEach(drawStreams);
  app.views.forEach(view => drawBytes(view, most));
  go(k);
}
function choose(a, b = "") {
  const was = app.views[0].frame, same = f => f.kind + f.layer + f.phase === was.kind + was.layer + was.phase;
  Object.assign(app, {a, b: b === a ? "" : b});
  if (b === "broken") Object.assign(app, {micro: DATA.broken.chapters[DATA.chapters[a].name].micro, dtype: "bf16"});
  build();
  go(b === "broken" ? app.parts[0] : Math.max(0, app.time.findIndex(at => same(app.views[0].run.frames[at[0][0]]))));
}
function begin() {
  const theme = dark => { document.documentElement.dataset.theme = dark ? "dark" : "light"; };
  theme(matchMedia("(prefers-color-scheme: dark)").matches);
  const [a, k, dtype, micro, b] = location.hash.slice(1).split("/");
  const index = text => DATA.chapters.findIndex(c => text && c.name.startsWith(text));
  Object.assign(app, {a: index(a) < 0 ? 3 : index(a), dtype: dtype === "fp32" ? dtype : "bf16",
    micro: micro === "2" ? 2 : 1, b: b === "broken" ? b : index(b) < 0 ? "" : index(b)});
  $("app").hidden = false;
  $("tabs").replaceChildren(...DATA.chapters.map((c, n) => el("button", {title: c.title, onclick: () => choose(n)},
    c.name.split("_").slice(0, 2).join(" "))));
  const toggle = (id, change) => $(id).addEventListener("click", () => { change(); build(app.k); });
  toggle("dtype", () => { app.dtype = app.dtype === "bf16" ? "fp32" : "bf16"; });
  toggle("micro", () => { app.micro = 3 - app.micro; });
  toggle("ask", () => { app.ask = !app.ask; });
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "light"));
  $("beside").addEventListener("change", e => choose(app.a, +e.target.value >= 0 && e.target.value !== "" ? +e.target.value : e.target.value));
  $("range").addEventListener("input", e => { stop(); go(+e.target.value); });
  $("play").addEventListener("click", play);
  for (const [which, move] of Object.entries(GO))
    document.querySelector(`[data-go=${which}]`).addEventListener("click", () => { stop(); move(); });
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("#plan, select")) return;
    const key = {ArrowRight: "next", ArrowLeft: "back", Home: "first", End: "last"}[e.key];
    const doing = key ? () => { stop(); GO[key](); } : {
      d: () => setDiff(!app.diff), c: () => choose(app.a, app.b === "" && app.a ? app.a - 1 : ""),
      b: () => choose(app.a, app.b === "" ? "broken" : ""),
      " ": e.target.closest("button") ? null : play}[e.key];
    if (e.key >= "1" && e.key <= String(DATA.chapters.length)) choose(+e.key - 1);
    else if (doing) doing();
    else return;
    e.preventDefault();
  });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) draw(app.k); width = innerWidth; });
  addEventListener("hashchange", () => location.reload());
  $("foot").textContent = FOOT;
  makePlan();
  build(+k || 0);
}
const FOOT = "Every number comes from real runs of the seven programs: one step of a model of 18 " +
  "parameters, three layers of 2 -> 2 with biases, on three ranks. ./tutorial watch makes this page.";
