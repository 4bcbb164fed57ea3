"use strict";
// Light or dark, and the colours with which canvases are drawn.

const THEMES = ["auto", "light", "dark"];
const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = "auto";
let ink = {};

function applyTheme() {
  const dark = chosenTheme === "dark" || (chosenTheme === "auto" && wantsDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const style = getComputedStyle(document.documentElement);
  ink = Object.fromEntries(["paper", "ink", "muted", "faint", "grid", "done", "empty", "cursor"]
    .map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function nextTheme() {
  chosenTheme = THEMES[(THEMES.indexOf(chosenTheme) + 1) % THEMES.length];
  applyTheme();
  return chosenTheme;
}

// Red, green and blue of "#RRGGBB".
const rgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

// `share` of one colour on another.
function blend(colour, ground, share) {
  const [over, under] = [rgb(colour), rgb(ground)];
  return over.map((value, at) => Math.round(share * value + (1 - share) * under[at]));
}

const fontOf = (size) => `${size}px DejaVu Sans, Verdana, Arial, sans-serif`;

// The pen of a cleared canvas of a size in the page's pixels; it writes text from the middle.
function penOf(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.ceil(width * ratio), Math.ceil(height * ratio)];
  const pen = canvas.getContext("2d");
  if (canvas.width !== wide || canvas.height !== high) {
    [canvas.width, canvas.height] = [wide, high];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  } else {
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, wide, high);
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = fontOf(11);
  pen.textBaseline = "middle";
  pen.setLineDash([]);
  return pen;
}

// Write a number in the middle of a cell, in small type if need be, or not at all.
function writeNumber(pen, number, [x, y, wide, high]) {
  const text = String(number);
  const size = [11, 9].find((each) => 0.65 * each * text.length + 1 <= wide && each <= high + 1);
  if (!size) return;
  pen.font = fontOf(size);
  pen.textAlign = "center";
  pen.fillText(text, x + wide / 2, y + high / 2);
  pen.font = fontOf(11);
}

const canvasOf = (id, width, height) => penOf(document.getElementById(id), width, height);
