"use strict";
// What the page can do beside being read: sort and filter its tables, say what a mark rests on, turn dark or light.

const NUMBER = /^[<>]?([+−-]?[\d,]+(?:\.\d+)?)/;
const LEAST_TO_FILTER = 6; // rows
const words = new Intl.Collator("en", { numeric: true });

function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text }, properties);
}

/** Numbers first, then words, what is not there last. */
function key(cell) {
  const text = cell.textContent.trim();
  const found = NUMBER.exec(text);
  if (found) return [0, Number(found[1].replaceAll(",", "").replace("−", "-")), text];
  return [text === "–" ? 2 : 1, 0, text];
}

function compare(a, b) {
  return a[0] - b[0] || a[1] - b[1] || words.compare(a[2], b[2]);
}

function sortable(table) {
  const body = table.tBodies[0];
  const before = [...body.rows];
  for (const heading of table.tHead.rows[0].cells) {
    const button = element("button", "", { type: "button" });
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const direction = { ascending: "descending", descending: "" }[heading.ariaSort] ?? "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      let rows = before;
      if (direction) {
        heading.ariaSort = direction;
        const sign = direction === "ascending" ? 1 : -1;
        const keyed = before.map((row) => [key(row.cells[heading.cellIndex]), row]);
        // what is not there stays last either way
        keyed.sort(([a], [b]) => (a[0] === 2 || b[0] === 2 ? a[0] - b[0] : sign * compare(a, b)));
        rows = keyed.map(([, row]) => row);
      }
      body.append(...rows);
    });
  }
}

function filterable(table, name) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < LEAST_TO_FILTER) return;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const field = element("input", "", { type: "search", placeholder: "Filter", ariaLabel: `Filter: ${name}` });
  const count = element("output", `${rows.length} rows`);
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !wanted.every((word) => texts[place].includes(word));
      shown += !row.hidden;
    });
    count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
  });
  const line = element("p", "", { className: "filter" });
  line.append(field, " ", count);
  table.parentElement.before(line);
}

for (const table of document.querySelectorAll("table.data:not(.fixed)")) {
  sortable(table);
  filterable(table, table.parentElement.ariaLabel);
}

const tip = document.getElementById("tip");
let told = null;

function tell(target) {
  told = target;
  tip.hidden = !target;
  if (!target) return;
  tip.textContent = target.ariaLabel;
  const place = target.getBoundingClientRect();
  const left = Math.min(place.left + place.width / 3, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = place.bottom + 6;
  const above = place.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight && above > 0 ? above : below}px`;
}

const MARK = "svg[tabindex], g[tabindex]";
// not pointerover: the page scrolls to what the keyboard comes to, and then something else lies under the pointer, which
// nobody moved
for (const event of ["pointermove", "focusin"]) {
  document.addEventListener(event, ({ target }) => {
    const mark = target.closest(MARK);
    if (mark !== told) tell(mark);
  });
}
document.addEventListener("focusout", () => tell(null));
document.addEventListener("keydown", ({ key }) => key === "Escape" && tell(null));
addEventListener("scroll", () => tell(told), { passive: true }); // it stays with its mark

const root = document.documentElement;
const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const theme = element("button", "", { type: "button", id: "theme" });
const name = () => (theme.textContent = dark() ? "Light" : "Dark");
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  name();
});
name();
document.querySelector("header").append(theme);
