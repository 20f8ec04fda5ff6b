// The cache view: the KV cache, and the forward passes with prefill next to decode.

async function cacheView(root) {
  const run = currentRun();
  const one = run.passOf(run.query(state.position));
  const { K, h: width, L } = run.sizes;
  const C = run.sizes.C;
  const itemsize = run.dtype === "bfloat16" ? 2 : 4;
  const perLayer = 2 * K * width * itemsize;
  const perPosition = L * perLayer;
  const rings = run.capacities.filter(([positions]) => positions < C);
  // The bytes of some positions. A ring contains only the last of them.
  const bytes = (count) => run.capacities.reduce((sum, [positions, layers]) => sum + Math.min(count, positions) * layers * perLayer, 0);
  const end = one.start + one.T;
  root.append(
    h("p", {}, `Each layer stores the rotated keys and the values of every position in cache_k and cache_v, both [C, K, h] = [${C}, ${K}, ${width}] ${run.dtype}. A position takes 2 × L × K × h × ${itemsize} = ${amount(perPosition)} bytes in all ${L} layers.`),
    ...rings.map(([positions, layers]) => h("p", {}, `In ${layers} layers with a window, the cache is a ring of C = ${positions} slots, where later positions replace earlier ones.`)),
    h("div", { class: "controls" }, choice("cache-pass", "pass", run.passes.map((x) => [x.number, `${x.number}: positions ${x.start} to ${x.start + x.T - 1}`]), one.number,
      (x) => show({ position: run.passes[x].start + run.passes[x].T - 1 }))),
    spread([cachePicture(C, K, one),
    h("p", { id: "cache-line" }, `Pass ${one.number} wrote slots ${one.start} to ${end - 1}. Of the ${C} slots, slots 0 to ${end - 1} are filled, which is ${amount(bytes(end))} of ${amount(bytes(C))} bytes.`)],
    table("All passes: first over the prompt, then over one new token each",
      ["pass", "T", "S", "slots written", "bytes filled", "time in ops", "time per token", "drawn token", "text", "stop reason"],
      run.passes.map((x) => {
        const total = x.seconds.reduce((a, b) => a + b, 0);
        return [x.number, x.T, x.start + x.T, `${x.start}:${x.start + x.T}`, amount(bytes(x.start + x.T)), duration(total), duration(total / x.T),
          x.token === undefined ? "" : token(run, x.token), shown(x.text ?? "", 30), x.stop ?? ""];
      }), { id: "passes" })));
}

function cachePicture(C, K, one) {
  const width = Math.min(900, columnWidth(2)), row = Math.max(4, Math.min(18, 120 / K));
  const end = one.start + one.T;
  // Draw at most three times as many slots as are filled, and label the break.
  const shownC = Math.min(C, Math.max(3 * end, 48));
  const x = (slot) => 50 + (slot * (width - 130)) / shownC;
  const heads = range(K).map((k) => [
    s("text", { x: 4, y: k * row + row - 1 }, K <= 12 ? `head ${k}` : ""),
    s("rect", { x: x(0), y: k * row, width: x(shownC) - x(0), height: row - 1, class: "empty" }),
    s("rect", { x: x(0), y: k * row, width: x(end) - x(0), height: row - 1, class: "other" }),
    s("rect", { x: x(one.start), y: k * row, width: Math.max(x(end) - x(one.start), 2), height: row - 1, class: "chosen" }),
  ]);
  const base = K * row + 14;
  return h("div", {}, picture(width, K * row + 22, "cache slots", heads,
    s("text", { x: x(0), y: base }, "0"), s("text", { x: x(end), y: base, "text-anchor": "middle" }, end),
    s("text", { x: x(shownC), y: base }, shownC < C ? `… ${C}` : C)),
    h("p", { class: "legend" }, h("span", { class: "swatch chosen" }), " written in this pass ", h("span", { class: "swatch other" }), " filled before ", h("span", { class: "swatch empty" }), " empty"));
}
