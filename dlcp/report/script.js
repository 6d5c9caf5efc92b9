"use strict";
// Legends hide and show what they name; headings sort their table.
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(pressed));
    for (const mark of button.closest("figure").querySelectorAll(".drawing svg ." + button.dataset.style)) {
      mark.classList.toggle("off", !pressed);
    }
  });
}
for (const heading of document.querySelectorAll("thead button")) {
  heading.addEventListener("click", () => {
    const cell = heading.closest("th"), row = cell.parentElement, index = [...row.children].indexOf(cell);
    const sign = cell.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of row.children) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = cell.closest("table").tBodies[0];
    const key = (line) => {
      const { value } = line.children[index].dataset;
      return value === undefined ? line.children[index].textContent : value === "" ? Infinity : Number(value);
    };
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? (a === b ? 0 : a - b) : String(a).localeCompare(String(b)));
    body.append(...[...body.rows].sort((a, b) => sign * compare(key(a), key(b))));
  });
}
