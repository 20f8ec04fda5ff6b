// Copy buttons on code, and pictures that can be enlarged. Nothing is loaded.
"use strict";

function addCopyButtons() {
  for (const block of document.querySelectorAll("article div[class*=highlight-] .highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await copyText(block.querySelector("pre").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
}

// Browsers offer the clipboard only to some pages, so a selection is the other way.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

const STEP = 1.25;
const LARGEST = 16;

function addZoom() {
  const pictures = document.querySelectorAll("article img");
  if (!pictures.length) {
    return;
  }
  const dialog = document.createElement("dialog");
  dialog.className = "zoom";
  dialog.innerHTML = '<div class="zoom-tools"></div><div class="zoom-view"><img alt=""></div>';
  const large = dialog.querySelector("img");
  const view = dialog.querySelector(".zoom-view");
  const state = { scale: 1, x: 0, y: 0 };

  const show = () => {
    large.style.transform = `translate(${state.x}px, ${state.y}px) scale(${state.scale})`;
  };
  // The point (x, y) of the view stays where it is.
  const zoom = (factor, x, y) => {
    const scale = Math.min(LARGEST, Math.max(1, state.scale * factor));
    const ratio = scale / state.scale;
    state.x = scale === 1 ? 0 : x - (x - state.x) * ratio;
    state.y = scale === 1 ? 0 : y - (y - state.y) * ratio;
    state.scale = scale;
    show();
  };
  const zoomCentre = (factor) => zoom(factor, view.clientWidth / 2, view.clientHeight / 2);
  const tools = {
    "+": ["Enlarge", () => zoomCentre(STEP)],
    "\u2212": ["Reduce", () => zoomCentre(1 / STEP)],
    "\u00d7": ["Close", () => dialog.close()],
  };
  for (const [text, [label, action]] of Object.entries(tools)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", action);
    dialog.querySelector(".zoom-tools").append(button);
  }
  view.addEventListener("wheel", (event) => {
    event.preventDefault();
    const place = view.getBoundingClientRect();
    const factor = event.deltaY < 0 ? STEP : 1 / STEP;
    zoom(factor, event.clientX - place.left, event.clientY - place.top);
  }, { passive: false });
  view.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    view.setPointerCapture(event.pointerId);
  });
  view.addEventListener("pointermove", (event) => {
    if (event.buttons) {
      state.x += event.movementX;
      state.y += event.movementY;
      show();
    }
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "-") {
      zoomCentre(event.key === "+" ? STEP : 1 / STEP);
    }
  });
  document.body.append(dialog);

  const open = (picture) => {
    Object.assign(state, { scale: 1, x: 0, y: 0 });
    large.src = picture.currentSrc || picture.src;
    large.alt = picture.alt;
    show();
    dialog.showModal();
  };
  for (const picture of pictures) {
    if (picture.closest("a")) {
      continue;
    }
    picture.classList.add("zoomable");
    picture.tabIndex = 0;
    picture.setAttribute("role", "button");
    picture.addEventListener("click", () => open(picture));
    picture.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        open(picture);
      }
    });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  addCopyButtons();
  addZoom();
});
