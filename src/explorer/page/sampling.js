// The sampling view. It computes the steps that have a slider exactly as src/inference/sampling.py does.

const MANY = 4096; // the engine uses float32 for more weights than this

/** Return the stored logits of a pass, and the logits after the bias and after each penalty. */
async function logitsOf(one) {
  const raw = await arrayOf(one.logits);
  const steps = [{ title: "model", logits: raw }];
  for (const { name, value, ids, logits } of one.changed) {
    const changed = raw.slice();
    const [places, values] = [await arrayOf(ids), await arrayOf(logits)];
    places.forEach((id, i) => { changed[id] = values[i]; });
    const label = name.replaceAll("_", "-");
    steps.push({ title: value === null ? label : `${label} ${value}`, logits: changed });
  }
  return steps;
}

const LARGEST = 256; // number of largest logits whose order is cached
const orders = new WeakMap();

/** Return at least the k largest logits in descending order, or all if there are fewer. */
function largestOf(logits, k) {
  if (k <= LARGEST && orders.has(logits)) return orders.get(logits);
  const most = Math.max(k, LARGEST);
  const found = new Float32Array(4 * most);
  let count = 0, least = -Infinity;
  for (let i = 0; i < logits.length; i++) {
    if (logits[i] <= least) continue;
    found[count++] = logits[i];
    if (count < found.length) continue;
    found.sort().copyWithin(0, count - most);
    count = most;
    least = found[0];
  }
  const order = found.subarray(0, count).sort().reverse();
  if (most === LARGEST) orders.set(logits, order);
  return order;
}

/** Return the tokens that can be sampled: ascending ids, and probabilities that add up to 1. */
function distribution(logits, { temperature, top_k, top_p, min_p }) {
  const n = logits.length;
  if (temperature === 0) {
    let best = 0;
    for (let i = 1; i < n; i++) if (logits[i] > logits[best]) best = i;
    return { ids: Int32Array.of(best), probabilities: Float64Array.of(1) };
  }
  const order = largestOf(logits, top_k > 0 && top_k < n ? top_k : 1);
  const limit = top_k > 0 && top_k < n ? order[top_k - 1] : -Infinity;
  const largest = order[0];
  let ids = new Int32Array(n), many = 0;
  for (let i = 0; i < n; i++) if (logits[i] >= limit) ids[many++] = i;
  ids = ids.subarray(0, many);
  const rate = Math.fround(Math.min(Math.max(1 / temperature, 1e-37), 1e38));
  const weights = new Float64Array(many);
  for (let i = 0; i < many; i++) {
    const x = logits[ids[i]] - largest;
    weights[i] = many > MANY ? Math.fround(Math.exp(Math.fround(Math.fround(x) * rate))) : Math.exp(x / temperature);
  }
  if (top_p < 1 || min_p > 0) {
    let smallest = min_p, count = many;
    if (top_p < 1) {
      const [last, ties] = smallestOfTopP(weights, top_p);
      if (last >= smallest) [smallest, count] = [last, ties];
    }
    let equal = 0;
    weights.forEach((w, i) => { if (w < smallest || (w === smallest && ++equal > count)) weights[i] = 0; });
  }
  let sum = 0, kept = 0;
  for (let i = 0; i < many; i++) {
    sum += weights[i];
    if (weights[i] === 0) continue;
    ids[kept] = ids[i];
    weights[kept++] = weights[i];
  }
  return { ids: ids.subarray(0, kept), probabilities: weights.subarray(0, kept).map((w) => w / sum) };
}

/** Return the smallest weight in the top_p set, and how many weights of that size the set contains. */
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

/** Return the index at which the cumulative probability reaches a fraction, as in the engine. */
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
  root.append(h("p", {}, `After position ${at - 1}, the run chose token ${one.token} `, token(run, one.token), ` for position ${at}. `,
    one.random === null ? "At temperature 0, the token with the largest logit is chosen without a random number."
      : `The random number was ${one.random}, with seed ${one.seed}.`));
  if (!one.logits || !one.changed) return root.append(missing("The logits of this step"));
  const steps = await logitsOf(one);
  const settings = { ...one.sampling };
  const result = h("div", { class: "spread broad" });
  const slider = (name, low, high, step, label) => {
    const output = h("output", { for: `sampling-${name}` }, String(settings[name]));
    const input = h("input", {
      id: `sampling-${name}`, type: "range", min: low, max: high, step, value: settings[name],
      oninput: () => { settings[name] = Number(input.value); output.textContent = input.value; update(); },
    });
    return h("label", { class: "control" }, label, input, output);
  };
  const sliders = () => page.steps.filter((step) => step.slider).map(({ name, label, slider: { high, step, note } }) =>
    slider(name, 0, Math.min(high, name === "top_k" ? steps[0].logits.length : high), step, label + note));
  const controls = h("div", { class: "controls" }, sliders());
  const reset = h("button", {
    id: "sampling-reset", type: "button",
    onclick: () => { Object.assign(settings, one.sampling); controls.replaceChildren(...sliders(), reset); update(); },
  }, "reset to the run's settings");
  controls.append(reset);
  function update() { result.replaceChildren(...sampled(run, one, steps, settings)); }
  update();
  root.append(controls, result);
}

