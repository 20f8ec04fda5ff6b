// The attention view: a map of all heads, one head in detail, its weights over the text, and RoPE angles.

async function attentionView(root) {
  const run = currentRun();
  const { L, H } = run;
  const G = H / run.sizes.K;
  const p = run.query(state.position);
  const S = run.processed;
  const rowOf = await run.attention();
  const sinkOf = await run.sinks();
  const rows = range(S).map((i) => rowOf(state.layer, state.head, i));
  const sinks = range(S).map((i) => sinkOf(state.layer, state.head, i));
  const shift = run.hasSinks[state.layer] ? 1 : 0; // the sink is the first column of the matrix
  root.append(
    h("p", {}, `Each of the ${L} layers has ${H} query heads. ${G === 1 ? "Each query head has its own key/value head" : `Every ${G} query heads share one of ${run.sizes.K} key/value heads`}. Weights are stored in steps of 1/255. A row is the token that attends, and a column is the token that it attends to.`),
    h("div", { class: "controls" },
      choice("attention-layer", "layer", range(L).map((l) => [l, l]), state.layer, (x) => show({ layer: Number(x) })),
      choice("attention-head", "head", range(H).map((i) => [i, `${i} (key/value ${Math.floor(i / G)})${named(run.headName(state.layer, i))}`]), state.head, (x) => show({ head: Number(x) })),
      choice("attention-query", "attending token", range(S).map((i) => [i, `${i} ${run.label(run.tokens[i], 20)}`]), p, (x) => show({ position: Number(x) }))),
    drawnNote(run, p));
  const title = h("h3", {}, `Layer ${state.layer}, head ${state.head}, which reads key/value head ${Math.floor(state.head / G)}`, named(run.headName(state.layer, state.head)));
  if (rows.every((row) => row === null)) return root.append(await headGrid(run, G), title, missing("Attention"));
  const best = rows[p] && range(p + 1).reduce((a, b) => (rows[p][b] > rows[p][a] ? b : a), 0);
  // Next to the small maps, the large map fits into the window.
  const most = columnWidth(3) < pageWidth() ? Math.max(10, Math.floor((window.innerHeight - 400) / S)) : 28;
  const cell = Math.max(5, Math.min(28, most, Math.floor((columnWidth(3) - 130) / S)));
  const label = (i) => `${shown(run.text(run.tokens[i]), 12)} ${i}`;
  const isSeen = (i, j) => j <= i && j >= run.firstSeen(state.layer, i);
  const weight = (i, j) => (rows[i] === null ? null : j < 0 ? sinks[i] : isSeen(i, j) ? rows[i][j] : null);
  const large = [title, limitsOf(run),
    matrix({
      id: "attention-large", name: "attention weights", rows: S, columns: S + shift, cell, low: 0, high: 1,
      scale: VIRIDIS, labels: { row: label, column: (c) => (c < shift ? "sink" : label(c - shift)) },
      chosen: [p, Math.min(state.key ?? best ?? p, p) + shift],
      value: (i, c) => (weight(i, c - shift) === null ? null : weight(i, c - shift) / 255),
      say: (i, c) => {
        const j = c - shift, x = weight(i, j);
        const what = `token ${i} ${run.label(run.tokens[i], 20)} ${j < 0 ? "leaves to the sink" : `attends to token ${j} ${run.label(run.tokens[j], 20)}`}: `;
        return what + (j > i ? "masked, because it comes later" : j >= 0 && !isSeen(i, j) ? "masked, because it is outside the window" : x === null ? "left out" : `${digits(x / 255, 3)} ± 0.002`);
      },
      choose: (i, c) => show({ position: i, key: Math.max(0, Math.min(i, c - shift)) }),
    }),
    legend(VIRIDIS, 0, 1, "weight"), scoresOf(run), whatIf()];
  if (rows[p] === null) return root.append(spread([headKinds(run), await headGrid(run, G)], [...large, missing("The row of this token")]));
  const key = Math.min(state.key ?? best, p);
  root.append(spread([headKinds(run), await headGrid(run, G)], [...large, textWeights(run, rows[p], p, sinks[p])], [headTable(run, rowOf, p, key), angles(run, p, key)]));
}

