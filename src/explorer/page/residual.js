// The residual stream view: its magnitude, the logit lens, and which parts promoted a token.

async function residualView(root) {
  const run = currentRun();
  const p = run.query(state.position);
  const lens = await run.lensOf(p);
  const [parts, heads] = await attributionOf(run, p);
  root.append(decision(run, p), drawnNote(run, p), ...(await lensTable(run, p)),
    spread(
      [h("p", {}, "The attention and the feed-forward of each layer add to the residual stream. The logit lens applies the final norm and the output matrix to the stream after each layer, to show which token the stream predicts at that point."), ...(lens ? lensOfPosition(run, lens, p) : [])],
      heads, parts, await streamTable(run, p)));
}

/** Describe which token follows a position, and whether its logits decided it. */
function decision(run, p) {
  const one = run.drawnFrom.get(p + 1);
  const place = h("span", {}, `Position ${p}, `, token(run, run.tokens[p]), ". ");
  if (one) return h("p", { class: "important" }, place, "Its logits decided the next token: ", h("strong", { id: "decided" }, token(run, one.token)), ". ", chance(run, one));
  return h("p", { class: "important" }, place, p + 1 < run.tokens.length ? h("span", {}, "The prompt continues with ", token(run, run.tokens[p + 1]), ". ") : "",
    run.drawnFrom.size ? h("button", { id: "to-deciding", type: "button", onclick: () => show({ position: run.deciding }) }, `show position ${run.deciding}, which decided the first token of the answer`) : null);
}

async function lensTable(run, p) {
  if (run.passes.every((one) => !one.lens)) return [missing("The lens")];
  const count = Math.max(3, Math.min(22, Math.floor((pageWidth() - 110) / 110)));
  const first = Math.max(0, Math.min(p - Math.floor(count / 2), run.processed - count));
  const positions = range(run.processed).slice(first, first + count);
  const lenses = new Map(await Promise.all(positions.map(async (i) => [i, await run.lensOf(i)])));
  const rows = range(run.depths).reverse().map((depth) => h("tr", {}, h("th", { scope: "row" }, run.depthName(depth)),
    positions.map((i) => {
      const lens = lenses.get(i);
      if (!lens) return h("td", {}, "–");
      const id = lens.top(depth)[0];
      const chance = lens.chance(depth, id);
      const rgb = colour(VIRIDIS, chance);
      const isNext = run.tokens[i + 1] === id;
      return h("td", { style: { background: css(rgb), color: inkOn(rgb) }, class: i === p ? "here" : "" },
        token(run, id, 12), h("small", {}, ` ${percent(chance)}${isNext ? " ✓" : ""}`));
    })));
  const heads = ["after", ...positions.map((i) => h("button", { type: "button", class: "plain", id: `lens-${i}`, "aria-pressed": String(i === p), onclick: () => show({ position: i }) }, `${i} ${shown(run.text(run.tokens[i]), 10)}`))];
  return [table("The most probable token after each layer; ✓ marks the token that follows in the text", heads, rows, { class: "lens" }),
    legend(VIRIDIS, 0, 1, "probability")];
}

const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 2", "12 4"];

function lensOfPosition(run, lens, p) {
  const rows = range(run.depths).map((depth) => [run.depthName(depth),
    ...lens.top(depth).map((id) => h("span", {}, token(run, id, 14), h("small", {}, ` ${percent(lens.chance(depth, id))}`))),
    digits(lens.entropy(depth), 3)]);
  const next = run.tokens[p + 1];
  const ids = [...new Set([...lens.top(run.depths - 1), ...(next === undefined ? [] : [next])])];
  const width = 560, height = 180, left = 40;
  const x = (depth) => left + (depth * (width - left - 150)) / Math.max(run.L, 1);
  const y = (chance) => 10 + (1 - (chance ?? 0)) * (height - 40);
  let free = height - 16;
  const ends = ids.map((id) => [id, y(lens.chance(run.L, id))]).sort((a, b) => b[1] - a[1]);
  const lines = ends.map(([id, end], i) => {
    free = Math.min(end, free - 14); // place labels from the bottom up, because most lines end there
    const points = range(run.depths).map((depth) => `${x(depth)},${y(lens.chance(depth, id))}`);
    return [s("polyline", { points: points.join(" "), class: "line", stroke: GROUPS[(i + 4) % GROUPS.length], "stroke-dasharray": DASHES[i % DASHES.length] }),
      s("text", { x: width - 142, y: free + 4 }, `${run.label(id, 12)}${id === next ? " ✓" : ""}`)];
  });
  const ticks = range(run.depths).filter((d) => d % Math.ceil(run.depths / 9) === 0)
    .map((depth) => s("text", { x: x(depth), y: height - 6, "text-anchor": "middle" }, depth === 0 ? "emb" : depth - 1));
  return [
    table(`Position ${p}: the top tokens after each layer, and the entropy in bits`, ["after", "1", "2", "3", "4", "5", "entropy"], rows, { id: "lens-position" }),
    h("h3", {}, "The probabilities of these tokens after each layer"),
    picture(width, height, "probabilities of these tokens after each layer",
      s("text", { x: 4, y: y(1) + 4 }, "100 %"), s("text", { x: 4, y: y(0) + 4 }, "0 %"), s("line", { x1: left, x2: width - 150, y1: y(0), y2: y(0), class: "axis" }), ticks, lines),
  ];
}

