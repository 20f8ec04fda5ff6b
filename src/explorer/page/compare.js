// The comparison view: two runs side by side.

async function compareView(root) {
  if (page.runs.length < 2) {
    const other = currentRun().beside;
    root.append(h("p", {}, "This file contains one run. To compare two runs, use one of these options:"),
      h("pre", { id: "how-to-compare" }, `--explore --explore-with ${other ?? "MODEL"}\n--explore --explore-prompt "another prompt"`),
      ...(other ? [] : [h("p", {}, "The weights of this run are quantized in their file, so they cannot be converted to another format. MODEL is the directory or the file of another model with the same tokens, such as another quantization of this model.")]));
    root.append(changeForm(currentRun()));
    return;
  }
  const [a, b] = page.runs;
  const found = await compareRuns(a, b);
  const name = (run, id) => (id === null ? "–" : token(run, id, 16));
  root.append(
    table("The two runs", ["", "first", "second"], [
      ["model", shown(a.name, 80), shown(b.name, 80)], ["weights", a.weights, b.weights], ["prompt tokens", a.promptLength, b.promptLength],
      ["all tokens", a.tokens.length, b.tokens.length], ["answer tokens", a.forced ? "given" : "drawn", b.forced ? "taken from the first run" : "drawn"],
    ]),
    h("p", { id: "first-difference", class: "important" }, found.first
      ? h("span", {}, `The top token of the lens first differs after ${found.first.depth ? a.depthName(found.first.depth) : "the embedding"} at position ${found.first.position}: `, name(a, found.first.ids[0]), " and ", name(b, found.first.ids[1]), ".")
      : "The top token of the lens is the same after every layer at every position that both runs have."),
    await answerDifference(a, b), ...(a.patches ? [patchesOf(a)] : []),
    h("p", {}, `The top token differs in ${found.different} of the ${found.compared} pairs of a layer and a position that both runs have. `,
      found.tokens === null ? "The texts are the same." : `The texts differ from position ${found.tokens} on.`, " Layers are compared in order, and so are the positions within a layer."));
  const L = Math.min(a.depths, b.depths);
  const differences = [h("h3", {}, "Where the top token of the lens differs"), matrix({
    id: "compare-lens", name: "change in the probability of the first run's top token", rows: L, columns: found.positions, cell: Math.max(6, Math.min(22, Math.floor((columnWidth(3) - 80) / found.positions))),
    scale: DIVERGING, low: -1, high: 1, labels: { row: (d) => a.depthName(d), column: (i) => shown(a.text(a.tokens[i]), 12) },
    value: (d, i) => found.cells[d][i]?.change ?? null, chosen: found.first ? [found.first.depth, found.first.position] : [0, 0],
    say: (d, i) => {
      const cell = found.cells[d][i];
      if (!cell) return "left out";
      return `after ${a.depthName(d)}, position ${i}: ${a.label(cell.ids[0], 16)} ${percent(cell.chances[0])}; ${b.label(cell.ids[1], 16)} ${percent(cell.chances[1])}${cell.isSame ? "" : "  (different tokens)"}`;
    },
    isMarked: (d, i) => found.cells[d][i]?.isSame === false, choose: (d, i) => show({ position: i, view: "residual" }),
  }), h("p", { class: "legend" }, "A dot marks a cell where the second run has a different top token. The colour shows the probability of the first run's top token, second run minus first. A cell has no colour if the second run does not store this probability."),
  legend(DIVERGING, -1, 1, "difference")];
  const rows = [];
  for (let i = 0; i < Math.max(a.tokens.length, b.tokens.length); i++) {
    const one = a.drawnFrom.get(i), two = b.drawnFrom.get(i);
    const chance = (pass) => pass?.choice.candidates.find((x) => x.token_id === pass.token)?.probabilities[0] ?? null;
    rows.push([i, i < a.tokens.length ? token(a, a.tokens[i]) : "–", i < b.tokens.length ? token(b, b.tokens[i]) : "–", one ? percent(chance(one)) : "", two ? percent(chance(two)) : "",
      two?.drawn === undefined ? "" : h("span", {}, "the second run would have drawn ", token(b, two.drawn))]);
  }
  root.append(spread(differences, table("All tokens, and the probability of each drawn token", ["position", "first", "second", "probability, first", "second", ""], rows, { id: "compare-tokens" }), await compareLayers(a, b)), changeForm(a));
}

const change = { part: "head", value: "=0", position: "all" };