/** Explain from which position the selected token was sampled, because its own row belongs to a later pass. */
function drawnNote(run, p) {
  const one = run.drawnFrom.get(p);
  if (!one) return "";
  return h("p", {}, token(run, run.tokens[p]), ` was drawn from the logits of position ${p - 1}. `,
    h("button", { id: "drawn-from", type: "button", onclick: () => show({ position: p - 1 }) }, `show position ${p - 1}`));
}

/** Return a name with a comma before it, or an empty text. */
const named = (name) => (name === null ? "" : `, ${name}`);

// For each kind of head, what it attends to, and the letter that marks it.
const KIND_TEXTS = {
  "previous token": ["P", "the token before"],
  "first token": ["F", "the first token"],
  induction: ["I", "the tokens after earlier copies of a token"],
  "same token": ["S", "itself and earlier copies of itself"],
  uniform: ["U", "all tokens alike"],
};

/** Describe the window and the sinks of the selected layer, if it has any. */
function limitsOf(run) {
  const window = run.windows[state.layer];
  const parts = [];
  if (window !== null) parts.push(`This layer has a window of ${window}: a token attends to itself and to the ${count(window - 1, "token")} before it. Cells outside the window are blank. `);
  if (run.hasSinks[state.layer]) parts.push("Each head has a sink, which takes a part of the weight and has no value. It is the first column. ");
  return parts.length ? h("p", { id: "head-limits" }, parts) : "";
}

/** Describe what the selected head attends to over the run. */
function scoresOf(run) {
  const scores = run.heads.scores[state.layer][state.head];
  const [previous, first, induction, same, uniform] = scores.map((x) => `${Math.round(100 * x)}\u00a0%`);
  const rows = run.heads.repeated;
  return h("p", { id: "head-scores" }, `Over the run, this head assigns on average ${previous} of its weight to the token before, ${first} to the first token, and ${same} to itself and earlier copies of itself. `,
    rows ? `At the ${count(rows, "token")} with an earlier copy, it assigns ${induction} to the tokens after the copies. ` : "No token of the run has an earlier copy. ", `Its overlap with equal weights is ${uniform}.`);
}

/** Create the button that leads to the controls that change the selected head. */
const whatIf = () => h("button", { id: "what-if", type: "button", onclick: () => { change.part = "head"; show({ view: "compare" }); } }, "what if this head were off?");

const MOST_OF_KIND = 16; // maximum number of heads of a kind in the table

/** Create the table of the heads with a name, by kind. */
function headKinds(run) {
  const { kinds, scores, names } = run.heads;
  const rows = kinds.map((kind, k) => {
    const heads = range(run.L * run.H).map((n) => [Math.floor(n / run.H), n % run.H]).filter(([layer, head]) => names[layer][head] === k)
      .sort(([a, b], [c, d]) => scores[c][d][k] - scores[a][b][k]);
    const buttons = heads.slice(0, MOST_OF_KIND).map(([layer, head]) => h("button", {
      type: "button", class: "plain", id: `kind-${layer}-${head}`, title: `layer ${layer}, head ${head}: ${digits(scores[layer][head][k], 2)}`, onclick: () => show({ layer, head }),
    }, `${layer}.${head}`)).flatMap((button) => [button, " "]);
    const more = heads.length > MOST_OF_KIND ? ` and ${heads.length - MOST_OF_KIND} more` : "";
    return [`${KIND_TEXTS[kind][0]} ${kind}`, `attends to ${KIND_TEXTS[kind][1]}`, heads.length ? h("span", {}, buttons, more) : "none"];
  });
  return table("What the heads do over the run: heads as layer.head, the clearest first. A head without a name does none of this", ["name", "meaning", "heads"], rows, { id: "head-kinds" });
}

