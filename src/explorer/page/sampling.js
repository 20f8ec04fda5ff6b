// Sampling: the filters as the engine applies them, on the stored logits.

const MANY = 4096; // more weights than this are float32 in the engine
const STEPS = ["temperature", "top_k", "top_p", "min_p"];
const OFF = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };

/** Return the logits with those of seen tokens pushed down by the repeat penalty. */
function penalised(logits, seen, penalty) {
  if (penalty === 1) return logits;
  const changed = logits.slice();
  const limit = 3.4028234663852886e38;
  for (const id of new Set(seen)) {
    const x = logits[id];
    const pushed = x > 0 ? x / penalty : x * penalty;
    if (Number.isFinite(x)) changed[id] = Math.min(Math.max(pushed, -limit), limit);
  }
  return changed;
}

/**
 * Return what can be drawn: ids ascending and probabilities that add up to 1.
 *
 * The steps are those of src/inference/sampling.py: temperature, top-k, top-p, min-p.
 */
function distribution(logits, { temperature, top_k, top_p, min_p }) {
  const n = logits.length;
  if (temperature === 0) {
    let best = 0;
    for (let i = 1; i < n; i++) if (logits[i] > logits[best]) best = i;
    return { ids: [best], probabilities: [1] };
  }
  let ids = null;
  if (top_k > 0 && top_k < n) {
    const limit = Float32Array.from(logits).sort()[n - top_k];
    ids = [];
    for (let i = 0; i < n; i++) if (logits[i] >= limit) ids.push(i);
  } else ids = range(n);
  let largest = -Infinity;
  for (const id of ids) largest = Math.max(largest, logits[id]);
  const rate = Math.fround(Math.min(Math.max(1 / temperature, 1e-37), 1e38));
  const isMany = ids.length > MANY;
  let weights = ids.map((id) => (isMany
    ? Math.fround(Math.exp(Math.fround(Math.fround(logits[id] - largest) * rate)))
    : Math.exp((logits[id] - largest) / temperature)));
  if (top_p < 1 || min_p > 0) {
    let smallest = min_p, count = weights.length;
    if (top_p < 1) {
      const [last, ties] = smallestOfTopP(weights, top_p);
      if (last >= smallest) [smallest, count] = [last, ties];
    }
    let equal = 0;
    weights = weights.map((w) => (w < smallest || (w === smallest && ++equal > count) ? 0 : w));
  }
  const kept = range(ids.length).filter((i) => weights[i] > 0);
  let sum = 0;
  for (const i of kept) sum += weights[i];
  return { ids: kept.map((i) => ids[i]), probabilities: kept.map((i) => weights[i] / sum) };
}

/** Return the smallest of the fewest weights that reach top_p, and how many of its size are in. */
function smallestOfTopP(weights, topP) {
  const sorted = Float64Array.from(weights).sort().reverse();
  let whole = 0;
  for (const w of sorted) whole += w;
  let sum = 0, at = 0;
  for (; at < sorted.length - 1; at++) {
    sum += sorted[at];
    if (sum >= topP * whole) break;
  }
  let larger = 0;
  while (sorted[larger] > sorted[at]) larger++;
  return [sorted[at], at - larger + 1];
}

/** Return the index that a share of the sum of probabilities hits, as the engine draws. */
function hit(probabilities, share) {
  let sum = 0;
  for (const p of probabilities) sum += p;
  let total = 0;
  for (let i = 0; i < probabilities.length; i++) {
    total += probabilities[i];
    if (total > share * sum) return i;
  }
  return probabilities.length - 1;
}