/** Create the controls that choose one change of the run, and the command that runs it with and without the change. */
function changeForm(run) {
  const set = (name) => (value) => { change[name] = value; show({}); };
  const parts = [["head", "one head"], ["attention", "the attention of a layer"], ["feed_forward", "the feed-forward of a layer"]];
  const values = [["=0", "set to 0"], ["*=0.5", "multiplied by 0.5"], ["*=2", "multiplied by 2"]];
  const positions = range(run.processed).map((i) => [i, `at ${i} ${run.label(run.tokens[i], 16)}`]);
  const name = run.headName(state.layer, state.head);
  return h("section", {}, h("h3", { id: "change" }, "The same run with one change"),
    h("p", {}, "Two runs of the same tokens have the same bits, so each difference is an effect of the change. Choose a change. The command writes a page with both runs, and this view of that page compares them."),
    h("div", { class: "controls" },
      choice("change-part", "change", parts, change.part, set("part")),
      choice("change-layer", "layer", range(run.L).map((l) => [l, l]), state.layer, (x) => show({ layer: Number(x) })),
      change.part === "head" ? choice("change-head", "head", range(run.H).map((i) => [i, `${i}${named(run.headName(state.layer, i))}`]), state.head, (x) => show({ head: Number(x) })) : null,
      choice("change-value", "to be", values, change.value, set("value")),
      choice("change-position", "positions", [["all", "at all positions"], ...positions], change.position, set("position"))),
    change.part === "head" && name !== null ? h("p", {}, `Over this run, layer ${state.layer}, head ${state.head} attends to ${KIND_TEXTS[name][1]}.`) : null,
    h("pre", { id: "change-command", tabindex: 0, class: "command" }, changeCommand(run)),
    run.options.model === null ? null : h("p", {}, `${shown(run.options.model, 80)} stands for the directory, the file or the name of the model.`));
}