let grid = {}; // the canvas with the small maps of all heads, which is drawn once for a run and a size

async function headGrid(run, G) {
  const { L, H } = run;
  const gap = 3, left = 34, top = 30;
  const size = Math.max(14, Math.min(60, Math.floor((columnWidth(3) - left) / H), Math.max(26, Math.floor(900 / L))));
  if (grid.run !== run || grid.size !== size) grid = { run, size, canvas: await drawGrid(run, size - gap) };
  const small = grid.canvas;
  const canvas = h("canvas", { id: "attention-grid", tabindex: 0, role: "img", "aria-label": "attention maps of all heads; arrow keys select a head" });
  const width = left + H * size, height = top + L * size, ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "11px ui-monospace, monospace";
  const style = getComputedStyle(document.documentElement);
  for (let head = 0; head < H; head++) {
    const group = Math.floor(head / G);
    context.fillStyle = GROUPS[group % GROUPS.length];
    context.fillRect(left + head * size, top - 7, size - (head % G === G - 1 ? gap : 0), 4);
    context.fillStyle = style.getPropertyValue("--ink");
    if (head % G === 0) context.fillText(`kv ${group}`, left + head * size, 14);
  }
  for (let layer = 0; layer < L; layer++) {
    context.fillStyle = style.getPropertyValue("--ink");
    context.fillText(layer, 4, top + layer * size + size / 2 + 3);
    for (let head = 0; head < H; head++) {
      const x = left + head * size, y = top + layer * size;
      context.drawImage(small, head * (size - gap), layer * (size - gap), size - gap, size - gap, x, y, size - gap, size - gap);
      const name = run.headName(layer, head);
      if (name !== null && size >= 24) context.fillText(KIND_TEXTS[name][0], x + size - gap - 8, y + 10);
      if (layer !== state.layer || head !== state.head) continue;
      context.strokeStyle = style.getPropertyValue("--mark");
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, size - gap + 2, size - gap + 2);
    }
  }
  const choose = (layer, head) => {
    if (layer >= 0 && layer < L && head >= 0 && head < H) show({ layer, head });
  };
  canvas.addEventListener("click", (event) => choose(Math.floor((event.offsetY - top) / size), Math.floor((event.offsetX - left) / size)));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    choose(state.layer + step[0], state.head + step[1]);
  });
  return h("div", { class: "scroll" }, canvas);
}