async function streamTable(run, p) {
  const found = await run.residualOf(p);
  if (!found) return missing("The residual stream of this position");
  const rows = [["embedding", "", "", "", "", digits(found.rms(0))], ...range(run.L).map((layer) => [
    `layer ${layer}`, digits(found.norm(2 * layer)), digits(found.cosine(2 * layer), 3),
    digits(found.norm(2 * layer + 1)), digits(found.cosine(2 * layer + 1), 3), digits(found.rms(2 * layer + 2)),
  ])];
  return table("The vectors that each layer added at this position: their lengths, and the cosines of their angles to the stream before",
    ["", "attention: length", "cosine", "feed-forward: length", "cosine", "rms of the stream after"], rows, { id: "stream" });
}

/** Return the sections about the parts and the heads that promoted the token that follows a position, or the answer's first token. */
async function attributionOf(run, p) {
  const one = run.drawOf(p + 1);
  if (!one?.attribution) return [missing("The attribution of this step"), null];
  const parts = await arrayOf(one.attribution.parts);
  const heads = one.attribution.heads && (await arrayOf(one.attribution.heads));
  const logit = one.logits ? (await arrayOf(one.logits))[one.token] : null;
  const most = Math.max(...parts.map(Math.abs));
  const name = (i) => (i === 0 ? "embedding" : `layer ${(i - 1) >> 1} ${i % 2 ? "attention" : "feed-forward"}`);
  const signed = (x) => `${x < 0 ? "−" : "+"}${digits(Math.abs(x), 3)}`;
  const best = parts.indexOf(Math.max(...parts));
  const width = 560, row = 18, zero = 330;
  const scale = 170 / (most || 1);
  const bars = [...parts].map((x, i) => [
    s("text", { x: 4, y: i * row + 13 }, name(i)),
    s("rect", { x: x < 0 ? zero + x * scale : zero, y: i * row + 3, width: Math.abs(x) * scale, height: row - 6, class: x < 0 ? "against" : "for" }),
    s("text", { x: x < 0 ? zero + 4 : zero - 4, y: i * row + 13, "text-anchor": x < 0 ? "start" : "end" }, signed(x)),
  ]);
  const section = h("section", {}, h("h3", {}, "Which parts promoted ", token(run, one.token), `, token ${one.token} at position ${one.start + one.T}`),
    h("p", { id: "attribution-sum" }, `A part's contribution is its product with this token's row of the output matrix, with the scale of the final norm held fixed. The contributions add up to ${digits(one.attribution.sum, 7)}; the logit is ${logit === null ? "not in this file" : digits(logit, 7)}. The sum and the logit differ by less than ${digits(one.attribution.bound, 2)}, the largest error from rounding the normalized activations.`),
    h("p", {}, "The largest part: ", h("strong", { id: "largest-part" }, `${name(best)}, ${signed(parts[best])}`), "."),
    picture(width, parts.length * row + 6, "contribution of each part to the logit",
      s("line", { x1: zero, x2: zero, y1: 0, y2: parts.length * row, class: "axis" }), bars));
  if (!heads) return [section, null];
  const largest = Math.max(...heads.map(Math.abs)) || 1;
  const top = heads.indexOf(Math.max(...heads));
  return [section, h("section", {}, h("h3", {}, "Contributions of the heads"),
    h("p", {}, `The contribution of each layer's attention, divided among its heads${one.attribution.biases ? " (without the bias of the output matrix)" : ""}. The largest: `, h("strong", { id: "largest-head" }, `layer ${Math.floor(top / run.H)}, head ${top % run.H}, ${signed(heads[top])}`), named(run.headName(Math.floor(top / run.H), top % run.H)), "."), await headsThatPromoted(run, one, heads), matrix({
    id: "attribution-heads", name: "contribution of each head to the logit", rows: run.L, columns: run.H, cell: Math.max(12, Math.min(30, Math.floor(600 / run.H))),
    scale: DIVERGING, low: -largest, high: largest, value: (layer, head) => heads[layer * run.H + head],
    labels: { row: (layer) => `layer ${layer}`, column: (head) => `head ${head}` },
    say: (layer, head) => `layer ${layer}, head ${head}${named(run.headName(layer, head))}: ${digits(heads[layer * run.H + head])}`,
    choose: (layer, head) => show({ view: "attention", layer, head }), chosen: [state.layer, state.head],
  }), legend(DIVERGING, -largest, largest, "contribution to the logit"))];
}

const MOST_PROMOTING = 8; // maximum number of heads in the table

/** Create the table of the heads with the largest contributions to the token of a pass, and what they attend to. */
async function headsThatPromoted(run, one, heads) {
  const rowOf = await run.attention();
  const p = one.start + one.T - 1;
  const order = range(heads.length).sort((a, b) => heads[b] - heads[a]).slice(0, MOST_PROMOTING).filter((n) => heads[n] > 0);
  const rows = order.map((n) => {
    const [layer, head] = [Math.floor(n / run.H), n % run.H];
    const row = rowOf(layer, head, p);
    const best = row && range(p + 1).reduce((a, b) => (row[b] > row[a] ? b : a), 0);
    return [h("button", { type: "button", class: "plain", id: `promoted-${layer}-${head}`, onclick: () => show({ view: "attention", layer, head, position: p, key: best }) }, `layer ${layer}, head ${head}`),
      `+${digits(heads[n], 3)}`, row ? h("span", {}, `${best} `, token(run, run.tokens[best], 16), ` ${digits(row[best] / 255, 2)}`) : "–", run.headName(layer, head) ?? ""];
  });
  return table(`The heads that promoted the token most, and the token to which each assigns its largest weight at position ${p}`, ["head", "contribution", "attends most to", "name"], rows, { id: "promoting-heads" });
}
