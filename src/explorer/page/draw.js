// Elements, colours and the number matrix that several views share. Nothing is ever parsed as HTML.

/** Create an element with attributes, `on...` listeners and children. Strings become text nodes. */
function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element in the same way. */
function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value); // the policy allows styles set through the CSSOM
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== false));
  return element;
}

/** Create an element for a token's text that isolates its text direction. */
const token = (run, id, most) => h("bdi", { class: "token" }, run.label(id, most));

const MOST_ROWS = 300; // maximum number of rows in a table that does not scroll vertically

/** Create a table from rows of cells, which may be elements. */
function table(caption, heads, rows, attributes = {}) {
  const isLong = rows.length > MOST_ROWS;
  return h("div", { class: isLong ? "scroll long" : "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", attributes, h("caption", {}, isLong ? `${caption} (${amount(rows.length)} rows: scroll down in the table)` : caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => (row instanceof Element ? row
        : h("tr", {}, row.map((cell) => h("td", {}, cell ?? "–"))))))));
}

/** Create a picture in its natural size, which scrolls if it does not fit. */
function picture(width, height, label, ...parts) {
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, parts);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, svg);
}

const WIDEST = 2520; // maximum width of the page in pixels, as in style.css
const pageWidth = () => Math.min(window.innerWidth, WIDEST) - 32;

/** Return the width of a column of `spread` with at least `parts` parts. */
function columnWidth(parts) {
  const columns = Math.max(1, Math.min(parts, Math.floor((pageWidth() + 36) / 626)));
  return (pageWidth() - 36 * (columns - 1)) / columns;
}

/** Create parts that are next to each other on a wide screen, and below each other on a narrow one. */
const spread = (...parts) => h("div", { class: "spread" }, parts.map((part) => h("div", {}, part)));

/** Create such parts that need 900 pixels each. */
function broad(...parts) {
  const element = spread(...parts);
  element.classList.add("broad");
  return element;
}

/** Create a labelled drop-down list. Each option is a [value, text] pair. */
function choice(id, label, options, value, onchange) {
  return h("label", { class: "control" }, label, h("select", {
    id, onchange: (event) => onchange(event.target.value),
  }, options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text))));
}

const missing = (what) => h("p", { class: "missing" }, `${what} was left out of this file: see “What was left out”.`);

// Viridis. Its lightness increases evenly, so it works in greyscale and for colour-blind readers.
const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
// Blue for negative and orange for positive numbers; zero is nearly white.
const DIVERGING = [[5, 48, 97], [67, 147, 195], [209, 229, 240], [247, 247, 247], [253, 219, 199],
  [230, 130, 60], [140, 60, 0]];
// Okabe and Ito's palette, for groups of heads. Each group is also labelled with its number.
const GROUPS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"];

/** Return the colour [r, g, b] for a fraction from 0 to 1. */
function colour(scale, share) {
  const at = Math.min(Math.max(share, 0), 1) * (scale.length - 1);
  const low = Math.min(Math.floor(at), scale.length - 2);
  return scale[low].map((c, i) => Math.round(c + (scale[low + 1][i] - c) * (at - low)));
}

const palettes = new Map(); // scale -> 256 colours as pixels

/** Return the pixel for a fraction from 0 to 1. */
function pixel(scale, share) {
  if (!palettes.has(scale)) {
    palettes.set(scale, Uint32Array.from(range(256), (i) => {
      const [red, green, blue] = colour(scale, i / 255);
      return (255 << 24) | (blue << 16) | (green << 8) | red;
    }));
  }
  return palettes.get(scale)[Math.round(Math.min(Math.max(share, 0), 1) * 255)];
}

const css = (rgb) => `rgb(${rgb.join(" ")})`;
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff");

/** Create a colour bar with the numbers at its ends. */
function legend(scale, low, high, what) {
  const width = 160;
  const stops = Array.from({ length: width / 4 }, (_, i) => s("rect", {
    x: i * 4, y: 0, width: 4.5, height: 12, fill: css(colour(scale, i / (width / 4 - 1))),
  }));
  return h("p", { class: "legend" }, `${what}: ${digits(low, 3)} `,
    s("svg", { width, height: 12, role: "img", "aria-label": `colours from ${digits(low, 3)} to ${digits(high, 3)}` }, stops),
    ` ${digits(high, 3)}`);
}

/**
 * Create a matrix of numbers shown as colours. Arrow keys and the pointer select a cell, whose
 * description is shown below the matrix.
 *
 * rows, columns: the dimensions; value(r, c): the number, or null for an empty cell; scale: the
 * colours; low, high: the range; labels: {row, column}, functions from an index to a label; cell: the
 * cell size in pixels; chosen: the selected cell [r, c]; say(r, c): the description of a cell;
 * isMarked(r, c): whether a cell has a dot; choose(r, c): called on a click or Enter.
 */