/** Draw a small map for every head. In long text, a cell shows the largest weight of several tokens. */
async function drawGrid(run, size) {
  const canvas = document.createElement("canvas");
  canvas.width = run.H * size;
  canvas.height = run.L * size;
  const image = new ImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const S = run.processed;
  const first = range(S).map((i) => Math.min(size - 1, Math.floor((i * size) / S)));
  const end = range(S).map((i) => Math.max(first[i] + 1, Math.floor(((i + 1) * size) / S)));
  const largest = new Int16Array(canvas.width * canvas.height).fill(-1);
  const rowOf = await run.attention();
  for (let layer = 0; layer < run.L; layer++) {
    for (let head = 0; head < run.H; head++) {
      for (let i = 0; i < S; i++) {
        const row = rowOf(layer, head, i);
        if (row === null) continue;
        for (let y = first[i]; y < end[i]; y++) {
          const line = (layer * size + y) * canvas.width + head * size;
          for (let j = 0; j <= i; j++) {
            for (let x = first[j]; x < end[j]; x++) {
              if (row[j] > largest[line + x]) largest[line + x] = row[j];
            }
          }
        }
      }
    }
  }
  largest.forEach((x, at) => x >= 0 && (pixels[at] = pixel(VIRIDIS, x / 255)));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Return all heads, sorted by the weight that position p gives to position `key`. */
function headsOf(run, rowOf, p, key) {
  const heads = range(run.L * run.H).map((n) => ({ layer: Math.floor(n / run.H), head: n % run.H }));
  return heads.map((one) => ({ ...one, weight: rowOf(one.layer, one.head, p)?.[key] ?? -1 }))
    .sort((a, b) => b.weight - a.weight || a.layer - b.layer || a.head - b.head);
}

const MOST_HEADS = 64; // maximum number of heads in the table; a large model has over a thousand

function headTable(run, rowOf, p, key) {
  const heads = headsOf(run, rowOf, p, key);
  const largest = heads[0].weight;
  const ties = heads.filter(({ weight }) => weight === largest).length;
  const rows = heads.slice(0, MOST_HEADS).map(({ layer, head, weight }) => [
    h("button", { type: "button", class: "plain", id: `head-${layer}-${head}`, onclick: () => show({ layer, head, key }) }, `layer ${layer}, head ${head}`),
    key < run.firstSeen(layer, p) ? "outside the window" : digits(weight / 255, 3)]);
  return h("section", {}, h("h3", {}, `Weights that the heads assign to token ${key} `, token(run, run.tokens[key]), ` at token ${p} `, token(run, run.tokens[p])),
    choice("attention-key", "attended token", range(p + 1).map((j) => [j, `${j} ${run.label(run.tokens[j], 20)}`]), key, (x) => show({ key: Number(x) })),
    h("p", { id: "heads-largest" }, `The largest weight is ${digits(largest / 255, 3)}, assigned by ${ties} of ${count(heads.length, "head")}.`),
    table(rows.length < heads.length ? `The ${rows.length} heads with the largest weights, of ${heads.length} heads` : "All heads, sorted by weight", ["head", "weight"], rows, { id: "heads" }));
}

function textWeights(run, row, p, sink) {
  const first = run.firstSeen(state.layer, p);
  const words = range(p + 1).map((j) => {
    const text = shown(run.text(run.tokens[j]), 20);
    if (j < first) return h("bdi", { class: "outside", title: `${j}: outside the window` }, text);
    const rgb = colour(VIRIDIS, row[j] / 255);
    return h("bdi", {
      class: "weighed", title: `${j}: ${digits(row[j] / 255, 3)}`,
      style: { background: css(rgb), color: inkOn(rgb) },
    }, text);
  });
  const largest = range(p + 1 - first).map((n) => first + n).sort((a, b) => row[b] - row[a]).slice(0, 8);
  const rows = largest.map((j) => [j, token(run, run.tokens[j]), digits(row[j] / 255, 3)]);
  if (sink !== null) rows.push([null, "the sink", digits(sink / 255, 3)]);
  return h("section", {}, h("h3", {}, `Attention weights of token ${p} `, token(run, run.tokens[p])),
    h("p", { class: "text" }, words),
    table("The largest weights in this row", ["position", "token", "weight"], rows, { id: "largest" }));
}

function angles(run, p, key) {
  const distance = p - key;
  const frequencies = run.rope[run.ropeOf[state.layer]];
  if (!frequencies) return h("section", {}, h("h3", {}, "RoPE"), h("p", {}, "This layer does not rotate queries and keys, so it does not know the positions."));
  const clock = (f, pair) => {
    const angle = distance * f;
    return h("span", { class: "clock", title: `pair ${pair}: ${digits(angle)} rad` },
      s("svg", { width: 34, height: 34, viewBox: "-17 -17 34 34", role: "img", "aria-label": `pair ${pair}` },
        s("circle", { r: 15, class: "dial" }),
        s("line", { x1: 0, y1: 0, x2: 14 * Math.cos(angle), y2: -14 * Math.sin(angle), class: "hand" })),
      h("small", {}, `${pair}: ${digits((angle * 180) / Math.PI % 360, 3)}°`));
  };
  return h("section", {}, h("h3", {}, `RoPE: how far each pair rotates between token ${key} and token ${p}`),
    h("p", {}, `The distance is ${distance}. Pair i of a head rotates by distance × frequency i. The frequencies range from ${digits(frequencies[0])} to ${digits(frequencies.at(-1))} rad per position. Angles are shown modulo 360 degrees.`),
    h("div", { class: "clocks" }, frequencies.map(clock)));
}
