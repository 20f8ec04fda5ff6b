// The values view: a stored tensor as colours, and the bits of a selected element.

const zoom = { chosen: 0, slice: 0, cell: 8 };

/**
 * Choose the first stored tensor of a stage, of the token's pass if there is one, and its slice of the head or token.
 * The choice stays as it is if no tensor of the stage is stored.
 */
function chooseValues(run, { stage, layer, head, position }) {
  const kept = run.kept();
  const isOfStage = (one) => one.stage === stage && (one.layer === null || one.layer === layer);
  const pass = run.passOf(position).number;
  const chosen = kept.findIndex((one) => isOfStage(one) && one.pass === pass);
  const at = chosen >= 0 ? chosen : kept.findIndex(isOfStage);
  if (at < 0) return;
  const x = kept[at];
  zoom.chosen = at;
  const group = run.H / run.sizes.K;
  const index = { H: head, K: Math.floor(head / group), T: position - run.passes[x.pass].start, S: position, C: position }[x.letters[0]] ?? 0;
  zoom.slice = Math.max(0, index - (x.axis === 0 ? x.first : 0));
}

async function valuesView(root) {
  const run = currentRun();
  const kept = run.kept();
  if (!kept.length) return root.append(missing("Every tensor"));
  const at = Math.min(zoom.chosen, kept.length - 1);
  const x = kept[at];
  const array = await arrayOf(x.reference);
  const isComplex = x.dtype === "complex64";
  const shape = isComplex ? x.reference.shape.slice(0, -1) : x.reference.shape;
  const [rows, columns] = shape.length === 1 ? [1, shape[0]] : shape.slice(-2);
  const slices = shape.slice(0, -2).reduce((a, b) => a * b, 1);
  const slice = Math.min(zoom.slice, slices - 1);
  const index = (r, c) => (slice * rows + r) * columns + c;
  const read = (i) => (isComplex ? Math.hypot(array[2 * i], array[2 * i + 1]) : numberAt(array, x.reference.dtype, i));
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < rows * columns; i++) {
    const v = read(slice * rows * columns + i);
    if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  }
  const isSigned = low < 0;
  const end = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const bounds = isSigned ? [-end, end] : [Math.min(low, 0), high || 1];
  const title = (one) => `pass ${one.pass}, ${one.layer === null ? "" : `layer ${one.layer}, `}stage ${one.stage}: ${one.name} [${one.letters.join(", ")}] (${one.op})`;
  const axes = shape.length === 1 ? [0] : [shape.length - 2, shape.length - 1];
  const offset = (axis, n) => (axis === x.axis ? n + x.first : n);
  const say = (r, c) => {
    const i = index(r, c);
    const places = [...(shape.length > 2 ? [offset(0, slice)] : []), ...(shape.length > 1 ? [offset(axes[0], r)] : []), offset(axes.at(-1), c)];
    const value = isComplex ? `${array[2 * i]} + ${array[2 * i + 1]} i` : String(read(i));
    return `${x.name}[${places.join(", ")}] = ${value}   ${isComplex ? "" : bitsOf(array, x.reference.dtype, i)}`;
  };
  root.append(h("p", {}, "The elements have the same bits as in the run."),
    h("div", { class: "controls" },
      choice("values-tensor", "tensor", kept.map((one, i) => [i, title(one)]), at, (i) => { Object.assign(zoom, { chosen: Number(i), slice: 0 }); show({}); }),
      slices > 1 ? choice("values-slice", `${x.letters[0]}`, range(slices).map((i) => [i, offset(0, i)]), slice, (i) => { zoom.slice = Number(i); show({}); }) : null,
      h("button", { id: "values-smaller", type: "button", onclick: () => { zoom.cell = Math.max(1, zoom.cell / 2); show({}); } }, "smaller cells"),
      h("button", { id: "values-larger", type: "button", onclick: () => { zoom.cell = Math.min(32, zoom.cell * 2); show({}); } }, "larger cells")),
    h("p", {}, `${x.name}: shape [${x.letters.join(", ")}] = [${x.shape.join(", ")}], ${x.dtype}. ${x.first ? `The file contains ${x.letters[x.axis]} from index ${x.first} on. ` : ""}The row index increases downwards, the column index to the right.`),
    matrix({
      id: "values-map", name: `elements of ${x.name}`, rows, columns, cell: zoom.cell, scale: isSigned ? DIVERGING : VIRIDIS, low: bounds[0], high: bounds[1],
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