function matrix({ id, rows, columns, value, scale, low, high, labels, cell, chosen, say, isMarked, choose, name }) {
  const ratio = window.devicePixelRatio || 1;
  const most = Math.max(1, Math.floor(6000 / cell)); // browsers limit the size of a canvas
  const space = (label, n) => (label ? Math.ceil(16 + 6.7 * Math.min(14, Math.max(...range(Math.min(n, most)).map((i) => label(i).length)))) : 0);
  const left = space(labels?.row, rows);
  const top = space(labels?.column, columns);
  const canvas = h("canvas", { id, tabindex: 0, role: "img", "aria-label": `${name}; arrow keys move the cursor, Enter selects the cell` });
  const output = h("output", { class: "readout", for: id });
  let [r, c] = chosen ?? [0, 0];
  // If the matrix is too large, show only the part around the selected cell.
  const firstRow = Math.max(0, Math.min(r - (most >> 1), rows - most));
  const firstColumn = Math.max(0, Math.min(c - (most >> 1), columns - most));
  const shownRows = Math.min(rows, most);
  const shownColumns = Math.min(columns, most);
  const width = left + shownColumns * cell;
  const height = top + shownRows * cell;
  canvas.width = Math.ceil(width * ratio);
  canvas.height = Math.ceil(height * ratio);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const base = document.createElement("canvas");
  base.width = shownColumns;
  base.height = shownRows;
  const image = new ImageData(shownColumns, shownRows);
  const pixels = new Uint32Array(image.data.buffer);
  const span = high - low || 1;
  for (let i = 0; i < shownRows; i++) {
    for (let j = 0; j < shownColumns; j++) {
      const x = value(firstRow + i, firstColumn + j);
      if (x !== null) pixels[i * shownColumns + j] = pixel(scale, (x - low) / span);
    }
  }
  base.getContext("2d").putImageData(image, 0, 0);
  const style = getComputedStyle(document.documentElement);
  function paint() {
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(base, left, top, shownColumns * cell, shownRows * cell);
    context.fillStyle = style.getPropertyValue("--mark");
    for (let i = 0; isMarked && i < shownRows; i++) {
      for (let j = 0; j < shownColumns; j++) {
        if (!isMarked(firstRow + i, firstColumn + j)) continue;
        context.beginPath();
        context.arc(left + (j + 0.5) * cell, top + (i + 0.5) * cell, Math.max(1.5, cell / 6), 0, 7);
        context.fill();
      }
    }
    context.fillStyle = style.getPropertyValue("--ink");
    context.font = "11px ui-monospace, monospace";
    const every = Math.max(1, Math.ceil(13 / cell));
    context.textBaseline = "middle";
    for (let i = 0; labels?.row && i < shownRows; i += every) {
      context.textAlign = "right";
      context.fillText(labels.row(firstRow + i), left - 5, top + (i + 0.5) * cell, left - 8);
    }
    for (let j = 0; labels?.column && j < shownColumns; j += every) {
      context.save();
      context.translate(left + (j + 0.5) * cell, top - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(labels.column(firstColumn + j), 0, 0, top - 8);
      context.restore();
    }
    context.strokeStyle = style.getPropertyValue("--mark");
    context.lineWidth = 2;
    context.strokeRect(left + (c - firstColumn) * cell, top + (r - firstRow) * cell, cell, cell);
    output.textContent = say(r, c);
  }
  const move = (row, column) => {
    r = Math.min(Math.max(row, firstRow), firstRow + shownRows - 1);
    c = Math.min(Math.max(column, firstColumn), firstColumn + shownColumns - 1);
    paint();
  };
  const at = (event) => [
    firstRow + Math.floor((event.offsetY - top) / cell), firstColumn + Math.floor((event.offsetX - left) / cell),
  ];
  canvas.addEventListener("pointermove", (event) => move(...at(event)));
  canvas.addEventListener("click", (event) => { move(...at(event)); choose?.(r, c); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) { move(r + step[0], c + step[1]); event.preventDefault(); event.stopPropagation(); }
    if (event.key === "Enter") choose?.(r, c);
  });
  paint();
  const part = shownRows < rows || shownColumns < columns
    ? h("p", { class: "missing" }, `Only rows ${firstRow} to ${firstRow + shownRows - 1} of ${rows} and columns ${firstColumn} to ${firstColumn + shownColumns - 1} of ${columns} are shown.`) : null;
  // An element at the cell that was selected first, which `reveal` scrolls to.
  const place = h("span", { class: "place", style: { left: `${left + (c - firstColumn) * cell}px`, top: `${top + (r - firstRow) * cell}px`, width: `${cell}px`, height: `${cell}px` } });
  return h("div", { class: "matrix" }, h("div", { class: "scroll" }, h("div", { class: "sheet" }, canvas, place)), output, part);
}