async function samplingView(root) {
  const run = currentRun();
  const one = run.drawOf(state.position);
  if (!one) return root.append(h("p", {}, "No token was drawn in this run."));
  const at = one.start + one.T;
  root.append(h("p", {}, `After position ${at - 1} the run took token ${one.token} `, token(run, one.token), ` for position ${at}. `,
    one.drawn === undefined ? "" : h("strong", {}, "A traced run would have drawn ", token(run, one.drawn), ": the answer was known and its tokens were kept."),
    one.random === null ? " Temperature 0 takes the largest logit; nothing is drawn."
      : ` Its random number was ${one.random}, with seed ${one.seed}.`));
  if (!one.logits) return root.append(missing("The logits of this step"));
  const raw = await arrayOf(one.logits);
  const settings = { ...one.sampling };
  const logits = penalised(raw, run.tokens.slice(0, at), settings.repeat_penalty);
  const result = h("div", {});
  const slider = (name, low, high, step, label) => {
    const output = h("output", { for: `sampling-${name}` }, String(settings[name]));
    const input = h("input", {
      id: `sampling-${name}`, type: "range", min: low, max: high, step, value: settings[name],
      oninput: () => { settings[name] = Number(input.value); output.textContent = input.value; update(); },
    });
    return h("label", { class: "control" }, label, input, output);
  };
  const sliders = () => [
    slider("temperature", 0, 3, 0.01, "temperature"), slider("top_k", 0, Math.min(200, raw.length), 1, "top-k (0: all)"),
    slider("top_p", 0, 1, 0.01, "top-p"), slider("min_p", 0, 1, 0.01, "min-p"),
  ];
  const controls = h("div", { class: "controls" }, sliders());
  const reset = h("button", {
    id: "sampling-reset", type: "button",
    onclick: () => { Object.assign(settings, one.sampling); controls.replaceChildren(...sliders(), reset); update(); },
  }, "the run's own settings");
  controls.append(reset);
  function update() { result.replaceChildren(...sampled(run, one, raw, logits, settings)); }
  update();
  root.append(controls, result);
}

/** Return the table of candidates and the line on which the random number falls. */
function sampled(run, one, raw, logits, settings) {
  const stages = [["model", distribution(raw, OFF)]];
  if (settings.repeat_penalty !== 1) stages.push(["repeat penalty", distribution(logits, OFF)]);
  const partial = { ...OFF };
  for (const name of STEPS) {
    if (settings[name] === OFF[name]) continue;
    partial[name] = settings[name];
    stages.push([`${name.replace("_", "-")} ${settings[name]}`, distribution(logits, partial)]);
    if (partial.temperature === 0) break;
  }
  const last = stages.at(-1)[1];
  const maps = stages.map(([, found]) => new Map(found.ids.map((id, i) => [id, found.probabilities[i]])));
  const first = maps[0];
  const near = [...first.keys()].sort((a, b) => logits[b] - logits[a] || a - b).slice(0, 30);
  if (!near.includes(one.token)) near.push(one.token);
  const place = one.random === null ? 0 : hit(last.probabilities, one.random);
  const drawn = last.ids[place];
  const rows = near.map((id) => h("tr", { class: maps.at(-1).has(id) ? "" : "out" },
    h("td", {}, id === drawn ? "→" : ""), h("td", {}, String(id)), h("td", {}, token(run, id)), h("td", {}, digits(raw[id], 6)),
    maps.map((map) => h("td", {}, map.has(id) ? percent(map.get(id)) : h("s", {}, "removed")))));
  const kept = h("tr", { class: "sum" }, h("td", { colspan: 4 }, "tokens that are left"), stages.map(([, found]) => h("td", {}, amount(found.ids.length))));
  return [
    h("p", { id: "sampling-drawn" }, one.random === null ? "With temperature 0: " : `With these settings, ${one.random} hits: `, token(run, drawn),
      drawn === one.token ? ", as in the run." : ", not the run's token."),
    drawLine(run, last, one.random, drawn),
    table("Candidates, the most probable first; a removed one is struck out", ["", "id", "token", "logit", ...stages.map(([name]) => name)], [...rows, kept], { id: "candidates" }),
  ];
}

/** Draw the probabilities end to end, in the order of ids, and where the random number falls. */
function drawLine(run, found, random, drawn) {
  const width = 900;
  let x = 0;
  const parts = found.ids.map((id, i) => {
    const wide = found.probabilities[i] * width;
    const part = [s("rect", { x, y: 16, width: Math.max(wide - 0.5, 0), height: 26, class: id === drawn ? "chosen" : "other" })];
    if (wide > 46) part.push(s("text", { x: x + 4, y: 33, class: id === drawn ? "onmark" : "" }, shown(run.text(id), Math.floor(wide / 9))));
    x += wide;
    return wide < 0.3 && id !== drawn ? null : part;
  });
  const arrow = random === null ? null : s("path", { d: `M${random * width - 5} 2 h10 l-5 12 z`, class: "hand" });
  return picture(width, 46, "probabilities end to end, in the order of token ids", parts, arrow);
}
