// A guided tour for new readers, with ten steps that each explain a number in this run.

/** Return the steps, each with a title, text that contains numbers from the run, and a selection. */
async function tourSteps(run) {
  const draw = run.drawOf(run.promptLength);
  const last = run.promptLength - 1;
  const rowOf = await run.attention();
  const row = draw && rowOf(0, 0, last);
  const key = row ? range(last + 1).reduce((x, y) => (row[y] > row[x] ? y : x), 0) : 0;
  const lens = await run.lensOf(last);
  const drawn = draw ? run.label(draw.token, 20) : "no token";
  const depth = lens && draw ? range(run.depths).find((d) => lens.top(d)[0] === draw.token) : undefined;
  const stream = await run.residualOf(last);
  const parts = draw?.attribution ? [...(await arrayOf(draw.attribution.parts))] : [];
  const best = parts.indexOf(Math.max(...parts));
  const partName = best === 0 ? "the embedding" : `the ${best % 2 ? "attention" : "feed-forward"} of layer ${(best - 1) >> 1}`;
  const { T } = run.passes[0];
  const sizes = run.sizes;
  const first = run.passes[0].seconds.reduce((a, b) => a + b, 0);
  const second = run.passes[1]?.seconds.reduce((a, b) => a + b, 0);
  return [
    ["A text is cut into tokens", `This prompt has ${count(run.promptLength, "token")}, and the answer has ${run.tokens.length - run.promptLength}. The last token of the prompt is ${run.label(run.tokens[last])}, with the id ${run.tokens[last]}.`, { view: "tokens", position: last }],
    ["Tokens become vectors", `Stage 4 looks up each token in a table with V = ${amount(sizes.V)} rows of D = ${sizes.D} elements, so x has the shape [T, D] = [${T}, ${sizes.D}].`, { view: "map", stage: 4 }],
    ["Layers add to one stream", `Each of the L = ${sizes.L} layers adds the results of its attention and its feed-forward. ${stream ? `At the last token of the prompt, the rms of the stream grows from ${digits(stream.rms(0), 3)} to ${digits(stream.rms(2 * run.L), 3)}.` : ""}`, { view: "residual", position: last }],
    ["Queries, keys and values", `Stage 8 computes H = ${sizes.H} queries, K = ${sizes.K} keys and K = ${sizes.K} values for each token. Every G = ${sizes.H / sizes.K} query heads share a key/value head.`, { view: "map", stage: 8 }],
    ["Positions are angles", `RoPE rotates pairs of elements: the first pair by ${digits(run.rope[0][0], 3)} rad per position, the last pair by ${digits(run.rope[0].at(-1), 3)} rad.`, { view: "attention", layer: 0, head: 0, position: last }],
    ["A token attends to earlier ones", row ? `In layer 0, head 0, the last token of the prompt assigns ${percent(row[key] / 255)} of its attention to token ${key}, ${run.label(run.tokens[key])}.` : "The attention of this run was left out.", { view: "attention", layer: 0, head: 0, position: last, key }],
    ["The cache saves work", `The first pass processed ${count(T, "token")} in ${duration(first)}${second ? `. The second pass processed a single token in ${duration(second)}, and read the keys and values of all others from the cache` : ""}.`, { view: "cache", position: last }],
    ["When the answer appears", depth === undefined ? `The logit lens shows the most probable token after each layer. The drawn token is ${drawn}.` : `In the logit lens, ${drawn} is the most probable token for the first time after ${depth ? run.depthName(depth) : "the embedding"}.`, { view: "residual", position: last }],
    ["Parts promote a token", parts.length ? `The logit of ${drawn} is a sum of ${count(parts.length, "part")}. The largest part, +${digits(parts[best], 3)}, comes from ${partName}.` : "The attribution was left out.", { view: "residual", position: last }],
    ["A token is drawn", draw ? `The filters kept ${amount(draw.choice.stages.at(-1).kept)} of ${count(sizes.V, "token")}. ${draw.random === null ? "The token with the largest logit is" : `The random number ${digits(draw.random)} selected`} ${drawn}.` : "No token was drawn.", { view: "sampling", position: run.promptLength }],
  ];
}

async function tourView(root) {
  const steps = await tourSteps(currentRun());
  const at = Math.min(state.tour, steps.length - 1);
  const [title, text, target] = steps[at];
  const to = (n) => show({ tour: n });
  root.append(
    h("section", { class: "tour" }, h("h3", { id: "tour-title" }, `${at + 1} of ${steps.length}: ${title}`), h("p", { id: "tour-text" }, h("bdi", {}, text)),
      h("div", { class: "controls" },
        h("button", { id: "tour-back", type: "button", disabled: at === 0, onclick: () => to(at - 1) }, "back"),
        h("button", { id: "tour-next", type: "button", disabled: at === steps.length - 1, onclick: () => to(at + 1) }, "next"),
        h("button", { id: "tour-show", type: "button", onclick: () => show(target) }, "show it"))),
    h("ol", {}, steps.map(([name], n) => h("li", {}, h("button", { type: "button", class: "plain", id: `tour-${n}`, "aria-pressed": String(n === at), onclick: () => to(n) }, name)))));
}
