// The values view: a stored tensor as colours, and the bits of a selected element.

// The selected tensor, slice and [row, column], and the token for which they were chosen. A cell is `scale` times as large
// as it is at first.
const zoom = { chosen: 0, slice: 0, scale: 1, place: [0, 0], position: null };

/**
 * Choose the first stored tensor of a stage, of the token's pass if there is one, and its element of the head and the token.
 * The choice stays as it is if no tensor of the stage is stored.
 */
function chooseValues(run, { stage, layer, head, position }) {
  const kept = run.kept();
  const isOfStage = (one) => one.stage === stage && (one.layer === null || one.layer === layer);
  const pass = run.passOf(position).number;
  const chosen = kept.findIndex((one) => isOfStage(one) && one.pass === pass);
  const at = chosen >= 0 ? chosen : kept.findIndex(isOfStage);
  if (at >= 0) chooseElement(run, kept, at, head, position);
}

/** Choose a tensor, and its element of a head and a token. */
function chooseElement(run, kept, at, head, position) {
  const x = kept[at];
  const group = Math.floor(head / (run.H / run.sizes.K));
  const { h: width } = run.sizes;
  const indices = { H: head, K: group, "H*h": head * width, "K*h": group * width, T: position - run.passes[x.pass].start, S: position, C: position };
  const place = x.offsets.map((all, axis) => {
    const index = (indices[x.letters[axis]] ?? 0) - (axis === x.axis ? x.first : 0);
    return Math.max(0, Math.min(index, all.length - 1));
  });
  Object.assign(zoom, { chosen: at, slice: place.length > 2 ? place[0] : 0, place: [place.at(-2) ?? 0, place.at(-1)], position });
}

/** Choose the same tensor in the pass of the selected token, and its element of the token. */
function followToken(run, kept) {
  if (zoom.position === state.position) return;
  const now = kept[Math.min(zoom.chosen, kept.length - 1)];
  const pass = run.passOf(state.position).number;
  const isSame = (one) => one.stage === now.stage && one.layer === now.layer && one.name === now.name && one.op === now.op;
  const at = kept.findIndex((one) => isSame(one) && one.pass === pass);
  chooseElement(run, kept, at >= 0 ? at : kept.indexOf(now), state.head, state.position);
}

async function valuesView(root) {
  const run = currentRun();
  const kept = run.kept();
  if (!kept.length) return root.append(missing("Every tensor"));
  followToken(run, kept);
  const at = Math.min(zoom.chosen, kept.length - 1);
  const x = kept[at];
  const array = await arrayOf(x.reference);
  const isComplex = x.dtype === "complex64";
  const [of1, of2] = x.offsets.length === 1 ? [[0], x.offsets[0]] : x.offsets.slice(-2);
  const [rows, columns] = [of1.length, of2.length];
  const slices = x.offsets.length > 2 ? x.offsets[0] : [0];
  const slice = Math.min(zoom.slice, slices.length - 1);
  const index = (r, c) => slices[slice] + of1[r] + of2[c];
  const read = (i) => (isComplex ? Math.hypot(array[2 * i], array[2 * i + 1]) : numberAt(array, x.reference.dtype, i));
  let low = Infinity, high = -Infinity;
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const v = read(index(r, c));
      if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
    }
  }
  const cell = Math.max(1, Math.min(32, Math.max(8, Math.min(24, Math.floor(pageWidth() / columns))) * zoom.scale));
  const isSigned = low < 0;
  const end = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const bounds = isSigned ? [-end, end] : [Math.min(low, 0), high || 1];
  const title = (one) => `pass ${one.pass}, ${one.layer === null ? "" : `layer ${one.layer}, `}stage ${one.stage}: ${one.name} [${one.letters.join(", ")}] (${one.op})`;
  const axes = x.offsets.length === 1 ? [0] : [x.offsets.length - 2, x.offsets.length - 1];
  const offset = (axis, n) => (axis === x.axis ? n + x.first : n);
  const say = (r, c) => {
    const i = index(r, c);
    const places = [...(x.offsets.length > 2 ? [offset(0, slice)] : []), ...(x.offsets.length > 1 ? [offset(axes[0], r)] : []), offset(axes.at(-1), c)];
    const value = isComplex ? `${array[2 * i]} + ${array[2 * i + 1]} i` : String(read(i));
    return `${x.name}[${places.join(", ")}] = ${value}   ${isComplex ? "" : bitsOf(array, x.reference.dtype, i)}`;
  };
  root.append(h("p", {}, x.isView ? `The result of ${x.op} has the elements of an earlier tensor in another order or shape.` : "The elements have the same bits as in the run."),
    h("div", { class: "controls" },
      choice("values-tensor", "tensor", kept.map((one, i) => [i, title(one)]), at, (i) => { chooseElement(run, kept, Number(i), state.head, state.position); show({}); }),
      slices.length > 1 ? choice("values-slice", `${x.letters[0]}`, slices.map((_, i) => [i, offset(0, i)]), slice, (i) => { zoom.slice = Number(i); show({}); }) : null,
      h("button", { id: "values-smaller", type: "button", onclick: () => { zoom.scale /= cell > 1 ? 2 : 1; show({}); } }, "smaller cells"),
      h("button", { id: "values-larger", type: "button", onclick: () => { zoom.scale *= cell < 32 ? 2 : 1; show({}); } }, "larger cells")),
    h("p", {}, `${x.name}: shape [${x.letters.join(", ")}] = [${x.shape.join(", ")}], ${x.dtype}. ${x.first ? `The file contains ${x.letters[x.axis]} from index ${x.first} on. ` : ""}The row index increases downwards, the column index to the right.`),
    matrix({
      id: "values-map", name: `elements of ${x.name}`, rows, columns, cell, scale: isSigned ? DIVERGING : VIRIDIS, low: bounds[0], high: bounds[1],
      chosen: zoom.place, choose: (r, c) => { zoom.place = [r, c]; },
      value: (r, c) => { const v = read(index(r, c)); return Number.isNaN(v) ? null : Math.max(bounds[0], Math.min(bounds[1], v)); }, say,
    }),
    legend(isSigned ? DIVERGING : VIRIDIS, ...bounds, isComplex ? "absolute value" : "value"));
}

/** Return the bits of an element, separated into sign, exponent and fraction. */
function bitsOf(array, dtype, i) {
  let bits, exponent;
  if (dtype === "bfloat16") [bits, exponent] = [array[i].toString(2).padStart(16, "0"), 9];
  else if (dtype === "float32") {
    floatBits.setFloat32(0, array[i]);
    [bits, exponent] = [floatBits.getUint32(0).toString(2).padStart(32, "0"), 9];
  } else return "";
  return `sign ${bits[0]}  exponent ${bits.slice(1, exponent)}  fraction ${bits.slice(exponent)}`;
}
