"use strict";
// A click on a column's name sorts the table by it; a second one the other way round.
document.querySelectorAll("th button").forEach(button => button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], column = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
  const value = row => {
    const text = row.cells[column].textContent.trim().replace(/(\d),(?=\d{3})/g, "$1");
    const found = text.match(/^[<+]?\s*(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kMGT])?/);
    return found ? found[1] * (units[found[2]] || 1) : text.toLowerCase();
  };
  const order = (a, b) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;  // what has no number goes last
    return (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1);
  };
  head.parentElement.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...[...body.rows].sort((one, other) => order(value(one), value(other))));
}));