/** Return a title and a distribution for the model's logits and for each enabled sampling step. */
function stagesOf(steps, settings) {
  const partial = Object.fromEntries(page.steps.map(({ name, off }) => [name, off]));
  const stages = steps.map(({ title, logits }) => [title, distribution(logits, partial)]);
  for (const { name, label, off } of page.steps.filter((step) => step.slider)) {
    if (settings[name] === off) continue;
    partial[name] = settings[name];
    stages.push([`${label} ${settings[name]}`, distribution(steps.at(-1).logits, partial)]);
    if (partial.temperature === 0) break;
  }
  return stages;
}

/** Return the sampled token, the line that shows the random number, and the table of candidates. */
function sampled(run, one, steps, settings) {
  const stages = stagesOf(steps, settings);
  const raw = steps[0].logits, { logits } = steps.at(-1);
  const last = stages.at(-1)[1];
  const least = largestOf(logits, 30)[29] ?? -Infinity;
  const near = [];
  for (let id = 0; id < logits.length; id++) if (logits[id] >= least) near.push(id);
  near.sort((a, b) => logits[b] - logits[a] || a - b).splice(30);
  if (!near.includes(one.token)) near.push(one.token);
  const shares = new Map(near.map((id) => [id, stages.map(([, found]) => found.probabilities[placeOf(found.ids, id)])]));
  // A run at temperature 0 has no random number, so other settings show the most probable token.
  const largest = last.probabilities.reduce((best, p, i, all) => (p > all[best] ? i : best), 0);
  const place = one.random === null ? largest : hit(last.probabilities, one.random);
  const drawn = last.ids[place];
  const rows = near.map((id) => h("tr", { class: shares.get(id).at(-1) === undefined ? "out" : "" },
    h("td", {}, id === drawn ? "→" : ""), h("td", {}, String(id)), h("td", {}, token(run, id)), h("td", {}, digits(raw[id], 6)),
    shares.get(id).map((share) => h("td", {}, share === undefined ? h("s", {}, "removed") : percent(share)))));
  const kept = h("tr", { class: "sum" }, h("td", { colspan: 4 }, "tokens that are left"), stages.map(([, found]) => h("td", {}, amount(found.ids.length))));
  return [h("div", {},
    h("p", { id: "sampling-drawn" }, one.random === null ? "The run has no random number. The most probable token is " : `With these settings, the random number ${one.random} selects `, token(run, drawn), ", ",
      h("span", { id: "sampling-same" }, drawn === one.token ? "as in the run" : "not the run's token"), "."),
    drawLine(run, last, one.random, drawn)),
    table("Candidates, the most probable first; removed candidates are struck out", ["", "id", "token", "logit", ...stages.map(([name]) => name)], [...rows, kept], { id: "candidates" }),
  ];
}

/** Return the index of an id in an ascending array, or -1. */
function placeOf(ids, id) {
  let low = 0, high = ids.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ids[middle] < id) low = middle + 1;
    else high = middle;
  }
  return ids[low] === id ? low : -1;
}

/** Draw the probabilities end to end in id order, and mark the random number. */
function drawLine(run, found, random, drawn) {
  const width = Math.min(900, window.innerWidth - 40);
  let x = 0;
  const parts = [];
  found.ids.forEach((id, i) => {
    const wide = found.probabilities[i] * width;
    x += wide;
    if (wide < 0.3 && id !== drawn) return;
    parts.push(s("rect", { x: x - wide, y: 16, width: Math.max(wide - 0.5, 0), height: 26, class: id === drawn ? "chosen" : "other" }));
    if (wide > 46) parts.push(s("text", { x: x - wide + 4, y: 33, class: id === drawn ? "onmark" : "" }, shown(run.text(id), Math.floor(wide / 9))));
  });
  const arrow = random === null ? null : s("path", { d: `M${random * width - 5} 2 h10 l-5 12 z`, class: "hand" });
  return picture(width, 46, "probabilities end to end, in the order of token ids", parts, arrow);
}
