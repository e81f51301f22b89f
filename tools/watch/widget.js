// ---- Your model on your GPUs, as tools/plan.py says: exact, padded, by the chapters' cards ----
const plan = {params: 7e9, layers: 32, ranks: 8, accumulate: 1, dtype: "bf16", config: null};
const padded = (size, n) => Math.ceil(size / (8 * n)) * 8 * n;
function sizesOf({params, layers, config}) {
  if (config) return config;
  const rest = params % layers, each = (params - rest) / layers;
  return Array.from({length: layers}, (_, l) => each + (l < rest));
}
/** What a rank holds and borrows on its device and holds on its host, and sends in a step. */
function predict(card, asked) {
  const {ranks: n, accumulate, dtype} = asked, sizes = sizesOf(asked);
  const w = dtype === "fp32" ? 4 : 2, away = card.held.optimizer === "sharded on the host";
  const k = w === 4 && !away ? 8 : 12, full = sum(sizes.map(size => padded(size, n)));
  const largest = padded(Math.max(...sizes), n), uses = sizes.length * accumulate;
  const held = (kind, size) => size * full / (card.held[kind] === "replicated" ? 1 : n);
  const slots = card.borrowed.parameters + (card.borrowed.and_prefetched ? 1 : 0);
  const often = text => text.endsWith("A") ? (+text.slice(0, -1) || 1) * accumulate : +text;
  return {
    resident: {parameters: held("parameters", w), gradients: held("gradients", w),
      optimizer: away ? 0 : held("optimizer", k)},
    borrowed: {parameters: w * largest * Math.min(slots, 2 * uses),
      gradients: w * largest * Math.min(card.borrowed.gradients, uses),
      communication: w * (n - 1) * largest / n},
    host: away ? {optimizer: k * full / n, communication: w * full / n} : {},
    sent: Object.fromEntries(PHASES.map(p => [p, often(card.sent[p]) * (n - 1) * (full / n)])), w};
}
/** Parameters of the embedding, each block, and the last norm with the head, by a config.json. */
function decoder(text) {
  const c = JSON.parse(text), kind = c.model_type, whole = (key, otherwise) => {
    const value = c[key] === undefined || c[key] === null ? otherwise : c[key];
    if (!Number.isInteger(value) || value < 1) throw Error(`${key} is not a whole number`);
    return value;
  };
  if (!["llama", "mistral", "qwen2", "qwen3"].includes(kind))
    throw Error(`model_type is ${kind}, not llama, mistral, qwen2 or qwen3`);
  if (c.num_experts || c.num_local_experts || c.n_routed_experts)
    throw Error("experts are not in these formulas");
  const h = whole("hidden_size"), heads = whole("num_attention_heads"), inner = whole("intermediate_size");
  const size = whole("head_dim", h / heads), words = whole("vocab_size") * h;
  const q = heads * size, kv = whole("num_key_value_heads", heads) * size;
  let small = {qwen2: q + 2 * kv, qwen3: 2 * size}[kind] || 0;
  if (c.attention_bias && (kind === "llama" || kind === "qwen3")) small += q + 2 * kv + h;
  if (c.mlp_bias && kind === "llama") small += 2 * inner + h;
  const block = h * (2 * (q + kv) + 3 * inner + 2) + small;
  const head = h + (c.tie_word_embeddings ? 0 : words);
  return [words, ...Array(whole("num_hidden_layers")).fill(block), head];
}
function unit(x, units = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
  const [word, size] = units.find(of => x >= of[1]) || ["B", 1];
  return `${(x / size).toFixed(x / size < 10 && size > 1 ? 2 : 1)} ${word}`;
}
const count = x => x < 1e6 ? String(x) : unit(x, [["trillion", 1e12], ["billion", 1e9], ["million", 1e6]]);
function makePlan() {
  const outputs = [];
  const slider = (id, words, min, max, step, of, from, text = String) => {
    const out = el("output"), attributes = {type: "range", min, max, step, value: from(plan[id]), id: `plan-${id}`};
    const input = el("input", {...attributes, oninput: () => {
      plan[id] = of(+input.value);
      if (id === "params" || id === "layers") plan.config = null;
      showPlan();
    }});
    outputs.push(() => { out.textContent = text(plan[id]); input.setAttribute("aria-valuetext", text(plan[id])); });
    return el("label", {}, words + " ", out, input);
  };
  const power = x => 2 ** x, digits = x => +(10 ** x).toPrecision(2);
  const dtype = el("select", {id: "plan-dtype", onchange: e => { plan.dtype = e.target.value; showPlan(); }},
    el("option", {}, "bf16"), el("option", {}, "fp32"));
  const text = el("textarea", {"aria-label": "config.json", spellcheck: "false", oninput: () => read(text.value)});
  const file = el("input", {type: "file", accept: ".json", "aria-label": "a config.json", onchange: async () => {
    text.value = await file.files[0].text();
    read(text.value);
  }});
  const said = el("p", {id: "config-said", role: "status"});
  const read = json => {
    plan.config = null;
    said.textContent = "";
    try {
      if (json.trim()) plan.config = decoder(json);
    } catch (error) {
      said.textContent = `This cannot be used: ${error.message}.`;
    }
    if (plan.config) Object.assign(plan, {params: sum(plan.config), layers: plan.config.length});
    showPlan();
  };
  plan.refresh = outputs;
  $("plan").append(el("h2", {}, "Your model, on your GPUs"), el("div.small.soft", {}, "By the formulas of the " +
    "chapters' cards, without activations: these depend on the batch, and no chapter shards them."),
    el("div", {id: "fields"}, slider("params", "parameters Ψ", 6, 12, .02, digits, Math.log10, count),
      slider("layers", "layers", 1, 128, 1, x => x, x => x), slider("ranks", "GPUs N", 0, 10, 1, power, Math.log2),
      slider("accumulate", "micro-batches A", 0, 6, 1, power, Math.log2), el("label", {}, "dtype ", dtype)),
    el("details", {}, el("summary", {}, "A model by its config.json (llama, mistral, qwen2, qwen3)"), text, file, said),
    el("table", {id: "bars"}));
  showPlan();
}
function showPlan() {
  plan.refresh.forEach(refresh => refresh());
  const cards = DATA.cards.map(card => [card, predict(card, plan)]);
  const totals = cards.map(([, p]) => sum([p.resident, p.borrowed, p.host].flatMap(Object.values)));
  const axis = Math.max(96e9, ...totals);
  const bars = cards.map(([card, p], n) => {
    const part = (bytes, colour, words, cls = "") => el("i" + cls,
      {style: `width:${100 * bytes / axis}%;--k:var(--${colour})`, title: `${words}: ${unit(bytes)}`});
    const {parameters, gradients, communication} = p.borrowed, away = sum(Object.values(p.host));
    const lane = el("div", {}, part(p.resident.optimizer, "O", "optimizer"), part(p.resident.parameters, "P", "parameters"),
      part(p.resident.gradients, "G", "gradients"), part(parameters + gradients, "A", "slots for whole layers"),
      part(communication, "C", "room to receive"), part(away, "O", "on the host", ".away"),
      ...[24e9, 80e9].map(b => el("u", {style: `left:${100 * b / axis}%`, title: unit(b)})));
    const total = totals[n] - away, sent = sum(Object.values(p.sent));
    return el("tr", {}, el("td", {}, card.name.slice(0, 2) + " " + card.name.split("_")[1]), el("td.lane", {}, lane),
      el("td", {}, el("b", {}, unit(total)), away ? ` + ${unit(away)}` : ""), el("td.sent", {}, unit(sent * p.w)));
  });
  $("bars").replaceChildren(el("tr", {}, el("th"), el("th", {}, "bytes of a GPU at its peak; dashed: 24 and 80 GB; hatched: on the host"),
    el("th", {}, "together"), el("th.sent", {}, "sent a step")), ...bars);
}
