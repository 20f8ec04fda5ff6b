// The experts view of a model with experts: which of them each layer used for a token, and how often.

async function expertsView(root) {
  const run = currentRun();
  const p = run.query(state.position);
  const { E, A } = run.sizes;
  const chosen = await run.experts();
  if (!chosen) {
    root.append(missing("The experts"));
    return;
  }
  const layers = range(run.L);
  const own = layers.map((layer) => chosen(layer, p));
  root.append(h("p", {}, `In place of one feed-forward, each layer has ${amount(E)} experts, which are small feed-forwards, and a router. For each token, the router chooses the ${count(A, "expert")} with the largest logits. The results of these experts are added with the weights below. Other experts are not computed for this token.`),
    decision(run, p));
  if (own.some((one) => one === null)) {
    root.append(missing("The experts of this position"));
    return;
  }
  const cell = Math.max(4, Math.min(24, Math.floor((columnWidth(2) - 80) / E)));
  const weights = own.map((one) => new Map(one));
  const uses = layers.map(() => new Float64Array(E));
  let tokens = 0;
  for (const position of range(run.processed)) {
    const experts = layers.map((layer) => chosen(layer, position));
    if (experts.some((one) => one === null)) continue;
    tokens++;
    experts.forEach((one, layer) => one.forEach(([expert]) => uses[layer][expert]++));
  }
  const mostUses = Math.max(...uses.map((one) => Math.max(...one)));
  const labels = { row: (layer) => `layer ${layer}`, column: E * 14 <= cell * E ? (expert) => String(expert) : undefined };
  root.append(spread(
    [h("h3", {}, `Experts at position ${p}, `, token(run, run.tokens[p])),
      table("The chosen experts of each layer, the largest weight first", ["layer", ...range(A).map((n) => `${n + 1}.`)], own.map((one, layer) =>
        [layer, ...[...one].sort((a, b) => b[1] - a[1]).map(([expert, weight]) => h("span", {}, `expert ${expert}`, h("small", {}, ` ${percent(weight)}`)))]), { id: "experts-of-token" }),
      matrix({ id: "expert-weights", name: "weight of each expert", rows: run.L, columns: E, cell, scale: VIRIDIS, low: 0, high: 1, labels,
        value: (layer, expert) => weights[layer].get(expert) ?? 0, chosen: [state.layer, own[state.layer][0][0]],
        say: (layer, expert) => `layer ${layer}, expert ${expert}: ${weights[layer].has(expert) ? `weight ${digits(weights[layer].get(expert))}` : "not chosen"}` }),
      legend(VIRIDIS, 0, 1, "weight")],
    [h("h3", {}, `Experts of all ${count(tokens, "token")}`),
      h("p", {}, "How often each expert was chosen. A router that uses all experts equally makes all cells alike."),
      matrix({ id: "expert-uses", name: "how often each expert was chosen", rows: run.L, columns: E, cell, scale: VIRIDIS, low: 0, high: mostUses, labels,
        value: (layer, expert) => uses[layer][expert], chosen: [state.layer, own[state.layer][0][0]],
        say: (layer, expert) => `layer ${layer}, expert ${expert}: chosen for ${uses[layer][expert]} of ${count(tokens, "token")}` }),
      legend(VIRIDIS, 0, mostUses, "tokens")]));
}
