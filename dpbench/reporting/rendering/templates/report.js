// Sortable and filterable tables, a hint where one is wider than the window, and folded details opened for print and
// for links into them. The page is complete without it.
"use strict";
document.querySelectorAll("table.sortable").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((first, second) => {
        const a = value(first, column);
        const b = value(second, column);
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
});
document.querySelectorAll("[data-filters]").forEach((bar) => {
  const table = document.getElementById(bar.dataset.filters);
  const inputs = [...bar.querySelectorAll("[data-filter], [data-most]")];
  const show = () => {
    let shown = 0;
    [...table.tBodies[0].rows].forEach((row) => {
      const fits = inputs.every((input) => {
        const wanted = input.value.trim().toLowerCase();
        const { filter, most } = input.dataset;
        if (wanted === "") return true;
        if (most) return row.dataset[most] !== "" && Number(row.dataset[most]) <= Number(wanted);
        return filter === "text" ? row.textContent.toLowerCase().includes(wanted) : row.dataset[filter] === input.value;
      });
      row.hidden = !fits;
      shown += fits;
    });
    bar.querySelector("output").textContent = `${shown} shown`;
  };
  inputs.forEach((input) => input.addEventListener("input", show));
  bar.hidden = false;
  // a link to a row that a filter hides shows it again
  addEventListener("hashchange", () => {
    const row = document.getElementById(location.hash.slice(1));
    if (row && row.hidden) { inputs.forEach((input) => { input.value = ""; }); show(); row.scrollIntoView(); }
  });
});
const hint = () => document.querySelectorAll(".scroll").forEach((box) => {
  box.classList.toggle("wider", box.scrollWidth > box.clientWidth + 1);
});
addEventListener("resize", hint);
addEventListener("toggle", hint, true);
hint();
const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let item = target && target.closest("details"); item; item = item.parentElement.closest("details")) item.open = true;
};
addEventListener("hashchange", unfold);
unfold();
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((item) => { item.open = true; }));