/** Return a text as an argument in a shell, or null if it contains characters that a terminal does not accept as text. */
function shellText(text) {
  if (text.search(UNSAFE) >= 0) return null;
  return /["$`\\!]/.test(text) ? `'${text.replaceAll("'", "'\\''")}'` : `"${text}"`;
}

/** Return the options that give the prompt of a run. */
function promptOptions({ messages, text }) {
  const file = "-f prompt.txt"; // for a prompt that cannot be part of a command
  if (typeof text === "string") return `--completion ${shellText(text) === null ? file : `-p ${shellText(text)}`}`;
  const roles = messages?.map((one) => one.role).join(" ");
  if (roles !== "user" && roles !== "system user") return "...";
  const system = roles === "user" ? "" : `-s ${shellText(messages[0].content) ?? "..."} `;
  const user = shellText(messages.at(-1).content);
  return system + (user === null ? file : `-p ${user}`);
}

const NEUTRAL = { min_p: 0, repeat_penalty: 1, frequency_penalty: 0, presence_penalty: 0 };

/** Return the command that runs the same prompt with the chosen change, next to the run without it. */
function changeCommand(run) {
  const one = run.drawnFrom.get(run.promptLength);
  const place = { head: `attention.heads[${state.head}]`, attention: "attention", feed_forward: "feed_forward" }[change.part];
  const position = change.position === "all" ? "" : `@${change.position}`;
  const options = [promptOptions(run.prompt), `-n ${Math.max(1, run.tokens.length - run.promptLength)}`];
  if (run.options.model !== null) options.unshift(`-m ${shellText(run.options.model)}`);
  if (run.options.quantize !== null) options.push(`--quantize ${run.options.quantize}`);
  if (one) {
    const { temperature, top_k, top_p } = one.sampling;
    options.push(temperature === 0 ? "--temperature 0" : `--seed ${one.seed} --temperature ${temperature} --top-k ${top_k} --top-p ${top_p}`);
    for (const [name, neutral] of Object.entries(NEUTRAL)) {
      if (one.sampling[name] !== neutral) options.push(`--${name.replaceAll("_", "-")} ${one.sampling[name]}`);
    }
  }
  return `python -m src.main ${options.join(" ")} --set-activation "layers.${state.layer}.${place}${position}${change.value}" --explore changed.html --explore-with base`;
}

/** Create the maps of the effects of patching each place of the first run with its tensor in the second run. */
function patchesOf(run) {
  const { answer, otherAnswer, measure, otherMeasure, residual, heads, feedForward } = run.patches;
  const parts = heads.map((effects, layer) => [...effects, feedForward[layer]]);
  const partName = (part) => (part < run.H ? `head ${part}` : "feed-forward");
  const placeName = (layer, part) => (part < run.H ? named(run.headName(layer, part)) : "");
  return h("section", { id: "patches" }, h("h3", {}, "Which places carry the answer"),
    h("p", {}, "Each cell is a run of the first prompt in which one place has the tensor of the run of the second prompt. 0 means that the place has no effect, and 1 that it alone moves the difference of the logits of ", token(run, answer), " and ", token(run, otherAnswer),
      ` from ${digits(measure, 3)} all the way to ${digits(otherMeasure, 3)}, the difference in the run of the second prompt.`),
    spread(
      [h("p", {}, "The residual stream after each layer, at one position:"), effectMap("patches-residual", "effect of the residual stream", residual, {
        label: (i) => shown(run.text(run.tokens[i]), 12), say: (layer, i) => `after layer ${layer}, position ${i} ${run.label(run.tokens[i], 16)}`,
        choose: (_layer, i) => show({ view: "residual", position: i }),
      })],
      [h("p", {}, "Each head and each feed-forward, at all positions:"), effectMap("patches-parts", "effect of the heads and the feed-forward", parts, {
        label: partName, say: (layer, part) => `layer ${layer}, ${partName(part)}${placeName(layer, part)}`,
        choose: (layer, part) => part < run.H && show({ view: "attention", layer, head: part }),
      })]),
    legend(DIVERGING, -1, 1, "effect"));
}

/** Create a map of effects [layer][column], with the cursor at the largest one. */
function effectMap(id, name, effects, { label, say, choose }) {
  const columns = effects[0].length;
  const all = effects.flat();
  const largest = all.indexOf(Math.max(...all));
  return matrix({
    id, name, rows: effects.length, columns, cell: Math.max(6, Math.min(22, Math.floor((columnWidth(2) - 80) / columns))), scale: DIVERGING, low: -1, high: 1,
    value: (layer, column) => effects[layer][column], labels: { row: (layer) => `layer ${layer}`, column: label },
    say: (layer, column) => `${say(layer, column)}: ${digits(effects[layer][column], 3)}`, choose, chosen: [Math.floor(largest / columns), largest % columns],
  });
}

/** Describe how far the runs differ in the first token of the answer, if they have the same tokens before it. */
async function answerDifference(a, b) {
  const p = a.deciding;
  const id = a.tokens[p + 1];
  const isSame = range(p + 1).every((i) => a.text(a.tokens[i]) === b.text(b.tokens[i]));
  const [one, two] = isSame && p < b.processed ? await Promise.all([a.lensOf(p), b.lensOf(p)]) : [null, null];
  if (id === undefined || !one || !two || two.logit(b.L, id) === null) return "";
  const logits = [one.logit(a.L, id), two.logit(b.L, id)];
  const [top] = two.top(b.L);
  return h("p", { id: "answer-difference" }, `At position ${p}, the first token of the answer, `, token(a, id, 16), `, has the probability ${percent(one.chance(a.L, id))} and the logit ${digits(logits[0], 6)} in the first run, and ${percent(two.chance(b.L, id))} and ${digits(logits[1], 6)} in the second: a difference of ${digits(logits[1] - logits[0], 3)}. `,
    top === id ? "It is the most probable token of both runs." : h("span", {}, "The most probable token of the second run is ", token(b, top, 16), "."));
}

/** Compare the logit lenses of two runs at every depth and position that both runs have. */
async function compareRuns(a, b) {
  const positions = Math.min(a.processed, b.processed);
  const depths = Math.min(a.depths, b.depths);
  const pairs = await Promise.all(range(positions).map((i) => Promise.all([a.lensOf(i), b.lensOf(i)])));
  let first = null, different = 0, compared = 0;
  const cells = range(depths).map((depth) => range(positions).map((i) => {
    const [one, two] = pairs[i];
    if (!one || !two) return null;
    const ids = [one.top(depth)[0], two.top(depth)[0]];
    const isSame = a.text(ids[0]) === b.text(ids[1]);
    compared++;
    if (!isSame) different++;
    if (!isSame && !first) first = { depth, position: i, ids };
    const chances = [one.chance(depth, ids[0]), two.chance(depth, ids[1])];
    const other = two.chance(depth, ids[0]);
    return { ids, isSame, chances, change: other === null ? null : other - chances[0] };
  }));
  const at = range(Math.min(a.tokens.length, b.tokens.length)).find((i) => a.text(a.tokens[i]) !== b.text(b.tokens[i]));
  const tokens = at ?? (a.tokens.length === b.tokens.length ? null : Math.min(a.tokens.length, b.tokens.length));
  return { first, different, compared, cells, positions, tokens };
}

async function compareLayers(a, b) {
  const p = Math.min(a.query(state.position), b.processed - 1);
  const [one, two] = [await a.residualOf(p), await b.residualOf(p)];
  if (!one || !two) return missing("The residual stream of this position");
  const rows = range(Math.min(a.L, b.L)).map((layer) => [`layer ${layer}`, ...[2 * layer, 2 * layer + 1].flatMap((half) => [digits(one.norm(half)), digits(two.norm(half))]),
    digits(one.rms(2 * layer + 2)), digits(two.rms(2 * layer + 2)), digits(two.rms(2 * layer + 2) - one.rms(2 * layer + 2), 3)]);
  return table(`Position ${p}: the lengths of the vectors that each layer added, and the rms of the stream after it`, ["", "attention, first", "second", "feed-forward, first", "second", "rms, first", "second", "difference"], rows);
}
